//! A device follows its interface while it is open.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roxie::host::{Device, DeviceConfig, Stack};
use roxie::netdev::{IfAddr, Links, NetNs};
use roxie::port::xdp::XdpConfig;
use roxie::verbs::{AsyncEvent, EventKind, Mtu};

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < until, "{what}: not within 10 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn saw(device: &Device, wanted: EventKind) -> bool {
    std::iter::from_fn(|| device.event()).any(|event| event == AsyncEvent::Port(wanted))
}

#[test]
fn addresses_mtu_and_link_state_are_followed_while_open() {
    let (here, there) = match (NetNs::create("follow-a"), NetNs::create("follow-b")) {
        (Ok(here), Ok(there)) => (here, there),
        (Err(why), _) | (_, Err(why)) => {
            println!("SKIP addresses_mtu_and_link_state_are_followed_while_open: {why}");
            return;
        }
    };
    let address = |text: &str| text.parse::<IfAddr>().expect("an address");
    let mut links = Links::open_in(&here).expect("netlink");
    links.create_veth("veth0", &there, "veth0", 1).expect("a pair");
    links.set_mtu("veth0", 4200).expect("an MTU");
    links.add_address("veth0", address("10.79.0.1/24")).expect("an address");
    links.set_up("veth0", true).expect("up");
    let mut far = Links::open_in(&there).expect("netlink");
    far.set_mtu("veth0", 4200).expect("an MTU");
    far.set_up("veth0", true).expect("up");

    let open = || Device::open_xdp(&XdpConfig::new("veth0"), &Stack::default(), &DeviceConfig::default());
    let device = here.run(open).expect("the namespace").expect("a device");
    assert_eq!(device.largest_mtu(), Mtu::Mtu4096);

    links.add_address("veth0", address("10.79.0.9/24")).expect("an address");
    let has = |ip: &str| {
        let ip: IpAddr = ip.parse().expect("an address");
        device.gids().iter().find(|e| e.gid.to_ip() == ip).map(|e| e.index)
    };
    eventually("the new address is a GID", || has("10.79.0.9").is_some());
    let index = has("10.79.0.9");
    eventually("the event", || saw(&device, EventKind::GidChange));

    links.delete_address("veth0", address("10.79.0.1/24")).expect("removed");
    eventually("the old address is gone", || has("10.79.0.1").is_none());
    // Removing the first address of a subnet removes its secondaries too, unless they are promoted.
    links.add_address("veth0", address("10.79.0.9/24")).ok();
    eventually("the new address is there", || has("10.79.0.9").is_some());
    assert!(has("10.79.0.9") <= index, "indices do not grow");

    links.set_mtu("veth0", 1500).expect("an MTU");
    eventually("the path MTU follows", || device.largest_mtu() == Mtu::Mtu1024);

    far.set_up("veth0", false).expect("down");
    eventually("the loss of the link is told", || saw(&device, EventKind::PortError));
    far.set_up("veth0", true).expect("up");
    eventually("its return is told", || saw(&device, EventKind::PortActive));
}
