//! Ports that share an interface, as several processes do, here in one process.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::thread;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};
use roxie::netdev::Links;

use super::*;

/// Offsets in a frame over IPv4: of the datagram, the destination QPN, the attribute of a management datagram, and its
/// message.
const DATAGRAM: usize = 42;
const QPN: usize = DATAGRAM + 5;
const ATTRIBUTE: usize = DATAGRAM + 36;
const MESSAGE: usize = DATAGRAM + 44;
/// Offset in a datagram to a group of the source QPN's unit.
const SOURCE_UNIT: usize = DATAGRAM + 17;
/// Attributes of the connection manager: a request for a service, and "ready to use" (IBTA 12.6).
const REQ: u16 = 0x10;
const RTU: u16 = 0x14;
const GROUP: [u8; 4] = [239, 1, 2, 3];

fn shared_wire(tag: &str) -> Wire {
    let wire = Wire::new(tag, 4200, 1);
    for end in [&wire.a, &wire.b] {
        Links::open_in(end).unwrap().set_up("lo", true).unwrap();
    }
    wire
}

fn member(ns: &NetNs, name: &str) -> PacketPort {
    ns.run(|| PacketPort::open(&PacketConfig::new(name))).unwrap().expect("a port")
}

fn slot(port: &PacketPort) -> u8 {
    port.member().expect("it shares").slot()
}

/// Returns a frame to a QP of a unit.
fn to_unit(to_b: bool, unit: u8, len: usize, seed: u64) -> Vec<u8> {
    let mut frame = frame(to_b, false, false, len, seed);
    frame[QPN..QPN + 3].copy_from_slice(&[unit, 0x12, 0x34]);
    frame
}

/// Returns a management datagram: its message begins with these bytes.
fn management(attribute: u16, message: &[u8]) -> Vec<u8> {
    let mut frame = to_unit(true, 0, DATAGRAM + 300, 5);
    frame[QPN..QPN + 3].copy_from_slice(&[0, 0, 1]);
    frame[ATTRIBUTE..ATTRIBUTE + 2].copy_from_slice(&attribute.to_be_bytes());
    frame[MESSAGE..MESSAGE + message.len()].copy_from_slice(message);
    frame
}

/// Returns the datagrams that a port received in a while, without headers.
fn datagrams(port: &mut PacketPort, count: usize) -> Vec<Vec<u8>> {
    let limit = if count == usize::MAX { A_WHILE } else { SOON };
    take(port, count, limit).into_iter().map(|frame| frame[DATAGRAM..].to_vec()).collect()
}

fn send(port: &mut PacketPort, frames: &[Vec<u8>]) {
    arrange(port, frames).into_iter().for_each(|id| port.tx_commit(id));
    flush(port);
    assert!(!port.tx_pending());
}

fn nothing_else(ports: &mut [PacketPort]) {
    for port in ports {
        assert_eq!(datagrams(port, usize::MAX), Vec::<Vec<u8>>::new(), "slot {}", slot(port));
    }
}

/// The sockets of an ended group are in flight until the kernel closes them.
#[test]
fn port_waits_for_sockets_in_flight() {
    if skip("port_waits_for_sockets_in_flight") {
        return;
    }
    let wire = shared_wire("pk-flight");
    let (held, other) = UnixDatagram::pair().expect("a pair");
    let holder = wire.b.run(|| UdpSocket::bind(("0.0.0.0", 4791))).unwrap().expect("a socket");
    let fds = [holder.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&fds)];
    sendmsg::<()>(held.as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::empty(), None).expect("sent");
    drop(holder);
    let closes = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        drop((held, other));
    });
    member(&wire.b, "right");
    closes.join().expect("closed");
}

#[test]
fn members_receive_packets_of_their_units() {
    if skip("members_receive_packets_of_their_units") {
        return;
    }
    let wire = shared_wire("pk-units");
    let mut sender = open(&wire.a, "left").expect("a port");
    let mut ports: Vec<_> = (0..3).map(|_| member(&wire.b, "right")).collect();
    assert_eq!(ports.iter().map(slot).collect::<Vec<_>>(), [0, 1, 2]);
    let mut seed = 0;
    let mut each = |ports: &mut [PacketPort], units: &[u8]| {
        for (port, unit) in ports.iter_mut().zip(units) {
            seed += 1;
            // Two trains and a lone frame.
            let frames: Vec<_> =
                [1024; 40].into_iter().chain([100]).map(|len| to_unit(true, *unit, len, seed)).collect();
            send(&mut sender, &frames);
            let sent: Vec<_> = frames.iter().map(|frame| frame[DATAGRAM..].to_vec()).collect();
            assert!(datagrams(port, 41) == sent, "unit {unit}");
        }
        nothing_else(ports);
    };
    each(&mut ports, &[0, 1, 2]);
    let more = ports[1].member().expect("it shares").add_unit().expect("the register").expect("a unit");
    each(&mut ports[1..2], &[more]);
    // The first leaves, and another takes its slot.
    ports.remove(0);
    each(&mut ports, &[1, 2]);
    ports.push(member(&wire.b, "right"));
    each(&mut ports, &[1, 2, 0]);
    // Frames of a unit that no process has.
    send(&mut sender, &[to_unit(true, 77, 200, 1)]);
    nothing_else(&mut ports);
}

#[test]
fn train_for_two_members_reaches_both() {
    if skip("train_for_two_members_reaches_both") {
        return;
    }
    let wire = shared_wire("pk-mixed");
    let mut ports: Vec<_> = (0..2).map(|_| member(&wire.b, "right")).collect();
    let frames: Vec<_> = (0..6).map(|i| to_unit(true, i % 2, 500, 9 + u64::from(i))).collect();
    // As one train of a sender that knows nothing of units.
    let socket = wire.a.run(|| UdpSocket::bind((A4, 0))).unwrap().expect("a socket");
    setsockopt(&socket, sockopt::UdpGsoSegment, &((500 - DATAGRAM) as i32)).expect("trains");
    let train: Vec<u8> = frames.iter().flat_map(|frame| &frame[DATAGRAM..]).copied().collect();
    socket.send_to(&train, (B4, ROCE)).expect("sent");
    for (unit, port) in ports.iter_mut().enumerate() {
        let sent: Vec<_> = frames.iter().skip(unit).step_by(2).map(|f| f[DATAGRAM..].to_vec()).collect();
        // The first one hands over.
        assert!(datagrams(port, 3) == sent, "unit {unit}");
    }
    assert_eq!(counter(&ports[0], "rx_handed_over"), 3);
    nothing_else(&mut ports);
}

#[test]
fn members_reach_each_other_over_loopback() {
    if skip("members_reach_each_other_over_loopback") {
        return;
    }
    let wire = shared_wire("pk-local");
    let mut ports: Vec<_> = (0..2).map(|_| member(&wire.b, "right")).collect();
    let mut neighbour = member(&wire.a, "left");
    for (len, count) in [(100, 1), (1024, 30)] {
        let frames: Vec<_> = (0..count)
            .map(|seed| {
                let mut frame = to_unit(true, 1, len, seed);
                frame.copy_within(..6, 6);
                frame
            })
            .collect();
        let id = ports[0].tx_alloc(len).expect("room");
        ports[0].tx_frame(&id).write(0, &frames[0]);
        assert!(ports[0].is_sent(&id), "another process's frame goes to the port");
        ports[0].tx_cancel(id);
        send(&mut ports[0], &frames);
        let sent: Vec<_> = frames.iter().map(|frame| frame[DATAGRAM..].to_vec()).collect();
        assert!(datagrams(&mut ports[1], count as usize) == sent, "{count} frames of {len} bytes");
    }
    nothing_else(&mut ports);
    nothing_else(std::slice::from_mut(&mut neighbour));
    // Without a loopback interface frames are dropped and counted, and others are sent.
    Links::open_in(&wire.b).unwrap().set_up("lo", false).unwrap();
    let mut local = to_unit(true, 1, 100, 3);
    local.copy_within(..6, 6);
    let remote = to_unit(false, 0, 100, 4);
    send(&mut ports[0], &[local, remote.clone()]);
    assert!(datagrams(&mut neighbour, 1) == [remote[DATAGRAM..].to_vec()]);
    assert_eq!(counter(&ports[0], "tx_failed"), 1);
}

#[test]
fn group_reaches_members_of_this_host() {
    if skip("group_reaches_members_of_this_host") {
        return;
    }
    let wire = shared_wire("pk-group");
    let mut ports: Vec<_> = (0..3).map(|_| member(&wire.b, "right")).collect();
    let mut neighbour = member(&wire.a, "left");
    for port in [&mut neighbour].into_iter().chain(&mut ports[..2]) {
        port.join(GROUP.into()).expect("a group");
    }
    let mut frame = to_unit(false, 0, 200, 3);
    frame[..6].copy_from_slice(&[1, 0, 0x5e, 1, 2, 3]);
    frame[30..34].copy_from_slice(&GROUP);
    set_checksum(&mut frame[14..34]);
    frame[QPN..QPN + 3].fill(0xff);
    frame[SOURCE_UNIT] = slot(&ports[0]);
    send(&mut ports[0], std::slice::from_ref(&frame));
    let sent = [frame[DATAGRAM..].to_vec()];
    assert!(datagrams(&mut neighbour, 1) == sent);
    assert!(datagrams(&mut ports[1], 1) == sent);
    // Neither its sender nor a member that has not joined.
    nothing_else(&mut ports);
    nothing_else(std::slice::from_mut(&mut neighbour));
}

#[test]
fn requests_reach_their_listener() {
    if skip("requests_reach_their_listener") {
        return;
    }
    let wire = shared_wire("pk-cm");
    let mut sender = open(&wire.a, "left").expect("a port");
    let mut ports: Vec<_> = (0..3).map(|_| member(&wire.b, "right")).collect();
    let service = 0x1_0106_1bbb_u64;
    ports[2].member().expect("it shares").set_services([(service, None)]).expect("a service");
    // Service ID behind the communication ID and a reserved word.
    let request = |service: u64| management(REQ, &[&[0; 8][..], &service.to_be_bytes()].concat());
    // Remote communication ID, which begins with its owner's unit.
    let ready = |unit: u8| management(RTU, &[0, 0, 0, 0, unit, 1, 2, 3]);
    let frames = [(request(service), 2), (request(service + 1), 0), (ready(1), 1)];
    let all: Vec<_> = frames.iter().map(|(frame, _)| frame.clone()).collect();
    for together in [false, true] {
        if together {
            send(&mut sender, &all);
        }
        for (frame, slot) in &frames {
            if !together {
                send(&mut sender, std::slice::from_ref(frame));
            }
            assert!(datagrams(&mut ports[*slot], 1) == [frame[DATAGRAM..].to_vec()], "slot {slot}");
        }
        nothing_else(&mut ports);
    }
}

#[test]
fn strangers_and_members_exclude_each_other() {
    if skip("strangers_and_members_exclude_each_other") {
        return;
    }
    let wire = shared_wire("pk-strange");
    let udp = |shared| {
        let config = UdpConfig { interface: Some("left".into()), shared, ..UdpConfig::default() };
        wire.a.run(|| UdpPort::open(&config)).unwrap()
    };
    let first = member(&wire.a, "left");
    let second = member(&wire.a, "left");
    for shared in [false, true] {
        assert!(matches!(udp(shared), Err(UdpError::InUse { .. })), "sockets find the port taken");
    }
    assert!(matches!(open(&wire.a, "left"), Err(PacketError::InUse { .. })), "so does a port of its own");
    drop(first);
    assert!(matches!(udp(true), Err(UdpError::InUse { .. })), "one member is left");
    drop(second);
    let sockets = udp(true).expect("the port is free");
    let refused = wire.a.run(|| PacketPort::open(&PacketConfig::new("left"))).unwrap();
    let refused = refused.err().expect("the port is taken").to_string();
    assert!(refused.contains(&format!("process {} ", std::process::id())), "{refused}");
    drop(sockets);
    member(&wire.a, "left");
}
