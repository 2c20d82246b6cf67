//! A server: exports a folder read-only on a device, with a thread for each connection, and answers MOUNT over TCP.

mod answer;
mod connection;
mod export;
mod handles;
mod mountd;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use roxie::host::{ConnectionManager, ConnectionRequest, Device, DialError, PortListener, ProtectionDomain};

pub use answer::{Answer, LONGEST_TRANSFER, answer, refused_change};
pub use export::Export;
pub use handles::MOST_HANDLES;

/// Connections of clients at a time.
pub const MOST_CONNECTIONS: usize = 64;
/// Interval at which the acceptor looks whether the server is to stop.
const LOOK: Duration = Duration::from_millis(100);
/// Connection requests that wait.
const BACKLOG: u32 = 64;
/// Time for the threads of connections to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// An event that a server reports.
#[derive(Clone, Debug)]
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
    /// The device has failed: no more clients are served.
    DeviceFailed,
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
}

/// A running server. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    mount: SocketAddr,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
        let listener = manager.listen(listen, BACKLOG)?;
        let shared = Arc::new(Shared {
            device: device.clone(),
            pd,
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
        let acceptor = std::thread::Builder::new().name("nfs-accept".into());
        let acceptor = acceptor.spawn(move || accept(&accepting, &listener));
        server.threads.push(acceptor.map_err(|source| {
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
        *self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.shared.ended.wait_timeout_while(connections, STOP_TIMEOUT, |left| *left > 0);
    }
}

/// Accepts connections until the server stops.
fn accept(shared: &Arc<Shared>, listener: &PortListener) {
    while !shared.stops() {
        match listener.accept(LOOK) {
            Ok(Some(request)) => admit(shared, request),
            Ok(None) => {}
            Err(_) => return (shared.report)(ServerEvent::DeviceFailed),
        }
    }
}

/// Serves a request on a thread of its own, if there is room for another connection.
fn admit(shared: &Arc<Shared>, request: ConnectionRequest) {
    let peer = request.peer();
    let count = {
        let mut count = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        *count
    };
    let counted = Counted(Arc::clone(shared));
    if count > MOST_CONNECTIONS {
        // A client that has given up needs no rejection.
        let _ = request.reject(&[]);
        return (shared.report)(ServerEvent::Ended { peer, why: "refused: too many connections".into() });
    }
    let thread = std::thread::Builder::new().name("nfs-serve".into());
    let spawned = thread.spawn(move || {
        let Err(why) = connection::serve(&counted.0, request);
        (counted.0.report)(ServerEvent::Ended { peer, why });
    });
    if let Err(error) = spawned {
        (shared.report)(ServerEvent::Ended { peer, why: format!("no thread for a connection: {error}") });
    }
}

/// A counted connection; no longer counted when dropped.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.connections.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_all();
    }
}
