//! Two NICs joined by a faulty cable: workloads with oracles of their own, for what scripts do not say.
//!
//! [`shared`] is connections that share receive queues, reliable and extended; [`chaos`] is objects that come and go under traffic.

mod chaos;
mod shared;

use roxie::port::fault::{Action, Fault, FaultConfig, When};
use roxie::time::Nanos;
use roxie::transport::PlantedBug;

use crate::campaign::judge;
use crate::generate::Rng;
use crate::reach::Reach;
use crate::seeds::variable;
use crate::world::Outcome;

const SEEDS: u64 = 2_000;

/// What connections that share receive queues must reach, and how often at least in a thousand seeds.
const SHARED: &[(&str, u64)] = &[
    ("shared_taken", 1_000),
    ("extended_taken", 1_000),
    ("limit_reached", 500),
    ("resized", 500),
    ("resize_refused", 100),
    ("ended_by_error", 50),
    ("ended_by_reset", 50),
    ("ended_by_destruction", 50),
    ("flushed_under_way", 5),
    ("rcvd_rnr_err", 300),
    ("retransmitted_packets", 1_000),
    ("fault_rx_dropped", 100),
    ("fault_rx_reordered", 100),
];

/// The same for objects that come and go.
const CHAOS: &[(&str, u64)] = &[
    ("completions", 20_000),
    ("connected", 2_000),
    ("destroyed", 1_000),
    ("reset", 1_000),
    ("failed", 1_000),
    ("drains", 200),
    ("resumes", 50),
    ("drained", 50),
    ("last_wqe", 500),
    ("handles_destroyed", 500),
    ("windows_freed", 500),
    ("regions_deregistered", 500),
    ("regions_busy", 20),
    ("shared_queue_busy", 500),
    ("shared_queues_destroyed", 100),
    ("rx_unknown_qp", 500),
    ("rx_wrong_state", 500),
    ("req_cqe_flush_error", 1_000),
    ("resp_cqe_flush_error", 1_000),
];

/// What goes wrong with frames that arrive at one end.
pub fn faults(rng: &mut Rng) -> FaultConfig {
    let mut rx = Vec::new();
    let mut maybe = |rng: &mut Rng, action: Action| {
        if rng.one_in(2) {
            let when = When::Rate(rng.pick(&[0.002, 0.01, 0.03]));
            rx.push(Fault { action, when });
        }
    };
    maybe(rng, Action::Drop);
    maybe(rng, Action::Duplicate);
    let after = 1 + rng.below(6) as u32;
    maybe(rng, Action::Reorder { after, within: Nanos::from_micros(500) });
    let delay = Nanos::from_micros(10 + rng.below(3_000));
    maybe(rng, Action::Delay(delay));
    maybe(rng, Action::Corrupt);
    if rng.one_in(8) {
        rx.clear();
    }
    FaultConfig { seed: rng.next(), rx, ..FaultConfig::default() }
}

/// Runs all seeds of a workload, of which this test is the name.
fn every_seed(
    test: &str,
    least: &'static [(&'static str, u64)],
    run: impl Fn(u64) -> Result<Outcome, String>,
    describe: impl Fn(u64) -> String,
) {
    let (first, count) = (variable("FIRST", 1), variable("SEEDS", SEEDS));
    let mut reach = Reach::new(least);
    for seed in first..first + count {
        match run(seed) {
            Ok(outcome) => reach.add(&outcome),
            Err(why) => panic!(
                "seed {seed}: {why}\n  scenario: {}\n  again: FIRST={seed} SEEDS=1 cargo test --release --features \
                 planted-bugs --test simulation {test}",
                describe(seed)
            ),
        }
    }
    println!("{count} seeds: {reach}");
    if count >= SEEDS {
        reach.assert_everything_was_reached(count);
    }
}

fn run_shared(seed: u64) -> Result<Outcome, String> {
    let scenario = shared::Scenario::from_seed(seed);
    judge(|| shared::run(&scenario))
}

#[test]
fn every_seed_takes_shared_receives_in_order_whoever_ends() {
    let describe = |seed| format!("{:?}", shared::Scenario::from_seed(seed));
    every_seed("every_seed_takes", SHARED, run_shared, describe);
}

#[test]
fn every_seed_accounts_for_everything_whatever_is_taken_away() {
    let run = |seed| judge(|| chaos::run(&chaos::Scenario::from_seed(seed)));
    let describe = |seed| format!("{:?}", chaos::Scenario::from_seed(seed));
    every_seed("every_seed_accounts", CHAOS, run, describe);
}

#[test]
fn a_qp_that_flushes_what_others_share_is_found() {
    PlantedBug::plant(Some(PlantedBug::FlushesSharedReceives));
    let seed = (1..=SEEDS).find(|seed| run_shared(*seed).is_err());
    PlantedBug::plant(None);
    let without = seed.map(run_shared);
    println!("found by seed {seed:?}");
    assert!(matches!(without, Some(Ok(_))), "{without:?}");
}
