//! Memory whose pages stay where they are, for programs in which a NIC runs.
//!
//! Linux gathers small pages into huge ones behind a program's back: `khugepaged` (mm/khugepaged.c), where transparent huge pages are
//! on for all (`always`). Whoever touches such a page meanwhile waits for it; and it has the lowest priority, and waits itself
//! for every program that computes. With one processor and a program that spins on its memory, Roxie's thread stood still for most of
//! a second, and its peers gave up. An adapter keeps its tables to itself, and the memory that it reaches is pinned, which
//! `khugepaged` leaves alone.
//!
//! So what is large of Roxie's own is left to small pages. Memory that programs register is theirs: what they want of huge pages
//! for it is their affair.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes of a block that is looked after by itself. Smaller ones lie among the program's, and a huge page is sixteen times
/// as large.
const LARGE: usize = 128 << 10;
/// Bytes of the largest page that Linux has for small ones (aarch64): whole pages everywhere.
const GRAIN: usize = 64 << 10;

/// The system's allocator, with large blocks that `khugepaged` passes by.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: roxie::allocator::Allocator = roxie::allocator::Allocator;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

/// Leaves the pages of a block to be small ones, but for those at its edges.
fn stay_small(block: *mut u8, size: usize) {
    if block.is_null() || size < LARGE {
        return;
    }
    let skipped = block.addr().wrapping_neg() % GRAIN;
    let whole = (size - skipped) / GRAIN * GRAIN;
    // Where there are no huge pages the system knows no such advice, and none is needed.
    // SAFETY: changes no byte and takes none away; the range lies in a block that is allocated.
    let _ = unsafe { libc::madvise(block.wrapping_add(skipped).cast(), whole, libc::MADV_NOHUGEPAGE) };
}

// SAFETY: all blocks are the system allocator's, with the layouts that were asked for.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that are asked for.
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
