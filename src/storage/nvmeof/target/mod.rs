//! A target: serves a [`Subsystem`] on a device, with a thread for each queue.

mod connection;
mod data;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use roxie::host::{
    Acceptor, Connection, ConnectionManager, ConnectionRequest, Device, DialError, FirstMessages,
    ProtectionDomain,
};
use roxie::text::Foreign;
use serde::Serialize;

use crate::cm::Refusal;
use crate::subsystem::{Limits, Subsystem};
use connection::{Offered, first_capsule_length};

/// Interval at which the acceptor looks whether the target is to stop.
const LOOK: Duration = Duration::from_millis(100);
/// Connections that their hosts have not confirmed. They have no thread, and do not count as connections.
const HALF_OPEN: u32 = 128;
/// Time for the threads of connections to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What a target reports.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum TargetEvent {
    /// A host has connected a queue.
    Connected {
        /// The host's address.
        peer: SocketAddr,
        /// Name of the host.
        host: String,
        /// Controller identifier.
        controller: u16,
        /// Queue identifier.
        queue: u16,
    },
    /// A connection has ended, or was not made.
    Ended {
        /// The host's address.
        peer: SocketAddr,
        /// The reason.
        why: String,
    },
}

impl fmt::Display for TargetEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetEvent::Connected { peer, host, controller, queue } => {
                let host = Foreign::from(host.as_str());
                write!(f, "{peer}: queue {queue} of controller {controller} connected, host {host}")
            }
            TargetEvent::Ended { peer, why } => write!(f, "{peer}: {why}"),
        }
    }
}

/// Receives the events of a target, from several threads.
pub type Report = Box<dyn Fn(TargetEvent) + Send + Sync>;

struct Shared {
    device: Device,
    pd: ProtectionDomain,
    first_capsules: FirstMessages,
    subsystem: Arc<Subsystem>,
    report: Report,
    stop: AtomicBool,
    start: Instant,
    connections: Mutex<usize>,
    ended: Condvar,
}

impl Shared {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn stops(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Locks the number of connections.
    fn connections(&self) -> MutexGuard<'_, usize> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Most connections at a time: an admin queue and all I/O queues of each controller.
    fn most_connections(&self) -> usize {
        most_connections(self.subsystem.limits())
    }
}

fn most_connections(limits: &Limits) -> usize {
    usize::from(limits.controllers) * (1 + usize::from(limits.queues))
}

/// A running target. Dropping it stops it as [`Target::stop`] does.
pub struct Target {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
    listens: Vec<SocketAddr>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("subsystem", &self.shared.subsystem).finish_non_exhaustive()
    }
}

impl Target {
    /// Listens at an address, or at all of the device's with `0.0.0.0` or `::`. Not for devices with
    /// [`Drive::CallerOnly`](roxie::host::Drive::CallerOnly).
    ///
    /// # Errors
    /// If the port is in use, the device has no room, or the system no thread.
    pub fn start(
        device: &Device,
        manager: &ConnectionManager,
        listen: SocketAddr,
        subsystem: Arc<Subsystem>,
        report: Report,
    ) -> Result<Target, DialError> {
        let pd = device.alloc_pd()?;
        let limits = subsystem.limits();
        let (places, length) = (HALF_OPEN + most_connections(limits) as u32, first_capsule_length(limits, 1));
        let first_capsules = FirstMessages::new(&pd, places, length)?;
        let waiting = manager.acceptor(listen, HALF_OPEN)?;
        let listens = addresses(device, listen);
        subsystem.set_addresses(listens.clone());
        let shared = Arc::new(Shared {
            device: device.clone(),
            pd,
            first_capsules,
            subsystem,
            report,
            stop: AtomicBool::new(false),
            start: Instant::now(),
            connections: Mutex::new(0),
            ended: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new().name("nvme-accept".into());
        let acceptor = acceptor.spawn(move || accept(&accepting, waiting));
        let acceptor = acceptor.map_err(|source| roxie::host::DeviceError::System {
            what: "a thread that accepts connections",
            source,
        })?;
        Ok(Target { shared, acceptor: Some(acceptor), listens })
    }

    /// The addresses at which hosts connect.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.listens
    }

    /// Number of connections: one for each queue of each host.
    pub fn connections(&self) -> usize {
        *self.shared.connections()
    }

    /// Ends all connections, which tells the hosts, and makes all completed writes durable.
    ///
    /// # Errors
    /// The system's, if some writes may be lost.
    pub fn stop(mut self) -> io::Result<()> {
        self.end();
        self.shared.subsystem.flush()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // A thread that still waits for its host's first message ends with the process.
        let connections = self.shared.connections();
        let _ = self.shared.ended.wait_timeout_while(connections, STOP_TIMEOUT, |left| *left > 0);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.acceptor.is_some() {
            self.end();
            let _ = self.shared.subsystem.flush();
        }
    }
}

/// Returns the addresses at which a listener is reached.
fn addresses(device: &Device, listen: SocketAddr) -> Vec<SocketAddr> {
    if !listen.ip().is_unspecified() {
        return vec![listen];
    }
    // Link-local addresses mean nothing without an interface of the host's.
    let is_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let suits = |ip: &IpAddr| (ip.is_ipv4() || listen.is_ipv6()) && !is_local(ip);
    let mut all = Vec::new();
    for ip in
        device.gids().into_iter().filter(|entry| entry.assigned).map(|entry| entry.gid.to_ip()).filter(suits)
    {
        let address = SocketAddr::new(ip, listen.port());
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// Accepts connections until the target stops.
fn accept(shared: &Arc<Shared>, mut acceptor: Acceptor<Offered>) {
    let failed =
        |peer, error: DialError| (shared.report)(TargetEvent::Ended { peer, why: error.to_string() });
    let refused = |peer, refusal: Refusal| {
        (shared.report)(TargetEvent::Ended { peer, why: format!("refused: {refusal}") });
        refusal.to_bytes().to_vec()
    };
    while !shared.stops() {
        let offer = |request: &ConnectionRequest| {
            connection::offer(shared, request).map_err(|refusal| refused(request.peer(), refusal))
        };
        match acceptor.next(LOOK, offer, failed) {
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
    let ended = |why| (shared.report)(TargetEvent::Ended { peer, why });
    *shared.connections() += 1;
    let counted = Counted(Arc::clone(shared));
    if *shared.connections() > shared.most_connections() {
        return ended(format!("refused: {}", Refusal::RESOURCES));
    }
    let thread = std::thread::Builder::new().name("nvme-queue".into());
    let spawned = thread.spawn(move || {
        let Err(why) = connection::serve(&counted.0, connection, offered);
        (counted.0.report)(TargetEvent::Ended { peer, why });
    });
    if let Err(error) = spawned {
        ended(format!("no thread for another queue: {error}"));
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
