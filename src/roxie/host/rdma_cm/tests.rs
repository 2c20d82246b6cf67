//! Tests of requests that end before the program reads them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::super::connections::{ConnectionService, IgnoreEvents};
use super::super::device::{Device, DeviceConfig};
use super::ConnectionManager;
use roxie_nic::cm::{Config, ConnectRequest, LocalQp, Manager, Route};
use roxie_nic::verbs::{Mtu, Psn, Qpn};
use roxie_wire::cm::{CommId, Kind};
use roxie_wire::{PortSpace, ServiceId};

const PATIENCE: Duration = Duration::from_secs(60);

fn wait_until(done: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "not done in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Requests that their peers have given up fill neither the backlog nor the queue behind it, and are not returned.
#[test]
fn withdrawn_requests_are_left_out() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default()).unwrap();
    let server = ConnectionManager::start(&remote).unwrap();
    let to = SocketAddr::new(remote.gid(0).unwrap().to_ip(), 7174);
    let listener = server.listen(to, 2).unwrap();
    let client = ConnectionService::start(&local, Manager::new(Config::default()), IgnoreEvents).unwrap();
    let connect = |number| -> CommId {
        let route = Route::new(local.gid(0).unwrap().to_ip(), to.ip());
        let qp = LocalQp { qpn: Qpn::new(number), psn: Psn::new(1), srq: false };
        let service = ServiceId::of_port(PortSpace::Tcp, to.port());
        let request = ConnectRequest::new(service, route, qp, Mtu::Mtu1024);
        client.with(|manager, _, now| manager.connect(now, &request)).unwrap()
    };
    let given_up = [connect(0x101), connect(0x102)];
    wait_until(|| server.connections() == 2);
    for id in given_up {
        client.with(|manager, _, now| manager.destroy(now, id));
    }
    wait_until(|| server.counters().received(Kind::Rej) == 2);
    let third = connect(0x103);
    let request = listener.accept(PATIENCE).unwrap().expect("a request");
    assert_eq!(request.request().local_comm_id, third);
    assert_eq!(server.counters().sent(Kind::Rej), 0, "the third was not refused");
}
