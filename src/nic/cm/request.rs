//! Parameters of the consumer's calls.

use std::net::IpAddr;

use crate::verbs::{LocalGid, Mtu, Psn, Qpn};
use roxie_wire::cm::{Ari, PrivateData, SidrStatus, Transport};
use roxie_wire::{Encapsulation, Gid, ServiceId};

/// Path between two connection managers, which is the path of the connection as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Local address.
    pub local: Gid,
    /// RoCE version and VLAN of the local address.
    pub encapsulation: Encapsulation,
    /// Peer's address, of the same family.
    pub remote: Gid,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits. RDMA-CM derives it from the ports:
    /// [`port_flow_label`](roxie_wire::service_id::port_flow_label).
    pub flow_label: u32,
    /// IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
}

impl Route {
    /// Returns a path with default values: traffic class 0, flow label 0, hop limit 64.
    pub fn new(local: IpAddr, remote: IpAddr) -> Route {
        Route {
            local: local.into(),
            encapsulation: Encapsulation::default(),
            remote: remote.into(),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        }
    }

    /// Returns the local GID.
    pub fn source(&self) -> LocalGid {
        LocalGid { gid: self.local, encapsulation: self.encapsulation }
    }
}

/// Origin of a received management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Path back to the sender. `local` is the address at which the datagram arrived.
    pub route: Route,
    /// QP of the sender. Datagrams from other QPs than QP1 are dropped.
    pub src_qp: Qpn,
}

/// Our QP, as told to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalQp {
    /// QP number.
    pub qpn: Qpn,
    /// First PSN that the QP expects from the peer.
    pub psn: Psn,
    /// True if the QP uses a shared receive queue.
    pub srq: bool,
}

/// Parameters of [`Manager::connect`](super::Manager::connect).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Service ID on which the peer listens.
    pub service: ServiceId,
    /// Path between the two hosts.
    pub route: Route,
    /// Local QP of the connection.
    pub qp: LocalQp,
    /// Transport service of both QPs.
    pub transport: Transport,
    /// Path MTU of both ends.
    pub path_mtu: Mtu,
    /// Maximum lifetime of a packet: 4.096 us * 2^code, 5 bits. Determines the local ACK timeout.
    pub packet_lifetime: u8,
    /// Packet rate code, 6 bits. Unused on RoCE.
    pub packet_rate: u8,
    /// Number of READs and atomics that we can execute at a time.
    pub responder_resources: u8,
    /// Number of READs and atomics that we will have outstanding.
    pub initiator_depth: u8,
    /// Transport retries of both ends, 0..=7.
    pub retry_count: u8,
    /// RNR retries for the peer to set, 0..=7.
    pub rnr_retry_count: u8,
    /// True if our QP uses end-to-end credits.
    pub flow_control: bool,
    /// P_Key; 0xffff is the default partition.
    pub pkey: u16,
    /// Response timeout of each end: 4.096 us * 2^code, 5 bits.
    pub response_timeout: u8,
    /// Maximum number of retransmissions of a message, 0..=15.
    pub max_cm_retries: u8,
    /// Private data, at most 92 bytes. With RDMA-CM's [`CmaHeader`](roxie_wire::CmaHeader) in front, 56 bytes remain.
    pub private_data: PrivateData,
}

impl ConnectRequest {
    /// Returns a request for an RC connection with the values of Linux's RDMA-CM on RoCE (`cma.c`).
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

/// Parameters of [`Manager::accept`](super::Manager::accept).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptOptions {
    /// Local QP of the connection.
    pub qp: LocalQp,
    /// Number of READs and atomics that we can execute at a time. Reduced to the number that the peer will have
    /// outstanding.
    pub responder_resources: u8,
    /// Number of READs and atomics that we will have outstanding. Reduced to the number that the peer can execute.
    pub initiator_depth: u8,
    /// RNR retries for the peer to set, 0..=7.
    pub rnr_retry_count: u8,
    /// True if our QP uses end-to-end credits.
    pub flow_control: bool,
    /// Private data, at most 196 bytes.
    pub private_data: PrivateData,
}

/// Parameters of [`Manager::resolve`](super::Manager::resolve), which asks for the datagram QP of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveRequest {
    /// Service ID on which the peer listens.
    pub service: ServiceId,
    /// Path between the two hosts.
    pub route: Route,
    /// P_Key; 0xffff is the default partition.
    pub pkey: u16,
    /// Response timeout of the peer: 4.096 us * 2^code, 5 bits.
    pub response_timeout: u8,
    /// Maximum number of retransmissions of the request, 0..=15.
    pub max_cm_retries: u8,
    /// Private data, at most 216 bytes. With RDMA-CM's [`CmaHeader`](roxie_wire::CmaHeader) in front, 180 bytes
    /// remain.
    pub private_data: PrivateData,
}

impl ResolveRequest {
    /// Returns a request with the values of Linux's RDMA-CM (`cma.c`).
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

/// Parameters of [`Manager::answer_resolution`](super::Manager::answer_resolution).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolveAnswer {
    /// Valid, or the reason of the refusal.
    pub status: SidrStatus,
    /// The QP that serves the requested service.
    pub qpn: Qpn,
    /// Q_Key for datagrams to this QP. RDMA-CM uses [`RDMA_UDP_QKEY`](roxie_wire::service_id::RDMA_UDP_QKEY).
    pub qkey: u32,
    /// Additional information on the status.
    pub info: Ari,
    /// Private data, at most 136 bytes.
    pub private_data: PrivateData,
}

/// Local addresses of a listener. A single address takes precedence over a family, and a family over `Any`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListenOn {
    /// All addresses (RDMA-CM: the wildcard address of either family).
    Any,
    /// All IPv4 addresses.
    AnyIpv4,
    /// All IPv6 addresses (`RDMA_OPTION_ID_AFONLY`).
    AnyIpv6,
    /// A single address.
    Address(Gid),
}

impl ListenOn {
    /// True if the listener accepts requests to `local`.
    pub fn covers(self, local: Gid) -> bool {
        match self {
            ListenOn::Any => true,
            ListenOn::AnyIpv4 => local.is_ipv4(),
            ListenOn::AnyIpv6 => !local.is_ipv4(),
            ListenOn::Address(gid) => gid == local,
        }
    }
}
