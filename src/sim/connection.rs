//! Connects queue pairs of simulated hosts with default attributes.

use super::{Host, HostQp};
use roxie_base::time::Nanos;
use roxie_nic::nic::ControlError;
use roxie_nic::verbs::{Access, AddressVector, Mtu, Psn, QpAttr, QpState, QpType, Qpn};

/// Parameters of a connection, as one end needs them. The ends start at PSN 0 and retry RNR NAKs without limit.
#[derive(Clone, Copy, Debug)]
pub struct Connected {
    /// QPN of the peer.
    pub peer: Qpn,
    /// The path to the peer's host.
    pub path: AddressVector,
    /// Payload of a full packet (path MTU).
    pub path_mtu: Mtu,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Outstanding READs and atomics, as initiator and as target.
    pub rd_atomic: u8,
}

impl Connected {
    /// Returns the transitions from RESET to RTS. QPs other than RC omit the attributes that belong to
    /// acknowledgements.
    pub fn steps(&self, qp_type: QpType) -> [QpAttr; 3] {
        let rc = |value: u8| (qp_type == QpType::Rc).then_some(value);
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        let init = QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::READ_WRITE),
            ..to(QpState::Init)
        };
        let rtr = QpAttr {
            av: Some(self.path),
            path_mtu: Some(self.path_mtu),
            dest_qpn: Some(self.peer),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: rc(self.rd_atomic),
            min_rnr_timer: rc(12),
            ..to(QpState::Rtr)
        };
        let rts = QpAttr {
            sq_psn: Some(Psn::new(0)),
            timeout: rc(self.timeout),
            retry_cnt: rc(7),
            rnr_retry: rc(7),
            max_rd_atomic: rc(self.rd_atomic),
            ..to(QpState::Rts)
        };
        [init, rtr, rts]
    }
}

impl Host {
    /// Takes an RC or UC QP from RESET to RTS.
    ///
    /// # Errors
    /// The NIC's error if it refuses a transition.
    pub fn connect(&mut self, qp: &HostQp, to: &Connected) -> Result<(), ControlError> {
        let qp_type = self.query(Nanos::ZERO, qp).qp_type;
        to.steps(qp_type).iter().try_for_each(|attr| self.modify(Nanos::ZERO, qp, attr))
    }
}
