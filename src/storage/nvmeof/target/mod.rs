//! A target: serves a [`Subsystem`] on a device, with a thread for each queue.

mod connection;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use roxie::host::{ConnectionManager, ConnectionRequest, Device, DialError};
use roxie::text::Foreign;
use roxie_ulp::{Answer, Endpoint, Server, ServerConfig, Service, UpperLayer};
use serde::Serialize;

use crate::cm::{QueueReply, QueueRequest, Refusal};
use crate::subsystem::Subsystem;
use connection::Served;

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

/// The service of hosts.
struct Hosts {
    subsystem: Arc<Subsystem>,
    report: Report,
    start: Instant,
}

impl Hosts {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Service for Hosts {
    type Request = QueueRequest;

    fn answer(&self, request: &ConnectionRequest) -> Result<Answer<QueueRequest>, Vec<u8>> {
        let limits = self.subsystem.limits();
        let queue = connection::check(limits, request.private_data()).map_err(|refusal| {
            self.ended(request.peer(), format!("refused: {refusal}"));
            refusal.to_bytes().to_vec()
        })?;
        let private_data = QueueReply { receives: queue.sends + 1 }.to_bytes().to_vec();
        Ok(Answer { sizes: connection::sizes(limits, queue), reads: 16, private_data, request: queue })
    }

    fn connected(&self, endpoint: Endpoint, request: QueueRequest) -> Result<impl UpperLayer, DialError> {
        Ok(Served::new(self, endpoint, request)?)
    }

    fn ended(&self, peer: SocketAddr, why: String) {
        (self.report)(TargetEvent::Ended { peer, why });
    }
}

/// A running target. Dropping it stops it as [`Target::stop`] does.
#[derive(Debug)]
pub struct Target {
    /// `None`: it is stopped.
    server: Option<Server<Hosts>>,
    subsystem: Arc<Subsystem>,
    listens: Vec<SocketAddr>,
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
        let listens = addresses(device, listen);
        subsystem.set_addresses(listens.clone());
        let limits = subsystem.limits();
        let config = ServerConfig {
            threads: ["nvme-accept", "nvme-queue"],
            // An admin queue and all I/O queues of each controller.
            connections: usize::from(limits.controllers) * (1 + usize::from(limits.queues)),
            first_length: connection::first_capsule_length(limits),
            no_resources: Refusal::RESOURCES.to_bytes().to_vec(),
        };
        let service = Arc::new(Hosts { subsystem: Arc::clone(&subsystem), report, start: Instant::now() });
        let server = Server::start(device, manager, listen, config, service)?;
        Ok(Target { server: Some(server), subsystem, listens })
    }

    /// The addresses at which hosts connect.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.listens
    }

    /// Number of connections: one for each queue of each host.
    pub fn connections(&self) -> usize {
        self.server.as_ref().map_or(0, Server::connections)
    }

    /// Ends all connections, which tells the hosts, and makes all completed writes durable.
    ///
    /// # Errors
    /// The system's, if some writes may be lost.
    pub fn stop(mut self) -> io::Result<()> {
        self.server = None;
        self.subsystem.flush()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.server.take().is_some() {
            let _ = self.subsystem.flush();
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
