//! Assigns frames to flows.

use super::classify::{Ip, classify};
use roxie_wire::net::ROCE_V2_PORT;
use roxie_wire::{Opcode, Operation, Psn, Qpn};

/// Direction and role of a frame within its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowPart {
    /// From the requester to the responder.
    Request,
    /// From the responder to the requester.
    Response,
    /// Congestion notification packet (CNP), sent to the source of the marked data.
    Notification,
}

/// Identifies a flow by its destination QP and its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowName {
    /// Destination MAC address.
    pub station: [u8; 6],
    /// QPN at the destination.
    pub qpn: Qpn,
    /// Part of the frames.
    pub part: FlowPart,
}

/// BTH fields of a flow's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameFields {
    pub(super) operation: Operation,
    pub(super) psn: Psn,
}

/// Returns the flow of a RoCE v2 frame, or `None` for other frames.
pub(super) fn flow_of(frame: &[u8]) -> Option<(FlowName, FrameFields)> {
    /// IP protocol number of UDP.
    const UDP: u8 = 17;
    /// Bytes of a UDP header.
    const UDP_HEADER: usize = 8;
    let udp = match classify(frame).ip? {
        Ip::V4(at) if frame[at + 9] == UDP => at + 4 * usize::from(frame[at] & 15),
        Ip::V6(at) if frame[at + 6] == UDP => at + 40,
        _ => return None,
    };
    let (header, bth) = frame.get(udp..)?.split_at_checked(UDP_HEADER)?;
    let bth: &[u8; 12] = bth.first_chunk()?;
    if u16::from_be_bytes([header[2], header[3]]) != ROCE_V2_PORT {
        return None;
    }
    let info = Opcode(bth[0]).info()?;
    let part = match info.operation {
        Operation::Cnp => FlowPart::Notification,
        _ if info.is_response() => FlowPart::Response,
        _ => FlowPart::Request,
    };
    let number = |at: usize| u32::from_be_bytes([0, bth[at], bth[at + 1], bth[at + 2]]);
    let flow = FlowName { station: *frame.first_chunk()?, qpn: Qpn::new(number(5)), part };
    Some((flow, FrameFields { operation: info.operation, psn: Psn::new(number(9)) }))
}
