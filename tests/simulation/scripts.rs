//! Instructive scripts: all of `tests/scripts` run with every test.

use std::path::Path;

use crate::campaign::run;
use crate::generate;
use crate::script::Script;

#[test]
fn all_scripts_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut failed = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the scripts").flatten() {
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

/// Names of the recovery scripts; each name states its lesson.
const LESSONS: [&str; 9] = [
    "lost_last_packet_is_found_by_timeout",
    "gap_causes_one_sequence_nak",
    "rnr_nak_delays_the_retransmission",
    "duplicate_read_is_executed_again",
    "ack_beyond_a_read_is_an_implied_nak",
    "silent_peer_uses_up_the_retries",
    "lost_atomic_response_is_resent",
    "restarted_peer_ends_the_retries",
    "empty_srq_causes_rnr_nak_and_loses_nothing",
];

#[test]
fn each_lesson_checks_completions_and_log() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
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
        // The check is effective: unexpected records fail.
        let mut other = script.clone();
        other.logs.push((other.logs[0].0, "what no log says".into()));
        assert!(run(&other, None).is_err(), "{name} expects nothing of the log");
    }
}

/// `SCRIPT=path` runs only that script.
#[test]
fn given_script_passes() {
    let Ok(path) = std::env::var("SCRIPT") else { return };
    let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path}: {why}"));
    let script = Script::parse(&text).unwrap_or_else(|why| panic!("{path}: {why}"));
    let captures = Path::new(&path).with_extension("captures");
    std::fs::create_dir_all(&captures).expect("a folder for captures");
    match run(&script, Some(&captures)) {
        Ok(outcome) => println!("{path} holds: {:?}", outcome.counts),
        Err(why) => panic!("{path}: {why}\ncaptures: {}", captures.display()),
    }
}

#[test]
fn script_round_trips_through_text() {
    for seed in 1..200 {
        let script = generate::script(seed);
        let text = script.to_string();
        assert_eq!(Script::parse(&text).as_ref(), Ok(&script), "seed {seed}:\n{text}");
    }
}

#[test]
fn invalid_line_is_named_with_expectation() {
    let said = |text: &str| Script::parse(text).expect_err("an error");
    assert_eq!(said("seed 1\nq1 rx h1 h2"), "line 2: `rx` is none of rc, uc, ud, group, xrc");
    assert_eq!(said("q1 rc h1 h3"), "q1: there is no h3");
    assert_eq!(said("at 5 restart h1"), "line 1: `5` is no time: 5ns, 5us and 5ms are");
    assert_eq!(said("lose q1> h1 RC_SEND +0"), "line 1: `RC_SEND` is no opcode: RC_SEND_ONLY is");
    assert_eq!(said("at 5us restart h1 h2"), "line 1: nothing may follow at `h2`");
    assert_eq!(said("at 5us"), "line 1: the line ends where an action should stand");
}
