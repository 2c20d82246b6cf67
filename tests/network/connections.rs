//! Connections by address and port, between two devices in one process, and between two network namespaces. Tests with
//! namespaces need root and are skipped without.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use roxie::cm::{Arrival, Config, ConnectRequest, Event, LocalQp, Manager, Route};
use roxie::host::{
    CompletionQueue, Connection, ConnectionManager, ConnectionService, Consumer, Device, DeviceConfig,
    DialError, DialOptions, MemoryRegion, QueuePair, Resolve, ResolveError, SelectiveRepeat, Stack,
};
use roxie::netdev::{IfAddr, Links, NetNs, RouteKey};
use roxie::port::fault::FaultConfig;
use roxie::port::memory::{self, MemoryConfig, MemoryPort};
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::XdpConfig;
use roxie::time::Nanos;
use roxie::verbs::{Access, Mtu, Psn, Qpn, RKey, SendWr, WcStatus, WrOpcode};
use roxie::wire::cm::{CmMessage, CommId, Kind, RejReason, Req};
use roxie::wire::mad::MAD_LEN;
use roxie::wire::{PortSpace, ServiceId};

const PORT: u16 = 7174;
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A QP in INIT with a receive posted, and the objects it uses. Fields are dropped in this order.
pub(crate) struct End {
    qp: Option<QueuePair>,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl End {
    pub(crate) fn new(device: &Device) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(16, None).unwrap();
        let qp = pd.queue_pair(&cq).signal_all().create().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = pd.register(4096, access).unwrap();
        qp.initialize(access).unwrap();
        qp.post_recv(1, &[memory.sge(0, 1024)]).unwrap();
        End { qp: Some(qp), cq, memory }
    }

    pub(crate) fn qp(&mut self) -> QueuePair {
        self.qp.take().expect("a QP")
    }

    pub(crate) fn completed(&self) -> u32 {
        let wc = self.cq.wait(PATIENCE).expect("a completion");
        assert_eq!(wc.status, WcStatus::Success);
        wc.byte_len
    }
}

fn options(text: &str) -> DialOptions {
    DialOptions { private_data: text.as_bytes().to_vec(), ..DialOptions::default() }
}

/// Accepts one connection, answers the received bytes reversed, and lets the peer READ them as well.
fn serve(device: Device, address: SocketAddr) -> JoinHandle<()> {
    let (listening, is_listening) = channel();
    let server = thread::spawn(move || {
        let manager = ConnectionManager::start(&device).unwrap();
        let listener = manager.listen(address, 4).unwrap();
        listening.send(()).unwrap();
        let request = listener.accept(PATIENCE).unwrap().expect("a request");
        assert!(request.private_data().starts_with(b"may I?\0"));
        let mut end = End::new(&device);
        let key = end.memory.rkey().0.to_be_bytes();
        let at = end.memory.sge(2048, 0).addr.to_be_bytes();
        let given = DialOptions { private_data: [&key[..], &at].concat(), ..DialOptions::default() };
        let connection = request.accept(end.qp(), &given).unwrap();
        let length = end.completed();
        let mut bytes = end.memory.to_vec(0, length as usize).unwrap();
        bytes.reverse();
        end.memory.write_at(2048, &bytes).unwrap();
        connection.qp().post_send(&SendWr::default(), &[end.memory.sge(2048, length)]).unwrap();
        end.completed();
        assert!(connection.wait_for_end(PATIENCE), "the connection was not ended");
        // An unused receive is flushed.
        connection.qp().post_recv(2, &[]).unwrap();
        assert_eq!(end.cq.wait(PATIENCE).expect("a flush").status, WcStatus::WrFlush);
        drop(connection);
        rests(&manager);
    });
    is_listening.recv_timeout(PATIENCE).unwrap();
    server
}

/// Resolves for two ports that memory joins.
struct Joined;

impl Resolve for Joined {
    fn resolve(&self, key: RouteKey) -> Result<[u8; 6], ResolveError> {
        let IpAddr::V4(ip) = key.destination else { panic!("{key:?}") };
        Ok([2, 0, 0, 0, 0, ip.octets()[3]])
    }
}

/// Returns two devices in one process, which offer selective repeat or do not.
fn offering(offers: [SelectiveRepeat; 2]) -> [Device; 2] {
    let config = |n: u8| MemoryConfig { mac: [2, 0, 0, 0, 0, n], ..MemoryConfig::default() };
    let (a, b) = memory::pair(config(1), config(2));
    let open = |port: MemoryPort, n: u8, selective_repeat| {
        let config = DeviceConfig { selective_repeat, ..DeviceConfig::default() };
        let address = IpAddr::from([192, 0, 2, n]);
        Device::new("joined", Box::new(port), [address], Box::new(Joined), &config).unwrap()
    };
    [open(a, 1, offers[0]), open(b, 2, offers[1])]
}

/// Connects the first device to the second. Returns whether each end has selective repeat, after a message has arrived.
fn agreed([near, far]: [Device; 2]) -> (bool, bool) {
    let to = SocketAddr::new(IpAddr::from([192, 0, 2, 2]), PORT);
    let (listening, is_listening) = channel();
    let server = thread::spawn(move || {
        let manager = ConnectionManager::start(&far).unwrap();
        let listener = manager.listen(to, 1).unwrap();
        listening.send(()).unwrap();
        let request = listener.accept(PATIENCE).unwrap().expect("a request");
        assert!(request.private_data().starts_with(b"hello"));
        let mut end = End::new(&far);
        let connection = request.accept(end.qp(), &options("welcome")).unwrap();
        assert_eq!(end.completed(), 13);
        let own = connection.parameters().unwrap().selective_repeat;
        connection.wait_for_end(PATIENCE);
        own
    });
    is_listening.recv_timeout(PATIENCE).unwrap();
    let manager = ConnectionManager::start(&near).unwrap();
    let mut end = End::new(&near);
    let connection = manager.connect(end.qp(), to, &options("hello")).unwrap();
    assert!(connection.private_data().starts_with(b"welcome"));
    connection.qp().post_send(&SendWr::default(), &[end.memory.sge(0, 13)]).unwrap();
    end.completed();
    let own = connection.parameters().unwrap().selective_repeat;
    connection.disconnect().unwrap();
    (own, server.join().unwrap())
}

#[test]
fn selective_repeat_takes_offers_of_both_ends() {
    use SelectiveRepeat::{Agree, Assume, Off};
    assert_eq!(agreed(offering([Agree, Agree])), (true, true));
    assert_eq!(agreed(offering([Agree, Assume])), (true, true));
    assert_eq!(agreed(offering([Agree, Off])), (false, false));
    assert_eq!(agreed(offering([Off, Agree])), (false, false));
}

/// Waits until the manager has no connections left.
fn rests(manager: &ConnectionManager) {
    let until = Instant::now() + PATIENCE;
    while manager.connections() > 0 {
        assert!(Instant::now() < until, "{} connections linger", manager.connections());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Connects, sends a message, receives it reversed, reads it, and disconnects.
fn speak(device: &Device, to: SocketAddr) {
    let manager = ConnectionManager::start(device).unwrap();
    let mut end = End::new(device);
    let connection = manager.connect(end.qp(), to, &options("may I?")).unwrap();
    assert_eq!(connection.peer(), to);
    end.memory.write_at(2048, b"a man, a plan").unwrap();
    connection.qp().post_send(&SendWr::default(), &[end.memory.sge(2048, 13)]).unwrap();
    end.completed();
    end.completed();
    assert_eq!(end.memory.to_vec(0, 13).unwrap(), b"nalp a ,nam a");
    read_back(&connection, &end);
    connection.disconnect().unwrap();
    rests(&manager);
}

/// READs use the negotiated limits.
fn read_back(connection: &Connection, end: &End) {
    let agreed = connection.parameters().unwrap();
    assert_eq!((agreed.max_rd_atomic, agreed.max_dest_rd_atomic), (16, 16));
    let given = connection.private_data();
    let rkey = RKey(u32::from_be_bytes(given[..4].try_into().unwrap()));
    let remote_addr = u64::from_be_bytes(given[4..12].try_into().unwrap());
    let wr = SendWr { opcode: WrOpcode::Read, remote_addr, rkey, ..SendWr::default() };
    connection.qp().post_send(&wr, &[end.memory.sge(3000, 13)]).unwrap();
    end.completed();
    assert_eq!(end.memory.to_vec(3000, 13).unwrap(), b"nalp a ,nam a");
}

fn pair() -> (Device, Device) {
    Device::memory_pair(&DeviceConfig::default()).unwrap()
}

fn address(device: &Device) -> SocketAddr {
    SocketAddr::new(device.gids()[0].gid.to_ip(), PORT)
}

#[test]
fn two_devices_connect_exchange_and_disconnect() {
    let (local, remote) = pair();
    let to = address(&remote);
    let server = serve(remote, to);
    speak(&local, to);
    server.join().unwrap();
}

#[test]
fn device_connects_to_itself() {
    let (local, _remote) = pair();
    let to = address(&local);
    let manager = ConnectionManager::start(&local).unwrap();
    let listener = manager.listen(to, 1).unwrap();
    let device = local.clone();
    let server = thread::spawn(move || {
        let request = listener.accept(PATIENCE).unwrap().expect("a request");
        let mut end = End::new(&device);
        let connection = request.accept(end.qp(), &DialOptions::default()).unwrap();
        end.completed();
        assert!(connection.wait_for_end(PATIENCE));
    });
    let mut end = End::new(&local);
    let connection = manager.connect(end.qp(), to, &options("")).unwrap();
    connection.qp().post_send_inline(&SendWr::default(), b"me").unwrap();
    end.completed();
    connection.disconnect().unwrap();
    server.join().unwrap();
    rests(&manager);
}

#[test]
fn refusals_have_reasons() {
    let (local, remote) = pair();
    let to = address(&remote);
    let (client, server) =
        (ConnectionManager::start(&local).unwrap(), ConnectionManager::start(&remote).unwrap());
    let dial = |options: &DialOptions| client.connect(End::new(&local).qp(), to, options);
    let error = dial(&options("")).unwrap_err();
    assert!(matches!(error, DialError::Rejected { reason: RejReason::INVALID_SERVICE_ID, .. }), "{error}");

    let listener = server.listen(to, 2).unwrap();
    let refusing = thread::spawn(move || {
        listener.accept(PATIENCE).unwrap().expect("a request").reject(b"closed").unwrap();
        listener
    });
    let error = dial(&options("")).unwrap_err();
    let is_private_data = |text: &[u8]| match &error {
        DialError::Rejected { reason: RejReason::CONSUMER, private_data, .. } => {
            private_data.starts_with(text)
        }
        _ => false,
    };
    assert!(is_private_data(b"closed\0"), "{error}");
    let listener = refusing.join().unwrap();

    // A request that is not accepted is refused when its listener closes.
    let earlier = server.counters().received(Kind::Req);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            while server.counters().received(Kind::Req) == earlier {
                thread::sleep(Duration::from_millis(1));
            }
            drop(listener);
        });
        dial(&options("")).unwrap_err()
    });
    assert!(matches!(error, DialError::Rejected { reason: RejReason::CONSUMER, .. }), "{error}");

    let error = dial(&DialOptions { private_data: vec![0; 57], ..DialOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("93 bytes of private data, but REQ has room for 92"), "{error}");
    rests(&client);
    rests(&server);
}

#[test]
fn port_and_device_are_claimed_once() {
    let (local, remote) = pair();
    let server = ConnectionManager::start(&remote).unwrap();
    let on = address(&remote);
    let listener = server.listen(on, 1).unwrap();
    assert!(matches!(server.listen(on, 1), Err(DialError::Manager(_))));
    drop(listener);
    server.listen(on, 1).unwrap();
    let error = ConnectionManager::start(&remote).unwrap_err();
    assert!(matches!(error, DialError::Device(_)), "{error}");
    drop(local);
}

#[test]
fn missing_peer_times_out_as_configured() {
    let (local, remote) = pair();
    let to = address(&remote);
    // No QP1 at the other end.
    let client = ConnectionManager::start(&local).unwrap();
    let hurried = DialOptions { response_timeout: 12, max_cm_retries: 2, ..DialOptions::default() };
    let error = client.connect(End::new(&local).qp(), to, &hurried).unwrap_err();
    assert!(matches!(error, DialError::Unreachable { sent: Kind::Req, .. }), "{error}");
    let counters = client.counters();
    // One more than `max_cm_retries`: a REQ is repeated once after 250 ms.
    assert_eq!((counters.sent(Kind::Req), counters.sent(Kind::Rej)), (4, 1));
    rests(&client);
}

#[test]
fn oversized_path_mtu_is_refused_with_largest() {
    let (local, remote) = pair();
    let to = address(&remote);
    remote.follow_link(&roxie::port::LinkChange::Mtu(1500)).unwrap();
    let (client, server) =
        (ConnectionManager::start(&local).unwrap(), ConnectionManager::start(&remote).unwrap());
    let listener = server.listen(to, 1).unwrap();
    let device = remote.clone();
    let serving = thread::spawn(move || {
        let accept = || listener.accept(PATIENCE).unwrap().expect("a request");
        let error = accept().accept(End::new(&device).qp(), &DialOptions::default()).unwrap_err();
        assert!(matches!(error, DialError::PathMtu { requested: 4096, largest: 1024, .. }), "{error}");
        let connection = accept().accept(End::new(&device).qp(), &DialOptions::default()).unwrap();
        assert!(connection.wait_for_end(PATIENCE));
    });
    let error = client.connect(End::new(&local).qp(), to, &options("")).unwrap_err();
    assert!(matches!(error, DialError::Rejected { reason: RejReason::INVALID_MTU, .. }), "{error}");
    let smaller = DialOptions { path_mtu: Some(Mtu::Mtu1024), ..DialOptions::default() };
    let connection = client.connect(End::new(&local).qp(), to, &smaller).unwrap();
    connection.disconnect().unwrap();
    serving.join().unwrap();
}

/// Messages of management and of data are lost and repeated.
#[test]
fn lossy_link_only_delays_connections() {
    for seed in 1..=3 {
        let stack = |seed| {
            let fault: FaultConfig = format!("tx.drop=0.2,tx.duplicate=0.1,seed={seed}").parse().unwrap();
            Stack { fault: Some(fault), ..Stack::default() }
        };
        let config = DeviceConfig::default();
        let (local, remote) = Device::memory_pair_with(&config, &stack(seed), &stack(seed + 10)).unwrap();
        let to = address(&remote);
        let manager = ConnectionManager::start(&remote).unwrap();
        let listener = manager.listen(to, 4).unwrap();
        let serving = thread::spawn(move || {
            let request = listener.accept(PATIENCE).unwrap().expect("a request");
            let mut end = End::new(&remote);
            let connection = request.accept(end.qp(), &DialOptions::default()).unwrap();
            end.completed();
            assert!(connection.wait_for_end(PATIENCE));
        });
        let client = ConnectionManager::start(&local).unwrap();
        let mut end = End::new(&local);
        let hurried = DialOptions { response_timeout: 13, ..DialOptions::default() };
        let connection = client.connect(end.qp(), to, &hurried).unwrap();
        connection.qp().post_send_inline(&SendWr::default(), b"through").unwrap();
        end.completed();
        connection.disconnect().unwrap();
        serving.join().unwrap();
    }
}

pub(crate) fn open(port: &str, namespace: &NetNs, address: IpAddr) -> Device {
    let config = DeviceConfig::default();
    let open = || {
        if port == "xdp" {
            return Device::open_xdp(&XdpConfig::new("veth0"), &Stack::default(), &config);
        }
        if port == "packet" {
            return Device::open_packet(&PacketConfig::new("veth0"), &Stack::default(), &config);
        }
        let interface = Some("veth0".to_owned());
        let udp = UdpConfig { addresses: vec![address], interface, ..UdpConfig::default() };
        Device::open_udp(&udp, &Stack::default(), &config)
    };
    namespace.run(open).expect("the namespace").expect("a device")
}

/// Two hosts on a link, 10.83.0.1 and 10.83.0.2, fd83::1 and fd83::2.
pub(crate) fn hosts(test: &str, tag: &str) -> Option<[NetNs; 2]> {
    let ends = match (NetNs::create(&format!("{tag}-a")), NetNs::create(&format!("{tag}-b"))) {
        (Ok(here), Ok(there)) => [here, there],
        (Err(why), _) | (_, Err(why)) => {
            println!("SKIP {test}: {why}");
            return None;
        }
    };
    let mut links = Links::open_in(&ends[0]).expect("netlink");
    links.create_veth("veth0", &ends[1], "veth0", 1).expect("a pair");
    for (n, end) in (1..).zip(&ends) {
        let mut links = Links::open_in(end).expect("netlink");
        for text in [format!("10.83.0.{n}/24"), format!("fd83::{n}/64")] {
            links.add_address("veth0", text.parse::<IfAddr>().expect("an address")).expect("an address");
        }
        links.set_up("veth0", true).expect("up");
    }
    Some(ends)
}

#[test]
fn hosts_connect_over_all_ports_and_families() {
    let Some(ends) = hosts("hosts_connect_over_all_ports_and_families", "cm") else { return };
    for (near_port, far_port) in
        [("xdp", "xdp"), ("packet", "packet"), ("udp", "udp"), ("xdp", "udp"), ("packet", "udp")]
    {
        for network in ["10.83.0.", "fd83::"] {
            let ip = |n: u32| format!("{network}{n}").parse::<IpAddr>().expect("an address");
            let local = open(near_port, &ends[0], ip(1));
            let remote = open(far_port, &ends[1], ip(2));
            let to = SocketAddr::new(ip(2), PORT);
            let server = serve(remote, to);
            speak(&local, to);
            server.join().unwrap_or_else(|_| panic!("{near_port} to {far_port} at {to}"));
        }
    }
}

/// Records refusals.
struct Refusals(std::sync::mpsc::Sender<CommId>);

impl Consumer for Refusals {
    fn event(&mut self, _manager: &mut Manager, _now: Nanos, event: Event) {
        if let Event::Rejected { id, .. } = event {
            let _ = self.0.send(id);
        }
    }
}

/// Waiting for silent hosts does not delay the others.
#[test]
fn silent_hosts_do_not_delay_resolution() {
    let name = "silent_hosts_do_not_delay_resolution";
    let Some(ends) = hosts(name, "cm-silent") else { return };
    let ip = |n: u32| format!("10.83.0.{n}").parse::<IpAddr>().expect("an address");
    let (local, remote) = (open("xdp", &ends[0], ip(1)), open("xdp", &ends[1], ip(2)));
    let _server = ConnectionManager::start(&remote).unwrap();
    let (sender, receiver) = channel();
    let manager = Manager::new(Config::default());
    let service = ConnectionService::start(&local, manager, Refusals(sender)).unwrap();
    let connect = |n: u32| {
        let qp = LocalQp { qpn: Qpn::new(n), psn: Psn::new(0), srq: false };
        let route = Route::new(ip(1), ip(n));
        let request = ConnectRequest::new(ServiceId::of_port(PortSpace::Tcp, PORT), route, qp, Mtu::Mtu1024);
        service.with(|manager, _, now| manager.connect(now, &request)).unwrap()
    };
    for silent in 3..=250 {
        connect(silent);
    }
    let honest = connect(2);
    // No listener exists there, and that host says so.
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(honest));
}

/// Returns a REQ from `from` for a service without a listener.
fn request(number: u32, from: IpAddr, to: IpAddr) -> [u8; MAD_LEN] {
    let mut req = Req {
        local_comm_id: CommId(number),
        service_id: ServiceId::of_port(PortSpace::Tcp, PORT),
        local_ca_guid: number.into(),
        local_qpn: Qpn::new(number),
        path_mtu: 3,
        pkey: 0xffff,
        ..Req::default()
    };
    req.primary_path.subnet_local = true;
    (req.primary_path.local_gid, req.primary_path.remote_gid) = (from.into(), to.into());
    CmMessage::Req(req).to_mad(number.into())
}

/// A sender chooses the address of its answer. Datagrams that wait in the kernel for silent hosts would fill the
/// socket.
#[test]
fn answers_to_silent_hosts_leave_socket_room() {
    let name = "answers_to_silent_hosts_leave_socket_room";
    let Some(ends) = hosts(name, "cm-answers") else { return };
    let ip = |n: u32| format!("10.83.0.{n}").parse::<IpAddr>().expect("an address");
    let udp = UdpConfig {
        addresses: vec![ip(1)],
        interface: Some("veth0".to_owned()),
        socket_buffer: 64 * 1024,
        ..UdpConfig::default()
    };
    let local =
        ends[0].run(|| Device::open_udp(&udp, &Stack::default(), &DeviceConfig::default())).unwrap().unwrap();
    let there = ends[1].run(|| UdpSocket::bind((ip(2), 4791))).unwrap().unwrap();
    there.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let (sender, _receiver) = channel();
    let manager = Manager::new(Config { grace: Nanos::ZERO, ..Config::default() });
    let service = ConnectionService::start(&local, manager, Refusals(sender)).unwrap();
    let arrives = |number: u32, from: IpAddr| {
        let arrival = Arrival { route: Route::new(ip(1), from), src_qp: Qpn::GSI };
        service.with(|manager, _, now| manager.handle_mad(now, &request(number, from, ip(1)), &arrival));
    };
    for round in 0..4 {
        for silent in 3..=250 {
            arrives(1000 * round + silent, ip(silent));
        }
        // Silent hosts are resolved in turn, a few at a time.
        thread::sleep(Duration::from_millis(20));
    }
    let is_answered = (0..100).any(|number| {
        arrives(10_000 + number, ip(2));
        let mut bytes = [0; 4096];
        there.recv(&mut bytes).is_ok()
    });
    assert!(is_answered, "no answer to who is there");
    let dropped = local.counters().into_iter().find(|(name, _)| *name == "tx_management_dropped");
    assert_eq!(dropped.map(|(_, count)| count), Some(0));
}
