//! Selective repeat, the requester's half: which of the outstanding packets came, and which are sent again (in the manner of IRN,
//! SIGCOMM 2018, 3.1).
//!
//! A selective acknowledgement (SACK) tells what came and what is missing. Only missing packets are sent again, once for each loss:
//! a retransmission counts as lost if the SACK was caused by a packet that was sent after it. The position walks over the packets
//! to send again, then returns to new ones.
//!
//! If nothing is acknowledged for a short time, a probe finds a loss at the tail: the last packet is sent again. The peer's answer
//! tells what is missing.

use super::requester::{Requester, Sending};
use super::responder::Responder;
use super::scoreboard::{Scoreboard, mask};
use super::{Cause, Ctx, Qp, Verdict};
use crate::verbs::WcStatus;
use roxie_base::time::Nanos;
use roxie_wire::{Packet, Psn, Sack, Syndrome};

const _: () = assert!(
    size_of::<Scoreboard>() + Responder::SELECTIVE_REPEAT <= 256,
    "memory of a QP for selective repeat"
);

impl Requester {
    /// Returns the number of PSNs from `una` to the last one sent.
    fn outstanding(&self) -> u32 {
        (self.sent_end - self.una.value()).value()
    }

    /// Marks everything that is outstanding and did not come to be sent again, after a rewind.
    pub(super) fn mark_all_lost(&mut self) {
        let outstanding = self.outstanding();
        let Some(board) = &mut self.scoreboard else { return };
        board.rebase(self.una);
        board.again = 0;
        board.whole = outstanding > Sack::BITS;
        board.lost = if board.whole { 0 } else { mask(outstanding) & !board.came & !board.stored() };
        board.timed_at = Nanos::MAX;
    }

    /// Moves the position to the next packet to send again, or to the first one never sent.
    pub(super) fn skip_what_came(&mut self) {
        let (una, end, position) = (self.una, self.sent_end, self.position());
        let Some(board) = &mut self.scoreboard else { return };
        board.rebase(una);
        if board.whole {
            board.whole = position.is_before(end);
            return;
        }
        let to = if board.lost == 0 { end } else { una + board.lost.trailing_zeros() };
        if to == position || !(position.is_before(end) || to.is_before(end)) {
            return;
        }
        self.forget_failure();
        self.rewind_to(to);
        if to.is_before(end) {
            self.begin_anew();
        }
    }

    /// Records a packet that was sent again, and moves the position to the next one.
    pub(super) fn note_sent_again(&mut self, now: Nanos, psn: Psn, count: u32) {
        let (una, end) = (self.una, self.sent_end);
        if let Some(board) = &mut self.scoreboard {
            board.rebase(una);
            board.sent_again(now, psn, count, end);
            self.skip_what_came();
        }
    }

    /// Handles progress after a loss: the time before a probe is short again.
    #[cold]
    pub(super) fn note_progress(&mut self, now: Nanos, longest: Option<Nanos>) {
        let una = self.una;
        if let Some(board) = &mut self.scoreboard {
            board.probes = 0;
            board.retry_from = Nanos::MAX;
            board.measure(now, |psn| psn.is_before(una));
            self.ack_timeout = longest.map(|longest| longest.min(board.patience(longest)));
        }
        if una == self.sent_end {
            self.going_back = None;
        }
    }

    /// Sets the time after which silence is a loss. `longest`: the local ACK timeout.
    pub(super) fn set_timeout(&mut self, longest: Option<Nanos>) {
        let board = self.scoreboard.as_ref();
        self.ack_timeout =
            longest.map(|longest| board.map_or(longest, |board| longest.min(board.patience(longest))));
    }

    /// Moves the position to the packets that are marked to be sent again.
    pub(super) fn repeat(&mut self, cause: Cause) {
        self.begin_to_go_back(cause);
        self.skip_what_came();
    }

    /// Turns selective repeat on or off.
    pub(super) fn set_selective(&mut self, on: bool) {
        self.scoreboard = on.then(|| Box::new(Scoreboard::new()));
    }
}

impl Qp {
    /// Handles a selective acknowledgement: completes what it acknowledges, and sends again what it asks for.
    pub(super) fn handle_sack(&mut self, ctx: &mut Ctx<'_>, packet: &Packet) -> Verdict {
        let psn = packet.bth.psn;
        let (Some(sack), Some(aeth)) = (packet.sack(), packet.aeth()) else { return Verdict::Ghost };
        let r = &mut self.requester;
        // A peer without the agreement takes no notice: the opcode is none of its own.
        let Some(board) = &mut r.scoreboard else {
            ctx.counters.rx_wrong_service += 1;
            return Verdict::WrongService;
        };
        let end = psn + u32::from(sack.count);
        let is_sent = !r.sent_end.is_before(end) && sack.latest.is_before(r.sent_end);
        let Syndrome::Ack { credits } = aeth.kind() else { return self.incoherent_sack(ctx) };
        if !sack.is_coherent() || !is_sent || !packet.payload.is_empty() {
            return self.incoherent_sack(ctx);
        }
        ctx.counters.rcvd_sacks += 1;
        board.rebase(r.una);
        let (una, latest) = (r.una, sack.latest);
        let cause = board.order_of(latest, una);
        let came = |psn: Psn| {
            sack.bitmap.checked_shr(psn.distance_from(packet.bth.psn) as u32).unwrap_or(0) & 1 == 1
        };
        board.measure(ctx.now, came);
        // What of the order is older than `una` proves nothing.
        let cause = (latest.distance_from(una) >= 0).then_some((cause, latest));
        self.note_credits(credits, aeth.msn);
        if let Err(verdict) = self.acknowledge_before(ctx, psn) {
            return verdict;
        }
        // Packets that are sent again after the wait anyway.
        if matches!(self.requester.sending, Sending::RnrWait(_)) {
            return Verdict::Stale;
        }
        self.mark_missing(ctx, &sack, una, cause)
    }

    /// Drops a SACK that no conforming peer sends.
    #[cold]
    fn incoherent_sack(&mut self, ctx: &mut Ctx<'_>) -> Verdict {
        ctx.counters.ghost_acks += 1;
        Verdict::Ghost
    }

    /// Marks what a SACK asks for. `before`: `una` before the SACK; `cause`: order and PSN of the packet that caused the SACK.
    fn mark_missing(
        &mut self,
        ctx: &mut Ctx<'_>,
        sack: &Sack,
        before: Psn,
        cause: Option<((u8, i32), Psn)>,
    ) -> Verdict {
        let timeout = self.attributes().ack_timeout();
        let r = &mut self.requester;
        let (una, end) = (r.una, r.sent_end);
        let Some(board) = &mut r.scoreboard else { return Verdict::Acknowledged };
        board.rebase(una);
        // The newest SACK counts: the peer may have dropped what it had kept.
        let dropped = board.came & sack.covered() & !sack.bitmap;
        board.came = sack.bitmap | board.came & !sack.covered();
        board.again &= !(board.came | dropped);
        let missing = sack.covered() & !sack.bitmap;
        let mut lost = missing & !board.again & !board.lost;
        let mut tries = missing & board.again & !board.lost;
        // A peer that drops packets, because they may not be placed yet, drops them until the oldest comes.
        let latest = cause.map(|(_, latest)| latest.distance_from(una));
        let drops =
            latest.is_some_and(|at| at >= 0 && sack.bitmap.checked_shr(at as u32).unwrap_or(0) & 1 == 0);
        if drops {
            tries &= 1;
        }
        while tries != 0 {
            let index = tries.trailing_zeros();
            tries &= tries - 1;
            let psn = una + index;
            let sent = board.order_of(psn, una);
            let sent = (
                sent.0.wrapping_add((una.value() as u8).wrapping_sub(before.value() as u8)),
                psn.distance_from(before),
            );
            if cause.is_some_and(|(cause, _)| cause > sent) {
                lost |= 1 << index;
            }
        }
        let oldest_is_lost_again = lost & board.again & 1 == 1;
        if oldest_is_lost_again && drops {
            lost = missing & !board.lost;
        }
        board.lost = (board.lost | lost) & !board.came & !board.stored();
        invariant!(board.lost & board.came == 0, "PSNs that came are sent again");
        let (asked, of) = (missing.count_ones() as u8, sack.count);
        if board.whole || board.lost == 0 {
            let is_progress = una != before;
            return if is_progress { Verdict::Acknowledged } else { Verdict::Selective { asked, of } };
        }
        if oldest_is_lost_again && board.costs_retry(ctx.now, timeout) {
            if r.retries_left == 0 {
                ctx.counters.retry_exceeded_err += 1;
                self.fail_oldest(ctx, WcStatus::RetryExc, 0);
                return Verdict::Failed(WcStatus::RetryExc);
            }
            r.retries_left -= 1;
        }
        let first = una + board.lost.trailing_zeros();
        if lost != 0 || first.is_before(end) && !r.position().is_before(end) {
            r.repeat(Cause::Selective);
            self.pacing.forget_probe();
        } else {
            r.skip_what_came();
        }
        Verdict::Selective { asked, of }
    }

    /// Sends the last packet again, or the oldest READ or atomic, if the silence is shorter than the local ACK timeout. Costs no
    /// retry. Returns `None` if the timeout is reached, if what comes next cannot be sent, or without selective repeat.
    pub(super) fn probe(&mut self, ctx: &mut Ctx<'_>) -> Option<Verdict> {
        let longest = self.attributes().ack_timeout()?;
        let r = &mut self.requester;
        let awaits_data = r.reads_outstanding > 0;
        let (una, end, outstanding) = (r.una, r.sent_end, r.outstanding());
        let board = r.scoreboard.as_mut()?;
        // A packet that cannot be sent is no probe.
        let cannot = matches!(r.sending, Sending::Failed(_));
        if board.patience(longest) >= longest || outstanding == 0 || cannot {
            return None;
        }
        board.rebase(una);
        board.probes += 1;
        board.timed_at = Nanos::MAX;
        let oldest = r.queue.at(r.queue.tail());
        board.whole = false;
        board.lost |= if oldest.wr.opcode.takes_resource() {
            board.bits(una, oldest.end_psn()) & !board.stored()
        } else if awaits_data {
            1
        } else {
            1u128.checked_shl((end - 1).distance_from(una) as u32).unwrap_or(1)
        };
        r.ack_timeout = Some(longest.min(board.patience(longest)));
        r.repeat(Cause::Probe);
        self.pacing.forget_probe();
        ctx.counters.tail_probes += 1;
        Some(Verdict::GoBack(Cause::Probe))
    }
}
