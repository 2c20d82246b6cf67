//! A server: exports a folder read-only on a device, with a thread for each connection, and answers MOUNT over TCP.

mod answer;
mod connection;
mod export;
mod handles;
mod mountd;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use roxie::host::{
    Acceptor, Connection, ConnectionManager, Device, DialError, FirstMessages, ProtectionDomain,
};
use roxie::text::Foreign;
use serde::Serialize;

use connection::{INLINE, Offered};

pub use answer::{Answer, LONGEST_TRANSFER, answer, refused_change};
pub use export::Export;
pub use handles::MOST_HANDLES;

/// Connections of clients at a time.
pub const MOST_CONNECTIONS: usize = 64;
/// Why another client is not served.
const FULL: &str = "refused: too many connections";
/// Interval at which the acceptor looks whether the server is to stop.
const LOOK: Duration = Duration::from_millis(100);
/// Connections that their clients have not confirmed. They have no thread, and do not count as connections.
const HALF_OPEN: u32 = 128;
/// Time for the threads of connections to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

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

struct Shared {
    device: Device,
    pd: ProtectionDomain,
    first_calls: FirstMessages,
    export: Arc<Export>,
    report: Report,
    stop: AtomicBool,
    connections: Mutex<usize>,
    ended: Condvar,
}

impl Shared {
    fn stops(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Locks the number of connections.
    fn connections(&self) -> MutexGuard<'_, usize> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running server. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    mount: SocketAddr,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("export", &self.shared.export).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens at an address of the device, or at all of them with `0.0.0.0` or `::`, and at a TCP address for MOUNT. Not for devices
    /// with [`Drive::CallerOnly`](roxie::host::Drive::CallerOnly).
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
        let pd = device.alloc_pd().map_err(DialError::from)?;
        let first_calls = FirstMessages::new(&pd, HALF_OPEN + MOST_CONNECTIONS as u32, INLINE as usize);
        let first_calls = first_calls.map_err(DialError::from)?;
        let acceptor = manager.acceptor(listen, HALF_OPEN)?;
        let shared = Arc::new(Shared {
            device: device.clone(),
            pd,
            first_calls,
            export,
            report,
            stop: AtomicBool::new(false),
            connections: Mutex::new(0),
            ended: Condvar::new(),
        });
        let started = mountd::start(&shared, mount);
        let (at, thread) = started.map_err(|source| StartError::Mount { at: mount, source })?;
        let mut server = Server { shared, threads: vec![thread], mount: at };
        let accepting = Arc::clone(&server.shared);
        let thread = std::thread::Builder::new().name("nfs-accept".into());
        let thread = thread.spawn(move || accept(&accepting, acceptor));
        server.threads.push(thread.map_err(|source| {
            let what = "a thread that accepts connections";
            DialError::from(roxie::host::DeviceError::System { what, source })
        })?);
        Ok(server)
    }

    /// The TCP address at which MOUNT is answered.
    pub fn mount_address(&self) -> SocketAddr {
        self.mount
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        *self.shared.connections()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let connections = self.shared.connections();
        let _ = self.shared.ended.wait_timeout_while(connections, STOP_TIMEOUT, |left| *left > 0);
    }
}

/// Accepts connections until the server stops.
fn accept(shared: &Arc<Shared>, mut acceptor: Acceptor<Offered>) {
    let failed =
        |peer, error: DialError| (shared.report)(ServerEvent::Ended { peer, why: error.to_string() });
    while !shared.stops() {
        match acceptor.next(LOOK, |request| connection::offer(shared, request), failed) {
            Ok(Some((connection, offered))) => admit(shared, connection, offered),
            Ok(None) => {}
            // The device has failed.
            Err(_) => return,
        }
    }
}

/// Serves a connection on a thread of its own, if there is room for another one.
fn admit(shared: &Arc<Shared>, connection: Connection, offered: Offered) {
    let peer = connection.peer();
    let ended = |why| (shared.report)(ServerEvent::Ended { peer, why });
    *shared.connections() += 1;
    let counted = Counted(Arc::clone(shared));
    if *shared.connections() > MOST_CONNECTIONS {
        return ended(FULL.into());
    }
    let thread = std::thread::Builder::new().name("nfs-serve".into());
    let spawned = thread.spawn(move || {
        let Err(why) = connection::serve(&counted.0, connection, offered);
        (counted.0.report)(ServerEvent::Ended { peer, why });
    });
    if let Err(error) = spawned {
        ended(format!("no thread for a connection: {error}"));
    }
}

/// A counted connection; no longer counted when dropped.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.connections() -= 1;
        self.0.ended.notify_all();
    }
}
