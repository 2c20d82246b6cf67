//! Cost of a frame in the ports alone: `memory`, and `udp` compared with plain sockets with the same offload. One
//! thread drives both ends.
//!
//! Run by `cargo bench -p benches --bench ports`. The UDP part uses `lo` of a new network namespace (root), or else
//! 127.0.0.1 and 127.0.0.2. Sockets and port are measured alternately; the median of the rounds is printed.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt, sockopt};
use roxie::port::memory::{self, MemoryConfig};
use roxie::port::udp::{UdpConfig, UdpPort};
use roxie::port::{BURST, Port};
use roxie::time::Nanos;

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(300);
const HEADERS: usize = 42;

fn main() {
    let private = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_ok()
        && std::process::Command::new("timeout")
            .args(["60", "ip", "link", "set", "lo", "up"])
            .status()
            .is_ok_and(|status| status.success());
    println!("lo {}", if private { "of an own namespace" } else { "of this host" });
    memory_port();
    for payload in [64, 1044, 4160] {
        for gso in [true, false] {
            udp_port(payload, gso);
        }
    }
}

fn memory_port() {
    for len in [110, 4200] {
        let (mut a, mut b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
        let rates = (0..ROUNDS).map(|_| measure(|| move_burst(&mut a, &mut b, &[0; HEADERS], len))).collect();
        println!("memory, {len:>4} B frames: {:.1} ns a frame, sent and received", 1e9 / median(rates));
    }
}

fn udp_port(payload: usize, gso: bool) {
    let port = UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("loopback").port();
    let open = |address: [u8; 4]| {
        let config = UdpConfig { addresses: vec![IpAddr::from(address)], port, gso, ..UdpConfig::default() };
        UdpPort::open(&config).unwrap_or_else(|error| panic!("{error}"))
    };
    let (mut a, mut b) = (open([127, 0, 0, 1]), open([127, 0, 0, 2]));
    let headers = headers(payload, port);
    let mut floor = Floor::new(payload, gso);
    let (mut floors, mut rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let of_floor = measure(|| floor.move_burst());
        let of_port = measure(|| move_burst(&mut a, &mut b, &headers, HEADERS + payload));
        floors.push(of_floor);
        rates.push(of_port);
        ratios.push(of_port / of_floor);
    }
    let calls = |port: &UdpPort, calls, packets| {
        let mut all = Vec::new();
        port.counters(&mut all);
        let value = |name| all.iter().find(|c| c.0 == name).map_or(0, |c| c.1) as f64;
        value(calls) / value(packets)
    };
    let rate = median(rates);
    println!(
        "udp {}, {payload:>4} B: {:6.3} M/s {:6.2} Gb/s, {:.2} of bare sockets ({:.3} M/s); calls a packet: tx {:.4} rx {:.4}",
        if gso { "gso   " } else { "no gso" },
        rate / 1e6,
        rate * payload as f64 * 8.0 / 1e9,
        median(ratios),
        median(floors) / 1e6,
        calls(&a, "tx_calls", "tx_packets"),
        calls(&b, "rx_calls", "rx_packets"),
    );
}

/// Returns frames per second of `step`, which returns the number of frames moved.
fn measure(mut step: impl FnMut() -> usize) -> f64 {
    let (start, mut moved) = (Instant::now(), 0);
    while start.elapsed() < ROUND {
        moved += step();
    }
    moved as f64 / start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Moves one burst from `a` to `b`. Headers are written; the payload is left as it is.
fn move_burst(a: &mut impl Port, b: &mut impl Port, headers: &[u8], len: usize) -> usize {
    let ids: [_; BURST] = std::array::from_fn(|_| {
        let id = a.tx_alloc(len).expect("room for a burst");
        a.tx_frame(&id).write(0, headers);
        id
    });
    a.tx_arrange();
    for id in ids {
        a.tx_commit(id);
    }
    a.tx_flush(Nanos::ZERO).expect("a flush");
    let mut moved = 0;
    loop {
        let n = b.rx_burst(Nanos::ZERO);
        for i in 0..n {
            assert_eq!(std::hint::black_box(b.rx_frame(i)).frame.len(), len);
        }
        b.rx_release();
        moved += n;
        if n == 0 || moved == BURST {
            return moved;
        }
    }
}

fn headers(payload: usize, port: u16) -> [u8; HEADERS] {
    let mut h = [0; HEADERS];
    let udp_len = payload as u16 + 8;
    h[12..16].copy_from_slice(&[8, 0, 0x45, 2]);
    h[16..18].copy_from_slice(&(udp_len + 20).to_be_bytes());
    h[20..24].copy_from_slice(&[0x40, 0, 64, 17]);
    h[26..34].copy_from_slice(&[127, 0, 0, 1, 127, 0, 0, 2]);
    h[34..36].copy_from_slice(&0xc0deu16.to_be_bytes());
    h[36..38].copy_from_slice(&port.to_be_bytes());
    h[38..40].copy_from_slice(&udp_len.to_be_bytes());
    h
}

/// Lower bound: equal bursts by `sendmsg` and `recvmsg` alone.
struct Floor {
    from: UdpSocket,
    to: UdpSocket,
    destination: SockaddrIn,
    payload: usize,
    gso: bool,
    out: Vec<u8>,
    buffer: Vec<u8>,
}

impl Floor {
    fn new(payload: usize, gso: bool) -> Floor {
        let from = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let to = UdpSocket::bind("127.0.0.2:0").expect("a socket");
        to.set_nonblocking(true).expect("nonblocking");
        setsockopt(&to.as_fd(), sockopt::UdpGroSegment, &gso).expect("UDP_GRO");
        let _ = setsockopt(&to.as_fd(), sockopt::RcvBufForce, &(16 << 20));
        let address = SocketAddrV4::new([127, 0, 0, 2].into(), to.local_addr().expect("bound").port());
        let destination = SockaddrIn::from(address);
        Floor { from, to, destination, payload, gso, out: vec![0; payload * BURST], buffer: vec![0; 65_536] }
    }

    fn move_burst(&mut self) -> usize {
        let segment = self.payload as u16;
        let control = [ControlMessage::UdpGsoSegments(&segment)];
        let (train, control) = if self.gso {
            (65_507 / self.payload * self.payload, &control[..])
        } else {
            (self.payload, &[][..])
        };
        for chunk in self.out.chunks(train) {
            let control = if chunk.len() > self.payload { control } else { &[] };
            let data = [IoSlice::new(chunk)];
            let fd = self.from.as_raw_fd();
            sendmsg(fd, &data, control, MsgFlags::empty(), Some(&self.destination)).expect("sent");
        }
        let mut bytes = 0;
        while bytes < self.out.len() {
            let mut data = [IoSliceMut::new(&mut self.buffer)];
            match recvmsg::<SockaddrIn>(self.to.as_raw_fd(), &mut data, None, MsgFlags::empty()) {
                Ok(message) => bytes += message.bytes,
                Err(_) => break,
            }
        }
        bytes / self.payload
    }
}
