//! Counts per flow: marks, drops, damage, retransmissions, notifications.

use roxie_sim::scenario::{Column, Results};

use super::played;

/// Returns the numbers of a column.
fn counts<'a>(results: &'a Results, table: &str, name: &str) -> &'a [u64] {
    match results.table(table).and_then(|table| table.column(name)) {
        Some(Column::Count(counts)) => counts,
        other => panic!("{name} of {table}: {other:?}"),
    }
}

fn sum(results: &Results, table: &str, name: &str) -> u64 {
    counts(results, table, name).iter().sum()
}

/// Returns the frames that ports dropped, for any reason.
fn dropped_at_ports(results: &Results) -> u64 {
    let columns = ["dropped_threshold", "dropped_full", "dropped_headroom", "dropped_watchdog", "flushed"];
    columns.iter().map(|name| sum(results, "ports", name)).sum()
}

/// Four hosts send to a fifth, through a queue that marks and drops, over links that damage frames. Another host sends
/// to a sixth over an empty path.
fn crowd(read: bool) -> Results {
    played(&format!(
        r#"
        time = "200 ms"
        [network]
        shape = "star"
        hosts = 7
        rate = "10 Gb/s"
        [switch]
        limit = "60 KB"
        [ecn]
        kmin = "5 KB"
        kmax = "50 KB"
        pmax = 0.1
        [hosts]
        timeout = 6
        [cc]
        control = "dcqcn"
        preset = "paper"
        [[traffic]]
        pattern = "flows"
        from = [0, 1, 2, 3]
        to = [4]
        bytes = "300 KB"
        read = {read}
        repeat = 3
        [[traffic]]
        name = "alone"
        pattern = "flows"
        from = [5]
        to = [6]
        bytes = "300 KB"
        read = {read}
        "#
    ))
}

#[test]
fn flow_counts_match_port_counts() {
    for read in [false, true] {
        let results = crowd(read);
        assert_eq!(results.summary.ended, results.summary.flows, "{:?}", results.summary);
        let all = |name| sum(&results, "flows", name);
        assert!(all("marked") > 0 && all("dropped") > 0, "{:?}", results.summary);
        assert_eq!(all("marked"), sum(&results, "ports", "marked"));
        assert_eq!(all("dropped"), dropped_at_ports(&results));
        assert_eq!((all("damaged"), results.summary.damaged), (0, 0));
        assert!(all("cnps") > 0 && all("retransmitted_packets") > 0);
        let heeded = sum(&results, "hosts", "cnps_handled");
        assert!((heeded..=sum(&results, "hosts", "cnps_sent")).contains(&all("cnps")), "{heeded}");
        if !read {
            assert_eq!(all("retransmitted_packets"), sum(&results, "hosts", "retransmitted_packets"));
        }
        // The first flow of each host begins at line rate, at the same time as the others.
        for flow in [0, 3, 6, 9] {
            let met = ["marked", "dropped", "cnps"].map(|name| counts(&results, "flows", name)[flow]);
            assert!(met.iter().all(|count| *count > 0), "flow {flow}, read {read}: {met:?}");
        }
        let alone = results.flows.len() - 1;
        for name in ["marked", "dropped", "damaged", "retransmitted_packets", "cnps"] {
            assert_eq!(counts(&results, "flows", name)[alone], 0, "{name}, read {read}");
        }
    }
}

#[test]
fn link_damage_is_counted_by_flow() {
    let results = played(
        r#"
        time = "200 ms"
        [network]
        shape = "leaf-spine"
        leaves = 2
        spines = 1
        hosts = 2
        rate = "10 Gb/s"
        frame_errors = 0.003
        [hosts]
        timeout = 6
        [[traffic]]
        pattern = "flows"
        from = [0]
        to = [2]
        bytes = "1 MB"
        [[traffic]]
        pattern = "flows"
        from = [2]
        to = [0]
        bytes = "1 MB"
        [[traffic]]
        pattern = "flows"
        from = [1]
        to = [3]
        bytes = "500 KB"
        read = true
        start = "1 ms"
        "#,
    );
    assert_eq!(results.summary.ended, 3);
    let damaged = counts(&results, "flows", "damaged");
    assert!(damaged.iter().all(|damaged| *damaged > 0), "{damaged:?}");
    assert_eq!(damaged.iter().sum::<u64>(), results.summary.damaged);
    let again = counts(&results, "flows", "retransmitted_packets");
    assert!(again.iter().all(|again| *again > 0), "{again:?}");
    // The host that is read from sends only data: seven messages of 64 packets, and one of 41.
    assert_eq!(counts(&results, "hosts", "sent_frames")[1], 7 * 64 + 41 + again[2]);
    assert_eq!(sum(&results, "flows", "marked") + sum(&results, "flows", "dropped"), 0);
}

#[test]
fn watchdog_flushes_are_counted_by_flow() {
    let results = played(&format!(
        r#"
        time = "6 ms"
        [network]
        shape = "ring"
        switches = 5
        hosts = 2
        rate = "10 Gb/s"
        [pfc]
        xoff = "20 KB"
        watchdog = "500 us"
        [hosts]
        timeout = 14
        {}
        "#,
        (0..10)
            .map(|n| format!(
                "[[traffic]]\npattern = \"flows\"\nfrom = [{n}]\nto = [{}]\nbytes = \"1 MB\"\n",
                (n + 4) % 10
            ))
            .collect::<String>()
    ));
    let flushed = sum(&results, "ports", "flushed");
    assert!(flushed > 0, "{:?}", results.summary);
    assert_eq!(sum(&results, "flows", "dropped"), dropped_at_ports(&results));
}

#[test]
fn successive_flows_have_separate_counts() {
    let results = played(
        r#"
        time = "50 ms"
        [network]
        shape = "star"
        hosts = 3
        rate = "10 Gb/s"
        [ecn]
        kmin = "2 KB"
        kmax = "20 KB"
        [[traffic]]
        pattern = "flows"
        from = [0]
        to = [2]
        bytes = "500 KB"
        repeat = 2
        [[traffic]]
        pattern = "flows"
        from = [1]
        to = [2]
        bytes = "500 KB"
        "#,
    );
    let marked = counts(&results, "flows", "marked");
    assert_eq!(marked.iter().sum::<u64>(), results.summary.marked);
    let of = |n: usize| results.flows[n].began.map(|began| began.0);
    let (first, second) = if of(0) < of(1) { (0, 1) } else { (1, 0) };
    assert!(of(first) < of(second) && marked[first] > 0, "{marked:?}");
    assert_eq!(marked[second], 0, "the link was its own by then");
}
