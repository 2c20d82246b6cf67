//! Synchronization primitives of this module. `tests/handoff` replaces them by those of a model checker.

pub(super) use super::aio::Signals;
pub(super) use nix::sys::eventfd::{EfdFlags, EventFd};
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// Sets a counter to 0 without blocking, whatever flags other holders of the descriptor have set (`RWF_NOWAIT`, which eventfds heed
/// since Linux 5.8).
pub(super) fn clear(counter: &EventFd) {
    let mut count = [0u8; 8];
    let into = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    // SAFETY: the kernel writes 8 bytes at most, to `count`. An eventfd has no position, which offset -1 stands for.
    let read =
        unsafe { libc::preadv2(counter.as_fd().as_raw_fd(), &raw const into, 1, -1, libc::RWF_NOWAIT) };
    if read < 0 && [Errno::EOPNOTSUPP, Errno::ENOSYS].contains(&Errno::last()) {
        // Older kernels: a read that may block. A counter that is never cleared would end every sleep at once.
        let _ = counter.read();
    }
}
