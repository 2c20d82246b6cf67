//! Clients that name QPs of other clients in their requests for connections.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::isolation::attached;
use super::{Nic, Quota, nic};
use roxie::host::{ConnectionService, Consumer, Device, QueuePair};
use roxie_base::roster::{BoundPort, PortName, PortRequest};
use roxie_base::time::Nanos;
use roxie_nic::cm::{AcceptOptions, Config, ConnectRequest, Event, ListenOn, LocalQp, Manager, Route};
use roxie_nic::verbs::{Mtu, Psn, Qpn};
use roxie_wire::{PortSpace, ServiceId};

const PORT: u16 = 7474;
const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, PORT);
const PATIENCE: Duration = Duration::from_secs(10);

/// Reports all events.
struct Reports(Sender<Event>);

impl Consumer for Reports {
    fn event(&mut self, _: &mut Manager, _: Nanos, event: Event) {
        let _ = self.0.send(event);
    }
}

fn service(device: &Device) -> (ConnectionService<Reports>, Receiver<Event>) {
    let (sender, events) = channel();
    (ConnectionService::start(device, Manager::new(Config::default()), Reports(sender)).expect("QP1"), events)
}

fn queue_pair(device: &Device) -> QueuePair {
    let (pd, cq) = (device.alloc_pd().expect("room"), device.create_cq(4, None).expect("room"));
    pd.queue_pair(&cq).create().expect("room")
}

fn address(device: &Device) -> IpAddr {
    device.gids()[0].gid.to_ip()
}

fn counted(device: &Device) -> u64 {
    device.counters().into_iter().filter(|(name, _)| *name == "tx_foreign_qp").map(|(_, count)| count).sum()
}

/// Has a client listen, for which it must have the port.
fn listen(client: &Device, service: &ConnectionService<Reports>) {
    let name = PortName { space: 0x0106, port: PORT, owner: 1 };
    let (address, one_family) = (address(client), true);
    let port = BoundPort { name, address, reuse: false, one_family, slot: 0, uid: 0 };
    client.slot().expect("a client").port(PortRequest::Bind(port)).expect("free");
    let on = ListenOn::Address(address.into());
    service.with(|manager, _, _| manager.listen(SERVICE, on, 8)).expect("a listener");
}

fn named(qpn: Qpn) -> LocalQp {
    LocalQp { qpn, psn: Psn::new(1), srq: false }
}

/// Requests a connection from one device to another, for a QP with this number.
fn request_connection(from: &ConnectionService<Reports>, devices: [&Device; 2], qpn: Qpn) {
    let route = Route::new(address(devices[0]), address(devices[1]));
    let request = ConnectRequest::new(SERVICE, route, named(qpn), Mtu::Mtu1024);
    from.with(|manager, _, now| manager.connect(now, &request)).expect("room");
}

#[test]
fn request_for_another_clients_qp_is_not_sent() {
    let nic = nic(Quota::default());
    let [own, other] = [attached(&nic), attached(&nic)];
    let (client, _) = service(&own);
    let (server, requests) = service(&nic.remote);
    server.with(|manager, _, _| manager.listen(SERVICE, ListenOn::Any, 8)).expect("a listener");
    let [own_qp, other_qp] = [queue_pair(&own), queue_pair(&other)];
    // The numbers of a QP of another client, and of none.
    for (times, qpn) in (1..).zip([other_qp.qpn(), Qpn::new(0x12_3456)]) {
        request_connection(&client, [&own, &nic.remote], qpn);
        nic.wait("refused", |_| counted(&own) >= times);
        assert!(requests.recv_timeout(Duration::from_millis(50)).is_err());
    }
    request_connection(&client, [&own, &nic.remote], own_qp.qpn());
    match requests.recv_timeout(PATIENCE).expect("a request") {
        Event::Request { request, .. } => assert_eq!(request.local_qpn, own_qp.qpn()),
        other => panic!("{other:?}"),
    }
}

/// Has a client answer two requests: with a QP that is not its own, and with one of its own.
fn answers_with_own_alone(nic: &Nic, own: &Device, qps: [&QueuePair; 2]) {
    let (server, requests) = service(own);
    listen(own, &server);
    let (client, replies) = service(&nic.remote);
    for (qpn, is_own) in [(qps[0].qpn(), false), (qps[1].qpn(), true)] {
        request_connection(&client, [&nic.remote, own], Qpn::new(0x20 + u32::from(is_own)));
        let id = requests.recv_timeout(PATIENCE).expect("a request").id();
        let options = AcceptOptions { qp: named(qpn), ..AcceptOptions::default() };
        server.with(|manager, _, now| manager.accept(now, id, &options)).expect("a request that waits");
        if is_own {
            assert!(matches!(replies.recv_timeout(PATIENCE), Ok(Event::Reply { .. })));
        } else {
            nic.wait("refused", |_| counted(own) > 0);
            assert!(replies.recv_timeout(Duration::from_millis(50)).is_err());
        }
    }
}

#[test]
fn reply_with_another_clients_qp_is_not_sent() {
    let nic = nic(Quota::default());
    let [own, other] = [attached(&nic), attached(&nic)];
    let [own_qp, other_qp] = [queue_pair(&own), queue_pair(&other)];
    answers_with_own_alone(&nic, &own, [&other_qp, &own_qp]);
}

/// Targets of XRC connections have no queues.
#[test]
fn reply_with_another_clients_target_is_not_sent() {
    let nic = nic(Quota::default());
    let [own, other] = [attached(&nic), attached(&nic)];
    let target = |device: &Device| device.open_xrcd().expect("room").create_target().expect("room");
    let [own_target, other_target] = [target(&own), target(&other)];
    answers_with_own_alone(&nic, &own, [&other_target, &own_target]);
}
