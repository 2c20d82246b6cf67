//! Queues that hosts request and never confirm.

use std::time::{Duration, Instant};

use roxie::cm::{Config, ConnectRequest, LocalQp, Manager, Route};
use roxie::host::{ConnectionManager, ConnectionService, IgnoreEvents};
use roxie::verbs::{Mtu, Psn, Qpn};
use roxie::wire::cm::{Kind, PrivateData};
use roxie::wire::{CmaHeader, PortSpace, ServiceId};
use roxie_nvmeof::cm::QueueRequest;

use super::{DISK, Initiator, PATIENCE, Site, options};

#[test]
fn unconfirmed_queues_leave_all_places() {
    let site = Site::new();
    let Site { target, subsystem: _subsystem, remote: _remote, remote_manager, local, manager, to } = site;
    let target = target.expect("it runs");
    // The device has one QP1.
    drop(manager);
    let flood = ConnectionService::start(&local, Manager::new(Config::default()), IgnoreEvents).expect("QP1");
    let here = local.gid(0).expect("an address").to_ip();
    let header = CmaHeader { source: here, source_port: 7, destination: to.ip() }.to_bytes();
    let queue = QueueRequest { queue: 0, receives: 32, sends: 31 }.to_bytes();
    for number in 0..500 {
        let qp = LocalQp { qpn: Qpn::new(0x1000 + number), psn: Psn::new(1), srq: false };
        let service = ServiceId::of_port(PortSpace::Tcp, to.port());
        let request = ConnectRequest {
            private_data: PrivateData::new(Kind::Req, &[&header[..], &queue[..]].concat()).expect("room"),
            ..ConnectRequest::new(service, Route::new(here, to.ip()), qp, Mtu::Mtu1024)
        };
        flood.with(|manager, _, now| manager.connect(now, &request)).expect("room");
    }
    let until = Instant::now() + PATIENCE;
    while remote_manager.counters().sent(Kind::Rep) < 128 {
        assert!(Instant::now() < until, "{:?}", remote_manager.counters());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(target.connections(), 0);
    drop(flood);
    let manager = ConnectionManager::start(&local).expect("a manager");
    let host = Initiator::connect(&local, &manager, to, options(DISK));
    host.expect("a connection beside unconfirmed ones");
}
