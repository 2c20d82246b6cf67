//! Asynchronous events of a context: a queue and a descriptor.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use nix::sys::eventfd::{EfdFlags, EventFd};
use roxie::verbs::EventKind;

use crate::base::lock::lock;
use crate::base::object::Errno;
use crate::base::waiting::take_count_now;

/// Maximum number of pending events. Further events are dropped, as by a kernel without memory.
const CAPACITY: usize = 4096;

/// Object of an event, by its address in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Qp(usize),
    Cq(usize),
    Srq(usize),
    Wq(usize),
    Port,
}

/// Pending events of a context.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// Counts the pending events: readable while there is one.
    counter: EventFd,
    /// The application's duplicate. The application may close the number and give it to another file, so nothing here
    /// reads or writes it.
    duplicate: OwnedFd,
    waiting: Mutex<VecDeque<(Element, EventKind)>>,
}

impl EventQueue {
    pub(crate) fn new() -> Result<EventQueue, Errno> {
        let counter =
            EventFd::from_flags(EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_CLOEXEC).map_err(|e| e as c_int)?;
        let duplicate = counter.as_fd().try_clone_to_owned();
        let duplicate = duplicate.map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?;
        Ok(EventQueue { counter, duplicate, waiting: Mutex::default() })
    }

    /// Returns the descriptor that the application waits on.
    pub(crate) fn application_fd(&self) -> RawFd {
        self.duplicate.as_raw_fd()
    }

    /// Returns the counter's own descriptor.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.counter.as_raw_fd()
    }

    pub(crate) fn push(&self, element: Element, kind: EventKind) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < CAPACITY {
            waiting.push_back((element, kind));
            // Never full: the queue's limit is far below the counter's.
            let _ = self.counter.write(1);
        }
    }

    /// Discards the pending events of an object, before it is destroyed.
    pub(crate) fn forget(&self, element: Element) {
        let mut waiting = lock(&self.waiting);
        let before = waiting.len();
        waiting.retain(|(of, _)| *of != element);
        for _ in waiting.len()..before {
            take_count_now(self.counter.as_fd());
        }
    }

    /// Returns the next event. The caller has taken its count. `hand_over` runs before the event's object can discard
    /// its events. `None`: the object was destroyed meanwhile.
    pub(crate) fn next<T>(&self, hand_over: impl Fn(Element, EventKind) -> T) -> Option<T> {
        let mut waiting = lock(&self.waiting);
        waiting.pop_front().map(|(element, kind)| hand_over(element, kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::waiting::take_count;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn readable(queue: &EventQueue) -> bool {
        let mut fds = [PollFd::new(queue.duplicate.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn events_come_in_order_one_for_each_count() {
        let queue = EventQueue::new().unwrap();
        assert!(!readable(&queue));
        queue.push(Element::Port, EventKind::PortError);
        queue.push(Element::Port, EventKind::PortActive);
        let next = || {
            assert!(take_count(queue.raw_fd()));
            queue.next(|_, kind| kind).unwrap()
        };
        assert_eq!((next(), readable(&queue), next()), (EventKind::PortError, true, EventKind::PortActive));
        assert!(!readable(&queue));
    }

    /// The application has closed its descriptor past this library, and a file of its own has the number.
    #[test]
    fn event_does_not_touch_a_reused_number() {
        let queue = EventQueue::new().unwrap();
        let other = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        // SAFETY: two descriptors of this function. The number stays open, and is closed with the queue.
        unsafe { libc::syscall(libc::SYS_dup3, other.as_raw_fd(), queue.application_fd(), 0) };
        queue.push(Element::Port, EventKind::PortError);
        assert!(other.read().is_err(), "nothing was written to it");
        other.write(1).unwrap();
        queue.forget(Element::Port);
        assert_eq!(other.read(), Ok(1), "nothing was read from it");
    }

    #[test]
    fn destroyed_object_has_no_pending_events() {
        let queue = EventQueue::new().unwrap();
        queue.push(Element::Qp(8), EventKind::QpFatal);
        queue.push(Element::Qp(16), EventKind::SqDrained);
        queue.push(Element::Qp(8), EventKind::QpFatal);
        queue.forget(Element::Qp(8));
        assert!(take_count(queue.raw_fd()));
        assert_eq!(queue.next(|element, _| element), Some(Element::Qp(16)));
        assert!(!readable(&queue), "nothing is left to wake for");
    }
}
