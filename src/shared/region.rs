//! A piece of memory that queues live in: 64-bit words, on cache lines of its own.
//!
//! Queues name places in it by offset and touch it only through atomics, so that it may lie in memory that another
//! process maps as well. For now both sides are in one process and it comes from the heap: a descriptor and a mapping for
//! each queue would cost a process with thousands of QPs its limits and its TLB.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Words on a cache line.
pub const LINE: usize = 8;

/// Memory for a queue, as 64-bit words. Starts zeroed; freed when the last holder drops it.
#[derive(Debug)]
pub struct Region {
    base: NonNull<AtomicU64>,
    words: usize,
    layout: Layout,
}

// SAFETY: the memory is only reached as `&[AtomicU64]`, which any thread may use.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Makes a region of `words` 64-bit words.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(words: usize) -> io::Result<Arc<Region>> {
        let words = words.max(1);
        let layout = Layout::array::<AtomicU64>(words)
            .and_then(|layout| layout.align_to(LINE * size_of::<AtomicU64>()))
            .map_err(io::Error::other)?;
        // SAFETY: the layout is not empty: there is at least one word.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Region { base: base.cast(), words, layout }))
    }

    /// All words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` holds `words` words until drop, aligned to a cache line, and is only ever reached
        // through atomics; zero bytes are a valid AtomicU64.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and no reference outlives `self`.
        unsafe { dealloc(self.base.as_ptr().cast(), self.layout) }
    }
}
