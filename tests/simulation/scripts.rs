//! Stored scripts: each file in `tests/scripts` is run and must pass.

use std::fs::DirEntry;
use std::path::Path;

use crate::campaign::run;
use crate::generate;
use crate::script::Script;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn every_stored_script_passes() {
    let folder = Path::new(ROOT).join("tests/scripts");
    let mut failed = Vec::new();
    let mut count = 0;
    // A script that failed has its captures beside it.
    let is_script = |entry: &DirEntry| entry.path().extension().is_some_and(|extension| extension == "txt");
    for entry in std::fs::read_dir(folder).expect("the scripts").flatten().filter(is_script) {
        let text = std::fs::read_to_string(entry.path()).expect("a script");
        let name = entry.file_name().to_string_lossy().into_owned();
        let script = Script::parse(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(text.starts_with('#'), "{name} begins by saying what it is about");
        count += 1;
        if let Err(why) = run(&script, None) {
            failed.push(format!("{name}: {why}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(count > 0, "there are scripts");
}

/// Scripts that demonstrate recovery, one case each.
const LESSONS: [&str; 9] = [
    "lost_last_packet_is_found_by_timeout",
    "psn_gap_is_nakd_once",
    "rnr_nak_delays_the_retransmission",
    "duplicate_read_is_executed_again",
    "ack_that_overtakes_a_read_is_a_nak",
    "silent_peer_exhausts_the_retries",
    "lost_atomic_response_is_sent_again",
    "restarted_peer_exhausts_the_retries",
    "empty_srq_delays_messages_but_loses_none",
];

#[test]
fn each_lesson_expects_counts_and_log_entries() {
    let folder = Path::new(ROOT).join("tests/scripts");
    for name in LESSONS {
        let text = std::fs::read_to_string(folder.join(name).with_extension("txt"));
        let text = text.unwrap_or_else(|why| panic!("{name}: {why}"));
        let words = text.lines().filter(|line| line.starts_with('#')).count();
        let script = Script::parse(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(
            words >= 1 && !script.expected.is_empty() && !script.logs.is_empty(),
            "{name} says too little"
        );
        assert!(run(&script, None).is_ok(), "{name}");
        // A log entry that does not exist must fail the run.
        let mut other = script.clone();
        other.logs.push((other.logs[0].0, "what no log says".into()));
        assert!(run(&other, None).is_err(), "{name} expects nothing of the log");
    }
}

/// `SCRIPT=path` runs that script alone. Relative paths begin at the root.
#[test]
fn one_script() {
    let Ok(path) = std::env::var("SCRIPT") else { return };
    let full = Path::new(ROOT).join(&path);
    let text = std::fs::read_to_string(&full).unwrap_or_else(|why| panic!("{path}: {why}"));
    let script = Script::parse(&text).unwrap_or_else(|why| panic!("{path}: {why}"));
    let captures = full.with_extension("captures");
    std::fs::create_dir_all(&captures).expect("a folder for captures");
    match run(&script, Some(&captures)) {
        Ok(outcome) => println!("{path} holds: {:?}", outcome.counts),
        Err(why) => panic!("{path}: {why}\ncaptures: {}", captures.display()),
    }
}

#[test]
fn script_text_round_trips() {
    for seed in 1..200 {
        let script = generate::script(seed);
        let text = script.to_string();
        assert_eq!(Script::parse(&text).as_ref(), Ok(&script), "seed {seed}:\n{text}");
    }
}

#[test]
fn parse_error_names_line_and_allowed_words() {
    let error = |text: &str| Script::parse(text).expect_err("an error");
    assert_eq!(error("seed 1\nq1 rx h1 h2"), "line 2: `rx` is none of rc, uc, ud, group, xrc");
    assert_eq!(error("q1 rc h1 h3"), "q1: there is no h3");
    assert_eq!(error("at 5 restart h1"), "line 1: `5` is no time: 5ns, 5us and 5ms are");
    assert_eq!(error("lose q1> h1 RC_SEND +0"), "line 1: `RC_SEND` is no opcode: RC_SEND_ONLY is");
    assert_eq!(error("at 5us restart h1 h2"), "line 1: nothing may follow at `h2`");
    assert_eq!(error("at 5us"), "line 1: the line ends where an action should stand");
}
