//! MRA and REJ: delayed response and rejection (IBTA 12.6.6, 12.6.7).

use core::fmt;

use super::fields::{Fields, FieldsMut};
use super::{CommId, Kind, PrivateData};

/// The message that an MRA or a REJ refers to, 2 bits. In an MRA, 2 means a LAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stage {
    /// A REQ.
    #[default]
    Req,
    /// A REP.
    Rep,
    /// No message in particular (REJ), or a LAP (MRA).
    Other,
    /// Reserved value 3.
    Reserved,
}

impl Stage {
    fn from_code(code: u8) -> Stage {
        match code & 3 {
            0 => Stage::Req,
            1 => Stage::Rep,
            2 => Stage::Other,
            _ => Stage::Reserved,
        }
    }
}

/// Message receipt acknowledgement: the response will take longer (IBTA table 100).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mra {
    /// Communication ID of the sender.
    pub local_comm_id: CommId,
    /// Communication ID of the receiver; 0 if unknown.
    pub remote_comm_id: CommId,
    /// The received message.
    pub message: Stage,
    /// Time within which the response will come: 4.096 us * 2^code, 5 bits.
    pub service_timeout: u8,
    /// Private data of the consumer, 222 bytes.
    pub private_data: PrivateData,
}

impl Mra {
    pub(super) fn read(f: Fields<'_>) -> Mra {
        Mra {
            local_comm_id: f.comm_id(0),
            remote_comm_id: f.comm_id(4),
            message: Stage::from_code(f.bits(8, 6, 2)),
            service_timeout: f.bits(9, 3, 5),
            private_data: f.private_data(10, Kind::Mra),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.comm_id(0, self.local_comm_id);
        f.comm_id(4, self.remote_comm_id);
        f.bits(8, 6, 2, self.message as u8);
        f.bits(9, 3, 5, self.service_timeout);
        f.private_data(10, Kind::Mra, &self.private_data);
    }
}

/// Additional reject information: at most 72 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ari(PrivateData);

impl Ari {
    /// Maximum length in bytes.
    pub const LEN: usize = 72;

    /// Returns the information, truncated to 72 bytes.
    pub fn new(bytes: &[u8]) -> Ari {
        Ari(PrivateData::cut(&bytes[..bytes.len().min(Ari::LEN)]))
    }

    /// No information.
    pub const NONE: Ari = Ari(PrivateData::EMPTY);

    pub(super) fn read(f: Fields<'_>, at: usize, len: u8) -> Ari {
        Ari(f.bytes(at, usize::from(len).min(Ari::LEN)))
    }

    /// Returns the CA GUID in a rejection for a timeout.
    pub fn guid(&self) -> Option<u64> {
        self.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
    }
}

impl core::ops::Deref for Ari {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Reject (IBTA table 101).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rej {
    /// Communication ID of the sender; 0 if it has none.
    pub local_comm_id: CommId,
    /// Communication ID of the receiver; 0 if unknown.
    pub remote_comm_id: CommId,
    /// The rejected message.
    pub message: Stage,
    /// Reason of the rejection (IBTA 12.6.7.2).
    pub reason: RejReason,
    /// Additional information about the reason, at most 72 bytes. A received length of 73 to 127 counts as
    /// 72.
    pub ari: Ari,
    /// Private data of the consumer, 148 bytes.
    pub private_data: PrivateData,
}

impl Rej {
    pub(super) fn read(f: Fields<'_>) -> Rej {
        Rej {
            local_comm_id: f.comm_id(0),
            remote_comm_id: f.comm_id(4),
            message: Stage::from_code(f.bits(8, 6, 2)),
            reason: RejReason(f.u16(10)),
            ari: Ari::read(f, 12, f.bits(9, 1, 7)),
            private_data: f.private_data(84, Kind::Rej),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.comm_id(0, self.local_comm_id);
        f.comm_id(4, self.remote_comm_id);
        f.bits(8, 6, 2, self.message as u8);
        f.bits(9, 1, 7, self.ari.len() as u8);
        f.u16(10, self.reason.0);
        f.bytes(12, Ari::LEN, &self.ari);
        f.private_data(84, Kind::Rej, &self.private_data);
    }
}

/// Reason of a rejection (IBTA 12.6.7.2, table 102).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RejReason(pub u16);

impl RejReason {
    /// No QP is available.
    pub const NO_QP: RejReason = RejReason(1);
    /// No end-to-end context is available.
    pub const NO_EEC: RejReason = RejReason(2);
    /// No resources are available.
    pub const NO_RESOURCES: RejReason = RejReason(3);
    /// The response timed out.
    pub const TIMEOUT: RejReason = RejReason(4);
    /// The request is not supported.
    pub const UNSUPPORTED: RejReason = RejReason(5);
    /// No connection has the communication ID.
    pub const INVALID_COMM_ID: RejReason = RejReason(6);
    /// No such communication instance.
    pub const INVALID_COMM_INSTANCE: RejReason = RejReason(7);
    /// No listener for the service ID.
    pub const INVALID_SERVICE_ID: RejReason = RejReason(8);
    /// The transport service type is not supported.
    pub const INVALID_TRANSPORT: RejReason = RejReason(9);
    /// Stale connection: the QP is already connected.
    pub const STALE: RejReason = RejReason(10);
    /// No such reliable datagram channel.
    pub const RDC_NOT_EXIST: RejReason = RejReason(11);
    /// The GID of the primary path is not one of the port's.
    pub const INVALID_GID: RejReason = RejReason(12);
    /// The LID of the primary path is not one of the port's.
    pub const INVALID_LID: RejReason = RejReason(13);
    /// Invalid service level of the primary path.
    pub const INVALID_SL: RejReason = RejReason(14);
    /// Invalid traffic class of the primary path.
    pub const INVALID_TRAFFIC_CLASS: RejReason = RejReason(15);
    /// Invalid hop limit of the primary path.
    pub const INVALID_HOP_LIMIT: RejReason = RejReason(16);
    /// Invalid packet rate of the primary path.
    pub const INVALID_PACKET_RATE: RejReason = RejReason(17);
    /// The GID of the alternate path is not one of the port's.
    pub const INVALID_ALT_GID: RejReason = RejReason(18);
    /// The LID of the alternate path is not one of the port's.
    pub const INVALID_ALT_LID: RejReason = RejReason(19);
    /// Invalid service level of the alternate path.
    pub const INVALID_ALT_SL: RejReason = RejReason(20);
    /// Invalid traffic class of the alternate path.
    pub const INVALID_ALT_TRAFFIC_CLASS: RejReason = RejReason(21);
    /// Invalid hop limit of the alternate path.
    pub const INVALID_ALT_HOP_LIMIT: RejReason = RejReason(22);
    /// Invalid packet rate of the alternate path.
    pub const INVALID_ALT_PACKET_RATE: RejReason = RejReason(23);
    /// Redirected to another port's connection manager.
    pub const PORT_CM_REDIRECT: RejReason = RejReason(24);
    /// Redirected to another port.
    pub const PORT_REDIRECT: RejReason = RejReason(25);
    /// The path MTU exceeds the link's.
    pub const INVALID_MTU: RejReason = RejReason(26);
    /// Insufficient responder resources.
    pub const INSUFFICIENT_RESPONDER_RESOURCES: RejReason = RejReason(27);
    /// Rejected by the consumer; its reason is in the private data.
    pub const CONSUMER: RejReason = RejReason(28);
    /// Invalid RNR retry count.
    pub const INVALID_RNR_RETRY: RejReason = RejReason(29);
    /// The communication ID is in use already.
    pub const DUPLICATE_COMM_ID: RejReason = RejReason(30);
    /// Unsupported class version.
    pub const INVALID_CLASS_VERSION: RejReason = RejReason(31);
    /// Invalid flow label of the primary path.
    pub const INVALID_FLOW_LABEL: RejReason = RejReason(32);
    /// Invalid flow label of the alternate path.
    pub const INVALID_ALT_FLOW_LABEL: RejReason = RejReason(33);

    /// Returns the meaning of a reason that the specification defines.
    pub fn meaning(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "no QP available",
            2 => "no EEC available",
            3 => "no resources available",
            4 => "timeout",
            5 => "unsupported request",
            6 => "invalid communication ID",
            7 => "invalid communication instance",
            8 => "invalid service ID: no listener",
            9 => "invalid transport service type",
            10 => "stale connection",
            11 => "RDC does not exist",
            12 => "primary remote port GID rejected",
            13 => "primary remote port LID rejected",
            14 => "invalid primary SL",
            15 => "invalid primary traffic class",
            16 => "invalid primary hop limit",
            17 => "invalid primary packet rate",
            18 => "alternate remote port GID rejected",
            19 => "alternate remote port LID rejected",
            20 => "invalid alternate SL",
            21 => "invalid alternate traffic class",
            22 => "invalid alternate hop limit",
            23 => "invalid alternate packet rate",
            24 => "port and CM redirection",
            25 => "port redirection",
            26 => "invalid path MTU",
            27 => "insufficient responder resources",
            28 => "consumer reject",
            29 => "RNR retry count rejected",
            30 => "duplicate local communication ID",
            31 => "unsupported class version",
            32 => "invalid primary flow label",
            33 => "invalid alternate flow label",
            _ => return None,
        })
    }
}

impl fmt::Display for RejReason {
    /// `10 (stale connection)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.meaning().unwrap_or("unknown"))
    }
}
