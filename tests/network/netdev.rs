//! Interfaces, namespaces and neighbours of the real kernel. Needs root; skips with a message otherwise.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use crate::in_time::CommandInTime;
use crate::run_in;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roxie::netdev::neighbour::NeighbourError;
use roxie::netdev::{
    Change, IfAddr, Interface, Links, Neighbours, NetNs, NetdevError, Reach, RouteKey, Watch, ethtool,
    interface_names, resolve,
};

/// True if the test cannot run here; prints the reason.
pub(super) fn skip(name: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("SKIP {name}: network namespaces need root");
    }
    !root
}

fn addr(text: &str) -> IfAddr {
    text.parse().unwrap()
}

/// Two namespaces joined by a veth pair `left` (192.0.2.1, 2001:db8::1) - `right` (.2, ::2).
pub(super) fn pair(tag: &str) -> (NetNs, NetNs) {
    let a = NetNs::create(&format!("{tag}-a")).unwrap();
    let b = NetNs::create(&format!("{tag}-b")).unwrap();
    let mut left = Links::open_in(&a).unwrap();
    left.create_veth("left", &b, "right", 1).unwrap();
    let mut right = Links::open_in(&b).unwrap();
    // Disable duplicate address detection, which takes up to two seconds: as long as the kernel solicits a neighbour
    // before it gives up for five. If the file is read-only, the tests are slower.
    for (end, name) in [(&a, "left"), (&b, "right")] {
        let file = format!("/proc/sys/net/ipv6/conf/{name}/accept_dad");
        let _ = end.run(|| std::fs::write(file, "0"));
    }
    for (links, name, v4, v6) in [
        (&mut left, "left", "192.0.2.1/24", "2001:db8::1/64"),
        (&mut right, "right", "192.0.2.2/24", "2001:db8::2/64"),
    ] {
        links.add_address(name, addr(v4)).unwrap();
        links.add_address(name, addr(v6)).unwrap();
        links.set_up(name, true).unwrap();
    }
    (a, b)
}

#[test]
fn veth_pair_is_described() {
    if skip("veth_pair_is_described") {
        return;
    }
    let (a, b) = pair("descr");
    let mut links = Links::open_in(&a).unwrap();
    links.set_mtu("left", 4200).unwrap();
    links.set_mac("left", [2, 0, 0, 0, 0, 1]).unwrap();
    let left = a.run(|| Interface::by_name("left")).unwrap().unwrap();
    assert_eq!((left.mtu, left.mac, left.driver.as_str()), (4200, [2, 0, 0, 0, 0, 1], "veth"));
    assert_eq!((left.up, left.running, left.rx_queues), (true, true, 1));
    assert!(left.has_address("192.0.2.1".parse().unwrap()));
    assert!(left.has_address("2001:db8::1".parse().unwrap()), "{:?}", left.addresses);
    assert_eq!(left.xdp_program, None);
    let right = b.run(|| Interface::by_name("right")).unwrap().unwrap();
    assert_eq!(right.mtu, 1500);
    assert!(b.run(|| Interface::by_name("left")).unwrap().is_err(), "the ends are apart");
}

#[test]
fn receive_queues_in_use_are_counted() {
    if skip("receive_queues_in_use_are_counted") {
        return;
    }
    let a = NetNs::create("queues").unwrap();
    Links::open_in(&a).unwrap().create_veth("left", &a, "right", 2).unwrap();
    assert_eq!(a.run(|| Interface::by_name("left")).unwrap().unwrap().rx_queues, 2);
}

/// veth's values, the same for each kernel since 6.3.
#[test]
fn driver_reports_offloads_and_xdp_features() {
    if skip("driver_reports_offloads_and_xdp_features") {
        return;
    }
    let a = NetNs::create("offers").unwrap();
    Links::open_in(&a).unwrap().create_veth("left", &a, "right", 1).unwrap();
    a.run(|| {
        let index = Interface::by_name("left").unwrap().index;
        let offloads = ethtool::offloads(index).unwrap();
        let name = "tx-udp-segmentation";
        assert!(offloads.is_on(name) && offloads.may_change(name), "{offloads:?}");
        assert!(!offloads.is_on("rx-lro") && !offloads.may_change("rx-lro"), "{offloads:?}");
        match ethtool::xdp_features(index) {
            Ok(features) => assert!(features.is_native() && !features.is_zero_copy(), "{features:?}"),
            Err(told) => assert_eq!(told.raw_os_error(), Some(2), "before 6.3 the kernel has no such family"),
        }
        assert!(ethtool::rx_ring(index).is_err(), "a veth has no rings");
    })
    .unwrap();
}

#[test]
fn namespace_lives_as_long_as_its_value() {
    if skip("namespace_lives_as_long_as_its_value") {
        return;
    }
    let ns = NetNs::create("life").unwrap();
    let path = Path::new("/run/netns").join(ns.name().unwrap());
    assert!(path.exists());
    assert!(!ns.run(interface_names).unwrap().contains(&"eth0".to_owned()));
    let opened = NetNs::open(ns.name().unwrap()).unwrap();
    drop(opened);
    assert!(path.exists(), "dropping a handle from open() keeps the namespace");
    drop(ns);
    assert!(!path.exists());
}

#[test]
fn only_namespaces_of_dead_owners_are_removed() {
    if skip("only_namespaces_of_dead_owners_are_removed") {
        return;
    }
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = child.id();
    child.wait().unwrap();
    let keeper = NetNs::create("keeper").unwrap();
    let namespace_file = Path::new("/run/netns").join(keeper.name().unwrap());
    let orphan = format!("/run/netns/roxie-{dead}-orphan");
    std::fs::write(&orphan, "").unwrap();
    let foreign = format!("/run/netns/roxie-test-{dead}");
    std::fs::write(&foreign, "").unwrap();
    drop(NetNs::create("sweeper").unwrap());
    assert!(!Path::new(&orphan).exists());
    assert!(namespace_file.exists() && Path::new(&foreign).exists());
    std::fs::remove_file(foreign).unwrap();
}

#[test]
fn bridges_and_taps_are_created_and_deleted() {
    if skip("bridges_and_taps_are_created_and_deleted") {
        return;
    }
    let a = NetNs::create("bridge").unwrap();
    let mut links = Links::open_in(&a).unwrap();
    links.create_bridge("br0").unwrap();
    links.create_tap("tap0").unwrap();
    links.create_veth("v0", &a, "v1", 1).unwrap();
    links.set_bridge("tap0", "br0").unwrap();
    links.set_bridge("v0", "br0").unwrap();
    let interface = |name| a.run(|| Interface::by_name(name)).unwrap().unwrap();
    assert_eq!((interface("br0").driver.as_str(), interface("tap0").driver.as_str()), ("bridge", "tun"));
    links.delete("tap0").unwrap();
    assert!(!a.run(interface_names).unwrap().contains(&"tap0".to_owned()));
    let e = links.delete("tap0").unwrap_err();
    assert!(matches!(&e, NetdevError::NoSuchInterface { existing, .. } if existing.contains("br0")), "{e}");
}

/// Returns the changes, without link-local addresses, which the kernel adds by itself.
fn changes_of(watch: &mut Watch) -> Vec<Change> {
    let own = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut changes = watch.poll().unwrap();
    changes.retain(|c| !matches!(c, Change::AddressAdded(a) | Change::AddressRemoved(a) if own(&a.ip)));
    changes
}

/// Waits for the next changes and returns them.
fn next(watch: &mut Watch) -> Vec<Change> {
    loop {
        let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(5000u16)).unwrap(), 1, "nothing happened");
        let changes = changes_of(watch);
        if !changes.is_empty() {
            return changes;
        }
    }
}

#[test]
fn watch_reports_each_change_once() {
    if skip("watch_reports_each_change_once") {
        return;
    }
    let (a, b) = pair("watch");
    let mut watch = a.run(|| Watch::new(&Interface::by_name("left").unwrap()).unwrap()).unwrap();
    changes_of(&mut watch);
    let mut links = Links::open_in(&a).unwrap();

    links.add_address("left", addr("198.51.100.7/24")).unwrap();
    let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::from(1000u16)).unwrap(), 1, "the descriptor wakes us");
    assert_eq!(changes_of(&mut watch), [Change::AddressAdded(addr("198.51.100.7/24"))]);
    assert_eq!(changes_of(&mut watch), [], "told once");
    let mut quiet = || {
        watch.poll().unwrap();
        poll(&mut [PollFd::new(watch.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 0
    };
    assert!((0..100).any(|_| quiet()), "reading quietens the descriptor");

    links.set_mtu("left", 2000).unwrap();
    links.delete_address("left", addr("198.51.100.7/24")).unwrap();
    assert_eq!(changes_of(&mut watch), [Change::Mtu(2000), Change::AddressRemoved(addr("198.51.100.7/24"))]);

    let mut remote = Links::open_in(&b).unwrap();
    remote.set_up("right", false).unwrap();
    // The kernel reports a lost carrier up to a second later (linkwatch).
    assert_eq!(next(&mut watch), [Change::LinkDown], "no carrier while the peer is down");
    remote.set_up("right", true).unwrap();
    assert_eq!(next(&mut watch), [Change::LinkUp]);

    remote.delete("right").unwrap();
    assert_eq!(next(&mut watch), [Change::Gone]);
    assert_eq!(changes_of(&mut watch), []);
}

/// Returns the station address of an interface.
fn mac(ns: &NetNs, name: &str) -> [u8; 6] {
    ns.run(|| Interface::by_name(name)).unwrap().unwrap().mac
}

/// Resolves an address from `left`.
fn from_left(a: &NetNs, ip: &str, timeout: Duration) -> Result<[u8; 6], NeighbourError> {
    a.run(|| resolve(&Interface::by_name("left").unwrap(), key(ip), timeout)).unwrap()
}

/// Returns the key of the route from the address of `left`.
fn key(destination: &str) -> RouteKey {
    key_from(if destination.contains(':') { "2001:db8::1" } else { "192.0.2.1" }, destination)
}

pub(super) fn key_from(source: &str, destination: &str) -> RouteKey {
    RouteKey::new(source.parse().unwrap(), destination.parse().unwrap(), 0)
}

pub(super) const SOON: Duration = Duration::from_secs(5);

/// True if the kernel manages a neighbour entry in `ns`.
fn is_managed(ns: &NetNs, ip: &str) -> bool {
    let shown =
        std::process::Command::new("ip").args(["-n", ns.name().unwrap(), "neigh", "show"]).output_in_time();
    let out = shown.expect("the ip command of iproute2, to look at the table from outside");
    let table = String::from_utf8(out.stdout).unwrap();
    table.lines().any(|l| l.starts_with(&format!("{ip} ")) && l.contains("managed"))
}

#[test]
fn neighbours_are_kept_until_dropped() {
    if skip("neighbours_are_kept_until_dropped") {
        return;
    }
    let (a, b) = pair("neigh");
    let right = mac(&b, "right");
    let left = a.run(|| Interface::by_name("left")).unwrap().unwrap();
    let open = || a.run(|| Neighbours::open(&left)).unwrap().unwrap();
    let neighbours = open();
    let resolve = |ip: &str, timeout| neighbours.resolve(&left, key(ip), timeout).unwrap();
    assert_eq!(resolve("192.0.2.2", SOON), right, "ARP");
    assert_eq!(resolve("2001:db8::2", SOON), right, "neighbour discovery");
    // The neighbour is known: no wait is needed.
    assert_eq!(resolve("192.0.2.2", Duration::ZERO), right);
    assert!(is_managed(&a, "192.0.2.2") && is_managed(&a, "2001:db8::2"));

    // An entry that another user has requested stays.
    let others = open();
    others.resolve(&left, key("192.0.2.2"), SOON).unwrap();
    drop(others);
    assert!(is_managed(&a, "192.0.2.2"));
    drop(neighbours);
    assert!(!is_managed(&a, "192.0.2.2") && !is_managed(&a, "2001:db8::2"));
}

/// An interface gets its link-local address one or two seconds after it comes up. Until then the kernel solicits no
/// neighbour by itself.
#[test]
fn neighbours_are_found_without_link_local_address() {
    if skip("neighbours_are_found_without_link_local_address") {
        return;
    }
    let (a, b) = pair("young");
    run_in(&a, "ip", "-6 addr flush dev left scope link");
    let left = a.run(|| Interface::by_name("left")).unwrap().unwrap();
    assert!(left.addresses.iter().all(|address| !address.ip.to_string().starts_with("fe80")), "{left:?}");
    let there = key("2001:db8::2");
    let reach = a.run(|| Reach::open(left.index)).unwrap().unwrap();
    let until = std::time::Instant::now() + SOON;
    while !reach.is_ready(there) {
        assert!(std::time::Instant::now() < until, "by sockets");
        std::thread::sleep(Duration::from_millis(1));
    }
    run_in(&a, "ip", "neigh flush dev left");
    let neighbours = a.run(|| Neighbours::open(&left)).unwrap().unwrap();
    assert_eq!(neighbours.resolve(&left, there, SOON).unwrap(), mac(&b, "right"));
}

#[test]
fn silent_neighbour_is_not_kept() {
    if skip("silent_neighbour_is_not_kept") {
        return;
    }
    let (a, _b) = pair("nobody");
    let left = a.run(|| Interface::by_name("left")).unwrap().unwrap();
    let neighbours = a.run(|| Neighbours::open(&left)).unwrap().unwrap();
    let silent = neighbours.resolve(&left, key("192.0.2.99"), Duration::from_millis(20));
    assert!(matches!(silent, Err(NeighbourError::Unanswered { .. })), "{silent:?}");
    assert!(!is_managed(&a, "192.0.2.99"));
}

#[test]
fn asynchronous_resolution_succeeds_or_times_out() {
    if skip("asynchronous_resolution_succeeds_or_times_out") {
        return;
    }
    let (a, b) = pair("stranger");
    let right = mac(&b, "right");
    let left = a.run(|| Interface::by_name("left")).unwrap().unwrap();
    let neighbours = a.run(|| Neighbours::open(&left)).unwrap().unwrap();
    let now = |text: &str| neighbours.resolve_now(&left, key(text)).unwrap();
    let until = std::time::Instant::now() + SOON;
    for there in ["192.0.2.2", "2001:db8::2"] {
        while now(there) != Some(right) {
            assert!(std::time::Instant::now() < until, "{there}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!((now("192.0.2.99"), now("192.0.2.99"), now("192.0.2.98")), (None, None, None));
    assert!(is_managed(&a, "192.0.2.99") && is_managed(&a, "192.0.2.98"));
    neighbours.give_up(&left, key("192.0.2.99"));
    assert!(!is_managed(&a, "192.0.2.99") && is_managed(&a, "192.0.2.2"));
    drop(neighbours);
    for none in ["192.0.2.98", "192.0.2.2", "2001:db8::2"] {
        assert!(!is_managed(&a, none), "{none}");
    }
}

#[test]
fn unsolicited_neighbours_are_bounded() {
    if skip("unsolicited_neighbours_are_bounded") {
        return;
    }
    let (a, _b) = pair("bound");
    let left = a.run(|| Interface::by_name("left")).unwrap().unwrap();
    let neighbours = a.run(|| Neighbours::open(&left)).unwrap().unwrap();
    let mut links = Links::open_in(&a).unwrap();
    let ip = |text: String| text.parse::<IpAddr>().unwrap();
    for station in [71, 72] {
        links.add_neighbour("left", ip(format!("192.0.2.{station}")), [2, 7, 7, 7, 7, station]).unwrap();
    }
    links.add_route("198.18.0.0/15".parse().unwrap(), ip("192.0.2.71".into())).unwrap();
    neighbours.resolve(&left, key("192.0.2.72"), SOON).unwrap();
    for host in 0..1500 {
        let unknown_host = key(&format!("198.18.{}.{}", host / 250, host % 250 + 1));
        assert_eq!(neighbours.resolve_now(&left, unknown_host).unwrap(), Some([2, 7, 7, 7, 7, 71]));
    }
    assert_eq!(neighbours.followed(), 1 + 1024);
    neighbours.poll(&left);
    // The latest of them are followed, and the requested one.
    for station in [71, 72] {
        links.add_neighbour("left", ip(format!("192.0.2.{station}")), [2, 8, 8, 8, 8, station]).unwrap();
    }
    let (mut moved, until) = (Vec::new(), std::time::Instant::now() + SOON);
    while moved.len() < 1025 {
        assert!(std::time::Instant::now() < until, "{} moved", moved.len());
        wait_readable(&neighbours);
        moved.extend(neighbours.poll(&left));
    }
    assert!(moved.contains(&(key("192.0.2.72"), [2, 8, 8, 8, 8, 72])));
    assert!(moved.contains(&(key("198.18.5.250"), [2, 8, 8, 8, 8, 71])));
}

#[test]
fn neighbour_changes_are_followed() {
    if skip("neighbour_changes_are_followed") {
        return;
    }
    let (a, _b) = pair("moved");
    let mut links = Links::open_in(&a).unwrap();
    links.add_neighbour("left", "192.0.2.77".parse().unwrap(), [2, 7, 7, 7, 7, 7]).unwrap();
    let left = a.run(|| Interface::by_name("left")).unwrap().unwrap();
    let neighbours = a.run(|| Neighbours::open(&left)).unwrap().unwrap();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    neighbours.resolve(&left, key("192.0.2.77"), SOON).unwrap();
    neighbours.resolve(&left, key("192.0.2.2"), SOON).unwrap();
    neighbours.poll(&left);
    assert!(neighbours.poll(&left).is_empty(), "nothing is new");

    links.add_neighbour("left", ip("192.0.2.77"), [2, 8, 8, 8, 8, 8]).unwrap();
    wait_readable(&neighbours);
    assert_eq!(neighbours.poll(&left), [(key("192.0.2.77"), [2, 8, 8, 8, 8, 8])]);

    run_in(&a, "ip", "neigh del 192.0.2.2 dev left");
    assert!(!is_managed(&a, "192.0.2.2"));
    wait_readable(&neighbours);
    neighbours.poll(&left);
    assert!(is_managed(&a, "192.0.2.2"), "it is asked for again");
    drop(neighbours);
    assert!(!is_managed(&a, "192.0.2.2"));
}

pub(super) fn wait_readable(what: &impl AsFd) {
    let mut fds = [PollFd::new(what.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::from(5000u16)).unwrap(), 1, "the kernel tells");
}

#[test]
fn own_multicast_and_broadcast_addresses_need_no_neighbour() {
    if skip("own_multicast_and_broadcast_addresses_need_no_neighbour") {
        return;
    }
    let (a, _b) = pair("rule");
    let own = mac(&a, "left");
    let now = |ip| from_left(&a, ip, Duration::ZERO).unwrap();
    assert_eq!((now("192.0.2.1"), now("2001:db8::1")), (own, own));
    assert_eq!(now("192.0.2.255"), [0xff; 6]);
    assert_eq!(now("224.0.0.1"), [1, 0, 0x5e, 0, 0, 1]);
}

#[test]
fn routed_addresses_resolve_to_the_gateway() {
    if skip("routed_addresses_resolve_to_the_gateway") {
        return;
    }
    let (a, b) = pair("gateway");
    let mut links = Links::open_in(&a).unwrap();
    links.add_route(addr("203.0.113.0/24"), "192.0.2.2".parse().unwrap()).unwrap();
    assert_eq!(from_left(&a, "203.0.113.9", SOON).unwrap(), mac(&b, "right"));
    let e = from_left(&a, "2001:db8:1::9", SOON).unwrap_err();
    assert!(matches!(e, NeighbourError::NoRoute { .. }), "{e}");
}

#[test]
fn route_interface_or_namespace_sets_the_hop_limit() {
    if skip("route_interface_or_namespace_sets_the_hop_limit") {
        return;
    }
    let (a, _b) = pair("hops");
    let set = |file: &str, hops: &str| a.run(|| std::fs::write(file, hops)).unwrap().unwrap();
    set("/proc/sys/net/ipv4/ip_default_ttl", "70");
    set("/proc/sys/net/ipv6/conf/left/hop_limit", "80");
    for (family, destination, gateway) in
        [("-4", "203.0.113.0/24", "192.0.2.2"), ("-6", "2001:db8:1::/64", "2001:db8::2")]
    {
        run_in(&a, "ip", &format!("{family} route add {destination} via {gateway} hoplimit 99"));
    }
    let hops = |destination: &str| {
        a.run(|| {
            let left = Interface::by_name("left").unwrap();
            Neighbours::open(&left).unwrap().hop_limit(&left, key(destination))
        })
        .unwrap()
    };
    let limits = ["192.0.2.2", "203.0.113.9", "2001:db8::2", "2001:db8:1::9"].map(hops);
    assert_eq!(limits, [70, 99, 80, 99]);
}

#[test]
fn permanent_neighbours_are_left_unchanged() {
    if skip("permanent_neighbours_are_left_unchanged") {
        return;
    }
    let (a, _b) = pair("perm");
    let mut links = Links::open_in(&a).unwrap();
    links.add_neighbour("left", "192.0.2.77".parse().unwrap(), [2, 7, 7, 7, 7, 7]).unwrap();
    assert_eq!(from_left(&a, "192.0.2.77", Duration::ZERO).unwrap(), [2, 7, 7, 7, 7, 7]);
    assert_eq!(from_left(&a, "192.0.2.77", Duration::ZERO).unwrap(), [2, 7, 7, 7, 7, 7]);
}

#[test]
fn silent_neighbour_differs_from_link_down() {
    if skip("silent_neighbour_differs_from_link_down") {
        return;
    }
    let (a, b) = pair("silent");
    let e = from_left(&a, "192.0.2.99", Duration::from_millis(60)).unwrap_err();
    assert!(matches!(e, NeighbourError::Unanswered { waited_ms: 60.., .. }), "{e}");
    assert!(e.to_string().contains("192.0.2.99") && e.to_string().contains("left"), "{e}");
    Links::open_in(&b).unwrap().set_up("right", false).unwrap();
    let e = from_left(&a, "192.0.2.98", SOON).unwrap_err();
    assert!(matches!(e, NeighbourError::LinkDown { .. }), "{e}");
}

#[test]
fn watch_reports_deletion_once() {
    if skip("watch_reports_deletion_once") {
        return;
    }
    let (a, _b) = pair("quiet");
    let mut watch = a.run(|| Watch::new(&Interface::by_name("left").unwrap()).unwrap()).unwrap();
    watch.poll().unwrap();
    let mut links = Links::open_in(&a).unwrap();
    links.delete("left").unwrap();
    wait_readable(&watch);
    assert_eq!(watch.poll().unwrap(), [Change::Gone]);
    // Events of other links arrive at the same socket.
    links.create_bridge("other").unwrap();
    wait_readable(&watch);
    assert!(watch.poll().unwrap().is_empty());
    let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::ZERO).unwrap(), 0, "it does not stay readable");
}

#[test]
fn names_without_lock_holder_are_stale() {
    if skip("names_without_lock_holder_are_stale") {
        return;
    }
    with_names_of_its_own(|| {
        // Process 1 lives, but did not create this namespace; 4194305 is above any PID, as if from another PID
        // namespace.
        let (left_over, foreign) = ("roxie-1-left-over", "roxie-4194305-foreign");
        for name in [left_over, foreign] {
            let added = std::process::Command::new("ip").args(["netns", "add", name]).status_in_time();
            assert!(added.expect("iproute2").success());
        }
        let exists = |name: &str| Path::new("/run/netns").join(name).exists();
        let held = std::fs::File::open(Path::new("/run/netns").join(foreign)).unwrap();
        let held = nix::fcntl::Flock::lock(held, nix::fcntl::FlockArg::LockExclusiveNonblock).unwrap();
        let made = NetNs::create("stale").unwrap();
        assert!(!exists(left_over), "removed");
        assert!(exists(foreign), "it is in use");
        drop(held);
        let _again = NetNs::create("stale-2").unwrap();
        assert!(!exists(foreign), "removed once its owner is gone");
        assert!(exists(made.name().unwrap()), "ours lives");
    });
}

/// Runs `test` in a mount namespace with an empty folder of names, from which no other test removes one.
fn with_names_of_its_own(test: impl FnOnce() + Send) {
    std::fs::create_dir_all("/run/netns").unwrap();
    let isolated = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some("tmpfs"), "/run/netns", Some("tmpfs"), MsFlags::empty(), none).unwrap();
        test();
    };
    let run = std::thread::scope(|scope| scope.spawn(isolated).join());
    run.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn namespace_is_entered_only_from_outside() {
    if skip("namespace_is_entered_only_from_outside") {
        return;
    }
    let thread = || std::thread::current().id();
    let own = NetNs::current().unwrap();
    assert!(own.is_current().unwrap());
    assert_eq!(own.run(thread).unwrap(), thread(), "no other thread, no privilege");
    let other = NetNs::unnamed().unwrap();
    assert!(!other.is_current().unwrap());
    assert_ne!(other.run(thread).unwrap(), thread());
}
