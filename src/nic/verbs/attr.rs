//! QP attributes, the arguments of `create_qp` and `modify_qp`.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

use roxie_base::limits::{MAX_INLINE, MAX_SGE, MAX_WR};
use roxie_base::time::Nanos;
use roxie_wire::Encapsulation;

use super::{Access, Gid, Mtu, Psn, QpState, QpType, Qpn};

/// Capacities of a QP's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCaps {
    /// Maximum number of outstanding send work requests.
    pub max_send_wr: u32,
    /// Maximum number of outstanding receive work requests.
    pub max_recv_wr: u32,
    /// Maximum number of scatter/gather entries of a send.
    pub max_send_sge: u32,
    /// Maximum number of scatter entries of a receive.
    pub max_recv_sge: u32,
    /// Maximum bytes of inline payload.
    pub max_inline: u32,
}

impl QpCaps {
    /// Capacities of a QP without queues.
    pub const NONE: QpCaps =
        QpCaps { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };

    /// Returns the first capacity beyond the device's limit: name, value and limit.
    pub fn beyond_limit(&self) -> Option<(&'static str, u32, u32)> {
        [
            ("max_send_wr", self.max_send_wr, MAX_WR),
            ("max_recv_wr", self.max_recv_wr, MAX_WR),
            ("max_send_sge", self.max_send_sge, MAX_SGE as u32),
            ("max_recv_sge", self.max_recv_sge, MAX_SGE as u32),
            ("max_inline_data", self.max_inline, MAX_INLINE as u32),
        ]
        .into_iter()
        .find(|(_, value, limit)| value > limit)
    }
}

impl Default for QpCaps {
    fn default() -> QpCaps {
        QpCaps { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline: 64 }
    }
}

/// Attributes at creation (`ibv_qp_init_attr`, without the queues).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInit {
    /// Transport service; fixed for the life of the QP.
    pub qp_type: QpType,
    /// Capacities of the queues.
    pub caps: QpCaps,
    /// Every send generates a completion, signaled or not.
    pub sq_sig_all: bool,
}

/// The path to a peer, resolved to the MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressVector {
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID, an IP address.
    pub dgid: Gid,
    /// Source MAC address.
    pub smac: [u8; 6],
    /// MAC address of the next hop.
    pub dmac: [u8; 6],
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits. A value other than 0 determines the UDP source port.
    pub flow_label: u32,
    /// IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
    /// Service level: the 802.1Q priority, unless the port derives the priority from DSCP.
    pub sl: u8,
    /// Maximum rate as a code of `ibv_rate` (IBTA 9.11.1); 0: the port's rate.
    pub static_rate: u8,
    /// RoCE version and VLAN of the source GID. VLAN 0 over sockets, where the kernel tags.
    pub encapsulation: Encapsulation,
}

impl AddressVector {
    /// Returns a path of RoCE v2 without a VLAN: traffic class and flow label 0, hop limit 64, service level 0, the
    /// port's rate.
    pub fn new(sgid: Gid, dgid: Gid, smac: [u8; 6], dmac: [u8; 6]) -> AddressVector {
        AddressVector {
            sgid,
            dgid,
            smac,
            dmac,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            sl: 0,
            static_rate: 0,
            encapsulation: Encapsulation::default(),
        }
    }

    /// Returns the rate of `static_rate` in kb/s (IBTA 9.11.1; `enum ibv_rate`); `None`: unlimited.
    pub fn static_rate_kbps(&self) -> Option<u32> {
        const GBPS_BY_CODE: [f64; 25] = [
            0.0, 0.0, 2.5, 10.0, 30.0, 5.0, 20.0, 40.0, 60.0, 80.0, 120.0, 14.0, 56.0, 112.0, 168.0, 25.0,
            100.0, 200.0, 300.0, 28.0, 50.0, 400.0, 600.0, 800.0, 1200.0,
        ];
        let gbps = GBPS_BY_CODE.get(usize::from(self.static_rate)).filter(|gbps| **gbps > 0.0)?;
        Some((gbps * 1e6) as u32)
    }
}

/// Rate limit of a QP (`struct ibv_qp_rate_limit_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Rate in kb/s; 0: unlimited.
    pub kbps: u32,
    /// Bytes of the largest burst when the QP is behind its rate; 0: the device's default.
    pub max_burst: u32,
    /// Bytes of a typical packet. A burst is at least one of them. 0: the device's default.
    pub typical_packet: u16,
}

bitflags! {
    /// The attributes that a `modify_qp` sets (`ibv_qp_attr_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttrMask: u32 {
        /// The next state.
        const STATE = 1;
        /// The current state, as the caller assumes it.
        const CUR_STATE = 1 << 1;
        /// Request the SQ-drained event.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Access rights of a peer through the QP.
        const ACCESS_FLAGS = 1 << 3;
        /// Index of the partition key.
        const PKEY_INDEX = 1 << 4;
        /// Port number, always 1.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Address vector.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Transport retry count.
        const RETRY_CNT = 1 << 10;
        /// RNR retry count.
        const RNR_RETRY = 1 << 11;
        /// First PSN expected from the peer.
        const RQ_PSN = 1 << 12;
        /// READs and atomics outstanding as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// Timer code of the RNR NAKs that the QP sends.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN sent.
        const SQ_PSN = 1 << 16;
        /// READs and atomics outstanding as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes.
        const CAP = 1 << 19;
        /// The peer's QP number.
        const DEST_QPN = 1 << 20;
        /// Rate limit.
        const RATE_LIMIT = 1 << 25;
    }
}

/// Attributes for `modify_qp`. `Some` sets an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAttr {
    /// The next state.
    pub state: Option<QpState>,
    /// The current state, as the caller assumes it.
    pub cur_state: Option<QpState>,
    /// Request the SQ-drained event.
    pub en_sqd_async_notify: Option<bool>,
    /// Access rights of a peer through the QP.
    pub access: Option<Access>,
    /// Index into the P_Key table; only 0 exists (P_Key 0xffff).
    pub pkey_index: Option<u16>,
    /// Port number; only 1 exists.
    pub port: Option<u8>,
    /// Queue key that received datagrams must carry. The highest bit marks keys that only privileged
    /// consumers may set.
    pub qkey: Option<u32>,
    /// The path to the peer.
    pub av: Option<AddressVector>,
    /// Payload bytes of a full packet.
    pub path_mtu: Option<Mtu>,
    /// The peer's QP number.
    pub dest_qpn: Option<Qpn>,
    /// First PSN expected from the peer.
    pub rq_psn: Option<Psn>,
    /// First PSN to send.
    pub sq_psn: Option<Psn>,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: Option<u8>,
    /// Timer code of the RNR NAKs that the QP sends, 0 to 31.
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout code, 0 to 31: 4.096 us * 2^code; 0: no timeout.
    pub timeout: Option<u8>,
    /// Transport retry count before RETRY_EXC, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// RNR retry count, 0 to 6; 7: no limit.
    pub rnr_retry: Option<u8>,
    /// Rate limit.
    pub rate_limit: Option<RateLimit>,
    /// Selective repeat instead of go-back-N, on RC: only if the peer has agreed to it. Not of the verbs: no mask names
    /// it, and it takes effect in a transition to RTR or RTS.
    pub selective_repeat: Option<bool>,
}

impl QpAttr {
    /// Returns the mask of the attributes that are set.
    pub fn mask(&self) -> AttrMask {
        let bits = [
            (self.state.is_some(), AttrMask::STATE),
            (self.cur_state.is_some(), AttrMask::CUR_STATE),
            (self.en_sqd_async_notify.is_some(), AttrMask::EN_SQD_ASYNC_NOTIFY),
            (self.access.is_some(), AttrMask::ACCESS_FLAGS),
            (self.pkey_index.is_some(), AttrMask::PKEY_INDEX),
            (self.port.is_some(), AttrMask::PORT),
            (self.qkey.is_some(), AttrMask::QKEY),
            (self.av.is_some(), AttrMask::AV),
            (self.path_mtu.is_some(), AttrMask::PATH_MTU),
            (self.dest_qpn.is_some(), AttrMask::DEST_QPN),
            (self.rq_psn.is_some(), AttrMask::RQ_PSN),
            (self.sq_psn.is_some(), AttrMask::SQ_PSN),
            (self.max_dest_rd_atomic.is_some(), AttrMask::MAX_DEST_RD_ATOMIC),
            (self.max_rd_atomic.is_some(), AttrMask::MAX_QP_RD_ATOMIC),
            (self.min_rnr_timer.is_some(), AttrMask::MIN_RNR_TIMER),
            (self.timeout.is_some(), AttrMask::TIMEOUT),
            (self.retry_cnt.is_some(), AttrMask::RETRY_CNT),
            (self.rnr_retry.is_some(), AttrMask::RNR_RETRY),
            (self.rate_limit.is_some(), AttrMask::RATE_LIMIT),
        ];
        bits.into_iter().filter(|(set, _)| *set).fold(AttrMask::empty(), |mask, (_, bit)| mask | bit)
    }
}

/// The attributes of a QP in effect.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct QpAttributes {
    /// Access rights of a peer through the QP.
    pub access: Access,
    /// Payload bytes of a full packet.
    pub path_mtu: Mtu,
    /// The peer's QP number.
    pub dest_qpn: Qpn,
    /// Path to the peer, once set.
    pub av: Option<AddressVector>,
    /// Local ACK timeout code: 4.096 us * 2^code; 0: no timeout.
    pub timeout: u8,
    /// Transport retry count, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retry count, 0 to 6; 7: no limit.
    pub rnr_retry: u8,
    /// Timer code of the RNR NAKs that the QP sends.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// Queue key that received datagrams must carry.
    pub qkey: u32,
    /// MigReq bit of the BTH. ConnectX sends 1, rxe 0.
    pub mig_req: bool,
    /// Send and obey end-to-end credits in AETHs. Off by default, because Linux negotiates them off.
    pub end_to_end_credits: bool,
    /// Rate limit.
    pub rate_limit: Option<RateLimit>,
    /// Lost packets alone are sent again (selective repeat), as agreed with the peer. Off: go-back-N.
    pub selective_repeat: bool,
}

impl Default for QpAttributes {
    /// Attributes of a QP in RESET.
    fn default() -> QpAttributes {
        QpAttributes {
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
            selective_repeat: false,
        }
    }
}

impl QpAttributes {
    /// Returns the time to wait for an acknowledgement, 4.096 us * 2^code; `None`: no timeout.
    pub fn ack_timeout(&self) -> Option<Nanos> {
        //= IBTA 9.7.6.1.3 C9-140: ack-timeout-is-4-us-times-2-to-the-code, zero-timeout-is-none
        (self.timeout != 0).then(|| Nanos(4_096 << self.timeout))
    }

    /// Sets the attributes that `attr` has.
    pub(crate) fn apply(&mut self, attr: &QpAttr) {
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
        set(&mut self.selective_repeat, attr.selective_repeat);
        self.av = attr.av.or(self.av);
        self.rate_limit = attr.rate_limit.or(self.rate_limit);
    }
}
