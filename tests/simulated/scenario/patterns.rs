//! Flows of each traffic pattern.

use std::collections::HashSet;

use roxie_sim::scenario::Flow;

use super::{played, simulation};

fn star(hosts: usize, traffic: &str) -> String {
    format!(
        "seed = 3\ntime = \"20 ms\"\n[network]\nshape = \"star\"\nhosts = {hosts}\nrate = \"100 Gb/s\"\n[[traffic]]\n{traffic}\n"
    )
}

fn flows(hosts: usize, traffic: &str) -> Vec<Flow> {
    simulation(&star(hosts, traffic)).flows().to_vec()
}

#[test]
fn incast_has_one_target() {
    let flows = flows(5, "pattern = \"incast\"\nbytes = 1000\nrepeat = 2");
    assert_eq!(flows.len(), 8);
    assert!(flows.iter().all(|flow| flow.to == 4 && flow.from != 4));
    assert_eq!(
        (flows[0].after.len(), flows[1].after.clone()),
        (0, vec![0]),
        "the second waits for the first"
    );
}

#[test]
fn permutation_is_one_to_one_without_self() {
    for hosts in [2, 3, 4, 5, 7, 40] {
        let flows = flows(hosts, "pattern = \"permutation\"\nbytes = 1000");
        let [from, to]: [HashSet<usize>; 2] =
            [flows.iter().map(|flow| flow.from).collect(), flows.iter().map(|flow| flow.to).collect()];
        assert_eq!((flows.len(), from.len(), to.len()), (hosts, hosts, hosts));
        assert!(flows.iter().all(|flow| flow.from != flow.to), "{flows:?}");
    }
    let flows = flows(40, "pattern = \"permutation\"\nbytes = 1000");
    assert!(flows.iter().any(|flow| flow.to != (flow.from + 1) % 40));
}

#[test]
fn all_to_all_has_every_pair() {
    let flows = flows(6, "pattern = \"all-to-all\"\nbytes = 1000");
    let pairs: HashSet<_> = flows.iter().map(|flow| (flow.from, flow.to)).collect();
    assert_eq!((flows.len(), pairs.len()), (30, 30));
    assert!(
        flows[..6].iter().map(|flow| flow.to).collect::<HashSet<_>>().len() == 6,
        "no host is everybody's first"
    );
}

/// Each link carries 2 (n - 1) / n of the data (Patarasuk and Yuan 2009).
#[test]
fn ring_all_reduce_time_follows_its_bytes() {
    let results = played(&star(8, "pattern = \"ring-all-reduce\"\nbytes = \"4 MB\""));
    assert_eq!(results.summary.ended, 2 * 7 * 8);
    let bytes = 2.0 * 7.0 / 8.0 * 4e6;
    let least = bytes * 8.0 / 100.0;
    let took = results.summary.time_ns as f64;
    // Headers are 8 % of the payload, and each of 14 steps waits for an answer.
    assert!((1.05..1.35).contains(&(took / least)), "{took} ns, at least {least}");
}

#[test]
fn tree_all_reduce_goes_up_then_down() {
    let flows = flows(7, "pattern = \"tree-all-reduce\"\nbytes = 1000");
    assert_eq!(flows.len(), 12);
    let (up, down) = flows.split_at(6);
    assert!(up.iter().all(|flow| flow.to == (flow.from - 1) / 2));
    assert!(down.iter().all(|flow| flow.from == (flow.to - 1) / 2));
    let leaves = up.iter().filter(|flow| flow.after.is_empty()).count();
    assert_eq!(leaves, 4, "leaves begin");
    assert!(down.iter().all(|flow| !flow.after.is_empty()), "nothing goes down before it has come up");
    assert_eq!(played(&star(7, "pattern = \"tree-all-reduce\"\nbytes = 1000")).summary.ended, 12);
}

#[test]
fn storage_keeps_its_read_share() {
    let traffic = "pattern = \"storage\"\nfrom = [0, 1]\nto = [2, 3]\nbytes = \"4 KiB\"\nreads = 0.7\nrepeat = 200\ndepth = 2";
    let flows = flows(4, traffic);
    assert_eq!(flows.len(), 800);
    let reads = flows.iter().filter(|flow| flow.read).count();
    assert!((520..600).contains(&reads), "{reads}");
    assert!(flows.iter().all(|flow| if flow.read { flow.to < 2 } else { flow.from < 2 }), "clients ask");
    let results = played(&star(4, &traffic.replace("200", "20")));
    assert_eq!((results.summary.ended, results.summary.failed), (80, 0));
}

#[test]
fn open_loop_arrivals_have_requested_load() {
    let flows = flows(16, "pattern = \"poisson\"\nload = 0.4\nbytes = \"50 KB\"");
    let bits = flows.iter().map(|flow| flow.bytes * 8).sum::<u64>() as f64;
    let load = bits / (16.0 * 100.0 * 20e6);
    assert!((0.38..0.42).contains(&load), "{load}");
    assert!(flows.iter().all(|flow| flow.from != flow.to && flow.start.0 < 20_000_000));
    // As in an exponential distribution, a share of 1/e of the gaps exceeds the mean.
    let mut starts: Vec<u64> = flows.iter().filter(|flow| flow.from == 0).map(|flow| flow.start.0).collect();
    starts.sort_unstable();
    let gaps: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<u64>() / gaps.len() as u64;
    let longer = gaps.iter().filter(|gap| **gap > mean).count() as f64 / gaps.len() as f64;
    assert!((0.33..0.41).contains(&longer), "{longer}");
}
