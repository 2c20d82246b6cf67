//! Memory that two processes map: one passes a descriptor to the other, and each has the pages at an address of its
//! own.
//!
//! The file behind it (`memfd_create`) is sealed against shrinking when it is made. A descriptor from another process
//! is mapped only if it has that seal: if the other process could take pages away, the next access would end this
//! process by a signal.
//!
//! # Memory of an untrusted process
//!
//! A file that cannot shrink may still lack pages: because they were never touched, or because of a punched hole
//! (`fallocate`). An access then allocates a page. If the system has none left (huge pages are limited, as is memory
//! without overcommit), the access raises `SIGBUS`. Hence a NIC [adopts](Mapping::adopt) a client's file as follows:
//!
//! 1. The file must be of `tmpfs`, not of huge pages, have the length that the client states, and be sealed against
//!    shrinking.
//! 2. The file is mapped, then sealed against all changes but through existing mappings (`F_SEAL_FUTURE_WRITE`, Linux
//!    5.1). With that seal the kernel refuses to punch holes (`shmem_fallocate`), also by `MADV_REMOVE`.
//! 3. All pages must be allocated already (`st_blocks`): they are charged to the client's control group, not to the
//!    NIC's.
//! 4. Each page is touched once (`MADV_POPULATE_WRITE`, Linux 5.14), which returns an error, and raises no signal, if a
//!    page cannot be had.
//!
//! From then on no system call takes a page away. The kernel's three ways to do so are to shrink, to punch, and to swap
//! out, and a swapped page is read back. The remaining risks are failures of memory and of the swap device.

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::fstat;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::ftruncate;

/// Bytes that one system call populates.
const POPULATED: usize = 2 << 20;

/// Pages that several processes may map; unmapped here on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<c_void>,
    length: usize,
}

// SAFETY: an address range; the code that accesses it answers for how.
unsafe impl Send for Mapping {}
// SAFETY: no method accesses the range; the code that does answers for how, from any thread.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes `length` zeroed bytes. Also returns the descriptor by which another process maps them.
    ///
    /// # Errors
    /// If there is no memory or no descriptor for it.
    pub(super) fn create(length: usize) -> io::Result<(Mapping, OwnedFd)> {
        let (mapping, fd) = Mapping::create_unsealed(length)?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SEAL))?;
        Ok((mapping, fd))
    }

    /// As [`create`](Self::create), for a process that [adopts](Self::adopt) the file: all pages are allocated. Caller
    /// must keep this mapping: once adopted, the file cannot be mapped for writing again.
    ///
    /// # Errors
    /// If there is no memory or no descriptor for it.
    pub(super) fn create_to_lend(length: usize) -> io::Result<(Mapping, OwnedFd)> {
        let (mapping, fd) = Mapping::create_unsealed(length)?;
        fallocate(&fd, FallocateFlags::empty(), 0, fstat(&fd)?.st_size)?;
        Ok((mapping, fd))
    }

    fn create_unsealed(length: usize) -> io::Result<(Mapping, OwnedFd)> {
        let fd = memfd_create("roxie", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        let length = length.max(1);
        let size = length.try_into().map_err(|_| too_long(length))?;
        ftruncate(&fd, size)?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW))?;
        Ok((Mapping::of(fd.as_fd(), length)?, fd))
    }

    /// Maps memory of an untrusted process such that no access faults; see the module's page.
    ///
    /// # Errors
    /// If some of its pages are missing, or could be taken away.
    pub(super) fn adopt(fd: BorrowedFd<'_>, length: usize) -> io::Result<Mapping> {
        if fstatfs(fd)?.filesystem_type() != TMPFS_MAGIC {
            return Err(invalid("it is no file of normal pages (memfd_create without MFD_HUGETLB)".into()));
        }
        let mapping = Mapping::of(fd, length)?;
        mapping.hold(fd)?;
        Ok(mapping)
    }

    /// Holds all pages in place, whatever other holders of the descriptor do.
    ///
    /// # Errors
    /// If some pages are missing, or could be taken away.
    pub(super) fn hold(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let seals = SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL;
        fcntl(fd, FcntlArg::F_ADD_SEALS(seals)).map_err(|error| {
            invalid(format!("it cannot be sealed against holes (F_SEAL_FUTURE_WRITE, Linux 5.1): {error}"))
        })?;
        let stat = fstat(fd)?;
        if usize::try_from(stat.st_size) != Ok(self.length) {
            return Err(invalid(format!(
                "the file has {} bytes, {} were to be mapped",
                stat.st_size, self.length
            )));
        }
        // st_blocks counts units of 512 bytes (stat(2)).
        let there = stat.st_blocks.saturating_mul(512);
        if there < stat.st_size {
            return Err(invalid(format!(
                "{there} bytes of {} are there: allocate all of them (fallocate)",
                stat.st_size
            )));
        }
        self.populate(libc::MADV_POPULATE_WRITE).map_err(|error| {
            io::Error::new(error.kind(), format!("its pages cannot be populated (Linux 5.14): {error}"))
        })
    }

    /// Populates the page tables, in pieces: the system call locks the address space, for which page faults of other
    /// threads may wait.
    fn populate(&self, advice: libc::c_int) -> io::Result<()> {
        for at in (0..self.length).step_by(POPULATED) {
            let length = POPULATED.min(self.length - at);
            // SAFETY: the piece lies in the mapping, and populating it changes nothing visible to a program.
            if unsafe { libc::madvise(self.base.byte_add(at).as_ptr(), length, advice) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Maps the first `length` bytes of a file that [`create`](Self::create) made, in this process or in another.
    ///
    /// # Errors
    /// If the file is of another kind, could shrink, or has fewer bytes.
    pub(super) fn of(fd: BorrowedFd<'_>, length: usize) -> io::Result<Mapping> {
        let length = length.max(1);
        let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map_or(SealFlag::empty(), SealFlag::from_bits_truncate);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) {
            return Err(invalid("the file is not sealed against shrinking (F_SEAL_SHRINK)".into()));
        }
        let size = fstat(fd)?.st_size;
        if usize::try_from(size).is_ok_and(|size| size < length) {
            return Err(invalid(format!("the file has {size} bytes, {length} were to be mapped")));
        }
        let bytes = NonZeroUsize::new(length).ok_or_else(|| too_long(length))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice touches no memory that is in use.
        let base = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, fd, 0) }?;
        Ok(Mapping { base, length })
    }

    /// Maps `length` bytes of a file of memory from byte `offset` on, without any seal: an access may fault, and the
    /// caller must [guard](super::guard) it. Also returns the offset in the file of the first mapped byte.
    ///
    /// # Errors
    /// If the file is not open for reading and writing, or the range is too long.
    pub(super) fn of_file(fd: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<(Mapping, u64)> {
        // The size of a page; in hugetlbfs, of a huge page.
        let page = u64::try_from(fstatfs(fd)?.block_size()).ok().filter(|page| page.is_power_of_two());
        let page = page.ok_or_else(|| invalid("its file system has no page size".into()))?;
        let start = offset & !(page - 1);
        let end = offset.checked_add(length.max(1)).and_then(|end| end.checked_next_multiple_of(page));
        let length =
            end.and_then(|end| usize::try_from(end - start).ok()).ok_or_else(|| too_long(usize::MAX))?;
        let bytes = NonZeroUsize::new(length).ok_or_else(|| too_long(length))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let first = start.try_into().map_err(|_| too_long(usize::MAX))?;
        // SAFETY: a new mapping at an address of the system's choice touches no memory that is in use.
        let base = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, fd, first) }?;
        let mapping = Mapping { base, length };
        // Fewer faults later. Pages that are missing are the client's matter.
        let _ = mapping.populate(libc::MADV_POPULATE_READ);
        Ok((mapping, start))
    }

    /// Length in bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Address of the first byte in this process, which is on a page boundary.
    pub(super) fn base(&self) -> NonNull<c_void> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this length; whatever holds an address in the range holds the mapping as well.
        // The call cannot fail for a mapped range.
        let _ = unsafe { munmap(self.base, self.length) };
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn too_long(length: usize) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, format!("the system has no {length} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinkable_or_short_file_is_refused() {
        let (_mapping, fd) = Mapping::create(4096).expect("a page");
        assert!(Mapping::of(fd.as_fd(), 4096).is_ok());
        assert!(ftruncate(&fd, 0).is_err(), "sealed");
        let error = Mapping::of(fd.as_fd(), 4097).expect_err("a byte more than there is");
        assert!(error.to_string().contains("4096"), "{error}");
        let open = memfd_create("open", MFdFlags::MFD_CLOEXEC).expect("a file");
        ftruncate(&open, 4096).expect("room");
        assert!(Mapping::of(open.as_fd(), 4096).is_err(), "it could shrink");
        let (pipe, _) = nix::unistd::pipe().expect("a pipe");
        assert!(Mapping::of(pipe.as_fd(), 1).is_err(), "no memory at all");
    }
}
