//! Waiting: locks and descriptors as verbs programs know them.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roxie::host::{MAX_WATCHED, Watched};

/// A lock that one call takes and another gives back (`ibv_wr_start` and `ibv_wr_complete`), held for a few stores.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicBool);

impl Turn {
    /// Looks in vain before the processor is offered to others.
    const SPINS: u32 = 64;

    pub(crate) fn take(&self) {
        let mut spins = 0;
        while self.0.swap(true, Acquire) {
            while self.0.load(Relaxed) {
                spins += 1;
                if spins % Turn::SPINS == 0 {
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

/// Events that an application was handed and has to acknowledge before their object can go.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    open: Mutex<Open>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Open {
    /// Handed over and not acknowledged.
    events: u32,
    /// Threads that wait until there are none. To wake nobody takes a system call too.
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

    /// Waits until all are.
    pub(crate) fn wait(&self) {
        let mut open = self.open();
        open.waiting += 1;
        let wait = self.changed.wait_while(open, |open| open.events > 0);
        wait.unwrap_or_else(PoisonError::into_inner).waiting -= 1;
    }
}

unsafe extern "C-unwind" {
    /// The C library's: a cancellation point.
    fn read(fd: c_int, to: *mut u8, count: usize) -> isize;
    /// As well.
    fn pause() -> c_int;
    /// As well.
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// An event, or nothing: the time was over.
    ByEvent,
    /// The link.
    ByLink,
    /// A doorbell, and perhaps the link.
    ByBell,
    /// `errno` says why.
    Failed,
}

/// Waits until one of these descriptors is readable, or the time is over.
///
/// As with [`take_count`], a thread may be cancelled here.
pub(crate) fn wait_for_any(events: RawFd, link: &Watched, timeout: Duration) -> Woken {
    let mut fds = [libc::pollfd { fd: events, events: libc::POLLIN, revents: 0 }; MAX_WATCHED + 1];
    for (place, fd) in fds[1..].iter_mut().zip(link.fds()) {
        place.fd = *fd;
    }
    let count = link.fds().len() + 1;
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: `count` descriptors, which there are, a time, and no mask; they outlive the call.
    let ready = unsafe { ppoll(fds.as_mut_ptr(), count as libc::nfds_t, &timeout, std::ptr::null()) };
    match ready {
        ..=-1 => Woken::Failed,
        _ if fds[count - 1].revents != 0 => Woken::ByBell,
        1.. if fds[0].revents == 0 => Woken::ByLink,
        _ => Woken::ByEvent,
    }
}

/// Waits until a signal was handled, and leaves `EINTR` in `errno`. As with [`take_count`], a thread may be cancelled here.
pub(crate) fn wait_for_a_signal() {
    // SAFETY: it has no arguments.
    unsafe { pause() };
}

/// Takes one count of an eventfd, waiting for it unless the application has made it non-blocking. False: `errno` says why not.
///
/// Here a thread may be cancelled, as in the calls of the original library that wait: no caller may have anything to destroy.
pub(crate) fn take_count(fd: RawFd) -> bool {
    let mut count = [0; 8];
    // SAFETY: 8 bytes of room.
    unsafe { read(fd, count.as_mut_ptr(), count.len()) >= 0 }
}

/// Takes one count if there is one, and does not wait whatever the descriptor's flags say.
pub(crate) fn take_count_now(fd: BorrowedFd<'_>) -> bool {
    let mut count = [0u8; 8];
    let part = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    // SAFETY: one part, of the 8 bytes of `count`, which outlives the call. An offset of -1 is for descriptors without one.
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
    fn a_blocking_eventfd_is_taken_without_waiting() {
        let fd = EventFd::from_flags(EfdFlags::EFD_SEMAPHORE).unwrap();
        assert!(!take_count_now(fd.as_fd()));
        fd.write(2).unwrap();
        assert!(take_count_now(fd.as_fd()));
        assert!(take_count(fd.as_raw_fd()));
        assert!(!take_count_now(fd.as_fd()));
    }

    #[test]
    fn who_waits_for_acknowledgements_goes_on_with_the_last() {
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
    fn a_turn_excludes_others_until_it_is_given_back() {
        let turn = Arc::new(Turn::default());
        turn.take();
        let other = Arc::clone(&turn);
        let waiting = std::thread::spawn(move || other.take());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        turn.give_back();
        waiting.join().unwrap();
    }
}
