//! The next packet of the send queue (IBTA 9.7.2, 9.7.3).

use super::Requester;
use super::window::HALF_CIRCLE;
use crate::transport::rules::{Segment, packets_for, packets_of};
use crate::transport::scatter;
use crate::transport::send_queue::{Operands, Wqe};
use crate::transport::{Cause, Ctx, Origin, QpContext, TxPlan, TxReason};
use crate::verbs::{Access, SendFlags, WcStatus, WrOpcode};
use roxie_base::limits::{Limits, MAX_MESSAGE};
use roxie_base::time::Nanos;
use roxie_wire::{AtomicEth, Bth, Ext, Feth, Opcode, Reth};

impl Requester {
    /// Plans the next request packet, or if there is none the probe or the question that is due.
    pub(crate) fn next_request(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        let waits = self.sending.waits();
        self.next_of_queue(qp, ctx)
            .or_else(|| self.ack_requests.due_probe(qp, &self.window, waits))
            .or_else(|| self.ack_requests.plan_peer_probe(qp, self.window.una()))
    }

    /// Plans the next packet of the send queue. A work request that cannot be sent is marked, and fails once it is the
    /// oldest.
    fn next_of_queue(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        if !self.may_send_requests(qp) {
            return None;
        }
        if self.window.next_wqe().wr.opcode.is_local() && !self.pass_local_work(qp, ctx) {
            return None;
        }
        //= IBTA 9.5: requests-leave-in-order
        let position = self.window.next();
        let status = match self.check_start(qp, ctx) {
            Ok(()) if self.must_wait(qp, ctx.limits.window) => return None,
            Ok(()) => match self.plan_request(qp, ctx, position) {
                Some(plan) => return Some(plan),
                None => WcStatus::LocProt,
            },
            Err(status) => status,
        };
        self.cannot_send(qp, ctx, status);
        None
    }

    /// True if a request, a probe or a question is ready to be sent.
    pub(crate) fn has_request(&self, qp: &QpContext, limits: &Limits) -> bool {
        self.ack_requests.is_probe_due()
            || self.ack_requests.peer_probe_due()
            || (self.may_send_requests(qp) && !self.must_wait(qp, limits.window))
    }

    /// Validates a work request before its first packet.
    fn check_start(&self, qp: &QpContext, ctx: &Ctx<'_>) -> Result<(), WcStatus> {
        let wqe = self.window.next_wqe();
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
        if qp.attributes().max_rd_atomic == 0 {
            return Err(WcStatus::LocQpOp);
        }
        match wqe.wr.opcode {
            WrOpcode::AtomicWrite if wqe.length() != 8 => return Err(WcStatus::LocLen),
            WrOpcode::AtomicWrite => return Ok(()),
            WrOpcode::Flush => {
                return check_flush(wqe, self.window.queue().operands(self.window.next()).compare_add);
            }
            opcode if opcode.is_atomic() && wqe.length() < 8 => return Err(WcStatus::LocLen),
            _ => {}
        }
        //= IBTA 10.6.3.1: local-writing-needs-a-right
        // Check the destination before the request is sent: the peer would execute it although its result cannot be
        // stored.
        scatter::check(ctx.memory, qp.pd, self.window.queue().sges(self.window.next()), Access::LOCAL_WRITE)
            .map_err(|_| WcStatus::LocProt)
    }

    /// True if the packet at the position must wait for responses. `window` is the maximum number of packets in flight.
    fn must_wait(&self, qp: &QpContext, window: u32) -> bool {
        let wqe = self.window.next_wqe();
        if wqe.wr.opcode.is_local() {
            return !wqe.started
                && self.local_work_waits()
                && !self.ack_requests.may_request(&self.window, self.sending.waits());
        }
        let starts = !wqe.started;
        //= IBTA 10.8.3.3: fence-waits-for-reads
        let fenced = starts && wqe.wr.flags.contains(SendFlags::FENCE) && self.window.reads_outstanding() > 0;
        // A retransmission was within the limit before. A limit of 0 is no reason to wait: `check_start` fails the work
        // request.
        //= IBTA 9.7.3: reads-and-atomics-are-bounded
        let reads_full = starts
            && wqe.wr.opcode.takes_resource()
            && self.window.reads_outstanding() >= u32::from(qp.attributes().max_rd_atomic.max(1));
        let in_flight = self.window.in_flight();
        // With selective repeat, single packets far behind `una` are sent again: what is outstanding stays the same.
        let is_repeat = || self.scoreboard.is_some() && self.window.repeats();
        let window_full = in_flight >= window && !is_repeat();
        // PSNs are ordered within half of their circle, which a READ of 2^31 bytes fills alone at an MTU of 256 bytes.
        //= IBTA 9.7.1: psns-in-flight-are-told-apart
        let exceeds_half_circle =
            starts && in_flight > 0 && in_flight + packets_of(wqe, qp.mtu()) > HALF_CIRCLE;
        fenced
            || reads_full
            || window_full
            || exceeds_half_circle
            || (starts && self.credits.hold(&self.window))
    }

    /// Plans the packet at the position. Returns `None` if its payload may not be read.
    fn plan_request(&self, qp: &QpContext, ctx: &mut Ctx<'_>, position: u32) -> Option<TxPlan> {
        let wqe = self.window.queue().at(position);
        let k = if wqe.started { self.window.next_packet() } else { 0 };
        let psn = self.window.position();
        let mtu = qp.mtu() as u64;
        let offset = u64::from(k) * mtu;
        let (opcode, ext, payload_len, last) = match wqe.wr.opcode {
            WrOpcode::Read => {
                //= IBTA 9.4.4: read-request-names-what-it-wants
                //= IBTA 9.7.6: read-is-asked-again-from-the-hole
                let reth = reth(wqe, offset, self.bytes_to_request(wqe, k, mtu));
                (Opcode::RC_READ_REQUEST, Ext::Reth(reth), 0, true)
            }
            WrOpcode::CompareSwap | WrOpcode::FetchAdd => {
                let (opcode, eth) = atomic(wqe, &self.window.queue().operands(position));
                (opcode, Ext::Atomic(eth), 0, true)
            }
            WrOpcode::AtomicWrite => (Opcode::RC_ATOMIC_WRITE, Ext::Reth(reth(wqe, 0, 8)), 8, true),
            WrOpcode::Flush => {
                let ext = Ext::FlushReth(
                    Feth(wqe.wr.imm),
                    reth(wqe, 0, self.window.queue().operands(position).compare_add),
                );
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
            let sges = self.window.queue().sges(position);
            scatter::gather(ctx.memory, qp.pd, sges, offset, payload_len, &mut ctx.out.gather).ok()?;
        }
        let again = psn.is_before(self.window.sent_end());
        let wanted =
            again || wqe.wr.opcode.takes_resource() || self.ack_requests.at_end_of(qp.sig_all, wqe.wr.flags);
        // The answer to a packet sent again tells what else is missing.
        let requests_ack =
            self.ack_requests.in_packet(psn, last, wanted, self.window.in_flight(), ctx.limits)
                || (again && self.scoreboard.is_some())
                || (self.pacing.is_on() && self.requests_each_ack(ctx, mtu))
                || (qp.packets().first_requests_ack && psn == self.ack_requests.first());
        let bth = Bth {
            opcode,
            //= IBTA 9.2: solicited-is-in-the-last-packet
            solicited: last && wqe.wr.flags.contains(SendFlags::SOLICITED),
            ack_req: requests_ack,
            psn,
            ..qp.request_bth()
        };
        Some(TxPlan {
            bth,
            ext,
            payload_len,
            inline,
            ah: None,
            reason: self.reason(qp, again),
            origin: Origin::Request,
        })
    }

    fn reason(&self, qp: &QpContext, again: bool) -> TxReason {
        if !again {
            return TxReason::New;
        }
        let (attempt, of) = self.retry.attempt(qp.attributes());
        TxReason::Again { cause: self.retry.cause().unwrap_or(Cause::Timeout), attempt, of }
    }

    /// True if every packet should ask for an acknowledgement: packets of `bytes` bytes of this QP are so far apart
    /// that the retransmission timer would not wait for the usual interval.
    fn requests_each_ack(&self, ctx: &Ctx<'_>, bytes: u64) -> bool {
        let interval = ctx.limits.ack_request_interval;
        let timeout = self.retry.timeout();
        timeout.is_some_and(|timeout| self.pacing.exceeds_timeout(ctx.now, bytes, interval, timeout))
    }

    /// Returns how many bytes to ask for with a READ request from response packet `k` on: the rest of the message, or
    /// one packet, if packets behind it came. `mtu` in bytes.
    fn bytes_to_request(&self, wqe: &Wqe, k: u32, mtu: u64) -> u64 {
        let rest = wqe.length() - u64::from(k) * mtu;
        let is_alone =
            self.scoreboard.as_ref().is_some_and(|board| board.requests_one_packet(&self.window, wqe, k));
        if is_alone { rest.min(mtu) } else { rest }
    }

    /// Advances the state past the packet that `next_request` planned, which is sent.
    pub(crate) fn request_sent(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        if plan.origin == Origin::Probe {
            ctx.counters.tail_probes += 1;
            self.ack_requests.probe_sent(self.window.sent_end());
            return self.start_timer(ctx.now);
        }
        self.packet_sent(qp, ctx.now, &plan.bth);
        if matches!(plan.reason, TxReason::Again { .. }) {
            ctx.counters.retransmitted_packets += 1;
            let count = match plan.ext {
                Ext::Reth(reth) if plan.bth.opcode == Opcode::RC_READ_REQUEST => {
                    packets_for(reth.dma_len.into(), qp.mtu())
                }
                _ => 1,
            };
            self.sent_again(ctx.now, plan.bth.psn, count);
        }
    }

    /// Advances the requester past the packet at its position, which is sent: PSNs, position, timer.
    #[inline(always)]
    pub(crate) fn packet_sent(&mut self, qp: &QpContext, now: Nanos, bth: &Bth) {
        let ends_test = self.ack_requests.end_test();
        let ends_quiet = bth.ack_req && self.is_quiet();
        let (end, takes_resource) = self.window.packet_sent(bth.psn, qp.mtu());
        self.ack_requests.packet_sent(bth.ack_req, end, takes_resource);
        if !self.retry.is_running() || ends_quiet || ends_test {
            self.start_timer(now);
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

/// Checks a work request for a FLUSH: a placement type is given, and `length` is at most 2^31 bytes.
fn check_flush(wqe: &Wqe, length: u64) -> Result<(), WcStatus> {
    let has_placement = Feth(wqe.wr.imm).placement() & (Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE) != 0;
    match length <= u64::from(MAX_MESSAGE) {
        true if has_placement && wqe.length() == 0 => Ok(()),
        true => Err(WcStatus::LocQpOp),
        false => Err(WcStatus::LocLen),
    }
}
