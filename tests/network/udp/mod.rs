//! The port over UDP sockets, in network namespaces of the tests' own.
//!
//! Each test runs in a thread that has unshared its network, with addresses on its own `lo`. Without the privilege for
//! that, tests are skipped with a message, except for the one that needs only 127.0.0.0/8.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::in_time::CommandInTime;
use roxie::port::udp::{UdpConfig, UdpPort, synthetic_mac};
use roxie::port::{BURST, Port};
use roxie::time::Nanos;

mod exchange;
mod losses;
mod refusals;
mod trains;
mod waiting;

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

/// Waits until new IPv6 addresses work: the kernel enables them later, on a work queue.
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
    match Command::new(program).args(arguments.split(' ')).output_in_time() {
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

/// A frame as a NIC builds it: synthetic station addresses, exact lengths, no checksums.
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

/// Writes, arranges and commits frames, and returns them as they were at the commit.
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

/// Receives until there are `n` frames. Fails on more, or on fewer within two seconds.
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

/// Offset in a datagram of the upper 8 bits of the destination QPN, by which trains are split.
const UNIT: usize = 5;

/// Returns datagrams with varied bytes, to QPNs of one unit.
fn payloads(n: usize, len: usize) -> Vec<Vec<u8>> {
    let byte = |i: usize, k: usize| if k == UNIT { 7 } else { (i * 31 + k) as u8 };
    (0..n).map(|i| (0..len).map(|k| byte(i, k)).collect()).collect()
}

fn datagrams(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    frames.iter().map(|f| f[if f[12..14] == [8, 0] { 42 } else { 62 }..].to_vec()).collect()
}
