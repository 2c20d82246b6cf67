//! Instructions per message, compared with the first release. Counts vary less than times, on any machine.
//!
//! `cargo bench -p benches --bench instructions` runs itself under callgrind, for each case with two numbers of
//! messages. The difference is the cost of the messages without the setup. The two sides are summed, as in the `engine`
//! benchmark. `--save` writes `benches/instructions.txt`, which the next run compares with. Exit code 1: a case costs
//! over 5 % more than in that file. Callgrind does not support AVX-512, so the ICRC of large packets takes more
//! instructions than natively.

mod two_nics;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use two_nics::{BATCH, Bench, CASES};

/// Batches of the short run and of the long run.
const BATCHES: [usize; 2] = [8, 40];
/// A higher ratio to the file is a regression.
const TOLERANCE: f64 = 1.05;
/// First argument of the child process.
const CHILD: &str = "--batches-of-case";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == CHILD) {
        let number = |i: usize| arguments[at + i].parse().expect("the parent passes numbers");
        run_case(number(1), number(2));
        return ExitCode::SUCCESS;
    }
    let version = Command::new("timeout").args(["60", "valgrind", "--version"]).output();
    if !version.is_ok_and(|asked| asked.status.success()) {
        println!("instructions: skipped, there is no valgrind (apt-get install valgrind)");
        return ExitCode::SUCCESS;
    }
    let save = arguments.iter().any(|a| a == "--save");
    let before = baseline();
    let mut regressed = false;
    let mut text = String::from("# Instructions a message, both sides; see instructions.rs.\n");
    println!("{:<16} {:>12} {:>12} {:>7}", "case", "instructions", "before", "ratio");
    for (case, (opcode, length)) in CASES.iter().enumerate() {
        let name = format!("{opcode:?}/{length}");
        let Some(now) = per_message(case) else {
            println!("{name:<16} valgrind gave no count");
            return ExitCode::FAILURE;
        };
        match before.get(&name) {
            Some(&before) => {
                let ratio = now / before;
                regressed |= ratio > TOLERANCE;
                println!("{name:<16} {now:>12.0} {before:>12.0} {ratio:>7.3}");
            }
            None => println!("{name:<16} {now:>12.0}"),
        }
        text += &format!("{name} {now:.0}\n");
    }
    if save {
        std::fs::write(file(), text).expect("the folder of this benchmark can be written");
    } else if regressed {
        println!("instructions: more than {TOLERANCE} of what they were; if that is meant, --save");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run_case(case: usize, batches: usize) {
    let (opcode, length) = CASES[case];
    let mut bench = Bench::new(1, BATCH, 65_536);
    for _ in 0..batches {
        bench.batch(opcode, length);
    }
}

fn per_message(case: usize) -> Option<f64> {
    let [short, long] = BATCHES.map(|batches| count(case, batches));
    let messages = ((BATCHES[1] - BATCHES[0]) * BATCH) as f64;
    Some((long? - short?) as f64 / messages)
}

/// Returns the instructions of a whole run, from the last line of callgrind's output.
fn count(case: usize, batches: usize) -> Option<u64> {
    let output = Command::new("timeout")
        .args(["1800", "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().ok()?)
        .args([CHILD, &case.to_string(), &batches.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

fn file() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "instructions.txt"].iter().collect()
}

fn baseline() -> HashMap<String, f64> {
    let text = std::fs::read_to_string(file()).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter_map(|(name, count)| Some((name.to_string(), count.parse().ok()?))).collect()
}
