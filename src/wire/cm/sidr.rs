//! SIDR_REQ and SIDR_REP: resolution of a service ID to a datagram QP (IBTA 12.11).

use core::fmt;

use crate::Qpn;
use crate::service_id::ServiceId;

use super::fields::{Fields, FieldsMut};
use super::refuse::Ari;
use super::{CommId, Kind, PrivateData};

/// Service ID resolution request (IBTA 12.11.1, table 114).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SidrReq {
    /// Identifier of the request, chosen by the requester.
    pub request_id: CommId,
    /// Partition key; 0xffff is the default partition's.
    pub pkey: u16,
    /// The service to resolve.
    pub service_id: ServiceId,
    /// Private data of the consumer, 216 bytes.
    pub private_data: PrivateData,
}

impl SidrReq {
    pub(super) fn read(f: Fields<'_>) -> SidrReq {
        SidrReq {
            request_id: f.comm_id(0),
            pkey: f.u16(4),
            service_id: ServiceId(f.u64(8)),
            private_data: f.private_data(16, Kind::SidrReq),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.comm_id(0, self.request_id);
        f.u16(4, self.pkey);
        f.u64(8, self.service_id.0);
        f.private_data(16, Kind::SidrReq, &self.private_data);
    }
}

/// Result of a service ID resolution (IBTA 12.11.2.1, table 116).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// QPN and Q_Key are valid.
    pub const VALID: SidrStatus = SidrStatus(0);
    /// The service ID is not supported.
    pub const UNSUPPORTED: SidrStatus = SidrStatus(1);
    /// Rejected by the consumer.
    pub const REJECTED: SidrStatus = SidrStatus(2);
    /// No QP is available.
    pub const NO_QP: SidrStatus = SidrStatus(3);
    /// Redirected to another port.
    pub const REDIRECT: SidrStatus = SidrStatus(4);
    /// The class version is not supported.
    pub const UNSUPPORTED_VERSION: SidrStatus = SidrStatus(5);
}

impl fmt::Display for SidrStatus {
    /// `1 (service ID not supported)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self.0 {
            0 => "valid",
            1 => "service ID not supported",
            2 => "rejected by the consumer",
            3 => "no QP available",
            4 => "redirected",
            5 => "class version not supported",
            _ => "unknown",
        };
        write!(f, "{} ({meaning})", self.0)
    }
}

/// Service ID resolution response (IBTA 12.11.2, table 115).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SidrRep {
    /// Identifier of the request, chosen by the requester.
    pub request_id: CommId,
    /// Result of the resolution.
    pub status: SidrStatus,
    /// Additional information about the status, at most 72 bytes. A received length above 72 counts as 72.
    pub info: Ari,
    /// QPN of the service.
    pub qpn: Qpn,
    /// The resolved service.
    pub service_id: ServiceId,
    /// Queue key of the QP.
    pub qkey: u32,
    /// Private data of the consumer, 136 bytes.
    pub private_data: PrivateData,
}

impl SidrRep {
    pub(super) fn read(f: Fields<'_>) -> SidrRep {
        SidrRep {
            request_id: f.comm_id(0),
            status: SidrStatus(f.u8(4)),
            info: Ari::read(f, 24, f.u8(5)),
            qpn: f.qpn(8),
            service_id: ServiceId(f.u64(12)),
            qkey: f.u32(20),
            private_data: f.private_data(96, Kind::SidrRep),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.comm_id(0, self.request_id);
        f.u8(4, self.status.0);
        f.u8(5, self.info.len() as u8);
        f.u24(8, self.qpn.value());
        f.u64(12, self.service_id.0);
        f.u32(20, self.qkey);
        f.bytes(24, Ari::LEN, &self.info);
        f.private_data(96, Kind::SidrRep, &self.private_data);
    }
}
