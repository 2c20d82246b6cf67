//! Routes that rules (`ip rule`) select by the source or the class of packets. Needs root; skips with a message
//! otherwise.

use std::net::IpAddr;

use super::netdev::{SOON, key_from, pair, skip, wait_readable};
use crate::run_in;
use roxie::netdev::{Interface, Links, Neighbours, Reach, RouteKey};

/// A gateway of the main table, one of a rule for a source, and one of a rule for a type of service.
#[test]
fn routes_obey_rules_by_source_and_class() {
    if skip("routes_obey_rules_by_source_and_class") {
        return;
    }
    let (a, _b) = pair("rules");
    let mut links = Links::open_in(&a).unwrap();
    for (family, prefix, source, other) in
        [("-4", "192.0.2.", "192.0.2.1", "192.0.2.3"), ("-6", "2001:db8::", "2001:db8::1", "2001:db8::3")]
    {
        let there = if family == "-4" { "203.0.113.9" } else { "2001:db8:1::9" };
        let gateway = |n: u8| format!("{prefix}{n}").parse::<IpAddr>().unwrap();
        let mac = |n: u8| [2, 7, 7, 7, 7, n];
        (71..74).for_each(|n| links.add_neighbour("left", gateway(n), mac(n)).unwrap());
        run_in(&a, "ip", &format!("{family} addr add {other} dev left"));
        run_in(&a, "ip", &format!("{family} route add {there} via {} dev left", gateway(71)));
        run_in(
            &a,
            "ip",
            &format!("{family} route add {there} via {} dev left table 129 hoplimit 99", gateway(72)),
        );
        run_in(&a, "ip", &format!("{family} route add {there} via {} dev left table 130", gateway(73)));
        run_in(&a, "ip", &format!("{family} rule add from {source} lookup 129"));
        run_in(&a, "ip", &format!("{family} rule add tos 0x10 lookup 130"));

        let interface = a.run(|| Interface::by_name("left")).unwrap().unwrap();
        let neighbours = a.run(|| Neighbours::open(&interface)).unwrap().unwrap();
        let of_class = RouteKey::new(source.parse().unwrap(), there.parse().unwrap(), 0x12);
        let (by_rule, by_main) = (key_from(source, there), key_from(other, there));
        let foreign = key_from(if family == "-4" { "198.51.100.1" } else { "2001:db8:2::1" }, there);
        for (key, n) in [(by_rule, 72), (by_main, 71), (of_class, 73), (foreign, 71)] {
            assert_eq!(neighbours.resolve(&interface, key, SOON).unwrap(), mac(n), "{key:?}");
            assert_eq!(neighbours.resolve_now(&interface, key).unwrap(), Some(mac(n)), "{key:?}");
        }
        assert_eq!(neighbours.followed(), 4);
        let hops = [by_rule, by_main].map(|key| neighbours.hop_limit(&interface, key));
        assert_eq!(hops, [99, 64]);
        neighbours.poll(&interface);
        links.add_neighbour("left", gateway(72), mac(80)).unwrap();
        wait_readable(&neighbours);
        assert_eq!(neighbours.poll(&interface), [(by_rule, mac(80))], "only the path by that gateway");
    }
}

/// The gateway of a rule does not answer, so a reply by sockets has to wait. The main table has no route.
#[test]
fn sockets_wait_for_the_gateway_of_a_rule() {
    if skip("sockets_wait_for_the_gateway_of_a_rule") {
        return;
    }
    let (a, _b) = pair("reach");
    for (family, source, gateway, there) in [
        ("-4", "192.0.2.1", "192.0.2.99", "203.0.113.9"),
        ("-6", "2001:db8::1", "2001:db8::99", "2001:db8:1::9"),
    ] {
        run_in(&a, "ip", &format!("{family} route add {there} via {gateway} dev left table 129"));
        run_in(&a, "ip", &format!("{family} rule add from {source} lookup 129"));
        let interface = a.run(|| Interface::by_name("left")).unwrap().unwrap();
        let reach = a.run(|| Reach::open(interface.index)).unwrap().unwrap();
        assert!(!reach.is_ready(key_from(source, there)));
    }
}
