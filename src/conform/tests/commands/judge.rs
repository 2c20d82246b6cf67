//! `roxie judge` on captures of rdma_rxe and of Roxie, and on files that are no captures.

use std::fs;
use std::path::Path;
use std::process::Command;

use roxie::capture::{Reader, link_type};
use serde_json::Value;

use crate::{Running, roxie, run};

fn data(name: &str) -> String {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(name).display().to_string()
}

/// Judges a capture. Returns the JSON.
fn judged(name: &str) -> Value {
    let done = run(&format!("judge --json {}", data(name))).succeeded();
    serde_json::from_str(&done.stdout).expect("JSON")
}

fn ruling<'a>(judged: &'a Value, name: &str) -> &'a Value {
    let rulings = judged["captures"][0]["rulings"].as_array().expect("rulings");
    rulings.iter().find(|ruling| ruling["rule"] == name).expect("a rule")
}

#[test]
fn captures_of_rxe_keep_the_rules() {
    for (name, kept) in
        [("rxe-6.12-verbs-ipv4.pcap", "answers_what_arrived"), ("rxe-6.12-cm.pcap", "recovers")]
    {
        let judged = judged(name);
        assert_eq!(judged["version"], 1);
        let capture = &judged["captures"][0];
        assert!(capture["of_connections"].as_u64() > Some(0), "{name}: {capture}");
        assert!(ruling(&judged, kept)["kept"].as_u64() > Some(0), "{name}: {capture}");
    }
}

#[test]
fn loss_is_seen_from_both_ends() {
    let both = [data("lost-near.pcapng"), data("lost-far.pcapng")].join(" ");
    let done = run(&format!("judge --json {both}")).succeeded();
    let judged: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let captures = judged["captures"].as_array().expect("captures");
    assert_eq!(captures.len(), 2);
    let kept = |rule: &str| ruling(&judged, rule)["kept"].as_u64();
    assert!(kept("again_from_the_gap") > Some(0) && kept("nak_once") > Some(0), "{judged}");
    let text = run(&format!("judge -v {both}")).succeeded().stdout;
    for words in [
        "lost-near.pcapng: ",
        "lost-far.pcapng: ",
        "keeps      again_from_the_gap, 9.9.2.4.2: ",
        "not tested ",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

/// Writes a capture with these frames of `lost-far.pcapng`, by their numbers.
fn with_frames(file: &Path, numbers: &[usize]) {
    let mut reader = Reader::new(fs::File::open(data("lost-far.pcapng")).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.link_type, link_type::ETHERNET);
        frames.push((record.timestamp_ns.expect("a time"), record.data.to_vec(), record.wire_len as u32));
    }
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut bytes = words(&[0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 1 << 16, link_type::ETHERNET]);
    for (at, number) in numbers.iter().enumerate() {
        let (time, frame, wire) = &frames[number - 1];
        let ns = time % 1_000_000_000 + at as u64;
        let length = frame.len() as u32;
        bytes.extend(words(&[(time / 1_000_000_000) as u32, ns as u32, length, *wire]));
        bytes.extend(frame);
    }
    fs::write(file, bytes).unwrap();
}

#[test]
fn broken_rule_names_side_frames_and_ladder() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // The sequence NAK, frame 6, comes again before what it asks for.
    with_frames(&path("x.pcap"), &[1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10, 11]);
    let options = format!("--junit {} --html {}", path("x.xml").display(), path("x.html").display());
    let done = run(&format!("judge {} {options}", path("x.pcap").display()));
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let finding =
        "192.0.2.2, frame 6 and 7: a second sequence NAK of PSN 7488983, which has not come since the first";
    for words in
        ["breaks     nak_once, 9.7.5.2.8: ", finding, "NAK_PSN_SEQUENCE", "keeps      again_from_the_gap"]
    {
        assert!(done.stdout.contains(words), "no {words:?} in {}", done.stdout);
    }
    assert!(fs::read_to_string(path("x.xml")).unwrap().contains("failures=\"1\""));
    assert!(fs::read_to_string(path("x.html")).unwrap().contains("a second sequence NAK"));
    // Without frame 3, what comes later says that it is missing, and breaks nothing.
    with_frames(&path("x.pcap"), &[1, 2, 7, 8, 10, 11]);
    let done = run(&format!("judge {}", path("x.pcap").display())).succeeded();
    assert!(
        done.stdout.contains("not decidable 1 times: 1 packets are missing between frames 4 and 5"),
        "{}",
        done.stdout
    );
}

#[test]
fn what_is_no_capture_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x");
    fs::write(&file, "no capture").unwrap();
    run(&format!("judge {}", file.display())).failed(1, &["roxie judge: ", "neither pcap nor pcapng"]);
    run("judge /no/such/file").failed(1, &["/no/such/file"]);
    run("judge").failed(2, &["FILE"]);
    // Cut within a frame: what comes before is judged, and the exit code says that the rest is not.
    let whole = fs::read(data("rxe-6.12-verbs-ipv4.pcap")).unwrap();
    fs::write(&file, &whole[..whole.len() - 7]).unwrap();
    let done = run(&format!("judge {}", file.display()));
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stdout.contains("the rest was not read: the capture is cut short"), "{}", done.stdout);
    // From a pipe.
    let mut piped = Command::new("sh");
    piped.args(["-c", "\"$0\" judge - <\"$1\""]).arg(roxie("").get_program()).arg(data("lost-near.pcapng"));
    Running::start(piped).finish().succeeded();
}
