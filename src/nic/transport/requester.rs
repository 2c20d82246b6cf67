//! The requester: sends work requests as request packets (IBTA 9.7.2, 9.7.5).
//!
//! ```text
//!   send queue   tail ........ next ............ head
//!                 | sent, not   | next to be      |
//!                 | complete    | sent            |
//!   PSNs         una ....... position ... sent_end
//! ```
//!
//! The position (`next`, `next_packet`) is the next packet to send. A rewind only moves it back, because every packet is
//! built from its work request: to `una`, or with selective repeat to the oldest lost packet. `sent_end` never moves back:
//! PSNs from there on were never sent, so that no valid response acknowledges them.

use super::asking;
use super::check::check_flush;
use super::examination;
use super::planted::PlantedBug;
use super::rules::{Segment, packets_for, packets_of};
use super::scatter;
use super::scoreboard::Scoreboard;
use super::send_queue::{Operands, SendQueue, Wqe};
use super::{Cause, Ctx, Origin, Qp, Reply, TxPlan, TxReason};
use crate::verbs::{Access, QpState, SendFlags, WcStatus, WrOpcode};
use roxie_base::limits::{Limits, MAX_MESSAGE};
use roxie_base::time::Nanos;
use roxie_wire::{AtomicEth, Bth, Ext, Feth, Opcode, Psn, Reth};

/// Largest distance at which the order of two PSNs is known.
pub(super) const HALF_CIRCLE: u32 = 1 << 23;

/// State of the send queue: whether its work requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// Work requests are sent, as far as windows and limits allow.
    Open,
    /// The peer has no receive. Nothing is sent until then (RNR NAK).
    RnrWait(Nanos),
    /// The work request at `next` cannot be sent. It fails with this status once it is the oldest.
    Failed(WcStatus),
    /// Work requests before this position were queued when the error state was left. They are flushed before another is sent.
    Flushing(u32),
}

/// State of the requester.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) queue: SendQueue,
    /// Send queue position of the next work request to send.
    pub(super) next: u32,
    /// Index of its next packet.
    pub(super) next_packet: u32,
    /// First PSN of the next work request to start.
    pub(super) psn: Psn,
    /// The oldest unacknowledged PSN.
    pub(super) una: Psn,
    /// The PSN after the last one ever sent.
    pub(super) sent_end: Psn,
    /// Number of READs and atomics between tail and next: sent, and their response is outstanding.
    pub(super) reads_outstanding: u32,
    /// Unsignaled messages do not ask for an acknowledgement at their end.
    pub(super) asks_late: bool,
    /// Number of packets since the last one that asked for an acknowledgement.
    pub(super) since_ack_request: u32,
    /// The PSN after the last packet that asked for an acknowledgement.
    pub(super) asked: Psn,
    /// A probe may be sent once `una` is behind this PSN: that behind the last READ or atomic, or the first one of the connection.
    pub(super) probe_after: Psn,
    /// A probe is to ask for an acknowledgement, unless another packet does before.
    pub(super) probe_due: bool,
    /// The peer is to show that it still has the connection.
    pub(super) asks_peer: bool,
    /// Selective repeat, if agreed with the peer.
    pub(super) scoreboard: Option<Box<Scoreboard>>,
    /// Time to wait for an acknowledgement: the local ACK timeout, or less with selective repeat.
    pub(super) ack_timeout: Option<Nanos>,
    /// Time of the next retransmission by timeout.
    pub(super) retransmit_at: Nanos,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// Cause of the retransmission of packets before `sent_end`.
    pub(super) going_back: Option<Cause>,
    /// An implied NAK was handled. Further overtaking responses are ignored until something new is acknowledged.
    pub(super) implied_nak: bool,
    /// Whether work requests are sent.
    pub(super) sending: Sending,
    /// Number of the last message for which the peer has a receive (AETH's MSN plus credits), if credits are in use.
    pub(super) credit_limit: Option<u32>,
    /// Number of completed messages, modulo 2^24, as in the peer's MSN.
    pub(super) messages_done: u32,
}

impl Requester {
    pub(super) fn new(queue: SendQueue) -> Requester {
        Requester {
            queue,
            next: 0,
            next_packet: 0,
            psn: Psn::new(0),
            una: Psn::new(0),
            sent_end: Psn::new(0),
            reads_outstanding: 0,
            asks_late: false,
            since_ack_request: 0,
            asked: Psn::new(0),
            probe_after: Psn::new(0),
            probe_due: false,
            asks_peer: false,
            scoreboard: None,
            ack_timeout: None,
            retransmit_at: Nanos::MAX,
            retries_left: 0,
            rnr_retries_left: 0,
            going_back: None,
            implied_nak: false,
            sending: Sending::Open,
            credit_limit: None,
            messages_done: 0,
        }
    }

    /// Starts at `psn` with nothing outstanding.
    pub(super) fn start(&mut self, psn: Psn) {
        self.psn = psn;
        self.una = psn;
        self.sent_end = psn;
        self.asked = psn;
        self.probe_after = psn;
    }

    /// Removes all work requests and resets the state.
    pub(super) fn reset(&mut self) {
        let mut queue = std::mem::take(&mut self.queue);
        queue.reset();
        *self = Requester::new(queue);
    }

    /// Gives up sending: no queued work request is sent, and nothing that was sent is waited for.
    pub(super) fn abandon(&mut self) {
        self.una = self.sent_end;
        self.retransmit_at = Nanos::MAX;
        self.next = self.queue.head();
        self.next_packet = 0;
        self.sending = Sending::Open;
        (self.asks_late, self.probe_due, self.asks_peer) = (false, false, false);
    }

    /// Ends an RNR wait.
    pub(super) fn end_rnr_wait(&mut self) {
        if matches!(self.sending, Sending::RnrWait(_)) {
            self.sending = Sending::Open;
        }
    }

    /// Forgets that the work request at `next` cannot be sent, because the position moves. If it still cannot, this is noticed again.
    pub(super) fn forget_failure(&mut self) {
        if matches!(self.sending, Sending::Failed(_)) {
            self.sending = Sending::Open;
        }
    }

    /// Returns the PSN of the next packet, a first transmission or not.
    pub(super) fn position(&self) -> Psn {
        if self.next == self.queue.head() {
            return self.psn;
        }
        let wqe = self.queue.at(self.next);
        //= IBTA 9.7.1: retransmission-keeps-the-psn
        if wqe.started { wqe.first_psn + self.next_packet } else { self.psn }
    }

    /// Moves the position to `psn`, which must be `una` or a PSN that was sent before.
    pub(super) fn rewind_to(&mut self, psn: Psn) {
        let mut at = self.queue.tail();
        let mut reads = 0;
        while at != self.queue.head() {
            let wqe = self.queue.at(at);
            if !wqe.started || psn.is_before(wqe.end_psn()) {
                break;
            }
            reads += u32::from(wqe.wr.opcode.takes_resource());
            at = at.wrapping_add(1);
        }
        self.next = at;
        self.next_packet = match self.queue.at(at) {
            wqe if at != self.queue.head() && wqe.started => psn.distance_from(wqe.first_psn).max(0) as u32,
            _ => 0,
        };
        self.reads_outstanding = reads;
        self.since_ack_request = 0;
    }

    /// Returns the number of packets in flight. Computed modulo 2^24: a READ of 2^31 bytes can move the position 2^23
    /// PSNs ahead, too far for a signed distance. The position is never behind `una`.
    pub(super) fn in_flight(&self) -> u32 {
        (self.position() - self.una.value()).value()
    }
}

impl Qp {
    /// Plans the next request packet, or if there is none the probe or the question that is due.
    pub(super) fn next_request(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        self.next_of_queue(ctx).or_else(|| {
            let probe = self.requester.due_probe();
            let psn = probe.or_else(|| self.requester.question())?;
            let bth = Bth { psn, ..self.bth() };
            Some(if probe.is_some() { asking::probe(bth) } else { examination::question(bth) })
        })
    }

    /// Plans the next packet of the send queue. A work request that cannot be sent is marked, and fails once it is the oldest.
    fn next_of_queue(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        if !self.may_send_requests() {
            return None;
        }
        if self.requester.queue.at(self.requester.next).wr.opcode.is_local() && !self.pass_local_work(ctx) {
            return None;
        }
        //= IBTA 9.5: requests-leave-in-order
        let position = self.requester.next;
        let status = match self.check_start(ctx) {
            Ok(()) if self.must_wait(ctx.limits.window) => return None,
            Ok(()) => match self.plan_request(ctx, position) {
                Some(plan) => return Some(plan),
                None => WcStatus::LocProt,
            },
            Err(status) => status,
        };
        self.cannot_send(ctx, status);
        None
    }

    /// True if something other than an ACK is ready to be sent: a request, a response or a NAK.
    pub fn is_pressing(&self, limits: &Limits) -> bool {
        let acknowledges = matches!(self.responder.front(), None | Some(Reply::Ack { .. }));
        !acknowledges || (!self.pacing.holds() && self.has_request(limits))
    }

    /// True if a request, a probe or a question is ready to be sent.
    pub(super) fn has_request(&self, limits: &Limits) -> bool {
        self.requester.probe_due
            || self.requester.asks_peer
            || (self.may_send_requests() && !self.must_wait(limits.window))
    }

    /// True if a work request is waiting and neither failed nor blocked by the QP's state or an RNR wait.
    pub(super) fn may_send_requests(&self) -> bool {
        let r = &self.requester;
        r.next != r.queue.head()
            && r.sending == Sending::Open
            && match self.state() {
                QpState::Rts => true,
                // In SQD, started work requests are finished, and no new one is started.
                //= IBTA 10.3.1.5: sqd-finishes-what-has-begun
                QpState::Sqd => r.queue.at(r.next).started,
                _ => false,
            }
    }

    /// Validates a work request before its first packet.
    fn check_start(&self, ctx: &Ctx<'_>) -> Result<(), WcStatus> {
        let r = &self.requester;
        let wqe = r.queue.at(r.next);
        if wqe.started {
            return Ok(());
        }
        let inline = wqe.wr.flags.contains(SendFlags::INLINE);
        if !wqe.valid || (inline && !wqe.wr.opcode.may_be_inline()) {
            return Err(WcStatus::LocQpOp);
        }
        //= IBTA 9.7.7: message-is-2-to-the-31-bytes-at-most
        if wqe.length() > u64::from(MAX_MESSAGE) {
            return Err(WcStatus::LocLen);
        }
        if !wqe.wr.opcode.takes_resource() {
            return Ok(());
        }
        //= IBTA 9.7.3: no-read-where-none-is-agreed
        if self.attributes().max_rd_atomic == 0 {
            return Err(WcStatus::LocQpOp);
        }
        match wqe.wr.opcode {
            WrOpcode::AtomicWrite if wqe.length() != 8 => return Err(WcStatus::LocLen),
            WrOpcode::AtomicWrite => return Ok(()),
            WrOpcode::Flush => return check_flush(wqe, r.queue.operands(r.next).compare_add),
            opcode if opcode.is_atomic() && wqe.length() < 8 => return Err(WcStatus::LocLen),
            _ => {}
        }
        //= IBTA 10.6.3.1: local-writing-needs-a-right
        // Check the destination before the request is sent: the peer would execute it although its result cannot be
        // stored.
        scatter::check(ctx.memory, self.pd, r.queue.sges(r.next), Access::LOCAL_WRITE)
            .map_err(|_| WcStatus::LocProt)
    }

    /// True if the packet at the position must wait for responses. `window` is the maximum number of packets in flight.
    pub(super) fn must_wait(&self, window: u32) -> bool {
        let r = &self.requester;
        let wqe = r.queue.at(r.next);
        if wqe.wr.opcode.is_local() {
            return !wqe.started && r.local_work_waits() && !r.may_ask();
        }
        let starts = !wqe.started;
        //= IBTA 10.8.3.3: fence-waits-for-reads
        let fenced = starts && wqe.wr.flags.contains(SendFlags::FENCE) && r.reads_outstanding > 0;
        // A retransmission was within the limit before. A limit of 0 is no reason to wait: `check_start` fails the work
        // request.
        //= IBTA 9.7.3: reads-and-atomics-are-bounded
        let reads_full = starts
            && wqe.wr.opcode.takes_resource()
            && r.reads_outstanding >= u32::from(self.attributes().max_rd_atomic.max(1));
        let in_flight = r.in_flight();
        // With selective repeat, single packets far behind `una` are sent again: what is outstanding stays the same.
        let is_repeat = || r.scoreboard.is_some() && r.position().is_before(r.sent_end);
        let window_full = in_flight >= window && !is_repeat();
        // PSNs are ordered within half of their circle, which a READ of 2^31 bytes fills alone at an MTU of 256 bytes.
        //= IBTA 9.7.1: psns-in-flight-are-told-apart
        let too_far = starts
            && in_flight > 0
            && in_flight + packets_of(wqe, self.attributes().path_mtu.bytes()) > HALF_CIRCLE;
        fenced || reads_full || window_full || too_far || (starts && self.requester.lacks_credit(wqe))
    }

    /// Plans the packet at the position. Returns `None` if its payload may not be read.
    fn plan_request(&self, ctx: &mut Ctx<'_>, position: u32) -> Option<TxPlan> {
        let r = &self.requester;
        let wqe = r.queue.at(position);
        let k = if wqe.started { r.next_packet } else { 0 };
        let psn = r.position();
        let mtu = self.attributes().path_mtu.bytes() as u64;
        let offset = u64::from(k) * mtu;
        let (opcode, ext, payload_len, last) = match wqe.wr.opcode {
            WrOpcode::Read => {
                //= IBTA 9.4.4: read-request-names-what-it-wants
                //= IBTA 9.7.6: read-is-asked-again-from-the-hole
                let reth = reth(wqe, offset, r.bytes_to_ask_for(wqe, k, mtu));
                (Opcode::RC_READ_REQUEST, Ext::Reth(reth), 0, true)
            }
            WrOpcode::CompareSwap | WrOpcode::FetchAdd => {
                let (opcode, eth) = atomic(wqe, &r.queue.operands(position));
                (opcode, Ext::Atomic(eth), 0, true)
            }
            WrOpcode::AtomicWrite => (Opcode::RC_ATOMIC_WRITE, Ext::Reth(reth(wqe, 0, 8)), 8, true),
            WrOpcode::Flush => {
                let ext =
                    Ext::FlushReth(Feth(wqe.wr.imm), reth(wqe, 0, r.queue.operands(position).compare_add));
                (Opcode::RC_FLUSH, ext, 0, true)
            }
            _ => {
                let part = Segment::of(wqe.length(), k, mtu);
                let (opcode, ext) = segment(wqe, &part);
                (opcode, ext, part.length, part.last)
            }
        };
        ctx.out.gather.clear();
        let inline = wqe.wr.flags.contains(SendFlags::INLINE).then_some((position, offset as u32));
        if inline.is_none() && payload_len > 0 {
            let sges = r.queue.sges(position);
            scatter::gather(ctx.memory, self.pd, sges, offset, payload_len, &mut ctx.out.gather).ok()?;
        }
        let again = psn.is_before(r.sent_end);
        let wanted = again || wqe.wr.opcode.takes_resource() || r.asks_at_its_end(self.sig_all, wqe.wr.flags);
        // The answer to a packet sent again tells what else is missing.
        let asks = r.asks(psn, last, wanted, r.in_flight(), ctx.limits)
            || (again && r.scoreboard.is_some())
            || (self.pacing.is_on() && self.asks_each_time(ctx, mtu));
        let bth = Bth {
            opcode,
            //= IBTA 9.2: solicited-is-in-the-last-packet
            solicited: last
                && wqe.wr.flags.contains(SendFlags::SOLICITED)
                && !(again && PlantedBug::SolicitedOnlyOnce.is()),
            ack_req: asks && !(again && PlantedBug::NoAckRequestOnRetransmission.is()),
            psn,
            ..self.bth()
        };
        Some(TxPlan {
            bth,
            ext,
            payload_len,
            inline,
            ah: None,
            reason: self.reason(again),
            origin: Origin::Request,
        })
    }

    fn reason(&self, again: bool) -> TxReason {
        if !again {
            return TxReason::New;
        }
        let r = &self.requester;
        let (left, of) = match r.going_back {
            // Neither costs a retry.
            Some(Cause::Selective | Cause::Probe) => (0, 0),
            Some(Cause::Rnr) => (r.rnr_retries_left, self.attributes().rnr_retry),
            _ => (r.retries_left, self.attributes().retry_cnt),
        };
        let cause = r.going_back.unwrap_or(Cause::Timeout);
        TxReason::Again { cause, attempt: of.saturating_sub(left), of }
    }

    /// Advances the state past the packet that `next_request` planned, which is sent.
    pub(super) fn request_sent(&mut self, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        if plan.origin == Origin::Probe {
            return self.requester.probe_left(ctx);
        }
        self.packet_left(ctx.now, &plan.bth);
        if matches!(plan.reason, TxReason::Again { .. }) {
            ctx.counters.retransmitted_packets += 1;
            let count = match plan.ext {
                Ext::Reth(reth) if plan.bth.opcode == Opcode::RC_READ_REQUEST => {
                    packets_for(reth.dma_len.into(), self.attributes().path_mtu.bytes())
                }
                _ => 1,
            };
            self.requester.note_sent_again(ctx.now, plan.bth.psn, count);
        }
    }

    /// Advances the requester past the packet at its position, which is sent: PSNs, position, timer.
    #[inline(always)]
    pub(super) fn packet_left(&mut self, now: Nanos, bth: &Bth) {
        let mtu = self.attributes().path_mtu.bytes();
        let r = &mut self.requester;
        let ends_quiet = bth.ack_req && r.is_quiet();
        let wqe = r.queue.at_mut(r.next);
        let takes_resource = !wqe.plain && wqe.wr.opcode.takes_resource();
        if !wqe.started {
            wqe.started = true;
            //= IBTA 9.7.3: psn-counts-packets
            wqe.first_psn = r.psn;
            wqe.packets = packets_of(wqe, mtu);
            r.psn = wqe.end_psn();
        }
        wqe.asked_from = r.next_packet;
        // A request for a READ or an atomic asks for all that is left.
        let end = if takes_resource { wqe.end_psn() } else { bth.psn.next() };
        if takes_resource {
            r.reads_outstanding += 1;
            r.probe_after = if r.probe_after.is_before(end) { end } else { r.probe_after };
        }
        r.next_packet += 1;
        if takes_resource || r.next_packet == wqe.packets {
            r.next = r.next.wrapping_add(1);
            r.next_packet = 0;
        }
        if r.sent_end.is_before(end) {
            r.sent_end = end;
        }
        r.since_ack_request = if bth.ack_req { 0 } else { r.since_ack_request + 1 };
        if bth.ack_req && r.asked.is_before(end) {
            r.asked = end;
        }
        if (r.retransmit_at == Nanos::MAX || ends_quiet)
            && !(r.going_back == Some(Cause::SequenceNak) && PlantedBug::NoTimerAfterNak.is())
        {
            r.start_timer(now);
        }
    }
}

fn reth(wqe: &Wqe, offset: u64, length: u64) -> Reth {
    // A wrapping address is left to the peer, which refuses it as out of bounds.
    Reth { va: wqe.wr.remote_addr.wrapping_add(offset), rkey: wqe.wr.rkey.0, dma_len: length as u32 }
}

fn atomic(wqe: &Wqe, operands: &Operands) -> (Opcode, AtomicEth) {
    let (va, rkey) = (wqe.wr.remote_addr, wqe.wr.rkey.0);
    let eth = |swap_or_add, compare| AtomicEth { va, rkey, swap_or_add, compare };
    match wqe.wr.opcode {
        //= IBTA 9.4.5: atomic-request-has-its-operands
        WrOpcode::CompareSwap => (Opcode::RC_COMPARE_SWAP, eth(operands.swap, operands.compare_add)),
        _ => (Opcode::RC_FETCH_ADD, eth(operands.compare_add, 0)),
    }
}

/// Returns the opcode and the extension headers of a SEND or WRITE packet of RC. UC sets its service bits afterwards.
pub(super) fn segment(wqe: &Wqe, part: &Segment) -> (Opcode, Ext) {
    let imm = wqe.wr.imm;
    let whole = reth(wqe, 0, wqe.length());
    match (wqe.wr.opcode, part.first, part.last) {
        (WrOpcode::WriteImm, true, true) => (Opcode::RC_WRITE_ONLY_IMM, Ext::RethImm(whole, imm)),
        (WrOpcode::WriteImm, false, true) => (Opcode::RC_WRITE_LAST_IMM, Ext::Imm(imm)),
        //= IBTA 9.4.3: write-names-its-whole-length-first
        (WrOpcode::Write | WrOpcode::WriteImm, true, _) => (part.opcode(true), Ext::Reth(whole)),
        (WrOpcode::Write | WrOpcode::WriteImm, false, _) => (part.opcode(true), Ext::None),
        (WrOpcode::SendInvalidate, true, true) => (Opcode::RC_SEND_ONLY_INVALIDATE, Ext::Ieth(wqe.wr.rkey.0)),
        (WrOpcode::SendInvalidate, false, true) => {
            (Opcode::RC_SEND_LAST_INVALIDATE, Ext::Ieth(wqe.wr.rkey.0))
        }
        //= IBTA 9.4: immediate-is-in-the-last-packet
        (WrOpcode::SendImm, true, true) => (Opcode::RC_SEND_ONLY_IMM, Ext::Imm(imm)),
        (WrOpcode::SendImm, false, true) => (Opcode::RC_SEND_LAST_IMM, Ext::Imm(imm)),
        _ => (part.opcode(false), Ext::None),
    }
}
