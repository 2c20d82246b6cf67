//! Duplicate requests: the peer retransmits a request that this responder has executed (IBTA 9.7.5.1.2).
//!
//! Only a READ is executed again. Replies are queued in PSN order, before pending replies to later requests if need be.

use super::{Received, Reply, Responder};
use crate::transport::rules::packets_for;
use crate::transport::{Ctx, KeyUser, QpContext, Verdict, door};
use crate::verbs::Access;
use roxie_wire::{Operation, Psn, Reth};

impl Responder {
    /// Acknowledges a SEND or WRITE again, executes a READ again, and answers an atomic with its stored result (IBTA
    /// 9.7.5.1.2).
    pub(super) fn on_duplicate(&mut self, ctx: &mut Ctx<'_>, request: Received<'_>) -> Verdict {
        let Received { qp, packet, .. } = request;
        ctx.counters.duplicate_request += 1;
        let psn = packet.bth.psn;
        let queued = match packet.info().operation {
            Operation::Send | Operation::Write => {
                //= IBTA 9.7.5.1: duplicate-is-not-executed
                self.acknowledge_again(psn);
                true
            }
            //= IBTA 9.7.5.1: duplicate-read-is-read-again
            Operation::ReadRequest => packet.reth().is_some_and(|reth| self.read_again(qp, ctx, psn, &reth)),
            Operation::CompareSwap | Operation::FetchAdd => self.atomic_again(psn),
            operation @ (Operation::AtomicWrite | Operation::Flush) => {
                self.resources.find(psn, operation).is_some_and(|slot| self.answer_again(slot))
            }
            _ => false,
        };
        if queued {
            return Verdict::Duplicate;
        }
        //= IBTA 9.7.5.1: forgotten-atomic-is-dropped
        ctx.counters.duplicate_dropped += 1;
        Verdict::DuplicateForgotten
    }

    /// Queues the response to a duplicate READ. The peer may ask for the whole READ or its remainder. Key and bounds
    /// are checked as for a new request.
    fn read_again(&mut self, qp: &QpContext, ctx: &Ctx<'_>, psn: Psn, reth: &Reth) -> bool {
        let Some(slot) = self.resources.find(psn, Operation::ReadRequest) else { return false };
        let Some(resource) = self.resources.get_mut(slot) else { return false };
        let mtu = qp.mtu();
        let packets = packets_for(reth.dma_len.into(), mtu);
        let first = psn.distance_from(resource.first_psn) as u32;
        let skipped = u64::from(first) * mtu as u64;
        let original = resource.reth;
        let selective = qp.attributes().selective_repeat;
        let is_there = reth.rkey == original.rkey && reth.va == original.va.wrapping_add(skipped);
        let remaining = u64::from(original.dma_len).checked_sub(skipped);
        let Some(remaining) = remaining.filter(|_| is_there) else { return false };
        let length = u64::from(reth.dma_len);
        if selective && packets == 1 && length == remaining.min(mtu as u64) {
            if resource.queued && first >= resource.next {
                // The packet was not sent yet. A second one would delay what is behind, by its time at a limited rate.
                return true;
            }
            resource.again = true;
            return self.answer_part(psn);
        }
        //= IBTA 9.7.5.1: duplicate-read-may-be-a-part
        if length != remaining || first + packets != resource.packets {
            return false;
        }
        let user = KeyUser { pd: resource.pd, qp: qp.index };
        let is_readable =
            || ctx.memory.check_remote(user, reth.rkey, reth.va, length, Access::REMOTE_READ).is_ok();
        // The region was deregistered since. Drop silently: an old packet must not end the connection.
        //= IBTA 9.7.5.1: duplicate-read-is-checked-again
        if length > 0 && !is_readable() {
            return false;
        }
        // With selective repeat, what is before `first` may have been asked for as well.
        let continues = resource.queued && selective && first > resource.next;
        let next = if continues { resource.next } else { first };
        let queued = resource.queued.then_some(resource.next);
        (resource.next, resource.reth.va) = door::read_again(next, original.va, queued, skipped);
        self.answer_again(slot)
    }

    fn atomic_again(&mut self, psn: Psn) -> bool {
        //= IBTA 9.7.5.1: duplicate-atomic-is-answered-from-memory
        let slot = self.resources.find(psn, Operation::AtomicAcknowledge);
        slot.is_some_and(|slot| self.answer_again(slot))
    }

    /// Acknowledges the duplicate `psn` and everything executed after it, up to the next READ or atomic.
    #[cold]
    fn acknowledge_again(&mut self, psn: Psn) {
        let psn = self.resources.acknowledged_by(psn, self.last_executed());
        let nothing_new = self.answers_duplicates || !self.replies.ends_with_ack();
        if self.queue_in_order(Reply::Ack { psn, msn: self.msn }, psn) {
            self.answers_duplicates = nothing_new;
        }
    }

    /// Queues the reply to a duplicate before the replies to later requests. The peer expects replies in PSN order
    /// (IBTA 9.5) and takes one out of order for a loss. Returns false if the queue is full.
    #[cold]
    fn queue_in_order(&mut self, reply: Reply, psn: Psn) -> bool {
        let resources = &self.resources;
        let is_behind = |other: &Reply| resources.psn_of(other).is_some_and(|theirs| psn.is_before(theirs));
        //= IBTA 9.7.5.1 C9-110: duplicates-are-answered-in-psn-order
        self.replies.insert_before(reply, is_behind)
    }

    /// Queues one packet of a READ response once more, alone. Returns false if there is no room for it: the peer asks
    /// again.
    fn answer_part(&mut self, psn: Psn) -> bool {
        let reply = Reply::ReadPart(psn);
        self.replies.iter().any(|queued| *queued == reply) || self.queue_in_order(reply, psn)
    }

    /// Queues the response of a resource once more. Returns false if the queue is full: the peer's timer asks again.
    fn answer_again(&mut self, slot: u8) -> bool {
        let Some(resource) = self.resources.get_mut(slot) else { return false };
        resource.again = true;
        if resource.queued {
            return true;
        }
        let (reply, psn) = (resource.reply(slot), resource.first_psn);
        let queued = self.queue_in_order(reply, psn);
        if let Some(resource) = self.resources.get_mut(slot) {
            resource.queued = queued;
        }
        queued
    }
}
