//! Files behind registered memory: a client passes the descriptor, and its NIC maps the file instead of copying through
//! the kernel.
//!
//! The client has a descriptor for
//!
//! * memory that the library allocated for this purpose (`HostMemory::lent`),
//! * memory of the program that is a shared mapping of one file: POSIX shared memory, `memfd_create`, a file of
//!   `hugetlbfs`. The program's own descriptor serves, or the file is reopened by its name.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::sys::stat::{fstat, major, minor};

use super::address_map::{AddressMap, MappedFile};

/// A file of which memory of this process is a shared mapping, and the offset of that memory in the file.
#[derive(Debug)]
pub struct MemoryFile {
    fd: Arc<OwnedFd>,
    offset: u64,
    is_lent: bool,
}

impl MemoryFile {
    /// A file that the library made in order to lend it.
    pub(super) fn lent(fd: Arc<OwnedFd>, offset: u64) -> MemoryFile {
        MemoryFile { fd, offset, is_lent: true }
    }

    /// Finds the file behind `length` bytes of this process from `address` on. Returns `None` if they are private
    /// memory, span several mappings, or if no descriptor for reading and writing can be had.
    pub fn behind(address: u64, length: u64) -> Option<MemoryFile> {
        let map = AddressMap::new(File::open("/proc/self/maps").ok()?.into()).ok()?;
        let (range, file) = map.shared_file(address, length)?;
        // Opening the link takes CAP_CHECKPOINT_RESTORE; reading its name does not.
        let link = format!("/proc/self/map_files/{:x}-{:x}", range.start, range.end);
        let fd = open(Path::new(&link), file).or_else(|| {
            let name = fs::read_link(&link).ok()?;
            own_descriptor(&name, file).or_else(|| open(&name, file))
        })?;
        let offset = file.offset + (address - range.start);
        Some(MemoryFile { fd: Arc::new(fd), offset, is_lent: false })
    }

    /// True if the library made the file: the NIC may then seal it against the loss of pages.
    pub fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Offset of the memory in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a file of memory by its name. Returns `None` if another file has that name by now.
fn open(name: &Path, wanted: MappedFile) -> Option<OwnedFd> {
    // Symbolic links of procfs lead to the file itself. A path of the program's may be a pipe or a device by now, hence
    // the flags.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let metadata = fs::metadata(name).ok()?;
    if !metadata.is_file() || metadata.ino() != wanted.inode {
        return None;
    }
    let fd =
        OwnedFd::from(File::options().read(true).write(true).custom_flags(flags.bits()).open(name).ok()?);
    is_file(fd.as_fd(), wanted).then_some(fd)
}

/// Duplicates the process's own descriptor of a file, if it is open for reading and writing.
fn own_descriptor(name: &Path, wanted: MappedFile) -> Option<OwnedFd> {
    fs::read_dir("/proc/self/fd").ok()?.find_map(|entry| {
        let link = entry.ok()?.path();
        // Only descriptors of that name are opened: others may be on a file system that does not answer.
        if fs::read_link(&link).ok()? != name {
            return None;
        }
        open(&link, wanted)
    })
}

fn is_file(fd: BorrowedFd<'_>, wanted: MappedFile) -> bool {
    fstat(fd).is_ok_and(|stat| {
        let device = (major(stat.st_dev) as u32, minor(stat.st_dev) as u32);
        (device, stat.st_ino) == (wanted.device, wanted.inode)
    })
}
