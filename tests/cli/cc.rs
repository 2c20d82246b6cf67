//! `roxie cc` as users run it.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::in_time::ChildInTime;
use serde_json::Value;

#[derive(Debug)]
struct Finished {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs `roxie cc` with these arguments, separated by spaces, and this standard input.
fn cc(arguments: &str, input: &str) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
    command.arg("cc").args(arguments.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("roxie starts");
    // The command may exit without reading its input.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let output = child.output_in_time();
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Finished { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn succeeded(arguments: &str, input: &str) -> String {
    let done = cc(arguments, input);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:#?}");
    done.stdout
}

#[test]
fn paper_table_is_printed() {
    let events =
        r#"[{"us": 0, "cnp": true}, {"us": 55}, {"us": 110.0}, {"us": 165}, {"us": 220}, {"us": 275}]"#;
    let wanted = r#"{"version":1,"us":0,"rc_gbps":20.0,"rt_gbps":40.0,"alpha":1.0,"byte_stage":0,"timer_stage":0}
{"version":1,"us":55,"rc_gbps":30.0,"rt_gbps":40.0,"alpha":0.99609375,"byte_stage":0,"timer_stage":1}
{"version":1,"us":110.0,"rc_gbps":35.0,"rt_gbps":40.0,"alpha":0.9922027587890625,"byte_stage":0,"timer_stage":2}
{"version":1,"us":165,"rc_gbps":37.5,"rt_gbps":40.0,"alpha":0.9883269667625427,"byte_stage":0,"timer_stage":3}
{"version":1,"us":220,"rc_gbps":38.75,"rt_gbps":40.0,"alpha":0.9844663145486265,"byte_stage":0,"timer_stage":4}
{"version":1,"us":275,"rc_gbps":39.375,"rt_gbps":40.0,"alpha":0.980620743007421,"byte_stage":0,"timer_stage":5}
"#;
    let arguments = "replay --preset paper --line-rate 40";
    assert_eq!(succeeded(&format!("{arguments} -"), events), wanted);
    // Events from a file, one a line.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("events.json");
    let lines = events.trim_matches(['[', ']']).replace("}, ", "}\n");
    fs::write(&file, lines).unwrap();
    assert_eq!(succeeded(&format!("{arguments} {}", file.display()), ""), wanted);
}

/// By hand: 150,000 bytes are four steps of 32,767 with a remainder of 18,932; 13,835 more make the fifth.
#[test]
fn adapter_table_is_printed() {
    let events = r#"{"us": 5, "bytes": 99999999}
        {"us": 10, "cnp": true} {"us": 10, "cnp": false} {"us": 22.5, "bytes": 150000}
        {"us": 30, "bytes": 13834} {"us": 31, "bytes": 1.0} {"us": 310}"#;
    let printed = succeeded("replay --line-rate 40 -", events);
    let rows: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stages: Vec<[u64; 2]> =
        rows.iter().map(|r| ["byte_stage", "timer_stage"].map(|k| r[k].as_u64().unwrap())).collect();
    assert_eq!(stages, [[0, 0], [0, 0], [0, 0], [4, 0], [4, 0], [5, 0], [5, 1]]);
    let after = 40.0 * (1.0 - 1023.0 / 2048.0);
    let gap = 40.0 - after;
    let wanted =
        [40.0, after, after, 40.0 - gap / 16.0, 40.0 - gap / 16.0, 40.0 - gap / 32.0, 40.0 - gap / 64.0];
    for (row, wanted) in rows.iter().zip(wanted) {
        assert!((row["rc_gbps"].as_f64().unwrap() - wanted).abs() < 1e-9, "{row}: {wanted}");
        assert_eq!(row["rt_gbps"], 40.0);
    }
}

#[test]
fn knobs_are_set_by_any_name() {
    let events = r#"[{"us":0,"cnp":true},{"us":20},{"us":39.999},{"us":40}]"#;
    let arguments = "replay --preset PAPER --set rp_time_reset=20 --set rpg_gd=10 --set RPG_MIN_DEC_FAC=25 --line-rate 0.1 -";
    let printed = succeeded(arguments, events);
    let rates: Vec<f64> = printed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["rc_gbps"].as_f64().unwrap())
        .collect();
    assert_eq!(rates, [0.025, 0.0625, 0.0625, 0.08125]);
    assert_eq!(succeeded("replay --line-rate 1 -", "[]"), "");
}

#[test]
fn invalid_event_is_named_by_number() {
    for (events, parts) in [
        ("", &["standard input: there are no events", "JSON array"][..]),
        ("rate", &["no JSON behind 0 events", "line 1 column 1"]),
        (r#"{"us":0}{"us":1},"#, &["no JSON behind 2 events"]),
        (r#"[{"us":0},"#, &["no JSON", "EOF"]),
        (r#"[{"us":0},7]"#, &["event 2: an object is wanted", "not 7"]),
        (r#"[{"us":0}] {"us":1} [1]"#, &["event 3: an object is wanted"]),
        (r#"[{"us":0},{"cnp":true}]"#, &["event 2: us is missing"]),
        (r#"[{"us":-1}]"#, &["event 1: us is -1", "0 to 1e12"]),
        (r#"[{"us":1e13}]"#, &["event 1: us is 1"]),
        (r#"[{"us":"0"}]"#, &["event 1: us is \"0\"", "a number of microseconds"]),
        (r#"[{"us":2},{"us":2},{"us":1.5}]"#, &["event 3: time goes back, from 2 us to 1.5"]),
        (r#"[{"us":0,"bytes":-4}]"#, &["event 1: bytes is -4", "0 or more"]),
        (r#"[{"us":0,"bytes":1.5}]"#, &["event 1: bytes is 1.5", "a whole number"]),
        (r#"[{"us":0,"bytes":"9"}]"#, &["event 1: bytes is \"9\""]),
        (r#"[{"us":0,"cnp":true,"bytes":9}]"#, &["event 1: it has both cnp and bytes"]),
        (r#"[{"us":0,"cnp":1}]"#, &["event 1: cnp is 1: it is true or false"]),
        (r#"[{"us":0},{"us":1,"cpn":true}]"#, &["event 2: `cpn` is no key: there are us, cnp and bytes"]),
    ] {
        let done = cc("replay --line-rate 40 -", events);
        assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{events}: {done:#?}");
        assert!(done.stderr.starts_with("roxie cc: ") && done.stderr.lines().count() == 1, "{done:#?}");
        for part in parts {
            assert!(done.stderr.contains(part), "{events}: no {part:?} in {done:#?}");
        }
    }
    let none = cc("replay --line-rate 40 /nosuch/events.json", "");
    assert_eq!(none.code, Some(1));
    assert!(none.stderr.contains("cannot read /nosuch/events.json: No such file"), "{none:#?}");
}

#[test]
fn invalid_arguments_are_refused() {
    for (arguments, parts) in [
        ("replay -", &["--line-rate"][..]),
        ("replay --line-rate 40", &["EVENTS.json"]),
        ("replay --line-rate 0 -", &["'0'", "0.000001 to 10000"]),
        ("replay --line-rate NaN -", &["'NaN'"]),
        ("replay --line-rate 40G -", &["'40G'", "number of Gb/s"]),
        ("replay --line-rate 40 --preset papr -", &["`papr` is no preset", "connectx and paper"]),
        ("replay --line-rate 40 --set rpg_gd -", &["--set rpg_gd: write KNOB=VALUE"]),
        ("replay --line-rate 40 --set rpg_ai_rat=4 -", &["`rpg_ai_rat`", "did you mean rpg_ai_rate?"]),
        ("replay --line-rate 40 --set rpg_ai_rate=0 -", &["rpg_ai_rate=0: it takes 0.001..10000000 Mb/s"]),
        ("replay --line-rate 40 --set rpg_max_rate=0.5 -", &["rpg_min_rate=1 is above rpg_max_rate=0.5"]),
    ] {
        let done = cc(arguments, "[]");
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{arguments}: {done:#?}");
        for part in parts {
            assert!(done.stderr.contains(part), "{arguments}: no {part:?} in {done:#?}");
        }
    }
}

#[test]
fn knobs_are_listed() {
    let table = succeeded("knobs", "");
    assert_eq!(table.lines().count(), 21, "{table}");
    let row = table.lines().find(|line| line.starts_with("dce_tcp_g ")).expect("a row");
    let cells: Vec<&str> = row.split_whitespace().take(6).collect();
    assert_eq!(cells, ["dce_tcp_g", "rp_dce_tcp_g", "1/1024", "0..1023", "1019", "1020"]);
    let listed: Value = serde_json::from_str(&succeeded("knobs --json", "")).unwrap();
    let ai =
        listed["knobs"].as_array().unwrap().iter().find(|row| row["alias"] == "rp_ai_rate").expect("a row");
    assert_eq!(
        (&ai["name"], &ai["connectx"], &ai["paper"]),
        (&"rpg_ai_rate".into(), &"5".into(), &"40".into())
    );
    for command in ["knobs", "replay"] {
        let help = succeeded(&format!("{command} --help"), "");
        assert!(help.contains("Examples:") && help.contains("Exit codes: 0 "), "{help}");
    }
}
