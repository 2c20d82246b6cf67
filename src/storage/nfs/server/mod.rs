//! A server: exports a folder read-only on a device, with a thread for each connection, and answers MOUNT over TCP.

mod answer;
mod connection;
mod export;
mod handles;
mod mountd;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use roxie::host::{ConnectionManager, ConnectionRequest, Device, DialError};
use roxie::text::Foreign;
use roxie_ulp::{Endpoint, ServerConfig, Service, UpperLayer};
use serde::Serialize;

use crate::private::Sizes;
use connection::{INLINE, SIZES, Served};

pub use answer::{Answer, LONGEST_TRANSFER, answer, refused_change};
pub use export::Export;
pub use handles::MOST_HANDLES;

/// Connections of clients at a time.
pub const MOST_CONNECTIONS: usize = 64;

/// An event that a server reports.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum ServerEvent {
    /// A client has asked for the handle of a folder.
    Mounted {
        /// The client's address.
        peer: SocketAddr,
        /// The path, of any bytes.
        path: String,
        /// Why the client has none.
        refusal: Option<String>,
    },
    /// A client has connected.
    Connected {
        /// The client's address.
        peer: SocketAddr,
    },
    /// A client was refused a change of files, for the first time of its connection.
    Refused {
        /// The client's address.
        peer: SocketAddr,
        /// The procedure.
        procedure: &'static str,
    },
    /// A connection has ended, or was not made.
    Ended {
        /// The client's address.
        peer: SocketAddr,
        /// The reason.
        why: String,
    },
}

impl fmt::Display for ServerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerEvent::Mounted { peer, path, refusal } => {
                let path = Foreign::from(path.as_str());
                match refusal {
                    None => write!(f, "{peer}: mounts {path}"),
                    Some(why) => write!(f, "{peer}: may not mount {path}: {why}"),
                }
            }
            ServerEvent::Connected { peer } => write!(f, "{peer}: connected"),
            ServerEvent::Refused { peer, procedure } => {
                write!(f, "{peer}: {procedure} refused: the export is read-only")
            }
            ServerEvent::Ended { peer, why } => write!(f, "{peer}: {why}"),
        }
    }
}

/// Receives the events of a server, from several threads.
pub type Report = Box<dyn Fn(ServerEvent) + Send + Sync>;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The device does not listen.
    #[error(transparent)]
    Listen(#[from] DialError),
    /// MOUNT's port is not available.
    #[error("cannot listen at TCP {at} for MOUNT: {source}")]
    Mount {
        /// The address.
        at: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// The service of clients, over RDMA and for MOUNT.
struct Shared {
    export: Arc<Export>,
    report: Report,
}

impl Service for Shared {
    type Request = Sizes;

    fn answer(&self, request: &ConnectionRequest) -> Result<roxie_ulp::Answer<Sizes>, Vec<u8>> {
        let own = Sizes { takes_invalidation: false, sends: INLINE, receives: INLINE };
        let (request, private_data) = (Sizes::parse(request.private_data()), own.to_bytes().to_vec());
        // The server reads no memory of clients.
        Ok(roxie_ulp::Answer { sizes: SIZES, reads: 0, private_data, request })
    }

    fn connected(&self, endpoint: Endpoint, client: Sizes) -> Result<impl UpperLayer, DialError> {
        let peer = endpoint.connection.peer();
        let served = Served::new(self, endpoint, client)?;
        (self.report)(ServerEvent::Connected { peer });
        Ok(served)
    }

    fn ended(&self, peer: SocketAddr, why: String) {
        (self.report)(ServerEvent::Ended { peer, why });
    }
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    server: roxie_ulp::Server<Shared>,
    mount: SocketAddr,
}

impl Server {
    /// Listens at an address of the device, or at all of them with `0.0.0.0` or `::`, and at a TCP address for MOUNT.
    /// Not for devices with [`Drive::CallerOnly`](roxie::host::Drive::CallerOnly).
    ///
    /// # Errors
    /// If a port is in use, the device has no room, or the system no thread.
    pub fn start(
        device: &Device,
        manager: &ConnectionManager,
        (listen, mount): (SocketAddr, SocketAddr),
        export: Arc<Export>,
        report: Report,
    ) -> Result<Server, StartError> {
        let shared = Arc::new(Shared { export, report });
        let config = ServerConfig {
            threads: ["nfs-accept", "nfs-serve"],
            connections: MOST_CONNECTIONS,
            first_length: INLINE as usize,
            no_resources: Vec::new(),
        };
        let mut server = roxie_ulp::Server::start(device, manager, listen, config, Arc::clone(&shared))?;
        let started = mountd::start(&shared, server.stopping(), mount);
        let (mount, thread) = started.map_err(|source| StartError::Mount { at: mount, source })?;
        server.join(thread);
        Ok(Server { server, mount })
    }

    /// The TCP address at which MOUNT is answered.
    pub fn mount_address(&self) -> SocketAddr {
        self.mount
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.server.connections()
    }
}
