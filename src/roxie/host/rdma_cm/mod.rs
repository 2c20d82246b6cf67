//! Connections by address and port, as RDMA-CM makes them: with another Roxie, or with any program that uses
//! `librdmacm`.
//!
//! ```
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use roxie::host::{ConnectionManager, Device, DeviceConfig};
//! use roxie::verbs::{Access, SendWr};
//!
//! let (near, far) = Device::memory_pair(&DeviceConfig::default())?;
//! let server = ConnectionManager::start(&far)?;
//! let address = SocketAddr::new(far.gid(0)?.to_ip(), 7174);
//! let listener = server.listen(address, 8)?;
//!
//! let serving = std::thread::spawn(move || {
//!     // Post a receive before the peer may send.
//!     let served = listener.serve(Duration::from_secs(10), |pd, qp| {
//!         let memory = pd.register(64, Access::LOCAL_WRITE)?;
//!         qp.post_recv(1, &[memory.sge(0, 64)])?;
//!         Ok(memory)
//!     })?;
//!     let (server, memory) = served.expect("a request");
//!     let received = server.cq.wait(Duration::from_secs(10))?.ok()?;
//!     assert_eq!(memory.to_vec(0, received.byte_len as usize)?, b"hello");
//!     assert!(server.connection.wait_for_end(Duration::from_secs(10)));
//!     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! });
//!
//! let client = ConnectionManager::start(&near)?.dial(address)?;
//! client.connection.qp().post_send_inline(&SendWr::send().signaled(), b"hello")?;
//! client.cq.wait(Duration::from_secs(10))?.ok()?;
//! client.connection.disconnect()?;
//! serving.join().expect("no panic")?;
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

mod acceptor;
mod connection;
mod dispatcher;
mod first_messages;
mod listener;

pub use acceptor::{Acceptor, Offer};
pub use connection::{Connection, ConnectionEnded};
pub use first_messages::{FirstMessage, FirstMessages};
pub use listener::{ConnectionRequest, PortListener};

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};

use super::connections::ConnectionService;
use super::cq::CompletionQueue;
use super::device::Device;
use super::error::DeviceError;
use super::inspect::CmIdEntry;
use super::pd::ProtectionDomain;
use super::qp::QueuePair;
use super::selective_repeat::SelectiveRepeat;
use dispatcher::EventDispatcher;
use roxie_base::random::unguessable;
use roxie_base::roster::Denied;
use roxie_nic::cm::{self, CmError, ConnectRequest, ListenOn, LocalQp, Manager, Route};
use roxie_nic::verbs::{Access, LocalGid, Mtu, Psn, QpCaps};
use roxie_wire::cm::{Kind, PrivateData, RejReason, TooLong};
use roxie_wire::service_id::port_flow_label;
use roxie_wire::{CmaHeader, Gid, PortSpace, ServiceId};

/// First port number of outgoing connections (RFC 6335: dynamic ports).
const FIRST_DYNAMIC_PORT: u16 = 49152;

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The device refused an operation.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The connection manager refused an operation.
    #[error(transparent)]
    Manager(#[from] CmError),
    /// The private data exceed the room in the message, besides RDMA-CM's header.
    #[error(transparent)]
    PrivateData(#[from] TooLong),
    /// A work request was not posted.
    #[error(transparent)]
    Post(#[from] roxie_nic::shared::PostError),
    /// A copy beyond the end of a region, or to memory that is no longer mapped.
    #[error(transparent)]
    Memory(#[from] roxie_nic::shared::memory::CopyFault),
    /// The device has no address of the peer's family.
    #[error(
        "{device} has no address from which {peer} could be reached; add one of its family to the interface"
    )]
    NoAddress {
        /// The device that the frames would leave from.
        device: String,
        /// The peer's address.
        peer: IpAddr,
    },
    /// Another process that shares the device has the port, or this process may not listen on it.
    #[error("cannot listen at {at}: {source}")]
    Port {
        /// The address and port.
        at: SocketAddr,
        /// The reason.
        source: Denied,
    },
    /// The peer rejected the connection.
    #[error("{peer} refuses the connection, reason {reason}")]
    Rejected {
        /// The peer's address and port.
        peer: SocketAddr,
        /// The reason in the refusal (IBTA 12.6.7.2).
        reason: RejReason,
        /// Private data of the rejection: 148 bytes, padded with zeros.
        private_data: Vec<u8>,
    },
    /// The peer asks for a larger path MTU than the link carries.
    #[error("{peer} asks for a path MTU of {requested}, the link carries {largest} at most")]
    PathMtu {
        /// The peer's address and port.
        peer: SocketAddr,
        /// The requested path MTU, in bytes.
        requested: usize,
        /// The largest path MTU of this link, in bytes.
        largest: usize,
    },
    /// The peer does not answer.
    #[error("{peer} does not answer {sent}: is it up, and does UDP port 4791 get through?")]
    Unreachable {
        /// The peer's address and port.
        peer: SocketAddr,
        /// The unanswered message.
        sent: Kind,
    },
    /// The peer's host reports that no process listens on the RoCE port.
    #[error("nothing listens on UDP port 4791 of {}: start the server first, or roxie or rdma_rxe there", peer.ip())]
    NothingThere {
        /// The peer's address and port.
        peer: SocketAddr,
    },
    /// The connection ended before it was established.
    #[error("{peer} ended the connection while it was made")]
    Ended {
        /// The peer's address and port.
        peer: SocketAddr,
    },
    /// The device has failed.
    #[error("the device has failed")]
    DeviceFailed,
}

/// Options of a connection, for either side.
#[derive(Clone, Debug)]
pub struct DialOptions {
    /// GID index of the local address; `None`: the first of the peer's family.
    pub gid_index: Option<usize>,
    /// Access for the peer.
    pub access: Access,
    /// Payload of a full packet, chosen by the connecting side; `None`: the largest that the link carries.
    pub path_mtu: Option<Mtu>,
    /// Maximum number of READs and atomics that this side responds to at a time.
    pub responder_resources: u8,
    /// Maximum number of READs and atomics that this side has outstanding.
    pub initiator_depth: u8,
    /// Transport retries of both ends, chosen by the connecting side.
    pub retry_count: u8,
    /// RNR retries of the peer; 7: infinite.
    pub rnr_retry_count: u8,
    /// RNR timer code that the peer shall wait for.
    pub min_rnr_timer: u8,
    /// Traffic class of both ends, chosen by the connecting side.
    pub traffic_class: u8,
    /// Time to live of IPv4, hop limit of IPv6.
    pub hop_limit: u8,
    /// Time within which each end should answer: 4.096 us * 2^code.
    pub response_timeout: u8,
    /// Maximum number of retransmissions of a message.
    pub max_cm_retries: u8,
    /// Private data: up to 56 bytes when connecting, 196 when accepting.
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
    service: ConnectionService<EventDispatcher>,
    next_port: AtomicU16,
    /// Number of the next listener, which identifies the owner of a port number.
    next_owner: AtomicU32,
}

impl Shared {
    fn with<R>(
        &self,
        call: impl FnOnce(&mut Manager, &mut EventDispatcher, roxie_base::time::Nanos) -> R,
    ) -> R {
        self.service.with(call)
    }
}

/// A connection with the objects that [`ConnectionManager::dial`] or [`PortListener::serve`] made for it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Dialed {
    /// The connection, with its QP.
    pub connection: Connection,
    /// The protection domain, in which to register memory.
    pub pd: ProtectionDomain,
    /// The queue for completions of sends and receives.
    pub cq: CompletionQueue,
}

/// The connection manager of a device, which listens and connects. A device has one; a clone is another handle to it.
/// The manager lives as long as its listeners and connections.
#[derive(Clone, Debug)]
pub struct ConnectionManager {
    shared: Arc<Shared>,
}

impl ConnectionManager {
    /// Makes the device's QP1, claims its interface if needed, and starts.
    ///
    /// # Errors
    /// If a QP1 already exists, the interface cannot be claimed, or the system is out of memory, descriptors or
    /// threads.
    pub fn start(device: &Device) -> Result<ConnectionManager, DialError> {
        let [a, b, c, d, e, f] = device.port().mac;
        // EUI-64 of the MAC address, as for the node GUID.
        let ca_guid = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        let selective_repeat = device.selective_repeat() != SelectiveRepeat::Off;
        let own = cm::Config::default();
        let ack_delay = device.ack_delay().unwrap_or(own.ack_delay);
        let config = cm::Config { seed: unguessable(), ca_guid, selective_repeat, ack_delay, ..own };
        let manager = Manager::new(config);
        let service = ConnectionService::start(device, manager, EventDispatcher::default())?;
        let next_port = AtomicU16::new(unguessable() as u16);
        let shared =
            Arc::new(Shared { device: device.clone(), service, next_port, next_owner: AtomicU32::new(0) });
        let of = Arc::downgrade(&shared);
        device.set_cm_ids(Box::new(move || of.upgrade().map_or_else(Vec::new, |shared| shared.cm_ids())));
        Ok(ConnectionManager { shared })
    }

    /// Connects a QP to the listener at `to`, and waits until both ends are ready to send. Post receives for the peer's
    /// first messages before: move the QP to INIT for that ([`QueuePair::initialize`]).
    ///
    /// # Errors
    /// If there is no path, or the peer rejects the connection or does not answer. The QP is destroyed.
    pub fn connect(
        &self,
        qp: QueuePair,
        to: SocketAddr,
        options: &DialOptions,
    ) -> Result<Connection, DialError> {
        connection::connect(&self.shared, qp, to, options)
    }

    /// As [`ConnectionManager::connect`], without blocking the thread. Not for devices with
    /// [`Drive::CallerOnly`](crate::host::Drive::CallerOnly).
    ///
    /// # Errors
    /// The errors of [`ConnectionManager::connect`].
    #[cfg(feature = "tokio")]
    pub async fn connect_async(
        &self,
        qp: QueuePair,
        to: SocketAddr,
        options: &DialOptions,
    ) -> Result<Connection, DialError> {
        connection::connect_async(&self.shared, qp, to, options).await
    }

    /// Connects to the listener at `to`, with a protection domain, a completion queue and a QP made for the connection,
    /// and default options. Use [`ConnectionManager::connect`] for other sizes and options, or if the peer sends first.
    ///
    /// # Errors
    /// The errors of [`ConnectionManager::connect`]; also if the device has no room for the objects.
    pub fn dial(&self, to: SocketAddr) -> Result<Dialed, DialError> {
        let (pd, cq, qp) = self.shared.objects()?;
        let connection = self.connect(qp, to, &DialOptions::default())?;
        Ok(Dialed { connection, pd, cq })
    }

    /// Listens on a port: at one address, or at all with `0.0.0.0` or `::`. At most `backlog` requests are pending.
    ///
    /// # Errors
    /// If the port is taken, here or in another process of the device, or requires privilege.
    pub fn listen(&self, on: SocketAddr, backlog: u32) -> Result<PortListener, DialError> {
        listener::listen(&self.shared, on, backlog, false)
    }

    /// Listens on a port as a server of strangers does: see [`Acceptor`]. At most `half_open` connections are
    /// unconfirmed.
    ///
    /// # Errors
    /// The errors of [`ConnectionManager::listen`].
    pub fn acceptor<T>(&self, on: SocketAddr, half_open: u32) -> Result<Acceptor<T>, DialError> {
        listener::listen(&self.shared, on, half_open, true).map(Acceptor::new)
    }

    /// Counts of sent, received and dropped messages of communication management.
    pub fn counters(&self) -> cm::CmCounters {
        self.shared.with(|manager, _, _| *manager.counters())
    }

    /// Number of connections, including those in time wait.
    pub fn connections(&self) -> usize {
        self.shared.with(|manager, _, _| manager.connections())
    }
}

impl Shared {
    /// Makes the objects of a connection.
    fn objects(&self) -> Result<(ProtectionDomain, CompletionQueue, QueuePair), DialError> {
        let pd = self.device.alloc_pd()?;
        let caps = QpCaps::default();
        let cq = self.device.create_cq(caps.max_send_wr + caps.max_recv_wr, None)?;
        let qp = pd.queue_pair(&cq).caps(caps).create()?;
        Ok((pd, cq, qp))
    }

    /// Returns listeners and connections for snapshots.
    fn cm_ids(&self) -> Vec<CmIdEntry> {
        let entry = |id, state, src, qpn| CmIdEntry { id, ps: "TCP".into(), state, src, dst: None, qpn };
        self.with(|manager, _, _| {
            let listens = manager.services().filter_map(|(service, on)| {
                let (_, port) = service.port()?;
                let ip = match on {
                    ListenOn::Address(gid) => gid.to_ip(),
                    _ => IpAddr::from([0; 16]),
                };
                Some(entry(0, "LISTEN".into(), Some(SocketAddr::new(ip, port)), None))
            });
            let mut all: Vec<CmIdEntry> = listens.collect();
            all.extend(manager.ids().filter_map(|id| {
                let route = manager.parameters(id).ok()?.route;
                let src = SocketAddr::new(route.local.to_ip(), 0);
                let state = format!("{:?}", manager.state(id)?).into();
                let dst = Some(SocketAddr::new(route.remote.to_ip(), 0));
                Some(CmIdEntry { dst, ..entry(id.0, state, Some(src), None) })
            }));
            all
        })
    }

    /// Returns the local address for a peer.
    fn local_gid(&self, peer: IpAddr, options: &DialOptions) -> Result<LocalGid, DialError> {
        if let Some(index) = options.gid_index {
            return Ok(self.device.local_gid(index)?);
        }
        let link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let fits = |gid: Gid| {
            let ip = gid.to_ip();
            ip.is_ipv4() == peer.is_ipv4() && link_local(ip) == link_local(peer)
        };
        let matching = self.device.gids().into_iter().find(|entry| entry.assigned && fits(entry.gid));
        let device = || self.device.name().to_owned();
        matching.map(|entry| entry.local()).ok_or_else(|| DialError::NoAddress { device: device(), peer })
    }

    /// Returns the REQ for a connection, with a new local port number.
    fn request(
        &self,
        qp: LocalQp,
        local: LocalGid,
        to: SocketAddr,
        options: &DialOptions,
    ) -> Result<ConnectRequest, DialError> {
        let offset = self.next_port.fetch_add(1, Relaxed) % (u16::MAX - FIRST_DYNAMIC_PORT);
        let source_port = FIRST_DYNAMIC_PORT + offset;
        let header = CmaHeader { source: local.gid.to_ip(), source_port, destination: to.ip() };
        let private = [&header.to_bytes()[..], &options.private_data].concat();
        let route = Route {
            local: local.gid,
            encapsulation: local.encapsulation,
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

/// Returns the QP's parameters for the peer, with a random first PSN for it.
fn local_qp(qp: &QueuePair) -> LocalQp {
    LocalQp { qpn: qp.qpn(), psn: Psn::new(unguessable() as u32), srq: !qp.has_own_receives() }
}

#[cfg(test)]
mod tests;
