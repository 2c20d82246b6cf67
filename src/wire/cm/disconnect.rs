//! DREQ and DREP: release of a connection (IBTA 12.6.10, 12.6.11).

use crate::Qpn;

use super::fields::{Fields, FieldsMut};
use super::{CommId, Kind, PrivateData};

/// Request for release (IBTA table 105).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dreq {
    /// Communication ID of the sender.
    pub local_comm_id: CommId,
    /// Communication ID of the receiver.
    pub remote_comm_id: CommId,
    /// QPN of the receiver.
    pub remote_qpn: Qpn,
    /// Private data of the consumer, 220 bytes.
    pub private_data: PrivateData,
}

impl Dreq {
    pub(super) fn read(f: Fields<'_>) -> Dreq {
        Dreq {
            local_comm_id: f.comm_id(0),
            remote_comm_id: f.comm_id(4),
            remote_qpn: f.qpn(8),
            private_data: f.private_data(12, Kind::Dreq),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.comm_id(0, self.local_comm_id);
        f.comm_id(4, self.remote_comm_id);
        f.u24(8, self.remote_qpn.value());
        f.private_data(12, Kind::Dreq, &self.private_data);
    }
}

/// Reply to a request for release (IBTA table 106).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drep {
    /// Communication ID of the sender.
    pub local_comm_id: CommId,
    /// Communication ID of the receiver.
    pub remote_comm_id: CommId,
    /// Private data of the consumer, 224 bytes.
    pub private_data: PrivateData,
}

impl Drep {
    pub(super) fn read(f: Fields<'_>) -> Drep {
        Drep {
            local_comm_id: f.comm_id(0),
            remote_comm_id: f.comm_id(4),
            private_data: f.private_data(8, Kind::Drep),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.comm_id(0, self.local_comm_id);
        f.comm_id(4, self.remote_comm_id);
        f.private_data(8, Kind::Drep, &self.private_data);
    }
}
