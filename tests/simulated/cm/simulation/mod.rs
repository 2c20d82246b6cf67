//! Many managers over a link that loses, doubles, delays and reorders messages, with consumers of all kinds. A seed
//! decides everything.
//!
//! [`world`] moves messages and time, [`consumer`] acts as applications do, [`truth`] records all actions and rejects
//! impossible results. `CM_SEED=n` repeats a failing seed; `CM_SEEDS=n` runs n seeds.

mod consumer;
mod truth;
mod world;

use roxie::cm::unseen_transitions;
use world::{Summary, World};

const SEEDS: u64 = 3_000;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn both_ends_agree_over_any_link() {
    let (first, count) = match (variable("CM_SEED"), variable("CM_SEEDS")) {
        (Some(seed), _) => (seed, 1),
        (None, count) => (0, count.unwrap_or(SEEDS)),
    };
    let mut all = Summary::default();
    for seed in first..first + count {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        match run {
            Ok(summary) => all.add(&summary),
            Err(_) => panic!("seed {seed} failed; repeat it with CM_SEED={seed}"),
        }
    }
    if count >= SEEDS {
        // The seeds must reach all of these outcomes, or the oracles have checked nothing.
        let reached = format!("{all:?}");
        assert!(all.connected > 3 * count && all.rejected > count, "{reached}");
        assert!(all.unreachable > count / 2 && all.resolved > count && all.crashes > count / 4, "{reached}");
        assert!(all.stale > 20 && all.invalid_comm_id > 20 && all.waited > count, "{reached}");
        assert!(all.by_data > 20 && all.refused_later > 20, "{reached}");
        // This link returns no message to its sender.
        let missed =
            unseen_transitions(all.transitions).into_iter().filter(|row| !row.contains("Undelivered"));
        assert_eq!(missed.collect::<Vec<_>>(), [""; 0], "transitions that no seed has made");
    }
}

#[test]
fn seed_gives_the_same_messages() {
    for seed in [3, 77, 1234] {
        assert_eq!(World::new(seed).run(), World::new(seed).run(), "seed {seed}");
    }
}
