//! Parameters of a connection, as attributes of its QP.

use crate::transport::door;
use crate::verbs::{Access, AddressVector, Mtu, Psn, QpAttr, QpState, Qpn};
use roxie_wire::cm::{Req, Transport};

use super::Route;

/// Agreed attributes of a connection's QP, as `rdma_init_qp_attr` returns them. On the passive side, they are complete
/// on arrival of the request, except [`rq_psn`](Parameters::rq_psn) and the depths, which `accept` sets. On the active
/// side, they are complete on arrival of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Path to the peer.
    pub route: Route,
    /// Transport service of both QPs.
    pub transport: Transport,
    /// True on the active side. The active QP of an XRC connection is the initiator.
    pub active: bool,
    /// Path MTU of both ends.
    pub path_mtu: Mtu,
    /// The peer's QP; `None` if not known yet.
    pub dest_qpn: Option<Qpn>,
    /// First PSN from the peer, as we told it.
    pub rq_psn: Psn,
    /// First PSN to the peer, as it told us.
    pub sq_psn: Psn,
    /// Number of READs and atomics that we execute at a time: the smaller of our offer and the peer's need.
    pub max_dest_rd_atomic: u8,
    /// Number of READs and atomics that we may have outstanding: the smaller of our need and the peer's offer.
    pub max_rd_atomic: u8,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Transport retries, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retries, set by the peer.
    pub rnr_retry: u8,
    /// True if the peer's QP uses a shared receive queue.
    pub peer_srq: bool,
    /// True if the peer's QP uses end-to-end credits.
    pub peer_flow_control: bool,
    /// True if both ends have selective repeat, which they tell each other in the private data of REQ and REP.
    pub selective_repeat: bool,
}

impl Parameters {
    /// Returns parameters of which only the path is known.
    pub(super) fn unknown(route: Route) -> Parameters {
        Parameters {
            route,
            transport: Transport::Reserved(0),
            active: false,
            path_mtu: Mtu::Mtu256,
            dest_qpn: None,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_dest_rd_atomic: 0,
            max_rd_atomic: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            peer_srq: false,
            peer_flow_control: false,
            selective_repeat: false,
        }
    }

    /// Returns the numbers of READs and atomics that a peer's request leaves to our side: at a time from the peer, and
    /// to it.
    pub(super) fn depths(req: &Req) -> (u8, u8) {
        door::depths(req.initiator_depth, req.responder_resources)
    }

    /// Returns the attributes for RESET to INIT. The consumer chooses `access`.
    pub fn init(&self, access: Access) -> QpAttr {
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(access),
            ..QpAttr::default()
        }
    }

    /// True if our QP executes READs and atomics: RC, or the target of an XRC connection.
    pub fn answers(&self) -> bool {
        self.transport == Transport::Rc || self.transport == Transport::Xrc && !self.active
    }

    /// True if our QP sends reliable requests: RC, or the initiator of an XRC connection.
    pub fn is_requester(&self) -> bool {
        self.transport == Transport::Rc || self.transport == Transport::Xrc && self.active
    }

    /// Returns the attributes for INIT to RTR. `av` is the resolved path. The RNR timer is not part of the agreement.
    /// Returns `None` if the peer's QP is not known yet.
    pub fn rtr(&self, av: AddressVector, min_rnr_timer: u8) -> Option<QpAttr> {
        let answers = self.answers();
        Some(QpAttr {
            state: Some(QpState::Rtr),
            av: Some(av),
            path_mtu: Some(self.path_mtu),
            dest_qpn: Some(self.dest_qpn?),
            rq_psn: Some(self.rq_psn),
            max_dest_rd_atomic: answers.then_some(self.max_dest_rd_atomic),
            min_rnr_timer: answers.then_some(min_rnr_timer),
            selective_repeat: self.selective_repeat.then_some(true),
            ..QpAttr::default()
        })
    }

    /// Returns the attributes for RTR to RTS.
    pub fn rts(&self) -> QpAttr {
        let requests = self.is_requester();
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(self.sq_psn),
            timeout: (requests || self.answers()).then_some(self.timeout),
            retry_cnt: requests.then_some(self.retry_cnt),
            rnr_retry: requests.then_some(self.rnr_retry),
            max_rd_atomic: requests.then_some(self.max_rd_atomic),
            ..QpAttr::default()
        }
    }
}
