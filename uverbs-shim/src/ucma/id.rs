//! Identifiers, as `rdma_create_id` creates them.

use std::net::{IpAddr, SocketAddr};

use roxie::cm::Listener;
use roxie::verbs::{Mtu, Psn};
use roxie::wire::cm::{CommId, Transport};
use roxie::wire::{Qpn, ServiceId};

use super::ports::Space;
use crate::abi::ibv_qp_type;
use crate::device::settings;

/// State of an identifier (`enum rdma_cm_state` of `cma.c`). Calls in the wrong state fail with `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdState {
    Idle,
    AddressQuery,
    AddressResolved,
    RouteResolved,
    /// Connecting or connected, as either end.
    Connect,
    Disconnect,
    /// Bound to an address.
    Bound,
    Listen,
    /// The device was removed.
    Removed,
}

/// Options set by `RDMA_USER_CM_CMD_SET_OPTION`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) service_type: u8,
    pub(super) reuse_address: bool,
    /// Restricts the identifier to one address family; `None`: the system's default.
    pub(super) one_family: Option<bool>,
    /// Local ACK timeout code; `None`: the path's.
    pub(super) ack_timeout: Option<u8>,
}

/// Path to the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) mtu: Mtu,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    /// 4.096 us * 2^code.
    pub(super) packet_lifetime: u8,
}

/// An identifier.
#[derive(Clone, Debug)]
pub(super) struct Id {
    /// The program's value for the identifier. 0: created by a request that the program has not accepted yet.
    pub(super) uid: u64,
    /// The open file that receives its events.
    pub(super) channel: u64,
    pub(super) space: Space,
    pub(super) qp_type: ibv_qp_type::Type,
    pub(super) stage: IdState,
    pub(super) options: Options,
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
    /// True if the identifier holds its source's port.
    pub(super) has_port: bool,
    /// True if the source is an address of the device.
    pub(super) on_device: bool,
    pub(super) path: Option<Path>,
    /// Number of the current address resolution. Results of older ones are ignored.
    pub(super) resolution: u32,
    pub(super) listeners: Vec<Listener>,
    pub(super) comm: Option<CommId>,
    /// Starting PSN of the peer's QP.
    pub(super) psn: Psn,
    /// QPN of the connection, as given by the program.
    pub(super) qpn: Qpn,
    pub(super) srq: bool,
    /// Events that the program has fetched, and must acknowledge before it frees the identifier.
    pub(super) events_reported: u32,
}

/// Parameters of a new identifier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) uid: u64,
    pub(super) channel: u64,
    pub(super) space: Space,
    pub(super) qp_type: ibv_qp_type::Type,
    pub(super) psn: Psn,
}

impl Id {
    pub(super) fn new(made: Made) -> Id {
        Id {
            uid: made.uid,
            channel: made.channel,
            space: made.space,
            qp_type: made.qp_type,
            stage: IdState::Idle,
            options: Options { service_type: settings::settings().service_type, ..Options::default() },
            source: None,
            destination: None,
            has_port: false,
            on_device: false,
            path: None,
            resolution: 0,
            listeners: Vec::new(),
            comm: None,
            psn: made.psn,
            qpn: Qpn::default(),
            srq: false,
            events_reported: 0,
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_UD
    }

    /// Returns the service ID of a port (`rdma_get_service_id`).
    pub(super) fn service(&self, port: u16) -> ServiceId {
        ServiceId(u64::from(self.space.code()) << 16 | u64::from(port))
    }

    /// Returns true if the identifier is restricted to its address family. IPv4 always is.
    pub(super) fn one_family(&self, address: IpAddr, customary: bool) -> bool {
        address.is_ipv4() || self.options.one_family.unwrap_or(customary)
    }
}

impl IdState {
    /// Returns iproute2's name of the state.
    pub(super) fn name(self) -> &'static str {
        match self {
            IdState::Idle => "IDLE",
            IdState::AddressQuery => "ADDR_QUERY",
            IdState::AddressResolved => "ADDR_RESOLVED",
            IdState::RouteResolved => "ROUTE_RESOLVED",
            IdState::Connect => "CONNECT",
            IdState::Disconnect => "DISCONNECT",
            IdState::Bound => "ADDR_BOUND",
            IdState::Listen => "LISTEN",
            IdState::Removed => "DEVICE_REMOVAL",
        }
    }
}

impl Space {
    /// Returns iproute2's name of the port space.
    pub(super) fn name(self) -> &'static str {
        match self {
            Space::Ipoib => "IPoIB",
            Space::Tcp => "TCP",
            Space::Udp => "UDP",
            Space::Ib => "IB",
        }
    }

    /// Returns the number in the API and in service IDs.
    pub(super) fn code(self) -> u16 {
        match self {
            Space::Ipoib => 0x0002,
            Space::Tcp => 0x0106,
            Space::Udp => 0x0111,
            Space::Ib => 0x013f,
        }
    }

    pub(super) fn from_code(code: u16) -> Option<Space> {
        [Space::Ipoib, Space::Ib, Space::Tcp, Space::Udp].into_iter().find(|space| space.code() == code)
    }

    /// Returns the QP type of the port space. For RDMA_PS_IB, the program specifies it.
    pub(super) fn qp_type(self, told: u8) -> ibv_qp_type::Type {
        match self {
            Space::Tcp => ibv_qp_type::IBV_QPT_RC,
            Space::Udp | Space::Ipoib => ibv_qp_type::IBV_QPT_UD,
            Space::Ib => told.into(),
        }
    }
}

/// Returns the transport to request for a QP type.
pub(super) fn transport_of(qp_type: ibv_qp_type::Type) -> Option<Transport> {
    match qp_type {
        ibv_qp_type::IBV_QPT_RC => Some(Transport::Rc),
        ibv_qp_type::IBV_QPT_UC => Some(Transport::Uc),
        ibv_qp_type::IBV_QPT_XRC_SEND => Some(Transport::Xrc),
        _ => None,
    }
}

/// Returns the QP type that answers a request for a transport.
pub(super) fn answering_qp_type(transport: Transport) -> Option<ibv_qp_type::Type> {
    match transport {
        Transport::Rc => Some(ibv_qp_type::IBV_QPT_RC),
        Transport::Uc => Some(ibv_qp_type::IBV_QPT_UC),
        Transport::Xrc => Some(ibv_qp_type::IBV_QPT_XRC_RECV),
        Transport::Rd | Transport::Reserved(_) => None,
    }
}
