//! Files of clients, mapped in the NIC.
//!
//! The file of any client is mapped if it can lose no page ([`Mapping::adopt`]): no access of the NIC faults or waits. A program's own file can lose
//! pages: an access faults after a truncation, which the NIC survives ([`guard`]), and waits while pages are punched out (`shmem_fault` of
//! `mm/shmem.c`). Such a file is mapped only for users that may end the NIC anyway.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;

use super::guard;
use super::mapping::Mapping;
use super::memory::HostMemory;

/// A file of a client's, mapped in the NIC.
#[derive(Clone, Debug)]
pub struct ClientMapping {
    mapping: Arc<Mapping>,
    /// Device and inode.
    file: (u64, u64),
    /// The byte of the file that is mapped first.
    start: u64,
    is_adopted: bool,
}

impl ClientMapping {
    /// Maps the whole file that a client's library [made to lend it](HostMemory::lent), and seals it.
    ///
    /// # Errors
    /// If the file is another one, or could lose pages.
    pub fn adopt(fd: BorrowedFd<'_>) -> io::Result<ClientMapping> {
        let (file, size) = file_of_memory(fd)?;
        let mapping =
            Mapping::adopt(fd, usize::try_from(size).map_err(|_| refused("the file is too large"))?)?;
        Ok(ClientMapping { mapping: Arc::new(mapping), file, start: 0, is_adopted: true })
    }

    /// Maps at least these bytes of a file of a client's program. An access may fault, or wait for the client.
    ///
    /// # Errors
    /// If the file is no memory (of `tmpfs` or `hugetlbfs`), is not open for reading and writing, or has not so many bytes.
    pub fn of_program(fd: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<ClientMapping> {
        let (file, size) = file_of_memory(fd)?;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(refused("the file ends before the memory does"));
        }
        guard::install();
        let (mapping, start) = Mapping::of_file(fd, offset, length)?;
        Ok(ClientMapping { mapping: Arc::new(mapping), file, start, is_adopted: false })
    }

    /// True if these bytes of this file are mapped by it.
    pub fn holds(&self, fd: BorrowedFd<'_>, offset: u64, length: u64) -> bool {
        let end = offset.checked_add(length);
        file_of_memory(fd).is_ok_and(|(file, _)| file == self.file)
            && offset >= self.start
            && end.is_some_and(|end| end <= self.start + self.mapping.length() as u64)
    }

    /// Returns the bytes of a file of memory.
    ///
    /// # Errors
    /// If it is another file.
    pub fn size_of(fd: BorrowedFd<'_>) -> io::Result<u64> {
        file_of_memory(fd).map(|(_, size)| size)
    }

    /// True if no memory is in it any more.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.mapping) == 1
    }

    /// The memory of `length` bytes from byte `offset` of the file on.
    ///
    /// # Panics
    /// If it does not [hold](Self::holds) them.
    pub fn memory(&self, offset: u64, length: usize) -> HostMemory {
        HostMemory::in_mapping(&self.mapping, (offset - self.start) as usize, length, self.is_adopted)
    }
}

/// Returns the device and inode of a file of memory, and its bytes.
fn file_of_memory(fd: BorrowedFd<'_>) -> io::Result<((u64, u64), u64)> {
    // The kernel answers that for no other file system, and asks no server of one in userspace.
    fcntl(fd, FcntlArg::F_GET_SEALS).map_err(|_| refused("the file is no memory"))?;
    let stat = fstat(fd)?;
    Ok(((stat.st_dev, stat.st_ino), stat.st_size.cast_unsigned()))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
