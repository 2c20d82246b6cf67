//! VLANs and RoCE v1 over packet sockets.

use roxie::port::{Port, RxOptions};

use super::*;

#[test]
fn vlans_are_isolated_over_packet_sockets() {
    if skip("vlans_are_isolated_over_packet_sockets") {
        return;
    }
    let wire = Wire::new("pk-vlan", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    crate::isolation::run(&mut left, &mut right);
}

#[test]
fn roce_v1_frames_need_a_request() {
    if skip("roce_v1_frames_need_a_request") {
        return;
    }
    let wire = Wire::new("pk-v1", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    let sent: Vec<_> = [B4.to_ipv6_mapped(), B6].iter().map(|to| v1_frame(to, 200)).collect();
    for roce_v1 in [false, true, false] {
        right.set_rx_wishes(RxOptions { roce_v1, ..RxOptions::default() }).unwrap();
        for f in &sent {
            assert!(put(&mut left, f));
        }
        flush(&mut left);
        let expected = if roce_v1 { sent.clone() } else { Vec::new() };
        assert!(take(&mut right, 2, A_WHILE) == expected, "requested: {roce_v1}");
    }
    let before = counter(&right, "rx_other_address");
    right.set_rx_wishes(RxOptions { roce_v1: true, ..RxOptions::default() }).unwrap();
    assert!(put(&mut left, &v1_frame(&"2001:db8::77".parse().unwrap(), 200)));
    flush(&mut left);
    assert!(take(&mut right, 1, A_WHILE).is_empty());
    assert_eq!(counter(&right, "rx_other_address"), before + 1);
}
