//! The door to the code under test: the one place where tests look into a NIC, and where they plant bugs.
//!
//! The NIC and the parts of a QP pass some calls and some decisions through a function of this module, which does or
//! returns what the code says. With the feature `planted-bugs`, the function also records
//! [coverage](super::coverage), and a bug that a test has [planted](PlantedBug) changes what goes in or what comes out.
//! Without the feature (the default), nothing is left of the module: its functions are inlined, and no bug is planted.
//!
//! A bug is planted at a call of a part if what goes in or comes out can show it (`bugs`), else at the decision itself.

#[cfg(feature = "planted-bugs")]
mod bugs;
mod planted;

pub use planted::PlantedBug;

use super::coverage::{EventEffect, FastWatch, TimerCause, Watch};
use super::{Ctx, Qp, Reply, TxPlan, Verdict};
use crate::verbs::{QpAttr, QpState, RateLimit};
use roxie_base::time::Nanos;
use roxie_wire::frame::Frame;
use roxie_wire::{FastPacket, Packet, Position, Psn, Service};

// Calls of a QP.

/// Receives a packet in the fast path, if `receive` finds that it suits. `find` returns the packet's QP.
#[inline(always)]
pub(crate) fn receive_fast<N, T>(
    nic: &mut N,
    packet: &FastPacket<'_>,
    find: impl Fn(&N) -> Option<&Qp>,
    receive: impl FnOnce(&mut N) -> Option<T>,
    verdict: impl FnOnce(&T) -> Verdict,
) -> Option<T> {
    if PlantedBug::is_any() {
        return None;
    }
    let watch = FastWatch::receives(|| find(nic), packet);
    let received = receive(nic)?;
    watch.received(|| find(nic), packet, || verdict(&received));
    Some(received)
}

/// Hands a packet to its QP. `frame` is the packet's frame, number `index` of the receive burst.
#[inline(always)]
pub(crate) fn handle_packet(
    qp: &mut Qp,
    ctx: &mut Ctx<'_>,
    packet: &Packet,
    frame: &Frame<'_>,
    index: u16,
) -> Verdict {
    let watch = Watch::arrival(qp, packet);
    #[cfg(feature = "planted-bugs")]
    let verdict = bugs::handle_packet(qp, ctx, packet, frame, index);
    #[cfg(not(feature = "planted-bugs"))]
    let verdict = {
        let _ = frame;
        qp.handle_packet(ctx, packet, index)
    };
    watch.moved(qp, TimerCause::Packet);
    Watch::judged(qp, packet, &verdict);
    verdict
}

/// Advances a QP over the packets that came early and are due.
#[inline(always)]
pub(crate) fn advance_over_early(qp: &mut Qp, ctx: &mut Ctx<'_>) {
    let before = ctx.out.completions.len();
    qp.advance_over_early(ctx);
    if PlantedBug::EarlyPacketsAreSilent.is() {
        ctx.out.completions.truncate(before);
    }
}

/// True if a marked packet is answered with a notification: its QP's verdict `warrants` one, and `admit` says that the
/// interval since the last one is over.
#[inline(always)]
pub(crate) fn notifies(qp: &Qp, packet: &Packet, warrants: bool, admit: impl FnOnce() -> bool) -> bool {
    #[cfg(feature = "planted-bugs")]
    return bugs::notifies(qp, packet, warrants, admit);
    #[cfg(not(feature = "planted-bugs"))]
    {
        let _ = (qp, packet);
        warrants && admit()
    }
}

/// Sends a packet in the fast path, if `send` finds one that suits; else returns `slow`. `find` returns the QP.
#[inline(always)]
pub(crate) fn send_fast<N, T>(
    nic: &mut N,
    find: impl Fn(&N) -> Option<&Qp>,
    send: impl FnOnce(&mut N) -> T,
    is_sent: impl FnOnce(&T) -> bool,
    slow: T,
) -> T {
    if PlantedBug::is_any() {
        return slow;
    }
    let watch = FastWatch::sends(|| find(nic));
    let sent = send(nic);
    watch.sent(|| find(nic), || is_sent(&sent));
    sent
}

/// Returns what a planted bug makes of a planned packet before its headers are written. `None`: it stays.
#[inline(always)]
pub(crate) fn altered(qp: &Qp, plan: &TxPlan) -> Option<TxPlan> {
    #[cfg(feature = "planted-bugs")]
    return bugs::altered(qp, plan);
    #[cfg(not(feature = "planted-bugs"))]
    {
        let _ = (qp, plan);
        None
    }
}

/// True if a planned packet is ECN-capable, where data packets are.
#[inline(always)]
pub(crate) fn is_ecn_capable(plan: &TxPlan) -> bool {
    plan.carries_data() || PlantedBug::AcknowledgementsAreCapable.is()
}

/// Advances a QP past a packet that is sent.
#[inline(always)]
pub(crate) fn sent(qp: &mut Qp, ctx: &mut Ctx<'_>, plan: &TxPlan) {
    let watch = Watch::timer(qp);
    #[cfg(feature = "planted-bugs")]
    bugs::sent(qp, ctx, plan);
    #[cfg(not(feature = "planted-bugs"))]
    qp.sent(ctx, plan);
    watch.moved(qp, TimerCause::Sent);
}

/// Handles an expired timer of a QP.
#[inline(always)]
pub(crate) fn handle_timeout(qp: &mut Qp, ctx: &mut Ctx<'_>) -> Option<Verdict> {
    let watch = Watch::timer(qp);
    let verdict = qp.handle_timeout(ctx);
    watch.moved(qp, TimerCause::Time);
    verdict
}

/// Has a QP start the timer that it lacks.
#[inline(always)]
pub(crate) fn ensure_timer(qp: &mut Qp, now: Nanos) {
    #[cfg(feature = "planted-bugs")]
    bugs::ensure_timer(qp, now);
    #[cfg(not(feature = "planted-bugs"))]
    qp.ensure_timer(now);
}

/// Modifies a QP.
#[inline(always)]
pub(crate) fn modify(qp: &mut Qp, ctx: &mut Ctx<'_>, attr: &QpAttr, next: QpState) {
    let watch = Watch::timer(qp);
    qp.modify(ctx, attr, next);
    #[cfg(feature = "planted-bugs")]
    bugs::modified(qp, ctx);
    watch.moved(qp, TimerCause::Command);
}

// Decisions of a responder.

/// Returns how far a request is ahead of the expected PSN; negative: a duplicate.
#[inline(always)]
pub(crate) fn distance(packet: &Packet, expected: Psn) -> i32 {
    let (psn, is_uc) = (packet.bth.psn, packet.info().service == Service::Uc);
    let ahead = psn.distance_from(expected);
    match () {
        () if is_uc && PlantedBug::UcIgnoresGaps.is() => 0,
        () if !is_uc && PlantedBug::PsnCompareWithoutWrap.is() => {
            psn.value() as i32 - expected.value() as i32
        }
        () if !is_uc
            && ahead < 0
            && PlantedBug::NoDuplicateCheck.is()
            && packet.info().position == Position::Only =>
        {
            0
        }
        () => ahead,
    }
}

/// Returns before which pending reply another is inserted; `None`: behind all. `place`: where it belongs.
#[inline(always)]
pub(crate) fn place_of_reply(reply: &Reply, place: Option<usize>) -> Option<usize> {
    match reply {
        Reply::Ack { .. } if PlantedBug::AckBeforeReadResponse.is() => Some(0),
        _ if PlantedBug::AnswersInOrderOfRequests.is() => None,
        _ => place,
    }
}

/// Returns from which packet, and from which address, a READ is answered again. `next`, `va`: those that are right.
/// `queued`: the response packet from which a response in progress continues. `skipped`: bytes before the first packet
/// that was asked for.
#[inline(always)]
pub(crate) fn read_again(next: u32, va: u64, queued: Option<u32>, skipped: u64) -> (u32, u64) {
    match queued {
        Some(queued) if PlantedBug::AnswerGoesOn.is() => (queued, va),
        _ if PlantedBug::RestOfReadStartsOver.is() => (next, va.wrapping_sub(skipped)),
        _ => (next, va),
    }
}

/// True if an early packet certainly belongs to the SEND in progress. `has_wide_gap`: two adjacent ones are missing.
#[inline(always)]
pub(crate) fn is_certain(has_wide_gap: bool) -> bool {
    !has_wide_gap || PlantedBug::WideGapsAreIgnored.is()
}

/// True if a QP in the error state flushes its receives. `shares_receives`: they are other QPs' as well.
#[inline(always)]
pub(crate) fn flushes_receives(shares_receives: bool) -> bool {
    !shares_receives || PlantedBug::FlushesSharedReceives.is()
}

/// True if a window or region opens to a QP. `is_for_it`: it is open to all QPs of its domain, or to this one.
#[inline(always)]
pub(crate) fn opens(is_for_it: bool) -> bool {
    is_for_it || PlantedBug::WindowOpensToAllQps.is()
}

// Decisions of a requester.

/// True if responses are handled in the slow path only.
#[inline(always)]
pub(crate) fn takes_long_way() -> bool {
    PlantedBug::is_any()
}

/// True if an acknowledgement of what is behind a request has overtaken its response. `has_response`: the request has a
/// response of its own.
#[inline(always)]
pub(crate) fn is_overtaken(has_response: bool) -> bool {
    has_response && !PlantedBug::AckCompletesRead.is()
}

/// Returns what progress of the peer gives back: the RNR retries, and the implied NAK. `is_all`: nothing is
/// outstanding.
#[inline(always)]
pub(crate) fn given_back(is_all: bool) -> (bool, bool) {
    (is_all || !PlantedBug::RnrTriesAreUsedUp.is(), !PlantedBug::GoesBackOnce.is())
}

/// True if no probe may have the PSN of a request. `has_response`: it has a response of its own.
#[inline(always)]
pub(crate) fn bars_probe(has_response: bool) -> bool {
    has_response && !PlantedBug::ProbesReads.is()
}

/// Returns what a QP's pacing has without a rate and with one: whether held data stays held, and the limit of bursts.
#[inline(always)]
pub(crate) fn pacing(holds: bool, limit: RateLimit) -> (bool, RateLimit) {
    let max_burst = if PlantedBug::BurstsWithoutBound.is() { u32::MAX } else { limit.max_burst };
    (holds && PlantedBug::HeldForEver.is(), RateLimit { max_burst, ..limit })
}

/// True if a reply is not paced. `is_data`: it has payload.
#[inline(always)]
pub(crate) fn is_unpaced(is_data: bool) -> bool {
    !is_data && !PlantedBug::AcknowledgementsArePaced.is()
}

// Decisions of the NIC, and around it.

/// Notes effects on completion events.
#[inline(always)]
pub(crate) fn event(effect: EventEffect, times: usize) {
    Watch::notices(effect, times);
}

/// True if a QP whose turn ends unfinished is queued before all others.
#[inline(always)]
pub(crate) fn precedes_others() -> bool {
    PlantedBug::UnfinishedGoesFirst.is()
}

/// Returns the end of a pause from `now` to `until`.
#[inline(always)]
pub(crate) fn pause_end(now: Nanos, until: Nanos) -> Nanos {
    if now < until && PlantedBug::PausedForEver.is() { Nanos::MAX } else { until }
}

/// Returns the numbers of READs and atomics that a request for a connection leaves to its receiver: at a time from the
/// peer, and to it.
#[inline(always)]
pub(crate) fn depths(from_peer: u8, to_peer: u8) -> (u8, u8) {
    if PlantedBug::DepthsAreSwapped.is() { (to_peer, from_peer) } else { (from_peer, to_peer) }
}

/// True if a client may name an object. `is_its_own`: the object is the client's.
#[inline(always)]
pub fn may_name(is_its_own: bool, is_qp: bool) -> bool {
    is_its_own || is_qp && PlantedBug::NamesOthersQps.is()
}

/// True if the doorbells of a client that has disconnected are forgotten.
#[inline(always)]
pub fn forgets_doorbells() -> bool {
    !PlantedBug::HearsTheGone.is()
}
