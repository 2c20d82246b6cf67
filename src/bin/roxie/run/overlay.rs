//! A mount namespace in which `/sys/class` and `/dev` have an RDMA device, for this process and those that it starts.
//!
//! As root it is a mount namespace alone; without, one in a user namespace, in which the user is who they were. A folder that has to
//! get something new becomes a tmpfs with all of its old entries bound into it: neither sysfs nor a user's `/dev` lets entries be made.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{getgid, getuid};

use super::view::{Class, View};

/// Why there is no view.
#[derive(Debug)]
pub(super) struct NoView {
    what: String,
    why: io::Error,
}

impl fmt::Display for NoView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        if self.why.kind() == io::ErrorKind::PermissionDenied {
            f.write_str("; it takes root, or user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)")?;
        }
        Ok(())
    }
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> NoView {
    let what = what.into();
    move |why| NoView { what, why }
}

/// Enters the namespace and puts the view in.
pub(super) fn enter(view: &View) -> Result<(), NoView> {
    own_mounts()?;
    let class = Path::new("/sys/class");
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
    view.write(class).map_err(failed("writing below /sys/class"))?;
    nodes()
}

/// A mount namespace of our own: what is mounted from here on, nobody else sees.
fn own_mounts() -> Result<(), NoView> {
    let (uid, gid) = (getuid(), getgid());
    if unshare(CloneFlags::CLONE_NEWNS).is_err() {
        let both = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
        unshare(both).map_err(|e| failed("a mount namespace")(e.into()))?;
        let map = |file: &str, content: String| {
            fs::write(format!("/proc/self/{file}"), content).map_err(failed(format!("/proc/self/{file}")))
        };
        map("setgroups", "deny".into())?;
        map("uid_map", format!("{uid} {uid} 1"))?;
        map("gid_map", format!("{gid} {gid} 1"))?;
    }
    let quiet = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, quiet, None::<&str>)
        .map_err(|e| failed("making mounts private")(e.into()))
}

/// An empty tmpfs over a folder.
fn empty_over(folder: &Path) -> Result<(), NoView> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("roxie"), folder, Some("tmpfs"), flags, Some("mode=755,size=1m"))
        .map_err(|e| failed(format!("a tmpfs over {}", folder.display()))(e.into()))
}

fn make_folder(folder: &Path) -> Result<(), NoView> {
    fs::create_dir_all(folder).map_err(failed(format!("making {}", folder.display())))
}

fn bind(from: &Path, to: &Path) -> Result<(), NoView> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), to, None::<&str>, flags, None::<&str>)
        .map_err(|e| failed(format!("binding {}", to.display()))(e.into()))
}

/// Makes a folder one in which entries can be made, with all that it had.
fn shadow(folder: &Path) -> Result<(), NoView> {
    let name = || format!("reading {}", folder.display());
    // The way to the old folder once the new one is over it.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let old = open(folder, flags, Mode::empty()).map_err(|e| failed(name())(e.into()))?;
    let entries: Vec<_> = fs::read_dir(folder).map_err(failed(name()))?.flatten().collect();
    let kinds: Vec<_> = entries.iter().map(|entry| (entry.file_name(), entry.file_type())).collect();
    empty_over(folder)?;
    let below = format!("/proc/self/fd/{}", old.as_raw_fd());
    for (entry, kind) in kinds {
        let (from, to) = (Path::new(&below).join(&entry), folder.join(&entry));
        let kind = kind.map_err(failed(name()))?;
        if kind.is_symlink() {
            let target = fs::read_link(&from).map_err(failed(name()))?;
            symlink(target, &to).map_err(failed(format!("making {}", to.display())))?;
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

/// Character nodes in `/dev/infiniband`. Nothing is ever sent to them: that they are there and can be opened is what counts.
fn nodes() -> Result<(), NoView> {
    let folder = Path::new("/dev/infiniband");
    if !folder.is_dir() {
        shadow(Path::new("/dev"))?;
        make_folder(folder)?;
    }
    empty_over(folder)?;
    for name in View::nodes() {
        let node = folder.join(name);
        File::create(&node).map_err(failed(format!("making {}", node.display())))?;
        bind(Path::new("/dev/null"), &node)?;
    }
    Ok(())
}
