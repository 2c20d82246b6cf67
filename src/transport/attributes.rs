//! The attributes of a queue pair that are in force.

use crate::time::Nanos;
use crate::verbs::{Access, AddressVector, Mtu, QpAttr, RateLimit};
use crate::wire::Qpn;

/// Attributes in force.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// What a peer may do through the QP.
    pub access: Access,
    /// Payload of a full packet.
    pub path_mtu: Mtu,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// The path, once there is one.
    pub av: Option<AddressVector>,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// RNR retries, 7 = for ever.
    pub rnr_retry: u8,
    /// RNR timer code that we ask of the peer.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// The key that a datagram must present.
    pub qkey: u32,
    /// The BTH's MigReq bit: ConnectX sends 1, rxe 0.
    pub mig_req: bool,
    /// Give and heed credits in AETHs. Linux negotiates them off, so off is the default.
    pub end_to_end_credits: bool,
    /// How fast to send at most.
    pub rate_limit: Option<RateLimit>,
}

impl Default for Attributes {
    /// Those of a QP in RESET.
    fn default() -> Attributes {
        Attributes {
            access: Access::empty(),
            path_mtu: Mtu::Mtu256,
            dest_qpn: Qpn::new(0),
            av: None,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            qkey: 0,
            mig_req: false,
            end_to_end_credits: false,
            rate_limit: None,
        }
    }
}

impl Attributes {
    /// How long to wait for an acknowledgement: 4.096 us * 2^code; `None`: for ever.
    pub fn ack_timeout(&self) -> Option<Nanos> {
        //= IBTA 9.7.6.1.3 C9-140: ack-timeout-is-4-us-times-2-to-the-code, zero-timeout-is-none
        (self.timeout != 0).then(|| Nanos(4_096 << self.timeout))
    }

    pub(super) fn apply(&mut self, attr: &QpAttr) {
        fn set<T>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut self.access, attr.access);
        set(&mut self.path_mtu, attr.path_mtu);
        set(&mut self.dest_qpn, attr.dest_qpn);
        set(&mut self.timeout, attr.timeout);
        set(&mut self.retry_cnt, attr.retry_cnt);
        set(&mut self.rnr_retry, attr.rnr_retry);
        set(&mut self.min_rnr_timer, attr.min_rnr_timer);
        set(&mut self.max_rd_atomic, attr.max_rd_atomic);
        set(&mut self.max_dest_rd_atomic, attr.max_dest_rd_atomic);
        set(&mut self.qkey, attr.qkey);
        self.av = attr.av.or(self.av);
        self.rate_limit = attr.rate_limit.or(self.rate_limit);
    }
}
