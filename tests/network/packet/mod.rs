//! The packet port on veth pairs between network namespaces. Needs root; skips with a message otherwise.

mod foreign;
mod lost_link;
mod management;
mod shared;
mod trains;
mod vlan;

use std::time::Duration;

use roxie::netdev::NetNs;
use roxie::port::packet::{PacketConfig, PacketError, PacketPort};
use roxie::port::udp::{UdpConfig, UdpError, UdpPort};
use roxie::port::{LinkChange, Port, TxId};
use roxie::time::Nanos;

use crate::wire::*;

/// Slots of the ring of lone frames, and of that of trains.
const SLOTS: usize = 2048;
const TRAIN_SLOTS: usize = 240;

fn open(ns: &NetNs, name: &str) -> Result<PacketPort, PacketError> {
    ns.run(|| PacketPort::open(&PacketConfig { shared: false, ..PacketConfig::new(name) })).unwrap()
}

impl Wire {
    fn packet_ports(&self) -> (PacketPort, PacketPort) {
        (open(&self.a, "left").unwrap(), open(&self.b, "right").unwrap())
    }
}

/// Writes frames into slots of one burst, and arranges them.
fn arrange(port: &mut PacketPort, frames: &[Vec<u8>]) -> Vec<TxId> {
    let ids = frames
        .iter()
        .map(|bytes| {
            let id = port.tx_alloc(bytes.len()).expect("room for a burst");
            port.tx_frame(&id).write(0, bytes);
            id
        })
        .collect();
    port.tx_arrange();
    ids
}

#[test]
fn frames_of_every_length_pass_unchanged() {
    if skip("frames_of_every_length_pass_unchanged") {
        return;
    }
    for (tag, mtu, v6) in
        [("pk-v4", 4200, false), ("pk-v6", 4200, true), ("pk-1500", 1500, false), ("pk-9000", 9000, true)]
    {
        let wire = Wire::new(tag, mtu, 1);
        let (mut left, mut right) = wire.packet_ports();
        let longest = mtu as usize + 14;
        for (i, len) in (70..longest).step_by(37).chain([70, 71, 191, 192, 193, 1514, longest]).enumerate() {
            for to_b in [true, false] {
                let (from, to) = if to_b { (&mut left, &mut right) } else { (&mut right, &mut left) };
                let sent = frame(to_b, v6, false, len.min(longest), i as u64);
                assert!(put(from, &sent));
                flush(from);
                assert!(take(to, 1, SOON) == [sent], "{tag}: a frame of {len} bytes arrives unchanged");
            }
        }
        assert_eq!(left.tx_alloc(longest + 4 + 1), None, "beyond a VLAN tag");
        assert_eq!((counter(&left, "tx_too_long"), counter(&right, "rx_oversize")), (1, 0));
    }
}

#[test]
fn frame_wakes_sleeper() {
    if skip("frame_wakes_sleeper") {
        return;
    }
    let wire = Wire::new("pk-sleep", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    assert!(right.prepare_sleep(), "nothing waits");
    assert_eq!(ready(&right), 0);
    assert!(put(&mut left, &frame(true, false, false, 100, 1)));
    flush(&mut left);
    assert_eq!(ready(&right), 1);
    assert!(!right.prepare_sleep(), "a frame waits");
    assert_eq!(take(&mut right, 1, SOON).len(), 1);
    assert_eq!((ready(&right), right.prepare_sleep()), (0, true));
}

#[test]
fn full_ring_drops_and_counts_frames() {
    if skip("full_ring_drops_and_counts_frames") {
        return;
    }
    let wire = Wire::new("pk-full", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    let frames: Vec<_> = (0..SLOTS + 44).map(|i| frame(true, false, false, 100 + i % 1400, 1)).collect();
    for sent in &frames {
        assert!(put(&mut left, sent));
        flush(&mut left);
    }
    assert_eq!(right.rx_waiting(), Some((SLOTS, SLOTS)));
    assert!(take(&mut right, SLOTS + 44, A_WHILE) == frames[..SLOTS], "as many as the ring holds, in order");
    assert_eq!(counter(&right, "rx_out_of_buffer"), 44);
    assert_eq!(right.rx_waiting(), Some((0, SLOTS)));
    assert!(put(&mut left, &frames[0]));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == frames[..1], "reception continues");
}

#[test]
fn unshared_port_has_one_process() {
    if skip("unshared_port_has_one_process") {
        return;
    }
    let wire = Wire::new("pk-one", 1500, 1);
    let first = open(&wire.a, "left").unwrap();
    let message = open(&wire.a, "left").err().expect("the port is taken").to_string();
    assert!(
        message.contains("UDP port 4791 of left is taken")
            && message.contains(&format!("process {} ", std::process::id())),
        "{message}"
    );
    let udp = || wire.a.run(|| UdpPort::open(&UdpConfig { shared: false, ..UdpConfig::default() })).unwrap();
    assert!(matches!(udp(), Err(UdpError::InUse { port: 4791, .. })), "sockets find it taken too");
    drop(first);
    let sockets = udp().expect("the port is free");
    assert!(matches!(open(&wire.a, "left"), Err(PacketError::InUse { .. })));
    drop(sockets);
    open(&wire.a, "left").expect("the port is free again");
    assert!(matches!(open(&wire.a, "middle"), Err(PacketError::Netdev(_))));
}

#[test]
fn link_changes_are_followed() {
    if skip("link_changes_are_followed") {
        return;
    }
    let wire = Wire::new("pk-follow", 4200, 1);
    let (mut left, mut right) = wire.packet_ports();
    let f = frame(true, false, false, 200, 1);
    let mut passes = |right: &mut PacketPort| {
        assert!(put(&mut left, &f));
        flush(&mut left);
        take(right, 1, Duration::from_millis(50)).len()
    };
    assert_eq!(passes(&mut right), 1);
    right.follow(&LinkChange::Addresses(vec![B6.into()])).unwrap();
    assert_eq!(passes(&mut right), 0);
    assert_eq!(counter(&right, "rx_other_address"), 1);
    right.follow(&LinkChange::Addresses(vec![B4.into()])).unwrap();
    assert_eq!(passes(&mut right), 1);
    right.follow(&LinkChange::Mtu(1500)).unwrap();
    assert_eq!((right.info().mtu, right.info().max_frame), (1500, 1518), "with a VLAN tag");
    assert!(right.tx_alloc(1519).is_none());
}
