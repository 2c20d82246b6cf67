//! Forks: a child finds the objects of its parent dead, and may make its own.
//!
//! The engine's threads do not exist in a child, and its rings are the parent's. Each object knows in which process it was made, by a
//! number that grows with each fork.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use roxie::descriptors;
use roxie::shared::guard;

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks this process is away from the first.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Has forks counted from now on.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Relaxed);
        guard::signals::in_child();
        descriptors::leave_in_child();
    }
    // SAFETY: `in_child` does nothing but atomic stores and system calls that a signal handler may make.
    WATCHED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// Memory that is registered need not be kept from children: nothing is pinned, and what a child writes is its own.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `enum ibv_fork_status`: a child may use its memory as it likes, nothing needs to be set up for it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    crate::abi::ibv_fork_status::IBV_FORK_UNNEEDED as c_int
}

/// A no-op, as [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut libc::c_void, _size: usize) -> c_int {
    0
}

/// A no-op, as [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut libc::c_void, _size: usize) -> c_int {
    0
}
