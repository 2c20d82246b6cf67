//! A veth pair between two network namespaces, RoCE frames on it, and ports at its ends.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roxie::netdev::{Links, NetNs};
use roxie::port::{BURST, Port};
use roxie::time::Nanos;

pub(crate) const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
pub(crate) const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
pub(crate) const A4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(crate) const B4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
pub(crate) const A6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub(crate) const B6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
pub(crate) const ROCE: u16 = 4791;

/// Two namespaces joined by a veth pair: `left` in `a`, `right` in `b`.
pub(crate) struct Wire {
    pub(crate) a: NetNs,
    pub(crate) b: NetNs,
}

impl Wire {
    pub(crate) fn new(tag: &str, mtu: u32, queues: u32) -> Wire {
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
}

pub(crate) const SOON: Duration = Duration::from_secs(5);
pub(crate) const A_WHILE: Duration = Duration::from_millis(100);

/// True if the test cannot run here; prints the reason.
pub(crate) fn skip(name: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("SKIP {name}: network namespaces need root");
    }
    !root
}

/// Returns a RoCE v2 frame with correct addresses, lengths and port, `len` bytes in all, filled by `seed`.
pub(crate) fn frame(to_b: bool, v6: bool, vlan: bool, len: usize, seed: u64) -> Vec<u8> {
    let (dst, src) = if to_b { (MAC_B, MAC_A) } else { (MAC_A, MAC_B) };
    let mut f = [dst, src].concat();
    if vlan {
        f.extend([0x81, 0, 0, 5]);
    }
    f.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    let packet = len - f.len();
    let below = |header: usize| u16::try_from(packet - header).unwrap().to_be_bytes();
    if v6 {
        let (d, s) = if to_b { (B6, A6) } else { (A6, B6) };
        f.extend([0x60, 0, 0, 0]);
        f.extend(below(40));
        f.extend([17, 64]);
        f.extend(s.octets());
        f.extend(d.octets());
    } else {
        let (d, s) = if to_b { (B4, A4) } else { (A4, B4) };
        f.extend([0x45, 0]);
        f.extend(below(0));
        f.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        f.extend(s.octets());
        f.extend(d.octets());
    }
    if !v6 {
        let at = f.len() - 20;
        set_checksum(&mut f[at..]);
    }
    f.extend(0xc000u16.to_be_bytes());
    f.extend(ROCE.to_be_bytes());
    f.extend(below(if v6 { 40 } else { 20 }));
    f.extend([0, 0]);
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while f.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        f.push(x.to_le_bytes()[3]);
    }
    assert_eq!(f.len(), len, "a frame this short has no room for its headers");
    f
}

/// Returns a RoCE v1 frame from A to an address at B, `len` bytes in all.
pub(crate) fn v1_frame(to: &Ipv6Addr, len: usize) -> Vec<u8> {
    let mut f = [MAC_B, MAC_A].concat();
    f.extend([0x89, 0x15, 0x60, 0, 0, 0]);
    f.extend(u16::try_from(len - 54).unwrap().to_be_bytes());
    f.extend([0x1b, 64]);
    f.extend(A6.octets());
    f.extend(to.octets());
    f.resize(len, 0x11);
    f
}

/// Sets an IPv4 header's checksum (RFC 791 3.1).
pub(crate) fn set_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let words = header[..4 * usize::from(header[0] & 15)].chunks(2);
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let sum = (folded & 0xffff) + (folded >> 16);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Sends one frame; false if the port has no free slot.
pub(crate) fn put(port: &mut impl Port, bytes: &[u8]) -> bool {
    let Some(id) = port.tx_alloc(bytes.len()) else { return false };
    let mut slot = port.tx_frame(&id);
    assert_eq!(slot.len(), bytes.len());
    slot.write(0, bytes);
    port.tx_arrange();
    port.tx_commit(id);
    true
}

pub(crate) fn flush(port: &mut impl Port) {
    port.tx_flush(Nanos::ZERO).unwrap();
}

/// Receives until there are `count` frames, or `limit` has passed.
pub(crate) fn take(port: &mut impl Port, count: usize, limit: Duration) -> Vec<Vec<u8>> {
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

pub(crate) fn counter(port: &impl Port, name: &str) -> u64 {
    let mut all = Vec::new();
    port.counters(&mut all);
    all.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Returns the number of the port's descriptors that are readable within 50 ms.
pub(crate) fn ready(port: &impl Port) -> i32 {
    let fds = port.event_fds();
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    poll(&mut polled, PollTimeout::from(50u16)).unwrap()
}
