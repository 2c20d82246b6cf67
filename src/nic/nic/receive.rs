//! Receiving: from bytes to the QP that they are for.

use std::fmt;

use super::{Nic, QpEntry, SetAside, split};
use crate::transport::{Verdict, door};
use crate::verbs::{QpIndex, QpType};
use roxie_base::time::Nanos;
use roxie_wire::frame::Frame;
use roxie_wire::{self as wire, Encapsulation, FastPacket, Gid, HEADERS, Icrc, Operation, Packet, Qpn};

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// The frame as the port has it, from the Ethernet header on.
    pub frame: Frame<'a>,
    /// Index in the burst, used by DMA operations.
    pub index: u16,
    /// True if the port made up the IPv4 identification.
    pub ip_id_hidden: bool,
    /// Time of arrival, if the port knows it.
    pub arrived: Option<Nanos>,
}

/// Outcome of a received frame.
#[derive(Clone, Debug)]
pub enum RxOutcome {
    /// The frame is no valid RoCE packet.
    Dropped(wire::Drop),
    /// The frame pauses or resumes priorities.
    Paused,
    /// The ICRC does not match.
    BadIcrc {
        /// The ICRC computed from the bytes.
        computed: u32,
        /// The ICRC in the packet.
        stored: u32,
    },
    /// The packet is of a VLAN or a RoCE version of which its destination is no GID.
    OtherNetwork(Gid, Encapsulation),
    /// No QP has this QPN.
    UnknownQp(wire::Qpn),
    /// The packet was for a multicast group.
    Multicast {
        /// Number of QPs in the group.
        members: usize,
        /// Number of QPs that accepted it.
        taken: usize,
        /// Outcome at the first QP that did not accept it.
        refused: Option<Verdict>,
        /// As in `Judged`.
        hidden_id: Option<u16>,
    },
    /// A flow steered the frame to a raw packet QP.
    Steered {
        /// The QP; the first one, if there are copies.
        qp: QpIndex,
        /// Outcome at the QP.
        verdict: Verdict,
    },
    /// The packet was delivered to a QP.
    Judged {
        /// The QP.
        qp: QpIndex,
        /// Outcome at the QP.
        verdict: Verdict,
        /// The IPv4 identification that the ICRC matches, if the port could not see it. The captured frame has another.
        hidden_id: Option<u16>,
    },
}

impl fmt::Display for RxOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RxOutcome::Dropped(reason) => write!(f, "dropped: {reason}"),
            RxOutcome::Paused => f.write_str("heeded: pauses or resumes priorities"),
            RxOutcome::BadIcrc { computed, stored } => {
                write!(f, "dropped: ICRC {stored:#010x}, computed {computed:#010x}")
            }
            RxOutcome::Multicast { members, taken, refused: None, .. } => {
                write!(f, "multicast: taken by {taken} of {members} QPs")
            }
            RxOutcome::Multicast { members, taken, refused: Some(verdict), .. } => {
                write!(f, "multicast: taken by {taken} of {members} QPs; {verdict}")
            }
            RxOutcome::OtherNetwork(gid, of) => write!(f, "dropped: {gid} is no GID of {of}"),
            RxOutcome::UnknownQp(Qpn::MULTICAST) => f.write_str("dropped: no QP is attached to its group"),
            RxOutcome::UnknownQp(qpn) => write!(f, "dropped: no QP {qpn}"),
            RxOutcome::Steered { verdict, .. } => write!(f, "steered: {verdict}"),
            RxOutcome::Judged { verdict, hidden_id: None, .. } => verdict.fmt(f),
            RxOutcome::Judged { verdict, hidden_id: Some(id), .. } => {
                write!(f, "{verdict} (ICRC good for IPv4 id {id:#06x}, which sockets do not show)")
            }
        }
    }
}

/// A packet that the fast path has received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) qp: QpIndex,
    /// True for a READ response; else a SEND or WRITE was executed.
    pub(super) is_response: bool,
    /// As in [`RxOutcome::Judged`].
    pub(super) hidden_id: Option<u16>,
}

impl Received {
    /// Returns the outcome at the QP.
    #[inline(always)]
    pub(super) fn verdict(&self) -> Verdict {
        if self.is_response { Verdict::Acknowledged } else { Verdict::Executed }
    }
}

impl From<Received> for RxOutcome {
    #[inline(always)]
    fn from(received: Received) -> RxOutcome {
        let verdict = received.verdict();
        RxOutcome::Judged { qp: received.qp, verdict, hidden_id: received.hidden_id }
    }
}

/// Identifications below this one are plausible for a socket's segments (RFC 6864: atomic datagrams may carry any).
const PLAUSIBLE_IDS: u16 = 128;

impl Nic {
    /// Receives one frame. Its memory operations wait for [`Nic::run_dma`].
    pub fn receive(&mut self, now: Nanos, received: &RxFrame<'_>) -> RxOutcome {
        let mut store = [0; HEADERS];
        let fast = FastPacket::of(&received.frame, &mut store);
        if let Some(packet) = &fast
            && let Some(fast) = door::receive_fast(
                self,
                packet,
                |nic| Some(&nic.qps.get(nic.qps.name_of(packet.bth().dest_qp.value())?)?.qp),
                |nic| nic.receive_fast(now, packet, received),
                Received::verdict,
            )
        {
            return fast.into();
        }
        self.receive_any(now, fast.as_ref(), received)
    }

    /// As [`receive`](Self::receive), always in the slow path: for frames that are rare. A second call of the fast path
    /// would keep the compiler from inlining it where it is used.
    pub fn receive_slow(&mut self, now: Nanos, received: &RxFrame<'_>) -> RxOutcome {
        self.receive_any(now, None, received)
    }

    /// Receives any packet in the slow path. `fast`: its headers, if they are already parsed.
    #[inline(never)]
    fn receive_any(
        &mut self,
        now: Nanos,
        fast: Option<&FastPacket<'_>>,
        received: &RxFrame<'_>,
    ) -> RxOutcome {
        let packet = match fast {
            Some(fast) => Ok(fast.read()),
            None => wire::parse(&received.frame),
        };
        if let Ok(packet) = &packet
            && let Some(outcome) = self.refuse_other_network(packet, &received.frame)
        {
            return outcome;
        }
        match &packet {
            // Look up the QP before checking the ICRC: a packet for an unknown QPN costs only its headers.
            Ok(packet) => match self.qps.name_of(packet.bth.dest_qp.value()) {
                Some(index) => self.receive_for(now, index, packet, received),
                None => self.receive_reserved(now, packet, received),
            },
            Err(reason) => self.receive_other(now, *reason, received),
        }
    }

    /// Returns the outcome of a packet that is for none of the GIDs.
    #[inline(always)]
    fn refuse_other_network(&mut self, packet: &Packet, frame: &Frame<'_>) -> Option<RxOutcome> {
        let is_plain = packet.vlan.is_none() && !packet.is_roce_v1();
        if is_plain && self.gids.are_plain() || self.gids.take(packet, frame) {
            return None;
        }
        self.counters.rx_other_network += 1;
        Some(RxOutcome::OtherNetwork(packet.dest_gid(), packet.encapsulation()))
    }

    /// Receives a frame that is no RoCE packet, or an invalid one.
    fn receive_other(&mut self, now: Nanos, reason: wire::Drop, received: &RxFrame<'_>) -> RxOutcome {
        // A MAC control frame takes effect even if a flow also steers it to a QP.
        let applied = reason == wire::Drop::MacControl && self.apply_mac_control(now, &received.frame);
        if !self.flows.is_empty()
            && let Some(outcome) = self.receive_steered(now, received)
        {
            return outcome;
        }
        if applied {
            return RxOutcome::Paused;
        }
        match reason {
            wire::Drop::NotRoce | wire::Drop::MacControl => self.counters.rx_not_roce += 1,
            _ => self.counters.rx_malformed += 1,
        }
        RxOutcome::Dropped(reason)
    }

    /// Receives a packet with a reserved QPN.
    #[cold]
    fn receive_reserved(&mut self, now: Nanos, packet: &Packet, received: &RxFrame<'_>) -> RxOutcome {
        if packet.bth.dest_qp == Qpn::MULTICAST {
            return self.receive_multicast(now, packet, received);
        }
        if packet.bth.dest_qp == Qpn::GSI
            && let Some(gsi) = self.gsis.target(packet, &received.frame)
        {
            return self.receive_for(now, gsi.0, packet, received);
        }
        //= IBTA 9.6.1: destination-qp-is-there
        self.counters.rx_unknown_qp += 1;
        RxOutcome::UnknownQp(packet.bth.dest_qp)
    }

    /// Takes back the count of a packet without a QP here: another worker of the device has its QP.
    pub fn forget_unknown_qp(&mut self) {
        self.counters.rx_unknown_qp -= 1;
    }

    fn receive_for(&mut self, now: Nanos, index: u32, packet: &Packet, received: &RxFrame<'_>) -> RxOutcome {
        let hidden_id = match self.accept_icrc(index, packet, received) {
            Ok(hidden_id) => hidden_id,
            Err(outcome) => return outcome,
        };
        match self.deliver(now, index, packet, received) {
            Some(verdict) => RxOutcome::Judged { qp: QpIndex(index), verdict, hidden_id },
            None => RxOutcome::UnknownQp(packet.bth.dest_qp),
        }
    }

    /// Checks the ICRC, and counts marked and bad packets.
    pub(super) fn accept_icrc(
        &mut self,
        index: u32,
        packet: &Packet,
        received: &RxFrame<'_>,
    ) -> Result<Option<u16>, RxOutcome> {
        match self.check_icrc(index, packet, received) {
            Ok(hidden_id) => {
                if packet.is_ce() {
                    self.counters.np_ecn_marked_roce_packets += 1;
                }
                Ok(hidden_id)
            }
            Err((computed, stored)) => {
                //= IBTA 7.8.1: bad-icrc-is-dropped
                self.counters.rx_icrc_encapsulated += 1;
                Err(RxOutcome::BadIcrc { computed, stored })
            }
        }
    }

    /// Delivers a packet to a QP. `None`: there is no such QP.
    pub(super) fn deliver(
        &mut self,
        now: Nanos,
        index: u32,
        packet: &Packet,
        received: &RxFrame<'_>,
    ) -> Option<Verdict> {
        if self.config.serves
            && let Some(has_place) = self.parking.set_aside(&mut self.qps, QpIndex(index), received)
        {
            self.counters.rx_dropped_awaiting_copies += u64::from(!has_place);
            return Some(Verdict::AwaitsCopies { is_held: has_place });
        }
        let before = (self.out.dma_in.len(), self.out.completions.len());
        let entry = self.qps.get_mut(index)?;
        split!(self, now, entry => qp, ctx);
        if self.congestion.measures_delay {
            ctx.out.arrived = received.arrived.unwrap_or(now);
        }
        let mut verdict = door::handle_packet(qp, &mut ctx, packet, &received.frame, received.index);
        if cfg!(debug_assertions) {
            qp.assert_received(packet, &verdict, ctx.out, before);
        }
        entry.has_received |= verdict.is_of_connection() || entry.has_probed && verdict == Verdict::Ghost;
        if self.out.may_fault {
            verdict = self.settle(now, QpIndex(index), packet, received, before).unwrap_or(verdict);
        }
        if verdict == Verdict::Executed {
            self.deliver_early(now, index);
        }
        if !verdict.is_routine()
            && let Some(entry) = self.qps.get_mut(index)
        {
            entry.log.note_packet(now, packet.bth.opcode, packet.bth.psn, verdict);
        }
        if packet.is_ce() || self.answers_gap(&verdict) {
            self.answer_mark(now, QpIndex(index), packet, &verdict);
        }
        self.mark_changed(QpIndex(index));
        Some(verdict)
    }

    /// Delivers a frame that was set aside while its QP waited for copies. The ICRC was checked when the frame was
    /// received. The frame's memory operations wait for [`Nic::run_dma`].
    pub fn receive_again(&mut self, now: Nanos, index: QpIndex, SetAside { bytes, arrived }: &SetAside) {
        let frame = Frame::whole(bytes);
        let received = RxFrame { frame, index: 0, ip_id_hidden: false, arrived: *arrived };
        let Some(entry) = self.qps.get(index.0) else { return };
        if entry.qp.qp_type == QpType::RawPacket {
            self.deliver_frame(now, index, &received);
        } else if let Ok(packet) = wire::parse(&frame) {
            self.deliver(now, index.0, &packet, &received);
        }
    }

    /// Advances a QP with selective repeat over packets that came early and are due.
    #[inline]
    fn deliver_early(&mut self, now: Nanos, index: u32) {
        let Some(entry) = self.qps.get_mut(index).filter(|entry| entry.qp.has_early()) else { return };
        split!(self, now, entry => qp, ctx);
        door::advance_over_early(qp, &mut ctx);
    }

    /// Checks the ICRC, which covers the IPv4 identification that sockets hide. The CRC is linear, so the
    /// identification that would explain a mismatch can be computed. If it is plausible for the peer, the packet is
    /// accepted, and the identification returned.
    fn check_icrc(
        &mut self,
        index: u32,
        packet: &Packet,
        received: &RxFrame<'_>,
    ) -> Result<Option<u16>, (u32, u32)> {
        let Icrc::Bad { computed, stored } = packet.check_icrc(&received.frame) else { return Ok(None) };
        let bad = Err((computed, stored));
        // The identification is the third 16-bit word of the IPv4 header.
        let after_id = packet.icrc_offset.saturating_sub(packet.l3_offset + 6);
        let mut id = solve_id(received, computed, stored, after_id);
        if self.config.rxe_flush_icrc && packet.info().operation == Operation::Flush {
            let (start, end) = (packet.bth_offset, packet.icrc_offset);
            let rxes = wire::icrc::of_rxe_flush(&received.frame, computed, start, end);
            if rxes == stored {
                return Ok(None);
            }
            // Bytes that are hashed twice count twice after the identification.
            id = id.or_else(|| solve_id(received, rxes, stored, after_id + end - start));
        }
        let Some(id) = id else { return bad };
        let Some(entry) = self.qps.get_mut(index) else { return bad };
        if !entry.is_plausible(id) {
            if self.config.strict_icrc {
                // If this was the peer's counter, the next frame carries its successor.
                entry.refused_ip_id = id;
                return bad;
            }
            self.counters.icrc_weak += 1;
        }
        entry.last_ip_id = id;
        Ok(Some(id))
    }
}

impl QpEntry {
    /// True if the peer may have given its next packet this identification.
    pub(super) fn is_plausible(&self, id: u16) -> bool {
        let follows = |last: u16| id.wrapping_sub(last) < PLAUSIBLE_IDS;
        id < PLAUSIBLE_IDS || follows(self.last_ip_id) || follows(self.refused_ip_id)
    }
}

/// Returns the identification that a socket hid, if one explains the mismatch.
pub(super) fn solve_id(received: &RxFrame<'_>, computed: u32, stored: u32, after_id: usize) -> Option<u16> {
    received.ip_id_hidden.then(|| wire::icrc::solve_ipv4_id(computed, stored, after_id)).flatten()
}
