//! State shared by contexts of the same open device. `ibv_import_device` creates a context from another context's
//! command descriptor. Objects of either context can be imported into the other by their handles.
//!
//! A kernel driver's descriptor is an open file that owns the objects, and can be passed to another process. Here, this
//! process owns the objects, and the descriptor is a small file in memory. Its inode identifies it, however often the
//! descriptor is duplicated. The file's name has the process ID, its contents what other processes may know
//! ([`crate::device::published`]).

use std::any::Any;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, Weak};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;

use crate::base::fork;
use crate::base::lock::lock;
use crate::base::object::Errno;
use crate::base::report::refuse;
use crate::device::published::{NAME, Published};
use crate::device::settings::interface_index;

/// The contexts of one command descriptor and its duplicates.
pub(crate) struct Family {
    /// Device and inode of the file.
    file: (u64, u64),
    generation: u32,
    objects: Mutex<Objects>,
    /// Information about the objects for other processes.
    pub(crate) published: Arc<Published>,
}

#[derive(Default)]
struct Objects {
    last: u32,
    by_handle: HashMap<u32, Object>,
}

/// An object that can be imported: a protection domain, a memory region, device memory.
type Object = Arc<dyn Any + Send + Sync>;

/// All families with an open context.
static FAMILIES: Mutex<Vec<Weak<Family>>> = Mutex::new(Vec::new());

impl Family {
    /// Creates a family and its command descriptor.
    pub(crate) fn new() -> Result<(Arc<Family>, OwnedFd), Errno> {
        let name = format!("{NAME}{}", std::process::id());
        let descriptor = memfd_create(&*name, MFdFlags::MFD_CLOEXEC).map_err(|errno| errno as Errno)?;
        let status = fstat(&descriptor).map_err(|errno| errno as Errno)?;
        let file = (status.st_dev, status.st_ino);
        let content = descriptor.try_clone().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        let published = Arc::new(Published::new(File::from(content), interface_index()));
        let (generation, objects) = (fork::generation(), Mutex::default());
        let family = Arc::new(Family { file, generation, objects, published });
        let mut families = lock(&FAMILIES);
        families.retain(|family| family.strong_count() > 0);
        families.push(Arc::downgrade(&family));
        Ok((family, descriptor))
    }

    /// Returns the family of a command descriptor.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is closed, or of another file; `EOPNOTSUPP` if it belongs to another process.
    pub(crate) fn of(call: &str, descriptor: RawFd) -> Result<Arc<Family>, Errno> {
        // SAFETY: borrowed for this call only; if it is not open, `fstat` reports that.
        let status = (descriptor >= 0).then(|| fstat(unsafe { BorrowedFd::borrow_raw(descriptor) }));
        let Some(Ok(status)) = status else {
            return refuse(call, libc::EINVAL, format_args!("{descriptor} is not an open descriptor"));
        };
        let file = (status.st_dev, status.st_ino);
        let open = lock(&FAMILIES).iter().filter_map(Weak::upgrade).find(|family| family.file == file);
        if let Some(family) = open.filter(|family| family.generation == fork::generation()) {
            return Ok(family);
        }
        let path = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
        let path = path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        match path.strip_prefix("/memfd:").and_then(|name| name.strip_prefix(NAME)) {
            Some(rest) => {
                let process = rest.split(' ').next().unwrap_or_default();
                let why = "objects are shared within one process, while one of its contexts is open";
                let reason =
                    format_args!("descriptor {descriptor} is a context's of process {process}: {why}");
                refuse(call, libc::EOPNOTSUPP, reason)
            }
            None => refuse(
                call,
                libc::EINVAL,
                format_args!(
                    "descriptor {descriptor} ({path}) is not a context's cmd_fd or a duplicate of it"
                ),
            ),
        }
    }

    /// Adds an object, created from its place. Returns the object.
    pub(crate) fn add<T: Any + Send + Sync>(self: &Arc<Self>, make: impl FnOnce(Place) -> T) -> Arc<T> {
        let mut objects = lock(&self.objects);
        loop {
            objects.last = objects.last.wrapping_add(1);
            let handle = objects.last;
            // 0 is the handle of objects that cannot be imported.
            if handle != 0 && !objects.by_handle.contains_key(&handle) {
                let made = Arc::new(make(Place { family: Arc::downgrade(self), handle }));
                objects.by_handle.insert(handle, made.clone());
                return made;
            }
        }
    }

    /// Returns the object with this handle.
    ///
    /// # Errors
    /// `ENOENT` if there is no such object, or one of another type.
    pub(crate) fn find<T: Any + Send + Sync>(&self, call: &str, handle: u32) -> Result<Arc<T>, Errno> {
        let entry = lock(&self.objects).by_handle.get(&handle).cloned();
        let entry = entry.and_then(|object| object.downcast().ok());
        entry.map_or_else(
            || refuse(call, libc::ENOENT, format_args!("handle {handle}: no such object in this context")),
            Ok,
        )
    }
}

/// Identifies an object in its family, until the object is destroyed.
pub(crate) struct Place {
    family: Weak<Family>,
    handle: u32,
}

impl Place {
    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    /// Removes the object for all contexts.
    ///
    /// # Errors
    /// `ENOENT` if another context has destroyed it before.
    pub(crate) fn leave(&self, call: &str) -> Result<(), Errno> {
        // Without a context, no call can have destroyed the object.
        let Some(family) = self.family.upgrade() else { return Ok(()) };
        let removed = lock(&family.objects).by_handle.remove(&self.handle);
        match removed {
            Some(_) => Ok(()),
            None => refuse(call, libc::ENOENT, "another context has destroyed it: call unimport"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn of(descriptor: &impl AsRawFd) -> Result<Arc<Family>, Errno> {
        Family::of("test", descriptor.as_raw_fd())
    }

    #[test]
    fn duplicate_descriptor_has_the_same_family() {
        let (family, descriptor) = Family::new().unwrap();
        let (other, _its) = Family::new().unwrap();
        let duplicate = descriptor.try_clone().unwrap();
        drop(descriptor);
        assert!(Arc::ptr_eq(&of(&duplicate).unwrap(), &family));
        assert!(!Arc::ptr_eq(&of(&duplicate).unwrap(), &other));
        drop(family);
        assert_eq!(of(&duplicate).err(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn foreign_descriptors_are_refused_with_their_own_errno() {
        let theirs = memfd_create(&*format!("{NAME}1"), MFdFlags::MFD_CLOEXEC).unwrap();
        assert_eq!(of(&theirs).err(), Some(libc::EOPNOTSUPP));
        let something = memfd_create("something", MFdFlags::MFD_CLOEXEC).unwrap();
        assert_eq!(of(&something).err(), Some(libc::EINVAL));
        assert_eq!(Family::of("test", -1).err(), Some(libc::EINVAL));
    }

    #[test]
    fn unused_handle_has_no_object() {
        let (family, _descriptor) = Family::new().unwrap();
        assert_eq!(family.find::<u8>("test", 0).err(), Some(libc::ENOENT));
        assert_eq!(family.find::<u8>("test", 1).err(), Some(libc::ENOENT));
    }

    #[test]
    fn object_is_found_by_its_own_type_only() {
        let (family, _descriptor) = Family::new().unwrap();
        let handle = family.add(|place| (7u8, place)).1.handle();
        assert_eq!(family.find::<(u8, Place)>("test", handle).map(|found| found.0), Ok(7));
        assert_eq!(family.find::<u8>("test", handle).err(), Some(libc::ENOENT));
    }
}
