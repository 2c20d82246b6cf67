//! Rules that the fast path shares with the slow path, each under one name.

use super::message::Message;
use super::send_queue::Wqe;
use crate::verbs::WrOpcode;
use roxie_wire::{Opcode, Operation, Packet, Position};

/// A packet's part of a message.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    /// Position of the payload in the message, in bytes.
    pub offset: u64,
    /// Length of the payload in bytes.
    pub length: u16,
    /// True for the first packet of the message.
    pub first: bool,
    /// True for the last packet of the message.
    pub last: bool,
}

impl Segment {
    /// Returns the `k`-th packet's part of a message of `length` bytes.
    //= IBTA 9.7.3: message-is-cut-at-the-path-mtu
    #[inline(always)]
    pub(super) fn of(length: u64, k: u32, mtu: u64) -> Segment {
        let offset = u64::from(k) * mtu;
        let remaining = length - offset;
        Segment { offset, length: remaining.min(mtu) as u16, first: k == 0, last: remaining <= mtu }
    }

    /// Returns the opcode of a SEND or WRITE packet without immediate and invalidation, of RC.
    #[inline(always)]
    pub(super) fn opcode(&self, is_write: bool) -> Opcode {
        match (is_write, self.first, self.last) {
            (false, true, true) => Opcode::RC_SEND_ONLY,
            (false, true, false) => Opcode::RC_SEND_FIRST,
            (false, false, false) => Opcode::RC_SEND_MIDDLE,
            (false, false, true) => Opcode::RC_SEND_LAST,
            (true, true, true) => Opcode::RC_WRITE_ONLY,
            (true, true, false) => Opcode::RC_WRITE_FIRST,
            (true, false, false) => Opcode::RC_WRITE_MIDDLE,
            (true, false, true) => Opcode::RC_WRITE_LAST,
        }
    }
}

/// True for the last packet of a message.
pub(super) fn is_last(packet: &Packet) -> bool {
    packet.info().position.ends()
}

/// Returns the opcode of packet `k` of a READ response of `packets` packets.
//= IBTA 9.7.5.1: read-response-is-cut-at-the-path-mtu
#[inline(always)]
pub(super) fn read_response_opcode(k: u32, packets: u32) -> Opcode {
    match (k == 0, k + 1 == packets) {
        (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
        (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
        (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
        (false, true) => Opcode::RC_READ_RESPONSE_LAST,
    }
}

/// True if packet `k` of a READ response may have this position. `requested_from`: the packet from which the READ was
/// requested last; `last`: it is the last packet.
///
/// The response to a READ that was requested again from the middle may continue with MIDDLE and LAST (rxe,
/// `rxe_resp.c`) or begin with FIRST or ONLY (the specification). Both are accepted; the PSN gives the offset.
//= IBTA 9.9.2: response-fits-its-request
#[inline(always)]
pub(super) fn response_fits(position: Position, k: u32, requested_from: u32, last: bool) -> bool {
    let (begins, continues) = (k == requested_from, k > 0);
    match position {
        Position::First => begins && !last,
        Position::Middle => continues && !last,
        Position::Last => continues && last,
        Position::Only => begins && last,
    }
}

/// True if `length` bytes are the payload of response packet `k` of this READ. `mtu` in bytes.
pub(super) fn is_packet_of(wqe: &Wqe, k: u32, length: usize, mtu: usize) -> bool {
    let remaining = wqe.length().saturating_sub(u64::from(k) * mtu as u64);
    wqe.wr.opcode == WrOpcode::Read && length as u64 == remaining.min(mtu as u64)
}

/// True if a SEND or WRITE packet has the length that its position asks for. A LAST packet may be empty here.
//= IBTA 9.7.4.1.6: first-and-middle-are-full, only-fits-the-path-mtu
#[inline(always)]
pub(super) fn length_fits(length: usize, mtu: usize, ends: bool) -> bool {
    if ends { length <= mtu } else { length == mtu }
}

/// True if a WRITE of `total` bytes may have received `so_far` bytes after a packet.
//= IBTA 9.7.4.1.6: write-is-as-long-as-it-said
#[inline(always)]
pub(super) fn write_fits(so_far: u64, total: u64, ends: bool) -> bool {
    if ends { so_far == total } else { so_far < total }
}

impl Message {
    /// True if a packet starts a message where none is in progress, or continues the one of its kind.
    //= IBTA 9.7.4.1: message-begins-with-first-or-only, message-is-not-interrupted
    #[inline(always)]
    pub(super) fn admits(&self, operation: Operation, begins: bool) -> bool {
        match self {
            Message::None => begins,
            Message::Send { .. } => !begins && operation == Operation::Send,
            Message::Write { .. } => !begins && operation == Operation::Write,
        }
    }
}

/// Returns the number of packets that carry `length` bytes. An empty message takes one packet.
#[inline(always)]
pub(super) fn packets_for(length: u64, mtu: usize) -> u32 {
    length.div_ceil(mtu as u64).max(1) as u32
}

/// Returns the number of PSNs that a work request takes: one for each packet of its payload or its response.
#[inline(always)]
pub(super) fn packets_of(wqe: &Wqe, mtu: usize) -> u32 {
    if !wqe.plain && wqe.wr.opcode.takes_resource() && wqe.wr.opcode != WrOpcode::Read {
        return 1;
    }
    //= IBTA 9.7.3: read-takes-a-psn-for-each-response
    packets_for(wqe.length(), mtu)
}
