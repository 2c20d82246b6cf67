//! A piece of memory that can be handed to another process.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// Words on a cache line.
pub const LINE: usize = 8;

/// Shared memory, as 64-bit words. Starts zeroed; unmapped when the last holder drops it.
#[derive(Debug)]
pub struct Region {
    base: NonNull<AtomicU64>,
    words: usize,
    file: OwnedFd,
}

// SAFETY: the memory is only reached as `&[AtomicU64]`, which any thread may use.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Makes a region of `words` 64-bit words.
    pub fn new(words: usize) -> io::Result<Arc<Region>> {
        let file = memfd_create("roxie-queue", MFdFlags::MFD_CLOEXEC)?;
        let bytes = words.max(1) * size_of::<AtomicU64>();
        nix::unistd::ftruncate(&file, i64::try_from(bytes).map_err(io::Error::other)?)?;
        let length = NonZeroUsize::new(bytes).expect("at least one word");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file of exactly this length
        // that nobody shrinks: the descriptor is ours and only lent out by `file()`.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) }?;
        Ok(Arc::new(Region { base: base.cast(), words: words.max(1), file }))
    }

    /// All words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` is page-aligned, maps `words` words until drop, and is only ever reached through
        // atomics; zero bytes are a valid AtomicU64.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// The memory file, to pass to another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length, and no reference outlives `self`.
        let _ = unsafe { munmap(self.base.cast(), self.words * size_of::<AtomicU64>()) };
    }
}
