//! A peer that has restarted, and a host that claims so of another one. Tests with namespaces need root and are skipped
//! without.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use roxie::cm::{Config, ConnectRequest, Event, LocalQp, Manager, Route};
use roxie::host::{
    ConnectOptions, ConnectionManager, ConnectionService, Consumer, Device, DialOptions, Endpoint,
};
use roxie::time::Nanos;
use roxie::verbs::{Mtu, Psn, Qpn, SendWr};
use roxie::wire::cm::PrivateData;
use roxie::wire::{PortSpace, ServiceId};

use crate::connections::{End, PATIENCE, hosts, open};

const PORT: u16 = 7175;
/// Time within which a restarted peer connects: a second of silence of the old connection, and what surrounds it.
const LIMIT: Duration = Duration::from_secs(3);

/// First PSN that a client expects.
const EXPECTED: Psn = Psn::new(5);

/// A client that confirms each connection.
struct Confirms(Sender<Event>);

impl Consumer for Confirms {
    fn event(&mut self, manager: &mut Manager, _now: Nanos, event: Event) {
        if let Event::Reply { id, .. } = event {
            manager.ready(id, PrivateData::EMPTY).expect("a reply that waits");
        }
        let _ = self.0.send(event);
    }
}

struct Client {
    service: ConnectionService<Confirms>,
    events: Receiver<Event>,
}

impl Client {
    /// Starts the connection manager of a host, with IDs of this life.
    fn start(device: &Device, life: u64) -> Client {
        let (sender, events) = channel();
        let manager = Manager::new(Config { seed: life, ca_guid: 7, ..Config::default() });
        let service = ConnectionService::start(device, manager, Confirms(sender)).expect("QP1");
        Client { service, events }
    }

    /// Requests a connection for a QP with this number.
    fn request(&self, qpn: Qpn, from: IpAddr, to: SocketAddr) {
        let qp = LocalQp { qpn, psn: EXPECTED, srq: false };
        let service = ServiceId::of_port(PortSpace::Tcp, to.port());
        let request = ConnectRequest::new(service, Route::new(from, to.ip()), qp, Mtu::Mtu1024);
        self.service.with(|manager, _, now| manager.connect(now, &request)).expect("room");
    }

    /// Waits for the reply to a request. Returns the server's QPN and first PSN.
    fn reply(&self) -> (Qpn, Psn) {
        match self.events.recv_timeout(PATIENCE).expect("an event") {
            Event::Reply { reply, .. } => (reply.local_qpn, reply.starting_psn),
            other => panic!("{other:?}"),
        }
    }
}

/// The QP has the same number in the next life, as those of rdma_rxe have.
#[test]
fn restarted_peer_connects_within_three_seconds() {
    let Some(ends) = hosts("restarted_peer_connects_within_three_seconds", "cm-again") else { return };
    let ip = |n: u32| format!("10.83.0.{n}").parse::<IpAddr>().expect("an address");
    let to = SocketAddr::new(ip(2), PORT);
    for port in ["xdp", "packet", "udp"] {
        let (local, remote) = (open(port, &ends[0], ip(1)), open(port, &ends[1], ip(2)));
        let manager = ConnectionManager::start(&remote).expect("QP1");
        let listener = manager.listen(to, 4).expect("a listener");
        let server = thread::spawn(move || {
            let accept = || {
                let request = listener.accept(PATIENCE).expect("a device").expect("a request");
                request.accept(End::new(&remote).qp(), &DialOptions::default()).expect("a connection")
            };
            let old = accept();
            let new = accept();
            assert!(old.wait_for_end(PATIENCE), "the old connection is there");
            drop(new);
        });
        let qpn = Qpn::new(17);
        let client = Client::start(&local, 1);
        client.request(qpn, ip(1), to);
        client.reply();
        // Forgets the connection without a message.
        drop(client);
        let client = Client::start(&local, 2);
        let begun = Instant::now();
        client.request(qpn, ip(1), to);
        client.reply();
        assert!(begun.elapsed() < LIMIT, "over {port}: {:?}", begun.elapsed());
        server.join().unwrap_or_else(|_| panic!("over {port}"));
    }
}

/// Any host that knows the number of a connected QP can name it in a request.
#[test]
fn request_for_live_qp_ends_nothing() {
    let Some(ends) = hosts("request_for_live_qp_ends_nothing", "cm-live") else { return };
    let ip = |n: u32| format!("10.83.0.{n}").parse::<IpAddr>().expect("an address");
    let to = SocketAddr::new(ip(2), PORT);
    for port in ["xdp", "packet", "udp"] {
        let (local, remote) = (open(port, &ends[0], ip(1)), open(port, &ends[1], ip(2)));
        let manager = ConnectionManager::start(&remote).expect("QP1");
        let listener = manager.listen(to, 4).expect("a listener");
        let server = thread::spawn(move || {
            let mut end = End::new(&remote);
            let request = listener.accept(PATIENCE).expect("a device").expect("a request");
            let connection = request.accept(end.qp(), &DialOptions::default()).expect("a connection");
            assert_eq!(end.completed(), 5);
            assert!(!connection.wait_for_end(Duration::ZERO));
            assert!(manager.counters().names_connected_qp > 0);
        });
        let client = Client::start(&local, 1);
        let mut end = End::new(&local);
        let qp = end.qp();
        client.request(qp.qpn(), ip(1), to);
        let (qpn, psn) = client.reply();
        let here = Endpoint::new(qp.qpn(), psn, ip(1).into());
        let there = Endpoint::new(qpn, EXPECTED, ip(2).into());
        let options = ConnectOptions { path_mtu: Some(Mtu::Mtu1024), ..ConnectOptions::default() };
        qp.connect(&here, &there, &options).expect("a path");
        client.request(qp.qpn(), ip(1), to);
        let event = client.events.recv_timeout(LIMIT);
        assert!(event.is_err(), "over {port}: {event:?}");
        qp.post_send_inline(&SendWr::default(), b"alive").expect("room");
        server.join().unwrap_or_else(|_| panic!("over {port}"));
    }
}
