//! The descriptor of a completion channel: readable while an event waits, and at no other time.
//!
//! An epoll set holds the counter of events. The application may set `O_NONBLOCK` on the set; the counter itself never
//! blocks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::wait_policy::WaitPolicy;
use roxie_nic::shared::EventCounter;

/// The descriptor of a completion channel, and its counter.
#[derive(Debug)]
pub struct WaitSet {
    set: Epoll,
    events: EventCounter,
    /// Armings after which the waiting thread, which has blocked inside a call, is expected to block again.
    expected_blocks: AtomicU32,
}

impl WaitSet {
    /// Returns a descriptor that is readable while `events` is.
    ///
    /// # Errors
    /// If the system is out of descriptors.
    pub fn new(events: EventCounter) -> io::Result<WaitSet> {
        let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        set.add(&events, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(WaitSet { set, events, expected_blocks: AtomicU32::new(0) })
    }

    /// The counter of events.
    pub fn events(&self) -> &EventCounter {
        &self.events
    }

    /// True if the application has set `O_NONBLOCK`.
    pub fn is_nonblocking(&self) -> bool {
        fcntl(&self.set.0, FcntlArg::F_GETFL)
            .is_ok_and(|flags| OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK))
    }

    /// Records that the waiting thread blocks inside a call: after its next armings it is expected to block again.
    pub(super) fn expect_block(&self) {
        self.expected_blocks.store(WaitPolicy::ARMINGS_PER_BLOCK, Relaxed);
    }

    /// Returns true for the first [`WaitPolicy::ARMINGS_PER_BLOCK`] armings after each such call.
    pub(super) fn takes_expectation(&self) -> bool {
        let remaining = self.expected_blocks.load(Relaxed);
        self.expected_blocks.store(remaining.saturating_sub(1), Relaxed);
        remaining > 0
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.0.as_fd()
    }
}

impl AsRawFd for WaitSet {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.set.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::sync::Arc;

    fn eventfd() -> EventFd {
        EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()
    }

    #[test]
    fn channel_is_readable_while_an_event_waits() {
        let events = Arc::new(eventfd());
        let set = WaitSet::new(Arc::clone(&events).into()).unwrap();
        let is_readable = || {
            let mut fds = [PollFd::new(set.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        assert!(!is_readable());
        events.write(1).unwrap();
        assert!(is_readable());
        events.read().unwrap();
        assert!(!is_readable());
    }

    #[test]
    fn block_is_expected_after_two_armings() {
        let set = WaitSet::new(Arc::new(eventfd()).into()).unwrap();
        assert!(!set.takes_expectation(), "it never blocked");
        set.expect_block();
        assert_eq!([(); 4].map(|()| set.takes_expectation()), [true, true, false, false]);
    }

    #[test]
    fn channel_knows_whether_its_descriptor_blocks() {
        let set = WaitSet::new(Arc::new(eventfd()).into()).unwrap();
        assert!(!set.is_nonblocking());
        fcntl(&set, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert!(set.is_nonblocking());
    }
}
