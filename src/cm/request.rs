//! What a consumer asks the manager for.

use std::net::IpAddr;

use crate::verbs::{Mtu, Psn, Qpn};
use crate::wire::cm::{Ari, PrivateData, SidrStatus, Transport};
use crate::wire::{Gid, ServiceId};

/// The way between two connection managers, which is the connection's too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The address of this host that the messages come from.
    pub local: Gid,
    /// The peer's; of the same family.
    pub remote: Gid,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits. RDMA-CM makes it from the ports: [`port_flow_label`](crate::wire::service_id::port_flow_label).
    pub flow_label: u32,
    /// Time to live of IPv4, hop limit of IPv6.
    pub hop_limit: u8,
}

impl Route {
    /// From `local` to `remote` in the usual way: traffic class 0, 64 hops.
    pub fn new(local: IpAddr, remote: IpAddr) -> Route {
        Route { local: local.into(), remote: remote.into(), traffic_class: 0, flow_label: 0, hop_limit: 64 }
    }
}

/// Where a management datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The way back: `local` is the address that it came to.
    pub route: Route,
    /// The QP that sent it; other than QP1 it is dropped.
    pub src_qp: Qpn,
}

/// Our QP, as a peer gets to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalQp {
    /// The QP's number, which the peer sends to.
    pub qpn: Qpn,
    /// The first PSN that it expects: the peer begins to send with it.
    pub psn: Psn,
    /// It takes its receives from a shared queue.
    pub srq: bool,
}

/// What [`Manager::connect`](super::Manager::connect) asks a peer for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The service identifier that the peer listens on.
    pub service: ServiceId,
    /// The way between the two hosts.
    pub route: Route,
    /// The QP of this side that the connection is for.
    pub qp: LocalQp,
    /// The transport service of both QPs.
    pub transport: Transport,
    /// Path MTU, of both ends.
    pub path_mtu: Mtu,
    /// How long a packet is under way at most: 4.096 us * 2^code, 5 bits. The local ACK timeout follows from it.
    pub packet_lifetime: u8,
    /// Packet rate code, 6 bits; of no meaning on RoCE.
    pub packet_rate: u8,
    /// READs and atomics that we answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that we will have outstanding.
    pub initiator_depth: u8,
    /// Transport retries, of both ends, 0..=7.
    pub retry_count: u8,
    /// RNR retries that the peer is to set, 0..=7.
    pub rnr_retry_count: u8,
    /// Our QP keeps end-to-end credits.
    pub flow_control: bool,
    /// Partition key; 0xffff is the default partition's.
    pub pkey: u16,
    /// Within how long each end should answer: 4.096 us * 2^code, 5 bits.
    pub response_timeout: u8,
    /// How often a message is sent again, 0..=15.
    pub max_cm_retries: u8,
    /// At most 92 bytes; for RDMA-CM with [`CmaHeader`](crate::wire::CmaHeader) in front, which leaves 56.
    pub private_data: PrivateData,
}

impl ConnectRequest {
    /// A reliable connection with what Linux's RDMA-CM asks for on RoCE (`cma.c`).
    pub fn new(service: ServiceId, route: Route, qp: LocalQp, path_mtu: Mtu) -> ConnectRequest {
        ConnectRequest {
            service,
            route,
            qp,
            transport: Transport::Rc,
            path_mtu,
            packet_lifetime: 16,
            packet_rate: 0,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            flow_control: false,
            pkey: 0xffff,
            response_timeout: 20,
            max_cm_retries: 15,
            private_data: PrivateData::EMPTY,
        }
    }
}

/// How [`Manager::accept`](super::Manager::accept) answers a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptOptions {
    /// The QP of this side that the connection is for.
    pub qp: LocalQp,
    /// READs and atomics that we answer at a time. No more than the peer will have outstanding are told and used.
    pub responder_resources: u8,
    /// READs and atomics that we will have outstanding. No more than the peer answers are told and used.
    pub initiator_depth: u8,
    /// RNR retries that the peer is to set, 0..=7.
    pub rnr_retry_count: u8,
    /// Our QP keeps end-to-end credits.
    pub flow_control: bool,
    /// At most 196 bytes.
    pub private_data: PrivateData,
}

/// What [`Manager::resolve`](super::Manager::resolve) asks for: the datagram QP that serves a service ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveRequest {
    /// The service identifier that the peer listens on.
    pub service: ServiceId,
    /// The way between the two hosts.
    pub route: Route,
    /// Partition key; 0xffff is the default partition's.
    pub pkey: u16,
    /// Within how long the peer should answer: 4.096 us * 2^code, 5 bits.
    pub response_timeout: u8,
    /// How often the question is sent again, 0..=15.
    pub max_cm_retries: u8,
    /// At most 216 bytes; for RDMA-CM with [`CmaHeader`](crate::wire::CmaHeader) in front, which leaves 180.
    pub private_data: PrivateData,
}

impl ResolveRequest {
    /// With what Linux's RDMA-CM asks for (`cma.c`).
    pub fn new(service: ServiceId, route: Route) -> ResolveRequest {
        ResolveRequest {
            service,
            route,
            pkey: 0xffff,
            response_timeout: 20,
            max_cm_retries: 15,
            private_data: PrivateData::EMPTY,
        }
    }
}

/// How [`Manager::answer_resolution`](super::Manager::answer_resolution) answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolveAnswer {
    /// Valid, or why not.
    pub status: SidrStatus,
    /// The QP that serves it.
    pub qpn: Qpn,
    /// The key that datagrams to it must present; RDMA-CM's is
    /// [`RDMA_UDP_QKEY`](crate::wire::service_id::RDMA_UDP_QKEY).
    pub qkey: u32,
    /// More about the status.
    pub info: Ari,
    /// At most 136 bytes.
    pub private_data: PrivateData,
}

/// On which of our addresses a listener listens. One address goes before all of a family, those before any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListenOn {
    /// All (RDMA-CM: the wildcard address of either family).
    Any,
    /// All of IPv4.
    AnyIpv4,
    /// All of IPv6 (`RDMA_OPTION_ID_AFONLY`).
    AnyIpv6,
    /// This one.
    Address(Gid),
}

impl ListenOn {
    /// True if a request to `local` is for it.
    pub fn covers(self, local: Gid) -> bool {
        match self {
            ListenOn::Any => true,
            ListenOn::AnyIpv4 => local.is_ipv4(),
            ListenOn::AnyIpv6 => !local.is_ipv4(),
            ListenOn::Address(gid) => gid == local,
        }
    }
}
