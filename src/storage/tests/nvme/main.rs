//! NVMe over Fabrics: target and initiator on two devices with a link in memory, and hosts that violate the protocol.

#![deny(unsafe_code)]

mod half_open;
mod hostile;
mod io;
mod raw;
mod refuse;
mod requests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roxie::host::{ConnectionManager, Device, DeviceConfig};
use roxie_nvmeof::initiator::{HostOptions, Initiator, InitiatorError};
use roxie_nvmeof::storage::{MemoryStorage, Storage};
use roxie_nvmeof::subsystem::{Limits, Namespace, Subsystem};
use roxie_nvmeof::target::Target;

const DISK: &str = "nqn.2026-11.example:disk";
const HOST: &str = "nqn.2026-11.example:host";
const PATIENCE: Duration = Duration::from_secs(30);
/// Blocks of 512 bytes of each namespace.
const BLOCKS: u64 = 8192;

/// A target and the host's device, in one process.
struct Site {
    target: Option<Target>,
    subsystem: Arc<Subsystem>,
    remote: Device,
    remote_manager: ConnectionManager,
    local: Device,
    manager: ConnectionManager,
    to: SocketAddr,
}

fn memory() -> Box<dyn Storage> {
    Box::new(MemoryStorage::new(BLOCKS * 512).expect("memory"))
}

/// A subsystem with a writable and a read-only namespace.
fn subsystem(first: Box<dyn Storage>, hosts: &[&str], limits: Limits) -> Arc<Subsystem> {
    let writable = Namespace::new(first, 512, false, [1; 16]).expect("whole blocks");
    let read_only = Namespace::new(memory(), 4096, true, [2; 16]).expect("whole blocks");
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    Arc::new(Subsystem::new(DISK, vec![writable, read_only], hosts, limits).expect("names"))
}

impl Site {
    fn new() -> Site {
        Site::with(subsystem(memory(), &[], Limits::default()))
    }

    fn with(subsystem: Arc<Subsystem>) -> Site {
        let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("devices");
        let (manager, remote_manager) = (
            ConnectionManager::start(&local).expect("a manager"),
            ConnectionManager::start(&remote).expect("a manager"),
        );
        let to = SocketAddr::new(remote.gid(0).expect("an address").to_ip(), 4420);
        let mut site = Site { target: None, subsystem, remote, remote_manager, local, manager, to };
        site.start();
        site
    }

    fn start(&mut self) {
        let target = Target::start(
            &self.remote,
            &self.remote_manager,
            self.to,
            Arc::clone(&self.subsystem),
            Box::new(|_| {}),
        );
        self.target = Some(target.expect("a free port"));
    }

    fn stop(&mut self) {
        self.target.take().expect("it runs").stop().expect("a flush");
    }

    fn connect_as(&self, options: HostOptions) -> Result<Initiator, InitiatorError> {
        Initiator::connect(&self.local, &self.manager, self.to, options)
    }

    /// Connects the admin queue and the I/O queue.
    fn connect(&self) -> Initiator {
        let mut initiator = self.connect_as(options(DISK)).expect("a controller");
        initiator.connect_io().expect("an I/O queue");
        initiator
    }

    /// Waits until the target serves `count` connections.
    fn serves(&self, count: usize) {
        let until = Instant::now() + PATIENCE;
        let target = self.target.as_ref().expect("it runs");
        while target.connections() != count {
            assert!(Instant::now() < until, "{} connections instead of {count}", target.connections());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn options(subsystem: &str) -> HostOptions {
    HostOptions { host: HOST.into(), ..HostOptions::new(subsystem, [3; 16]) }
}

/// Bytes that differ from block to block.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|n| ((n / 512 * 31 + n * 7 + seed) % 251) as u8).collect()
}
