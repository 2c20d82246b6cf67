//! Forks: in a child, the objects of its parent are invalid. The child may open the device itself.
//!
//! The engine's threads do not exist in a child, and the rings are the parent's. Each object records the generation of
//! the process that created it, a number incremented by each fork.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use roxie::descriptors;
use roxie::shared::guard;

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks between the first process and this one.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Starts counting forks.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Relaxed);
        guard::signals::in_child();
        descriptors::leave_in_child();
    }
    // SAFETY: `in_child` only makes atomic stores and async-signal-safe system calls.
    WATCHED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// Does nothing: registered memory is not pinned, and a child writes to its own copy.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Returns `enum ibv_fork_status`: no setup is needed for a child to use its memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    crate::abi::ibv_fork_status::IBV_FORK_UNNEEDED as c_int
}

/// Does nothing, like [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut libc::c_void, _size: usize) -> c_int {
    0
}

/// Does nothing, like [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut libc::c_void, _size: usize) -> c_int {
    0
}
