//! The guest boots, and its rdma_rxe carries verified data between two queue pairs.
//!
//! Needs root, QEMU and (the first time) a Debian mirror; prints SKIP and the reason if the host lacks one.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use interop::exec;
use interop::guest::{Guest, Image, host_lacks, output_folder};
use interop::network::Namespace;
use interop::peer::Peer;
use interop::rows::{self, Case, ErrorCase, Family, Impairment, PortKind, Row, Side};

/// Returns one row of each operation and error that rxe can run with itself or with another rxe.
fn short_rows() -> Vec<Row> {
    let plain = |row: &Row| match row.case {
        Case::Transfer { op, mtu, size, fault: Impairment::None, .. } => {
            mtu == 1024 && (op.is_atomic() || size == 1025)
        }
        Case::Error(error) => error != ErrorCase::MisalignedAtomic,
        Case::Feature(_) => true,
        _ => false,
    };
    let here =
        |row: &Row| row.requester == Side::Peer && row.port == PortKind::Xdp && row.family == Family::V4;
    rows::all().into_iter().filter(|row| plain(row) && here(row) && !row.is_placement()).collect()
}

fn all_pass(requester: &mut Peer, responder: &mut Peer) {
    let rows = short_rows();
    let connected = rows::OPS.len() + rows::Service::Uc.ops().len();
    // Excluded: ATOMIC WRITE and its four errors, FLUSH and its four, and the misaligned atomic.
    let expected = connected - 1 + rows::ERRORS.len() - 9 + rows::FEATURES.len() - 4;
    assert_eq!(rows.len(), expected, "{} rows", rows.len());
    for row in rows {
        if let Err(failure) = exec::run(&row, requester, responder) {
            panic!("{row}: {failure}");
        }
    }
}

fn milliseconds_per_command(peer: &mut Peer) -> f64 {
    const COMMANDS: u32 = 100;
    let start = Instant::now();
    for _ in 0..COMMANDS {
        let listens = peer.wait_for_listener(7471, Duration::ZERO).expect("the peer answers");
        assert!(listens, "the peer program listens on its own port");
    }
    start.elapsed().as_secs_f64() * 1e3 / f64::from(COMMANDS)
}

#[test]
fn rxe_carries_verified_data_between_queue_pairs() {
    let _alone = crate::alone();
    let Some(image) = Image::for_test("guest") else { return };
    let namespace = Namespace::create().expect("the namespace");
    let logs = output_folder();
    let first = Guest::start(&image, &namespace, 2, &logs.join("test-guest-2.log")).expect("the first guest");
    println!("boot: {:.1} s", first.booted_in().as_secs_f64());

    let (mut a, mut b) =
        (first.peer(&namespace).expect("a session"), first.peer(&namespace).expect("another"));
    assert_eq!(a.about().active_mtu, 4096, "the link's MTU lets rxe have path MTU 4096");
    println!("{:.2} ms per command", milliseconds_per_command(&mut a));
    all_pass(&mut a, &mut b);

    let server = pingpong(&mut a, None);
    assert!(a.wait_for_listener(18515, Duration::from_secs(10)).expect("the peer answers"));
    let client = pingpong(&mut b, Some("10.71.0.2"));
    let ended = b.wait(client, Duration::from_secs(60)).expect("the client ends");
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    let ended = a.wait(server, Duration::from_secs(10)).expect("the server ends");
    assert_eq!(ended.code, Some(0), "{}", ended.output);

    let second =
        Guest::start(&image, &namespace, 3, &logs.join("test-guest-3.log")).expect("the second guest");
    all_pass(&mut a, &mut second.peer(&namespace).expect("a session with the second"));
    let counters = a.counters().expect("counters");
    let sent = counters.iter().find(|(name, _)| name == "sent_pkts").map(|(_, n)| *n);
    assert!(sent > Some(0), "packets have left the first guest: {counters:?}");
}

fn pingpong(peer: &mut Peer, server: Option<&str>) -> usize {
    let words = "-g 1 -m 1024 -s 4096 -n 100 -c".split(' ').chain(server);
    let words: Vec<String> = words.map(str::to_owned).collect();
    peer.spawn("ibv_rc_pingpong", &words).expect("ibv_rc_pingpong starts")
}

#[test]
fn unreachable_mirror_is_named_and_cache_stays() {
    if let Some(lack) = host_lacks() {
        println!("SKIP guest: {lack}");
        return;
    }
    let cache = output_folder().join(format!("no-mirror-{}", std::process::id()));
    let cached = cache.join("newest/debs/kept");
    fs::create_dir_all(cached.parent().expect("a folder")).expect("the cache's folder");
    fs::write(&cached, "").expect("a file in the cache");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/build-guest.sh");
    let mut build = Command::new(script);
    build.args(["--kernel", "newest"]).env("ROXIE_CACHE", &cache);
    // No server listens on the discard port.
    let built = build.env("ROXIE_DEBIAN_MIRROR", "http://127.0.0.1:9").output().expect("the script runs");
    let message = String::from_utf8_lossy(&built.stderr).into_owned();
    let stays = cached.exists();
    fs::remove_dir_all(&cache).expect("the cache's folder goes");
    assert_eq!(built.status.code(), Some(4), "{message}");
    assert!(message.contains("the package index cannot be had from http://127.0.0.1:9"), "{message}");
    assert!(stays, "the cache has lost its content");
}

#[test]
fn peer_survives_wrong_commands_and_gives_reasons() {
    use interop::end::{Access, End};
    let _alone = crate::alone();
    let Some(image) = Image::for_test("guest") else { return };
    let namespace = Namespace::create().expect("the namespace");
    let log = output_folder().join("test-guest-errors.log");
    let guest = Guest::start(&image, &namespace, 2, &log).expect("the guest");
    let mut peer = guest.peer(&namespace).expect("a session");

    let region = peer.register(100, Access::ALL).expect("a region");
    let beyond = peer.fill(region, 0..101, 1).expect_err("101 of 100 bytes");
    assert!(beyond.to_string().contains("outside the region's 100"), "{beyond}");
    peer.fill(region, 0..99, 1).expect("within");
    let wrong = peer.mismatch(region, 0..100, 1).expect("an answer").expect("the last byte is still zero");
    assert_eq!((wrong.at, wrong.got), (99, 0));

    peer.store(region, 8, 0x0102_0304_0506_0708).expect("a store");
    assert_eq!(peer.load(region, 8).expect("a load"), 0x0102_0304_0506_0708);
    peer.reset().expect("a reset");
    let error = peer.load(region, 8).expect_err("the region is gone");
    assert!(error.to_string().contains("no memory region"), "{error}");
}
