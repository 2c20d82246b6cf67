//! Connections with a kernel's connection manager: the guest's `rping` and Roxie's native API, in both roles.
//!
//! rping's exchange (rdma-core, `librdmacm/examples/rping.c`): the client advertises its text, and the server READs it
//! and acknowledges; the client advertises a buffer, and the server WRITEs the text to it and acknowledges. An
//! advertisement has 16 bytes: address, rkey, length.
//!
//! Needs root, QEMU and (the first time) a Debian mirror; prints SKIP and the reason if the host lacks one.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use interop::guest::{Guest, Image, output_folder};
use interop::network::{INTERFACE, Namespace, address};
use interop::peer::Peer;
use interop::rows::Family;
use roxie::host::{
    CompletionQueue, Connection, ConnectionManager, Device, DeviceConfig, DialError, DialOptions,
    MemoryRegion, QueuePair, Stack,
};
use roxie::netdev::{Interface, ethtool};
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::XdpConfig;
use roxie::verbs::{Access, RKey, SendWr, WcOpcode, WcStatus, WrOpcode};
use roxie::wire::cm::RejReason;

const PORT: u16 = 7174;
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an advertisement.
const ADVERTISEMENT: usize = 16;
const ROUNDS: usize = 4;
const LENGTH: usize = 3000;
/// Offsets in our memory: text to send, text received, advertisement received, advertisement to send.
const SOURCE: usize = 0;
const SINK: usize = 4096;
const ADVERTISED: usize = 8192;
const ADVERTISING: usize = 8192 + ADVERTISEMENT;

/// Roxie's end of rping.
struct Rping {
    cq: CompletionQueue,
    memory: MemoryRegion,
    /// Number of receives completed before they were waited for.
    received: usize,
}

impl Rping {
    /// Makes an end, with a QP in INIT that has a receive.
    fn new(device: &Device) -> (Rping, QueuePair) {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(16, None).expect("a queue");
        let qp = pd.queue_pair(&cq).signal_all().create().expect("a QP");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = pd.register(ADVERTISING + ADVERTISEMENT, access).expect("memory");
        qp.initialize(access).expect("INIT");
        let end = Rping { cq, memory, received: 0 };
        end.offer(&qp);
        (end, qp)
    }

    fn offer(&self, qp: &QueuePair) {
        qp.post_recv(0, &[self.memory.sge(ADVERTISED, ADVERTISEMENT as u32)]).expect("room");
    }

    /// Waits for the completion of the last request.
    fn sent(&mut self) {
        loop {
            let wc = self.cq.wait(PATIENCE).expect("a completion");
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            if wc.opcode != WcOpcode::Recv {
                return;
            }
            self.received += 1;
        }
    }

    /// Waits for an advertisement from the peer, and posts the next receive.
    fn advertised(&mut self, qp: &QueuePair) -> [u8; ADVERTISEMENT] {
        if self.received == 0 {
            let wc = self.cq.wait(PATIENCE).expect("a message");
            assert_eq!(
                (wc.status, wc.opcode, wc.byte_len),
                (WcStatus::Success, WcOpcode::Recv, ADVERTISEMENT as u32)
            );
        } else {
            self.received -= 1;
        }
        let mut bytes = [0; ADVERTISEMENT];
        self.memory.read_at(ADVERTISED, &mut bytes).expect("within the region");
        self.offer(qp);
        bytes
    }

    fn advertise(&mut self, qp: &QueuePair, offset: usize, length: usize) {
        let mut bytes = [0; ADVERTISEMENT];
        bytes[..8].copy_from_slice(&self.memory.sge(offset, 0).addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.memory.rkey().0.to_be_bytes());
        bytes[12..].copy_from_slice(&(length as u32).to_be_bytes());
        self.memory.write_at(ADVERTISING, &bytes).expect("within the region");
        qp.post_send(&SendWr::default(), &[self.memory.sge(ADVERTISING, ADVERTISEMENT as u32)])
            .expect("room");
        self.sent();
    }

    /// Runs one round as the client.
    fn ping(&mut self, qp: &QueuePair, round: usize) {
        // The text is a C string: the server WRITEs up to the zero.
        let mut text: Vec<u8> = (0..LENGTH).map(|i| ((i * 7 + round) % 255) as u8 + 1).collect();
        text[LENGTH - 1] = 0;
        self.memory.write_at(SOURCE, &text).expect("within the region");
        self.advertise(qp, SOURCE, LENGTH);
        self.advertised(qp);
        self.advertise(qp, SINK, LENGTH);
        self.advertised(qp);
        let back = self.memory.to_vec(SINK, LENGTH).expect("within the region");
        assert!(back == text, "round {round}: another text came back");
    }

    /// Runs one round as the server, with the client's addresses and length.
    fn pong(&mut self, qp: &QueuePair) {
        let (source, length) = self.place(qp, WrOpcode::Read);
        qp.post_send(&source, &[self.memory.sge(SOURCE, length)]).expect("room");
        self.sent();
        self.advertise(qp, SOURCE, 0);
        let (sink, length) = self.place(qp, WrOpcode::Write);
        qp.post_send(&sink, &[self.memory.sge(SOURCE, length)]).expect("room");
        self.sent();
        self.advertise(qp, SOURCE, 0);
    }

    fn place(&mut self, qp: &QueuePair, opcode: WrOpcode) -> (SendWr, u32) {
        let advertised = self.advertised(qp);
        let word = |at: usize| u32::from_be_bytes(advertised[at..at + 4].try_into().expect("4 bytes"));
        let remote_addr = u64::from(word(0)) << 32 | u64::from(word(4));
        (SendWr { opcode, remote_addr, rkey: RKey(word(8)), ..SendWr::default() }, word(12))
    }
}

fn options() -> DialOptions {
    // rping's own values.
    DialOptions { responder_resources: 1, initiator_depth: 1, ..DialOptions::default() }
}

/// Connects once a program listens; retries while the kernel rejects because none does.
fn connect(
    device: &Device,
    manager: &ConnectionManager,
    to: SocketAddr,
    options: &DialOptions,
) -> (Rping, Connection, u32) {
    let until = Instant::now() + PATIENCE;
    let mut refusals = 0;
    loop {
        let (end, qp) = Rping::new(device);
        match manager.connect(qp, to, options) {
            Ok(connection) => return (end, connection, refusals),
            Err(DialError::Rejected { reason: RejReason::INVALID_SERVICE_ID, .. }) => refusals += 1,
            Err(error) => panic!("{to}: {error}"),
        }
        assert!(Instant::now() < until, "{to}: no program listens");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Roxie connects to `rping -s`.
fn to_the_kernel(
    device: &Device,
    manager: &ConnectionManager,
    peer: &mut Peer,
    there: SocketAddr,
    gid_index: Option<usize>,
) {
    let options = DialOptions { gid_index, ..options() };
    // No program listens yet.
    let (_end, qp) = Rping::new(device);
    let refused = manager.connect(qp, there, &options).map(drop).expect_err("no program listens");
    let reason = RejReason::INVALID_SERVICE_ID;
    assert!(matches!(refused, DialError::Rejected { reason: r, .. } if r == reason), "{refused}");

    let server = peer
        .spawn("rping", &words(&format!("-s -v -S {LENGTH} -a {} -p {PORT}", there.ip())))
        .expect("rping starts");
    let (mut end, connection, _) = connect(device, manager, there, &options);
    let agreed = connection.parameters().expect("it is there");
    assert_eq!((agreed.max_rd_atomic, agreed.max_dest_rd_atomic, agreed.timeout), (1, 1, 17));
    for round in 0..ROUNDS {
        end.ping(connection.qp(), round);
    }
    connection.disconnect().expect("the kernel agrees");
    let ended = peer.wait(server, PATIENCE).expect("rping ends");
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    assert!(ended.output.matches("server ping data").count() >= ROUNDS, "{}", ended.output);
}

/// `rping -c` connects to Roxie.
fn from_the_kernel(device: &Device, manager: &ConnectionManager, peer: &mut Peer, here: SocketAddr) {
    let line = format!("-c -v -V -C {ROUNDS} -S {LENGTH} -a {} -p {PORT}", here.ip());
    // No program listens yet.
    let client = peer.spawn("rping", &words(&line)).expect("rping starts");
    let ended = peer.wait(client, PATIENCE).expect("rping ends");
    assert!(ended.code != Some(0) && ended.output.contains("REJECTED"), "{}", ended.output);

    let listener = manager.listen(here, 4).expect("a free port");
    let client = peer.spawn("rping", &words(&line)).expect("rping starts");
    let request = listener.accept(PATIENCE).expect("the device lives").expect("a request");
    let (mut end, qp) = Rping::new(device);
    let connection = request.accept(qp, &options()).expect("a connection");
    for _ in 0..ROUNDS {
        end.pong(connection.qp());
    }
    assert!(connection.wait_for_end(PATIENCE), "the kernel ends it");
    let ended = peer.wait(client, PATIENCE).expect("rping ends");
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    assert_eq!(ended.output.matches("ping data").count(), ROUNDS, "{}", ended.output);
}

fn open(namespace: &Namespace, xdp: bool, family: Family) -> Device {
    let opened = namespace.within(|| {
        let (stack, config) = (Stack::default(), DeviceConfig::default());
        if xdp {
            return Device::open_xdp(&XdpConfig::new(INTERFACE), &stack, &config);
        }
        let (interface, addresses) = (Some(INTERFACE.to_owned()), vec![address(1, family)]);
        Device::open_udp(&UdpConfig { interface, addresses, ..UdpConfig::default() }, &stack, &config)
    });
    opened.expect("the namespace").expect("a device")
}

#[test]
fn rping_and_roxie_connect_exchange_and_disconnect() {
    let _alone = crate::alone();
    let Some(image) = Image::for_test("cm") else { return };
    let namespace = Namespace::create().expect("the namespace");
    let log = output_folder().join("test-guest-cm.log");
    let guest = Guest::start(&image, &namespace, 2, &log).expect("the guest");
    let mut peer = guest.peer(&namespace).expect("a session");
    for xdp in [true, false] {
        for family in [Family::V4, Family::V6] {
            println!("{} {family:?}", if xdp { "xdp" } else { "udp" });
            let device = open(&namespace, xdp, family);
            let manager = ConnectionManager::start(&device).expect("QP1");
            to_the_kernel(&device, &manager, &mut peer, SocketAddr::new(address(2, family), PORT), None);
            from_the_kernel(&device, &manager, &mut peer, SocketAddr::new(address(1, family), PORT));
            let until = Instant::now() + PATIENCE;
            while manager.connections() > 0 {
                assert!(Instant::now() < until, "{} connections linger", manager.connections());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// The VLAN, and the addresses of Roxie and of the guest on it.
const VLAN: u16 = 5;
const HERE: Ipv4Addr = Ipv4Addr::new(10, 71, 5, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 71, 5, 2);

/// Runs a program in the guest to its end.
fn inside(peer: &mut Peer, program: &str, line: &str) {
    let job = peer.spawn(program, &words(line)).expect("a program");
    let ended = peer.wait(job, PATIENCE).expect("the program ends");
    assert_eq!(ended.code, Some(0), "{program} {line}: {}", ended.output);
}

/// The guest has a VLAN interface, whose address is a GID of its rxe0. This host's kernel needs none: Roxie has the
/// address by hand.
#[test]
fn rping_and_roxie_connect_on_a_vlan() {
    let _alone = crate::alone();
    let Some(image) = Image::for_test("vlan") else { return };
    let namespace = Namespace::create().expect("the namespace");
    let log = output_folder().join("test-guest-vlan.log");
    let guest = Guest::start(&image, &namespace, 2, &log).expect("the guest");
    let mut peer = guest.peer(&namespace).expect("a session");
    let outside = |program: &str, line: String| {
        let output = namespace.command(program).args(line.split(' ')).output().expect("a program");
        assert!(output.status.success(), "{program} {line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    outside("ip", format!("route add {THERE} dev {INTERFACE}"));
    outside("ip", format!("neigh add {THERE} lladdr 52:54:00:71:00:02 dev {INTERFACE} nud permanent"));
    // The bridge takes tags out of frames. Its veth must put them back, for AF_XDP at the other end to see them.
    let mac = namespace.within(|| {
        let port = Interface::by_name(&format!("{INTERFACE}-br")).expect("the bridge's port");
        ethtool::set_offload(port.index, "tx-vlan-hw-insert", false).expect("root may");
        Interface::by_name(INTERFACE).expect("Roxie's interface").mac
    });
    let mac = mac.expect("the namespace").map(|byte| format!("{byte:02x}")).join(":");
    inside(&mut peer, "modprobe", "8021q");
    // Not busybox's ip, which lacks VLANs.
    for line in [
        format!("link add link eth0 name eth0.5 type vlan id {VLAN}"),
        format!("addr add {THERE}/24 dev eth0.5"),
        "link set eth0.5 up".to_owned(),
        format!("neigh add {HERE} lladdr {mac} dev eth0.5 nud permanent"),
    ] {
        inside(&mut peer, "/usr/bin/ip", &line);
    }
    for packet in [false, true] {
        println!("{}", if packet { "packet" } else { "xdp" });
        let opened = namespace.within(|| {
            let (stack, config) = (Stack::default(), DeviceConfig::default());
            match packet {
                false => Device::open_xdp(&XdpConfig::new(INTERFACE), &stack, &config),
                true => Device::open_packet(&PacketConfig::new(INTERFACE), &stack, &config),
            }
        });
        let device = opened.expect("the namespace").expect("a device");
        let gid = device.add_vlan_address(HERE.into(), VLAN).expect("a GID");
        let manager = ConnectionManager::start(&device).expect("QP1");
        to_the_kernel(&device, &manager, &mut peer, SocketAddr::new(THERE.into(), PORT), Some(gid));
        from_the_kernel(&device, &manager, &mut peer, SocketAddr::new(HERE.into(), PORT));
        let until = Instant::now() + PATIENCE;
        while manager.connections() > 0 {
            assert!(Instant::now() < until, "{} connections linger", manager.connections());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
