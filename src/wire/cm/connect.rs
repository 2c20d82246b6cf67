//! REQ, REP and RTU: establishment of a connection (IBTA 12.6.5, 12.6.8, 12.6.9).

use crate::{Gid, Psn, Qpn};

use super::fields::{Fields, FieldsMut};
use super::{CommId, Kind, PrivateData};
use crate::service_id::ServiceId;

/// Transport service of the QPs to be connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram, with end-to-end contexts.
    Rd,
    /// Extended reliable connection (IBTA annex A14).
    Xrc,
    /// Reserved value; holds the extended transport type.
    Reserved(u8),
}

impl Transport {
    fn from_codes(service: u8, extended: u8) -> Transport {
        match (service, extended) {
            (0, _) => Transport::Rc,
            (1, _) => Transport::Uc,
            (2, _) => Transport::Rd,
            (_, 1) => Transport::Xrc,
            (_, extended) => Transport::Reserved(extended),
        }
    }

    /// Returns transport service type and extended transport type.
    fn codes(self) -> (u8, u8) {
        match self {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Rd => (2, 0),
            Transport::Xrc => (3, 1),
            Transport::Reserved(extended) => (3, extended),
        }
    }
}

/// A path between two ports, as in a REQ (IBTA 12.7.11 to 12.7.21). RoCE identifies ports by the GIDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The sender's LID; 0xffff on RoCE.
    pub local_lid: u16,
    /// The receiver's LID; 0xffff on RoCE.
    pub remote_lid: u16,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's GID.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Packet rate code, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// True if both ends are in one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout code, 5 bits: 4.096 us * 2^code.
    pub local_ack_timeout: u8,
}

impl Path {
    /// Decodes the 44 bytes at `at` of a REQ.
    fn read(f: Fields<'_>, at: usize) -> Path {
        Path {
            local_lid: f.u16(at),
            remote_lid: f.u16(at + 2),
            local_gid: f.gid(at + 4),
            remote_gid: f.gid(at + 20),
            flow_label: f.u24(at + 36) >> 4,
            packet_rate: f.bits(at + 39, 0, 6),
            traffic_class: f.u8(at + 40),
            hop_limit: f.u8(at + 41),
            sl: f.bits(at + 42, 4, 4),
            subnet_local: f.bit(at + 42, 3),
            local_ack_timeout: f.bits(at + 43, 3, 5),
        }
    }

    fn write(&self, f: &mut FieldsMut<'_>, at: usize) {
        f.u16(at, self.local_lid);
        f.u16(at + 2, self.remote_lid);
        f.gid(at + 4, self.local_gid);
        f.gid(at + 20, self.remote_gid);
        f.u24(at + 36, (self.flow_label & 0x000f_ffff) << 4);
        f.bits(at + 39, 0, 6, self.packet_rate);
        f.u8(at + 40, self.traffic_class);
        f.u8(at + 41, self.hop_limit);
        f.bits(at + 42, 4, 4, self.sl);
        f.bit(at + 42, 3, self.subnet_local);
        f.bits(at + 43, 3, 5, self.local_ack_timeout);
    }
}

/// Request for communication (IBTA 12.6.5, table 99).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Req {
    /// Communication ID of the sender.
    pub local_comm_id: CommId,
    /// The requested service.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Queue key, for datagram services.
    pub local_qkey: u32,
    /// QPN of the sender.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender accepts outstanding as responder.
    pub responder_resources: u8,
    /// The sender's end-to-end context (RD), 24 bits.
    pub local_eecn: u32,
    /// READs and atomics that the sender will have outstanding as initiator.
    pub initiator_depth: u8,
    /// The receiver's end-to-end context (RD), 24 bits.
    pub remote_eecn: u32,
    /// Time within which the receiver must respond to the REQ: 4.096 us * 2^code, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// Transport service of the QPs.
    pub transport: Transport,
    /// True if the sender's QP implements end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// PSN with which the receiver must begin to send (IBTA 12.7.31; Linux: the sender's `rq_psn`).
    pub starting_psn: Psn,
    /// Time within which the sender will respond to a REP: 4.096 us * 2^code, 5 bits.
    pub local_cm_response_timeout: u8,
    /// Transport retry count for the receiver's QP, 3 bits.
    pub retry_count: u8,
    /// Partition key; 0xffff is the default partition's.
    pub pkey: u16,
    /// Path MTU code, 4 bits: 1 (256 bytes) to 5 (4096).
    pub path_mtu: u8,
    /// True if a reliable datagram channel exists already.
    pub rdc_exists: bool,
    /// RNR retry count for the receiver's QP, 3 bits; 7: no limit.
    pub rnr_retry_count: u8,
    /// Times that the receiver may resend a REP or DREQ, 4 bits.
    pub max_cm_retries: u8,
    /// True if the sender's QP uses an SRQ.
    pub srq: bool,
    /// The path of the connection.
    pub primary_path: Path,
    /// Path to migrate to; all zeros: none.
    pub alternate_path: Path,
    /// Private data of the consumer, 92 bytes.
    pub private_data: PrivateData,
}

impl Req {
    pub(super) fn read(f: Fields<'_>) -> Req {
        Req {
            local_comm_id: f.comm_id(0),
            service_id: ServiceId(f.u64(8)),
            local_ca_guid: f.u64(16),
            local_qkey: f.u32(28),
            local_qpn: f.qpn(32),
            responder_resources: f.u8(35),
            local_eecn: f.u24(36),
            initiator_depth: f.u8(39),
            remote_eecn: f.u24(40),
            remote_cm_response_timeout: f.bits(43, 3, 5),
            transport: Transport::from_codes(f.bits(43, 1, 2), f.bits(51, 0, 3)),
            end_to_end_flow_control: f.bit(43, 0),
            starting_psn: f.psn(44),
            local_cm_response_timeout: f.bits(47, 3, 5),
            retry_count: f.bits(47, 0, 3),
            pkey: f.u16(48),
            path_mtu: f.bits(50, 4, 4),
            rdc_exists: f.bit(50, 3),
            rnr_retry_count: f.bits(50, 0, 3),
            max_cm_retries: f.bits(51, 4, 4),
            srq: f.bit(51, 3),
            primary_path: Path::read(f, 52),
            alternate_path: Path::read(f, 96),
            private_data: f.private_data(140, Kind::Req),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        let (service, extended) = self.transport.codes();
        f.comm_id(0, self.local_comm_id);
        f.u64(8, self.service_id.0);
        f.u64(16, self.local_ca_guid);
        f.u32(28, self.local_qkey);
        f.u24(32, self.local_qpn.value());
        f.u8(35, self.responder_resources);
        f.u24(36, self.local_eecn);
        f.u8(39, self.initiator_depth);
        f.u24(40, self.remote_eecn);
        f.bits(43, 3, 5, self.remote_cm_response_timeout);
        f.bits(43, 1, 2, service);
        f.bit(43, 0, self.end_to_end_flow_control);
        f.u24(44, self.starting_psn.value());
        f.bits(47, 3, 5, self.local_cm_response_timeout);
        f.bits(47, 0, 3, self.retry_count);
        f.u16(48, self.pkey);
        f.bits(50, 4, 4, self.path_mtu);
        f.bit(50, 3, self.rdc_exists);
        f.bits(50, 0, 3, self.rnr_retry_count);
        f.bits(51, 4, 4, self.max_cm_retries);
        f.bit(51, 3, self.srq);
        f.bits(51, 0, 3, extended);
        self.primary_path.write(f, 52);
        self.alternate_path.write(f, 96);
        f.private_data(140, Kind::Req, &self.private_data);
    }
}

/// Reply to a request for communication (IBTA 12.6.8, table 103).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rep {
    /// Communication ID of the sender.
    pub local_comm_id: CommId,
    /// Communication ID of the receiver.
    pub remote_comm_id: CommId,
    /// Queue key, for datagram services.
    pub local_qkey: u32,
    /// QPN of the sender.
    pub local_qpn: Qpn,
    /// The sender's end-to-end context (RD), 24 bits.
    pub local_eecn: u32,
    /// PSN with which the receiver must begin to send (IBTA 12.7.31; Linux: the sender's `rq_psn`).
    pub starting_psn: Psn,
    /// READs and atomics that the sender accepts outstanding as responder.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have outstanding as initiator.
    pub initiator_depth: u8,
    /// Time that the sender takes to acknowledge a packet: 4.096 us * 2^code, 5 bits.
    pub target_ack_delay: u8,
    /// Status of the alternate path, 2 bits: 0 accepted, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// True if the sender's QP implements end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// RNR retry count for the receiver's QP, 3 bits; 7: no limit.
    pub rnr_retry_count: u8,
    /// True if the sender's QP uses an SRQ.
    pub srq: bool,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Private data of the consumer, 196 bytes.
    pub private_data: PrivateData,
}

impl Rep {
    pub(super) fn read(f: Fields<'_>) -> Rep {
        Rep {
            local_comm_id: f.comm_id(0),
            remote_comm_id: f.comm_id(4),
            local_qkey: f.u32(8),
            local_qpn: f.qpn(12),
            local_eecn: f.u24(16),
            starting_psn: f.psn(20),
            responder_resources: f.u8(24),
            initiator_depth: f.u8(25),
            target_ack_delay: f.bits(26, 3, 5),
            failover_accepted: f.bits(26, 1, 2),
            end_to_end_flow_control: f.bit(26, 0),
            rnr_retry_count: f.bits(27, 5, 3),
            srq: f.bit(27, 4),
            local_ca_guid: f.u64(28),
            private_data: f.private_data(36, Kind::Rep),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.comm_id(0, self.local_comm_id);
        f.comm_id(4, self.remote_comm_id);
        f.u32(8, self.local_qkey);
        f.u24(12, self.local_qpn.value());
        f.u24(16, self.local_eecn);
        f.u24(20, self.starting_psn.value());
        f.u8(24, self.responder_resources);
        f.u8(25, self.initiator_depth);
        f.bits(26, 3, 5, self.target_ack_delay);
        f.bits(26, 1, 2, self.failover_accepted);
        f.bit(26, 0, self.end_to_end_flow_control);
        f.bits(27, 5, 3, self.rnr_retry_count);
        f.bit(27, 4, self.srq);
        f.u64(28, self.local_ca_guid);
        f.private_data(36, Kind::Rep, &self.private_data);
    }
}

/// Ready to use (IBTA 12.6.9, table 104).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rtu {
    /// Communication ID of the sender.
    pub local_comm_id: CommId,
    /// Communication ID of the receiver.
    pub remote_comm_id: CommId,
    /// Private data of the consumer, 224 bytes.
    pub private_data: PrivateData,
}

impl Rtu {
    pub(super) fn read(f: Fields<'_>) -> Rtu {
        Rtu {
            local_comm_id: f.comm_id(0),
            remote_comm_id: f.comm_id(4),
            private_data: f.private_data(8, Kind::Rtu),
        }
    }

    pub(super) fn write(&self, f: &mut FieldsMut<'_>) {
        f.comm_id(0, self.local_comm_id);
        f.comm_id(4, self.remote_comm_id);
        f.private_data(8, Kind::Rtu, &self.private_data);
    }
}
