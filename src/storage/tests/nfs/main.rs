//! NFS over RDMA: server and client on two devices with a link in memory, and clients that violate the protocol.

#![deny(unsafe_code)]

mod export;
mod files;
mod half_open;
mod hostile;
mod replies;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use roxie::host::{ConnectionManager, Device, DeviceConfig};
use roxie_nfs::client::{Client, ClientError, ClientOptions, mount};
use roxie_nfs::nfs3::FileHandle;
use roxie_nfs::server::{Export, Server, ServerEvent};

const PATIENCE: Duration = Duration::from_secs(60);

/// A served folder, and the client's device, in one process.
struct Site {
    server: Option<Server>,
    folder: tempfile::TempDir,
    events: Arc<Mutex<Vec<ServerEvent>>>,
    remote: Device,
    remote_manager: ConnectionManager,
    local: Device,
    manager: ConnectionManager,
    to: SocketAddr,
}

impl Site {
    fn new() -> Site {
        let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("devices");
        let (manager, remote_manager) = (
            ConnectionManager::start(&local).expect("a manager"),
            ConnectionManager::start(&remote).expect("a manager"),
        );
        let to = SocketAddr::new(remote.gid(0).expect("an address").to_ip(), roxie_nfs::PORT);
        let folder = tempfile::tempdir().expect("a folder");
        let events = Arc::default();
        let mut site = Site { server: None, folder, events, remote, remote_manager, local, manager, to };
        site.start();
        site
    }

    fn start(&mut self) {
        let export = Arc::new(Export::open(self.folder.path()).expect("a folder"));
        let mount = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let events = Arc::clone(&self.events);
        let report = Box::new(move |event| events.lock().expect("no panic").push(event));
        let server = Server::start(&self.remote, &self.remote_manager, (self.to, mount), export, report);
        self.server = Some(server.expect("a free port"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).expect("a file");
    }

    fn connect(&self) -> Client {
        Client::connect(&self.local, &self.manager, self.to, ClientOptions::default()).expect("a connection")
    }

    fn mount(&self, path: &str) -> Result<FileHandle, ClientError> {
        let at = self.server.as_ref().expect("it runs").mount_address();
        mount(at.ip(), Some(at.port()), path, &ClientOptions::default().credential())
    }

    fn root(&self) -> FileHandle {
        self.mount("/").expect("the folder")
    }

    /// Waits until the server serves `count` connections.
    fn serves(&self, count: usize) {
        let until = Instant::now() + PATIENCE;
        let server = self.server.as_ref().expect("it runs");
        while server.connections() != count {
            assert!(Instant::now() < until, "{} connections instead of {count}", server.connections());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Bytes that differ from block to block.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|n| ((n / 512 * 31 + n * 7 + seed) % 251) as u8).collect()
}
