//! `roxie judge` on captures of rdma_rxe and of Roxie, and on files that are no captures.

use std::fs;
use std::path::Path;
use std::process::Command;

use roxie::capture::{BYTE_ORDER_MAGIC, Direction, Reader, block, link_type};
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

/// Returns a block of pcapng.
fn block_of(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() + 12) as u32;
    [&kind.to_le_bytes()[..], &length.to_le_bytes(), body, &length.to_le_bytes()].concat()
}

/// Writes a capture with these frames of `lost-near.pcapng`, by their numbers, and their directions.
fn with_frames(file: &Path, numbers: &[usize]) {
    let mut reader = Reader::new(fs::File::open(data("lost-near.pcapng")).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.link_type, link_type::ETHERNET);
        let flags: u32 = if record.direction == Some(Direction::Out) { 2 } else { 1 };
        frames.push((
            record.timestamp_ns.expect("a time"),
            record.data.to_vec(),
            record.wire_len as u32,
            flags,
        ));
    }
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut bytes = block_of(block::SECTION_HEADER, &words(&[BYTE_ORDER_MAGIC, 1, u32::MAX, u32::MAX]));
    bytes.extend(block_of(block::INTERFACE, &words(&[link_type::ETHERNET, 0])));
    for (at, number) in numbers.iter().enumerate() {
        let (time, frame, wire, flags) = &frames[number - 1];
        let us = time / 1000 + at as u64;
        let mut body = words(&[0, (us >> 32) as u32, us as u32, frame.len() as u32, *wire]);
        body.extend(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        // epb_flags, and the end of the options.
        body.extend(words(&[4 << 16 | 2, *flags, 0]));
        bytes.extend(block_of(block::ENHANCED_PACKET, &body));
    }
    fs::write(file, bytes).unwrap();
}

#[test]
fn broken_rule_names_side_frames_and_ladder() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Without frame 8, the request that the sequence NAK asks for.
    with_frames(&path("x.pcapng"), &[1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12]);
    let options = format!("--junit {} --html {}", path("x.xml").display(), path("x.html").display());
    let done = run(&format!("judge {} {options}", path("x.pcapng").display()));
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let finding =
        "192.0.2.1, frame 7 and 8: behind a sequence NAK of PSN 7488983 the sender goes back to 7488984";
    for words in
        ["breaks     again_from_the_gap, 9.9.2.4.2: ", finding, "NAK_PSN_SEQUENCE", "keeps      nak_once"]
    {
        assert!(done.stdout.contains(words), "no {words:?} in {}", done.stdout);
    }
    assert!(fs::read_to_string(path("x.xml")).unwrap().contains("failures=\"1\""));
    assert!(fs::read_to_string(path("x.html")).unwrap().contains("the sender goes back to 7488984"));
    // Without frames 3 to 8, what comes later says that these are missing, and breaks nothing.
    with_frames(&path("x.pcapng"), &[1, 2, 11, 12]);
    let done = run(&format!("judge {}", path("x.pcapng").display())).succeeded();
    let missing = "not decidable 1 times: 3 packets are missing between frames 2 and 3";
    assert!(done.stdout.contains(missing), "{}", done.stdout);
}

#[test]
fn other_files_than_captures_are_refused() {
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
