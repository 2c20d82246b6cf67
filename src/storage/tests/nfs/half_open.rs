//! Connections that clients request and never confirm.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use roxie::cm::{Config, ConnectRequest, LocalQp, Manager, Route};
use roxie::host::{ConnectionManager, ConnectionService, Device, DeviceConfig, IgnoreEvents};
use roxie::verbs::{Mtu, Psn, Qpn};
use roxie::wire::cm::{Kind, PrivateData};
use roxie::wire::{CmaHeader, PortSpace, ServiceId};
use roxie_nfs::client::{Client, ClientOptions};
use roxie_nfs::server::{Export, MOST_CONNECTIONS, Server};

use super::PATIENCE;

/// Requests `count` connections of QPs that do not exist, and confirms none.
fn request_connections(near: &Device, to: SocketAddr, count: u32) -> ConnectionService<IgnoreEvents> {
    let manager = Manager::new(Config::default());
    let service = ConnectionService::start(near, manager, IgnoreEvents).expect("QP1");
    let here = near.gid(0).expect("an address").to_ip();
    let header = CmaHeader { source: here, source_port: 7, destination: to.ip() }.to_bytes();
    for number in 0..count {
        let qp = LocalQp { qpn: Qpn::new(0x1000 + number), psn: Psn::new(1), srq: false };
        let request = ConnectRequest {
            private_data: PrivateData::new(Kind::Req, &header).expect("room"),
            ..ConnectRequest::new(
                ServiceId::of_port(PortSpace::Tcp, to.port()),
                Route::new(here, to.ip()),
                qp,
                Mtu::Mtu1024,
            )
        };
        service.with(|manager, _, now| manager.connect(now, &request)).expect("room");
    }
    service
}

/// Number of this process's threads that serve a connection.
fn serving_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.trim() == "nfs-serve").count()
}

#[test]
fn unconfirmed_connections_leave_all_places() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("devices");
    let remote_manager = ConnectionManager::start(&remote).expect("a manager");
    let to = SocketAddr::new(remote.gid(0).expect("an address").to_ip(), roxie_nfs::PORT);
    let folder = tempfile::tempdir().expect("a folder");
    let export = Arc::new(Export::open(folder.path()).expect("a folder"));
    let mount = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let server =
        Server::start(&remote, &remote_manager, (to, mount), export, Box::new(|_| {})).expect("free ports");
    let (others, count) = (serving_threads(), 4 * MOST_CONNECTIONS as u32);
    let flood = request_connections(&local, to, count);
    let until = Instant::now() + PATIENCE;
    while remote_manager.counters().sent(Kind::Rep) < 2 * MOST_CONNECTIONS as u64 {
        assert!(Instant::now() < until, "{:?}", remote_manager.counters());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.connections(), 0);
    // Other tests of this process serve connections, too.
    assert!(serving_threads() < others + MOST_CONNECTIONS, "{} threads, then {}", others, serving_threads());
    drop(flood);
    // All places are those of the client's own address.
    let manager = ConnectionManager::start(&local).expect("a manager");
    let client = Client::connect(&local, &manager, to, ClientOptions::default()).expect("a connection");
    client.close().expect("the device works");
}
