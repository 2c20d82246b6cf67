//! `roxie pingpong` between two namespaces, and against the stock program's exchange.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::network::Net;
use crate::{A, A4, Finished};

/// All pairs of ports.
const PORTS: [(&str, &str); 9] = [
    ("xdp", "xdp"),
    ("xdp", "packet"),
    ("xdp", "udp"),
    ("packet", "xdp"),
    ("packet", "packet"),
    ("packet", "udp"),
    ("udp", "xdp"),
    ("udp", "packet"),
    ("udp", "udp"),
];

#[test]
fn pingpong_runs_over_all_ports() {
    let Some(net) = Net::new("pingpong") else { return };
    for (left, right) in PORTS {
        let options = "pingpong rc -n 100 -c --port";
        let (server, client) = net.both(&format!("{options} {left}"), &format!("{options} {right}"));
        for end in [server.succeeded(), client.succeeded()] {
            assert!(
                end.stdout.contains("819200 bytes in ") && end.stdout.contains("100 iters in "),
                "{end:#?}"
            );
            assert!(end.stdout.contains("GID ::ffff:192.0.2.1"), "{end:#?}");
        }
    }
    net.is_clean();
}

#[test]
fn unacknowledged_services_run_over_all_ports() {
    let Some(net) = Net::new("pingpong-u") else { return };
    for (left, right) in PORTS {
        for game in ["uc -s 5000", "uc -g 1 -s 5000", "ud -s 1000", "ud -g 1 -s 0"] {
            let options = format!("pingpong {game} -n 50 -c --json --port");
            let (server, client) = net.both(&format!("{options} {left}"), &format!("{options} {right}"));
            for end in [server.succeeded(), client.succeeded()] {
                assert_eq!(end.json()[0]["iters"], 50, "{end:#?}");
            }
        }
    }
    net.is_clean();
}

#[test]
fn lost_unacknowledged_message_ends_the_run() {
    let Some(net) = Net::new("pingpong-ul") else { return };
    for game in ["uc", "ud"] {
        let options = format!("pingpong {game} -n 500 --patience 2");
        let (server, client) = net.both(&options, &format!("{options} --fault drop=0.05"));
        server.failed(1, &["no message for 2 s", "this service does not retransmit"]);
        client.failed(1, &["no message for 2 s", "this service does not retransmit"]);
    }
}

#[test]
fn oversized_datagram_is_refused_with_the_limit() {
    let Some(net) = Net::new("pingpong-ub") else { return };
    net.right("pingpong ud -s 5000").failed(2, &["a datagram of 5000 bytes", "at most"]);
    net.right("pingpong ud -m 256").failed(2, &["-m with datagrams"]);
}

#[test]
fn gid_index_selects_ipv6() {
    let Some(net) = Net::new("pingpong-v6") else { return };
    for (left, right) in PORTS {
        // The index depends on whether the link-local address, which comes first, is usable yet.
        let index = |gids: Finished| {
            let table = gids.succeeded().json()[0]["gids"].clone();
            let entry =
                table.as_array().unwrap().iter().find(|e| e["gid"].as_str().unwrap().starts_with("2001"));
            entry.unwrap()["index"].clone()
        };
        let (local, remote) = (index(net.left("show gids --json")), index(net.right("show gids --json")));
        let (server, client) = net.both(
            &format!("pingpong rc -g {local} -n 20 -c --port {left}"),
            &format!("pingpong rc -g {remote} -n 20 -c --port {right}"),
        );
        assert!(server.succeeded().stdout.contains("GID 2001:db8::2"));
        assert!(client.succeeded().stdout.contains("GID 2001:db8::1"));
    }
}

#[test]
fn pingpong_sleeps_on_events() {
    let Some(net) = Net::new("pingpong-e") else { return };
    for options in
        ["-e -n 20", "-s 0 -n 20", "-s 100001 -n 5 -c -m 512", "-r 1 -n 20", "--drive thread -n 20"]
    {
        let command = format!("pingpong rc --json {options}");
        let (server, client) = net.both(&command, &command);
        assert_eq!(server.succeeded().json()[0]["iters"], client.succeeded().json()[0]["iters"]);
    }
}

#[test]
fn shared_receives_work_over_both_ports() {
    let Some(net) = Net::new("pingpong-srq") else { return };
    for (left, right) in PORTS {
        for game in ["-q 1 -n 50", "-q 16 -n 200 -c", "-q 4 -n 50 -r 4 -s 9000 -e"] {
            let options = format!("pingpong srq {game} --json --port");
            let (server, client) = net.both(&format!("{options} {left}"), &format!("{options} {right}"));
            for end in [server.succeeded(), client.succeeded()] {
                assert_eq!(end.json().len(), 1, "{end:#?}");
            }
        }
    }
    net.is_clean();
}

#[test]
fn different_connection_counts_are_reported() {
    let Some(net) = Net::new("pingpong-srq-q") else { return };
    let (server, client) =
        net.both("pingpong srq -q 3 -n 5 --patience 2", "pingpong srq -q 2 -n 5 --patience 2");
    server.failed(4, &["the peer has 2 QPs, this end has 3", "same -q"]);
    assert_ne!(client.status.code(), Some(0), "{client:#?}");
    net.right("pingpong srq -q 5 -r 4").failed(2, &["-r 4 is too small for 5 QPs"]);
}

/// `ibv_srq_pingpong` writes 256 addresses; the first two have QPs.
#[test]
fn stock_srq_client_is_served() {
    let Some(net) = Net::new("stock-srq") else { return };
    let mut server = net.serve("pingpong srq --port udp -n 1 -q 2");
    let mut stream = net.b.run(|| TcpStream::connect((A4, 18515))).unwrap().unwrap();
    for at in 0..256 {
        let used = [STOCK, b"0000:00002b:abcdee:00000000000000000000ffffc0000202\0"];
        let unused = b"0000:000000:000000:00000000000000000000000000000000\0";
        stream.write_all(*used.get(at).unwrap_or(&unused)).unwrap();
    }
    let mut answer = vec![0; 256 * 52];
    stream.read_exact(&mut answer).unwrap();
    for message in answer[..104].chunks(52) {
        is_an_address(message, "00000000000000000000ffffc0000201");
    }
    assert!(answer[104..].chunks(52).all(|message| message.starts_with(b"0000:000000:000000:0000")));
    stream.write_all(b"done\0").unwrap();
    assert_eq!(stream.read(&mut answer).unwrap(), 0, "then it hangs up");
    server.kill();
    let server = server.finish();
    assert!(server.stdout.contains("QPN 0x00002b, PSN 0xabcdee, GID ::ffff:192.0.2.2"), "{server:#?}");
}

#[test]
fn lost_frames_are_retransmitted_over_all_ports() {
    let Some(net) = Net::new("pingpong-loss") else { return };
    for port in ["xdp", "packet", "udp"] {
        let options = format!("pingpong rc --port {port} -n 200 -c --json");
        let (server, client) = net.both(&options, &format!("{options} --fault drop=0.03"));
        server.succeeded();
        let client = client.succeeded();
        assert_eq!(client.json()[0]["iters"], 200);
    }
}

#[test]
fn different_sizes_are_reported() {
    let Some(net) = Net::new("pingpong-size") else { return };
    let (server, client) =
        net.both("pingpong rc -s 100 -n 5 --patience 2", "pingpong rc -s 200 -n 5 --patience 2");
    server.failed(1, &["longer than the receive", "same message size"]);
    client.failed(1, &["remote invalid request", "same message size"]);
    let (server, client) =
        net.both("pingpong rc -s 200 -n 5", "pingpong rc -s 100 -n 5 --timeout 8 --patience 2");
    server.failed(4, &["message 1 of 5 has 100 bytes, this end uses 200"]);
    assert_eq!(client.status.code(), Some(1), "{client:#?}");
}

#[test]
fn silent_peer_exhausts_the_retries() {
    let Some(net) = Net::new("pingpong-mute") else { return };
    let mut server = net.serve("pingpong rc");
    let client = net.right(&format!("pingpong rc --timeout 10 --retry 2 --fault tx.drop=1.0 {A}"));
    client.failed(
        1,
        &["sending message 1 of 1000 failed: retries exceeded", "(2 retries, 4.2 ms each", "--capture"],
    );
    server.kill();
    server.finish().was_killed();
    net.is_clean();
}

#[test]
fn killed_peer_is_noticed() {
    let Some(net) = Net::new("pingpong-dead") else { return };
    for port in ["xdp", "packet", "udp"] {
        let options = format!("pingpong rc --port {port} -n 100000000 --timeout 14 --retry 2 --patience 2");
        let server = net.serve(&options);
        let mut client = net.start_right(&format!("{options} --capture /dev/null {A}"));
        net.wait_until_left_has_received(100);
        client.kill();
        client.finish().was_killed();
        let server = server.finish();
        assert_eq!(server.status.code(), Some(1), "{server:#?}");
        let is_reported =
            server.stderr.contains("retries exceeded") || server.stderr.contains("no message for 2 s");
        assert!(is_reported && !server.stderr.contains("after 0 received"), "{server:#?}");
        net.is_clean();
    }
}

/// An address as `ibv_rc_pingpong` reads and writes it, in one call of 52 bytes.
const STOCK: &[u8; 52] = b"0000:00002a:abcdef:00000000000000000000ffffc0000202\0";

#[track_caller]
fn is_an_address(message: &[u8], gid: &str) {
    let text = std::str::from_utf8(message).unwrap();
    let fields: Vec<&str> = text.trim_end_matches('\0').split(':').collect();
    assert_eq!(fields.iter().map(|f| f.len()).collect::<Vec<_>>(), [4, 6, 6, 32], "{text}");
    assert_eq!((fields[0], fields[3]), ("0000", gid));
    assert!(text.ends_with('\0') && u32::from_str_radix(fields[1], 16).unwrap() > 1);
}

#[test]
fn stock_client_is_served() {
    let Some(net) = Net::new("stock-client") else { return };
    let mut server = net.serve("pingpong rc --port udp -n 1");
    let mut stream = net.b.run(|| TcpStream::connect((A4, 18515))).unwrap().unwrap();
    stream.write_all(STOCK).unwrap();
    let mut answer = [0; 100];
    let count = stream.read(&mut answer).unwrap();
    assert_eq!(count, 52, "one read gets all of it and no more");
    is_an_address(&answer[..count], "00000000000000000000ffffc0000201");
    stream.write_all(b"done\0").unwrap();
    assert_eq!(stream.read(&mut answer).unwrap(), 0, "then it hangs up");
    server.kill();
    let server = server.finish();
    assert!(
        server
            .stdout
            .contains("remote address: LID 0x0000, QPN 0x00002a, PSN 0xabcdef, GID ::ffff:192.0.2.2")
    );
}

#[test]
fn stock_server_serves_our_client() {
    let Some(net) = Net::new("stock-server") else { return };
    let listener = net.a.run(|| TcpListener::bind((A4, 18515))).unwrap().unwrap();
    let mut client = net.start_right(&format!("pingpong rc --port udp {A}"));
    let (mut stream, _) = listener.accept().unwrap();
    let mut message = [0; 100];
    let count = stream.read(&mut message).unwrap();
    assert_eq!(count, 52);
    is_an_address(&message[..count], "00000000000000000000ffffc0000202");
    stream.write_all(STOCK).unwrap();
    let count = stream.read(&mut message).unwrap();
    assert_eq!(&message[..count], b"done\0");
    client.kill();
    client.finish().was_killed();
}

#[test]
fn foreign_protocol_is_quoted() {
    let Some(net) = Net::new("stock-no") else { return };
    let server = net.serve("pingpong rc --port udp");
    let mut stream = net.b.run(|| TcpStream::connect((A4, 18515))).unwrap().unwrap();
    stream.write_all(&[b"GET / HTTP/1.1\r\n".as_slice(), &[b'x'; 60]].concat()).unwrap();
    server.finish().failed(4, &["GET / HTTP/1.1", "lid:qpn:psn:gid"]);
    let server = net.serve("pingpong rc --port udp");
    let mut stream = net.b.run(|| TcpStream::connect((A4, 18515))).unwrap().unwrap();
    stream.write_all(b"0000:00002a:abcdef:00000000000000000000000000000000\0").unwrap();
    server.finish().failed(4, &["no GID", "start it with -g"]);
}
