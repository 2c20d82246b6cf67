//! Responder resources: the last READs and atomics, kept for their responses and for duplicates (IBTA 9.7.5.1).

use super::replies::Reply;
use crate::verbs::PdId;
use roxie_wire::{Operation, Psn, Reth};

/// An executed READ or atomic, kept for its response and for duplicates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub operation: Operation,
    pub first_psn: Psn,
    pub packets: u32,
    /// Index of the response packet to send next.
    pub next: u32,
    pub reth: Reth,
    pub msn: u32,
    /// Protection domain in which the key was valid.
    pub pd: PdId,
    /// Original value found by an atomic.
    pub result: u64,
    /// True while its reply is queued.
    pub queued: bool,
    pub again: bool,
}

impl Resource {
    /// True if the READ or atomic has this PSN.
    fn covers(&self, psn: Psn) -> bool {
        (0..self.packets as i32).contains(&psn.distance_from(self.first_psn))
    }

    /// Returns the reply that sends the response of this resource, which is in `slot`.
    pub(super) fn reply(&self, slot: u8) -> Reply {
        match self.operation {
            Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicAcknowledge => {
                Reply::Atomic(slot)
            }
            // ATOMIC WRITE and FLUSH are answered like an empty READ.
            _ => Reply::Read(slot),
        }
    }

    /// Advances over a response packet, which is sent. Returns true if it was the last one.
    pub(super) fn packet_sent(&mut self) -> bool {
        invariant!(self.next < self.packets, "response packet {} of {}", self.next, self.packets);
        self.next += 1;
        let is_last = self.next >= self.packets;
        if is_last {
            (self.queued, self.next) = (false, 0);
        }
        is_last
    }
}

/// The resources of a responder, as many as agreed with the peer.
#[derive(Debug, Default)]
pub(super) struct Resources {
    slots: Vec<Option<Resource>>,
    /// Slot of the next READ or atomic.
    next: usize,
}

impl Resources {
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.next = 0;
    }

    /// Makes room for `count` READs and atomics. The table never shrinks, because the peer observes the limit by
    /// itself. Returns its size.
    pub(super) fn resize(&mut self, count: u8) -> usize {
        let count = usize::from(count).max(self.slots.len());
        //= IBTA 9.7.5.1: as-many-results-are-kept-as-agreed
        self.slots.resize(count, None);
        count
    }

    pub(super) fn get(&self, slot: u8) -> Option<&Resource> {
        self.slots.get(usize::from(slot))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u8) -> Option<&mut Resource> {
        self.slots.get_mut(usize::from(slot))?.as_mut()
    }

    /// Returns the slot of the next READ or atomic, and the response that is still queued there. `None` if the peer
    /// exceeds its limit: a first response is queued. A queued response to a duplicate gives way: a peer within its
    /// limit has the first response already, and the duplicate was a delayed packet.
    pub(super) fn next_slot(&self) -> Option<(u8, Option<Reply>)> {
        let slot = self.next as u8;
        let queued = self.slots.get(self.next)?.as_ref().filter(|old| old.queued);
        match queued {
            Some(old) if !old.again => None,
            old => Some((slot, old.map(|old| old.reply(slot)))),
        }
    }

    /// Stores a READ or atomic in the slot of `next_slot`.
    pub(super) fn store(&mut self, resource: Resource) {
        self.slots[self.next] = Some(resource);
        self.next = (self.next + 1) % self.slots.len();
    }

    /// Returns the newest resource that covers `psn`. An older one may carry the same PSNs, from 2^24 packets ago.
    pub(super) fn find(&self, psn: Psn, operation: Operation) -> Option<u8> {
        let holds = |r: &Resource| r.operation == operation && r.covers(psn);
        let count = self.slots.len();
        let newest_first = (1..=count).map(|back| (self.next + count - back) % count);
        let mut held = newest_first.filter(|slot| self.slots[*slot].as_ref().is_some_and(holds));
        held.next().map(|slot| slot as u8)
    }

    /// Returns the newest resource.
    #[cfg(feature = "planted-bugs")]
    pub(super) fn newest(&self) -> Option<&Resource> {
        let end = if self.next == 0 { self.slots.len() } else { self.next };
        self.slots.get(end.checked_sub(1)?)?.as_ref()
    }

    /// True if a READ or an atomic covers `psn`: its response acknowledges that.
    pub(super) fn answers(&self, psn: Psn) -> bool {
        self.slots.iter().flatten().any(|it| it.covers(psn))
    }

    /// Returns the PSN of the ACK for the duplicate `psn` and everything executed after it, up to the next READ or
    /// atomic. An ACK must not carry the PSN of a READ or an atomic, which have responses of their own (IBTA 9.7.5.1.2;
    /// rdma_rxe of Linux 6.1 completes the READ with it). `last`: the PSN executed last.
    #[cold]
    pub(super) fn acknowledged_by(&self, psn: Psn, last: Psn) -> Psn {
        let ahead = |other: Psn| other.distance_from(psn);
        let ends = |it: &Resource| it.first_psn + (it.packets - 1);
        let mut may_be_forgotten = !self.slots.is_empty();
        let mut first_answered: Option<i32> = None;
        for it in &self.slots {
            match it {
                Some(it) if ahead(ends(it)) < 0 => may_be_forgotten = false,
                Some(it) if ahead(it.first_psn) > ahead(last) => {}
                Some(it) => {
                    let here = ahead(it.first_psn);
                    first_answered = Some(first_answered.map_or(here, |first| first.min(here)));
                }
                None => may_be_forgotten = false,
            }
        }
        //= IBTA 9.7.5.1: duplicate-ack-covers-what-is-done
        match first_answered {
            // All resources are newer than the duplicate, and others may have been overwritten since. The duplicate is
            // an old packet: acknowledge it alone.
            _ if may_be_forgotten => psn,
            Some(first) => Psn::new(psn.value().wrapping_add_signed(first - 1)),
            None => last,
        }
    }

    /// Returns the first PSN that a reply answers.
    pub(super) fn psn_of(&self, reply: &Reply) -> Option<Psn> {
        match *reply {
            Reply::Ack { psn, .. }
            | Reply::Nak { psn, .. }
            | Reply::RnrNak { psn, .. }
            | Reply::Sack { psn, .. }
            | Reply::ReadPart(psn) => Some(psn),
            Reply::Read(slot) | Reply::Atomic(slot) => self.get(slot).map(|it| it.first_psn),
        }
    }

    pub(super) fn assert_invariants(&self) {
        let count = self.slots.len();
        invariant!(self.next < count.max(1), "the next resource is {} of {count}", self.next);
    }
}
