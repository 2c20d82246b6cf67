//! VLANs and RoCE v1 over AF_XDP.

use roxie::port::xdp::Mode;
use roxie::port::{LinkChange, Port, RxOptions};

use super::*;

#[test]
fn vlans_are_isolated_in_every_mode() {
    if skip("vlans_are_isolated_in_every_mode") {
        return;
    }
    for mode in [Mode::Native, Mode::Generic] {
        let wire = Wire::new("xdp-vlan", 1500, 1);
        let mut left = wire.left(|_| {}).unwrap();
        let mut right = wire.right(|config| config.mode = mode).unwrap();
        crate::isolation::run(&mut left, &mut right);
    }
}

#[test]
fn roce_v1_is_taken_at_own_addresses() {
    if skip("roce_v1_is_taken_at_own_addresses") {
        return;
    }
    let wire = Wire::new("xdp-v1", 1500, 1);
    let (mut left, mut right) = wire.xdp_ports();
    let sent: Vec<_> = [B4.to_ipv6_mapped(), B6].iter().map(|to| v1_frame(to, 200)).collect();
    let unassigned = v1_frame(&"2001:db8::77".parse().unwrap(), 200);
    for wanted in [false, true] {
        right.set_rx_wishes(RxOptions { roce_v1: wanted, ..RxOptions::default() }).unwrap();
        for f in sent.iter().chain([&unassigned]) {
            assert!(put(&mut left, f));
        }
        flush(&mut left);
        let expected = if wanted { sent.clone() } else { Vec::new() };
        assert!(take(&mut right, 3, A_WHILE) == expected, "wanted: {wanted}");
    }
    right.follow(&LinkChange::Addresses(Vec::new())).unwrap();
    assert!(put(&mut left, &sent[0]));
    flush(&mut left);
    assert!(take(&mut right, 1, A_WHILE).is_empty(), "an address that is gone");
}
