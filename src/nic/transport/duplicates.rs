//! Duplicate requests: the peer retransmits a request that this responder has executed (IBTA 9.7.5.1.2).
//!
//! Only a READ is executed again. Replies are queued in PSN order, before pending replies to later requests if need be.

use super::planted::PlantedBug;
use super::replies::Reply;
use super::responder::{Resource, Responder, psn_of, reply_for};
use super::rules::packets_for;
use super::{AtomicOp, Ctx, DmaIn, Qp, Verdict};
use crate::verbs::Access;
use roxie_wire::{Operation, Packet, Psn};

impl Qp {
    /// Stores the original value of an atomic that the DMA stage has executed for the peer.
    pub fn atomic_done(&mut self, resource: u8, before: u64) {
        self.responder.atomic_done(resource, before);
    }

    /// Acknowledges a SEND or WRITE again, executes a READ again, and answers an atomic with its stored result (IBTA
    /// 9.7.5.1.2).
    pub(super) fn handle_duplicate(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Verdict {
        ctx.counters.duplicate_request += 1;
        let queued = match packet.info().operation {
            Operation::Send | Operation::Write => {
                //= IBTA 9.7.5.1: duplicate-is-not-executed
                self.responder.acknowledge_again(packet.bth.psn);
                true
            }
            //= IBTA 9.7.5.1: duplicate-read-is-read-again
            Operation::ReadRequest => self.read_again(ctx, packet),
            Operation::CompareSwap | Operation::FetchAdd => self.atomic_again(ctx, packet),
            operation @ (Operation::AtomicWrite | Operation::Flush) => {
                self.responder.empty_again(packet, operation)
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
    fn read_again(&mut self, ctx: &Ctx<'_>, packet: &Packet) -> bool {
        let Some(reth) = packet.reth() else { return false };
        let psn = packet.bth.psn;
        let Some(slot) = self.responder.find_resource(psn, Operation::ReadRequest) else { return false };
        let mtu = self.attributes().path_mtu.bytes();
        let packets = packets_for(reth.dma_len.into(), mtu);
        let Some(resource) = self.responder.resources[usize::from(slot)].as_ref() else { return false };
        let first = psn.distance_from(resource.first_psn) as u32;
        let skipped = u64::from(first) * mtu as u64;
        let (original, pd) = (resource.reth, resource.pd);
        let selective = self.attributes().selective_repeat;
        let is_there = reth.rkey == original.rkey && reth.va == original.va.wrapping_add(skipped);
        let left = u64::from(original.dma_len).checked_sub(skipped);
        let Some(left) = left.filter(|_| is_there) else { return false };
        let length = u64::from(reth.dma_len);
        if selective && packets == 1 && length == left.min(mtu as u64) {
            return self.responder.answer_part(slot, psn);
        }
        //= IBTA 9.7.5.1: duplicate-read-may-be-a-part
        if length != left || first + packets != resource.packets {
            return false;
        }
        // The region was deregistered since. Drop silently: an old packet must not end the connection.
        //= IBTA 9.7.5.1: duplicate-read-is-checked-again
        if length > 0 && self.check_remote_in(pd, ctx, &reth, Access::REMOTE_READ).is_err() {
            return false;
        }
        let r = &mut self.responder;
        let Some(resource) = r.resources[usize::from(slot)].as_mut() else { return false };
        // With selective repeat, what is before `first` may have been asked for as well.
        let goes_on = resource.queued && selective && first > resource.next;
        if !(goes_on || resource.queued && PlantedBug::AnswerGoesOn.is()) {
            resource.next = first;
        }
        if PlantedBug::RestOfReadStartsOver.is() {
            resource.reth.va = original.va.wrapping_sub(skipped);
        }
        r.answer_again(slot)
    }

    fn atomic_again(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> bool {
        let kind = Operation::AtomicAcknowledge;
        let Some(slot) = self.responder.find_resource(packet.bth.psn, kind) else { return false };
        if PlantedBug::AtomicExecutedAgain.is()
            && let Some(eth) = packet.atomic_eth()
            && let Ok(at) = self.check_remote(ctx, eth.va, eth.rkey, 8, Access::REMOTE_ATOMIC)
        {
            let operation = AtomicOp::FetchAdd { add: eth.swap_or_add };
            ctx.out.push_dma(DmaIn::Atomic { qp: self.index, resource: slot, at, operation });
        }
        //= IBTA 9.7.5.1: duplicate-atomic-is-answered-from-memory
        self.responder.answer_again(slot)
    }
}

impl Responder {
    /// Acknowledges the duplicate `psn` and everything executed after it, up to the next READ or atomic. An ACK must
    /// not carry the PSN of a READ or an atomic, which have responses of their own (IBTA 9.7.5.1.2; rdma_rxe of Linux
    /// 6.1 completes the READ with it).
    #[cold]
    fn acknowledge_again(&mut self, psn: Psn) {
        let last = self.last_executed();
        let ahead = |other: Psn| other.distance_from(psn);
        let ends = |it: &Resource| it.first_psn + (it.packets - 1);
        let mut may_be_forgotten = !self.resources.is_empty();
        let mut first_answered: Option<i32> = None;
        for it in &self.resources {
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
        let psn = match first_answered {
            // All resources are newer than the duplicate, and others may have been overwritten since. The duplicate is
            // an old packet: acknowledge it alone.
            _ if may_be_forgotten => psn,
            Some(first) => Psn::new(psn.value().wrapping_add_signed(first - 1)),
            None => last,
        };
        let psn = if PlantedBug::AcknowledgesRead.is() { last } else { psn };
        let nothing_new = self.answers_duplicates || !self.replies.ends_with_ack();
        if self.queue_in_order(Reply::Ack { psn, msn: self.msn }, psn) {
            self.answers_duplicates = nothing_new;
        }
    }

    /// Queues the reply to a duplicate before the replies to later requests. The peer expects replies in PSN order
    /// (IBTA 9.5) and takes one out of order for a loss. Returns false if the queue is full.
    #[cold]
    fn queue_in_order(&mut self, reply: Reply, psn: Psn) -> bool {
        if PlantedBug::AnswersInOrderOfRequests.is() {
            return self.replies.push(reply);
        }
        let resources = &self.resources;
        let is_behind = |other: &Reply| psn_of(other, resources).is_some_and(|theirs| psn.is_before(theirs));
        //= IBTA 9.7.5.1 C9-110: duplicates-are-answered-in-psn-order
        self.replies.insert_before(reply, is_behind)
    }

    /// True if a READ or an atomic covers `psn`, whose response acknowledges it.
    pub(super) fn answers_itself(&self, psn: Psn) -> bool {
        let covers = |it: &Resource| (0..it.packets as i32).contains(&psn.distance_from(it.first_psn));
        self.resources.iter().flatten().any(covers)
    }

    /// Returns the newest resource that covers `psn`. An older one may carry the same PSNs, from 2^24 packets ago.
    pub(super) fn find_resource(&self, psn: Psn, operation: Operation) -> Option<u8> {
        let holds = |r: &Resource| {
            r.operation == operation && (0..r.packets as i32).contains(&psn.distance_from(r.first_psn))
        };
        let count = self.resources.len();
        let newest_first = (1..=count).map(|back| (self.next_resource + count - back) % count);
        let mut held = newest_first.filter(|slot| self.resources[*slot].as_ref().is_some_and(holds));
        held.next().map(|slot| slot as u8)
    }

    /// Returns the PSN before the expected one.
    #[inline(always)]
    pub(super) fn last_executed(&self) -> Psn {
        match self.expected.value() {
            0 if PlantedBug::AckPsnStopsAtZero.is() => self.expected,
            expected => Psn::new(expected.wrapping_sub(1)),
        }
    }

    /// Returns the newest resource.
    pub(super) fn newest_resource(&self) -> Option<&Resource> {
        let end = if self.next_resource == 0 { self.resources.len() } else { self.next_resource };
        self.resources.get(end.checked_sub(1)?)?.as_ref()
    }

    /// Queues one packet of a READ response once more, alone. Returns false if there is no room for it: the peer asks again.
    fn answer_part(&mut self, slot: u8, psn: Psn) -> bool {
        if let Some(resource) = self.resources[usize::from(slot)].as_mut() {
            resource.again = true;
        }
        let reply = Reply::ReadPart(psn);
        self.replies.iter().any(|queued| *queued == reply) || self.queue_in_order(reply, psn)
    }

    /// Queues the response of a resource once more. Returns false if the queue is full: the peer's timer asks again.
    pub(super) fn answer_again(&mut self, slot: u8) -> bool {
        let Some(resource) = self.resources[usize::from(slot)].as_mut() else { return false };
        resource.again = true;
        if resource.queued {
            return true;
        }
        let (reply, psn) = (reply_for(resource.operation, slot), resource.first_psn);
        let queued = self.queue_in_order(reply, psn);
        if let Some(resource) = self.resources[usize::from(slot)].as_mut() {
            resource.queued = queued;
        }
        queued
    }
}
