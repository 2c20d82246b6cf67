//! What the two ends agreed on, as attributes of a QP.

use crate::verbs::{Access, AddressVector, Mtu, Psn, QpAttr, QpState, Qpn};
use crate::wire::cm::Transport;

use super::Route;

/// What a QP of a connection is to be set to: what `rdma_init_qp_attr` gives. On the passive side complete as soon as there is
/// a request, but for [`rq_psn`](Parameters::rq_psn) and the depths, which `accept` decides; on the active side with the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The way to the peer.
    pub route: Route,
    /// The transport service of both QPs.
    pub transport: Transport,
    /// We asked for the connection: of an XRC one, ours is the initiator.
    pub active: bool,
    /// Path MTU that both ends use.
    pub path_mtu: Mtu,
    /// The peer's QP; `None`: not known yet.
    pub dest_qpn: Option<Qpn>,
    /// The first PSN that the peer sends: what we told it.
    pub rq_psn: Psn,
    /// The first PSN that we send: what the peer told us.
    pub sq_psn: Psn,
    /// READs and atomics that we answer at a time: the smaller of what we offer and the peer uses.
    pub max_dest_rd_atomic: u8,
    /// READs and atomics that we may have outstanding: the smaller of what we want and the peer answers.
    pub max_rd_atomic: u8,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// How often a packet is sent again before the connection fails, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retries, as the peer asks for.
    pub rnr_retry: u8,
    /// The peer takes its receives from a shared queue.
    pub peer_srq: bool,
    /// The peer keeps end-to-end credits.
    pub peer_flow_control: bool,
}

impl Parameters {
    /// Nothing but the way.
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
        }
    }

    /// For RESET to INIT; `access` is the consumer's choice.
    pub fn init(&self, access: Access) -> QpAttr {
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(access),
            ..QpAttr::default()
        }
    }

    /// Our QP answers READs and atomics: of an XRC connection, the end that was asked has receives, and nothing else.
    pub fn answers(&self) -> bool {
        self.transport == Transport::Rc || self.transport == Transport::Xrc && !self.active
    }

    /// Our QP sends requests that are acknowledged.
    pub fn asks(&self) -> bool {
        self.transport == Transport::Rc || self.transport == Transport::Xrc && self.active
    }

    /// For INIT to RTR, with the route resolved to `av`. The RNR timer that is asked of the peer is no part of the agreement.
    /// `None`: the peer's QP is not known yet.
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
            ..QpAttr::default()
        })
    }

    /// For RTR to RTS.
    pub fn rts(&self) -> QpAttr {
        let asks = self.asks();
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(self.sq_psn),
            timeout: (asks || self.answers()).then_some(self.timeout),
            retry_cnt: asks.then_some(self.retry_cnt),
            rnr_retry: asks.then_some(self.rnr_retry),
            max_rd_atomic: asks.then_some(self.max_rd_atomic),
            ..QpAttr::default()
        }
    }
}
