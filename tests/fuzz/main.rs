//! Bounded runs of hostile input: the fuzzers of `libfuzzer/` run for hours, this test for a moment.
//!
//! Each target takes bytes and must not panic, hang, grow without bound or access memory outside a region; [`targets`]
//! says what else it checks. The test runs the corpus in `corpus/TARGET/` unchanged and mutated, from a fixed seed.
//! `FUZZ_RUNS=n` sets the number of mutations, `FUZZ_SEED=k` the seed. A failing input is written to a file, and the
//! command that repeats it is printed. Coverage-guided runs: `make fuzz TARGET=packets SECONDS=3600`.

#![allow(unreachable_pub)]

mod calls;
mod commands;
mod congestion;
mod input;
mod management;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

const RUNS: u64 = 3_000;
/// Most bytes of an input.
const LONGEST: usize = 2048;

fn variable(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

/// splitmix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        roxie::random::splitmix(&mut self.0)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/fuzz/corpus", target].iter().collect();
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).expect("a readable file")).collect()
}

/// Mutates one or two inputs: bytes flipped, removed, repeated, spliced, set to the ends of their range.
fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len().max(1));
        match random.below(7) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            2 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            3 => bytes.truncate(at),
            4 => bytes.extend((0..random.below(64)).map(|_| random.next() as u8)),
            5 => {
                let other = &corpus[random.below(corpus.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[random.below(other.len().max(1)).min(other.len())..]);
            }
            _ => {
                let end = (at + random.below(64)).min(bytes.len());
                bytes.extend_from_within(at.min(end)..end);
            }
        }
    }
    bytes.truncate(LONGEST);
    bytes
}

fn run(name: &str, target: impl Fn(&[u8])) {
    if let Ok(file) = std::env::var("FUZZ_INPUT") {
        target(&std::fs::read(&file).unwrap_or_else(|e| panic!("{file}: {e}")));
        return;
    }
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "the corpus of {name} is there");
    let mut random = Random(variable("FUZZ_SEED", 1));
    let attempt = |bytes: &[u8]| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(bytes))) {
            let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}.bin"));
            std::fs::write(&file, bytes).expect("a folder for the input");
            eprintln!(
                "{name}: an input of {} bytes fails; again: FUZZ_INPUT={} cargo test --test fuzz {name}",
                bytes.len(),
                file.display()
            );
            std::panic::resume_unwind(panic);
        }
    };
    corpus.iter().for_each(|bytes| attempt(bytes));
    let runs = variable("FUZZ_RUNS", RUNS);
    for _ in 0..runs {
        attempt(&mutate(&corpus, &mut random));
    }
    println!("{name}: {} inputs of the corpus and {runs} mutations of them", corpus.len());
}

#[test]
fn parser_accepts_any_bytes() {
    run("parser", targets::parser);
}

#[test]
fn captures_accept_any_bytes() {
    run("capture", targets::capture);
}

#[test]
fn packets_leave_every_qp_state_in_bounds() {
    run("packets", targets::packets);
}

#[test]
fn commands_accept_any_numbers() {
    run("commands", targets::commands);
}

#[test]
fn corrupt_queues_stay_in_bounds() {
    run("queues", targets::queues);
}

#[test]
fn management_datagrams_leave_a_manager_in_bounds() {
    run("management", management::management);
}

#[test]
fn calls_of_files_stay_in_their_chunks() {
    run("calls", calls::calls);
}
