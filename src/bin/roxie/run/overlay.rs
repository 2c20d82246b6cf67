//! A mount namespace in which `/sys/class` and `/dev` have an RDMA device, for this process and those that it starts.
//!
//! As root it is a mount namespace alone; without, one in a user namespace, in which the user is who they were. A folder that has to
//! get something new becomes a tmpfs with all of its old entries bound into it: neither sysfs nor a user's `/dev` lets entries be made.
//!
//! What cannot be had is left out and told ([`NoView`]); the program runs without. A user namespace cannot be left again, so whether
//! everything works in one is tried in a process of its own first.

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
use super::hint::Surroundings;
use super::view::{Class, RDMA_CM, View};

/// The device number of `/dev/ptmx` (Linux Documentation/admin-guide/devices.txt).
const MULTIPLEXER: u64 = makedev(5, 2);

/// Where the view of sysfs is.
pub(super) const CLASS: &str = "/sys/class";

/// What programs see of the device besides the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// `/sys/class/infiniband` and its like.
    Sysfs,
    /// `/dev/infiniband`.
    Nodes,
}

impl Part {
    const ALL: [Part; 2] = [Part::Sysfs, Part::Nodes];

    /// What it is, and who misses it.
    fn told(self) -> (&'static str, &'static str) {
        match self {
            Part::Sysfs => (
                "/sys/class/infiniband",
                "programs on libibverbs and librdmacm alone do not miss it, UCX, NCCL and Open MPI do",
            ),
            Part::Nodes => (
                "/dev/infiniband",
                "programs on libibverbs and librdmacm alone do not miss it, UCX and what looks for the nodes itself do",
            ),
        }
    }
}

/// Why a part of the view, or all of it, is not there.
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

/// A step that failed.
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

/// Enters the namespace and puts the view in. What is missing of it. `keep_rights`: the program needs its capabilities over the network
/// namespace, which it has not in a user namespace of its own.
///
/// # Errors
/// If this process is no longer where it was: nothing may be started then.
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
                Surroundings::of_this_process().for_mounts_beside_xdp()
            ))])
        }
        Err(_) => Ok(enter_as_user(view)),
    }
}

/// Likewise without the right to a mount namespace: in a user namespace.
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
    vec![NoView::all(format!("{why}; {}", Surroundings::of_this_process().for_mounts()))]
}

/// A mount namespace in a user namespace, which shares nothing that is mounted from here on with others.
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

/// What is mounted from here on, nobody else sees.
///
/// # Errors
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

/// In a chroot the mount that the root directory is in has no path. It has one at the root of the namespace, to which entering the
/// namespace once more leads: there, and back.
fn quiet_above() -> io::Result<Result<(), Failed>> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let places = || -> Result<_, Failed> {
        let folder = |path: &str| open(path, flags, Mode::empty()).map_err(failed(format!("opening {path}")));
        let namespace = File::open("/proc/self/ns/mnt").map_err(failed("/proc/self/ns/mnt"))?;
        // What the way back takes is asked for before.
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

/// Puts the view in, as far as that can be.
fn fill(view: &View) -> Vec<NoView> {
    let part = |part: Part| {
        let done = match part {
            Part::Sysfs => classes(view),
            Part::Nodes => nodes(),
        };
        done.err().map(|why| NoView { part: Some(part), why: why.told() })
    };
    Part::ALL.into_iter().filter_map(part).collect()
}

fn classes(view: &View) -> Result<(), Failed> {
    let class = Path::new(CLASS);
    if !class.is_dir() {
        // Nobody has mounted sysfs here.
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
                // The kernel's own, if it has one: a link.
                let entry = folder.join(entry);
                if entry.is_symlink() {
                    fs::remove_file(&entry).map_err(failed(format!("replacing {}", entry.display())))?;
                }
            }
        }
    }
    view.write(class).map_err(failed("writing below /sys/class"))
}

/// An empty tmpfs over a folder.
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

/// Makes a folder one in which entries can be made, with all that it had.
fn shadow(folder: &Path) -> Result<(), Failed> {
    let name = || format!("reading {}", folder.display());
    // The way to the old folder once the new one is over it.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let old = open(folder, flags, Mode::empty()).map_err(failed(name()))?;
    let entries: Vec<_> = fs::read_dir(folder).map_err(failed(name()))?.flatten().collect();
    let kinds: Vec<_> = entries.iter().map(|entry| (entry.file_name(), entry.file_type())).collect();
    empty_over(folder)?;
    let kept = keep(&PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd())), folder, kinds);
    if kept.is_err() {
        // Better nothing new than half of what was there.
        let _ = umount2(folder, MntFlags::MNT_DETACH);
    }
    kept
}

/// What a folder had, by name and kind, bound into the one that is over it.
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

/// True of `/dev/ptmx`. What is bound to another place does not work: the kernel looks for the terminals in `pts` beside the node.
fn is_terminal_multiplexer(node: &Path) -> bool {
    fs::symlink_metadata(node)
        .is_ok_and(|node| node.file_type().is_char_device() && node.rdev() == MULTIPLEXER)
}

/// Makes one: the node itself, or without the right to do so the way to the one that each `devpts` has. False: neither can be had.
fn multiplexer(to: &Path) -> bool {
    let everybody = Mode::from_bits_truncate(0o666);
    mknod(to, SFlag::S_IFCHR, everybody, MULTIPLEXER)
        .and_then(|()| fchmodat(AT_FDCWD, to, everybody, FchmodatFlags::FollowSymlink))
        .is_ok()
        || symlink("pts/ptmx", to).is_ok()
}

/// Character nodes in `/dev/infiniband`. That they are there and can be opened is what counts; what is meant for rdma_cm's comes to our
/// library, and of one that does without, which would take silence for answers, each command fails.
fn nodes() -> Result<(), Failed> {
    let folder = Path::new("/dev/infiniband");
    if !folder.is_dir() {
        shadow(Path::new("/dev"))?;
        make_folder(folder)?;
    }
    empty_over(folder)?;
    for name in View::nodes() {
        let node = folder.join(name);
        File::create(&node).map_err(failed(format!("making {}", node.display())))?;
        let full = Path::new("/dev/full");
        let behind = if name == RDMA_CM && full.exists() { full } else { Path::new("/dev/null") };
        bind(behind, &node)?;
    }
    Ok(())
}
