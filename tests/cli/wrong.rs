//! Faults around a device: each gets one clear error and leaves nothing behind.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use roxie::netdev::Links;

use crate::network::Net;
use crate::{A, Running};

#[test]
fn invalid_devices_are_refused_and_left_unchanged() {
    let Some(net) = Net::new("wrong") else { return };
    for port in ["xdp", "packet", "udp"] {
        let pingpong = format!("pingpong rc --port {port}");
        net.left(&format!("{pingpong} --dev right")).failed(3, &["\"right\"", "there are: ", "left"]);
        net.left(&format!("{pingpong} -g 9")).failed(2, &["no GID at index 9", "1: ::ffff:192.0.2.1"]);
        net.left(&format!("{pingpong} -m 4096")).failed(
            2,
            &["path MTU 4096 does not fit", "link MTU of left is 1500", "4184", "that fits is 1024"],
        );
        net.left(&format!("perf send bw --port {port} -m 2048")).failed(2, &["path MTU 2048 does not fit"]);
        net.left(&format!("{pingpong} 192.0.2.2"))
            .failed(4, &["cannot connect to TCP port 18515 of 192.0.2.2", "Start the server there first"]);
        net.left(&format!("perf send bw --floor --port {port} -g 7"))
            .failed(2, &["left has no GID at index 7", "1: ::ffff:192.0.2.1"]);
        net.left(&format!("show counters --open --port {port} --address 8.8.8.8"))
            .failed(2, &["--address 8.8.8.8", "left does not have it; it has 192.0.2.1/24"]);
        net.left(&format!("{pingpong} no.such.name.invalid")).failed(4, &["no.such.name.invalid"]);
        net.is_clean();
    }
}

#[test]
fn busy_tcp_port_is_reported_before_opening() {
    let Some(net) = Net::new("wrong-tcp") else { return };
    let _taken = net.a.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 18515))).unwrap().unwrap();
    net.left("pingpong rc").failed(2, &["TCP port 18515 is in use", "ss -tlnp", "-p"]);
    net.is_clean();
}

#[test]
fn busy_interface_names_its_holder() {
    let Some(net) = Net::new("wrong-busy") else { return };
    let mut first = net.serve("pingpong rc --port xdp");
    let own = format!("(pid {})", first.child.id());
    net.left("pingpong rc --port xdp -p 2000").failed(3, &["already has an XDP program", &own]);
    let refused = net.left("show device --open --port xdp");
    assert!(!refused.stderr.contains("xdp off"), "a held program cannot be detached: {refused:#?}");
    let shown = net.left("show device --dev left").succeeded();
    assert!(shown.stdout.contains("claimed") && shown.stdout.contains(&own), "{shown:#?}");
    first.kill();
    first.finish().was_killed();
    // Roxie's programs share the sockets' port with one another, but with no other program.
    let taken = net.a.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 4791))).unwrap().unwrap();
    let own = format!("process {}", std::process::id());
    net.left("pingpong rc --port udp -p 2000").failed(3, &["UDP port 4791", "is taken", &own]);
    net.left("pingpong rc --port packet -p 2000").failed(3, &["UDP port 4791 of left is taken", &own]);
    drop(taken);
    let servers = [18515, 2000].map(|tcp| net.serve(&format!("pingpong rc --port udp -p {tcp}")));
    let shown = net.left("show processes --json").succeeded();
    let shown_json: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let pids: Vec<_> = shown_json["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|process| process["pid"].as_u64())
        .collect();
    assert_eq!(pids, servers.each_ref().map(|server| Some(u64::from(server.child.id()))));
    let doctor = net.left("doctor --dev left --json");
    assert!(doctor.stdout.contains("\"verdict\"") && !doctor.stdout.contains("port-taken"), "{doctor:#?}");
    let shown = net.left("show processes").succeeded();
    assert!(shown.stdout.contains("00xxxx") && shown.stdout.contains("01xxxx"), "{shown:#?}");
    for (tcp, server) in [18515, 2000].into_iter().zip(servers) {
        net.right(&format!("pingpong rc --port udp -p {tcp} 192.0.2.1")).succeeded();
        server.finish().succeeded();
    }
    let nobody = net.left("show processes").succeeded();
    assert!(nobody.stdout.contains("no process"), "{nobody:#?}");
    net.is_clean();
}

#[test]
fn down_or_ambiguous_interface_is_reported() {
    let Some(net) = Net::new("wrong-down") else { return };
    let mut links = Links::open_in(&net.a).unwrap();
    links.create_veth("third", &net.b, "fourth", 1).unwrap();
    links.add_address("third", "198.51.100.1/24".parse().unwrap()).unwrap();
    net.left("pingpong rc").failed(2, &["which interface?", "left (192.0.2.1/24", "third (198.51.100.1/24"]);
    net.left("pingpong rc --dev third").failed(3, &["third is down", "ip link set dev third up"]);
    net.right("pingpong rc --dev fourth")
        .failed(3, &["fourth has no IP address", "ip addr add", "ip link set dev fourth up"]);
}

/// Returns a command that runs a copy of the binary as an unprivileged user.
fn unprivileged(folder: &tempfile::TempDir, arguments: &str) -> Command {
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = folder.path().join("roxie");
    if !binary.exists() {
        crate::in_time::copy_program(env!("CARGO_BIN_EXE_roxie"), &binary);
    }
    let mut command = Command::new(binary);
    command.args(arguments.split_whitespace()).uid(65_534).gid(65_534);
    command
}

#[test]
fn unprivileged_run_falls_back_to_udp() {
    let Some(net) = Net::new("wrong-user") else { return };
    let folder = tempfile::tempdir().unwrap();
    let start = |arguments| net.a.run(|| Running::start(unprivileged(&folder, arguments))).unwrap();
    start("pingpong rc --port udp -p 80")
        .finish()
        .failed(2, &["TCP port 80", "as those below 1024 here", "higher one with -p"]);
    start("pingpong rc --port packet").finish().failed(3, &["not permitted", "CAP_NET_RAW", "udp port"]);
    start("pingpong rc --port xdp").finish().failed(3, &["not permitted", "CAP_NET_RAW", "udp port"]);
    let shown = start("show device --dev left").finish().succeeded();
    assert!(shown.stdout.contains("lacks CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF"), "{shown:#?}");

    let mut server = start("pingpong rc -n 20");
    server.wait_for("using UDP sockets on left, since AF_XDP did not open");
    server.wait_for("waiting for a peer");
    net.right(&format!("pingpong rc -n 20 {A}")).succeeded();
    server.finish().succeeded();
}

#[test]
fn show_predicts_the_result_of_opening() {
    let Some(net) = Net::new("show") else { return };
    let shown = net.left("show device --dev left --json").succeeded().json();
    let interface = &shown[0]["interfaces"][0];
    assert_eq!(
        (&interface["driver"], &interface["mtu"], &interface["path_mtu"]),
        (&"veth".into(), &1500.into(), &1024.into())
    );
    assert_eq!(
        (&interface["xdp_program"], &interface["addresses"][0]),
        (&serde_json::Value::Null, &"192.0.2.1/24".into())
    );
    let opened = net.left("show device --open --port udp --json").succeeded().json();
    assert_eq!((&opened[0]["interface"], &opened[0]["path_mtu"]), (&"left".into(), &1024.into()));
    let opened = net.left("show device --open --no-gso --json").succeeded().json();
    assert!(opened[0]["port"].as_str().unwrap().contains("udp"), "--no-gso chooses the port: {}", opened[0]);
    // No veth supports zero-copy, and an explicit mode does not fall back to sockets.
    net.left("show device --open --mode zero-copy").failed(3, &["cannot open left through AF_XDP"]);
    net.left("show gids --address 8.8.8.8").failed(2, &["--address 8.8.8.8", "left does not have it"]);
    let own = net.left("show gids --address 2001:db8::1 --json").succeeded().json();
    assert_eq!(own[0]["gids"][0]["gid"], "2001:db8::1");
    let gids = net.left("show gids --json").succeeded().json();
    let gid = &gids[0]["gids"][1];
    assert_eq!((&gid["index"], &gid["gid"]), (&1.into(), &"::ffff:192.0.2.1".into()));
    assert!(gid["place"].as_str().unwrap().contains("first IPv4"), "{gids:?}");
    net.is_clean();
}
