//! Frames of other protocols: perftest's `raw_ethernet_*` over raw packet QPs and flows.

use roxie::netdev::{Interface, NetNs};

use aya::maps::{Array, Map, MapData, loaded_maps};

use super::{Site, compiled, skip};

fn station(namespace: &NetNs, interface: &str) -> String {
    let mac = namespace.run(|| Interface::by_name(interface)).unwrap().unwrap().mac;
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// True if a device has a flow in force. Only one test at a time has devices.
fn some_flow_is_in_force() -> bool {
    let maps = loaded_maps().flatten().filter(|map| map.name_as_str() == Some("flows_in_force"));
    maps.filter_map(|map| MapData::from_id(map.id()).ok()).any(|data| {
        let set = Array::<_, [u16; 2]>::try_from(Map::Array(data)).and_then(|array| array.get(&0, 0));
        set.is_ok_and(|[_, count]| count > 0)
    })
}

/// Runs a server and a client of `program` with the same options.
fn play(site: &Site, program: &str, options: &str) -> (String, String) {
    let (local, remote) = (station(&site.local, "left"), station(&site.remote, "right"));
    let mut server = site.local("xdp", &format!("{program} --server -B {local} -E {remote} {options}"));
    // The programs print nothing before their end, and listen to no port.
    server.wait_until("steering", |_| some_flow_is_in_force());
    let client = site.remote("xdp", &format!("{program} --client -B {remote} -E {local} {options}")).finish();
    let server = server.finish();
    let context = format!("{program} {options}\nclient: {client:?}\nserver: {server:?}");
    assert!(client.status.success() && server.status.success(), "{context}");
    (client.output, server.output)
}

/// Returns the second number of the row for the size: the iterations.
fn iterations(said: &str, size: &str) -> u64 {
    let rows = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row =
        rows.into_iter().find(|row| row.first() == Some(&size)).unwrap_or_else(|| panic!("no row: {said}"));
    row[1].parse().unwrap_or_else(|_| panic!("no number: {said}"))
}

#[test]
fn raw_packets_are_measured() {
    let name = "raw_packets_are_measured";
    if skip(name, &["raw_ethernet_bw", "raw_ethernet_lat"]) {
        return;
    }
    let site = Site::new("raw");
    let udp = "-J 192.0.2.1 -j 192.0.2.2 -K 7000 -k 7001";
    let tcp = "--tcp --raw_ipv6 -J fd00::1 -j fd00::2 -K 7000 -k 7001";
    for headers in ["", udp, tcp] {
        let (client, server) = play(&site, "raw_ethernet_bw", &format!("-D 1 -s 500 {headers}"));
        let (sent, received) = (iterations(&client, "500"), iterations(&server, "500"));
        assert!(sent > 0 && received > 0, "{headers}: {sent} were sent and {received} received");
    }
    for headers in ["", udp] {
        play(&site, "raw_ethernet_lat", &format!("-n 100 -s 100 {headers}"));
    }
}

#[test]
fn flows_and_queues_are_destroyed_in_order() {
    let name = "flows_and_queues_are_destroyed_in_order";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("raw_queues", &["-libverbs"]);
    let site = Site::new("raw-queues");
    let ended = site.local("xdp", &program.to_string_lossy()).finish();
    assert!(ended.status.success() && ended.output.contains("all so"), "{ended:?}");
}

#[test]
fn sockets_refuse_raw_packets() {
    let name = "sockets_refuse_raw_packets";
    if skip(name, &["raw_ethernet_bw"]) {
        return;
    }
    let site = Site::new("raw-udp");
    let program = "raw_ethernet_bw --server -B 02:00:00:00:00:01 -E 02:00:00:00:00:02 -D 1";
    let ended = site.local("udp", program).finish();
    assert!(!ended.status.success(), "{ended:?}");
    assert!(ended.output.contains("raw packet QPs: AF_XDP (--port xdp) has them"), "{ended:?}");
}
