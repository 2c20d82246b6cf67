//! Clients' files, mapped in the NIC.
//!
//! A file that cannot lose pages ([`Mapping::adopt`]) is mapped for every client: no access of the NIC faults or blocks. A
//! program's own file can lose pages:
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

use super::guard;
use super::mapping::Mapping;
use super::memory::HostMemory;

/// A client's file, mapped in the NIC.
#[derive(Clone, Debug)]
pub struct ClientMapping {
    mapping: Arc<Mapping>,
    /// Device and inode.
    file: (u64, u64),
    /// Offset in the file of the first mapped byte.
    start: u64,
    is_adopted: bool,
}

impl ClientMapping {
    /// Maps a whole file that a client's library [made to lend it](HostMemory::lent), and seals it.
    ///
    /// # Errors
    /// If the file is of another kind, or could lose pages.
    pub fn adopt(fd: BorrowedFd<'_>) -> io::Result<ClientMapping> {
        let (file, size) = file_of_memory(fd)?;
        let mapping =
            Mapping::adopt(fd, usize::try_from(size).map_err(|_| refused("the file is too large"))?)?;
        Ok(ClientMapping { mapping: Arc::new(mapping), file, start: 0, is_adopted: true })
    }

    /// Maps at least these bytes of a file of a client's program. An access may fault, or block on the client.
    ///
    /// # Errors
    /// If the file is not one of `tmpfs` or `hugetlbfs`, is not open for reading and writing, or is too short.
    pub fn of_program(fd: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<ClientMapping> {
        let (file, size) = file_of_memory(fd)?;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(refused("the file ends before the memory does"));
        }
        guard::install();
        let (mapping, start) = Mapping::of_file(fd, offset, length)?;
        Ok(ClientMapping { mapping: Arc::new(mapping), file, start, is_adopted: false })
    }

    /// True if the mapping covers these bytes of this file.
    pub fn holds(&self, fd: BorrowedFd<'_>, offset: u64, length: u64) -> bool {
        let end = offset.checked_add(length);
        file_of_memory(fd).is_ok_and(|(file, _)| file == self.file)
            && offset >= self.start
            && end.is_some_and(|end| end <= self.start + self.mapping.length() as u64)
    }

    /// Returns the size in bytes of a file of memory.
    ///
    /// # Errors
    /// If the file is of another kind.
    pub fn size_of(fd: BorrowedFd<'_>) -> io::Result<u64> {
        file_of_memory(fd).map(|(_, size)| size)
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

/// Returns the device and inode of a file of memory, and its size in bytes.
fn file_of_memory(fd: BorrowedFd<'_>) -> io::Result<((u64, u64), u64)> {
    // Other file systems do not support the call, and no server in user space is asked.
    fcntl(fd, FcntlArg::F_GET_SEALS).map_err(|_| refused("the file is no memory"))?;
    let stat = fstat(fd)?;
    Ok(((stat.st_dev, stat.st_ino), stat.st_size.cast_unsigned()))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
