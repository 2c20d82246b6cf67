//! Locks and waits with the semantics of the verbs API.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roxie::host::{MAX_WATCHED, Watched};

/// A lock that one call takes and another releases (`ibv_wr_start` and `ibv_wr_complete`), held for a few stores.
#[derive(Debug, Default)]
pub(crate) struct SpinLock(AtomicBool);

impl SpinLock {
    /// Spins before the processor is yielded.
    const SPINS: u32 = 64;

    pub(crate) fn take(&self) {
        let mut spins = 0;
        while self.0.swap(true, Acquire) {
            while self.0.load(Relaxed) {
                spins += 1;
                if spins % SpinLock::SPINS == 0 {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
        }
    }

    pub(crate) fn give_back(&self) {
        self.0.store(false, Release);
    }
}

/// Delivered events that the application must acknowledge before their object can be destroyed.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    open: Mutex<Open>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Open {
    /// Events delivered and not acknowledged.
    events: u32,
    /// Threads that wait for all acknowledgements. Without one, the system call to wake them is skipped.
    waiting: u32,
}

impl Acknowledgements {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handed_over(&self) {
        self.open().events += 1;
    }

    pub(crate) fn acknowledge(&self, count: u32) {
        let mut open = self.open();
        open.events = open.events.saturating_sub(count);
        if open.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until all events are acknowledged.
    pub(crate) fn wait(&self) {
        let mut open = self.open();
        open.waiting += 1;
        let wait = self.changed.wait_while(open, |open| open.events > 0);
        wait.unwrap_or_else(PoisonError::into_inner).waiting -= 1;
    }
}

unsafe extern "C-unwind" {
    /// `read` of the C library: a cancellation point.
    fn read(fd: c_int, to: *mut u8, count: usize) -> isize;
    /// `pause` of the C library: a cancellation point.
    fn pause() -> c_int;
    /// `ppoll` of the C library: a cancellation point.
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

/// Reason for the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// An event, or the timeout.
    ByEvent,
    /// The link.
    ByLink,
    /// A doorbell, and possibly the link.
    ByBell,
    /// Error; `errno` has the cause.
    Failed,
}

/// Waits until one of these descriptors is readable, or the timeout has passed.
///
/// A cancellation point, like [`take_count`].
pub(crate) fn wait_for_any(events: RawFd, link: &Watched, timeout: Duration) -> WakeReason {
    let mut fds = [libc::pollfd { fd: events, events: libc::POLLIN, revents: 0 }; MAX_WATCHED + 1];
    for (place, fd) in fds[1..].iter_mut().zip(link.fds()) {
        place.fd = *fd;
    }
    let count = link.fds().len() + 1;
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: `count` valid descriptors, a time, and no mask; they outlive the call.
    let ready = unsafe { ppoll(fds.as_mut_ptr(), count as libc::nfds_t, &timeout, std::ptr::null()) };
    match ready {
        ..=-1 => WakeReason::Failed,
        _ if fds[count - 1].revents != 0 => WakeReason::ByBell,
        1.. if fds[0].revents == 0 => WakeReason::ByLink,
        _ => WakeReason::ByEvent,
    }
}

/// Waits for a signal handler to run. Leaves `EINTR` in `errno`. A cancellation point, like [`take_count`].
pub(crate) fn wait_for_a_signal() {
    // SAFETY: no arguments.
    unsafe { pause() };
}

/// Takes one count of an eventfd. Blocks until there is one, unless the application has made the descriptor
/// non-blocking. Returns false on an error, with `errno` set.
///
/// A cancellation point, like the blocking calls of the original library: callers must have no pending destructors.
pub(crate) fn take_count(fd: RawFd) -> bool {
    let mut count = [0; 8];
    // SAFETY: 8 bytes of room.
    unsafe { read(fd, count.as_mut_ptr(), count.len()) >= 0 }
}

/// Takes one count if there is one. Never blocks, whatever the descriptor's flags.
pub(crate) fn take_count_now(fd: BorrowedFd<'_>) -> bool {
    let mut count = [0u8; 8];
    let part = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    // SAFETY: one part, of the 8 bytes of `count`, which outlives the call. An offset of -1 stands for the current
    // position, of which an eventfd has none.
    unsafe { libc::preadv2(fd.as_raw_fd(), &part, 1, -1, libc::RWF_NOWAIT) == 8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn take_count_now_never_blocks() {
        let fd = EventFd::from_flags(EfdFlags::EFD_SEMAPHORE).unwrap();
        assert!(!take_count_now(fd.as_fd()));
        fd.write(2).unwrap();
        assert!(take_count_now(fd.as_fd()));
        assert!(take_count(fd.as_raw_fd()));
        assert!(!take_count_now(fd.as_fd()));
    }

    #[test]
    fn wait_ends_with_the_last_acknowledgement() {
        let acks = Arc::new(Acknowledgements::default());
        acks.handed_over();
        acks.handed_over();
        acks.acknowledge(1);
        let other = Arc::clone(&acks);
        let waiting = std::thread::spawn(move || other.wait());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        acks.acknowledge(1);
        waiting.join().unwrap();
    }

    #[test]
    fn turn_excludes_other_threads_until_given_back() {
        let turn = Arc::new(SpinLock::default());
        turn.take();
        let other = Arc::clone(&turn);
        let waiting = std::thread::spawn(move || other.take());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        turn.give_back();
        waiting.join().unwrap();
    }
}
