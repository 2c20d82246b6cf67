//! The messages of communication management (IBTA 12.6), encoded and decoded.
//!
//! A [`CmMessage`] and its transaction ID form one management datagram: see [`CmMessage::read`] and
//! [`CmMessage::to_mad`]. Reserved bits are written as zeros and ignored on receipt. Names are the
//! specification's.

mod alternate;
mod connect;
mod disconnect;
mod display;
mod fields;
mod private_data;
mod refuse;
mod sidr;

pub use alternate::{Apr, AprStatus, Lap};
pub use connect::{Path, Rep, Req, Rtu, Transport};
pub use disconnect::{Drep, Dreq};
pub use private_data::{PrivateData, TooLong};
pub use refuse::{Ari, Mra, Rej, RejReason, Stage};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use core::fmt;

use super::mad::{CLASS_CM, CLASS_CM_VERSION, MAD_HEADER_LEN, MAD_LEN, METHOD_SEND, MadHeader};
use fields::{Fields, FieldsMut};

/// Communication ID: an end's identifier of a connection, unique at that end (IBTA 12.6.2). 0 before it is
/// known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommId(pub u32);

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Message type: the attribute ID (IBTA 12.6, table 97).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum Kind {
    /// Request for communication.
    Req = 0x10,
    /// Message receipt acknowledgement: the response will take longer.
    Mra = 0x11,
    /// Reject.
    Rej = 0x12,
    /// Reply to a request.
    Rep = 0x13,
    /// Ready to use.
    Rtu = 0x14,
    /// Request for release.
    Dreq = 0x15,
    /// Reply to a request for release.
    Drep = 0x16,
    /// Service ID resolution request.
    SidrReq = 0x17,
    /// Service ID resolution response.
    SidrRep = 0x18,
    /// Load alternate path.
    Lap = 0x19,
    /// Alternate path response.
    Apr = 0x1a,
}

impl Kind {
    /// All message types, by attribute ID.
    pub const ALL: [Kind; 11] = [
        Kind::Req,
        Kind::Mra,
        Kind::Rej,
        Kind::Rep,
        Kind::Rtu,
        Kind::Dreq,
        Kind::Drep,
        Kind::SidrReq,
        Kind::SidrRep,
        Kind::Lap,
        Kind::Apr,
    ];

    /// Returns the message type of an attribute ID.
    pub fn from_attribute(attribute: u16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u16 == attribute)
    }

    /// Returns the name in the specification: `REQ`, `SIDR_REP`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Req => "REQ",
            Kind::Mra => "MRA",
            Kind::Rej => "REJ",
            Kind::Rep => "REP",
            Kind::Rtu => "RTU",
            Kind::Dreq => "DREQ",
            Kind::Drep => "DREP",
            Kind::SidrReq => "SIDR_REQ",
            Kind::SidrRep => "SIDR_REP",
            Kind::Lap => "LAP",
            Kind::Apr => "APR",
        }
    }

    /// Returns the size of the message's private data in bytes.
    pub const fn private_data_len(self) -> usize {
        match self {
            Kind::Req => 92,
            Kind::Mra => 222,
            Kind::Rej => 148,
            Kind::Rep => 196,
            Kind::Rtu | Kind::Drep => 224,
            Kind::Dreq => 220,
            Kind::SidrReq => 216,
            Kind::SidrRep => 136,
            Kind::Lap => 168,
            Kind::Apr => 148,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a datagram is not a message of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCm {
    /// Fewer than 256 bytes, or another base version.
    NoMad {
        /// Length of the datagram in bytes.
        len: usize,
    },
    /// Another management class.
    Class(u8),
    /// Another class version.
    ClassVersion(u8),
    /// A method other than Send.
    Method(u8),
    /// Unknown attribute ID.
    Attribute(u16),
}

impl fmt::Display for NotCm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            NotCm::NoMad { len } => {
                write!(f, "no management datagram: {len} bytes, must be {MAD_LEN} of base version 1")
            }
            NotCm::Class(class) => {
                write!(f, "management class {class:#04x} is not communication management ({CLASS_CM:#04x})")
            }
            NotCm::ClassVersion(version) => {
                write!(f, "version {version} of communication management is not {CLASS_CM_VERSION}")
            }
            NotCm::Method(method) => write!(f, "method {method:#04x} is not Send ({METHOD_SEND:#04x})"),
            NotCm::Attribute(id) => {
                write!(f, "attribute {id:#06x} is no message of communication management")
            }
        }
    }
}

impl core::error::Error for NotCm {}

/// A message of communication management.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmMessage {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledgement.
    Mra(Mra),
    /// Reject.
    Rej(Rej),
    /// Reply.
    Rep(Rep),
    /// Ready to use.
    Rtu(Rtu),
    /// Request for release.
    Dreq(Dreq),
    /// Reply to a request for release.
    Drep(Drep),
    /// Service ID resolution request.
    SidrReq(SidrReq),
    /// Service ID resolution response.
    SidrRep(SidrRep),
    /// Load alternate path.
    Lap(Lap),
    /// Alternate path response.
    Apr(Apr),
}

impl CmMessage {
    /// Returns the message type.
    pub fn kind(&self) -> Kind {
        match self {
            CmMessage::Req(_) => Kind::Req,
            CmMessage::Mra(_) => Kind::Mra,
            CmMessage::Rej(_) => Kind::Rej,
            CmMessage::Rep(_) => Kind::Rep,
            CmMessage::Rtu(_) => Kind::Rtu,
            CmMessage::Dreq(_) => Kind::Dreq,
            CmMessage::Drep(_) => Kind::Drep,
            CmMessage::SidrReq(_) => Kind::SidrReq,
            CmMessage::SidrRep(_) => Kind::SidrRep,
            CmMessage::Lap(_) => Kind::Lap,
            CmMessage::Apr(_) => Kind::Apr,
        }
    }

    /// Decodes a management datagram into transaction ID and message. Bytes behind the 256th are ignored.
    ///
    /// # Errors
    /// If the datagram is not a message of communication management.
    pub fn read(mad: &[u8]) -> Result<(u64, CmMessage), NotCm> {
        let none = NotCm::NoMad { len: mad.len() };
        let mad: &[u8; MAD_LEN] = mad.first_chunk().ok_or(none)?;
        let header = MadHeader::read(mad).ok_or(none)?;
        if header.class != CLASS_CM {
            return Err(NotCm::Class(header.class));
        }
        if header.class_version != CLASS_CM_VERSION {
            return Err(NotCm::ClassVersion(header.class_version));
        }
        if header.method != METHOD_SEND {
            return Err(NotCm::Method(header.method));
        }
        let kind = Kind::from_attribute(header.attribute).ok_or(NotCm::Attribute(header.attribute))?;
        let f = Fields(&mad[MAD_HEADER_LEN..]);
        let message = match kind {
            Kind::Req => CmMessage::Req(Req::read(f)),
            Kind::Mra => CmMessage::Mra(Mra::read(f)),
            Kind::Rej => CmMessage::Rej(Rej::read(f)),
            Kind::Rep => CmMessage::Rep(Rep::read(f)),
            Kind::Rtu => CmMessage::Rtu(Rtu::read(f)),
            Kind::Dreq => CmMessage::Dreq(Dreq::read(f)),
            Kind::Drep => CmMessage::Drep(Drep::read(f)),
            Kind::SidrReq => CmMessage::SidrReq(SidrReq::read(f)),
            Kind::SidrRep => CmMessage::SidrRep(SidrRep::read(f)),
            Kind::Lap => CmMessage::Lap(Lap::read(f)),
            Kind::Apr => CmMessage::Apr(Apr::read(f)),
        };
        Ok((header.tid, message))
    }

    /// Encodes the message as a management datagram. Of a field narrower than its type, the low bits are
    /// used. Private data is truncated to the size of the message's field.
    pub fn to_mad(&self, tid: u64) -> [u8; MAD_LEN] {
        let header = MadHeader {
            class: CLASS_CM,
            class_version: CLASS_CM_VERSION,
            method: METHOD_SEND,
            tid,
            attribute: self.kind() as u16,
            ..MadHeader::default()
        };
        let mut mad = [0; MAD_LEN];
        let (head, body) = mad.split_at_mut(MAD_HEADER_LEN);
        head.copy_from_slice(&header.to_bytes());
        let f = &mut FieldsMut(body);
        match self {
            CmMessage::Req(m) => m.write(f),
            CmMessage::Mra(m) => m.write(f),
            CmMessage::Rej(m) => m.write(f),
            CmMessage::Rep(m) => m.write(f),
            CmMessage::Rtu(m) => m.write(f),
            CmMessage::Dreq(m) => m.write(f),
            CmMessage::Drep(m) => m.write(f),
            CmMessage::SidrReq(m) => m.write(f),
            CmMessage::SidrRep(m) => m.write(f),
            CmMessage::Lap(m) => m.write(f),
            CmMessage::Apr(m) => m.write(f),
        }
        mad
    }
}
