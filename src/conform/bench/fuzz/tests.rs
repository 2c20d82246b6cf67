use std::collections::BTreeSet;

use roxie_wire::{Opcode, Psn};

use super::draft::{MTU, Regions};
use super::field::{Field, Observed};
use super::generate::{Abilities, sequence};
use super::judge::{Kind, judge};
use super::model::{Model, State};
use super::*;
use crate::bench::Region;

const SEEDS: u64 = 300;
const ALL: Abilities = Abilities { has_raw: true, has_atomics: true };

fn regions() -> Regions {
    Regions([1, 2, 3, 4].map(|id| Region { id, addr: id << 20, rkey: 0x100 * id as u32 }))
}

fn script(text: &str) -> Sequence {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns the states that follow a script, which the model can follow.
fn states(text: &str) -> Vec<State> {
    let (sequence, regions) = (script(text), regions());
    let mut model = Model::new(&sequence, &regions, Field::pattern());
    model.follow();
    assert!(!model.is_loose, "{text}");
    model.states
}

/// Returns what an agent sees of a state.
fn seen(state: &State) -> Observed {
    let received = state.received.iter().enumerate().map(|(n, received)| {
        let wc = crate::agent::Completion {
            id: n as u64,
            status: 0,
            opcode: 128,
            length: received.length,
            flags: 0,
            imm: received.imm.unwrap_or(0),
            source: 0,
        };
        (wc, received.bytes.clone().unwrap_or_default())
    });
    Observed {
        is_dead: state.is_dead,
        memory: state.memory.clone(),
        received: received.collect(),
        packets: Vec::new(),
        damage: None,
    }
}

#[test]
fn scripts_are_read_back() {
    for n in 0..SEEDS {
        let made = sequence(7, n, ALL);
        assert_eq!(script(&made.to_string()), made, "{made}");
    }
    let commented = script("# a comment\n\npair UD first=0x10 receives=1 room=256\n5: 0x7f psn=-3 pad=2\n");
    assert_eq!(commented.lines.len(), 1);
}

#[test]
fn wrong_scripts_name_line_and_word() {
    for (text, parts) in [
        ("", ["no packet", "pair RC"]),
        ("1: RC_SEND_ONLY", ["line 1", "begins with its pair"]),
        ("pair TCP", ["`TCP` is no service", "UD"]),
        ("pair RC receives=99", ["`99`", "16"]),
        ("pair RC\n1: SEND", ["line 2", "`SEND` is no opcode"]),
        ("pair RC\n1: RC_SEND_ONLY len=5000", ["`5000`", "4096"]),
        ("pair RC\n1: RC_SEND_ONLY psn=+8388608", ["line 2", "2^23"]),
        ("pair RC\n1: RC_WRITE_ONLY va=here+3", ["`here` is no region", "granted"]),
        ("pair RC\n1: RC_SEND_ONLY\n1: again 1", ["line 3", "number 1 is taken"]),
        ("pair RC\n1: RC_SEND_ONLY twice", ["`twice` is no word", "line 2"]),
    ] {
        let said = text.parse::<Sequence>().expect_err(text).to_string();
        assert!(parts.iter().all(|part| said.contains(part)), "{text}: {said}");
    }
}

#[test]
fn seed_decides_all_packets() {
    let texts: Vec<String> = (0..50).map(|n| sequence(3, n, ALL).to_string()).collect();
    let again: Vec<String> = (0..50).map(|n| sequence(3, n, ALL).to_string()).collect();
    let other: Vec<String> = (0..50).map(|n| sequence(4, n, ALL).to_string()).collect();
    assert_eq!(texts, again);
    assert_ne!(texts, other);
    let without = Abilities { has_raw: false, has_atomics: false };
    for n in 0..SEEDS {
        let text = sequence(3, n, without).to_string();
        assert!(!text.contains("other-source") && !text.contains("other-port"), "{text}");
    }
}

#[test]
fn sequences_reach_opcodes_and_faults() {
    let (mut opcodes, mut followed) = (BTreeSet::new(), 0);
    let mut text = String::new();
    for n in 0..SEEDS {
        let made = sequence(1, n, ALL);
        let regions = regions();
        let mut model = Model::new(&made, &regions, Field::pattern());
        model.follow();
        followed += u64::from(!model.is_loose);
        opcodes.extend(made.sent().iter().map(|sent| sent.draft.opcode.0));
        text += &made.to_string();
    }
    assert!(opcodes.len() > 45, "{} opcodes", opcodes.len());
    for word in ["again", "bad-icrc", "other-source", "key=foreign", "key=withheld", "psn=-8388608", "qkey="]
    {
        assert!(text.contains(word), "{word}");
    }
    // The model compares effects of most sequences.
    assert!(followed * 10 > SEEDS * 7, "{followed} of {SEEDS}");
}

#[test]
fn duplicates_are_executed_once() {
    let states = states(
        "pair RC first=0xffffff receives=4 room=1024\n1: RC_SEND_ONLY ack len=16\n2: again 1\n\
         3: RC_FETCH_ADD ack va=granted+0 key=granted operand=5\n4: again 3\n5: again 3",
    );
    assert!(states.iter().all(|state| state.received.len() == 1 && state.originals.len() == 1));
    let alive = states.iter().find(|state| !state.is_dead).expect("the queue pair lives");
    assert_eq!(alive.next, Psn::new(1));
    let before = u64::from_le_bytes(Field::pattern()[..8].try_into().unwrap());
    assert_eq!(alive.memory[..8], (before + 5).to_le_bytes());
    assert_eq!(alive.originals, [(Psn::new(0), before)]);
}

#[test]
fn void_and_early_packets_have_no_effect() {
    for line in [
        "RC_SEND_ONLY len=16 bad-icrc",
        "RC_SEND_ONLY len=16 pkey=0x8001",
        "RC_SEND_ONLY len=16 psn=+1",
        "RC_SEND_ONLY len=16 psn=-1",
        "UC_SEND_ONLY len=16",
        "RC_READ_RESPONSE_ONLY len=16 syndrome=0x1f msn=0",
        "0x1f len=16",
    ] {
        let states = states(&format!("pair RC receives=4 room=1024\n1: {line}"));
        assert_eq!(states.len(), 1, "{line}");
        assert!(states[0].received.is_empty() && states[0].next == Psn::new(0), "{line}");
    }
}

#[test]
fn writes_beyond_the_grant_are_refused() {
    for place in ["va=granted+4090 key=granted", "va=granted-1 key=granted", "va=granted+0 key=granted^0x1"] {
        let line = format!("pair RC\n1: RC_WRITE_ONLY len=16 dma=16 {place}");
        assert!(states(&line).iter().all(|state| state.memory == Field::pattern()), "{place}");
    }
    let whole = states("pair RC\n1: RC_WRITE_ONLY len=16 dma=16 va=granted+4080 key=granted");
    assert_ne!(whole[0].memory, Field::pattern());
}

#[test]
fn uc_takes_the_message_after_a_gap() {
    let text = format!(
        "pair UC receives=4 room=2500\n1: UC_SEND_FIRST len={MTU}\n2: UC_SEND_LAST len=8 psn=+1\n3: UC_SEND_ONLY len=4 psn=+2"
    );
    let states = states(&text);
    assert!(states.iter().all(|state| state.received.len() == 1 && state.received[0].length == 4));
}

#[test]
fn datagrams_need_key_and_room() {
    let states = states(
        "pair UD receives=2 room=100\n1: UD_SEND_ONLY len=8 qkey=0x11\n2: UD_SEND_ONLY len=61\n3: UD_SEND_ONLY len=60",
    );
    let lengths: Vec<u32> = states[0].received.iter().map(|received| received.length).collect();
    assert_eq!((states.len(), lengths), (1, vec![100]));
}

#[test]
fn judge_tells_effects_from_allowed_states() {
    let text = "pair RC receives=4 room=1024\n1: RC_SEND_ONLY len=16\n2: RC_WRITE_ONLY len=8 dma=8 va=granted+64 key=granted";
    let (sequence, regions) = (script(text), regions());
    let state = &states(text)[0];
    assert_eq!(judge(&sequence, &regions, &seen(state), true), None);
    type Wrong = (fn(&mut Observed), Kind, &'static str);
    let wrong: [Wrong; 5] = [
        (|o| o.received.clear(), Kind::Effect, "0 receives"),
        (|o| o.memory[300] ^= 1, Kind::Effect, "byte 300"),
        (|o| o.is_dead = true, Kind::Effect, "error state"),
        (|o| o.received[0].1[3] ^= 1, Kind::Effect, "other bytes"),
        (|o| o.damage = Some("byte 9 beside".into()), Kind::Damage, "byte 9"),
    ];
    for (change, kind, words) in wrong {
        let mut observed = seen(state);
        change(&mut observed);
        let found = judge(&sequence, &regions, &observed, true).expect(words);
        assert!(found.kind == kind && found.words.contains(words), "{found:?}");
    }
}

#[test]
fn shrinking_keeps_what_fails() {
    let made = (0..SEEDS).map(|n| sequence(5, n, ALL)).max_by_key(|made| made.lines.len()).expect("one");
    let is_write =
        |line: &Line| matches!(&line.step, Step::Send(draft) if draft.opcode == Opcode::RC_WRITE_ONLY);
    let mut large = Sequence { service: Service::Rc, ..made };
    large.lines.extend(script("pair RC\n500: RC_WRITE_ONLY len=64 dma=64 ack\n501: again 500").lines);
    let mut plays = 0;
    let short = shrink::shrink(&large, 400, &mut |candidate: &Sequence| {
        plays += 1;
        let again = candidate.lines.iter().any(|line| line.step == Step::Again(500));
        again && candidate.lines.iter().any(|line| line.number == 500 && is_write(line))
    });
    assert_eq!(short.lines.len(), 2, "{short}");
    assert!(plays <= 400 && short.to_string().contains("500: RC_WRITE_ONLY dma=0 va=granted+0"), "{short}");
}
