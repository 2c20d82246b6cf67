//! The door to the code under test: the one place where tests look into a NIC, and where they plant bugs.
//!
//! The NIC calls a QP through a function of this module, which does or returns what the code says. With the feature
//! `planted-bugs`, the function also records [coverage](super::coverage), and a bug that a test has
//! [planted](PlantedBug) changes what goes in or what comes out. Without the feature (the default), nothing is left of
//! the module: its functions are inlined, and no bug is planted.
//!
//! A bug is planted at a call of a QP if what goes in or comes out can show it (`bugs`).

#[cfg(feature = "planted-bugs")]
mod bugs;
mod planted;

pub use planted::PlantedBug;

use super::coverage::{EventEffect, FastWatch, TimerCause, Watch};
use super::{Ctx, Qp, TxPlan, Verdict};
use crate::verbs::{QpAttr, QpState};
use roxie_base::time::Nanos;
use roxie_wire::frame::Frame;
use roxie_wire::{FastPacket, Packet};

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
    let (verdict, _) = (qp.handle_packet(ctx, packet, index), frame);
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

/// Notes effects on completion events.
#[inline(always)]
pub(crate) fn event(effect: EventEffect, times: usize) {
    Watch::notices(effect, times);
}
