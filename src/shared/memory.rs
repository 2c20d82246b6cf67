//! Registered memory as both sides share it: how the NIC reaches it, at an address of its own process.
//!
//! Every access is checked against the region's bounds here once more, so that a mistake above becomes a
//! refused copy and not a stray write.
//!
//! # Who may race with whom
//!
//! The NIC copies here as a device does: when a packet asks for it, whatever the application is doing with the same
//! bytes. What is read then is a mixture of old and new, on this NIC as on one in hardware, and no type system can
//! rule it out, because the other party is a peer. What is done about it:
//!
//! * No Rust reference to the bytes exists anywhere, and nothing that was read from them is believed: the NIC copies
//!   payload and looks at none of it, so a mixture stays a mixture.
//! * One worker, under its lock, does all copies of the NIC: it does not race with itself.
//! * Threads of the application do not race with one another: [`MemoryRegion`](crate::host::MemoryRegion) has a lock
//!   for its own `read_at` and `write_at`, which the NIC does not take.
//! * The bytes that say "the rest is there" (the last 8, 4, 2 or 1, whichever are aligned) are stored by one atomic `Release`, so a
//!   program that polls them finds them whole, and what came before.
//!
//! The copies themselves are routines in the processor's language ([`guard`]), of which the compiler knows nothing: they move 32 bytes at
//! a time, on the one path of the NIC that is bound by copying, and memory that is gone is an error there.

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

/// Bytes of a page: 4 KiB on x86-64, 4, 16 or 64 KiB on aarch64, as the kernel was made.
pub(super) fn page() -> usize {
    // SAFETY: a number of the system's; no memory is passed.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Page-aligned memory that lives as long as somebody holds it.
#[derive(Debug)]
struct Owned {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory, reached only by the raw copies of `HostMemory`.
unsafe impl Send for Owned {}
// SAFETY: nothing reaches it by reference, only by the raw copies of `HostMemory`, whose races are those of RDMA memory.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: allocated in `HostMemory::allocate` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// How bytes are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// They are there: whoever owns them is held.
    Held,
    /// They were there when they were registered.
    Borrowed,
    /// Some of them may be there.
    OnDemand,
    /// There are none: reads give zeros, writes vanish.
    Null,
    /// They are another process's, which may have mapped some of them.
    Elsewhere,
}

/// Memory of the application that the NIC may copy to and from.
///
/// The application and a peer's RDMA may touch the same bytes at the same time; as with hardware, what
/// is read then is a mixture. The module's page says what holds all the same.
#[derive(Clone, Debug)]
pub struct HostMemory {
    base: *mut u8,
    length: usize,
    kind: Kind,
    /// Whose they are, if they are not this process's.
    process: Option<Arc<RemoteMemory>>,
    /// The descriptor by which a NIC in another process maps them, and the address of the file's first byte.
    file: Option<(Arc<OwnedFd>, usize)>,
    /// Keeps the bytes where they are, if that is ours to do.
    _owner: Option<Arc<dyn Debug + Send + Sync>>,
}

// SAFETY: copies go through raw pointers; races on the bytes are the documented behaviour of RDMA memory, and
// `borrowed` obliges its caller to keep the memory alive.
unsafe impl Send for HostMemory {}
// SAFETY: copies take `&self` from any thread through raw pointers; races on the bytes are the documented behaviour of RDMA memory.
unsafe impl Sync for HostMemory {}

/// Why bytes were not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyFault {
    /// An access outside the memory.
    #[error("{length} bytes at offset {offset} are outside a region of {region} bytes")]
    OutOfBounds {
        /// Where the copy began, in bytes from the region's start.
        offset: u64,
        /// How long it was.
        length: usize,
        /// How long the memory is.
        region: usize,
    },
    /// An atomic on bytes that are not 8-aligned.
    #[error("an atomic on 8 bytes at offset {0}, which is not 8-aligned in memory")]
    Misaligned(u64),
    /// The region is not there, or has no such page.
    #[error("the region is gone")]
    Gone,
    /// Memory of the application whose pages are not there, or not for this.
    #[error("{length} bytes at {address:#x} are not mapped, or not for this")]
    NotMapped {
        /// The address in the process.
        address: u64,
        /// How many bytes the copy was to move.
        length: usize,
    },
    /// An atomic where there is no memory.
    #[error("there is no memory to do an atomic on")]
    NoMemory,
    /// The memory is another process's: its copies are batches (`nic::remote_copies`).
    #[error("the memory is another process's")]
    Remote,
    /// The system did not write the pages back.
    #[error("the system cannot make the pages persistent: errno {0}")]
    NotPersistent(i32),
}

impl HostMemory {
    /// Zeroed memory of its own, page-aligned.
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

    /// The same in a file that a NIC in another process maps as well ([`MemoryFile`](super::MemoryFile)). All of its pages are there.
    ///
    /// # Errors
    /// If the system has no `length` bytes, or no descriptor.
    pub fn lent(length: usize) -> io::Result<HostMemory> {
        let (mapping, fd) = Mapping::create_to_lend(length)?;
        let memory = HostMemory::mapped(mapping, length);
        Ok(HostMemory { file: Some((Arc::new(fd), memory.base as usize)), ..memory })
    }

    /// `length` bytes of a mapping from byte `at` on. `is_there`: no access to them faults.
    ///
    /// # Panics
    /// If they are not inside.
    pub(super) fn in_mapping(mapping: &Arc<Mapping>, at: usize, length: usize, is_there: bool) -> HostMemory {
        assert!(at.checked_add(length).is_some_and(|end| end <= mapping.length()), "outside of the mapping");
        let base = mapping.base().cast::<u8>().as_ptr().wrapping_add(at);
        let kind = if is_there { Kind::Held } else { Kind::Borrowed };
        HostMemory { base, length, kind, process: None, file: None, _owner: Some(Arc::clone(mapping) as _) }
    }

    /// The file behind it, if a NIC in another process may map that: its own, or what a program's memory is a shared mapping of.
    pub fn file(&self) -> Option<MemoryFile> {
        match (&self.file, self.kind) {
            (Some((fd, start)), _) => {
                Some(MemoryFile::lent(Arc::clone(fd), (self.base as usize - start) as u64))
            }
            (None, Kind::Borrowed) => MemoryFile::behind(self.address(), self.length as u64),
            _ => None,
        }
    }

    /// The same memory, whose file is not lent any more: its descriptor is closed with the last that had it.
    #[must_use]
    pub fn without_file(self) -> HostMemory {
        HostMemory { file: None, ..self }
    }

    /// The same with the descriptor by which another process maps it.
    ///
    /// # Errors
    /// If the system has no `length` bytes, or no descriptor.
    pub fn shared(length: usize) -> io::Result<(HostMemory, OwnedFd)> {
        let (mapping, fd) = Mapping::create(length)?;
        Ok((HostMemory::mapped(mapping, length), fd))
    }

    /// Maps `length` bytes that another process made by [`shared`](Self::shared): one side registers what the other fills.
    ///
    /// # Errors
    /// If the descriptor is of something else, or has fewer bytes.
    pub fn map(fd: BorrowedFd<'_>, length: usize) -> io::Result<HostMemory> {
        Ok(HostMemory::mapped(Mapping::of(fd, length)?, length))
    }

    fn mapped(mapping: Mapping, length: usize) -> HostMemory {
        let base = mapping.base().cast().as_ptr();
        let owner = Some(Arc::new(mapping) as _);
        HostMemory { base, length, kind: Kind::Held, process: None, file: None, _owner: owner }
    }

    /// Memory that somebody else owns. Should it be unmapped or protected while it is registered, a copy fails that comes to it
    /// ([`guard`]), and nothing else. That takes a handler of `SIGSEGV` and `SIGBUS`, which is installed here.
    ///
    /// # Safety
    /// What is mapped of `base..base + length` is the region's until it is deregistered: nobody else has memory there
    /// meanwhile, and nobody holds a Rust reference into it while the NIC may access it.
    pub unsafe fn borrowed(base: NonNull<u8>, length: usize) -> HostMemory {
        guard::install();
        let base = base.as_ptr();
        HostMemory { base, length, kind: Kind::Borrowed, process: None, file: None, _owner: None }
    }

    /// Addresses of this process whose pages may come and go. A copy or an atomic fails where there is no page, by the same
    /// [`guard`].
    ///
    /// # Safety
    /// While the NIC may access `address..address + length`, nobody holds a Rust reference to what lies there.
    pub unsafe fn on_demand(address: u64, length: usize) -> HostMemory {
        guard::install();
        let base = address as *mut u8;
        HostMemory { base, length, kind: Kind::OnDemand, process: None, file: None, _owner: None }
    }

    /// Addresses of another process, whose pages may come and go. A copy fails where there is no page. An atomic is one step for all who
    /// reach the memory by this NIC, and not for that process's own instructions; nor is the end of a write one store.
    /// `on_demand`: it was registered as such.
    pub fn remote(process: &Arc<RemoteMemory>, address: u64, length: usize, on_demand: bool) -> HostMemory {
        let base = address as *mut u8;
        let kind = if on_demand { Kind::OnDemand } else { Kind::Elsewhere };
        HostMemory { base, length, kind, process: Some(Arc::clone(process)), file: None, _owner: None }
    }

    /// No memory, from address 0 to the last: reads give zeros, writes vanish (`ibv_alloc_null_mr`).
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

    /// A part of mapped memory, which keeps all of it alive if it is its own.
    ///
    /// # Errors
    /// If it is not inside, or nothing is mapped.
    pub fn part(&self, offset: u64, length: usize) -> Result<HostMemory, CopyFault> {
        let base = self.at(offset, length)?.filter(|_| !self.is_on_demand()).ok_or(CopyFault::Gone)?;
        Ok(HostMemory { base, length, ..self.clone() })
    }

    /// True if its pages may come and go.
    pub fn is_on_demand(&self) -> bool {
        self.kind == Kind::OnDemand
    }

    /// True if a copy may find no pages: they are not the NIC's to keep.
    pub fn may_be_missing(&self) -> bool {
        matches!(self.kind, Kind::Borrowed | Kind::OnDemand | Kind::Elsewhere)
    }

    /// The other process's memory that it lies in, if it does.
    #[inline]
    pub fn remote_memory(&self) -> Option<&Arc<RemoteMemory>> {
        self.process.as_ref()
    }

    /// Where bytes of it lie in that memory.
    ///
    /// # Errors
    /// If they are not inside.
    pub fn remote_address(&self, offset: u64, length: usize) -> Result<u64, CopyFault> {
        self.at(offset, length)?.map(|at| at as u64).ok_or(CopyFault::NoMemory)
    }

    /// True if there is no memory behind it.
    pub fn is_null(&self) -> bool {
        self.kind == Kind::Null
    }

    /// The virtual address of the first byte.
    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where bytes lie; `None`: there is no memory, and `offset` is inside.
    #[inline(always)]
    fn at(&self, offset: u64, length: usize) -> Result<Option<*mut u8>, CopyFault> {
        let error = CopyFault::OutOfBounds { offset, length, region: self.length };
        let start = usize::try_from(offset).map_err(|_| error)?;
        if start.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(error);
        }
        Ok((self.kind != Kind::Null).then(|| self.base.wrapping_add(start)))
    }

    fn is_local(&self) -> Result<(), CopyFault> {
        if self.process.is_none() { Ok(()) } else { Err(CopyFault::Remote) }
    }

    /// Copies `bytes` to `offset`. The last of them are stored last and in one piece: as many as are aligned, 8 at most. Programs
    /// poll them (`ib_write_lat` one byte, others a word).
    ///
    /// # Errors
    /// Of memory that may be missing, what lies before the missing page may have been written.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CopyFault> {
        let Some(to) = self.at(offset, bytes.len())? else { return Ok(()) };
        self.is_local()?;
        let last = last_store((to as usize).wrapping_add(bytes.len()), bytes.len());
        // SAFETY: `at` checked the whole range, and what is mapped of it is the NIC's to write, as `borrowed` and `on_demand` ask;
        // `bytes` is a live slice. It cannot overlap the target, which is registered memory, while frames and queues are the NIC's
        // own. `last` was chosen for the address.
        let copied = unsafe { guard::copy::copy(to, bytes.as_ptr(), bytes.len() - last, last) };
        copied.map_err(|_| not_mapped(to, bytes.len()))
    }

    /// Copies from `offset` into `bytes`.
    ///
    /// # Errors
    /// If it is not so long, or what lies there is not there any more.
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

    /// Runs `operation` on the 8 aligned bytes at `offset`, as the CPU's own atomics would, and returns what
    /// was there before. They have to be writable, whether they change or not.
    ///
    /// # Errors
    /// If the address is not aligned, or what lies there is not there or cannot be written.
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

    /// Has the system write the pages of a file or device that is mapped here back to it (`msync`), and waits for it.
    /// Memory that no file is behind has no persistent place: nothing happens.
    ///
    /// # Errors
    /// If the memory is not there any more, or the system could not write it.
    pub fn persist(&self, offset: u64, length: usize) -> Result<(), CopyFault> {
        if self.at(offset, length)?.is_none() && self.kind == Kind::Null {
            return Ok(());
        }
        if self.process.is_some() {
            return Err(CopyFault::NotPersistent(libc::EOPNOTSUPP));
        }
        let start = self.address().wrapping_add(offset) as usize;
        let page = start & !(page() - 1);
        // SAFETY: the system checks the range itself, and changes nothing that a program can see.
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

/// Bytes of the last store of a copy of `length` bytes that ends at address `end`: the largest that is aligned.
pub(super) fn last_store(end: usize, length: usize) -> usize {
    let fits = |size: &usize| length >= *size && end.is_multiple_of(*size);
    [8, 4, 2, 1].into_iter().find(fits).unwrap_or(0)
}
