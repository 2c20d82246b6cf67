//! Hostile clients of several users next to well-behaved ones, in virtual time. Each execution is one action of a
//! hostile client, in random order; the NICs run in between. There are no threads, so a seed decides everything.
//!
//! Checked invariants: memory and completions of well-behaved clients are as expected, each of their exchanges ends
//! within [`MOST_TURNS`] turns, no hostile client is granted another's object, and in the end no object, charge,
//! descriptor or mapping is left.
//!
//! `EXECUTIONS=10000000 cargo test --release --lib hostile_clients` runs more of them, `FIRST=7 EXECUTIONS=1` one seed.

mod attacker;
mod bench;
mod honest;
mod overdue;
mod tally;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command as Program;
use std::time::Instant;

use super::Quota;
use super::hostile::Known;
use attacker::Attacker;
pub(super) use bench::{Bench, UnthreadedClient};
use honest::Couple;
use roxie_base::random::splitmix;
use roxie_base::time::Nanos;
use roxie_nic::shared::EventCounter;
pub(super) use tally::{Tally, kind_of};

/// Executions of a normal run, and of one seed.
const EXECUTIONS: u64 = 100_000;
const OF_A_SEED: u64 = 2_000;
/// Maximum turns of an exchange. Measured: 62 at most in 10^7 executions.
const MOST_TURNS: u64 = 200;
/// Users of the hostile clients. The last is also the user of a well-behaved one.
const USERS: [u32; 3] = [2000, 2001, 1000];
/// Set in the process that runs one test alone, because the process has one set of counts.
const ALONE: &str = "ROXIE_TEST_ALONE";
/// The service of a port number of `RDMA_PS_TCP`.
const SERVICE: u64 = 0x0106_0000 + 7471;

const QUOTA: Quota = Quota {
    qps: 6,
    cqes: 5000,
    mrs: 8,
    bytes: 4 << 20,
    objects: 12,
    queue_bytes: 8 << 20,
    arenas: 16,
    channels: 8,
    xrcds: 4,
    memberships: 8,
    flows: 4,
    ports: 64,
    bits_per_second: u64::MAX,
};

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}=number")))
}

/// Kinds of requests and actions, with the numbers executed and refused that a normal run must reach.
const REACH: &[(&str, [u64; 2])] = &[
    ("AllocPd", [400, 100]),
    ("AllocFastMemory", [400, 400]),
    ("AllocWindow", [100, 100]),
    ("Arena", [100, 1]),
    ("AttachMulticast", [20, 100]),
    ("CreateAh", [100, 100]),
    ("CreateCq", [400, 100]),
    ("CreateFlow", [0, 100]),
    ("CreateQp", [400, 400]),
    ("CreateSrq", [100, 400]),
    ("CreateXrcTarget", [50, 100]),
    ("DeregisterMemory", [50, 100]),
    ("DestroyCq", [50, 100]),
    ("DestroyQp", [50, 100]),
    ("DestroySrq", [20, 100]),
    ("ModifyQp", [1000, 1000]),
    ("ModifySrq", [50, 400]),
    ("RegisterMemory", [200, 400]),
    ("ReleaseMemory", [50, 100]),
    ("ReregisterMemory", [50, 400]),
    ("ResizeCq", [200, 200]),
    ("Services", [100, 100]),
    ("TakeUnit", [0, 100]),
    ("a work request", [2000, 1000]),
    ("a bent request", [5, 50]),
    ("a closed eventfd", [50, 0]),
    ("a length that is a lie", [0, 5]),
    ("a wrong greeting", [0, 500]),
    ("an event", [10, 100]),
    ("another process", [5, 0]),
    ("any bytes", [0, 20]),
    ("bells that are written over", [400, 0]),
    ("coming again", [100, 0]),
    ("descriptors of any kind", [50, 100]),
    ("half of a request", [0, 5]),
    ("hanging up", [20, 0]),
    ("behind the end", [100, 0]),
    ("protected", [100, 0]),
    ("the end of another process", [1, 0]),
];

/// Descriptors, mappings of memory files, and threads of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    mappings: usize,
    threads: usize,
}

impl Held {
    fn now() -> Held {
        let count = |folder: &str| fs::read_dir(folder).expect("this process's own").count();
        let maps = fs::read_to_string("/proc/self/maps").expect("this process's own");
        Held {
            descriptors: count("/proc/self/fd"),
            mappings: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            threads: count("/proc/self/task"),
        }
    }
}

/// Results of a seed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    tally: Tally,
    exchanges: u64,
    /// Turns of the longest exchange.
    longest: u64,
    turns: u64,
}

fn run(seed: u64, executions: u64) -> Outcome {
    let before = Held::now();
    let mut bench = Bench::new(seed, QUOTA);
    let own = bench.sides.each_ref().map(|side| side.objects());
    let mut couples = [
        Couple::new(&bench, [(0, 1000), (0, 1001)], 2 * seed),
        Couple::new(&bench, [(0, 1000), (1, 1000)], 2 * seed + 1),
    ];
    let mut known = Known { services: vec![SERVICE], ..Known::default() };
    for (qp, key, address, slot) in couples.iter().flat_map(Couple::known) {
        known.qpns.push(qp.qpn);
        known.keys.push(key);
        known.addresses.push(address);
        known.slots.push(slot);
    }
    let honest = bench.sides.each_ref().map(|side| side.objects());
    let mut state = seed;
    let mut attackers: Vec<_> =
        USERS.map(|uid| Attacker::new(&bench, uid, known.clone(), splitmix(&mut state))).into();
    for execution in 0..executions {
        let at = splitmix(&mut state) as usize % attackers.len();
        if let Err(what) = attackers[at].act(&bench) {
            panic!("execution {execution}: {what}");
        }
        let drawn = splitmix(&mut state);
        if drawn.is_multiple_of(2) {
            // Now and then timers of hostile QPs expire.
            let later = if drawn.is_multiple_of(128) { Nanos::from_micros(200) } else { Nanos::ZERO };
            bench.turn(later);
        }
        let turns = bench.turns();
        couples.iter_mut().for_each(|couple| couple.step(turns, MOST_TURNS));
        if drawn.is_multiple_of(64) {
            let _ = bench.sides.each_ref().map(|side| side.objects());
        }
    }
    let mut outcome = Outcome { turns: bench.turns(), ..Outcome::default() };
    attackers.into_iter().for_each(|attacker| outcome.tally.add(attacker.end()));
    for (side, honest) in bench.sides.iter().zip(honest) {
        assert_eq!(side.objects(), honest, "left of hostile clients");
    }
    for couple in &couples {
        outcome.exchanges += couple.exchanges;
        outcome.longest = outcome.longest.max(couple.longest);
    }
    drop(couples);
    for (side, own) in bench.sides.iter().zip(own) {
        assert_eq!(side.objects(), own, "left of honest clients");
        assert!(side.accounts().are_empty(), "something is still charged");
        assert_eq!(side.engine().inspect(|worker| worker.clients().page_count()), 0, "doorbell pages");
    }
    drop(bench);
    assert_eq!(Held::now(), before, "what the process holds");
    outcome
}

/// Runs a test of `daemon::tests` in a process of its own, and returns true there.
pub(super) fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("this program");
    let mut program = Program::new(own);
    program.args(["--exact", &format!("daemon::tests::{test}"), "--nocapture", "--test-threads=1"]);
    let status = program.env(ALONE, "1").status().expect("it starts");
    assert!(status.success(), "{status}");
    false
}

#[test]
fn hostile_clients_harm_no_honest_one() {
    if !is_alone("campaign::hostile_clients_harm_no_honest_one") {
        return;
    }
    // Allocated before the count, and held from then on.
    EventCounter::prepare().expect("a kernel that counts for others");
    let (first, executions) = (variable("FIRST", 1), variable("EXECUTIONS", EXECUTIONS));
    let (begun, mut all) = (Instant::now(), Outcome::default());
    let seeds = executions.div_ceil(OF_A_SEED);
    for seed in first..first + seeds {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(seed, OF_A_SEED))).unwrap_or_else(|panic| {
            eprintln!(
                "again: FIRST={seed} EXECUTIONS=1 cargo test --lib hostile_clients_harm -- --nocapture"
            );
            resume_unwind(panic);
        });
        all.tally.add(outcome.tally);
        all.exchanges += outcome.exchanges;
        all.turns += outcome.turns;
        all.longest = all.longest.max(outcome.longest);
    }
    let (executions, seconds) = (seeds * OF_A_SEED, begun.elapsed().as_secs_f64());
    println!("{seeds} seeds, {executions} executions, {seconds:.0} s");
    println!("{} turns, {} exchanges, the longest in {} turns", all.turns, all.exchanges, all.longest);
    println!("     done   refused\n{}", all.tally);
    if executions >= EXECUTIONS {
        let missing =
            REACH.iter().filter(|(kind, least)| all.tally.of(kind).iter().zip(least).any(|(n, l)| n < l));
        let missing: Vec<_> = missing.map(|(kind, least)| (kind, least, all.tally.of(kind))).collect();
        assert!(missing.is_empty(), "done and refused less often than is due: {missing:?}");
        assert!(all.exchanges > executions / 8, "{} exchanges", all.exchanges);
    }
}

#[test]
fn seed_decides_the_whole_campaign() {
    if is_alone("campaign::seed_decides_the_whole_campaign") {
        EventCounter::prepare().expect("a kernel that counts for others");
        assert_eq!(run(3, 500), run(3, 500));
    }
}

/// The seeds must find each bug.
#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_of_a_nic_are_found() {
    use roxie_nic::nic::PlantedBug;
    const SEEDS: u64 = 20;
    if !is_alone("campaign::planted_bugs_of_a_nic_are_found") {
        return;
    }
    EventCounter::prepare().expect("a kernel that counts for others");
    for bug in [PlantedBug::NamesOthersQps, PlantedBug::HearsTheGone] {
        PlantedBug::plant(Some(bug));
        let caught_by = (1..=SEEDS).find(|seed| catch_unwind(|| run(*seed, OF_A_SEED)).is_err());
        PlantedBug::plant(None);
        println!("{bug:?}: found by seed {caught_by:?}");
        assert!(caught_by.is_some(), "{bug:?} was not found in {SEEDS} seeds");
    }
}
