//! LAP and APR: alternate paths (IBTA 12.8). RoCE has none; a LAP is rejected.

use crate::{Gid, Qpn};

use super::fields::{Fields, FieldsMut};
use super::refuse::Ari;
use super::{CommId, Kind, PrivateData};

/// Load alternate path (IBTA 12.8.1, table 111).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lap {
    /// Communication ID of the sender.
    pub local_comm_id: CommId,
    /// Communication ID of the receiver.
    pub remote_comm_id: CommId,
    /// QPN of the receiver.
    pub remote_qpn: Qpn,
    /// Time within which the receiver must respond: 4.096 us * 2^code, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// The sender's LID; 0xffff on Ethernet.
    pub local_lid: u16,
    /// The receiver's LID; 0xffff on Ethernet.
    pub remote_lid: u16,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's GID.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Packet rate code, 6 bits.
    pub packet_rate: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// True if both ends are in one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout code, 5 bits.
    pub local_ack_timeout: u8,
    /// Private data of the consumer, 168 bytes.
    pub private_data: PrivateData,
}

impl Lap {
    pub(super) fn read(f: Fields<'_>) -> Lap {
        let word = f.u32(56); // flow label 20, reserved 4, traffic class 8
        Lap {
            local_comm_id: f.comm_id(0),
            remote_comm_id: f.comm_id(4),
            remote_qpn: f.qpn(12),
            remote_cm_response_timeout: f.bits(15, 3, 5),
            local_lid: f.u16(20),
            remote_lid: f.u16(22),
            local_gid: f.gid(24),
            remote_gid: f.gid(40),
            flow_label: word >> 12,
            traffic_class: word as u8,
            hop_limit: f.u8(60),
            packet_rate: f.bits(61, 0, 6),
            sl: f.bits(62, 4, 4),
            subnet_local: f.bit(62, 3),
            local_ack_timeout: f.bits(63, 3, 5),
            private_data: f.private_data(64, Kind::Lap),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.comm_id(0, self.local_comm_id);
        f.comm_id(4, self.remote_comm_id);
        f.u24(12, self.remote_qpn.value());
        f.bits(15, 3, 5, self.remote_cm_response_timeout);
        f.u16(20, self.local_lid);
        f.u16(22, self.remote_lid);
        f.gid(24, self.local_gid);
        f.gid(40, self.remote_gid);
        f.u32(56, (self.flow_label & 0x000f_ffff) << 12 | u32::from(self.traffic_class));
        f.u8(60, self.hop_limit);
        f.bits(61, 0, 6, self.packet_rate);
        f.bits(62, 4, 4, self.sl);
        f.bit(62, 3, self.subnet_local);
        f.bits(63, 3, 5, self.local_ack_timeout);
        f.private_data(64, Kind::Lap, &self.private_data);
    }
}

/// Result of loading an alternate path (IBTA 12.8.2.1, table 113).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AprStatus(pub u8);

impl AprStatus {
    /// The alternate path is loaded.
    pub const LOADED: AprStatus = AprStatus(0);
    /// No connection has the communication ID.
    pub const INVALID_COMM_ID: AprStatus = AprStatus(1);
    /// Alternate paths are not supported.
    pub const UNSUPPORTED: AprStatus = AprStatus(2);
    /// The alternate path is rejected.
    pub const REJECTED: AprStatus = AprStatus(3);
}

/// Alternate path response (IBTA 12.8.2, table 112).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Apr {
    /// Communication ID of the sender.
    pub local_comm_id: CommId,
    /// Communication ID of the receiver.
    pub remote_comm_id: CommId,
    /// Result of the LAP.
    pub status: AprStatus,
    /// Additional information about the status, at most 72 bytes. A received length above 72 counts as 72.
    pub info: Ari,
    /// Private data of the consumer, 148 bytes.
    pub private_data: PrivateData,
}

impl Apr {
    pub(super) fn read(f: Fields<'_>) -> Apr {
        Apr {
            local_comm_id: f.comm_id(0),
            remote_comm_id: f.comm_id(4),
            status: AprStatus(f.u8(9)),
            info: Ari::read(f, 12, f.u8(8)),
            private_data: f.private_data(84, Kind::Apr),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.comm_id(0, self.local_comm_id);
        f.comm_id(4, self.remote_comm_id);
        f.u8(8, self.info.len() as u8);
        f.u8(9, self.status.0);
        f.bytes(12, Ari::LEN, &self.info);
        f.private_data(84, Kind::Apr, &self.private_data);
    }
}
