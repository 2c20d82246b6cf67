//! Management datagrams: what a UD packet to QP 1 carries (IBTA 13.4, 12.6).

use std::fmt;

use roxie::frame::Frame;
use roxie::wire::{Operation, Packet, Qpn, Service};
use serde::Serialize;

/// The header of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Mad {
    class: u8,
    method: u8,
    status: u16,
    tid: u64,
    attribute: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'static str>,
}

/// The management class of the connection manager.
const CLASS_CM: u8 = 0x07;

impl Mad {
    /// The MAD of a packet, if it carries one.
    pub(super) fn read(packet: &Packet, frame: &Frame<'_>) -> Option<Mad> {
        let info = packet.info();
        if info.service != Service::Ud || info.operation != Operation::Send || packet.bth.dest_qp != Qpn::GSI
        {
            return None;
        }
        let mut bytes = [0; 24];
        if packet.payload.len() < 24 || frame.copy_to(packet.payload.start, &mut bytes) < 24 {
            return None;
        }
        let [1, class, _, method, s0, s1, _, _, tid @ .., a0, a1, _, _, _, _, _, _] = bytes else {
            return None; // base version 1 is the only one
        };
        let attribute = u16::from_be_bytes([a0, a1]);
        Some(Mad {
            class,
            method,
            status: u16::from_be_bytes([s0, s1]),
            tid: u64::from_be_bytes(tid),
            attribute,
            name: if class == CLASS_CM { cm_name(attribute) } else { None },
        })
    }
}

fn cm_name(attribute: u16) -> Option<&'static str> {
    Some(match attribute {
        0x10 => "REQ",
        0x11 => "MRA",
        0x12 => "REJ",
        0x13 => "REP",
        0x14 => "RTU",
        0x15 => "DREQ",
        0x16 => "DREP",
        0x17 => "SIDR_REQ",
        0x18 => "SIDR_REP",
        0x19 => "LAP",
        0x1a => "APR",
        _ => return None,
    })
}

impl fmt::Display for Mad {
    /// `CM REQ tid 0x…`, or the numbers of another class.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => write!(f, "CM {name} tid {:#x}", self.tid),
            None => write!(
                f,
                "MAD class {:#04x} method {:#04x} attribute {:#06x} tid {:#x}",
                self.class, self.method, self.attribute, self.tid
            ),
        }
    }
}
