//! Planted bugs at the calls of a QP.

use super::PlantedBug;
use crate::transport::{AtomicOp, Cause, Check, Ctx, DmaIn, Origin, Qp, Span, TxPlan, TxReason, Verdict};
use crate::verbs::{Access, AsyncEvent, EventKind, QpState, WcStatus};
use roxie_base::time::Nanos;
use roxie_wire::frame::Frame;
use roxie_wire::{self as wire, Bth, Ext, NetHeader, Operation, Packet, Psn, Syndrome};

/// Length of an IPv4 header without options.
const IPV4_LEN: u64 = 20;

/// Hands a packet to its QP as a bug has altered it, and alters what came of it.
pub(super) fn handle_packet(
    qp: &mut Qp,
    ctx: &mut Ctx<'_>,
    packet: &Packet,
    frame: &Frame<'_>,
    index: u16,
) -> Verdict {
    if !PlantedBug::is_any() {
        return qp.handle_packet(ctx, packet, index);
    }
    if let Some(verdict) = ignored(qp, ctx, packet) {
        return verdict;
    }
    let received = received(qp, packet, frame);
    let before = ctx.out.dma_in.len();
    let verdict = qp.handle_packet(ctx, received.as_ref().unwrap_or(packet), index);
    match verdict {
        Verdict::Duplicate if PlantedBug::AtomicExecutedAgain.is() => execute_again(qp, ctx, packet),
        Verdict::Wait(_) => modified(qp, ctx),
        Verdict::Executed if PlantedBug::PadIsWritten.is() => write_pad(qp, ctx, packet, before),
        Verdict::Executed if PlantedBug::Ipv4HeaderComesFirst.is() && packet.deth().is_some() => {
            put_header_first(&mut ctx.out.dma_in[before..]);
        }
        Verdict::Unsuitable(Check::ReceiveLength | Check::PacketLength)
            if PlantedBug::LongDatagramEnds.is() && qp.qp_type.is_datagram() =>
        {
            qp.fail(ctx);
            ctx.out.events.push(AsyncEvent::Qp(qp.index, EventKind::QpFatal));
            return Verdict::ReceiveFailed(WcStatus::LocLen);
        }
        _ => {}
    }
    verdict
}

/// Returns the verdict of a packet that the QP is not to see.
fn ignored(qp: &Qp, ctx: &Ctx<'_>, packet: &Packet) -> Option<Verdict> {
    let (expected, silent_until) = (qp.psns().1, qp.responder().silent_until());
    let is_ahead = !packet.info().is_response() && packet.bth.psn.distance_from(expected) > 0;
    let was_not_ready = silent_until != Nanos::ZERO && silent_until != Nanos::MAX;
    let is_over = was_not_ready && ctx.now >= silent_until;
    (PlantedBug::SilentAfterRnr.is()
        && is_ahead
        && is_over
        && matches!(qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd))
    .then_some(Verdict::OutOfSequence { expected, nak: false })
}

/// Returns the packet as a bug lets the QP see it. `None`: as it is.
fn received(qp: &Qp, packet: &Packet, frame: &Frame<'_>) -> Option<Packet> {
    let behind_bth = packet.bth_offset + Bth::LEN;
    let aeth = packet.aeth().map(|aeth| aeth.kind());
    if PlantedBug::UdIgnoresQkey.is() && packet.deth().is_some() {
        rewritten(frame, &[(behind_bth, &qp.qkey().to_be_bytes())])
    } else if PlantedBug::AnySource.is() {
        let av = qp.attributes().av?;
        match packet.net {
            NetHeader::Ipv4(_) => {
                let at = packet.l3_offset + 12;
                rewritten(frame, &[(at, &av.dgid.0[12..]), (at + 4, &av.sgid.0[12..])])
            }
            NetHeader::Ipv6(_) | NetHeader::Grh(_) => {
                let at = packet.l3_offset + 8;
                rewritten(frame, &[(at, &av.dgid.0), (at + 16, &av.sgid.0)])
            }
        }
    } else if PlantedBug::RnrCodeZeroIsNoWait.is() && aeth == Some(Syndrome::RnrNak { timer: 0 }) {
        rewritten(frame, &[(behind_bth, &[Syndrome::RnrNak { timer: 1 }.into()])])
    } else if PlantedBug::PsnCompareWithoutWrap.is() && packet.info().is_response() {
        let window = qp.requester().window();
        let (psn, una, sent_end) = (packet.bth.psn, window.una(), window.sent_end());
        let seen = match () {
            () if psn.value() >= sent_end.value() => sent_end,
            () if psn.value() < una.value() => una - 2,
            () => return None,
        };
        rewritten(frame, &[(packet.bth_offset + 9, &seen.value().to_be_bytes()[1..])])
    } else {
        None
    }
}

/// Returns the packet of a frame in which some bytes are others.
fn rewritten(frame: &Frame<'_>, others: &[(usize, &[u8])]) -> Option<Packet> {
    let mut bytes = frame.to_vec();
    for (at, other) in others {
        bytes[*at..*at + other.len()].copy_from_slice(other);
    }
    wire::parse(&Frame::whole(&bytes)).ok()
}

/// Executes a duplicate atomic once more, as an addition.
fn execute_again(qp: &Qp, ctx: &mut Ctx<'_>, packet: &Packet) {
    let Some(eth) = packet.atomic_eth() else { return };
    let Some(resource) = qp.responder().slot_of_atomic(packet.bth.psn) else { return };
    let user = qp.responder().user(qp);
    if let Ok(at) = ctx.memory.check_remote(user, eth.rkey, eth.va, 8, Access::REMOTE_ATOMIC) {
        let operation = AtomicOp::FetchAdd { add: eth.swap_or_add };
        ctx.out.push_dma(DmaIn::Atomic { qp: qp.index, resource, at, operation });
    }
}

/// Has the last copy of a WRITE of one packet include the pad, if the key opens memory there.
fn write_pad(qp: &Qp, ctx: &mut Ctx<'_>, packet: &Packet, from: usize) {
    let Some(reth) = packet.reth().filter(|_| packet.info().operation == Operation::Write) else { return };
    let user = qp.responder().user(qp);
    let whole = packet.payload.len() as u64 + u64::from(packet.bth.pad);
    let opens = ctx.memory.check_remote(user, reth.rkey, reth.va, whole, Access::REMOTE_WRITE).is_ok();
    let last = ctx.out.dma_in[from..].last_mut().filter(|_| opens);
    if let Some(DmaIn::Scatter { length, .. }) = last {
        *length += u16::from(packet.bth.pad);
    }
}

/// Moves the IPv4 header of a datagram to the beginning of its receive.
fn put_header_first(operations: &mut [DmaIn]) {
    let Some(DmaIn::Store { to: first, .. }) = operations.first().copied() else { return };
    let header = operations.iter_mut().find_map(|operation| match operation {
        DmaIn::Scatter { to, .. } => Some(to),
        _ => None,
    });
    if let Some(to) = header.filter(|to| to.offset == first.offset + IPV4_LEN) {
        *to = Span { offset: first.offset, ..*to };
    }
}

/// Notes that a QP has another state or waits for an RNR timer: raises SQ_DRAINED, if it was asked for.
pub(super) fn modified(qp: &mut Qp, ctx: &mut Ctx<'_>) {
    let waits = qp.state() == QpState::Sqd && qp.requester().is_in_rnr_wait();
    if PlantedBug::DrainedWhileItWaits.is() && waits && qp.take_drain_request() {
        ctx.out.events.push(AsyncEvent::Qp(qp.index, EventKind::SqDrained));
    }
}

/// True if a marked packet is answered with a notification.
pub(super) fn notifies(qp: &Qp, packet: &Packet, warrants: bool, admit: impl FnOnce() -> bool) -> bool {
    let is_response = packet.info().operation == Operation::ReadResponse;
    match () {
        () if PlantedBug::NotifiesNobody.is() => false,
        () if PlantedBug::MarkedResponsesAreSilent.is() && is_response => false,
        () if PlantedBug::NotifiesOfStrangers.is() => (warrants || carries_data_to(qp, packet)) && admit(),
        () if PlantedBug::IntervalIgnored.is() => {
            warrants.then(admit);
            warrants
        }
        () => warrants && admit(),
    }
}

/// True if a packet with data is for a connected QP that answers.
fn carries_data_to(qp: &Qp, packet: &Packet) -> bool {
    let operation = packet.info().operation;
    let is_reply = matches!(operation, Operation::Acknowledge | Operation::AtomicAcknowledge);
    let is_other = matches!(operation, Operation::SelectiveAcknowledge | Operation::Cnp);
    let answers = matches!(qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
    !is_reply && !is_other && answers && qp.qp_type.is_connected()
}

/// Returns a planned packet as a bug alters it. `None`: it stays.
pub(super) fn altered(qp: &Qp, plan: &TxPlan) -> Option<TxPlan> {
    let again = matches!(plan.reason, TxReason::Again { .. });
    let mut it = *plan;
    match (plan.origin, plan.ext) {
        (Origin::Notification, _) if PlantedBug::NotifiesItself.is() => it.bth.dest_qp = qp.qpn,
        (Origin::Probe, _) if PlantedBug::ProbeIsExecuted.is() => it.bth.psn = plan.bth.psn + 1,
        (Origin::Request, _) if again && PlantedBug::SolicitedOnlyOnce.is() => it.bth.solicited = false,
        (Origin::Request, _) if again && PlantedBug::NoAckRequestOnRetransmission.is() => {
            it.bth.ack_req = false;
        }
        (Origin::Reply, Ext::AtomicAck(aeth, _))
            if plan.reason == TxReason::AnswerAgain && PlantedBug::NewestResultAnswers.is() =>
        {
            it.ext = Ext::AtomicAck(aeth, qp.responder().newest_result()?);
        }
        (Origin::Reply, Ext::Aeth(aeth)) if matches!(aeth.kind(), Syndrome::Ack { .. }) && is_ack(plan) => {
            let last = qp.psns().1 - 1;
            if PlantedBug::AckPsnStopsAtZero.is() && plan.bth.psn == Psn::new(0xff_ffff) {
                it.bth.psn = Psn::new(0);
            } else if PlantedBug::AcknowledgesRead.is() && qp.responder().answers_duplicates() {
                it.bth.psn = last;
            }
        }
        _ => return None,
    }
    Some(it)
}

fn is_ack(plan: &TxPlan) -> bool {
    plan.bth.opcode.info().is_some_and(|info| info.operation == Operation::Acknowledge)
}

/// Advances a QP past a packet that is sent.
pub(super) fn sent(qp: &mut Qp, ctx: &mut Ctx<'_>, plan: &TxPlan) {
    if plan.origin == Origin::Reply && PlantedBug::ResponsesAreNotPaced.is() {
        qp.advance(ctx, plan);
    } else {
        qp.sent(ctx, plan);
    }
}

/// Has a QP start the timer that it lacks.
pub(super) fn ensure_timer(qp: &mut Qp, now: Nanos) {
    if !PlantedBug::NoTimerAfterRepeat.is() {
        qp.ensure_timer(now);
    }
    if PlantedBug::NoTimerAfterNak.is() && qp.requester().cause() == Some(Cause::SequenceNak) {
        qp.stop_timer();
    }
}
