//! The port over UDP sockets, in network namespaces of the tests' own.
//!
//! Each test runs in a thread that has unshared its network, with addresses on its own `lo`. Without the
//! privilege for that a test says so and passes, but for the one that needs nothing but 127.0.0.0/8.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use roxie::port::fault::{FaultConfig, FaultPort};
use roxie::port::udp::{UdpConfig, UdpError, UdpPort, synthetic_mac};
use roxie::port::undelivered::Quoted;
use roxie::port::{BURST, Port};
use roxie::time::Nanos;

const PORT: u16 = 4791;
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs `test` on a thread in a fresh network namespace with 10.77.0.1-2 and fd77::1-2 on `lo`.
fn in_namespace(name: &str, test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            return Err(format!("no network namespace of its own ({error})"));
        }
        for command in [
            "link set lo up",
            "addr add 10.77.0.1/32 dev lo",
            "addr add 10.77.0.2/32 dev lo",
            "addr add fd77::1/128 dev lo nodad",
            "addr add fd77::2/128 dev lo nodad",
        ] {
            run("ip", command)?;
        }
        wait_for_ipv6()?;
        test();
        Ok(())
    });
    match thread.join() {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => println!("SKIP {name}: {reason}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The kernel takes new IPv6 addresses into use a little later, on a work queue of its own.
fn wait_for_ipv6() -> Result<(), String> {
    let start = Instant::now();
    let passes = || -> std::io::Result<()> {
        for (from, to) in [("fd77::1", "fd77::2"), ("fd77::2", "fd77::1")] {
            let (from, to) = (UdpSocket::bind((from, 0))?, UdpSocket::bind((to, 0))?);
            to.set_read_timeout(Some(Duration::from_millis(20)))?;
            from.send_to(&[1], to.local_addr()?)?;
            to.recv(&mut [0])?;
        }
        Ok(())
    };
    loop {
        match passes() {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > PATIENCE => return Err(format!("no IPv6 on lo: {error}")),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn run(program: &str, arguments: &str) -> Result<(), String> {
    match Command::new(program).args(arguments.split(' ')).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn open(address: &str) -> UdpPort {
    UdpPort::open(&UdpConfig { addresses: vec![ip(address)], ..UdpConfig::default() }).expect("a port")
}

fn open_without_gso(address: &str) -> UdpPort {
    let config = UdpConfig { addresses: vec![ip(address)], gso: false, ..UdpConfig::default() };
    UdpPort::open(&config).expect("a port")
}

/// A frame as a NIC builds it: made-up station addresses, exact lengths, no checksums.
struct Flow {
    from: IpAddr,
    to: IpAddr,
    class: u8,
    source_port: u16,
    port: u16,
}

impl Flow {
    fn new(from: &str, to: &str) -> Flow {
        Flow { from: ip(from), to: ip(to), class: 0, source_port: 0xc0de, port: PORT }
    }

    fn headers(&self, payload: usize) -> Vec<u8> {
        let udp_len = u16::try_from(payload + 8).unwrap();
        let mut f = [synthetic_mac(self.to), synthetic_mac(self.from)].concat();
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                f.extend([8, 0, 0x45, self.class]);
                f.extend((udp_len + 20).to_be_bytes());
                f.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
                f.extend(from.octets());
                f.extend(to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                f.extend([0x86, 0xdd, 0x60 | self.class >> 4, self.class << 4, 0, 0]);
                f.extend(udp_len.to_be_bytes());
                f.extend([17, 64]);
                f.extend(from.octets());
                f.extend(to.octets());
            }
            _ => panic!("both ends of one family"),
        }
        f.extend(self.source_port.to_be_bytes());
        f.extend(self.port.to_be_bytes());
        f.extend(udp_len.to_be_bytes());
        f.extend([0, 0]);
        f
    }

    fn frame(&self, payload: &[u8]) -> Vec<u8> {
        [&self.headers(payload.len())[..], payload].concat()
    }
}

/// Writes, arranges and commits frames, and returns them as they stood at the commit.
fn commit(port: &mut UdpPort, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let ids: Vec<_> = frames
        .iter()
        .map(|bytes| {
            let id = port.tx_alloc(bytes.len()).expect("room");
            port.tx_frame(&id).write(0, bytes);
            id
        })
        .collect();
    port.tx_arrange();
    let arranged = ids.iter().map(|id| port.tx_frame(id).as_frame().to_vec()).collect();
    for id in ids {
        port.tx_commit(id);
    }
    arranged
}

fn send(port: &mut UdpPort, flow: &Flow, payloads: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let frames: Vec<_> = payloads.iter().map(|p| flow.frame(p)).collect();
    let arranged = frames.chunks(BURST).flat_map(|burst| commit(port, burst)).collect();
    flush(port);
    arranged
}

fn flush(port: &mut UdpPort) {
    let start = Instant::now();
    port.tx_flush(Nanos::ZERO).expect("a flush");
    while port.tx_pending() {
        assert!(start.elapsed() < PATIENCE, "the link stays busy");
        port.tx_flush(Nanos::ZERO).expect("a flush");
    }
}

/// Receives until `n` frames are there. More than `n`, or fewer in two seconds, is a failure.
fn receive(port: &mut UdpPort, n: usize) -> Vec<Vec<u8>> {
    let start = Instant::now();
    let mut frames = Vec::new();
    while frames.len() < n {
        assert!(start.elapsed() < PATIENCE, "{} of {n} frames: {:?}", frames.len(), counters(port));
        receive_burst(port, &mut frames);
    }
    receive_burst(port, &mut frames);
    assert_eq!(frames.len(), n);
    frames
}

fn receive_burst(port: &mut UdpPort, frames: &mut Vec<Vec<u8>>) {
    let n = port.rx_burst(Nanos::ZERO);
    assert!(n <= BURST);
    for i in 0..n {
        let received = port.rx_frame(i);
        let bytes = received.frame.to_vec();
        assert_eq!(received.ip_id_hidden, bytes[12..14] == [8, 0], "hidden on IPv4, absent on IPv6");
        frames.push(bytes);
    }
    port.rx_release();
}

fn counters(port: &UdpPort) -> Vec<(&'static str, u64)> {
    let mut all = Vec::new();
    port.counters(&mut all);
    all.retain(|c| c.1 != 0);
    all
}

fn count(port: &UdpPort, name: &str) -> u64 {
    counters(port).iter().find(|c| c.0 == name).map_or(0, |c| c.1)
}

/// Where a datagram has the upper 8 bits of its destination QPN, by which trains are parted.
const UNIT: usize = 5;

/// Datagrams of all bytes, to QPNs of one unit.
fn payloads(n: usize, len: usize) -> Vec<Vec<u8>> {
    let byte = |i: usize, k: usize| if k == UNIT { 7 } else { (i * 31 + k) as u8 };
    (0..n).map(|i| (0..len).map(|k| byte(i, k)).collect()).collect()
}

fn datagrams(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    frames.iter().map(|f| f[if f[12..14] == [8, 0] { 42 } else { 62 }..].to_vec()).collect()
}

fn frames_pass_both_ways(a: &str, b: &str) {
    let (mut left, mut right) = (open(a), open(b));
    let sent = payloads(5, 300);
    let there = send(&mut left, &Flow::new(a, b), &sent);
    let arrived = receive(&mut right, 5);
    assert_eq!(datagrams(&arrived), sent);
    let udp = if ip(a).is_ipv4() { 34 } else { 54 };
    for (arrived, sent) in arrived.iter().zip(&there) {
        assert_eq!(arrived[..14], sent[..14], "station addresses and EtherType");
        assert_eq!(arrived[udp..udp + 6], sent[udp..udp + 6], "ports and length");
        let addresses = if udp == 34 { 26..34 } else { 22..54 };
        assert_eq!(arrived[addresses.clone()], sent[addresses], "IP addresses");
        assert!(arrived[udp] >= 0xc0, "the source port is one of RoCE v2");
    }
    send(&mut right, &Flow::new(b, a), &sent[..2]);
    assert_eq!(datagrams(&receive(&mut left, 2)), sent[..2]);
}

#[test]
fn frames_pass_both_ways_over_ipv4() {
    in_namespace("frames_pass_both_ways_over_ipv4", || frames_pass_both_ways("10.77.0.1", "10.77.0.2"));
}

#[test]
fn frames_pass_both_ways_over_ipv6() {
    in_namespace("frames_pass_both_ways_over_ipv6", || frames_pass_both_ways("fd77::1", "fd77::2"));
}

#[test]
fn frames_pass_without_privileges_on_loopback_addresses() {
    // A port that nobody else has: whoever owns 4791 here is left alone.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let open = |address: &str| {
        let config = UdpConfig { addresses: vec![ip(address)], port, ..UdpConfig::default() };
        UdpPort::open(&config).expect("a port")
    };
    let (mut left, mut right) = (open("127.0.0.1"), open("127.0.0.2"));
    let flow = Flow { port, ..Flow::new("127.0.0.1", "127.0.0.2") };
    let sent = payloads(10, 1000);
    send(&mut left, &flow, &sent);
    assert_eq!(datagrams(&receive(&mut right, 10)), sent);
}

#[test]
fn one_port_on_any_address_serves_both_families() {
    in_namespace("one_port_on_any_address_serves_both_families", || {
        // Alone: these datagrams are no packets, by which processes that share would tell whose they are.
        let config = UdpConfig { shared: false, ..UdpConfig::default() };
        let mut any = UdpPort::open(&config).expect("a port");
        assert!(any.addresses().contains(&ip("10.77.0.2")) && any.addresses().contains(&ip("fd77::2")));
        // Alternating families: a slot split for one takes a frame of the other.
        let flows = [Flow::new("10.77.0.1", "10.77.0.2"), Flow::new("fd77::1", "fd77::2")];
        let sent = payloads(6, 77);
        let frames: Vec<_> = sent.iter().enumerate().map(|(i, p)| flows[i % 2].frame(p)).collect();
        commit(&mut any, &frames);
        flush(&mut any);
        let arrived = receive(&mut any, 6);
        for (family, ether) in [(0, [8, 0]), (1, [0x86, 0xdd])] {
            let mine: Vec<_> = arrived.iter().filter(|f| f[12..14] == ether).cloned().collect();
            let wanted: Vec<_> = sent.iter().skip(family).step_by(2).cloned().collect();
            assert_eq!(datagrams(&mine), wanted);
            let destinations = if family == 0 { 30..34 } else { 38..54 };
            assert!(
                mine.iter()
                    .all(|f| f[destinations.clone()] == flows[family].headers(1)[destinations.clone()])
            );
        }
    });
}

#[test]
fn more_than_a_burst_at_once_arrives_in_bursts_complete_and_in_order() {
    in_namespace("more_than_a_burst_at_once_arrives_in_bursts_complete_and_in_order", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let sent = payloads(200, 64);
        send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &sent);
        let mut first = Vec::new();
        receive_burst(&mut b, &mut first);
        assert_eq!(first.len(), BURST, "a train of 128 does not overflow the burst");
        assert!(!b.prepare_sleep(), "the rest is fetched already");
        first.extend(receive(&mut b, 200 - BURST));
        assert_eq!(datagrams(&first), sent);
        assert!(b.prepare_sleep());
        assert!(count(&a, "tx_calls") <= 4 && count(&b, "rx_calls") <= 4, "{:?}", counters(&a));
    });
}

#[test]
fn trains_break_where_the_kernel_could_not_segment_and_ids_say_so() {
    in_namespace("trains_break_where_the_kernel_could_not_segment_and_ids_say_so", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        // FIRST is longer than the MIDDLEs, LAST is shorter, then a LAST that is longer than its MIDDLE.
        let lens = [1060, 1044, 1044, 500, 1044, 1048, 1044];
        let sent: Vec<_> = lens.iter().map(|len| payloads(1, *len).remove(0)).collect();
        let arranged = send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &sent);
        let ids: Vec<_> = arranged.iter().map(|f| u16::from_be_bytes([f[18], f[19]])).collect();
        // A shorter one ends a train: 1060 takes 1044 as its last.
        assert_eq!(ids, [0, 1, 0, 1, 0, 0, 1]);
        assert_eq!(datagrams(&receive(&mut b, lens.len())), sent);
        assert_eq!(count(&a, "tx_trains"), 4);
    });
}

/// A train comes to one process, and the QPs of a peer may be those of several.
#[test]
fn datagrams_to_qpns_of_different_units_leave_in_trains_of_their_own() {
    in_namespace("datagrams_to_qpns_of_different_units_leave_in_trains_of_their_own", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let mut sent = payloads(6, 100);
        for (datagram, unit) in sent.iter_mut().zip([1, 1, 2, 2, 1, 1]) {
            datagram[UNIT] = unit;
        }
        let arranged = send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &sent);
        let ids: Vec<_> = arranged.iter().map(|f| f[19]).collect();
        // In order: a datagram joins the newest train of its flow or none.
        assert_eq!(ids, [0, 1, 0, 1, 0, 1]);
        assert_eq!(datagrams(&receive(&mut b, 6)), sent);
        assert_eq!(count(&a, "tx_trains"), 3);
    });
}

/// One send holds no more than an IPv4 packet could.
#[test]
fn a_train_of_long_datagrams_ends_before_it_is_too_long_for_one_send() {
    in_namespace("a_train_of_long_datagrams_ends_before_it_is_too_long_for_one_send", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        // 65,507 bytes are eight of 8,188, and three more.
        for (len, trains) in [(8188, 1), (8189, 2)] {
            let before = count(&a, "tx_trains");
            let sent = payloads(8, len);
            send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &sent);
            assert!(datagrams(&receive(&mut b, 8)) == sent, "8 of {len} bytes");
            assert_eq!(count(&a, "tx_trains") - before, trains, "of 8 of {len} bytes");
        }
    });
}

#[test]
fn frames_cancelled_before_the_arrangement_leave_no_gap() {
    in_namespace("frames_cancelled_before_the_arrangement_leave_no_gap", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let flow = Flow::new("10.77.0.1", "10.77.0.2");
        let sent = payloads(6, 200);
        let ids: Vec<_> = sent
            .iter()
            .map(|p| {
                let id = a.tx_alloc(42 + p.len()).expect("room");
                a.tx_frame(&id).write(0, &flow.frame(p));
                id
            })
            .collect();
        let mut kept = Vec::new();
        for (i, id) in ids.into_iter().enumerate() {
            if i % 3 == 1 { a.tx_cancel(id) } else { kept.push(id) }
        }
        a.tx_arrange();
        let numbers: Vec<_> = kept.iter().map(|id| a.tx_frame(id).as_frame().to_vec()[19]).collect();
        kept.into_iter().for_each(|id| a.tx_commit(id));
        flush(&mut a);
        assert_eq!(numbers, [0, 1, 2, 3]);
        let wanted: Vec<_> = [0, 2, 3, 5].iter().map(|i| sent[*i].clone()).collect();
        assert_eq!(datagrams(&receive(&mut b, 4)), wanted);
        assert_eq!((count(&a, "tx_trains"), count(&a, "tx_id_shifted")), (1, 0));
    });
}

#[test]
fn frames_cancelled_after_the_arrangement_cut_their_train_and_are_counted() {
    in_namespace("frames_cancelled_after_the_arrangement_cut_their_train_and_are_counted", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let flow = Flow::new("10.77.0.1", "10.77.0.2");
        for (cancelled, shifted) in [(vec![0], 5), (vec![2, 3], 2), (vec![1, 4], 3), (vec![5], 0)] {
            let sent = payloads(6, 200);
            let before = count(&a, "tx_id_shifted");
            let ids: Vec<_> = sent
                .iter()
                .map(|p| {
                    let id = a.tx_alloc(42 + p.len()).expect("room");
                    a.tx_frame(&id).write(0, &flow.frame(p));
                    id
                })
                .collect();
            a.tx_arrange();
            for (i, id) in ids.into_iter().enumerate() {
                if cancelled.contains(&i) { a.tx_cancel(id) } else { a.tx_commit(id) }
            }
            flush(&mut a);
            let wanted: Vec<_> = (0..6).filter(|i| !cancelled.contains(i)).map(|i| sent[i].clone()).collect();
            assert_eq!(datagrams(&receive(&mut b, wanted.len())), wanted, "without {cancelled:?}");
            assert_eq!(count(&a, "tx_id_shifted") - before, shifted, "without {cancelled:?}");
        }
    });
}

#[test]
fn interleaved_flows_each_make_one_train() {
    in_namespace("interleaved_flows_each_make_one_train", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let calm = Flow::new("10.77.0.1", "10.77.0.2");
        let marked = Flow { class: 0x02, ..Flow::new("10.77.0.1", "10.77.0.2") };
        let sent = payloads(40, 100);
        let frames: Vec<_> = sent.iter().enumerate().map(|(i, p)| [&calm, &marked][i % 2].frame(p)).collect();
        commit(&mut a, &frames);
        flush(&mut a);
        let arrived = receive(&mut b, 40);
        for class in [0, 2] {
            let mine: Vec<_> = arrived.iter().filter(|f| f[15] == class).cloned().collect();
            let wanted: Vec<_> = sent.iter().skip(usize::from(class) / 2).step_by(2).cloned().collect();
            assert_eq!(datagrams(&mine), wanted, "class {class}");
        }
        assert_eq!((count(&a, "tx_trains"), count(&a, "tx_calls")), (2, 1));
    });
}

#[test]
fn source_ports_spread_over_the_pool_and_stay_for_a_flow() {
    in_namespace("source_ports_spread_over_the_pool_and_stay_for_a_flow", || {
        let mut a = open("10.77.0.1");
        let mut seen = std::collections::HashSet::new();
        for source_port in 0xc000..0xc040 {
            let flow = Flow { source_port, ..Flow::new("10.77.0.1", "10.77.0.2") };
            let port_of = |f: &Vec<u8>| u16::from_be_bytes([f[34], f[35]]);
            let first = port_of(&send(&mut a, &flow, &payloads(1, 64))[0]);
            assert_eq!(port_of(&send(&mut a, &flow, &payloads(1, 64))[0]), first);
            // What was arranged once (a delayed copy) goes through the same socket again.
            let again = Flow { source_port: first, ..flow };
            assert_eq!(port_of(&send(&mut a, &again, &payloads(1, 64))[0]), first);
            seen.insert(first);
        }
        assert_eq!(seen.len(), 4);
    });
}

#[test]
fn the_traffic_class_and_ecn_arrive_as_sent() {
    in_namespace("the_traffic_class_and_ecn_arrive_as_sent", || {
        let (mut a4, mut b4, mut a6, mut b6) =
            (open("10.77.0.1"), open("10.77.0.2"), open("fd77::1"), open("fd77::2"));
        for class in [0x00, 0x02, 0x03, 0x6a, 0xfd] {
            let v4 = Flow { class, ..Flow::new("10.77.0.1", "10.77.0.2") };
            send(&mut a4, &v4, &payloads(2, 50));
            assert!(receive(&mut b4, 2).iter().all(|f| f[15] == class), "IPv4, class {class:#x}");
            let v6 = Flow { class, ..Flow::new("fd77::1", "fd77::2") };
            send(&mut a6, &v6, &payloads(2, 50));
            let arrived = receive(&mut b6, 2);
            assert!(arrived.iter().all(|f| f[14] << 4 | f[15] >> 4 == class), "IPv6, class {class:#x}");
        }
    });
}

#[test]
fn ports_with_and_without_segmentation_understand_each_other() {
    in_namespace("ports_with_and_without_segmentation_understand_each_other", || {
        let (mut with, mut without) = (open("10.77.0.1"), open_without_gso("10.77.0.2"));
        let sent = payloads(100, 500);
        send(&mut with, &Flow::new("10.77.0.1", "10.77.0.2"), &sent);
        assert_eq!(datagrams(&receive(&mut without, 100)), sent);
        let back = send(&mut without, &Flow::new("10.77.0.2", "10.77.0.1"), &sent);
        assert!(back.iter().all(|f| f[18..20] == [0, 0]), "each datagram goes alone");
        assert_eq!(datagrams(&receive(&mut with, 100)), sent);
        assert_eq!(count(&without, "tx_trains"), 100);
        assert!(without.info().mode.contains("one datagram per send"), "{}", without.info().mode);
    });
}

#[test]
fn identifications_on_the_wire_are_those_in_the_arranged_headers() {
    in_namespace("identifications_on_the_wire_are_those_in_the_arranged_headers", || {
        // The loopback interface segments late; without its feature a tap sees what a wire would.
        if let Err(reason) = run("ethtool", "-K lo tx-udp-segmentation off") {
            println!("SKIP identifications_on_the_wire_are_those_in_the_arranged_headers: {reason}");
            return;
        }
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        assert!(a.info().mode.contains("IPv4 ids checked"), "{}", a.info().mode);
        let tap = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll)
            .expect("a tap");
        let flow = Flow::new("10.77.0.1", "10.77.0.2");
        let mut arranged = send(&mut a, &flow, &payloads(5, 300));
        arranged.extend(send(&mut a, &flow, &payloads(1, 400)));
        receive(&mut b, 6);
        let mut seen = Vec::new();
        let mut buffer = [0; 2048];
        while let Ok(n) = recv(tap.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            // A tap on lo sees each frame leave and arrive.
            let frame = buffer[..n].to_vec();
            if n > 42 && frame[36..38] == PORT.to_be_bytes() && !seen.contains(&frame) {
                seen.push(frame);
            }
        }
        assert_eq!(seen.len(), 6, "one frame per datagram");
        for (wire, ours) in seen.iter().zip(&arranged) {
            assert_eq!(wire[18..22], ours[18..22], "identification, DF and offset");
            assert_eq!(wire[34..40], ours[34..40], "UDP ports and length");
            assert_eq!(wire[42..], ours[42..]);
        }
        assert_eq!(seen.iter().map(|f| f[19]).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 0]);
    });
}

#[test]
fn a_sender_without_checksums_is_heard_over_ipv6() {
    in_namespace("a_sender_without_checksums_is_heard_over_ipv6", || {
        let mut port = open("fd77::1");
        let sender = socket(AddressFamily::Inet6, SockType::Raw, SockFlag::empty(), SockProtocol::Udp);
        let sender = sender.expect("a raw socket");
        // A raw socket sends the UDP header as it is given, with checksum 0.
        let flow = Flow::new("fd77::2", "fd77::1");
        let datagram = flow.frame(b"no checksum")[54..].to_vec();
        let to = nix::sys::socket::SockaddrIn6::from(match SocketAddr::new(ip("fd77::1"), 0) {
            SocketAddr::V6(a) => a,
            SocketAddr::V4(_) => unreachable!(),
        });
        nix::sys::socket::sendto(sender.as_raw_fd(), &datagram, &to, MsgFlags::empty()).expect("sent");
        assert_eq!(datagrams(&receive(&mut port, 1)), [b"no checksum".to_vec()]);
    });
}

/// While what is undelivered is heard of, the kernel tells a socket that sends of it as well, in the place of sending what comes next.
#[test]
fn what_nobody_takes_is_heard_of_and_keeps_nothing_else_from_arriving() {
    in_namespace("what_nobody_takes_is_heard_of_and_keeps_nothing_else_from_arriving", || {
        for (own, absent, there) in
            [("10.77.0.1", "10.77.0.2", "10.77.0.1"), ("fd77::1", "fd77::2", "fd77::1")]
        {
            let mut port = open(own);
            let heard = port.undelivered().unwrap().unwrap();
            assert_eq!(heard.next(), None);
            let lost = payloads(1, 300);
            send(&mut port, &Flow::new(own, absent), &lost);
            assert_eq!(heard.next(), Some(Quoted { remote: ip(absent), datagram: lost[0].clone() }));
            assert_eq!(heard.next(), None);
            let sent = payloads(100, 200);
            let mut arrived = Vec::new();
            for payload in &sent {
                send(&mut port, &Flow::new(own, absent), &lost);
                send(&mut port, &Flow::new(own, there), std::slice::from_ref(payload));
                arrived.extend(datagrams(&receive(&mut port, 1)));
            }
            assert!(arrived == sent, "{} of {}", arrived.len(), sent.len());
            for kind in ["tx_failed", "tx_unreachable", "tx_refused"] {
                assert_eq!(count(&port, kind), 0, "{kind}: {:?}", counters(&port));
            }
            // Linux says it a few times in a row, and then once a second.
            assert!(heard.next().is_some());
            drop(heard);
            send(&mut port, &Flow::new(own, absent), &lost);
            send(&mut port, &Flow::new(own, there), &sent[..1]);
            assert_eq!(receive(&mut port, 1).len(), 1);
            assert_eq!(port.undelivered().unwrap().unwrap().next(), None, "nobody asked for that");
        }
    });
}

#[test]
fn a_taken_port_is_refused_with_the_name_of_its_owner() {
    in_namespace("a_taken_port_is_refused_with_the_name_of_its_owner", || {
        let _first = open("10.77.0.1");
        let config = UdpConfig { addresses: vec![ip("10.77.0.1")], ..UdpConfig::default() };
        let error = UdpPort::open(&config).err().expect("a refusal");
        assert!(matches!(error, UdpError::InUse { port: PORT, .. }));
        let said = error.to_string();
        assert!(said.contains(&format!("process {} (", std::process::id())), "{said}");
        assert!(said.contains("10.77.0.1") && said.contains("4791") && said.contains("stop"), "{said}");
    });
}

#[test]
fn a_taken_port_among_the_source_ports_is_refused_with_its_owner_too() {
    in_namespace("a_taken_port_among_the_source_ports_is_refused_with_its_owner_too", || {
        let _taken = UdpSocket::bind(("10.77.0.1", 0xc123)).expect("a socket");
        let config = UdpConfig { addresses: vec![ip("10.77.0.1")], port: 0xc123, ..UdpConfig::default() };
        let said = UdpPort::open(&config).err().expect("a refusal").to_string();
        assert!(
            said.contains("49443") && said.contains(&format!("process {} (", std::process::id())),
            "{said}"
        );
    });
}

#[test]
fn an_address_of_another_host_is_refused_with_a_remedy() {
    in_namespace("an_address_of_another_host_is_refused_with_a_remedy", || {
        let config = UdpConfig { addresses: vec![ip("192.0.2.1")], ..UdpConfig::default() };
        let said = UdpPort::open(&config).err().expect("a refusal").to_string();
        assert!(
            said.contains("192.0.2.1 is no address of this host") && said.contains("ip address"),
            "{said}"
        );
    });
}

#[test]
fn frames_that_are_not_for_the_port_are_counted_and_never_leave() {
    in_namespace("frames_that_are_not_for_the_port_are_counted_and_never_leave", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let good = Flow::new("10.77.0.1", "10.77.0.2");
        let mut fragment = good.frame(b"fragment");
        fragment[20] = 0x20;
        let mut short = good.frame(b"wrong length");
        short.push(0);
        let mut arp = good.frame(b"arp");
        arp[13] = 6;
        let elsewhere = Flow { port: 4792, ..Flow::new("10.77.0.1", "10.77.0.2") }.frame(b"elsewhere");
        let no_such_family = Flow::new("fd77::1", "fd77::2").frame(b"no v6 socket here");
        let frames = [
            good.frame(b"one"),
            fragment,
            short,
            arp,
            elsewhere,
            no_such_family,
            vec![0; 5],
            good.frame(b"two"),
        ];
        commit(&mut a, &frames);
        flush(&mut a);
        assert_eq!(datagrams(&receive(&mut b, 2)), [b"one".to_vec(), b"two".to_vec()]);
        assert_eq!(count(&a, "tx_not_roce"), 6);
    });
}

#[test]
fn an_unreachable_peer_is_counted_and_does_not_stop_the_others() {
    in_namespace("an_unreachable_peer_is_counted_and_does_not_stop_the_others", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let lost = Flow::new("10.77.0.1", "192.0.2.7");
        let good = Flow::new("10.77.0.1", "10.77.0.2");
        commit(&mut a, &[lost.frame(b"x"), good.frame(b"y"), lost.frame(b"z")]);
        flush(&mut a);
        assert_eq!(datagrams(&receive(&mut b, 1)), [b"y".to_vec()]);
        assert_eq!((count(&a, "tx_unreachable"), count(&a, "tx_packets")), (2, 1));
    });
}

/// Who asks for a connection chooses the address that is answered. The kernel keeps what waits for a neighbour in the sender's buffer.
#[test]
fn answers_to_silent_neighbours_keep_nothing_else_from_leaving() {
    in_namespace("answers_to_silent_neighbours_keep_nothing_else_from_leaving", || {
        for command in [
            "link add silent0 type veth peer name silent1",
            "addr add 10.78.0.1/16 dev silent0",
            "link set silent0 up",
            "link set silent1 up",
        ] {
            run("ip", command).expect("a link to nobody");
        }
        let addresses = vec![ip("10.77.0.1"), ip("10.78.0.1")];
        let config = UdpConfig { addresses, socket_buffer: 64 * 1024, ..UdpConfig::default() };
        let mut port = UdpPort::open(&config).expect("a port");
        let mut peer = open("10.77.0.2");
        let to_qp = |qpn: u8| [&[0x64, 0, 0xff, 0xff, 0, 0, 0, qpn][..], &[0; 280]].concat();
        for round in 0..20 {
            let frames: Vec<_> = (2..=41)
                .map(|host| Flow::new("10.78.0.1", &format!("10.78.{round}.{host}")).frame(&to_qp(1)))
                .collect();
            commit(&mut port, &frames);
            port.tx_flush(Nanos::ZERO).expect("a flush");
        }
        assert!(!port.tx_pending(), "something waits");
        assert!(count(&port, "tx_management_dropped") > 0, "{:?}", counters(&port));
        let flow = Flow::new("10.77.0.1", "10.77.0.2");
        commit(&mut port, &[flow.frame(&to_qp(17))]);
        port.tx_flush(Nanos::ZERO).expect("a flush");
        assert_eq!(datagrams(&receive(&mut peer, 1)), [to_qp(17)]);
    });
}

#[test]
fn the_mtu_is_that_of_the_interface_and_too_long_datagrams_are_counted() {
    in_namespace("the_mtu_is_that_of_the_interface_and_too_long_datagrams_are_counted", || {
        run("ip", "link set lo mtu 1500").expect("a smaller MTU");
        let mut a = open("10.77.0.1");
        assert_eq!((a.info().mtu, a.info().max_frame), (1500, 1514));
        assert_eq!(a.info().interface.as_deref(), Some("lo"));
        run("ip", "link set lo mtu 1300").expect("a smaller MTU yet");
        send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &payloads(1, 1400));
        assert_eq!((count(&a, "tx_too_long"), count(&a, "tx_packets")), (1, 0));
        send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &payloads(3, 1400));
        assert_eq!((count(&a, "tx_too_long"), count(&a, "tx_packets")), (4, 0));
    });
}

#[test]
fn datagrams_lost_to_a_full_socket_buffer_are_counted() {
    in_namespace("datagrams_lost_to_a_full_socket_buffer_are_counted", || {
        let small =
            UdpConfig { addresses: vec![ip("10.77.0.2")], socket_buffer: 65_536, ..UdpConfig::default() };
        let (mut a, mut b) = (open("10.77.0.1"), UdpPort::open(&small).expect("a port"));
        let flow = Flow::new("10.77.0.1", "10.77.0.2");
        for _ in 0..20 {
            send(&mut a, &flow, &payloads(50, 1000));
        }
        let mut got = Vec::new();
        while b.rx_burst(Nanos::ZERO) > 0 {
            got.push(());
            b.rx_release();
        }
        // The count comes with the next datagram that gets through.
        send(&mut a, &flow, &payloads(1, 1000));
        receive(&mut b, 1);
        let (arrived, lost) = (count(&b, "rx_packets"), count(&b, "rx_out_of_buffer"));
        assert!(lost > 0 && arrived < 1001, "{arrived} arrived, {lost} lost");
    });
}

#[test]
fn datagrams_lost_at_several_sockets_are_counted_together() {
    in_namespace("datagrams_lost_at_several_sockets_are_counted_together", || {
        let small = UdpConfig {
            addresses: vec![ip("10.77.0.2"), ip("fd77::2")],
            socket_buffer: 65_536,
            ..UdpConfig::default()
        };
        let mut b = UdpPort::open(&small).expect("a port");
        let mut lost = 0;
        // Fewer each time.
        for (from, to, bursts) in [("10.77.0.1", "10.77.0.2", 40), ("fd77::1", "fd77::2", 20)] {
            let (mut a, flow) = (open(from), Flow::new(from, to));
            for _ in 0..bursts {
                send(&mut a, &flow, &payloads(50, 1000));
            }
            while b.rx_burst(Nanos::ZERO) > 0 {
                b.rx_release();
            }
            // The count comes with the next datagram that gets through.
            send(&mut a, &flow, &payloads(1, 1000));
            receive(&mut b, 1);
            let all = count(&b, "rx_out_of_buffer");
            assert!(all > lost, "{all} lost in all, {lost} of them before {to}");
            lost = all;
        }
    });
}

/// What is held back of a port on sockets still does not show its identification: its ICRC would not fit.
#[test]
fn a_frame_that_a_fault_delays_or_harms_hides_what_the_socket_hides() {
    in_namespace("a_frame_that_a_fault_delays_or_harms_hides_what_the_socket_hides", || {
        let mut a = open("10.77.0.1");
        let config = FaultConfig::parse("rx.delay=nth1:1us,rx.mark=nth2,rx.dup=nth3").expect("faults");
        let mut b = FaultPort::new(open("10.77.0.2"), &config);
        send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &payloads(3, 100));
        let (start, mut seen) = (Instant::now(), 0);
        while seen < 4 {
            assert!(start.elapsed() < PATIENCE, "{seen} frames");
            let now = Nanos(start.elapsed().as_nanos() as u64);
            for i in 0..b.rx_burst(now) {
                assert!(b.rx_frame(i).ip_id_hidden, "frame {seen}");
                seen += 1;
            }
            b.rx_release();
        }
    });
}

/// A socket that has long been silent is asked less often, while another has something; but it is asked.
#[test]
fn a_socket_that_was_silent_for_long_is_heard_beside_a_busy_one() {
    in_namespace("a_socket_that_was_silent_for_long_is_heard_beside_a_busy_one", || {
        let both = UdpConfig { addresses: vec![ip("10.77.0.2"), ip("fd77::2")], ..UdpConfig::default() };
        let (mut a, mut c) = (open("10.77.0.1"), open("fd77::1"));
        let mut b = UdpPort::open(&both).expect("a port");
        let (busy, silent) = (Flow::new("10.77.0.1", "10.77.0.2"), Flow::new("fd77::1", "fd77::2"));
        let mut turn = |b: &mut UdpPort| {
            send(&mut a, &busy, &payloads(1, 100));
            let mut frames = Vec::new();
            receive_burst(b, &mut frames);
            frames.iter().any(|frame| frame[12..14] == [0x86, 0xdd])
        };
        for _ in 0..200 {
            assert!(!turn(&mut b), "nobody has sent anything over IPv6");
        }
        send(&mut c, &silent, &payloads(1, 100));
        assert!((0..100).any(|_| turn(&mut b)), "the datagram waits behind a socket that is busy");
    });
}

#[test]
fn a_sleeper_is_woken_by_the_sockets() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    in_namespace("a_sleeper_is_woken_by_the_sockets", || {
        let (mut a, mut b) = (open("10.77.0.1"), open("10.77.0.2"));
        let readable = |port: &UdpPort| {
            let mut fds: Vec<_> =
                port.event_fds().into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            poll(&mut fds, PollTimeout::from(200u8)).expect("poll") > 0
        };
        assert!(b.prepare_sleep() && !readable(&b));
        send(&mut a, &Flow::new("10.77.0.1", "10.77.0.2"), &payloads(1, 10));
        assert!(readable(&b));
        receive(&mut b, 1);
        assert!(b.prepare_sleep() && !readable(&b));
    });
}

#[test]
fn a_plain_socket_can_talk_to_the_port() {
    in_namespace("a_plain_socket_can_talk_to_the_port", || {
        let mut port = open("10.77.0.1");
        let plain = UdpSocket::bind("10.77.0.2:4791").expect("a socket");
        setsockopt(&plain.as_fd(), sockopt::Ipv4Tos, &0x03).expect("a class");
        plain.send_to(b"hello", "10.77.0.1:4791").expect("sent");
        let frames = receive(&mut port, 1);
        assert_eq!((datagrams(&frames), frames[0][15]), (vec![b"hello".to_vec()], 0x03));
        send(&mut port, &Flow::new("10.77.0.1", "10.77.0.2"), &[b"and back".to_vec()]);
        plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut buffer = [0; 100];
        let (n, from) = plain.recv_from(&mut buffer).expect("an answer");
        assert_eq!((&buffer[..n], from.ip()), (&b"and back"[..], ip("10.77.0.1")));
    });
}
