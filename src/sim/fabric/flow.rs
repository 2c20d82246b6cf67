//! Which flow a frame belongs to.

use super::classify::{Ip, look};
use crate::wire::net::ROCE_V2_PORT;
use crate::wire::{Opcode, Operation, Psn, Qpn};

/// What a frame is to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowPart {
    /// Of a requester: it leads to the responder.
    Request,
    /// Of a responder: it leads to the requester.
    Response,
    /// A congestion notification: it leads to whose data was marked.
    Notification,
}

/// Which frames belong together: by the queue pair that they lead to, and by what they are to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowName {
    /// The station address of its destination.
    pub station: [u8; 6],
    /// The queue pair there.
    pub qpn: Qpn,
    /// What they are.
    pub part: FlowPart,
}

/// What a flow's frame says in its BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) operation: Operation,
    pub(super) psn: Psn,
}

/// The flow that a RoCE v2 frame belongs to. `None`: it is none.
pub(super) fn flow_of(frame: &[u8]) -> Option<(FlowName, Said)> {
    /// UDP, of the protocols of IP.
    const UDP: u8 = 17;
    /// Bytes of a UDP header.
    const UDP_HEADER: usize = 8;
    let udp = match look(frame).ip? {
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
    Some((flow, Said { operation: info.operation, psn: Psn::new(number(9)) }))
}
