//! Clients' files, mapped in the NIC.
//!
//! A file that cannot lose pages ([`Mapping::adopt`]) is mapped for every client: no access of the NIC faults or
//! blocks. A program's own file can lose pages:
//!
//! * After a truncation, an access faults, which the NIC survives ([`guard`]).
//! * While pages are punched out, an access blocks (`shmem_fault` of `mm/shmem.c`).
//!
//! Such a file is mapped only for users that may end the NIC anyway.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};

use super::guard;
use super::mapping::Mapping;
use super::memory::HostMemory;

/// A file in memory, of `tmpfs` or `hugetlbfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFile {
    device: u64,
    inode: u64,
    /// Bytes of the file.
    pub size: u64,
}

impl ClientFile {
    /// Returns the file behind a descriptor.
    ///
    /// # Errors
    /// If it is of another file system.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<ClientFile> {
        // Other file systems do not support the call, and no server in user space is asked.
        let has_seals = fcntl(fd, FcntlArg::F_GET_SEALS).is_ok();
        if !has_seals || ![TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&fstatfs(fd)?.filesystem_type()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is no memory"));
        }
        let stat = fstat(fd)?;
        Ok(ClientFile { device: stat.st_dev, inode: stat.st_ino, size: stat.st_size.cast_unsigned() })
    }

    /// True if the file has these bytes.
    pub fn contains(self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.size)
    }
}

/// A client's file, mapped in the NIC.
#[derive(Clone, Debug)]
pub struct ClientMapping {
    mapping: Arc<Mapping>,
    file: ClientFile,
    /// Offset in the file of the first mapped byte.
    start: u64,
    is_adopted: bool,
}

impl ClientMapping {
    /// Maps a whole file that a client's library [made to lend it](HostMemory::lent), and seals it.
    ///
    /// # Errors
    /// If the file could lose pages, or has another size by now.
    pub fn adopt(fd: BorrowedFd<'_>, file: ClientFile) -> io::Result<ClientMapping> {
        let size = usize::try_from(file.size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::adopt(fd, size)?;
        Ok(ClientMapping { mapping: Arc::new(mapping), file, start: 0, is_adopted: true })
    }

    /// Maps at least these bytes (offset and length) of a file of a client's program. An access may fault, or block on
    /// the client.
    ///
    /// # Errors
    /// If the file is not open for reading and writing.
    pub fn of_program(
        fd: BorrowedFd<'_>,
        file: ClientFile,
        (offset, length): (u64, u64),
    ) -> io::Result<ClientMapping> {
        guard::install();
        let (mapping, start) = Mapping::of_file(fd, offset, length)?;
        Ok(ClientMapping { mapping: Arc::new(mapping), file, start, is_adopted: false })
    }

    /// True if the mapping covers these bytes of this file.
    pub fn holds(&self, file: ClientFile, offset: u64, length: u64) -> bool {
        let end = offset.checked_add(length);
        (file.device, file.inode) == (self.file.device, self.file.inode)
            && offset >= self.start
            && end.is_some_and(|end| end <= self.start + self.mapping.length() as u64)
    }

    /// True if no [`memory`](Self::memory) of the mapping is left.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.mapping) == 1
    }

    /// Returns the `length` bytes from byte `offset` of the file on.
    ///
    /// # Panics
    /// If the mapping does not [hold](Self::holds) them.
    pub fn memory(&self, offset: u64, length: usize) -> HostMemory {
        HostMemory::in_mapping(&self.mapping, (offset - self.start) as usize, length, self.is_adopted)
    }
}
