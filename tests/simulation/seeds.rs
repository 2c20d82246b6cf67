//! Runs many seeds, and checks their coverage.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use roxie::transport::coverage::Coverage;

use crate::campaign::{Objection, explain, folder, run};
use crate::coverage::{Table, unreached};
use crate::generate;
use crate::reach::{LEAST, Reach};

const SEEDS: u64 = 4_000;
/// Number of failures after which a soak run stops.
const MANY: usize = 20;

pub fn variable(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

/// Returns `FIRST`, or 1. `FIRST=clock` draws it from the clock and prints it.
fn first_seed() -> u64 {
    if std::env::var("FIRST").as_deref() != Ok("clock") {
        return variable("FIRST", 1);
    }
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let first = since_1970.expect("a clock after 1970").as_millis() as u64;
    println!("first seed {first}: repeat with FIRST={first}");
    first
}

/// Seeds to run, and the results so far.
struct Seeds {
    next: AtomicU64,
    end: u64,
    /// Begin no seed after this time.
    until: Option<Instant>,
    /// Stop after this number of failures.
    patience: usize,
    /// Print progress.
    progress: bool,
    started: Instant,
    done: Mutex<(Reach, Instant)>,
    failures: Mutex<Vec<(u64, String)>>,
    coverage: Mutex<Coverage>,
}

impl Seeds {
    fn work(&self) {
        loop {
            if self.until.is_some_and(|until| Instant::now() > until) {
                break;
            }
            let seed = self.next.fetch_add(1, Relaxed);
            if seed >= self.end || self.failures.lock().expect("no panic").len() >= self.patience {
                break;
            }
            match run(&generate::script(seed), None) {
                Ok(outcome) => {
                    let mut done = self.done.lock().expect("no panic");
                    done.0.add(&outcome);
                    self.report(seed, &mut done);
                }
                Err(why) => self.fail(seed, &why),
            }
        }
    }

    fn report(&self, seed: u64, (reach, told): &mut (Reach, Instant)) {
        if self.progress && told.elapsed() > Duration::from_secs(20) {
            *told = Instant::now();
            let failures = self.failures.lock().expect("no panic").len();
            let (packets, troubles) = (reach.of("sent_pkts"), reach.troubles());
            println!(
                "seed {seed}, {:.0} s: {packets} packets, {troubles} faults, {failures} failures",
                self.started.elapsed().as_secs_f64()
            );
        }
    }

    fn fail(&self, seed: u64, why: &Objection) {
        let text = explain(&format!("seed-{seed}"), &generate::script(seed), why);
        if self.progress {
            println!("{text}");
        }
        self.failures.lock().expect("no panic").push((seed, text));
    }
}

/// `SEEDS` is the number of seeds, `FIRST` the first one or `clock`, `MINUTES` the maximum duration, `THREADS` the
/// number of threads. With `SOAK=1` the run prints its progress and continues after a failure.
#[test]
fn every_seed_passes() {
    let (first, count) = (first_seed(), variable("SEEDS", SEEDS));
    let soak = variable("SOAK", 0) > 0;
    let now = Instant::now();
    let minutes = variable("MINUTES", 0);
    let seeds = Seeds {
        next: AtomicU64::new(first),
        end: first.saturating_add(count),
        until: (minutes > 0).then(|| now + Duration::from_secs(60 * minutes)),
        patience: if soak { MANY } else { 1 },
        progress: soak,
        started: now,
        done: Mutex::new((Reach::new(LEAST), now)),
        failures: Mutex::new(Vec::new()),
        coverage: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for _ in 0..variable("THREADS", 2) {
            scope.spawn(|| {
                seeds.work();
                seeds.coverage.lock().expect("no panic").merge(&Coverage::take());
            });
        }
    });
    let failures = seeds.failures.into_inner().expect("no panic");
    let texts: Vec<_> = failures.into_iter().map(|(_, text)| text).collect();
    assert!(texts.is_empty(), "{}\nall is kept in {}", texts.join("\n\n"), folder().display());
    let reach = seeds.done.into_inner().expect("no panic").0;
    let count = seeds.next.into_inner().min(seeds.end) - first;
    println!("{count} seeds, {:.0} s: {reach}", now.elapsed().as_secs_f64());
    let coverage = seeds.coverage.into_inner().expect("no panic");
    let missing = unreached(&coverage);
    if soak || variable("TABLE", 0) > 0 {
        println!("{}\nnot reached: {missing:#?}", Table(&coverage));
    }
    // With all channels alike, some situations do not arise.
    if count >= SEEDS && !generate::is_uniform() {
        reach.assert_everything_was_reached(count);
        assert!(missing.is_empty(), "not reached in {count} seeds: {missing:#?}");
    }
}

#[test]
fn same_seed_gives_the_same_packets() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = generate::script(7);
    let capture = |name: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).expect("a folder");
        run(&script, Some(&path)).expect("seed 7 holds");
        std::fs::read(path.join("h1-0.pcapng")).expect("the capture")
    };
    let (one, two) = (capture("one"), capture("two"));
    assert!(one.len() > 10_000, "{} bytes", one.len());
    assert!(one == two, "two runs of one seed differ");
}
