//! Ports that share a UDP port, as several processes do, here in one process.
//!
//! Each test runs in its own network namespace, with addresses on its `lo`.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::in_time::CommandInTime;
use roxie::port::Port;
use roxie::port::group::SLOTS;
use roxie::port::udp::{UdpConfig, UdpError, UdpPort, synthetic_mac};
use roxie::time::Nanos;

const PATIENCE: Duration = Duration::from_secs(5);
const NEAR: &str = "10.77.0.1";
const FAR: &str = "10.77.0.2";
/// Offset in a datagram of the upper 8 bits of the destination QPN.
const UNIT: usize = 5;

fn in_namespace(name: &str, test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            return Err(format!("no network namespace of its own ({error})"));
        }
        let commands =
            ["link set lo up multicast on", "addr add 10.77.0.1/32 dev lo", "addr add 10.77.0.2/32 dev lo"];
        let route = ["route add 224.0.0.0/4 dev lo"];
        for command in commands.iter().chain(&route) {
            let done =
                Command::new("ip").args(command.split(' ')).output_in_time().map_err(|e| e.to_string())?;
            if !done.status.success() {
                return Err(format!("ip {command}: {}", String::from_utf8_lossy(&done.stderr)));
            }
        }
        test();
        Ok(())
    });
    match thread.join() {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => println!("SKIP {name}: {reason}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn open() -> UdpPort {
    UdpPort::open(&UdpConfig { interface: Some("lo".into()), ..UdpConfig::default() }).expect("a port")
}

fn slot(port: &UdpPort) -> u8 {
    port.member().expect("it shares").slot()
}

fn count(port: &UdpPort, name: &str) -> u64 {
    let mut all = Vec::new();
    port.counters(&mut all);
    all.iter().find(|counter| counter.0 == name).map_or(0, |counter| counter.1)
}

/// Returns a datagram to a QP of a unit.
fn datagram(unit: u8, mark: u8) -> Vec<u8> {
    let mut bytes = vec![mark; 100];
    bytes[UNIT] = unit;
    bytes
}

/// Returns the datagrams that a port received, without headers.
fn take(port: &mut UdpPort) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    // Handed-over datagrams are polled only now and then.
    for _ in 0..80 {
        for i in 0..port.rx_burst(Nanos::ZERO) {
            all.push(port.rx_frame(i).frame.to_vec()[42..].to_vec());
        }
        port.rx_release();
    }
    all
}

fn take_until(port: &mut UdpPort, number: usize) -> Vec<Vec<u8>> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while all.len() < number && start.elapsed() < PATIENCE {
        all.extend(take(port));
    }
    all
}

fn sender() -> UdpSocket {
    let socket = UdpSocket::bind((FAR, 0)).expect("a socket");
    socket.connect((NEAR, 4791)).expect("an address");
    socket
}

#[test]
fn members_keep_their_units_when_others_leave() {
    in_namespace("members_keep_their_units_when_others_leave", || {
        let mut ports: Vec<_> = (0..5).map(|_| open()).collect();
        assert_eq!(ports.iter().map(slot).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let sender = sender();
        let mut mark = 0;
        let mut each = |ports: &mut [UdpPort]| {
            for port in ports {
                mark += 1;
                let sent = datagram(slot(port), mark);
                sender.send(&sent).expect("sent");
                assert_eq!(take_until(port, 1), [sent], "slot {}", slot(port));
            }
        };
        each(&mut ports);
        // The first, a middle and the last member leave: the others keep their slots.
        for gone in [0, 1, 2] {
            ports.remove(gone);
            each(&mut ports);
        }
        // New members take the lowest free slots.
        ports.push(open());
        ports.push(open());
        assert_eq!(ports.iter().map(slot).collect::<Vec<_>>(), [1, 3, 0, 2]);
        each(&mut ports);
        // A second unit.
        let more = ports[0].member().expect("it shares").add_unit().expect("the register").expect("a unit");
        let sent = datagram(more, 200);
        sender.send(&sent).expect("sent");
        assert_eq!(take_until(&mut ports[0], 1), [sent]);
        assert!(ports.iter_mut().all(|port| take(port).is_empty()));
    });
}

#[test]
fn old_datagrams_do_not_reach_next_member() {
    in_namespace("old_datagrams_do_not_reach_next_member", || {
        let first = open();
        let second = open();
        let sender = sender();
        for mark in 0..50 {
            sender.send(&datagram(slot(&second), mark)).expect("sent");
        }
        drop(second);
        for mark in 50..100 {
            sender.send(&datagram(1, mark)).expect("sent");
        }
        let mut third = open();
        assert_eq!(slot(&third), 1);
        assert!(take(&mut third).is_empty());
        let sent = datagram(1, 111);
        sender.send(&sent).expect("sent");
        assert_eq!(take_until(&mut third, 1), [sent]);
        drop(first);
    });
}

/// Makes the kernel segment datagrams: on `lo` a train arrives whole, at the process of its first datagram.
fn sends_trains(sender: &UdpSocket) {
    let segment: libc::c_int = 100;
    // SAFETY: the option's value is an int, which lives as long as the call.
    let set = unsafe {
        let value = (&raw const segment).cast();
        libc::setsockopt(sender.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value, 4)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn squatted_slot_name_gets_no_datagram() {
    in_namespace("squatted_slot_name_gets_no_datagram", || {
        let name = format!("roxie/4791/{}/1", nix::unistd::geteuid());
        let address = UnixAddress::from_abstract_name(name).expect("a name");
        let squatter = UnixDatagram::bind_addr(&address).expect("free");
        squatter.set_nonblocking(true).expect("a socket");
        let (mut first, mut second) = (open(), open());
        let sender = sender();
        sends_trains(&sender);
        let train = [datagram(0, 1), datagram(1, 2)];
        sender.send(&train.concat()).expect("sent");
        assert_eq!(take_until(&mut first, 1), train[..1]);
        assert_eq!(take_until(&mut second, 1), train[1..]);
        assert!(squatter.recv(&mut [0; 200]).is_err(), "another's datagram");
    });
}

/// Receive offload joins datagrams with the same addresses and ports, and the kernel steers by the first.
#[test]
fn misdelivered_datagrams_are_handed_over() {
    in_namespace("misdelivered_datagrams_are_handed_over", || {
        let (mut first, mut second) = (open(), open());
        let sender = sender();
        sends_trains(&sender);
        let train = [datagram(0, 1), datagram(1, 2), datagram(1, 3), datagram(0, 4), datagram(77, 5)];
        sender.send(&train.concat()).expect("sent");
        assert_eq!(take_until(&mut first, 2), [train[0].clone(), train[3].clone()]);
        assert_eq!(take_until(&mut second, 2), [train[1].clone(), train[2].clone()]);
        assert_eq!((count(&first, "rx_handed_over"), count(&first, "rx_strays_dropped")), (2, 1));
        assert_eq!(count(&second, "rx_packets"), 2);
        // The datagram keeps its addresses.
        sender.send(&[datagram(0, 6), datagram(1, 7)].concat()).expect("sent");
        take_until(&mut first, 1);
        let start = Instant::now();
        while second.rx_burst(Nanos::ZERO) == 0 {
            assert!(start.elapsed() < PATIENCE, "nothing was handed over");
            second.rx_release();
        }
        let frame = second.rx_frame(0).frame.to_vec();
        let from: SocketAddr = sender.local_addr().expect("an address");
        let remote: IpAddr = FAR.parse().expect("an address");
        assert_eq!(frame[6..12], synthetic_mac(remote));
        assert_eq!((&frame[26..30], &frame[30..34]), (&[10, 77, 0, 2][..], &[10, 77, 0, 1][..]));
        assert_eq!(frame[34..36], from.port().to_be_bytes());
    });
}

#[test]
fn frames_to_other_processes_leave_own_stay() {
    in_namespace("frames_to_other_processes_leave_own_stay", || {
        let (mut first, second) = (open(), open());
        let mut frame = [synthetic_mac(NEAR.parse().unwrap()), synthetic_mac(NEAR.parse().unwrap())].concat();
        frame.extend([8, 0, 0x45, 0, 0, 128, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 1]);
        frame.extend([0xc0, 0, 0x12, 0xb7, 0, 108, 0, 0]);
        for (unit, leaves) in [(slot(&first), false), (slot(&second), true)] {
            let whole = [&frame[..], &datagram(unit, 1)].concat();
            let id = first.tx_alloc(whole.len()).expect("room");
            first.tx_frame(&id).write(0, &whole);
            assert_eq!(first.is_sent(&id), leaves);
            first.tx_cancel(id);
        }
    });
}

#[test]
fn multicast_members_get_one_copy_each() {
    in_namespace("multicast_members_get_one_copy_each", || {
        let mut ports: Vec<_> = (0..3).map(|_| open()).collect();
        let group: IpAddr = "239.1.2.3".parse().unwrap();
        for port in &mut ports[..2] {
            port.join(group).expect("joined");
        }
        // A frame from the first member to the group, for all its QPs.
        let mut datagram = datagram(0xff, 9);
        datagram[4..8].copy_from_slice(&[0, 0xff, 0xff, 0xff]);
        let mut frame = vec![1, 0, 0x5e, 1, 2, 3, 2, 0, 10, 77, 0, 1];
        frame.extend([8, 0, 0x45, 0, 0, 128, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 1, 239, 1, 2, 3]);
        frame.extend([0xc0, 0, 0x12, 0xb7, 0, 108, 0, 0]);
        frame.extend(&datagram);
        let id = ports[0].tx_alloc(frame.len()).expect("room");
        ports[0].tx_frame(&id).write(0, &frame);
        ports[0].tx_arrange();
        ports[0].tx_commit(id);
        ports[0].tx_flush(Nanos::ZERO).expect("sent");
        assert_eq!(take_until(&mut ports[1], 1), [datagram]);
        assert!(take(&mut ports[0]).is_empty(), "its own comes round above the port");
        assert!(take(&mut ports[2]).is_empty(), "it has not joined");
    });
}

#[test]
fn slots_are_limited() {
    in_namespace("slots_are_limited", || {
        let config =
            UdpConfig { send_sockets: 1, gso: false, socket_buffer: 1 << 16, ..UdpConfig::default() };
        let mut ports = Vec::new();
        let refused = loop {
            match UdpPort::open(&config) {
                Ok(port) => ports.push(port),
                Err(error) => break error,
            }
        };
        assert_eq!(ports.len(), SLOTS, "{refused}");
        assert!(
            matches!(refused, UdpError::Group(_)) && refused.to_string().contains("no more places"),
            "{refused}"
        );
        let mut last = ports.pop().expect("a port");
        assert_eq!(usize::from(slot(&last)), SLOTS - 1);
        let sent = datagram(slot(&last), 1);
        sender().send(&sent).expect("sent");
        assert_eq!(take_until(&mut last, 1), [sent]);
    });
}
