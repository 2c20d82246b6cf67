//! What a program waits on: a descriptor that is readable while an event waits.
//!
//! It is an epoll set with the counter of events in it, so that it can be polled, selected and nested as the counter could. While its
//! waiter watches the link in the keeper's place, the port's descriptors are in it as well: a frame wakes the program, its next call
//! runs the pass, and finds the event that the pass raised. That saves the switch from the keeper to the program. The descriptor is
//! readable before there is an event then, which only a waiter that does not block can stand.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::shared::EventCounter;

/// See the module's page.
#[derive(Debug)]
pub struct WaitSet {
    set: Epoll,
    events: EventCounter,
    /// Its waiter has slept inside a call, and has not armed since.
    will_block: AtomicBool,
    /// Looks in vain since it was armed.
    in_vain: AtomicU32,
}

impl WaitSet {
    /// A descriptor that is readable while `events` is.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new(events: EventCounter) -> io::Result<WaitSet> {
        let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        set.add(&events, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(WaitSet { set, events, will_block: AtomicBool::new(false), in_vain: AtomicU32::new(0) })
    }

    /// The counter of events.
    pub fn events(&self) -> &EventCounter {
        &self.events
    }

    /// True if whoever waits on the descriptor has said that its calls are not to block.
    pub fn is_nonblocking(&self) -> bool {
        fcntl(&self.set.0, FcntlArg::F_GETFL)
            .is_ok_and(|flags| OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK))
    }

    /// Its waiter sleeps inside a call: when it arms next, it is expected to do so again.
    pub(super) fn expect_block(&self) {
        self.will_block.store(true, Relaxed);
    }

    /// True once after each such sleep.
    pub(super) fn takes_expectation(&self) -> bool {
        self.will_block.load(Relaxed) && self.will_block.swap(false, Relaxed)
    }

    /// A queue of its was armed.
    pub(super) fn asked(&self) {
        self.in_vain.store(0, Relaxed);
    }

    /// Its waiter looked for an event in vain; how often since then.
    pub(super) fn looked_in_vain(&self) -> u32 {
        self.in_vain.fetch_add(1, Relaxed) + 1
    }

    /// Frames make it readable too, from now on.
    pub(super) fn add_frames(&self, frames: &[OwnedFd]) -> io::Result<()> {
        for fd in frames {
            match self.set.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 1)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => {
                    self.remove_frames(frames);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// They do not any more.
    pub(super) fn remove_frames(&self, frames: &[OwnedFd]) {
        for fd in frames {
            // Fails if it is not in the set, which is what is wanted.
            let _ = self.set.delete(fd);
        }
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

    fn is_readable(set: &WaitSet) -> bool {
        let mut fds = [PollFd::new(set.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn it_is_readable_by_events_and_by_frames_while_it_is_to_be() {
        let (events, frames) = (Arc::new(eventfd()), eventfd());
        let set = WaitSet::new(Arc::clone(&events).into()).unwrap();
        let fds = [frames.as_fd().try_clone_to_owned().unwrap()];
        frames.write(1).unwrap();
        assert!(!is_readable(&set), "frames are none of its business yet");
        set.add_frames(&fds).unwrap();
        set.add_frames(&fds).unwrap();
        assert!(is_readable(&set));
        set.remove_frames(&fds);
        set.remove_frames(&fds);
        assert!(!is_readable(&set));
        events.write(1).unwrap();
        assert!(is_readable(&set));
    }

    #[test]
    fn looks_in_vain_are_counted_anew_after_each_arming() {
        let set = WaitSet::new(Arc::new(eventfd()).into()).unwrap();
        assert_eq!([set.looked_in_vain(), set.looked_in_vain()], [1, 2]);
        set.asked();
        assert_eq!(set.looked_in_vain(), 1);
    }

    #[test]
    fn it_knows_whether_its_waiter_blocks() {
        let set = WaitSet::new(Arc::new(eventfd()).into()).unwrap();
        assert!(!set.is_nonblocking());
        fcntl(&set, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert!(set.is_nonblocking());
    }
}
