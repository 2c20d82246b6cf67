//! Pending replies, in the order in which the specification requires them to be sent (IBTA 9.5).
//!
//! An ACK must not overtake an earlier READ response, so one queue holds all replies. Adjacent ACKs coalesce into the
//! later one.

use std::collections::VecDeque;

use crate::transport::{Check, door};
use roxie_wire::Psn;

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Acknowledges all PSNs up to `psn`.
    Ack {
        /// Last PSN received in order.
        psn: Psn,
        /// Number of messages completed at that time.
        msn: u32,
    },
    /// Refuses `psn`, or requests its retransmission.
    Nak {
        /// The PSN refused or requested.
        psn: Psn,
        /// Number of messages completed at that time.
        msn: u32,
        /// Reason, which determines the NAK code.
        why: Check,
    },
    /// Asks the peer to send again after a wait, because no receive is posted.
    RnrNak {
        /// The PSN of the request.
        psn: Psn,
        /// Number of messages completed at that time.
        msn: u32,
        /// RNR timer code of the wait, 0 to 31.
        timer: u8,
    },
    /// Asks for what is missing, between peers with selective repeat. Acknowledges all PSNs before `psn`.
    Sack {
        /// The expected PSN.
        psn: Psn,
        /// Number of messages completed at that time.
        msn: u32,
        /// True if an ACK may acknowledge the PSN before, which must belong to a SEND or WRITE.
        may_be_ack: bool,
    },
    /// READ response packets, from this responder resource.
    Read(u8),
    /// One packet of a READ response that is sent again alone, between peers with selective repeat: that with this PSN.
    ReadPart(Psn),
    /// Atomic response, from this responder resource.
    Atomic(u8),
}

/// Packets of READ responses to send again alone, in addition to the bound of all other replies.
const PARTS: usize = 32;
/// Resources for whose replies each queue has room, also if the peer asked for fewer: NAKs of a burst are not merged.
const LEAST_RESOURCES: usize = 16;

//= IBTA 9.5: ack-follows-read-response
/// The queue of pending replies. Bounded: a reply that does not fit is dropped, and the peer's timer asks again.
///
/// Most QPs have one reply pending at a time, an ACK: the oldest reply lies in the QP's own state.
#[derive(Debug)]
pub(super) struct Replies {
    /// The oldest reply. `None`: none is pending.
    first: Option<Reply>,
    /// The replies behind the oldest.
    others: VecDeque<Reply>,
    bound: usize,
}

/// Returns the bound for a responder with `resources` resources. Worst case: an ACK behind each response, and a NAK
/// behind that.
fn bound_for(resources: usize) -> usize {
    2 * resources + 4
}

impl Replies {
    /// Returns a queue with memory for the replies of a responder without resources.
    pub(super) fn new() -> Replies {
        let (usual, bound) = (bound_for(0), bound_for(LEAST_RESOURCES));
        Replies { first: None, others: VecDeque::with_capacity(usual), bound }
    }

    /// Makes memory for a responder with `resources` resources, and raises the bound to what it needs.
    pub(super) fn make_room_for(&mut self, resources: usize) {
        let usual = bound_for(resources);
        self.bound = self.bound.max(usual);
        // There may be more: packets of READ responses.
        self.others.reserve(usual.saturating_sub(self.others.len()));
    }

    /// Returns the oldest reply.
    #[inline(always)]
    pub(super) fn front(&self) -> Option<Reply> {
        self.first
    }

    /// Returns all replies, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Reply> + Clone {
        self.first.iter().chain(&self.others)
    }

    /// Removes the oldest reply.
    pub(super) fn pop(&mut self) {
        self.first = self.others.pop_front();
    }

    /// Removes `reply` from any place in the queue.
    pub(super) fn remove(&mut self, reply: Reply) {
        self.others.retain(|r| *r != reply);
        if self.first == Some(reply) {
            self.pop();
        }
    }

    fn back(&self) -> Option<&Reply> {
        self.others.back().or(self.first.as_ref())
    }

    fn back_mut(&mut self) -> Option<&mut Reply> {
        self.others.back_mut().or(self.first.as_mut())
    }

    /// True if the last reply is an ACK, which a further one would replace.
    pub(super) fn ends_with_ack(&self) -> bool {
        matches!(self.back(), Some(Reply::Ack { .. }))
    }

    /// Returns the number of pending replies.
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    /// True if no more replies are pending than may be: the bound, and a NAK that refuses a request.
    pub(super) fn is_bounded(&self) -> bool {
        self.len() <= self.bound + PARTS + 1 && (self.first.is_some() || self.others.is_empty())
    }

    /// True if no reply is pending.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Removes all replies.
    pub(super) fn clear(&mut self) {
        self.first = None;
        self.others.clear();
    }

    /// Appends a reply. An ACK directly behind another replaces it. Returns false if the queue is full.
    #[inline(always)]
    pub(super) fn push(&mut self, reply: Reply) -> bool {
        //= IBTA 9.7.5.1: acks-coalesce
        let is_common = match &self.first {
            None => true,
            Some(Reply::Ack { .. }) => matches!(reply, Reply::Ack { .. }) && self.others.is_empty(),
            Some(_) => false,
        };
        if is_common {
            self.first = Some(reply);
            return true;
        }
        self.push_behind(reply)
    }

    /// Appends a reply behind at least one other.
    #[inline(never)]
    fn push_behind(&mut self, reply: Reply) -> bool {
        let acknowledges = |reply: &Reply| matches!(reply, Reply::Ack { .. } | Reply::Sack { .. });
        if acknowledges(&reply)
            && let Some(last) = self.back_mut().filter(|last| acknowledges(last))
        {
            *last = reply;
            return true;
        }
        self.insert(None, reply)
    }

    /// Inserts a reply before the first one for which `is_behind` is true. Of two adjacent ACKs, only the later is
    /// kept. Returns false if the queue is full.
    pub(super) fn insert_before(&mut self, reply: Reply, is_behind: impl Fn(&Reply) -> bool) -> bool {
        let place = self.iter().position(is_behind);
        if matches!(reply, Reply::Ack { .. }) {
            let at = place.unwrap_or(self.len());
            if matches!(self.iter().nth(at), Some(Reply::Ack { .. })) {
                return true;
            }
            if let Some(before @ Reply::Ack { .. }) = at.checked_sub(1).and_then(|at| self.get_mut(at)) {
                *before = reply;
                return true;
            }
        }
        self.insert(place, reply)
    }

    /// Inserts a reply as number `place`; `None`: behind all others. Returns false if the queue is full.
    #[inline(always)]
    fn insert(&mut self, place: Option<usize>, reply: Reply) -> bool {
        let has_room = self.has_room_for(&reply);
        if has_room {
            match door::place_of_reply(&reply, place) {
                None => self.push_last(reply),
                Some(0) => self.push_front(reply),
                Some(place) => self.others.insert(place - 1, reply),
            }
        }
        has_room
    }

    fn has_room_for(&self, reply: &Reply) -> bool {
        let is_part = |reply: &Reply| matches!(reply, Reply::ReadPart(_));
        let parts = || self.iter().filter(|reply| is_part(reply)).count();
        if is_part(reply) {
            parts() < PARTS
        } else {
            self.len() < self.bound || self.len() - parts() < self.bound
        }
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut Reply> {
        match at.checked_sub(1) {
            None => self.first.as_mut(),
            Some(behind_first) => self.others.get_mut(behind_first),
        }
    }

    /// Appends a reply, also beyond the bound: the NAK that refuses a request, which no reply follows.
    pub(super) fn push_last(&mut self, reply: Reply) {
        match self.first {
            None => self.first = Some(reply),
            Some(_) => self.others.push_back(reply),
        }
    }

    /// Removes the newest reply if `is_so` is true for it.
    pub(super) fn pop_back_if(&mut self, is_so: impl Fn(&Reply) -> bool) {
        if self.back().is_some_and(is_so) && self.others.pop_back().is_none() {
            self.first = None;
        }
    }

    /// Drops all replies behind the last one for which `is_last` is true; all replies if there is none.
    pub(super) fn truncate_behind(&mut self, is_last: impl Fn(&Reply) -> bool) {
        match self.others.iter().rposition(&is_last) {
            Some(at) => self.others.truncate(at + 1),
            None => {
                self.others.clear();
                self.first = self.first.filter(is_last);
            }
        }
    }

    /// Inserts a reply before all others, in place of the oldest one.
    pub(super) fn push_front(&mut self, reply: Reply) {
        if let Some(oldest) = self.first.replace(reply) {
            self.others.push_front(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_beside_packets_sent_again() {
        let mut replies = Replies::new();
        for psn in 0..PARTS as u32 {
            assert!(replies.push(Reply::ReadPart(Psn::new(psn))));
        }
        assert!(!replies.push(Reply::ReadPart(Psn::new(99))), "all places are taken");
        // Fewer than are pending.
        replies.make_room_for(1);
        assert_eq!(replies.len(), PARTS);
        let others = (0..bound_for(LEAST_RESOURCES) as u8).filter(|slot| replies.push(Reply::Atomic(*slot)));
        assert_eq!(others.count(), bound_for(LEAST_RESOURCES), "each has its place");
        assert!(!replies.push(Reply::Atomic(99)) && replies.is_bounded());
    }
}
