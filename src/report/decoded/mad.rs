//! Management datagrams (MADs): the content of UD packets to QP1 (IBTA 13.4, 12.6).

use std::fmt;

use roxie::frame::Frame;
use roxie::wire::cm::{CmMessage, Kind};
use roxie::wire::mad::{CLASS_CM, MAD_LEN, MadHeader};
use roxie::wire::{Operation, Packet, Qpn, Service};
use serde::{Serialize, Serializer};

/// A MAD's header, and its message if it belongs to communication management.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mad {
    class: u8,
    method: u8,
    status: u16,
    tid: u64,
    attribute: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'static str>,
    /// The communication management message; `None` if the capture truncated it, or for another class.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_words")]
    message: Option<Box<CmMessage>>,
}

impl Mad {
    /// Returns the MAD of a packet, if it carries one.
    pub fn read(packet: &Packet, frame: &Frame<'_>) -> Option<Mad> {
        let info = packet.info();
        if info.service != Service::Ud || info.operation != Operation::Send || packet.bth.dest_qp != Qpn::GSI
        {
            return None;
        }
        let mut bytes = [0; MAD_LEN];
        let len = frame.copy_to(packet.payload.start, &mut bytes).min(packet.payload.len());
        let bytes = bytes.get(..len)?;
        let header = MadHeader::read(bytes)?;
        let cm = header.class == CLASS_CM;
        Some(Mad {
            class: header.class,
            method: header.method,
            status: header.status,
            tid: header.tid,
            attribute: header.attribute,
            name: Kind::from_attribute(header.attribute).filter(|_| cm).map(Kind::name),
            message: CmMessage::read(bytes).ok().map(|(_, message)| Box::new(message)),
        })
    }

    /// Returns the communication management message with all fields, if the MAD is one.
    pub fn message(&self) -> Option<&CmMessage> {
        self.message.as_deref()
    }
}

fn in_words<S: Serializer>(message: &Option<Box<CmMessage>>, out: S) -> Result<S::Ok, S::Error> {
    match message {
        Some(message) => out.collect_str(message),
        None => out.serialize_none(),
    }
}

impl fmt::Display for Mad {
    /// Writes `CM REQ tid 0x…`, or the numbers of another class.
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
