//! `roxie perf` between two namespaces.

use std::io::Write;
use std::net::TcpStream;

use roxie::netdev::Links;

use crate::network::Net;
use crate::{A, A4};

/// Counter of the server's NIC that increases for each message, by operation.
const COUNTED: [(&str, &str); 4] = [
    ("send", "rdma_recvs"),
    ("write", "rx_write_requests"),
    ("read", "rx_read_requests"),
    ("atomic", "rx_atomic_requests"),
];

#[test]
fn perf_measures_every_operation_over_both_ports() {
    let Some(net) = Net::new("perf") else { return };
    for port in ["xdp", "packet", "udp"] {
        for (operation, counted) in COUNTED {
            let command = format!("perf {operation} bw --port {port} --json");
            let (server, client) = net.both(&command, &format!("{command} -n 200 -q 2 -t 16"));
            let (server, row) = (server.succeeded().json(), &client.succeeded().json()[0]);
            assert_eq!((&row["messages"], &row["path_mtu"]), (&200.into(), &1024.into()), "{row}");
            assert_eq!(row["server_counters"][counted], 200, "{row}");
            assert!(row["gbit_per_second"].as_f64().unwrap() > 0.0, "{row}");
            assert_eq!((&server[0]["role"], &server[0]["messages"]), (&"server".into(), &200.into()));

            let command = format!("perf {operation} lat --port {port} --json");
            let (server, client) = net.both(&command, &format!("{command} -n 50"));
            server.succeeded();
            let row = &client.succeeded().json()[0];
            assert_eq!(row["latency_ns"]["count"], 50, "{row}");
            assert_eq!(row["server_counters"][counted], 50, "{row}");
        }
    }
    net.is_clean();
}

#[test]
fn unacknowledged_services_report_losses() {
    let Some(net) = Net::new("perf-u") else { return };
    for port in ["xdp", "packet", "udp"] {
        for what in
            ["send bw --service uc -s 4096", "send bw --service ud -s 1000", "write bw --service uc -s 4096"]
        {
            let command = format!("perf {what} --port {port} --json");
            // Fewer messages than receives, so that none is dropped for lack of one.
            let (server, client) = net.both(&command, &format!("{command} -n 60 -t 64"));
            server.succeeded();
            let row = &client.succeeded().json()[0];
            assert_eq!((&row["messages"], &row["sent"]), (&60.into(), &60.into()), "{what}: {row}");
        }
        for what in ["send lat --service uc", "send lat --service ud", "write lat --service uc"] {
            let command = format!("perf {what} --port {port} --json");
            let (server, client) = net.both(&command, &format!("{command} -n 50"));
            server.succeeded();
            let row = &client.succeeded().json()[0];
            assert_eq!(row["latency_ns"]["count"], 50, "{what}: {row}");
            assert_eq!(row["counters"]["retransmitted_packets"], serde_json::Value::Null, "{row}");
        }
    }
    // Fewer messages than receives again, so that only the fault drops: one in four.
    let command = "perf send bw --service ud -s 500 --json";
    let (server, client) = net.both(command, &format!("{command} -n 60 -t 16 --fault tx.drop=every4"));
    server.succeeded();
    let row = &client.succeeded().json()[0];
    assert_eq!((&row["sent"], &row["messages"]), (&60.into(), &45.into()), "{row}");
    net.right("perf read bw --service uc").failed(2, &["Uc has no Read"]);
    net.is_clean();
}

#[test]
fn timed_run_ends_between_xdp_and_udp() {
    let Some(net) = Net::new("perf-time") else { return };
    let (server, client) =
        net.both("perf write bw --port xdp", "perf write bw --port udp -D 0.3 -s 64,4096 --json");
    let server = server.succeeded();
    assert_eq!(server.stdout.lines().filter(|line| line.starts_with("served ")).count(), 2, "{server:#?}");
    for row in client.succeeded().json() {
        assert!(row["messages"].as_u64().unwrap() > 0, "{row}");
    }
}

#[test]
fn lossy_link_completes_every_message() {
    let Some(net) = Net::new("perf-loss") else { return };
    for port in ["xdp", "packet", "udp"] {
        for operation in ["send", "read"] {
            let command = format!("perf {operation} bw --port {port} --json");
            let (server, client) =
                net.both(&command, &format!("{command} -n 100 -s 16384 -t 4 --fault drop=0.01,seed=5"));
            server.succeeded();
            let row = &client.succeeded().json()[0];
            assert_eq!(row["messages"], 100, "{row}");
            assert!(row["resent_packets"].as_u64().unwrap() > 0, "{row}");
        }
    }
}

#[test]
fn floor_uses_the_same_ports() {
    let Some(net) = Net::new("perf-floor") else { return };
    for port in ["xdp", "packet", "udp"] {
        for measure in ["bw", "lat"] {
            let command = format!("perf send {measure} --port {port} --floor --json");
            let (server, client) = net.both(&command, &format!("{command} -n 60 -s 64"));
            server.succeeded();
            let row = &client.succeeded().json()[0];
            assert_eq!(
                (&row["sent"], &row["floor"], &row["payload_each"]),
                (&60.into(), &true.into(), &64.into())
            );
            assert!(row["messages"].as_u64().unwrap() > 0, "{row}");
        }
    }
    net.is_clean();
}

#[test]
fn differing_ends_name_the_difference() {
    let Some(net) = Net::new("perf-differ") else { return };
    let (server, client) = net.both("perf send bw -s 64 -q 2", "perf send bw -s 128 -q 1 -D 1");
    let parts = ["--size is [128] at the client and [64] at the server", "--qps is 1 at the client and 2"];
    server.failed(4, &parts);
    client.failed(4, &parts);
    let (server, client) = net.both("perf read bw", "perf write lat");
    server.failed(4, &["the operation is Write at the client and Read at the server"]);
    client.failed(4, &["the measure is Lat at the client and Bw"]);
    let (server, client) = net.both("perf read bw -m 256", "perf read bw -m 512");
    server.failed(4, &["--mtu is 512 at the client and 256 at the server"]);
    client.failed(4, &["--mtu"]);
}

#[test]
fn client_notices_killed_server() {
    let Some(net) = Net::new("perf-dead") else { return };
    for measure in ["bw", "lat"] {
        let mut server = net.serve(&format!("perf send {measure}"));
        let mut client = net.start_right(&format!("perf send {measure} -D 600 {A}"));
        // The client reports progress every second.
        client.wait_for("operations");
        server.kill();
        server.finish().was_killed();
        let client = client.finish();
        // The TCP connection ends at once; only a very late check finds the retries exhausted first.
        assert!(matches!(client.status.code(), Some(1 | 4)), "{client:#?}");
        let is_reported =
            client.stderr.contains("closed its TCP connection") || client.stderr.contains("broke");
        assert!(is_reported || client.stderr.contains("retries exceeded"), "{client:#?}");
        net.is_clean();
    }
}

#[test]
fn passive_server_notices_vanished_client() {
    let Some(net) = Net::new("perf-gone") else { return };
    let server = net.serve("perf read bw --port xdp");
    let mut client = net.start_right(&format!("perf read bw --port xdp -D 600 {A}"));
    client.wait_for("operations");
    // The client's link goes down, as in a power loss: no packet follows, over TCP or otherwise.
    Links::open_in(&net.b).unwrap().set_up("right", false).unwrap();
    server.finish().failed(4, &["the TCP connection to the peer broke", "left: the link is down"]);
    client.finish().failed(1, &["right: the link is down", "retries exceeded"]);
}

#[test]
fn second_client_is_refused_at_once() {
    let Some(net) = Net::new("perf-two") else { return };
    let mut server = net.serve("perf send bw --port udp");
    let mut first = net.start_right(&format!("perf send bw --port udp -D 600 {A}"));
    first.wait_for("operations");
    net.left(&format!("perf send bw --port xdp {A}"))
        .failed(4, &["cannot connect to TCP port 18516", "serves another client and takes no second"]);
    for end in [&mut first, &mut server] {
        end.kill();
    }
}

#[test]
fn foreign_protocol_is_quoted() {
    let Some(net) = Net::new("perf-no") else { return };
    let server = net.serve("perf send bw");
    let mut stream = net.b.run(|| TcpStream::connect((A4, 18516))).unwrap().unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    server.finish().failed(4, &["GET / HTTP/1.1", "no line of `roxie perf`"]);
}
