//! An attacker off the path: the values that it must guess, and what a wrong guess causes. The numbered weaknesses are
//! those that Rothenberger et al. found in NICs ("ReDMArk: Bypassing RDMA Security Mechanisms", USENIX Security 2021);
//! docs/security.md lists them all.

use std::collections::{HashMap, HashSet};

use roxie::limits::Limits;
use roxie::nic::NicConfig;
use roxie::random::splitmix;
use roxie::verbs::{Access, Psn, QpState, Qpn, WcStatus};
use roxie::wire::{Bth, Ext, NakCode, Opcode, Reth, Syndrome};
use roxie_sim::{Host, HostRegion, joined_ports};

use crate::transport::{Setup, Stage, template};

const GUESSES: u32 = 20_000;
const WRITE: Opcode = Opcode::RC_WRITE_ONLY;
/// The expected PSN.
const DUE: Psn = Psn::new(0);

fn write_to(qpn: Qpn, psn: Psn) -> Bth {
    Bth { opcode: WRITE, dest_qp: qpn, psn, ack_req: true, ..Bth::default() }
}

fn untouched(stage: &mut Stage, what: &str) {
    assert!(stage.memory.bytes(0, 1 << 16).iter().all(|byte| *byte == 0), "{what}: memory has changed");
    assert!(stage.completions().is_empty(), "{what}: something completed");
    assert_eq!(stage.events(), [], "{what}");
    assert_eq!(stage.state(), QpState::Rts, "{what}");
}

/// Asserts that the QP executes the peer's next packet.
fn serves_its_peer(stage: &mut Stage, what: &str) {
    let reth = stage.reth(0, 4);
    let answers = stage.request(WRITE, DUE.value(), Ext::Reth(reth), &[7; 4]);
    let acknowledged = matches!(answers[..], [ref one] if matches!(one.syndrome, Some(Syndrome::Ack { .. })));
    assert!(acknowledged, "{what}: {answers:?}");
    assert_eq!(stage.memory.bytes(0, 4), [7; 4], "{what}");
}

//= test: IBTA 9.6.1: destination-qp-is-there
#[test]
fn guessed_qpns_are_dropped_and_counted() {
    let mut stage = Stage::new();
    let (own, mut state) = (stage.qp.handle.qpn, 1);
    let reth = Ext::Reth(stage.reth(0, 4));
    for _ in 0..GUESSES {
        let guess = Qpn::new(splitmix(&mut state) as u32 & 0xff_ffff);
        if guess != own && guess != Qpn::MULTICAST {
            stage.send(&write_to(guess, DUE), &reth, &[1; 4]);
            assert!(stage.answers().is_empty(), "to QPN {guess}");
        }
    }
    let unknown = stage.counter("rx_unknown_qp");
    assert!(unknown > u64::from(GUESSES) - 10, "{unknown} counted");
    untouched(&mut stage, "guessed QPNs");
    serves_its_peer(&mut stage, "after guessed QPNs");
}

//= test: IBTA 9.6.1: source-is-the-peer
#[test]
fn packets_from_a_wrong_address_are_dropped() {
    let mut stage = Stage::new();
    let reth = Ext::Reth(stage.reth(0, 4));
    let honest = std::mem::replace(&mut stage.template, template(3));
    for psn in 0..1000 {
        stage.send(&write_to(stage.qp.handle.qpn, DUE + psn), &reth, &[1; 4]);
        assert!(stage.answers().is_empty());
    }
    assert_eq!(stage.counter("rx_wrong_source"), 1000);
    untouched(&mut stage, "a wrong address");
    stage.template = honest;
    serves_its_peer(&mut stage, "after a wrong address");
}

/// The attacker spoofs the peer's address. PSNs far from the expected one change nothing; the peer receives at most one
/// NAK.
//= test: IBTA 9.7.1: psn-half-circle
//= test: IBTA 9.7.5.2: gap-is-nakd-once
#[test]
fn guessed_psns_cause_at_most_one_nak() {
    let mut stage = Stage::new();
    let reth = Ext::Reth(stage.reth(0, 4));
    let mut state = 1;
    let mut answers = Vec::new();
    for _ in 0..GUESSES {
        let psn = Psn::new(splitmix(&mut state) as u32 & 0xff_ffff);
        // A guess within one of the expected PSN may succeed: 3 in 2^24.
        if psn.distance_from(DUE).abs() > 1 {
            stage.send(&write_to(stage.qp.handle.qpn, psn), &reth, &[1; 4]);
            answers.extend(stage.answers());
        }
    }
    let naks = |answer: &&crate::transport::Answer| {
        matches!(answer.syndrome, Some(Syndrome::Nak(NakCode::PsnSequence)))
    };
    assert_eq!(answers.iter().filter(naks).count(), 1, "one NAK until the due packet has come");
    // A PSN behind the expected one is taken for a duplicate, and the last executed PSN is acknowledged again.
    let reported =
        |answer: &crate::transport::Answer| answer.psn == DUE.value() || answer.psn == (DUE - 1).value();
    assert!(answers.iter().all(reported), "answers tell no more than where the responder is");
    untouched(&mut stage, "guessed PSNs");
    serves_its_peer(&mut stage, "after guessed PSNs");
}

/// Address, QPN and PSN are known, the rkey is not. The connection ends, as IBTA 9.7.4.1.5 requires; memory does not
/// change.
//= test: IBTA 9.7.4.1.5: rkey-is-good
#[test]
fn guessed_rkey_is_refused() {
    for guess in [0, 1, 0xffff_ffff, 0x1000, 0x1234_5678] {
        let mut stage = Stage::new();
        assert_ne!(stage.memory.key, guess);
        let reth = Reth { rkey: guess, ..stage.reth(0, 4) };
        let answers = stage.request(WRITE, DUE.value(), Ext::Reth(reth), &[1; 4]);
        let syndromes: Vec<_> = answers.iter().filter_map(|answer| answer.syndrome).collect();
        assert_eq!(syndromes, [Syndrome::Nak(NakCode::RemoteAccess)], "key {guess:#x}");
        assert_eq!(stage.memory.bytes(0, 4), [0; 4]);
        assert_eq!(stage.counter("resp_remote_access_errors"), 1);
        assert!(stage.statuses().iter().all(|(_, status)| *status == WcStatus::WrFlush));
    }
}

fn keys(seed: u64, count: usize) -> Vec<u32> {
    let (local, _remote) = joined_ports(1500, None);
    let limits = Limits { mrs: 4096, ..Limits::small() };
    let mut host = Host::new(1, NicConfig { limits, seed, ..NicConfig::default() }, local);
    let regions: Vec<HostRegion> = (0..count).map(|_| host.register(8, Access::READ_WRITE)).collect();
    regions.iter().map(|region| region.key).collect()
}

/// Weaknesses 1 to 3: sequential keys, keys with a fixed start, a shared generator with known steps.
#[test]
fn rkeys_are_unpredictable() {
    let all = keys(1, 1000);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 1000, "no key twice");
    let mut steps = HashMap::new();
    for pair in all.windows(2) {
        *steps.entry(pair[1].wrapping_sub(pair[0])).or_insert(0) += 1;
    }
    let most = steps.values().max();
    assert!(most < Some(&4), "a step that {most:?} of 999 keys have in common");
    let firsts: HashSet<u32> = (0..200).map(|seed| keys(seed, 1)[0]).collect();
    assert!(firsts.len() > 198, "{} first keys of 200 devices", firsts.len());
}

/// Weakness 2 for QPNs: the first QPN differs between devices, and QPNs of one device follow no fixed step.
#[test]
fn qpns_are_unpredictable() {
    let qpns = |seed| {
        let (local, _remote) = joined_ports(1500, None);
        let mut host =
            Host::new(1, NicConfig { limits: Limits::small(), seed, ..NicConfig::default() }, local);
        [(); 3].map(|()| host.queue_pair().signal_all().create().handle.qpn.value())
    };
    let mut steps = HashSet::new();
    let mut firsts = HashSet::new();
    for seed in 0..200 {
        let [a, b, c] = qpns(seed);
        firsts.insert(a);
        steps.extend([b.wrapping_sub(a), c.wrapping_sub(b)]);
    }
    assert!(firsts.len() > 198 && steps.len() > 390, "{} firsts, {} steps", firsts.len(), steps.len());
}

/// Weakness 4: adjacent regions. An rkey gives no access beyond its own region.
#[test]
fn rkey_does_not_reach_adjacent_memory() {
    for (offset, length) in [(1 << 16, 1u32), ((1 << 16) - 1, 2), (u64::MAX, 1), (0, (1 << 16) + 1)] {
        let mut stage = Stage::with(Setup::default());
        let reth = Reth { va: stage.memory.address.wrapping_add(offset), ..stage.reth(0, length) };
        let read = Bth { opcode: Opcode::RC_READ_REQUEST, ..write_to(stage.qp.handle.qpn, DUE) };
        stage.send(&read, &Ext::Reth(reth), &[]);
        let syndromes: Vec<_> = stage.answers().iter().filter_map(|answer| answer.syndrome).collect();
        assert_eq!(syndromes, [Syndrome::Nak(NakCode::RemoteAccess)], "{length} bytes at {offset}");
    }
}
