//! Network namespaces that exist as long as a value, under names that `ip netns` shows.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

use super::NetdevError;
use super::netlink::Netlink;

/// Directory of `ip netns`.
const DIRECTORY: &str = "/run/netns";
/// Prefix of our names; the owner's process id follows.
const PREFIX: &str = "roxie-";

/// A network namespace. Dropping it removes its name; the namespace ends with its last user.
///
/// A named one appears as `roxie-<pid>-<name>`, so `ip netns exec roxie-<pid>-<name> tcpdump …` works while it exists.
/// [`NetNs::create`] removes the names of dead owners. A lock (`flock`) shows whether the owner lives; process ids do
/// not, because they are reused, and differ between containers.
#[derive(Debug)]
pub struct NetNs {
    /// Keeps the namespace alive; threads enter through it.
    handle: File,
    /// Mount point, and the process that must unmount it.
    mounted: Option<(PathBuf, u32)>,
}

impl NetNs {
    /// Makes a namespace, with its loopback interface up, visible as `roxie-<pid>-<name>`.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or if this process has made the name already.
    pub fn create(name: &str) -> Result<NetNs, NetdevError> {
        remove_stale();
        let full = format!("{PREFIX}{}-{name}", process::id());
        let action = format!("create network namespace {full}");
        let path = Path::new(DIRECTORY).join(&full);
        let handle = unshared().map_err(|e| NetdevError::from_io(&action, e))?;
        lock(&handle).map_err(|e| NetdevError::from_io(&action, e))?;
        publish(&handle, &path).map_err(|e| NetdevError::from_io(&action, e))?;
        let ns = NetNs { handle, mounted: Some((path, process::id())) };
        ns.loopback_up()?;
        Ok(ns)
    }

    /// Makes a namespace without a name, with its loopback interface up. Leaves no trace in the file system.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN.
    pub fn unnamed() -> Result<NetNs, NetdevError> {
        let handle = unshared().map_err(|e| NetdevError::from_io("create network namespace", e))?;
        let ns = NetNs { handle, mounted: None };
        ns.loopback_up()?;
        Ok(ns)
    }

    /// Returns the namespace of the calling thread.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn current() -> Result<NetNs, NetdevError> {
        let handle = own_namespace().map_err(|e| NetdevError::from_io("open own network namespace", e))?;
        Ok(NetNs { handle, mounted: None })
    }

    /// Returns the namespace of a process.
    ///
    /// # Errors
    /// If there is no such process, or it is another user's.
    pub fn of_process(pid: u32) -> Result<NetNs, NetdevError> {
        let path = format!("/proc/{pid}/ns/net");
        let handle = File::open(&path).map_err(|e| NetdevError::from_io(format!("open {path}"), e))?;
        Ok(NetNs { handle, mounted: None })
    }

    /// Opens a named namespace (`ip netns add <name>`), which is not removed on drop.
    ///
    /// # Errors
    /// If there is no namespace of that name.
    pub fn open(name: &str) -> Result<NetNs, NetdevError> {
        let path = Path::new(DIRECTORY).join(name);
        let handle =
            File::open(&path).map_err(|e| NetdevError::from_io(format!("open {}", path.display()), e))?;
        Ok(NetNs { handle, mounted: None })
    }

    /// Returns the name under `/run/netns`, if this value made one.
    pub fn name(&self) -> Option<&str> {
        self.mounted.as_ref().and_then(|(path, _)| path.file_name()).and_then(|n| n.to_str())
    }

    /// Runs `f` inside the namespace and returns its result. Uses a new thread that enters the namespace, or the
    /// calling thread if it is there already, which takes no privilege.
    ///
    /// Sockets that `f` opens stay in the namespace, whichever thread uses them.
    ///
    /// # Errors
    /// If the thread cannot be started or may not enter (CAP_SYS_ADMIN).
    ///
    /// # Panics
    /// If `f` does, with the same payload.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        if self.is_current()? {
            return Ok(f());
        }
        std::thread::scope(|scope| {
            let worker = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
                self.enter_thread()?;
                Ok(f())
            })?;
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into the namespace, for good. Other threads stay in theirs.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN.
    pub fn enter_thread(&self) -> io::Result<()> {
        Ok(setns(&self.handle, CloneFlags::CLONE_NEWNET)?)
    }

    /// True if the calling thread is in this namespace.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn is_current(&self) -> io::Result<bool> {
        let (own, this) = (own_namespace()?.metadata()?, self.handle.metadata()?);
        Ok((own.dev(), own.ino()) == (this.dev(), this.ino()))
    }

    /// Returns a second handle to the namespace, which does not remove the name.
    ///
    /// # Errors
    /// If the process is out of file descriptors.
    pub fn try_clone(&self) -> io::Result<NetNs> {
        Ok(NetNs { handle: self.handle.try_clone()?, mounted: None })
    }

    fn loopback_up(&self) -> Result<(), NetdevError> {
        let set = self.run(|| Netlink::open()?.loopback_up());
        set.and_then(|done| done).map_err(|e| NetdevError::from_io("set lo up", e))
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // A forked child that drops its copy must not pull the name from under its parent.
        if let Some((path, owner)) = &self.mounted
            && *owner == process::id()
        {
            remove(path);
        }
    }
}

/// Returns the namespace of the calling thread, as a handle.
fn own_namespace() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

/// Makes a namespace in a thread that then ends, so that the caller's own does not change.
fn unshared() -> io::Result<File> {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        own_namespace()
    })
    .join()
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Gives the namespace a name, as `ip netns add` does: a bind mount on an empty file.
fn publish(handle: &File, path: &Path) -> io::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    File::create_new(path)?;
    let source = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let none: Option<&str> = None;
    let mounted = mount(Some(source.as_str()), path, none, MsFlags::MS_BIND, none);
    if mounted.is_err() {
        let _ = fs::remove_file(path);
    }
    Ok(mounted?)
}

/// Removes a name. Errors mean that it is gone already.
fn remove(path: &Path) {
    let _ = umount2(path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(path);
}

/// Locks a namespace as owned, as long as the handle or a clone of it is open.
fn lock(handle: &File) -> io::Result<()> {
    // nix's `Flock` unlocks when it is dropped, also in a forked child; this lock ends with its descriptors.
    #[expect(deprecated)]
    Ok(nix::fcntl::flock(handle.as_raw_fd(), nix::fcntl::FlockArg::LockExclusiveNonblock)?)
}

/// Removes the names of dead owners: a killed process runs no destructors.
fn remove_stale() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return };
    for entry in entries.flatten() {
        if let Some(pid) = owner_of(&entry.file_name().to_string_lossy())
            && is_stale(&entry.path(), pid)
        {
            remove(&entry.path());
        }
    }
}

/// True if the namespace of that name has no owner.
fn is_stale(path: &Path, pid: u32) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let named = fstatfs(&file).is_ok_and(|fs| fs.filesystem_type() == NSFS_MAGIC);
    if named {
        // The lock belongs to the namespace file, for all openers. Our own lock ends with `file`.
        return lock(&file).is_ok();
    }
    // A name without a namespace: it is being made right now, or its maker died meanwhile.
    !Path::new("/proc").join(pid.to_string()).exists()
}

/// Returns the process id in one of our names.
fn owner_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_read_from_our_names_only() {
        assert_eq!(owner_of("roxie-4711-left"), Some(4711));
        assert_eq!(owner_of("roxie-4711-left-2"), Some(4711));
        assert_eq!(owner_of("roxie-left"), None);
        assert_eq!(owner_of("blue"), None);
    }
}
