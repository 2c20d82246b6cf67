//! `Device::open`, which chooses the port.

use crate::run_in;
use crate::wire::{Wire, skip};
use roxie::host::{Device, OpenError};
use roxie::netdev::NetdevError;

#[test]
fn device_is_opened_over_the_best_port() {
    if skip("device_is_opened_over_the_best_port") {
        return;
    }
    let wire = Wire::new("opened", 1500, 1);
    // Without station addresses, as a tunnel.
    run_in(&wire.a, "ip", "tuntap add dev tun0 mode tun");
    run_in(&wire.a, "ip", "addr add 198.51.100.1/24 dev tun0");
    run_in(&wire.a, "ip", "link set tun0 up");
    let open = |interface: &'static str| wire.a.run(move || Device::open(interface)).unwrap();
    let device = open("left").expect("packet sockets");
    assert!(device.port().name.contains("packet"), "{}", device.port().name);
    drop(device);
    let device = open("tun0").expect("UDP sockets");
    assert!(device.port().name.contains("udp"), "{}", device.port().name);
    drop(device);
    let refused = open("absent").expect_err("there is no such interface");
    assert!(matches!(refused, OpenError::Netdev(NetdevError::NoSuchInterface { .. })), "{refused:?}");
}
