//! The asynchronous events of a context: a queue and a descriptor.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;

use nix::sys::eventfd::{EfdFlags, EventFd};
use roxie::verbs::EventKind;

use crate::lock::lock;
use crate::object::Errno;
use crate::waiting::take_count_now;

/// Events that may wait; beyond them they are lost, as a kernel without memory loses them.
const CAPACITY: usize = 4096;

/// What an event names, by its address in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Qp(usize),
    Cq(usize),
    Srq(usize),
    Wq(usize),
    Port,
}

/// The events of a context.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// Counts them: readable while one waits.
    fd: EventFd,
    waiting: Mutex<VecDeque<(Element, EventKind)>>,
}

impl EventQueue {
    pub(crate) fn new() -> Result<EventQueue, Errno> {
        let fd =
            EventFd::from_flags(EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_CLOEXEC).map_err(|e| e as c_int)?;
        Ok(EventQueue { fd, waiting: Mutex::default() })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, element: Element, kind: EventKind) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < CAPACITY {
            waiting.push_back((element, kind));
            // Never full: the queue is bounded far below.
            let _ = self.fd.write(1);
        }
    }

    /// Takes back what waits of an object that goes.
    pub(crate) fn forget(&self, element: Element) {
        let mut waiting = lock(&self.waiting);
        let before = waiting.len();
        waiting.retain(|(of, _)| *of != element);
        for _ in waiting.len()..before {
            take_count_now(self.fd.as_fd());
        }
    }

    /// The next, whose count was taken; `hand_over` runs before its object can be taken back. `None`: the object of the event went in
    /// between.
    pub(crate) fn next<T>(&self, hand_over: impl Fn(Element, EventKind) -> T) -> Option<T> {
        let mut waiting = lock(&self.waiting);
        waiting.pop_front().map(|(element, kind)| hand_over(element, kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::take_count;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn readable(queue: &EventQueue) -> bool {
        let mut fds = [PollFd::new(queue.fd.as_fd(), PollFlags::POLLIN)];
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

    #[test]
    fn events_of_an_object_that_goes_are_taken_back() {
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
