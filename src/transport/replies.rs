//! Replies that wait to leave, in the order in which the specification wants them seen (IBTA 9.5).
//!
//! An acknowledgement must not overtake the response of a READ before it, so both stand in one queue.
//! Acknowledgements that follow one another coalesce into the last.

use std::collections::VecDeque;

use super::check::Check;
use crate::wire::Psn;

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Acknowledges everything up to `psn`.
    Ack {
        /// The last PSN in order.
        psn: Psn,
        /// Messages completed by then.
        msn: u32,
    },
    /// Refuses `psn`, or asks for it.
    Nak {
        /// The PSN in question.
        psn: Psn,
        /// Messages completed by then.
        msn: u32,
        /// Why, which gives the code.
        why: Check,
    },
    /// Asks the peer to come again later.
    RnrNak {
        /// The PSN in question.
        psn: Psn,
        /// Messages completed by then.
        msn: u32,
        /// The code of the RNR timer, 0 to 31: how long the peer is to wait.
        timer: u8,
    },
    /// The packets of a READ response, from a responder resource.
    Read(u8),
    /// The response of an atomic, from a responder resource.
    Atomic(u8),
}

//= IBTA 9.5: ack-follows-read-response
/// The queue. Bounded: what does not fit is not queued, and the peer's timer asks again.
#[derive(Debug)]
pub(super) struct Replies {
    queue: VecDeque<Reply>,
    bound: usize,
}

impl Replies {
    /// A queue for a responder with `resources` READs and atomics.
    pub(super) fn new(resources: usize) -> Replies {
        // One acknowledgement can stand behind each response, a NAK behind that.
        let bound = 2 * resources + 4;
        Replies { queue: VecDeque::with_capacity(bound + 1), bound }
    }

    /// The responder has `resources` READs and atomics now; fewer than before change nothing.
    pub(super) fn make_room_for(&mut self, resources: usize) {
        self.bound = self.bound.max(2 * resources + 4);
        self.queue.reserve(self.bound + 1 - self.queue.len());
    }

    /// The oldest.
    pub(super) fn front(&self) -> Option<Reply> {
        self.queue.front().copied()
    }

    /// Takes the oldest out.
    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
    }

    /// Takes a reply out, wherever it stands.
    pub(super) fn remove(&mut self, reply: Reply) {
        self.queue.retain(|r| *r != reply);
    }

    /// True if an acknowledgement stands last, with which the next one becomes one.
    pub(super) fn ends_with_ack(&self) -> bool {
        matches!(self.queue.back(), Some(Reply::Ack { .. }))
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Appends a reply; an acknowledgement directly behind another takes its place. False: full.
    pub(super) fn push(&mut self, reply: Reply) -> bool {
        //= IBTA 9.7.5.1: acks-coalesce
        if let (Reply::Ack { .. }, Some(last @ Reply::Ack { .. })) = (reply, self.queue.back_mut()) {
            *last = reply;
            return true;
        }
        if self.queue.len() == self.bound {
            return false;
        }
        self.queue.push_back(reply);
        true
    }

    /// Puts a reply before the first that `is_behind` it; of two acknowledgements side by side the later stands for both. False: full.
    pub(super) fn insert_before(&mut self, reply: Reply, is_behind: impl Fn(&Reply) -> bool) -> bool {
        let at = self.queue.iter().position(is_behind).unwrap_or(self.queue.len());
        if matches!(reply, Reply::Ack { .. }) {
            if matches!(self.queue.get(at), Some(Reply::Ack { .. })) {
                return true;
            }
            if let Some(before @ Reply::Ack { .. }) = at.checked_sub(1).and_then(|at| self.queue.get_mut(at))
            {
                *before = reply;
                return true;
            }
        }
        if self.queue.len() == self.bound {
            return false;
        }
        self.queue.insert(at, reply);
        true
    }

    /// Appends the refusal after which there are no more replies: there is always room for that one.
    pub(super) fn push_last(&mut self, reply: Reply) {
        self.queue.push_back(reply);
    }

    /// Takes the newest out if it is so.
    pub(super) fn pop_back_if(&mut self, is_so: impl Fn(&Reply) -> bool) {
        if self.queue.back().is_some_and(is_so) {
            self.queue.pop_back();
        }
    }

    /// Keeps what stands before the last reply of this kind, and that; without one, nothing.
    pub(super) fn truncate_behind(&mut self, is_last: impl Fn(&Reply) -> bool) {
        let kept = self.queue.iter().rposition(is_last).map_or(0, |at| at + 1);
        self.queue.truncate(kept);
    }

    /// Puts a reply before all others: what the oldest turned into.
    pub(super) fn push_front(&mut self, reply: Reply) {
        self.queue.push_front(reply);
    }
}
