//! Files behind registered memory: a client passes the descriptor, and its NIC maps the file instead of copying through the kernel.
//!
//! The client finds the descriptor of
//!
//! * memory that the library allocated for that (`HostMemory::lent`),
//! * memory of the program's that is a shared mapping of one file: POSIX shared memory, `memfd_create`, a file of `hugetlbfs`. The program's own
//!   descriptor serves, or the file is opened again by its name.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::sys::stat::{fstat, major, minor};

use super::address_map::{AddressMap, MappedFile};

/// A file that memory of this process is a shared mapping of, and the first byte of that memory in it.
#[derive(Debug)]
pub struct MemoryFile {
    fd: Arc<OwnedFd>,
    offset: u64,
    is_lent: bool,
}

impl MemoryFile {
    /// A file that the library made to lend it.
    pub(super) fn lent(fd: Arc<OwnedFd>, offset: u64) -> MemoryFile {
        MemoryFile { fd, offset, is_lent: true }
    }

    /// Finds the file behind `length` bytes of this process from `address` on. `None`: they are private memory, lie in more than one mapping, or
    /// there is no way to a descriptor that is open for reading and writing.
    pub fn behind(address: u64, length: u64) -> Option<MemoryFile> {
        let map = AddressMap::new(File::open("/proc/self/maps").ok()?.into()).ok()?;
        let (range, file) = map.shared_file(address, length)?;
        // Opening it takes CAP_CHECKPOINT_RESTORE; reading the name does not.
        let link = format!("/proc/self/map_files/{:x}-{:x}", range.start, range.end);
        let fd = open(Path::new(&link), file).or_else(|| {
            let name = fs::read_link(&link).ok()?;
            own_descriptor(&name, file).or_else(|| open(&name, file))
        })?;
        let offset = file.offset + (address - range.start);
        Some(MemoryFile { fd: Arc::new(fd), offset, is_lent: false })
    }

    /// True if the library made the file: the NIC may seal it, so that it loses no page.
    pub fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// The first byte of the memory in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a file of memory by its name. `None`: the file of that name is another one.
fn open(name: &Path, wanted: MappedFile) -> Option<OwnedFd> {
    // Symbolic links of procfs lead to the file; a name of the program's may be a pipe or a device by now.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let metadata = fs::metadata(name).ok()?;
    if !metadata.is_file() || metadata.ino() != wanted.inode {
        return None;
    }
    let fd =
        OwnedFd::from(File::options().read(true).write(true).custom_flags(flags.bits()).open(name).ok()?);
    is_file(fd.as_fd(), wanted).then_some(fd)
}

/// Duplicates the descriptor by which this process has a file open for reading and writing.
fn own_descriptor(name: &Path, wanted: MappedFile) -> Option<OwnedFd> {
    fs::read_dir("/proc/self/fd").ok()?.find_map(|entry| {
        let link = entry.ok()?.path();
        // Only descriptors of that name are asked: others may be of a file system that does not answer.
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
