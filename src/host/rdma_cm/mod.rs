//! Connections by address and port, as RDMA-CM makes them: with another Roxie, or with any program of `librdmacm`.
//!
//! ```
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use roxie::host::{ConnectionManager, Device, DeviceConfig, DialOptions};
//! use roxie::verbs::{Access, QpCaps, SendWr, WcStatus};
//!
//! let (near, far) = Device::memory_pair(&DeviceConfig::default())?;
//! let server = ConnectionManager::start(&far)?;
//! let address = SocketAddr::new(far.gid(0)?.to_ip(), 7174);
//! let listener = server.listen(address, 8)?;
//!
//! let serving = std::thread::spawn(move || {
//!     let request = listener.accept(Duration::from_secs(10))?.expect("a request");
//!     let (pd, cq) = (far.alloc_pd()?, far.create_cq(16, None)?);
//!     let qp = far.create_qp(&pd, &cq, &cq, QpCaps::default(), true)?;
//!     let memory = pd.register(64, Access::LOCAL_WRITE)?;
//!     // A receive is posted before the peer may send.
//!     qp.initialize(Access::empty())?;
//!     qp.post_recv(1, &[memory.sge(0, 64)])?;
//!     let connection = request.accept(qp, &DialOptions::default())?;
//!     let received = cq.wait(Duration::from_secs(10)).expect("a message");
//!     assert_eq!((received.status, received.byte_len), (WcStatus::Success, 5));
//!     assert!(connection.wait_for_end(Duration::from_secs(10)));
//!     Ok::<(), roxie::host::DialError>(())
//! });
//!
//! let client = ConnectionManager::start(&near)?;
//! let (pd, cq) = (near.alloc_pd()?, near.create_cq(16, None)?);
//! let qp = near.create_qp(&pd, &cq, &cq, QpCaps::default(), true)?;
//! let connection = client.connect(qp, address, &DialOptions::default())?;
//! connection.qp().post_send_inline(&SendWr::default(), b"hello")?;
//! assert_eq!(cq.wait(Duration::from_secs(10)).expect("a completion").status, WcStatus::Success);
//! connection.disconnect()?;
//! serving.join().expect("no panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connection;
mod listener;
mod switchboard;

pub use connection::Connection;
pub use listener::{ConnectionRequest, PortListener};

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};

use super::connections::ConnectionService;
use super::device::Device;
use super::error::DeviceError;
use super::inspect::CmIdEntry;
use super::qp::QueuePair;
use crate::cm::{self, CmError, ConnectRequest, ListenOn, LocalQp, Manager, Route};
use crate::random::unguessable;
use crate::roster::Denied;
use crate::verbs::{Access, Mtu, Psn};
use crate::wire::cm::{Kind, PrivateData, RejReason, TooLong};
use crate::wire::service_id::port_flow_label;
use crate::wire::{CmaHeader, Gid, PortSpace, ServiceId};
use switchboard::Switchboard;

/// The first of the ports that connections come from (RFC 6335: dynamic ports).
const FIRST_DYNAMIC_PORT: u16 = 49152;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The device refused something.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The connection manager did.
    #[error(transparent)]
    Manager(#[from] CmError),
    /// More private data than a message has room for, beside RDMA-CM's own.
    #[error(transparent)]
    PrivateData(#[from] TooLong),
    /// A work request was not posted.
    #[error(transparent)]
    Post(#[from] crate::shared::PostError),
    /// A copy outside of a region.
    #[error(transparent)]
    Memory(#[from] crate::shared::memory::CopyFault),
    /// The device has no address of the family.
    #[error(
        "{device} has no address from which {peer} could be reached; add one of its family to the interface"
    )]
    NoAddress {
        /// The device that the frames would leave from.
        device: String,
        /// The address that was dialled.
        peer: IpAddr,
    },
    /// Another process that shares the device has the port, or this one may not have it.
    #[error("cannot listen at {at}: {source}")]
    Port {
        /// The address and port.
        at: SocketAddr,
        /// The reason.
        source: Denied,
    },
    /// The peer refused.
    #[error("{peer} refuses the connection, reason {reason}")]
    Rejected {
        /// Address and port that were dialled.
        peer: SocketAddr,
        /// The reason in the refusal (IBTA 12.6.7.2).
        reason: RejReason,
        /// What it adds: 148 bytes, zeros fill them up.
        private_data: Vec<u8>,
    },
    /// The peer's QP needs a larger path MTU than the link has.
    #[error("{peer} asks for a path MTU of {asked}, the link carries {largest} at most")]
    PathMtu {
        /// Address and port that were dialled.
        peer: SocketAddr,
        /// The path MTU that it asked for, in bytes.
        asked: usize,
        /// The largest path MTU of this link, in bytes.
        largest: usize,
    },
    /// The peer does not answer.
    #[error("{peer} does not answer {sent}: is it up, and does UDP port 4791 get through?")]
    Unreachable {
        /// Address and port that were dialled.
        peer: SocketAddr,
        /// The message that was sent again and again.
        sent: Kind,
    },
    /// Its host says that nothing takes what comes for RoCE.
    #[error("nothing listens on UDP port 4791 of {}: start the server first, or roxie or rdma_rxe there", peer.ip())]
    NothingThere {
        /// Address and port that were dialled.
        peer: SocketAddr,
    },
    /// The connection ended before it was made.
    #[error("{peer} ended the connection while it was made")]
    Ended {
        /// Address and port that were dialled.
        peer: SocketAddr,
    },
    /// The device has failed.
    #[error("the device has failed")]
    DeviceFailed,
}

/// How a connection is made, from either side.
#[derive(Clone, Debug)]
pub struct DialOptions {
    /// Which address of the device; `None`: the first of the peer's family.
    pub gid_index: Option<usize>,
    /// What the peer may do.
    pub access: Access,
    /// Payload of a full packet, asked for by the side that connects; `None`: the largest that the link carries.
    pub path_mtu: Option<Mtu>,
    /// READs and atomics that we answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that we have outstanding.
    pub initiator_depth: u8,
    /// Transport retries, of both ends; the side that connects decides.
    pub retry_count: u8,
    /// RNR retries that the peer is to set; 7: for ever.
    pub rnr_retry_count: u8,
    /// RNR timer code that we ask of the peer.
    pub min_rnr_timer: u8,
    /// Traffic class, of both ends; the side that connects decides.
    pub traffic_class: u8,
    /// Time to live of IPv4, hop limit of IPv6.
    pub hop_limit: u8,
    /// Within how long each end should answer: 4.096 us * 2^code.
    pub response_timeout: u8,
    /// How often a message is sent again.
    pub max_cm_retries: u8,
    /// The consumer's: at most 56 bytes when connecting, 196 when accepting.
    pub private_data: Vec<u8>,
}

impl Default for DialOptions {
    fn default() -> DialOptions {
        DialOptions {
            gid_index: None,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE,
            path_mtu: None,
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
            traffic_class: 0,
            hop_limit: 64,
            response_timeout: 20,
            max_cm_retries: 15,
            private_data: Vec::new(),
        }
    }
}

#[derive(Debug)]
struct Shared {
    device: Device,
    service: ConnectionService<Switchboard>,
    next_port: AtomicU16,
    /// Numbers the listeners' ports.
    next_owner: AtomicU32,
}

impl Shared {
    fn with<R>(&self, call: impl FnOnce(&mut Manager, &mut Switchboard, crate::time::Nanos) -> R) -> R {
        self.service.with(call)
    }
}

/// The connection manager of a device: it listens and connects. There is one for each device; cloning it gives another handle
/// to the same one. It lives as long as its listeners and connections.
#[derive(Clone, Debug)]
pub struct ConnectionManager {
    shared: Arc<Shared>,
}

impl ConnectionManager {
    /// Makes QP1 of the device, claiming its interface if that was left for later, and starts.
    ///
    /// # Errors
    /// If there is a QP1 already, the interface cannot be had, or the system lacks something.
    pub fn start(device: &Device) -> Result<ConnectionManager, DialError> {
        let [a, b, c, d, e, f] = device.port().mac;
        // As for the node GUID: an EUI-64 of the station address.
        let ca_guid = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        let manager = Manager::new(cm::Config { seed: unguessable(), ca_guid, ..cm::Config::default() });
        let service = ConnectionService::start(device, manager, Switchboard::default())?;
        let next_port = AtomicU16::new(unguessable() as u16);
        let shared =
            Arc::new(Shared { device: device.clone(), service, next_port, next_owner: AtomicU32::new(0) });
        let of = Arc::downgrade(&shared);
        device.tell_cm_ids(Box::new(move || of.upgrade().map_or_else(Vec::new, |shared| shared.cm_ids())));
        Ok(ConnectionManager { shared })
    }

    /// Connects a QP to whoever listens at `to`, and waits until both ends are ready to send. Receives that the peer's first
    /// messages need are posted before: bring the QP to INIT for that ([`QueuePair::initialize`]).
    ///
    /// # Errors
    /// If there is no way, the peer refuses or does not answer; the QP is destroyed.
    pub fn connect(
        &self,
        qp: QueuePair,
        to: SocketAddr,
        options: &DialOptions,
    ) -> Result<Connection, DialError> {
        connection::connect(&self.shared, qp, to, options)
    }

    /// Listens on a port: at one address, or at all of them with `0.0.0.0` or `::`. At most `backlog` requests wait.
    ///
    /// # Errors
    /// If somebody listens there already, here or in another process of the device, or the port takes privilege.
    pub fn listen(&self, on: SocketAddr, backlog: u32) -> Result<PortListener, DialError> {
        listener::listen(&self.shared, on, backlog)
    }

    /// Messages of communication management that were sent, received and dropped.
    pub fn counters(&self) -> cm::CmCounters {
        self.shared.with(|manager, _, _| *manager.counters())
    }

    /// Connections that are known, those that linger included.
    pub fn connections(&self) -> usize {
        self.shared.with(|manager, _, _| manager.connections())
    }
}

impl Shared {
    /// Listeners and connections, for those who look at the device.
    fn cm_ids(&self) -> Vec<CmIdEntry> {
        let entry = |id, state, src, qpn| CmIdEntry { id, ps: "TCP".to_owned(), state, src, dst: None, qpn };
        self.with(|manager, _, _| {
            let listens = manager.services().filter_map(|(service, on)| {
                let (_, port) = service.port()?;
                let ip = match on {
                    ListenOn::Address(gid) => gid.to_ip(),
                    _ => IpAddr::from([0; 16]),
                };
                Some(entry(0, "LISTEN".to_owned(), Some(SocketAddr::new(ip, port)), None))
            });
            let mut all: Vec<CmIdEntry> = listens.collect();
            all.extend(manager.ids().filter_map(|id| {
                let route = manager.parameters(id).ok()?.route;
                let src = SocketAddr::new(route.local.to_ip(), 0);
                let state = format!("{:?}", manager.state(id)?);
                let dst = Some(SocketAddr::new(route.remote.to_ip(), 0));
                Some(CmIdEntry { dst, ..entry(id.0, state, Some(src), None) })
            }));
            all
        })
    }

    /// Our address for a peer.
    fn local_gid(&self, peer: IpAddr, options: &DialOptions) -> Result<Gid, DialError> {
        if let Some(index) = options.gid_index {
            return Ok(self.device.gid(index)?);
        }
        let link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let fits = |gid: Gid| {
            let ip = gid.to_ip();
            ip.is_ipv4() == peer.is_ipv4() && link_local(ip) == link_local(peer)
        };
        let found = self.device.gids().into_iter().find(|entry| entry.assigned && fits(entry.gid));
        let device = || self.device.name().to_owned();
        found.map(|entry| entry.gid).ok_or_else(|| DialError::NoAddress { device: device(), peer })
    }

    /// The REQ for a connection from a port of its own.
    fn request(
        &self,
        qp: LocalQp,
        local: Gid,
        to: SocketAddr,
        options: &DialOptions,
    ) -> Result<ConnectRequest, DialError> {
        let offset = self.next_port.fetch_add(1, Relaxed) % (u16::MAX - FIRST_DYNAMIC_PORT);
        let source_port = FIRST_DYNAMIC_PORT + offset;
        let header = CmaHeader { source: local.to_ip(), source_port, destination: to.ip() };
        let private = [&header.to_bytes()[..], &options.private_data].concat();
        let route = Route {
            local,
            remote: to.ip().into(),
            traffic_class: options.traffic_class,
            flow_label: port_flow_label(source_port, to.port()),
            hop_limit: options.hop_limit,
        };
        let mtu = options.path_mtu.unwrap_or_else(|| self.device.largest_mtu());
        Ok(ConnectRequest {
            responder_resources: options.responder_resources,
            initiator_depth: options.initiator_depth,
            retry_count: options.retry_count,
            rnr_retry_count: options.rnr_retry_count,
            response_timeout: options.response_timeout,
            max_cm_retries: options.max_cm_retries,
            private_data: PrivateData::new(Kind::Req, &private)?,
            ..ConnectRequest::new(ServiceId::of_port(PortSpace::Tcp, to.port()), route, qp, mtu)
        })
    }
}

/// Our QP as the peer gets to know it, with a random PSN for the peer to begin with.
fn local_qp(qp: &QueuePair) -> LocalQp {
    LocalQp { qpn: qp.qpn(), psn: Psn::new(unguessable() as u32), srq: !qp.has_own_receives() }
}
