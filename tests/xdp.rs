//! The XDP port on veth pairs between namespaces. Needs root; says so and skips without.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roxie::netdev::{Interface, Links, NetNs};
use roxie::port::xdp::{Mode, XdpConfig, XdpError, XdpPort};
use roxie::port::{BURST, Port};
use roxie::time::Nanos;

const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const A4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const B4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const ROCE: u16 = 4791;

/// True if the test cannot run here; says why.
fn skip(name: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("SKIP {name}: AF_XDP and network namespaces need root");
    }
    !root
}

/// Two namespaces joined by a veth pair: `left` in `a`, `right` in `b`.
struct Wire {
    a: NetNs,
    b: NetNs,
}

impl Wire {
    fn new(tag: &str, mtu: u32, queues: u32) -> Wire {
        let a = NetNs::create(&format!("{tag}-a")).unwrap();
        let b = NetNs::create(&format!("{tag}-b")).unwrap();
        let mut left = Links::open_in(&a).unwrap();
        left.create_veth("left", &b, "right", queues).unwrap();
        let mut right = Links::open_in(&b).unwrap();
        for (links, name, mac, ips) in [
            (&mut left, "left", MAC_A, ["192.0.2.1/24", "2001:db8::1/64"]),
            (&mut right, "right", MAC_B, ["192.0.2.2/24", "2001:db8::2/64"]),
        ] {
            links.set_mac(name, mac).unwrap();
            links.set_mtu(name, mtu).unwrap();
            for ip in ips {
                links.add_address(name, ip.parse().unwrap()).unwrap();
            }
            links.set_up(name, true).unwrap();
        }
        left.add_neighbour("left", B4.into(), MAC_B).unwrap();
        left.add_neighbour("left", B6.into(), MAC_B).unwrap();
        right.add_neighbour("right", A4.into(), MAC_A).unwrap();
        right.add_neighbour("right", A6.into(), MAC_A).unwrap();
        Wire { a, b }
    }

    fn left(&self, edit: impl FnOnce(&mut XdpConfig)) -> Result<XdpPort, XdpError> {
        open(&self.a, "left", edit)
    }

    fn right(&self, edit: impl FnOnce(&mut XdpConfig)) -> Result<XdpPort, XdpError> {
        open(&self.b, "right", edit)
    }

    /// Both ends in native mode.
    fn ports(&self) -> (XdpPort, XdpPort) {
        (self.left(|_| {}).unwrap(), self.right(|_| {}).unwrap())
    }
}

fn open(ns: &NetNs, name: &str, edit: impl FnOnce(&mut XdpConfig)) -> Result<XdpPort, XdpError> {
    let mut config = XdpConfig::new(name);
    edit(&mut config);
    ns.run(|| XdpPort::open(&config)).unwrap()
}

/// A RoCE v2 frame in shape: right addresses, lengths and port, `len` bytes in all, bytes that depend on `seed`.
fn frame(to_b: bool, v6: bool, vlan: bool, len: usize, seed: u64) -> Vec<u8> {
    let (dst, src) = if to_b { (MAC_B, MAC_A) } else { (MAC_A, MAC_B) };
    let mut f = [dst, src].concat();
    if vlan {
        f.extend([0x81, 0, 0, 5]);
    }
    let rest = |f: &Vec<u8>, header: usize| u16::try_from(len - f.len() - header).unwrap().to_be_bytes();
    if v6 {
        let (d, s) = if to_b { (B6, A6) } else { (A6, B6) };
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        f.extend(rest(&f, 36));
        f.extend([17, 64]);
        f.extend(s.octets());
        f.extend(d.octets());
    } else {
        let (d, s) = if to_b { (B4, A4) } else { (A4, B4) };
        f.extend([0x08, 0, 0x45, 0]);
        f.extend(rest(&f, 0).map(|b| b)); // total length is patched below
        let at = f.len() - 2;
        f.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        f.extend(s.octets());
        f.extend(d.octets());
        let total = u16::try_from(len - at + 2).unwrap().to_be_bytes();
        f[at..at + 2].copy_from_slice(&total);
    }
    f.extend(0xc000u16.to_be_bytes());
    f.extend(ROCE.to_be_bytes());
    f.extend(rest(&f, 0).map(|b| b));
    let at = f.len() - 2;
    let udp = u16::try_from(len - at + 4).unwrap().to_be_bytes();
    f[at..at + 2].copy_from_slice(&udp);
    f.extend([0, 0]);
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while f.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        f.push(x.to_le_bytes()[3]);
    }
    assert_eq!(f.len(), len);
    f
}

/// Sends one frame; false if the port has no room.
fn put(port: &mut XdpPort, bytes: &[u8]) -> bool {
    let Some(id) = port.tx_alloc(bytes.len()) else { return false };
    let mut slot = port.tx_frame(&id);
    assert_eq!(slot.len(), bytes.len());
    slot.write(0, bytes);
    port.tx_arrange();
    port.tx_commit(id);
    true
}

fn flush(port: &mut XdpPort) {
    port.tx_flush(Nanos::ZERO).unwrap();
}

/// Receives until `count` frames are there or `limit` has passed.
fn take(port: &mut XdpPort, count: usize, limit: Duration) -> Vec<Vec<u8>> {
    let start = Instant::now();
    let mut frames = Vec::new();
    while frames.len() < count && start.elapsed() < limit {
        let n = port.rx_burst(Nanos::ZERO);
        assert!(n <= BURST);
        frames.extend((0..n).map(|i| port.rx_frame(i).frame.to_vec()));
        port.rx_release();
    }
    frames
}

const SOON: Duration = Duration::from_secs(5);
const A_WHILE: Duration = Duration::from_millis(100);

fn counter(port: &XdpPort, name: &str) -> u64 {
    let mut all = Vec::new();
    port.counters(&mut all);
    all.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Every length that has a boundary near it, and many between.
fn lengths(longest: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (64..longest).step_by(37).collect();
    all.extend([64, 65, 1514, 3839, 3840, 3841, 3842, 4095, 4096, 4097, 4206, longest]);
    all.retain(|l| *l <= longest);
    all
}

fn every_length_passes_each_way(tag: &str, mtu: u32, v6: bool, mode: Mode) {
    let wire = Wire::new(tag, mtu, 1);
    let mut left = wire.left(|c| c.mode = mode).unwrap();
    let mut right = wire.right(|c| c.mode = mode).unwrap();
    println!("{tag}: {}", left.info().mode);
    let longest = mtu as usize + 14;
    for (i, len) in lengths(longest).into_iter().enumerate() {
        for to_b in [true, false] {
            let (from, to) = if to_b { (&mut left, &mut right) } else { (&mut right, &mut left) };
            let sent = frame(to_b, v6, false, len.max(70), i as u64);
            assert!(put(from, &sent));
            flush(from);
            let got = take(to, 1, SOON);
            assert_eq!(got.len(), 1, "a frame of {len} bytes arrives");
            assert!(got[0] == sent, "a frame of {len} bytes arrives unchanged");
        }
    }
    let split = counter(&right, "rx_multi_buffer");
    assert_eq!(split > 0, longest > 3840, "{split} frames of two buffers");
    assert_eq!(counter(&right, "rx_gso_superframe") + counter(&right, "rx_dropped"), 0);
}

#[test]
fn ipv4_frames_of_every_length_pass_a_link_of_mtu_4200() {
    if !skip("ipv4_frames_of_every_length_pass_a_link_of_mtu_4200") {
        every_length_passes_each_way("v4-4200", 4200, false, Mode::Auto);
    }
}

#[test]
fn ipv6_frames_of_every_length_pass_a_link_of_mtu_4200() {
    if !skip("ipv6_frames_of_every_length_pass_a_link_of_mtu_4200") {
        every_length_passes_each_way("v6-4200", 4200, true, Mode::Native);
    }
}

#[test]
fn frames_of_every_length_pass_a_link_of_mtu_1500() {
    if !skip("frames_of_every_length_pass_a_link_of_mtu_1500") {
        every_length_passes_each_way("v4-1500", 1500, false, Mode::Auto);
        every_length_passes_each_way("v6-1500", 1500, true, Mode::Auto);
    }
}

#[test]
fn frames_of_every_length_pass_in_generic_mode() {
    if !skip("frames_of_every_length_pass_in_generic_mode") {
        every_length_passes_each_way("generic", 4200, false, Mode::Generic);
    }
}

#[test]
fn frames_behind_a_vlan_tag_are_steered() {
    if skip("frames_behind_a_vlan_tag_are_steered") {
        return;
    }
    let wire = Wire::new("vlan", 1500, 1);
    let (mut left, mut right) = wire.ports();
    for v6 in [false, true] {
        let sent = frame(true, v6, true, 200, 1);
        assert!(put(&mut left, &sent));
        flush(&mut left);
        assert!(take(&mut right, 1, SOON) == [sent]);
    }
}

#[test]
fn what_is_not_ours_goes_to_the_kernel() {
    if skip("what_is_not_ours_goes_to_the_kernel") {
        return;
    }
    let wire = Wire::new("pass", 1500, 1);
    let (mut left, mut right) = wire.ports();
    let bind = |ns: &NetNs, at: (IpAddr, u16)| {
        let socket = ns.run(|| UdpSocket::bind(at)).unwrap().unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket
    };
    let mut bytes = [0; 16];
    for (a, b) in [(IpAddr::from(A4), IpAddr::from(B4)), (A6.into(), B6.into())] {
        let (here, there) = (bind(&wire.a, (a, 5000)), bind(&wire.b, (b, 5000)));
        here.send_to(b"over", (b, 5000)).unwrap();
        assert_eq!(there.recv(&mut bytes).unwrap(), 4, "another port passes");
        there.send_to(b"back", (a, 5000)).unwrap();
        assert_eq!(here.recv(&mut bytes).unwrap(), 4);
    }
    let listener = wire.b.run(|| std::net::TcpListener::bind((B4, 5000))).unwrap().unwrap();
    wire.a.run(|| std::net::TcpStream::connect((B4, 5000)).map(drop)).unwrap().unwrap();
    listener.accept().unwrap();

    // The RoCE port, but an address that is not ours.
    Links::open_in(&wire.b).unwrap().add_address("right", "192.0.2.9/24".parse().unwrap()).unwrap();
    Links::open_in(&wire.a).unwrap().add_neighbour("left", "192.0.2.9".parse().unwrap(), MAC_B).unwrap();
    let other: IpAddr = "192.0.2.9".parse().unwrap();
    let there = bind(&wire.b, (other, ROCE));
    bind(&wire.a, (A4.into(), 5001)).send_to(b"other", (other, ROCE)).unwrap();
    assert_eq!(there.recv(&mut bytes).unwrap(), 5);

    // A fragment of a datagram to the RoCE port, and the v1 and MAC control frames nobody asked for.
    let mut fragment = frame(true, false, false, 200, 1);
    fragment[20] |= 0x20;
    let mut v1 = frame(true, false, false, 100, 1);
    v1[12..14].copy_from_slice(&[0x89, 0x15]);
    let mut pause = frame(true, false, false, 64, 1);
    pause[12..14].copy_from_slice(&[0x88, 0x08]);
    for f in [&fragment, &v1, &pause] {
        assert!(put(&mut left, f));
    }
    flush(&mut left);
    assert!(take(&mut right, 1, A_WHILE).is_empty());
    assert_eq!(counter(&right, "rx_packets"), 0);
}

#[test]
fn roce_v1_and_mac_control_are_steered_if_asked_for() {
    if skip("roce_v1_and_mac_control_are_steered_if_asked_for") {
        return;
    }
    let wire = Wire::new("types", 1500, 1);
    let mut left = wire.left(|_| {}).unwrap();
    for (ether_type, v1, control) in [([0x89, 0x15], true, false), ([0x88, 0x08], false, true)] {
        let mut right = wire
            .right(|c| {
                c.roce_v1 = v1;
                c.mac_control = control;
            })
            .unwrap();
        for sent_type in [[0x89, 0x15], [0x88, 0x08]] {
            let mut f = frame(true, false, false, 100, 1);
            f[12..14].copy_from_slice(&sent_type);
            assert!(put(&mut left, &f));
        }
        flush(&mut left);
        let got = take(&mut right, 2, A_WHILE);
        assert_eq!(got.len(), 1);
        assert_eq!(got[0][12..14], ether_type);
    }
}

#[test]
fn a_kernel_sender_reaches_the_port_and_options_do_not_hide_it() {
    if skip("a_kernel_sender_reaches_the_port_and_options_do_not_hide_it") {
        return;
    }
    let wire = Wire::new("kernel", 1500, 1);
    let mut right = wire.right(|_| {}).unwrap();
    let socket = wire.a.run(|| UdpSocket::bind((A4, 49152))).unwrap().unwrap();
    socket.send_to(b"to the port", (B4, ROCE)).unwrap();
    let got = take(&mut right, 1, SOON);
    assert_eq!(got.len(), 1);
    assert!(got[0].ends_with(b"to the port"));
    assert_eq!(got[0][34..38], [0xc0, 0, 0x12, 0xb7]);

    // Four bytes of IP options (no-operation) in front of UDP.
    let mut left = wire.left(|_| {}).unwrap();
    let mut f = frame(true, false, false, 200, 1);
    f.splice(34..34, [1, 1, 1, 1]);
    f[14] = 0x46;
    f[17] += 4;
    assert!(put(&mut left, &f));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [f]);
}

#[test]
fn addresses_are_steered_as_they_come_and_go() {
    if skip("addresses_are_steered_as_they_come_and_go") {
        return;
    }
    let wire = Wire::new("addr", 1500, 1);
    let (mut left, mut right) = wire.ports();
    let mut passes = |right: &mut XdpPort, v6: bool| {
        assert!(put(&mut left, &frame(true, v6, false, 100, 1)));
        flush(&mut left);
        !take(right, 1, A_WHILE).is_empty()
    };
    assert!(passes(&mut right, false) && passes(&mut right, true));
    right.set_addresses(&[B6.into()]).unwrap();
    assert!(!passes(&mut right, false) && passes(&mut right, true));
    right.set_addresses(&[B4.into()]).unwrap();
    assert!(passes(&mut right, false) && !passes(&mut right, true));
    right.set_addresses(&[]).unwrap();
    assert!(!passes(&mut right, false) && !passes(&mut right, true));
}

#[test]
fn frames_on_every_queue_arrive() {
    if skip("frames_on_every_queue_arrive") {
        return;
    }
    let wire = Wire::new("queues", 1500, 2);
    let mut right = wire.right(|_| {}).unwrap();
    // One port on each queue of the left: veth delivers on the queue of the same number.
    let mut lefts = wire.left(|_| {}).unwrap().split();
    assert_eq!(lefts.len(), 2);
    for (seed, left) in (0..).zip(&mut lefts) {
        let sent = frame(true, false, false, 300, seed);
        assert!(put(left, &sent));
        flush(left);
        assert!(take(&mut right, 1, SOON) == [sent], "queue {seed}");
    }
    let mut rights = right.split();
    for (left, to) in lefts.iter_mut().zip([0, 1]) {
        assert!(put(left, &frame(true, false, false, 300, 1)));
        flush(left);
        let got: Vec<_> = rights.iter_mut().map(|r| take(r, 1, A_WHILE).len()).collect();
        assert_eq!(got, if to == 0 { [1, 0] } else { [0, 1] }, "each worker gets its queue's frames");
    }
    drop(rights.remove(0));
    rights[0].set_addresses(&[A6.into()]).expect("the steering lives as long as one of its ports");
    drop(lefts);
    let e = wire.left(|c| c.queues = vec![2]).err().unwrap();
    assert!(matches!(e, XdpError::NoSuchQueue { queue: 2, count: 2, .. }), "{e}");
}

#[test]
fn a_hundred_thousand_frames_leak_no_chunk() {
    if skip("a_hundred_thousand_frames_leak_no_chunk") {
        return;
    }
    let wire = Wire::new("leak", 4200, 1);
    let (mut left, mut right) = wire.ports();
    let frames: Vec<_> = [64 + 6, 1100, 4170].map(|len| frame(true, false, false, len, 7)).into();
    let (mut sent, mut got) = (0u64, 0u64);
    while sent < 100_000 {
        for i in 0..BURST {
            if i % 7 == 0
                && let Some(id) = left.tx_alloc(4170)
            {
                left.tx_cancel(id);
            }
            sent += u64::from(put(&mut left, &frames[i % 3]));
        }
        flush(&mut left);
        let (rx, tx) = left.chunks();
        assert_eq!((rx.held + rx.kernel, tx.held + tx.kernel), (rx.total, tx.total));
        loop {
            let n = right.rx_burst(Nanos::ZERO);
            let (rx, _) = right.chunks();
            assert_eq!(rx.held + rx.kernel, rx.total, "mid-burst");
            got += n as u64;
            right.rx_release();
            if n == 0 {
                break;
            }
        }
    }
    got += take(&mut right, usize::try_from(sent - got).unwrap(), A_WHILE).len() as u64;
    assert_eq!(got, sent, "one thread, one burst at a time: nothing is lost");
    let ((_, tx), (rx, _)) = (left.chunks(), right.chunks());
    assert_eq!((tx.held, tx.kernel), (tx.total, 0), "all transmit chunks came back");
    assert_eq!((rx.held, rx.kernel), (0, rx.total), "all receive chunks wait for frames");
    assert!(counter(&left, "tx_kicks") * 16 <= sent, "one system call for 16 frames at most");
}

#[test]
fn a_receiver_that_stalls_loses_frames_and_no_chunks() {
    if skip("a_receiver_that_stalls_loses_frames_and_no_chunks") {
        return;
    }
    let wire = Wire::new("stall", 1500, 1);
    let mut left = wire.left(|_| {}).unwrap();
    let mut right = wire.right(|c| c.ring = 64).unwrap();
    let f = frame(true, false, false, 500, 1);
    for _ in 0..500 {
        assert!(put(&mut left, &f));
    }
    flush(&mut left);
    let got = take(&mut right, 500, A_WHILE).len();
    assert_eq!(got, 64, "as many as the ring holds");
    let lost = ["rx_dropped", "rx_ring_full", "fill_ring_empty"].map(|n| counter(&right, n));
    assert!(lost.iter().sum::<u64>() >= 436, "the others are counted: {lost:?}");
    assert!(put(&mut left, &f));
    flush(&mut left);
    assert_eq!(take(&mut right, 1, SOON).len(), 1, "and it goes on");
}

#[test]
fn a_full_port_says_so_and_recovers() {
    if skip("a_full_port_says_so_and_recovers") {
        return;
    }
    let wire = Wire::new("full", 1500, 1);
    let mut left = wire.left(|c| c.ring = 64).unwrap();
    let ids: Vec<_> = (0..64).map(|_| left.tx_alloc(100).expect("64 chunks")).collect();
    assert!(left.tx_alloc(100).is_none());
    for id in ids {
        left.tx_frame(&id).write(0, &frame(true, false, false, 100, 1));
        left.tx_commit(id);
    }
    assert!(left.tx_pending());
    flush(&mut left);
    assert!(!left.tx_pending());
    assert!(left.tx_alloc(100).is_some(), "sent frames' chunks are taken back");
}

#[test]
fn a_sleeper_is_woken_by_a_frame_and_does_not_miss_one() {
    if skip("a_sleeper_is_woken_by_a_frame_and_does_not_miss_one") {
        return;
    }
    let wire = Wire::new("sleep", 1500, 1);
    let (mut left, mut right) = wire.ports();
    assert!(right.prepare_sleep(), "nothing there");
    let ready = |port: &XdpPort| {
        let fds = port.event_fds();
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        poll(&mut polled, PollTimeout::from(50u16)).unwrap()
    };
    assert_eq!(ready(&right), 0);
    assert!(put(&mut left, &frame(true, false, false, 100, 1)));
    flush(&mut left);
    assert_eq!(ready(&right), 1);
    assert!(!right.prepare_sleep(), "a frame is there");
    assert_eq!(take(&mut right, 1, SOON).len(), 1);
    assert_eq!(ready(&right), 0);
}

#[test]
fn a_link_that_goes_down_is_counted_and_recovers() {
    if skip("a_link_that_goes_down_is_counted_and_recovers") {
        return;
    }
    let wire = Wire::new("down", 1500, 1);
    let (mut left, mut right) = wire.ports();
    let mut links = Links::open_in(&wire.a).unwrap();
    links.set_up("left", false).unwrap();
    for i in 0..3 {
        assert!(put(&mut left, &frame(true, false, false, 100, i)));
        flush(&mut left);
    }
    assert!(counter(&left, "link_down") > 0);
    assert!(left.tx_pending(), "the frames wait");
    links.set_up("left", true).unwrap();
    let mut sent = 3;
    let start = Instant::now();
    let mut got = 0;
    while got == 0 && start.elapsed() < SOON {
        assert!(put(&mut left, &frame(true, false, false, 100, sent)));
        sent += 1;
        flush(&mut left);
        got += take(&mut right, 1, Duration::from_millis(20)).len();
    }
    assert!(got > 0, "frames pass again");
    assert!(!left.tx_pending());
}

#[test]
fn an_interface_that_is_deleted_fails_the_flush_with_the_reason() {
    if skip("an_interface_that_is_deleted_fails_the_flush_with_the_reason") {
        return;
    }
    let wire = Wire::new("gone", 1500, 1);
    let mut left = wire.left(|_| {}).unwrap();
    Links::open_in(&wire.b).unwrap().delete("right").unwrap();
    assert!(put(&mut left, &frame(true, false, false, 100, 1)));
    let e = left.tx_flush(Nanos::ZERO).unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::NotConnected, "{e}");
    assert_eq!(left.rx_burst(Nanos::ZERO), 0);
}

#[test]
fn a_missing_interface_is_named_with_those_that_exist() {
    if skip("a_missing_interface_is_named_with_those_that_exist") {
        return;
    }
    let wire = Wire::new("missing", 1500, 1);
    let e = open(&wire.a, "wrong", |_| {}).err().unwrap().to_string();
    assert!(e.contains("\"wrong\"") && e.contains("left") && !e.contains("right"), "{e}");
}

#[test]
fn a_second_port_on_an_interface_is_told_who_has_it() {
    if skip("a_second_port_on_an_interface_is_told_who_has_it") {
        return;
    }
    let wire = Wire::new("twice", 1500, 1);
    let first = wire.left(|_| {}).unwrap();
    let start = Instant::now();
    let e = wire.left(|_| {}).err().unwrap().to_string();
    assert!(e.contains("roxie_steer"), "{e}");
    assert!(e.contains(&format!("(pid {})", std::process::id())), "{e}");
    assert!(start.elapsed() < Duration::from_secs(1), "a living owner is not waited for");
    drop(first);
    wire.left(|_| {}).expect("dropping the port frees the interface");
    let left = wire.a.run(|| Interface::by_name("left")).unwrap().unwrap();
    assert_eq!(left.xdp_program, None, "and takes the program off");
}

#[test]
fn a_queue_with_a_foreign_socket_is_reported_after_two_seconds() {
    if skip("a_queue_with_a_foreign_socket_is_reported_after_two_seconds") {
        return;
    }
    use xsk_rs::config::{BindFlags, LibxdpFlags, SocketConfig, UmemConfig};
    let wire = Wire::new("busy", 1500, 1);
    let config = SocketConfig::builder()
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(BindFlags::XDP_COPY)
        .build();
    let make = || {
        // The first socket of a UMEM is the UMEM's own: both are made inside the namespace.
        let (umem, _) = xsk_rs::Umem::new(UmemConfig::default(), 64.try_into().unwrap(), false).unwrap();
        // SAFETY: the UMEM is new and has no other socket.
        unsafe { xsk_rs::Socket::new(config, &umem, &"left".parse().unwrap(), 0).unwrap() }
    };
    let foreign = wire.a.run(make).unwrap();
    let e = wire.left(|_| {}).err().unwrap();
    assert!(matches!(e, XdpError::QueueBusy { queue: 0, waited_ms: 2000.., .. }), "{e}");
    let left = wire.a.run(|| Interface::by_name("left")).unwrap().unwrap();
    assert_eq!(left.xdp_program, None, "a failed opening leaves nothing behind");
    drop(foreign);
    wire.left(|_| {}).unwrap();
}

/// Not a test of its own: the process that `a_killed_owner_leaves_the_interface_usable` kills.
#[test]
fn child_that_holds_a_port() {
    let Ok(name) = std::env::var("ROXIE_TEST_HOLD") else { return };
    let ns = NetNs::open(&name).unwrap();
    let _port = open(&ns, "left", |_| {}).unwrap();
    println!("HOLDING");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_owner_leaves_the_interface_usable() {
    if skip("a_killed_owner_leaves_the_interface_usable") {
        return;
    }
    use std::io::{BufRead, BufReader};
    let wire = Wire::new("kill", 1500, 1);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_holds_a_port", "--nocapture"])
        .env("ROXIE_TEST_HOLD", wire.a.name().unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|l| l.contains("HOLDING")), "the child opened its port");
    let e = wire.left(|_| {}).err().unwrap().to_string();
    assert!(e.contains(&format!("(pid {})", child.id())), "{e}");
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    let (mut left, mut right) = wire.ports();
    println!("open again {:?} after the kill", start.elapsed());
    let sent = frame(true, false, false, 200, 1);
    assert!(put(&mut left, &sent));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [sent]);
}

/// Not a test of its own: the process that the tests of missing privileges start with few of them.
#[test]
fn child_that_is_refused() {
    let Ok(name) = std::env::var("ROXIE_TEST_REFUSED") else { return };
    let refused = match name.as_str() {
        // It may not enter a namespace either.
        "" => XdpPort::open(&XdpConfig::new("lo")),
        ns => open(&NetNs::open(ns).unwrap(), "left", |_| {}),
    };
    println!("REFUSED {}", refused.err().expect("an error"));
}

fn refusal(child: &mut Command, namespace: &str) -> String {
    let child = child.args(["--exact", "child_that_is_refused", "--nocapture"]);
    let output = child.env("ROXIE_TEST_REFUSED", namespace).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|l| l.split_once("REFUSED ")).map(|(_, error)| error.to_owned());
    line.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn missing_privileges_are_named() {
    if skip("missing_privileges_are_named") {
        return;
    }
    use std::os::unix::process::CommandExt;
    // The test's binary may lie where only root can read it.
    let copy = tempfile::Builder::new().prefix("roxie-").tempdir_in("/tmp").unwrap();
    let binary = copy.path().join("xdp");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    for path in [copy.path(), &binary] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let e = refusal(Command::new(&binary).current_dir("/").uid(65534).gid(65534), "");
    assert!(e.contains("not permitted") && e.contains("CAP_BPF") && e.contains("udp port"), "{e}");
}

#[test]
fn a_limit_of_locked_memory_is_told_with_the_remedy() {
    if skip("a_limit_of_locked_memory_is_told_with_the_remedy") {
        return;
    }
    use std::os::unix::process::CommandExt;
    let wire = Wire::new("memlock", 1500, 1);
    let mut child = Command::new(std::env::current_exe().unwrap());
    let few = || {
        const CAP_IPC_LOCK: libc::c_ulong = 14;
        const CAP_SYS_RESOURCE: libc::c_ulong = 24;
        let megabyte = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: system calls with plain values, and one pointer to a local that lives across the call.
        let failed = unsafe {
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK)
                | libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_RESOURCE)
                | libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const megabyte)
        };
        if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes system calls only: nothing that is unsafe between fork and exec.
    unsafe { child.pre_exec(few) };
    let e = refusal(&mut child, wire.a.name().unwrap());
    assert!(e.contains("16777216 bytes") && e.contains("1048576 bytes"), "{e}");
    assert!(e.contains("ulimit -l 16384") && e.contains("CAP_IPC_LOCK"), "{e}");
}

#[test]
fn packets_of_an_unsegmented_sender_arrive_one_by_one_or_are_counted() {
    if skip("packets_of_an_unsegmented_sender_arrive_one_by_one_or_are_counted") {
        return;
    }
    use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
    for mode in [Mode::Native, Mode::Generic] {
        let wire = Wire::new("gso", 1500, 1);
        let socket = wire.a.run(|| UdpSocket::bind((A4, 49152))).unwrap().unwrap();
        setsockopt(&socket, UdpGsoSegment, &1000).unwrap();
        let mut right = wire.right(|c| c.mode = mode).unwrap();
        socket.send_to(&[7; 5000], (B4, ROCE)).unwrap();
        let got = take(&mut right, 5, A_WHILE);
        assert!(got.iter().all(|f| f.len() == 42 + 1000), "no frame is longer than a packet");
        let lost = ["rx_gso_superframe", "rx_dropped"].map(|n| counter(&right, n));
        println!("{mode:?}: {} packets, superframes and drops {lost:?}", got.len());
        match mode {
            Mode::Generic => assert!(got.len() == 5 || lost.iter().sum::<u64>() > 0),
            _ => assert_eq!((got.len(), lost), (5, [0, 0])),
        }
    }
}

#[test]
fn a_changed_mtu_is_followed() {
    if skip("a_changed_mtu_is_followed") {
        return;
    }
    let wire = Wire::new("mtu", 1500, 1);
    let (mut left, mut right) = wire.ports();
    for (ns, name) in [(&wire.a, "left"), (&wire.b, "right")] {
        Links::open_in(ns).unwrap().set_mtu(name, 4200).unwrap();
    }
    left.set_mtu(4200);
    assert_eq!((left.info().mtu, left.info().max_frame), (4200, 4218));
    let sent = frame(true, false, false, 4206, 1);
    assert!(put(&mut left, &sent));
    flush(&mut left);
    assert!(take(&mut right, 1, A_WHILE).is_empty(), "the receiver does not know yet");
    assert_eq!(counter(&right, "rx_gso_superframe"), 1);
    right.set_mtu(4200);
    assert!(put(&mut left, &sent));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [sent]);
}

#[test]
fn rings_that_cannot_be_are_refused() {
    for ring in [0, 63, 100, 65536] {
        let mut config = XdpConfig::new("lo");
        config.ring = ring;
        let e = XdpPort::open(&config).err().unwrap().to_string();
        assert!(e.contains(&ring.to_string()) && e.contains("power of two"), "{e}");
    }
}

/// Frames received in a second, and sent ones lost in hundredths, from `left` to `right`.
fn rate(wire: &Wire, mode: Mode, len: usize, threads: bool) -> (f64, f64) {
    const FOR: Duration = Duration::from_secs(1);
    let mut left = wire.left(|c| c.mode = mode).unwrap();
    let mut right = wire.right(|c| c.mode = mode).unwrap();
    let bytes = frame(true, false, false, len, 1);
    let start = Instant::now();
    let mut send = move || {
        for _ in 0..BURST {
            if !put(&mut left, &bytes) {
                break;
            }
        }
        flush(&mut left);
        counter_fast(&left)
    };
    let mut receive = move || {
        let n = right.rx_burst(Nanos::ZERO);
        right.rx_release();
        n as u64
    };
    let (mut sent, mut got) = (0, 0);
    if threads {
        let sender = std::thread::spawn(move || {
            while start.elapsed() < FOR {
                sent = send();
            }
            sent
        });
        while start.elapsed() < FOR || !sender.is_finished() {
            got += receive();
        }
        sent = sender.join().unwrap();
    } else {
        while start.elapsed() < FOR {
            sent = send();
            loop {
                let n = receive();
                got += n;
                if n == 0 {
                    break;
                }
            }
        }
    }
    let rate = got as f64 / start.elapsed().as_secs_f64();
    (rate, 100.0 * (1.0 - got as f64 / sent as f64))
}

/// Frames handed to the port so far.
fn counter_fast(port: &XdpPort) -> u64 {
    counter(port, "tx_packets")
}

/// `cargo test --release --test xdp -- --ignored --nocapture the_rate_of_raw_frames`
#[test]
#[ignore = "a measurement: 12 s, alone on the machine"]
fn the_rate_of_raw_frames() {
    if skip("the_rate_of_raw_frames") {
        return;
    }
    let wire = Wire::new("rate", 4200, 1);
    for mode in [Mode::Native, Mode::Generic] {
        for len in [70, 1100, 4170] {
            for threads in [false, true] {
                let (rate, lost) = rate(&wire, mode, len, threads);
                let who = if threads { "two threads" } else { "one thread" };
                println!(
                    "{mode:?} {len:>4} B {who:<11} {:>7.3} Mframes/s {:>6.2} Gb/s {lost:>5.1} % lost",
                    rate / 1e6,
                    rate * len as f64 * 8.0 / 1e9
                );
                assert!(rate > 1e4, "{rate} frames/s");
            }
        }
    }
}
