//! Frames of other protocols: perftest's `raw_ethernet_*` over raw packet QPs and flows.

use roxie::netdev::{Interface, NetNs};

use super::{Running, Site, descendants, skip};

/// Clock ticks, 10 ms each, that a server has been busy when it has long been polling.
const POLLING: u64 = 50;

fn station(namespace: &NetNs, interface: &str) -> String {
    let mac = namespace.run(|| Interface::by_name(interface)).unwrap().unwrap().mac;
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl Running {
    /// These servers say nothing before their end and listen to no port: until they have done nothing but poll for a while.
    fn wait_until_it_polls(&mut self) {
        let busy = |pid: u32| -> u64 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // Behind the name in parentheses: the state, ten numbers, then user and system time.
            let behind = stat.rsplit(')').next().unwrap_or_default();
            behind.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
        };
        self.wait_until("polling", |pid| descendants(pid).into_iter().map(busy).sum::<u64>() > POLLING);
    }
}

/// A server and a client of `program`, with the same options.
fn play(site: &Site, program: &str, options: &str) -> (String, String) {
    let (near, far) = (station(&site.near, "left"), station(&site.far, "right"));
    let mut server = site.near("xdp", &format!("{program} --server -B {near} -E {far} {options}"));
    server.wait_until_it_polls();
    let client = site.far("xdp", &format!("{program} --client -B {far} -E {near} {options}")).finish();
    let server = server.finish();
    let told = format!("{program} {options}\nclient: {client:?}\nserver: {server:?}");
    assert!(client.status.success() && server.status.success(), "{told}");
    (client.said, server.said)
}

/// The second number of the line that begins with the size: how many there were.
fn iterations(said: &str, size: &str) -> u64 {
    let rows = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row =
        rows.into_iter().find(|row| row.first() == Some(&size)).unwrap_or_else(|| panic!("no row: {said}"));
    row[1].parse().unwrap_or_else(|_| panic!("no number: {said}"))
}

#[test]
fn raw_packets_are_measured_with_several_headers() {
    let name = "raw_packets_are_measured_with_several_headers";
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
fn sockets_carry_no_raw_packets_and_say_so() {
    let name = "sockets_carry_no_raw_packets_and_say_so";
    if skip(name, &["raw_ethernet_bw"]) {
        return;
    }
    let site = Site::new("raw-udp");
    let program = "raw_ethernet_bw --server -B 02:00:00:00:00:01 -E 02:00:00:00:00:02 -D 1";
    let ended = site.near("udp", program).finish();
    assert!(!ended.status.success(), "{ended:?}");
    assert!(ended.said.contains("raw packet QPs: AF_XDP (--port xdp) has them"), "{ended:?}");
}
