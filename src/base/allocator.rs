//! A global allocator that keeps large blocks out of huge pages, for programs that run a NIC.
//!
//! Where transparent huge pages are enabled for all memory (`always`), Linux collapses small pages into huge
//! ones in the background (`khugepaged`, mm/khugepaged.c). A thread that touches such a page meanwhile waits
//! for `khugepaged`, which has the lowest priority and may itself wait for every busy program. On one CPU,
//! next to a program that polled its memory, Roxie's thread stalled for most of a second, and peers gave up.
//! Hardware adapters are not affected: their tables are in the adapter, and `khugepaged` skips the pinned
//! memory that they access.
//!
//! The allocator therefore keeps Roxie's large blocks on small pages. Registered memory is the application's,
//! and is left alone.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};

/// Minimum size in bytes of a block to exclude from huge pages. Smaller blocks share pages with the
/// application's. A huge page is 16 times as large.
const LARGE: usize = 128 << 10;
/// Bytes of the largest base page of Linux (64 KiB, aarch64): a multiple of it is whole pages everywhere.
const GRAIN: usize = 64 << 10;

/// The system's allocator, with large blocks excluded from huge pages.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: roxie_base::allocator::Allocator = roxie_base::allocator::Allocator;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

/// Excludes the whole pages of a block from huge pages, except for those at its edges.
fn stay_small(block: *mut u8, size: usize) {
    if block.is_null() || size < LARGE {
        return;
    }
    let skipped = block.addr().wrapping_neg() % GRAIN;
    let whole = (size - skipped) / GRAIN * GRAIN;
    // A kernel without huge pages rejects the advice, which is then not needed.
    // SAFETY: the advice neither changes nor unmaps memory, and the range lies in an allocated block.
    let _ = unsafe { libc::madvise(block.wrapping_add(skipped).cast(), whole, libc::MADV_NOHUGEPAGE) };
}

// SAFETY: all blocks are the system allocator's, with the layouts that were requested.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are the required ones.
        let block = unsafe { System.alloc(layout) };
        stay_small(block, layout.size());
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe { System.alloc_zeroed(layout) };
        stay_small(block, layout.size());
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; the block came from the system's allocator.
        let block = unsafe { System.realloc(block, layout, size) };
        stay_small(block, size);
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}
