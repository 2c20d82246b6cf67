//! Cases against what was measured: medians in ms, statuses and vendor errors, counters.

use clap::Parser;
use serde_json::Value;

use super::trial::{Arguments, outcome};

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn tried(line: &str) -> Value {
    let line = Line::parse_from(["try"].into_iter().chain(line.split_whitespace()));
    outcome(&line.arguments).expect("a case")
}

fn counter(outcome: &Value, end: &str, name: &str) -> u64 {
    outcome["counters"][end][name].as_u64().unwrap_or(0)
}

fn list<'a>(outcome: &'a Value, key: &str) -> &'a [Value] {
    outcome[key].as_array().expect("a list")
}

/// Statuses and vendor errors of the completions, in order.
fn statuses(outcome: &Value) -> Vec<(u64, u64)> {
    let pair = |wc: &Value| (wc["status"].as_u64().unwrap_or(99), wc["vendor_err"].as_u64().unwrap_or(99));
    list(outcome, "completions").iter().map(pair).collect()
}

#[test]
fn silent_peer_ends_when_measured() {
    for (line, low, high) in [
        // Back-to-back faults in one process.
        ("cx6 silent --timeout 10", 3658.98, 3662.0),
        ("cx6 silent --timeout 14 --retry 0", 2049.2, 2052.0),
        ("cx6 silent --timeout 14 --retry 1", 439.0, 442.0),
        ("cx6 silent --timeout 14 --retry 3", 1512.8, 1515.8),
        ("cx6 silent --timeout 15 --retry 5", 2586.0, 2588.5),
        ("cx6 silent --timeout 17 --retry 1", 975.3, 978.3),
        ("cx6 silent --timeout 17 --retry 2", 1780.3, 1783.3),
        ("cx6 silent --timeout 17", 7150.2, 7153.2),
        ("cx6 silent --timeout 19", 29697.0, 29703.0),
        ("cx6 silent --timeout 20", 59760.0, 59769.0),
        // Other histories.
        ("cx6 silent --history fresh", 3499.9, 3764.0),
        ("cx6 silent --history fresh --timeout 17", 7234.7, 7500.4),
        ("cx6 silent --history fresh --timeout 20", 58458.2, 58794.4),
        ("cx6 silent --history reopened", 3632.8, 3639.8),
        ("cx6 silent --history idle", 3760.0, 3762.4),
        ("cx6 silent --history fresh-traffic", 3594.6, 3745.9),
        ("cx6 silent --history steady-traffic", 3638.7, 3641.7),
        // Without the floor.
        ("cx6 silent --floor off --timeout 8 --retry 0", 2.17, 2.34),
        ("cx6 silent --floor off --timeout 8 --retry 3", 5.16, 5.59),
        ("cx6 silent --floor off --timeout 10 --retry 0", 6.7, 8.75),
        ("cx6 silent --floor off --timeout 10", 37.4, 38.3),
        ("cx6 silent --floor off --timeout 12 --retry 3", 79.5, 80.1),
        ("cx6 silent --floor off --timeout 14 --retry 0", 104.9, 119.4),
        ("cx6 silent --floor off --timeout 14", 574.6, 604.4),
        ("cx6 silent --floor off --timeout 16", 2319.3, 2333.5),
        ("cx6 silent --floor off --timeout 20", 37587.7, 38290.3),
        // Firmware 20.40: post to completion, and peers that were killed, less 35 ms of signalling.
        ("cx6-20.40 silent --timeout 8 --retry 1", 428.4, 431.4),
        ("cx6-20.40 silent --timeout 8 --retry 3", 1501.7, 1504.7),
        ("cx6-20.40 silent --timeout 8 --retry 4", 2038.5, 2041.5),
        ("cx6-20.40 killed --history steady-traffic --timeout 8 --retry 2", 830.0, 835.0),
        ("cx6-20.40 killed --history steady-traffic --timeout 14 --retry 5", 2440.0, 2446.0),
        ("cx6-20.40 silent --floor off --timeout 8 --retry 0", 1.33, 1.36),
        ("cx6-20.40 silent --floor off --timeout 8 --retry 7", 12.1, 12.4),
        // Roxie's own: 8 times 67.1 ms.
        ("own silent", 536.8, 537.0),
    ] {
        let outcome = tried(line);
        let end = outcome["end_ms"].as_f64().expect("an end");
        assert!((low..=high).contains(&end), "{line}: {end} ms, measured {low} to {high}");
        assert!(list(&outcome, "declined").is_empty(), "{line}: {outcome}");
        let status = if line.starts_with("own") { (12, 0) } else { (12, 0x81) };
        assert_eq!(statuses(&outcome), [status], "{line}");
    }
}

/// One retry is the adaptive phase, and the others but one are timeouts that send.
#[test]
fn retries_count_as_measured() {
    for (retry, timeouts) in [(0, 3), (1, 0), (2, 1), (4, 3), (7, 6)] {
        for seed in 0..8 {
            let outcome = tried(&format!("cx6 silent --retry {retry} --seed {seed}"));
            let adaptive = counter(&outcome, "requester", "roce_adp_retrans");
            assert_eq!(counter(&outcome, "requester", "local_ack_timeout_err"), timeouts, "R {retry}");
            assert!((3..=11).contains(&adaptive), "R {retry}: {adaptive}");
            let sent = outcome["sent_packets"].as_u64().expect("a count");
            assert_eq!(sent, 1 + adaptive + timeouts.saturating_sub(1), "R {retry}");
            assert_eq!(counter(&outcome, "requester", "req_transport_retries_exceeded"), 1);
            assert_eq!(counter(&outcome, "requester", "req_cqe_error"), 1);
        }
    }
    let outcome = tried("cx6 silent --floor off --timeout 8 --retry 3");
    assert_eq!(
        (outcome["sent_packets"].as_u64(), counter(&outcome, "requester", "local_ack_timeout_err")),
        (Some(4), 5)
    );
    let silent: Vec<_> = list(&outcome, "timeouts").iter().map(|timeout| timeout["sends"] == true).collect();
    assert_eq!(silent, [false, true, true, true, false]);
}

#[test]
fn rnr_wait_is_longer_than_its_code() {
    let outcome = tried("cx6 rnr --rnr-retry 6 --rnr-timer 12");
    let end = outcome["end_ms"].as_f64().expect("an end");
    assert!((12.2..=13.0).contains(&end), "{end} ms");
    assert_eq!(statuses(&outcome), [(13, 0x87)]);
    // Messages before the bad one have a receive.
    let later = tried("cx6 rnr --batch 4 --at 2");
    assert_eq!(statuses(&later), [(0, 0), (0, 0), (13, 0x87), (5, 0xf9)]);
    let at_once = tried("cx6 rnr --rnr-retry 0");
    assert!(at_once["end_ms"].as_f64().is_some_and(|ms| ms < 0.3));
    for name in ["rnr_nak_retry_err", "req_rnr_retries_exceeded", "req_cqe_error"] {
        assert_eq!(counter(&at_once, "requester", name), 1, "{name}");
    }
    assert_eq!(counter(&at_once, "responder", "out_of_buffer"), 1);
    let own = tried("own rnr");
    assert!(own["end_ms"].as_f64().is_some_and(|ms| (3.8..3.9).contains(&ms)), "{own}");
    assert_eq!(list(&tried("cx6-20.40 rnr"), "declined").len(), 4, "nobody has measured its wait");
}

/// The bad work request is first, in the middle or last: successes, one root cause, then a flush of each later one.
#[test]
fn completions_have_the_order_and_errors_measured() {
    for (case, root, packets) in [
        ("bad-rkey", (10, 0x88), true),
        ("out-of-range", (10, 0x88), true),
        ("no-right", (9, 0x8a), true),
        ("bad-lkey", (4, 0x52), false),
        ("too-long", (4, 0x53), false),
    ] {
        for batch in [1, 4, 16, 64] {
            // Without the right, each is refused, so the first is the root cause.
            let places = if case == "no-right" { vec![0] } else { vec![0, batch / 2, batch - 1] };
            for at in places {
                for signaled in ["all", "last", "none"] {
                    let line = format!("cx6 {case} --batch {batch} --at {at} --signaled {signaled}");
                    let outcome = tried(&line);
                    let before = if signaled == "all" { at } else { 0 };
                    let mut wanted = vec![(0, 0); before];
                    wanted.push(root);
                    wanted.extend(vec![(5, 0xf9); batch - at - 1]);
                    assert_eq!(statuses(&outcome), wanted, "{line}");
                    assert_eq!(counter(&outcome, "requester", "req_cqe_error"), 1, "{line}");
                    assert_eq!(counter(&outcome, "requester", "req_cqe_flush_error"), 0, "{line}");
                    assert_eq!(outcome["state"]["requester"], "ERR", "{line}");
                    // Behind unsignaled work requests, one packet asks for an acknowledgement.
                    let sent = outcome["sent_packets"].as_u64().expect("a count") as usize;
                    assert!(packets || (at..=at + 1).contains(&sent), "{line}: {sent}");
                }
            }
        }
    }
    assert_eq!(statuses(&tried("cx6 no-atomic-right")), [(9, 0x8a)]);
    assert_eq!(statuses(&tried("cx6 no-atomic-right --length 3")), [(9, 0x8a)]);
    for opcode in ["read", "send"] {
        let outcome =
            tried(&format!("cx6 bad-lkey --batch 3 --at 1 --opcode {opcode} --length 5000 --region 100"));
        assert_eq!(statuses(&outcome), [(0, 0), (4, 0x52), (5, 0xf9)], "{opcode}");
    }
}

/// Memory of 4096 bytes, path MTU 1024: packets that fit are placed, and SQ_PSN says how many.
#[test]
fn range_is_checked_packet_by_packet() {
    for (place, bytes, packets) in [
        ("--offset 4064 --length 64", 0, 0),
        ("--offset 2048 --length 4096", 2048, 2),
        ("--offset 2560 --length 2048", 1024, 1),
        ("--offset 1024 --length 4096", 3072, 3),
    ] {
        let outcome = tried(&format!("cx6 out-of-range --peer cx5 --mtu 1024 {place}"));
        assert_eq!(outcome["placed"]["bytes"].as_u64(), Some(bytes), "{place}");
        assert_eq!(outcome["sq_psn_delta"].as_i64(), Some(packets), "{place}");
        assert_eq!(statuses(&outcome), [(10, 0x88)], "{place}");
        assert!(list(&outcome, "declined").is_empty(), "{place}: {outcome}");
        assert_eq!(tried(&format!("own out-of-range {place}"))["placed"]["bytes"].as_u64(), Some(0));
    }
}

/// The right, the count, the key. No counter of errors moves at the responder.
#[test]
fn responder_counts_between_right_and_key() {
    for (case, writes, cause) in [
        ("no-right", 0, "req_remote_invalid_request"),
        ("bad-rkey", 1, "req_remote_access_errors"),
        ("out-of-range", 1, "req_remote_access_errors"),
    ] {
        let outcome = tried(&format!("cx6 {case} --peer cx5"));
        let moved = outcome["counters"]["responder"].as_object().expect("counters");
        assert_eq!(counter(&outcome, "responder", "rx_write_requests"), writes, "{case}");
        assert_eq!(moved.len() as u64, writes, "{case}: {moved:?}");
        assert_eq!(counter(&outcome, "requester", cause), 1, "{case}");
        assert_eq!(outcome["state"]["responder"], "ERR", "{case}");
    }
    let good = tried("cx6 rnr --peer cx5 --rnr-retry 0 --opcode send");
    assert_eq!(counter(&good, "responder", "out_of_buffer"), 1);
    assert!(
        list(&tried("cx6 out-of-range --peer cx6"), "declined").len() == 2,
        "nobody has measured its responder"
    );
}

/// A profile of one's own, with the range alone.
#[test]
fn range_by_packet_needs_the_right_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("own.toml");
    let text = "[responder]\nclass = \"m\"\nwho = \"a card\"\nsrc = \"a page\"\nrange = \"packet\"\n";
    std::fs::write(&file, text).expect("written");
    let outcome = tried(&format!("own no-right --peer {}", file.display()));
    assert_eq!(statuses(&outcome), [(9, 0x61)], "NAK: invalid request");
    assert_eq!(outcome["placed"]["bytes"].as_u64(), Some(0));
}

#[test]
fn flush_by_software_marks_its_head() {
    for outstanding in [0, 1, 4, 64] {
        let outcome = tried(&format!("cx6 flush --outstanding {outstanding}"));
        let wanted: Vec<_> =
            (0..outstanding).map(|index| if index == 0 { (5, 0xf5) } else { (5, 0xf9) }).collect();
        assert_eq!(statuses(&outcome), wanted);
        assert_eq!(counter(&outcome, "requester", "req_cqe_error"), u64::from(outstanding > 0));
        assert_eq!(counter(&outcome, "requester", "req_cqe_flush_error"), 0);
    }
    let own = tried("own flush --outstanding 2");
    assert_eq!(statuses(&own), [(5, 0), (5, 0)]);
    assert_eq!(counter(&own, "requester", "req_cqe_flush_error"), 2);
}

/// An unknown history has the counts of the steady one, and no times.
#[test]
fn unknown_history_declines_its_times() {
    let outcome = tried("cx6-20.40 silent --history idle");
    let declined: Vec<_> = list(&outcome, "declined").iter().filter_map(Value::as_str).collect();
    assert_eq!(declined, ["transmissions.ms", "timeouts.ms", "completions.ms", "end_ms"]);
    assert_eq!(counter(&outcome, "requester", "local_ack_timeout_err"), 6);
    // Vendor errors and counters of which nothing is known are declined as such.
    let of_cx5 = tried("cx5 bad-lkey --peer cx5");
    let declined: Vec<_> = list(&of_cx5, "declined").iter().filter_map(Value::as_str).collect();
    assert_eq!(declined, ["completions.vendor_err", "counters.requester"]);
}

#[test]
fn killed_peer_has_answered_before() {
    let outcome = tried("cx6 killed --history fresh");
    assert!(outcome["last_ack_ms"].as_f64().is_some_and(|ms| (-1.1..0.0).contains(&ms)), "{outcome}");
    assert!(tried("cx6 silent")["last_ack_ms"].is_null());
}
