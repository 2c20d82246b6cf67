//! The door to the code under test: the one place where tests look into a NIC, and where they plant bugs.
//!
//! The NIC calls a QP through a function of this module, which does what its name says. With the feature
//! `planted-bugs`, the function also records [coverage](super::coverage). Without the feature (the default), nothing is
//! left of the module: its functions are inlined, and no bug is planted.

mod planted;

pub use planted::PlantedBug;

use super::coverage::{EventEffect, FastWatch, TimerCause, Watch};
use super::{Ctx, Qp, TxPlan, Verdict};
use crate::verbs::{QpAttr, QpState};
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

/// Hands a packet to its QP. `frame` is its index in the receive burst.
#[inline(always)]
pub(crate) fn handle_packet(qp: &mut Qp, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
    let watch = Watch::arrival(qp, packet);
    let verdict = qp.handle_packet(ctx, packet, frame);
    watch.moved(qp, TimerCause::Packet);
    Watch::judged(qp, packet, &verdict);
    verdict
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

/// Advances a QP past a packet that is sent.
#[inline(always)]
pub(crate) fn sent(qp: &mut Qp, ctx: &mut Ctx<'_>, plan: &TxPlan) {
    let watch = Watch::timer(qp);
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

/// Modifies a QP.
#[inline(always)]
pub(crate) fn modify(qp: &mut Qp, ctx: &mut Ctx<'_>, attr: &QpAttr, next: QpState) {
    let watch = Watch::timer(qp);
    qp.modify(ctx, attr, next);
    watch.moved(qp, TimerCause::Command);
}

/// Notes effects on completion events.
#[inline(always)]
pub(crate) fn event(effect: EventEffect, times: usize) {
    Watch::notices(effect, times);
}
