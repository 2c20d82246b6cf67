//! Registered memory: how the NIC reaches it, at addresses of its own process.
//!
//! Every access is checked against the region's bounds here once more, so that a mistake in the layers above becomes a
//! refused copy and not a stray write.
//!
//! # Data races
//!
//! The NIC copies as a device does: when a packet asks for it, whatever the application does to the same bytes. A read
//! may then return a mixture of old and new bytes, as with a NIC in hardware. No type system rules this out, because
//! the other party is a peer. The rules:
//!
//! * No Rust reference to the bytes exists anywhere. The NIC copies payload without interpreting it, so a mixture stays
//!   a mixture.
//! * One worker, under its lock, makes all copies of the NIC: copies do not race with one another.
//! * Threads of the application do not race with one another: `roxie::host::MemoryRegion` has a lock for its own
//!   `read_at` and `write_at`, which the NIC does not take.
//! * The last aligned 8, 4, 2 or 1 bytes of a write are stored last, by one atomic `Release`. A program that polls them
//!   finds them whole, and everything before them written.
//!
//! The copies are assembly routines ([`guard`]), opaque to the compiler. The routines move 32 bytes at a time, since
//! copying bounds this path of the NIC, and they return an error where memory is missing.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::guard;
use super::mapping::Mapping;
use super::memory_file::MemoryFile;
use super::remote_memory::RemoteMemory;

/// Bytes of a page: 4 KiB on x86-64; 4, 16 or 64 KiB on aarch64, as the kernel was configured.
pub(super) fn page() -> usize {
    // SAFETY: a call that returns a number; no memory is passed.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Page-aligned heap memory, freed when the last handle is dropped.
#[derive(Debug)]
struct Owned {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory, reached only by the raw copies of `HostMemory`.
unsafe impl Send for Owned {}
// SAFETY: only the raw copies of `HostMemory` access the bytes, no reference does. Their races are the races of RDMA
// memory.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: allocated in `HostMemory::allocate` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// How the bytes are backed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Present: their owner is held.
    Held,
    /// Present when they were registered.
    Borrowed,
    /// Some of them may be present.
    OnDemand,
    /// Without backing: reads return zeros, writes are discarded.
    Null,
    /// In another process, which may have mapped some of them.
    Elsewhere,
}

/// Memory of the application that the NIC copies to and from.
///
/// The application and a peer's RDMA may access the same bytes at the same time. As with hardware, a read then returns
/// a mixture; the module's page lists what is guaranteed.
#[derive(Clone, Debug)]
pub struct HostMemory {
    base: *mut u8,
    length: usize,
    kind: Kind,
    /// The process that the bytes belong to, if it is another one.
    process: Option<Arc<RemoteMemory>>,
    /// The descriptor by which a NIC in another process maps them, and the address of the file's first byte.
    file: Option<(Arc<OwnedFd>, usize)>,
    /// Keeps the bytes in place, where that is up to this process.
    _owner: Option<Arc<dyn Debug + Send + Sync>>,
}

// SAFETY: copies go through raw pointers; races on the bytes are the documented behaviour of RDMA memory, and
// `borrowed` obliges its caller to keep the memory alive.
unsafe impl Send for HostMemory {}
// SAFETY: copies take `&self` from any thread through raw pointers; races on the bytes are the documented behaviour of
// RDMA memory.
unsafe impl Sync for HostMemory {}

/// The reason why a copy failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyFault {
    /// An access outside the memory.
    #[error("{length} bytes at offset {offset} are outside a region of {region} bytes")]
    OutOfBounds {
        /// Offset of the first byte of the copy from the region's start.
        offset: u64,
        /// Bytes to copy.
        length: usize,
        /// Bytes of the region.
        region: usize,
    },
    /// An atomic on bytes that are not 8-aligned.
    #[error("an atomic on 8 bytes at offset {0}, which is not 8-aligned in memory")]
    Misaligned(u64),
    /// The region does not exist any more, or has no such page.
    #[error("the region is gone")]
    Gone,
    /// Pages of the application's memory are not mapped, or do not allow the access.
    #[error("{length} bytes at {address:#x} are not mapped, or not for this")]
    NotMapped {
        /// The address in the process.
        address: u64,
        /// Bytes to copy.
        length: usize,
    },
    /// An atomic on a region without backing.
    #[error("there is no memory to do an atomic on")]
    NoMemory,
    /// The memory is another process's, to which copies are made in batches (`nic::remote_copies`).
    #[error("the memory is another process's")]
    Remote,
    /// The system failed to write the pages back.
    #[error("the system cannot make the pages persistent: errno {0}")]
    NotPersistent(i32),
}

impl HostMemory {
    /// Allocates zeroed, page-aligned memory.
    ///
    /// # Errors
    /// If the system has no `length` bytes.
    pub fn allocate(length: usize) -> io::Result<HostMemory> {
        let refused =
            || io::Error::new(io::ErrorKind::OutOfMemory, format!("the system has no {length} bytes"));
        let layout = Layout::from_size_align(length.max(1), page()).map_err(|_| refused())?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        let owner = Arc::new(Owned { base, layout });
        Ok(HostMemory {
            base: base.as_ptr(),
            length,
            kind: Kind::Held,
            process: None,
            file: None,
            _owner: Some(owner),
        })
    }

    /// As [`allocate`](Self::allocate), in a file that a NIC in another process maps as well ([`MemoryFile`]).
    /// All pages are allocated.
    ///
    /// # Errors
    /// If the system has no `length` bytes, or no descriptor.
    pub fn lent(length: usize) -> io::Result<HostMemory> {
        let (mapping, fd) = Mapping::create_to_lend(length)?;
        let memory = HostMemory::mapped(mapping, length);
        Ok(HostMemory { file: Some((Arc::new(fd), memory.base as usize)), ..memory })
    }

    /// Returns `length` bytes of a mapping, from byte `at` on. `is_there`: no access to them can fault.
    ///
    /// # Panics
    /// If the bytes are not within the mapping.
    pub(super) fn in_mapping(mapping: &Arc<Mapping>, at: usize, length: usize, is_there: bool) -> HostMemory {
        assert!(at.checked_add(length).is_some_and(|end| end <= mapping.length()), "outside of the mapping");
        let base = mapping.base().cast::<u8>().as_ptr().wrapping_add(at);
        let kind = if is_there { Kind::Held } else { Kind::Borrowed };
        HostMemory { base, length, kind, process: None, file: None, _owner: Some(Arc::clone(mapping) as _) }
    }

    /// Returns the file behind the memory, if a NIC in another process may map it: the library's own, or the one of
    /// which the program's memory is a shared mapping.
    pub fn file(&self) -> Option<MemoryFile> {
        match (&self.file, self.kind) {
            (Some((fd, start)), _) => {
                Some(MemoryFile::lent(Arc::clone(fd), (self.base as usize - start) as u64))
            }
            (None, Kind::Borrowed) => MemoryFile::behind(self.address(), self.length as u64),
            _ => None,
        }
    }

    /// Returns the same memory without its file. The descriptor is closed with its last holder.
    #[must_use]
    pub fn without_file(self) -> HostMemory {
        HostMemory { file: None, ..self }
    }

    /// As [`allocate`](Self::allocate), in shared memory. Also returns the descriptor by which another process maps it.
    ///
    /// # Errors
    /// If the system has no `length` bytes, or no descriptor.
    pub fn shared(length: usize) -> io::Result<(HostMemory, OwnedFd)> {
        let (mapping, fd) = Mapping::create(length)?;
        Ok((HostMemory::mapped(mapping, length), fd))
    }

    /// Maps `length` bytes that another process made by [`shared`](Self::shared). One process may then register what
    /// the other fills.
    ///
    /// # Errors
    /// If the descriptor is no such file, or the file has fewer bytes.
    pub fn map(fd: BorrowedFd<'_>, length: usize) -> io::Result<HostMemory> {
        Ok(HostMemory::mapped(Mapping::of(fd, length)?, length))
    }

    fn mapped(mapping: Mapping, length: usize) -> HostMemory {
        let base = mapping.base().cast().as_ptr();
        let owner = Some(Arc::new(mapping) as _);
        HostMemory { base, length, kind: Kind::Held, process: None, file: None, _owner: owner }
    }

    /// Memory that the caller owns. If it is unmapped or protected while it is registered, a copy to it fails
    /// ([`guard`]) without other effects. Installs a handler of `SIGSEGV` and `SIGBUS` for that.
    ///
    /// # Safety
    /// All that is mapped in `base..base + length` belongs to the region until it is deregistered: no other memory may
    /// be mapped there, and no Rust reference into it may exist while the NIC may access it.
    pub unsafe fn borrowed(base: NonNull<u8>, length: usize) -> HostMemory {
        guard::install();
        let base = base.as_ptr();
        HostMemory { base, length, kind: Kind::Borrowed, process: None, file: None, _owner: None }
    }

    /// Addresses of this process, the pages of which may be mapped and unmapped at any time. A copy or an atomic fails
    /// where there is no page ([`guard`]).
    ///
    /// # Safety
    /// No Rust reference into `address..address + length` may exist while the NIC may access it.
    pub unsafe fn on_demand(address: u64, length: usize) -> HostMemory {
        guard::install();
        let base = address as *mut u8;
        HostMemory { base, length, kind: Kind::OnDemand, process: None, file: None, _owner: None }
    }

    /// Addresses of another process, the pages of which may be mapped and unmapped at any time. A copy fails where
    /// there is no page. Atomics are atomic among all accesses by this NIC, but not towards that process's own
    /// instructions. The end of a write is not stored in one piece. `on_demand`: the memory was registered as such.
    pub fn remote(process: &Arc<RemoteMemory>, address: u64, length: usize, on_demand: bool) -> HostMemory {
        let base = address as *mut u8;
        let kind = if on_demand { Kind::OnDemand } else { Kind::Elsewhere };
        HostMemory { base, length, kind, process: Some(Arc::clone(process)), file: None, _owner: None }
    }

    /// Memory without backing, at all addresses: reads return zeros, writes are discarded (`ibv_alloc_null_mr`).
    pub fn null() -> HostMemory {
        HostMemory {
            base: std::ptr::null_mut(),
            length: usize::MAX,
            kind: Kind::Null,
            process: None,
            file: None,
            _owner: None,
        }
    }

    /// Returns a part of mapped memory. If the memory is this process's own, the part keeps all of it alive.
    ///
    /// # Errors
    /// If the part is not within the memory, or nothing is mapped.
    pub fn part(&self, offset: u64, length: usize) -> Result<HostMemory, CopyFault> {
        let base = self.at(offset, length)?.filter(|_| !self.is_on_demand()).ok_or(CopyFault::Gone)?;
        Ok(HostMemory { base, length, ..self.clone() })
    }

    /// True if the pages may be mapped and unmapped at any time.
    pub fn is_on_demand(&self) -> bool {
        self.kind == Kind::OnDemand
    }

    /// True if a copy may find no pages, because the NIC does not own them.
    pub fn may_be_missing(&self) -> bool {
        matches!(self.kind, Kind::Borrowed | Kind::OnDemand | Kind::Elsewhere)
    }

    /// The other process's memory, if the bytes are in one.
    #[inline]
    pub fn remote_memory(&self) -> Option<&Arc<RemoteMemory>> {
        self.process.as_ref()
    }

    /// Returns the address of these bytes in the other process.
    ///
    /// # Errors
    /// If they are out of bounds.
    pub fn remote_address(&self, offset: u64, length: usize) -> Result<u64, CopyFault> {
        self.at(offset, length)?.map(|at| at as u64).ok_or(CopyFault::NoMemory)
    }

    /// True if the memory has no backing.
    pub fn is_null(&self) -> bool {
        self.kind == Kind::Null
    }

    /// The virtual address of the first byte.
    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the address of these bytes. `None` if they are within bounds but the memory has no backing.
    #[inline(always)]
    fn at(&self, offset: u64, length: usize) -> Result<Option<*mut u8>, CopyFault> {
        let error = || CopyFault::OutOfBounds { offset, length, region: self.length };
        let start = usize::try_from(offset).map_err(|_| error())?;
        if start.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(error());
        }
        Ok((self.kind != Kind::Null).then(|| self.base.wrapping_add(start)))
    }

    fn is_local(&self) -> Result<(), CopyFault> {
        if self.process.is_none() { Ok(()) } else { Err(CopyFault::Remote) }
    }

    /// Copies `bytes` to `offset`. The last aligned 8, 4, 2 or 1 bytes are stored last and in one piece, since programs
    /// poll them (`ib_write_lat` one byte, others a word).
    ///
    /// # Errors
    /// If the bytes are out of bounds, in another process, or not mapped for writing. In the last case, bytes before
    /// the missing page may have been written.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CopyFault> {
        let Some(to) = self.at(offset, bytes.len())? else { return Ok(()) };
        self.is_local()?;
        let last = last_store((to as usize).wrapping_add(bytes.len()), bytes.len());
        // SAFETY: `at` checked the whole range. All that is mapped there is the NIC's to write, as `borrowed` and
        // `on_demand` require. `bytes` is a live slice. The slice cannot overlap the target, which is registered
        // memory, because frames and queues are the NIC's own. `last` was chosen for the address.
        let copied = unsafe { guard::copy::copy(to, bytes.as_ptr(), bytes.len() - last, last) };
        copied.map_err(|_| not_mapped(to, bytes.len()))
    }

    /// Copies from `offset` into `bytes`.
    ///
    /// # Errors
    /// If the bytes are out of bounds, in another process, or not mapped for reading.
    #[inline]
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), CopyFault> {
        let Some(from) = self.at(offset, bytes.len())? else {
            bytes.fill(0);
            return Ok(());
        };
        self.is_local()?;
        // SAFETY: `at` checked the range; `bytes` is the caller's own and cannot overlap registered memory.
        let copied = unsafe { guard::copy::copy(bytes.as_mut_ptr(), from, bytes.len(), 0) };
        copied.map_err(|_| not_mapped(from, bytes.len()))
    }

    /// Runs `operation` on the 8 bytes at `offset` as the CPU's own atomics would, and returns the value before. The
    /// page must be writable even if `operation` returns `None`, which leaves the value as it is.
    ///
    /// # Errors
    /// If the address is not 8-aligned, or the bytes are out of bounds, without backing, in another process, or not
    /// mapped for writing.
    pub fn atomic(&self, offset: u64, operation: impl Fn(u64) -> Option<u64>) -> Result<u64, CopyFault> {
        let at = self.at(offset, 8)?.ok_or(CopyFault::NoMemory)?;
        if !(at as usize).is_multiple_of(8) {
            return Err(CopyFault::Misaligned(offset));
        }
        self.is_local()?;
        // SAFETY: 8 bytes inside the region, 8-aligned, checked above.
        let before = unsafe { guard::copy::update(at.cast(), operation) };
        before.map_err(|_| not_mapped(at, 8))
    }

    /// Writes the pages of a mapped file or device back to it (`msync`), and waits for the end. Memory without a file
    /// has no persistent place: nothing happens.
    ///
    /// # Errors
    /// If the memory is not mapped any more, or the system could not write it back.
    pub fn persist(&self, offset: u64, length: usize) -> Result<(), CopyFault> {
        if self.at(offset, length)?.is_none() && self.kind == Kind::Null {
            return Ok(());
        }
        if self.process.is_some() {
            return Err(CopyFault::NotPersistent(libc::EOPNOTSUPP));
        }
        let start = self.address().wrapping_add(offset) as usize;
        let page = start & !(page() - 1);
        // SAFETY: the system checks the range itself, and changes nothing visible to a program.
        let result = unsafe { libc::msync(page as *mut libc::c_void, start - page + length, libc::MS_SYNC) };
        if result == 0 {
            return Ok(());
        }
        Err(CopyFault::NotPersistent(io::Error::last_os_error().raw_os_error().unwrap_or(0)))
    }
}

fn not_mapped(at: *mut u8, length: usize) -> CopyFault {
    CopyFault::NotMapped { address: at as u64, length }
}

/// Bytes of the last store of a copy of `length` bytes that ends at address `end`: the largest aligned power of two, up
/// to 8.
pub(super) fn last_store(end: usize, length: usize) -> usize {
    let fits = |size: &usize| length >= *size && end.is_multiple_of(*size);
    [8, 4, 2, 1].into_iter().find(fits).unwrap_or(0)
}
