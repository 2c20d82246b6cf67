//! Identifiers, addresses and ports: ownership, and delivery of requests.

use nix::sys::eventfd::EfdFlags;

use super::{RULES, Side, carry, connected, sides, wish};
use crate::ucma::event::EventType;
use crate::ucma::ports::Space;
use crate::ucma::resolve::own_address;
use crate::ucma::state::{AddressOwner, Cm, Rules};

#[test]
fn bind_errors_name_the_cause() {
    let (_, mut side) = sides();
    let (file, id) = (side.file, side.create(1, Space::Tcp));
    let mut bind = |address: &str, address_owner, rules: &Rules| {
        side.state.bind(file, id, address.parse().unwrap(), address_owner, rules)
    };
    assert_eq!(bind("192.0.2.9:7174", AddressOwner::Unknown, &RULES), Err(libc::EADDRNOTAVAIL));
    assert_eq!(bind("198.51.100.9:7174", AddressOwner::Host, &RULES), Err(libc::ENODEV));
    assert_eq!(bind("192.0.2.2:80", AddressOwner::Device, &RULES), Err(libc::EACCES));
    assert_eq!(bind("192.0.2.2:80", AddressOwner::Device, &Rules { privileged: true, ..RULES }), Ok(()));
    let other = side.create(2, Space::Tcp);
    assert_eq!(side.bind(other, "192.0.2.2:0"), Ok(()));
    let port = side.state.id(file, other).unwrap().source.unwrap().port();
    assert!(RULES.any_port.contains(&port));
    let third = side.create(3, Space::Tcp);
    assert_eq!(side.bind(third, &format!("192.0.2.2:{port}")), Err(libc::EADDRINUSE));
    side.destroy(other).unwrap();
    assert_eq!(side.bind(third, &format!("192.0.2.2:{port}")), Ok(()), "free again");
}

#[test]
fn identifier_migrates_between_files_with_its_events() {
    let (mut server, mut client) = sides();
    let (passive, active) = connected(&mut server, &mut client);
    client.disconnect(active).unwrap();
    carry(&mut server, &mut client);
    let other = server.state.open(EfdFlags::EFD_NONBLOCK).unwrap();
    assert_eq!(server.state.id(other, passive).err(), Some(libc::EINVAL));
    assert_eq!(server.state.migrate(server.file, other, passive), Ok(1), "one was fetched, one waits");
    assert_eq!(
        (server.maybe_next(), server.state.fetch(other).unwrap().what),
        (None, EventType::Disconnected)
    );
    server.with(|state, cm, _| {
        state.close(Some(Cm { manager: cm.manager, now: cm.now, local_gid: cm.local_gid }), other)
    });
    assert_eq!(server.state.id(other, passive).err(), Some(libc::ENOENT), "closed with the file");
}

#[test]
fn ipv6_wildcard_accepts_ipv4_unless_restricted() {
    let (mut server, mut client) = sides();
    server.listener(Space::Tcp, "[::]:7174", 0);
    let active = client.resolved(9, Space::Tcp, "192.0.2.1:7174");
    client.connect(active, &wish(17, b"")).unwrap();
    carry(&mut server, &mut client);
    assert_eq!(server.next().what, EventType::ConnectRequest);
    let mut farther = Side::new("fd00::3", 3);
    let active = farther.resolved(11, Space::Tcp, "[fd00::1]:7174");
    farther.connect(active, &wish(17, b"")).unwrap();
    carry(&mut server, &mut farther);
    assert_eq!(server.next().what, EventType::ConnectRequest, "and for its own");

    let alone = server.create(5, Space::Tcp);
    server.state.id(server.file, alone).unwrap().options.one_family = Some(true);
    server.bind(alone, "[::]:7175").unwrap();
    server.with(|state, cm, file| state.listen(cm, file, alone, 0)).unwrap();
    let active = client.resolved(10, Space::Tcp, "192.0.2.1:7175");
    client.connect(active, &wish(17, b"")).unwrap();
    carry(&mut server, &mut client);
    assert_eq!(client.next().what, EventType::Rejected);
}

/// `cma_any_addr` of the kernel: libfabric's servers without an address bind this way.
#[test]
fn loopback_listener_accepts_its_whole_address_family() {
    for (loopback, other) in [("127.0.0.1", "0.0.0.0"), ("127.9.9.9", "192.0.2.1"), ("[::1]", "[::]")] {
        let (mut server, mut client) = sides();
        let id = server.create(1, Space::Tcp);
        let (file, address) = (server.file, format!("{loopback}:7174"));
        server.state.bind(file, id, address.parse().unwrap(), AddressOwner::Host, &RULES).unwrap();
        let bound = server.state.id(file, id).unwrap();
        assert_eq!((bound.source, bound.on_device), (Some(address.parse().unwrap()), false));
        // The port is taken on all addresses.
        let second = server.create(2, Space::Tcp);
        assert_eq!(server.bind(second, &format!("{other}:7174")), Err(libc::EADDRNOTAVAIL), "{other}");
        server.with(|state, cm, file| state.listen(cm, file, id, 0)).unwrap();
        let active = client.resolved(9, Space::Tcp, "192.0.2.1:7174");
        client.connect(active, &wish(17, b"")).unwrap();
        carry(&mut server, &mut client);
        let request = server.next();
        assert_eq!(request.what, EventType::ConnectRequest, "{loopback}");
        // The requested identifier is on the device.
        let request = server.state.id(file, request.handle).unwrap();
        assert_eq!((request.on_device, request.source.unwrap().ip().to_string()), (true, "192.0.2.1".into()));
    }
    let (_, mut side) = sides();
    let (file, id) = (side.file, side.create(1, Space::Tcp));
    // On a device on the loopback interface, a loopback address is an ordinary address.
    side.bind(id, "127.0.0.1:7174").unwrap();
    assert!(side.state.id(file, id).unwrap().on_device);
}

#[test]
fn loopback_destination_stands_for_the_device() {
    let own = ["fe80::1", "192.0.2.1", "198.51.100.1", "fd00::1"].map(|ip| ip.parse().unwrap());
    for (destination, wanted) in [
        ("127.0.0.1", Some("192.0.2.1")),
        ("0.0.0.0", Some("192.0.2.1")),
        ("::1", Some("fd00::1")),
        ("::", Some("fd00::1")),
        ("192.0.2.1", None),
        ("192.0.2.2", None),
    ] {
        let address = own_address(destination.parse().unwrap(), &own);
        assert_eq!(address, wanted.map(|ip| ip.parse().unwrap()), "{destination}");
    }
    let on_loopback = ["127.0.0.1".parse().unwrap()];
    assert_eq!(own_address(on_loopback[0], &on_loopback), None, "the device's own");
    assert_eq!(own_address("::1".parse().unwrap(), &on_loopback), None, "no address of this family");
}

#[test]
fn device_removal_is_reported_once_and_final() {
    let (mut server, mut client) = sides();
    let (passive, _) = connected(&mut server, &mut client);
    server.state.lose_device();
    server.state.lose_device();
    assert_eq!((server.next().what, server.maybe_next()), (EventType::DeviceRemoval, None));
    assert_eq!(server.disconnect(passive), Err(libc::EINVAL));
    assert_eq!(server.destroy(passive), Ok(2));
}

/// As with the kernel, where a call holds the file with which it started.
#[test]
fn blocked_call_does_not_return_on_close() {
    // SAFETY: no descriptor has this number, so nothing is read or written.
    let waiting = std::thread::spawn(|| unsafe { crate::ucma::wait(i32::MAX, std::ptr::null(), 0) });
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!waiting.is_finished());
}
