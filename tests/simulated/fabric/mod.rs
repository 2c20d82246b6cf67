//! Switches with queues, and hosts on links with rates, in virtual time.
//!
//! [`devices`] tests the API of applications in virtual time, [`links`] delays, [`marking`] the ECN curve, [`sharing`]
//! schedulers and buffers, [`pauses`] priority flow control, [`hosts`] queue pairs through a bottleneck, [`trouble`]
//! disturbances, [`config`] invalid configurations.

mod config;
mod devices;
mod hosts;
mod links;
mod marking;
mod pauses;
mod shapes;
mod sharing;
mod switching;
mod trouble;

use roxie::time::Nanos;
use roxie_sim::Host;
use roxie_sim::fabric::{
    Fabric, FabricConfig, LinkConfig, LinkRate, PortConfig, StationConfig, Switch, SwitchConfig,
};

/// One byte on the wire takes a nanosecond.
const RATE: LinkRate = LinkRate::from_gbps(8);
/// Delay of each cable.
const DELAY: Nanos = Nanos(100);

fn link() -> LinkConfig {
    LinkConfig::new(RATE, DELAY)
}

fn mac(station: usize) -> [u8; 6] {
    Host::mac(station as u16 + 1)
}

/// Returns stations with long rings, for one switch.
fn stations(count: usize) -> Vec<StationConfig> {
    (0..count)
        .map(|n| StationConfig { mtu: 9000, slots: 10_000, ..StationConfig::new(mac(n), link()) })
        .collect()
}

fn switch(ports: usize) -> SwitchConfig {
    SwitchConfig::new(FabricConfig::ports(ports, &PortConfig::new(link())))
}

fn star(count: usize, switch: SwitchConfig) -> Fabric {
    Fabric::new(FabricConfig::star(stations(count), switch)).expect("a fabric")
}

/// Returns an IPv4 frame of `length` bytes with a correct checksum.
fn frame(from: usize, to: usize, length: usize, tos: u8) -> Vec<u8> {
    let mut frame = vec![0x5a; length];
    frame[..6].copy_from_slice(&mac(to));
    frame[6..12].copy_from_slice(&mac(from));
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    let ip = &mut frame[14..34];
    ip.copy_from_slice(&[0x45, tos, 0, 0, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    ip[2..4].copy_from_slice(&((length - 14) as u16).to_be_bytes());
    (ip[14], ip[18]) = (from as u8, to as u8);
    let checksum = !ones_sum(ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// Returns the sum of RFC 1071: all ones for a header with a correct checksum.
fn ones_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Takes all frames delivered to a station: times and lengths.
fn delivered(fabric: &mut Fabric, station: usize) -> Vec<(u64, usize)> {
    let mut all = Vec::new();
    while let Some((time, frame)) = fabric.take(station) {
        all.push((time.0, frame.len()));
        fabric.recycle(frame);
    }
    all
}

/// Asserts that each frame was counted exactly once in a switch.
fn assert_conserved(switch: &Switch) {
    let ports = switch.config().ports.len();
    let mut copies = 0;
    for port in 0..ports {
        let ingress = switch.ingress(port);
        copies += ingress.copies;
        let once = ingress.copies + ingress.control + ingress.drops.all();
        assert!(once >= ingress.frames, "port {port}: {ingress:?}");
    }
    let mut offered = 0;
    for (port, priority) in (0..ports).flat_map(|port| (0..8).map(move |priority| (port, priority))) {
        let queue = switch.queue(port, priority);
        offered += queue.offered;
        assert_eq!(queue.offered, queue.enqueued + queue.drops.all(), "port {port} priority {priority}");
        assert_eq!(queue.queued() == 0, queue.depth.now() == 0, "port {port} priority {priority}");
    }
    assert_eq!(copies, offered);
}
