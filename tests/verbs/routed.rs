//! Two hosts with a router between them.

use std::fs;
use std::process::Command;

use roxie::netdev::{Links, NetNs};

use super::{Running, folder, launcher, ports, skip};
use crate::site::in_time::CommandInTime;

/// TCP port by which the pingpongs exchange addresses.
const PORT: u16 = 18515;

/// Makes two hosts, `left` 192.0.2.1 and `right` 198.51.100.1, and a router between them, .254 in both networks.
/// `add_route` adds a host's route to the other network.
fn network(tag: &str, add_route: impl Fn(&mut Links, &str)) -> [NetNs; 3] {
    let [local, router, remote] = ["a", "r", "b"].map(|end| NetNs::create(&format!("{tag}-{end}")).unwrap());
    let mut between = Links::open_in(&router).unwrap();
    for (host, device, inside, address, gateway) in [
        (&local, "left", "to-left", "192.0.2.1", "192.0.2.254"),
        (&remote, "right", "to-right", "198.51.100.1", "198.51.100.254"),
    ] {
        between.create_veth(inside, host, device, 1).unwrap();
        between.add_address(inside, format!("{gateway}/24").parse().unwrap()).unwrap();
        between.set_up(inside, true).unwrap();
        let mut links = Links::open_in(host).unwrap();
        links.add_address(device, format!("{address}/24").parse().unwrap()).unwrap();
        links.set_up(device, true).unwrap();
        add_route(&mut links, gateway);
    }
    router.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap().unwrap();
    [local, router, remote]
}

/// rdma-core's pingpongs request a hop limit of 1, which a kernel replaces by the route's.
#[test]
fn pingpongs_cross_a_router() {
    let programs = ["ibv_rc_pingpong", "ibv_ud_pingpong"];
    if skip("pingpongs_cross_a_router", &programs) {
        return;
    }
    folder();
    let [local, _router, remote] = network("routed", |links, gateway| {
        links.add_route("0.0.0.0/0".parse().unwrap(), gateway.parse().unwrap()).unwrap();
    });
    for port in ports() {
        for program in programs {
            let command = format!("{program} -g 1 -n 100 -s 500");
            let mut server = Running::start(&local, launcher(&["--dev", "left", "--port", port], &command));
            server.wait_until_it_listens(PORT);
            let command = format!("{command} 192.0.2.1");
            let client =
                Running::start(&remote, launcher(&["--dev", "right", "--port", port], &command)).finish();
            let server = server.finish();
            assert!(client.status.success() && server.status.success(), "{port}: {client:?} {server:?}");
        }
    }
}

/// The route to the other network is in a table for packets from the host's address only.
#[test]
fn rping_obeys_rules_by_source() {
    if skip("rping_obeys_rules_by_source", &["rping"]) {
        return;
    }
    folder();
    let [local, _router, remote] = network("rules", |_, _| {});
    for (host, address, gateway) in
        [(&local, "192.0.2.1", "192.0.2.254"), (&remote, "198.51.100.1", "198.51.100.254")]
    {
        for arguments in [
            format!("route add default via {gateway} table 129"),
            format!("rule add from {address} lookup 129"),
        ] {
            let mut ip = Command::new("ip");
            ip.args(["-n", host.name().unwrap()]).args(arguments.split(' '));
            assert!(ip.status_in_time().unwrap().success(), "{arguments}");
        }
    }
    for port in ports() {
        let server = "rping -s -a 192.0.2.1 -C 3";
        let mut server = Running::start(&local, launcher(&["--dev", "left", "--port", port], server));
        server.wait_until_it_serves();
        let client = "rping -c -a 192.0.2.1 -I 198.51.100.1 -C 3";
        let client = Running::start(&remote, launcher(&["--dev", "right", "--port", port], client)).finish();
        assert!(client.status.success(), "{port}: {client:?}");
        let server = server.finish();
        assert!(server.status.success(), "{port}: {server:?}");
    }
}
