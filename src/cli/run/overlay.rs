//! Adds an RDMA device to `/sys/class` and `/dev`, in a mount namespace for this process and its children.
//!
//! Root needs only a mount namespace. Other users get one in a user namespace, which maps them to themselves. A folder
//! of sysfs or a user's `/dev` does not allow new entries, so it is covered by a tmpfs with all its old entries bound
//! into it.
//!
//! If a part cannot be set up, the program runs without it, and a note says so ([`NoView`]). A process cannot leave a
//! user namespace, so a forked process tries first whether everything works in one.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, FileType};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, makedev, mknod};
use nix::unistd::{chroot, fchdir, getgid, getuid};

use super::child;
use super::hint::Environment;
use super::view::{Class, RDMA_CM, View};

/// Device number of `/dev/ptmx` (Linux Documentation/admin-guide/devices.txt).
const MULTIPLEXER: u64 = makedev(5, 2);

/// Folder of the view in sysfs.
pub(super) const CLASS: &str = "/sys/class";
/// Folder of the view in `/dev`.
const NODES: &str = "/dev/infiniband";
/// A tmpfs of the view, in `/proc/self/mountinfo`.
const MARK: &str = " - tmpfs roxie ";

/// The parts of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// `/sys/class/infiniband` and related folders.
    Sysfs,
    /// `/dev/infiniband`.
    Nodes,
}

impl Part {
    const ALL: [Part; 2] = [Part::Sysfs, Part::Nodes];

    /// Returns the part's path, and the programs that need it.
    fn told(self) -> (&'static str, &'static str) {
        match self {
            Part::Sysfs => (
                "/sys/class/infiniband",
                "programs that use only libibverbs and librdmacm do not need it; UCX, NCCL and Open MPI do",
            ),
            Part::Nodes => (
                NODES,
                "programs that use only libibverbs and librdmacm do not need it; UCX and programs that open the nodes \
                 themselves do",
            ),
        }
    }
}

/// Why the view, or a part of it, is missing.
#[derive(Debug)]
pub(super) struct NoView {
    part: Option<Part>,
    why: String,
}

impl NoView {
    fn all(why: impl Into<String>) -> NoView {
        NoView { part: None, why: why.into() }
    }

    /// True if the files in `/sys/class` are missing.
    pub(super) fn is_of_sysfs(&self) -> bool {
        self.part != Some(Part::Nodes)
    }
}

impl fmt::Display for NoView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, who) = self.part.unwrap_or(Part::Sysfs).told();
        write!(f, "no view of {what} for the program ({}): {who}", self.why)
    }
}

/// A failed step.
#[derive(Debug)]
struct Failed {
    what: String,
    why: io::Error,
}

impl Failed {
    fn told(&self) -> String {
        format!("{}: {}", self.what, self.why)
    }
}

fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Failed {
    let what = what.into();
    move |why| Failed { what, why: why.into() }
}

/// Enters the namespace and sets up the view. Returns the missing parts. `keep_rights`: the program needs its
/// capabilities over the network namespace, which it would lose in a user namespace.
///
/// # Errors
///
/// If this process is in an unexpected place afterwards; no program may be started then.
pub(super) fn enter(view: &View, keep_rights: bool) -> io::Result<Vec<NoView>> {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => match quiet()? {
            Ok(()) => Ok(fill(view)),
            Err(why) => Ok(vec![NoView::all(why.told())]),
        },
        Err(errno) if keep_rights => {
            let why = failed("a mount namespace")(errno);
            Ok(vec![NoView::all(format!(
                "{}; {}",
                why.told(),
                Environment::of_this_process().for_mounts_beside_xdp()
            ))])
        }
        Err(_) => Ok(enter_as_user(view)),
    }
}

/// Sets up the view in a user namespace, for a process that may not have a mount namespace otherwise.
fn enter_as_user(view: &View) -> Vec<NoView> {
    let entered = || -> Result<Vec<NoView>, Failed> { own_user().map(|()| fill(view)) };
    let tried = child::rehearse(|| match entered() {
        Ok(missing) if missing.len() < Part::ALL.len() => String::new(),
        Ok(missing) => missing.into_iter().next().map_or(String::new(), |first| first.why),
        Err(why) => why.told(),
    });
    let why = match tried {
        Ok(why) if why.is_empty() => match entered() {
            Ok(missing) => return missing,
            Err(why) => why.told(),
        },
        Ok(why) => why,
        Err(error) => format!("trying a user namespace: {error}"),
    };
    vec![NoView::all(format!("{why}; {}", Environment::of_this_process().for_mounts()))]
}

/// Enters a mount namespace in a user namespace, and makes its mounts private.
fn own_user() -> Result<(), Failed> {
    let (uid, gid) = (getuid(), getgid());
    let both = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
    unshare(both).map_err(|errno| {
        let why = match errno {
            Errno::ENOSPC => io::Error::other("there are as many as user.max_user_namespaces allows"),
            errno => errno.into(),
        };
        failed("a user namespace with a mount namespace")(why)
    })?;
    let map = |file: &str, content: String| {
        fs::write(format!("/proc/self/{file}"), content).map_err(failed(format!("/proc/self/{file}")))
    };
    map("setgroups", "deny".into())?;
    map("uid_map", format!("{uid} {uid} 1"))?;
    map("gid_map", format!("{gid} {gid} 1"))
}

/// Makes mounts private: later mounts show in no other namespace.
///
/// # Errors
///
/// Outer: as [`enter`].
fn quiet() -> io::Result<Result<(), Failed>> {
    let what = "making mounts private";
    match quiet_below() {
        // The root directory is no mount point: a plain chroot.
        Err(Errno::EINVAL) => quiet_above(),
        result => Ok(result.map_err(failed(what))),
    }
}

fn quiet_below() -> nix::Result<()> {
    let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
}

/// Makes mounts private in a chroot, where the mount of the root directory has no path. At the namespace's root the
/// mount has one, and entering the namespace again leads there. Afterwards returns to the chroot.
fn quiet_above() -> io::Result<Result<(), Failed>> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let places = || -> Result<_, Failed> {
        let folder = |path: &str| open(path, flags, Mode::empty()).map_err(failed(format!("opening {path}")));
        let namespace = File::open("/proc/self/ns/mnt").map_err(failed("/proc/self/ns/mnt"))?;
        // Open everything for the way back first.
        chroot("/").map_err(failed("chroot"))?;
        Ok((folder("/")?, folder(".")?, namespace))
    };
    let (root, here, namespace) = match places() {
        Ok(places) => places,
        Err(why) => return Ok(Err(why)),
    };
    if let Err(errno) = setns(namespace, CloneFlags::CLONE_NEWNS) {
        return Ok(Err(failed("entering the mount namespace from a chroot")(errno)));
    }
    let done = quiet_below().map_err(failed("making mounts private from a chroot"));
    fchdir(&root)?;
    chroot(".")?;
    fchdir(&here)?;
    Ok(done)
}

/// Sets up the view in the mount namespace that this process is in, for all its processes. Returns the missing parts.
pub(super) fn cover(view: &View) -> Vec<NoView> {
    // Where this fails, `/dev` takes no new folder, and all of it is covered.
    let _ = fs::create_dir(NODES);
    fill(view)
}

/// Unmounts the view that [`cover`] has set up.
///
/// # Errors
///
/// If the kernel refuses that.
pub(super) fn uncover() -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let ours = mounts.lines().filter(|line| line.contains(MARK)).filter_map(|line| line.split(' ').nth(4));
    // The last one first: others lie below it.
    for folder in ours.collect::<Vec<_>>().into_iter().rev() {
        match umount2(folder, MntFlags::MNT_DETACH) {
            // With the folder that it was in.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => return Err(io::Error::other(format!("unmounting {folder}: {errno}"))),
        }
    }
    // Fails where the kernel has nodes of its own in the folder.
    let _ = fs::remove_dir(NODES);
    Ok(())
}

/// Sets up the view, as far as possible. Returns the missing parts.
fn fill(view: &View) -> Vec<NoView> {
    let part = |part: Part| {
        let done = match part {
            Part::Sysfs => classes(view),
            Part::Nodes => nodes(view),
        };
        done.err().map(|why| NoView { part: Some(part), why: why.told() })
    };
    Part::ALL.into_iter().filter_map(part).collect()
}

fn classes(view: &View) -> Result<(), Failed> {
    let class = Path::new(CLASS);
    if !class.is_dir() {
        // Sysfs is not mounted here.
        shadow(Path::new("/sys"))?;
        make_folder(class)?;
    }
    if !View::classes().iter().all(|part| class.join(part.name()).is_dir()) {
        shadow(class)?;
    }
    for part in View::classes() {
        let folder = class.join(part.name());
        make_folder(&folder)?;
        match part {
            Class::Whole(_) => empty_over(&folder)?,
            Class::Part(_, entry) => {
                shadow(&folder)?;
                // The kernel's own entry, if it has an RDMA device: a link.
                let entry = folder.join(entry);
                if entry.is_symlink() {
                    fs::remove_file(&entry).map_err(failed(format!("replacing {}", entry.display())))?;
                }
            }
        }
    }
    // Lists the kernel's own devices, which the view hides.
    let management = class.join("infiniband_mad");
    if management.is_dir() {
        empty_over(&management)?;
    }
    view.write(class).map_err(failed("writing below /sys/class"))
}

/// Mounts an empty tmpfs over a folder.
fn empty_over(folder: &Path) -> Result<(), Failed> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("roxie"), folder, Some("tmpfs"), flags, Some("mode=755,size=4m"))
        .map_err(failed(format!("a tmpfs over {}", folder.display())))
}

fn make_folder(folder: &Path) -> Result<(), Failed> {
    fs::create_dir_all(folder).map_err(failed(format!("making {}", folder.display())))
}

fn bind(from: &Path, to: &Path) -> Result<(), Failed> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), to, None::<&str>, flags, None::<&str>)
        .map_err(failed(format!("binding {}", to.display())))
}

/// Covers a folder so that entries can be added, and keeps its old entries.
fn shadow(folder: &Path) -> Result<(), Failed> {
    let name = || format!("reading {}", folder.display());
    // A descriptor of the old folder, which is still reachable through it once covered.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let old = open(folder, flags, Mode::empty()).map_err(failed(name()))?;
    let entries: Vec<_> = fs::read_dir(folder).map_err(failed(name()))?.flatten().collect();
    let kinds: Vec<_> = entries.iter().map(|entry| (entry.file_name(), entry.file_type())).collect();
    empty_over(folder)?;
    let kept = keep(&PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd())), folder, kinds);
    if kept.is_err() {
        // On failure restore the old folder: better no new entry than missing old ones.
        let _ = umount2(folder, MntFlags::MNT_DETACH);
    }
    kept
}

/// Binds the entries of the covered folder, given by name and kind, into the tmpfs over it.
fn keep(below: &Path, folder: &Path, entries: Vec<(OsString, io::Result<FileType>)>) -> Result<(), Failed> {
    let name = || format!("reading {}", folder.display());
    for (entry, kind) in entries {
        let (from, to) = (below.join(&entry), folder.join(&entry));
        let kind = kind.map_err(failed(name()))?;
        if kind.is_symlink() {
            let target = fs::read_link(&from).map_err(failed(name()))?;
            symlink(target, &to).map_err(failed(format!("making {}", to.display())))?;
            continue;
        }
        if is_terminal_multiplexer(&from) && multiplexer(&to) {
            continue;
        }
        if kind.is_dir() {
            make_folder(&to)?;
        } else {
            File::create(&to).map_err(failed(format!("making {}", to.display())))?;
        }
        bind(&from, &to)?;
    }
    Ok(())
}

/// True for `/dev/ptmx`, which cannot be bound to another place: the kernel looks for `pts` beside the node.
fn is_terminal_multiplexer(node: &Path) -> bool {
    fs::symlink_metadata(node)
        .is_ok_and(|node| node.file_type().is_char_device() && node.rdev() == MULTIPLEXER)
}

/// Creates a terminal multiplexer: the node itself, or without the privilege a link to that of `devpts`. Returns false
/// if both fail.
fn multiplexer(to: &Path) -> bool {
    let everybody = Mode::from_bits_truncate(0o666);
    mknod(to, SFlag::S_IFCHR, everybody, MULTIPLEXER)
        .and_then(|()| fchmodat(AT_FDCWD, to, everybody, FchmodatFlags::FollowSymlink))
        .is_ok()
        || symlink("pts/ptmx", to).is_ok()
}

/// Creates character nodes in `/dev/infiniband`. Programs check that they exist and can be opened. The library
/// intercepts accesses to rdma_cm's node. Without the library, writes to it fail (`/dev/full`): a program would take
/// silence for an answer.
fn nodes(view: &View) -> Result<(), Failed> {
    let folder = Path::new(NODES);
    if !folder.is_dir() {
        shadow(Path::new("/dev"))?;
        make_folder(folder)?;
    }
    empty_over(folder)?;
    for name in view.nodes() {
        let node = folder.join(name);
        // Not by `open`, which the library intercepts: `roxie enable` gives the library to this program, too.
        mknod(&node, SFlag::S_IFREG, Mode::from_bits_truncate(0o644), 0)
            .map_err(failed(format!("making {}", node.display())))?;
        let full = Path::new("/dev/full");
        let behind = if name == RDMA_CM && full.exists() { full } else { Path::new("/dev/null") };
        bind(behind, &node)?;
    }
    Ok(())
}
