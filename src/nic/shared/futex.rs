//! Waiting for a word of memory that several processes share (`futex(2)`).

use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The half of a word that the kernel compares: the low 32 bits.
fn low(word: &AtomicU64) -> *mut u32 {
    let half = usize::from(cfg!(target_endian = "big"));
    word.as_ptr().cast::<u32>().wrapping_add(half)
}

/// Sleeps until a [`wake`] on this word, or for `limit` at most. Returns immediately if the low half of the word is not
/// `expected`.
pub(super) fn wait(word: &AtomicU64, expected: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: the word and the time outlive the call, which reads 4 aligned bytes of the one, as an atomic, and the
    // other.
    unsafe { libc::syscall(libc::SYS_futex, low(word), libc::FUTEX_WAIT, expected, &raw const limit) };
}

/// Wakes all threads that wait on this word.
pub(super) fn wake(word: &AtomicU64) {
    // SAFETY: the call uses the address alone: it reads and writes nothing there.
    unsafe { libc::syscall(libc::SYS_futex, low(word), libc::FUTEX_WAKE, i32::MAX) };
}
