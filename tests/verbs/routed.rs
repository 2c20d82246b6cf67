//! Two hosts with a router between them.

use std::fs;

use roxie::netdev::{Links, NetNs};

use super::{Running, folder, launcher, ports, skip};

/// TCP port by which the pingpongs exchange addresses.
const PORT: u16 = 18515;

/// rdma-core's pingpongs request a hop limit of 1, which a kernel replaces by the route's.
#[test]
fn pingpongs_cross_a_router() {
    let programs = ["ibv_rc_pingpong", "ibv_ud_pingpong"];
    if skip("pingpongs_cross_a_router", &programs) {
        return;
    }
    folder();
    let [near, router, far] = ["a", "r", "b"].map(|end| NetNs::create(&format!("routed-{end}")).unwrap());
    let mut between = Links::open_in(&router).unwrap();
    for (host, device, inside, address, gateway) in [
        (&near, "left", "to-left", "192.0.2.1", "192.0.2.254"),
        (&far, "right", "to-right", "198.51.100.1", "198.51.100.254"),
    ] {
        between.create_veth(inside, host, device, 1).unwrap();
        between.add_address(inside, format!("{gateway}/24").parse().unwrap()).unwrap();
        between.set_up(inside, true).unwrap();
        let mut links = Links::open_in(host).unwrap();
        links.add_address(device, format!("{address}/24").parse().unwrap()).unwrap();
        links.set_up(device, true).unwrap();
        links.add_route("0.0.0.0/0".parse().unwrap(), gateway.parse().unwrap()).unwrap();
    }
    router.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap().unwrap();
    for port in ports() {
        for program in programs {
            let command = format!("{program} -g 1 -n 100 -s 500");
            let mut server = Running::start(&near, launcher(&["--dev", "left", "--port", port], &command));
            server.wait_until_it_listens(PORT);
            let command = format!("{command} 192.0.2.1");
            let client =
                Running::start(&far, launcher(&["--dev", "right", "--port", port], &command)).finish();
            let server = server.finish();
            assert!(client.status.success() && server.status.success(), "{port}: {client:?} {server:?}");
        }
    }
}
