//! The data path allocates no memory after its start, with an allocator that counts: ports in the order of a NIC's
//! stack, and RC traffic under loss through every port.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

mod ports;
mod traffic;

/// The system's allocator, with a count for each thread.
struct Counting;

thread_local! {
    /// Allocations of this thread, which runs all passes of a device without an engine thread. Other threads follow
    /// changes of the interface and its neighbours, and allocate when one comes, sooner or later.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the allocations of this thread so far.
fn allocations() -> u64 {
    ALLOCATIONS.get()
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches none of its memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds `GlobalAlloc`'s contract, and the layout is passed on unchanged.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds `GlobalAlloc`'s contract: the block came from `alloc` above, which is the
        // system's.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds `GlobalAlloc`'s contract: the block came from `alloc` above, which is the
        // system's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
