//! Faults over a pair of memory ports.

use super::*;
use crate::loopback::LoopbackPort;
use crate::memory::{self, MemoryConfig, MemoryPort};
use roxie_base::flow::FlowMatch;

fn pair_with(config: &str) -> (FaultPort<MemoryPort>, MemoryPort) {
    let (a, b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
    (FaultPort::new(a, &FaultConfig::parse(config).expect("a valid config")), b)
}

fn send(port: &mut impl Port, numbers: impl IntoIterator<Item = u16>, now: Nanos) {
    for n in numbers {
        let id = port.tx_alloc(64).expect("room");
        let mut frame = port.tx_frame(&id);
        frame.write(0, &[0; 64]);
        frame.write(0, &n.to_be_bytes());
        port.tx_commit(id);
    }
    port.tx_flush(now).expect("a memory port does not fail");
}

fn receive_raw(port: &mut impl Port, now: Nanos) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let n = port.rx_burst(now);
        assert!(n <= BURST);
        all.extend((0..n).map(|i| port.rx_frame(i).frame.to_vec()));
        port.rx_release();
        if n == 0 {
            return all;
        }
    }
}

fn receive(port: &mut impl Port, now: Nanos) -> Vec<u16> {
    receive_raw(port, now).iter().map(|f| u16::from_be_bytes([f[0], f[1]])).collect()
}

fn count(port: &impl Port, name: &str) -> u64 {
    let mut all = Vec::new();
    port.counters(&mut all);
    all.iter().find(|c| c.0 == name).expect("a known counter").1
}

const T0: Nanos = Nanos::from_millis(5);

#[test]
fn without_faults_every_frame_passes_both_ways() {
    let (mut a, mut b) = pair_with("");
    send(&mut a, 0..50, T0);
    send(&mut b, 50..100, T0);
    assert_eq!(receive(&mut b, T0), (0..50).collect::<Vec<_>>());
    assert_eq!(receive(&mut a, T0), (50..100).collect::<Vec<_>>());
    assert_eq!((a.next_event(), a.tx_pending()), (Nanos::MAX, false));
    assert_eq!(a.info().name, "fault(memory)");
}

#[test]
fn joins_and_flows_reach_the_port_below() {
    let (a, mut b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
    let mut a = FaultPort::new(LoopbackPort::new(a, 8), &FaultConfig::default());
    // A frame to a group, by its first bit: looped back while a group is joined or flows are steered.
    let group = || [0x0100];
    let requests: [fn(&mut FaultPort<LoopbackPort<MemoryPort>>); 4] = [
        |port| port.join([239, 1, 2, 3].into()).unwrap(),
        |port| port.leave([239, 1, 2, 3].into()),
        |port| port.steer(&[FlowMatch::default()]).unwrap(),
        |port| port.steer(&[]).unwrap(),
    ];
    for (ask, comes_round) in requests.into_iter().zip([true, false, true, false]) {
        ask(&mut a);
        send(&mut a, group(), T0);
        assert_eq!(receive(&mut a, T0).len(), usize::from(comes_round));
        assert_eq!(receive(&mut b, T0), group());
    }
}

#[test]
fn one_seed_always_loses_the_same_frames() {
    let lost = |seed: u64| {
        let (mut a, mut b) = pair_with(&format!("drop=0.1,seed={seed},dir=tx"));
        let mut arrived = Vec::new();
        for burst in 0..20 {
            send(&mut a, burst * 50..burst * 50 + 50, T0);
            arrived.extend(receive(&mut b, T0));
        }
        assert_eq!(count(&a, "fault_tx_dropped"), 1000 - arrived.len() as u64);
        (0..1000).filter(|n| !arrived.contains(n)).collect::<Vec<u16>>()
    };
    assert_eq!(lost(7), lost(7));
    assert_ne!(lost(7), lost(8));
    assert!((60..=140).contains(&lost(7).len()), "10% of 1000, got {}", lost(7).len());
}

#[test]
fn second_fault_leaves_first_faults_draws_unchanged() {
    let arrived = |config: &str| {
        let (mut a, mut b) = pair_with(config);
        send(&mut a, 0..200, T0);
        receive(&mut b, T0)
    };
    let mut with_copies = arrived("tx.drop=0.2,tx.duplicate=0.5");
    let plain = arrived("tx.drop=0.2");
    assert!(with_copies.len() > plain.len());
    with_copies.sort_unstable();
    with_copies.dedup();
    assert_eq!(with_copies, plain);
}

#[test]
fn counted_faults_strike_the_frames_they_name() {
    for (config, expected) in [
        ("drop=nth3", vec![0, 1, 3, 4, 5, 6, 7]),
        ("drop=every3", vec![0, 1, 3, 4, 6, 7]),
        ("drop=first3", vec![3, 4, 5, 6, 7]),
        ("drop=1", vec![]),
        ("drop=0", vec![0, 1, 2, 3, 4, 5, 6, 7]),
    ] {
        let (mut a, mut b) = pair_with(config);
        send(&mut a, 0..8, T0);
        send(&mut b, 0..8, T0);
        assert_eq!(receive(&mut b, T0), expected, "tx {config}");
        assert_eq!(receive(&mut a, T0), expected, "rx {config}");
    }
}

#[test]
fn rule_counts_only_matching_frames() {
    let (a, mut b) = pair_with("");
    let third = Fault { action: Action::Drop, when: When::Nth(3) };
    let mut a = a.with_rule(Direction::Tx, third, |f| f.a[1] % 10 == 4);
    send(&mut a, 0..50, T0);
    let arrived = receive(&mut b, T0);
    assert_eq!(arrived, (0..50).filter(|n| *n != 24).collect::<Vec<_>>());
}

#[test]
fn a_duplicate_arrives_twice_on_either_side() {
    let (mut a, mut b) = pair_with("duplicate=nth2");
    send(&mut a, 0..3, T0);
    assert_eq!(receive(&mut b, T0), [0, 1, 2, 1], "copies leave with the flush");
    send(&mut b, 0..3, T0);
    assert_eq!(receive(&mut a, T0), [0, 1, 1, 2]);
    assert_eq!((count(&a, "fault_tx_duplicated"), count(&a, "fault_rx_duplicated")), (1, 1));
}

#[test]
fn full_bursts_duplicates_arrive_in_next_burst() {
    let (mut a, mut b) = pair_with("rx.duplicate=1");
    send(&mut b, 0..64, T0);
    assert_eq!(a.rx_burst(T0), BURST);
    a.rx_release();
    assert!(a.next_event() <= T0 && !a.prepare_sleep(), "the copies wait for the next burst");
    let rest = receive(&mut a, T0);
    assert_eq!(rest.len(), 64);
    assert_eq!(a.next_event(), Nanos::MAX);
}

#[test]
fn corruption_flips_exactly_one_bit_and_nothing_else() {
    for config in ["tx.corrupt=1", "rx.corrupt=1", "tx.corrupt=1,tx.delay=1:0ns"] {
        let (mut a, mut b) = pair_with(config);
        let arrived = if config.starts_with("tx") {
            send(&mut a, [0; 200], T0);
            receive_raw(&mut b, T0)
        } else {
            send(&mut b, [0; 200], T0);
            receive_raw(&mut a, T0)
        };
        assert_eq!(arrived.len(), 200, "{config}");
        let bits = |f: &Vec<u8>| f.iter().map(|b| b.count_ones()).sum::<u32>();
        assert!(arrived.iter().all(|f| f.len() == 64 && bits(f) == 1), "{config}");
        let places: std::collections::HashSet<_> = arrived.iter().collect();
        assert!(places.len() > 100, "bits all over the frame: {} places", places.len());
    }
}

#[test]
fn corrupted_duplicate_has_one_intact_copy() {
    let (mut a, mut b) = pair_with("corrupt=1,duplicate=1");
    send(&mut a, [0], T0);
    send(&mut b, [0], T0);
    for frames in [receive_raw(&mut b, T0), receive_raw(&mut a, T0)] {
        let whole = frames.iter().filter(|f| f.iter().all(|b| *b == 0)).count();
        assert_eq!((frames.len(), whole), (2, 1));
    }
}

#[test]
fn delayed_frame_arrives_exactly_when_due() {
    let due = T0 + Nanos::from_micros(200);
    let before = Nanos(due.0 - 1);
    let (mut a, mut b) = pair_with("delay=nth1:200us");
    assert_eq!(a.rx_burst(T0), 0);
    a.rx_release();
    send(&mut a, 0..3, T0);
    assert_eq!(receive(&mut b, T0), [1, 2]);
    assert_eq!(a.next_event(), due);
    a.tx_flush(before).unwrap();
    assert!(receive(&mut b, before).is_empty() && !a.tx_pending());
    a.tx_flush(due).unwrap();
    assert_eq!(receive(&mut b, due), [0]);

    send(&mut b, 0..3, T0);
    assert_eq!(receive(&mut a, T0), [1, 2]);
    assert_eq!(a.next_event(), due);
    assert!(receive(&mut a, before).is_empty());
    assert_eq!(receive(&mut a, due), [0]);
    assert_eq!(a.next_event(), Nanos::MAX);
}

#[test]
fn delayed_frame_is_sent_by_receiving_engine() {
    let (mut a, mut b) = pair_with("tx.delay=1:1us");
    send(&mut a, [9], T0);
    assert!(receive(&mut a, T0 + Nanos(1_000)).is_empty());
    assert_eq!(receive(&mut b, T0), [9]);
}

#[test]
fn reordered_frame_is_overtaken_by_configured_count() {
    let (mut a, mut b) = pair_with("reorder=nth2:3:1ms");
    send(&mut b, 0..8, T0);
    assert_eq!(receive(&mut a, T0), [0, 2, 3, 4, 1, 5, 6, 7]);
    send(&mut a, 0..4, T0);
    assert_eq!(receive(&mut b, T0), [0, 2, 3], "two have passed");
    send(&mut a, 4..6, T0);
    assert_eq!(receive(&mut b, T0), [4, 5, 1], "held frames leave behind the burst");
}

#[test]
fn reordered_frame_is_released_at_time_limit() {
    let (mut a, mut b) = pair_with("rx.reorder=1:4:1ms");
    send(&mut b, [1], T0);
    assert!(receive(&mut a, T0).is_empty());
    assert_eq!(a.next_event(), T0 + Nanos::from_millis(1));
    let bound = a.next_event();
    assert_eq!(receive(&mut a, bound), [1]);
}

#[test]
fn with_every_buffer_in_use_frames_pass_unharmed() {
    let (mut a, mut b) = pair_with("delay=1:1s,held=4");
    send(&mut a, 0..10, T0);
    assert_eq!(receive(&mut b, T0), [4, 5, 6, 7, 8, 9]);
    assert_eq!((count(&a, "fault_tx_delayed"), count(&a, "fault_tx_unharmed")), (4, 6));
    let later = T0 + Nanos::from_millis(1000);
    a.tx_flush(later).unwrap();
    assert_eq!(receive(&mut b, later), [0, 1, 2, 3]);
    send(&mut a, [10], later);
    assert!(receive(&mut b, later).is_empty(), "the buffers are free again");
}

#[test]
fn layers_stack_each_with_its_own_faults() {
    let (a, mut b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
    let lower = FaultPort::new(a, &FaultConfig::parse("tx.drop=nth1").unwrap());
    let mut port = FaultPort::new(lower, &FaultConfig::parse("tx.drop=nth2").unwrap());
    send(&mut port, 0..4, T0);
    assert_eq!(receive(&mut b, T0), [2, 3]);
    assert_eq!(port.info().name, "fault(fault(memory))");
}

#[test]
fn held_frame_beyond_lowered_mtu_is_dropped() {
    let (mut a, mut b) = pair_with("delay=nth1:1ms,dir=tx");
    send(&mut a, 0..1, Nanos::ZERO);
    a.follow(&LinkChange::Mtu(20)).unwrap();
    assert_eq!(a.info().mtu, 20);
    let later = Nanos::from_millis(2);
    a.tx_flush(later).unwrap();
    assert!(receive(&mut b, later).is_empty());
    assert_eq!((count(&a, "fault_tx_too_long"), a.tx_pending()), (1, false), "it is not tried again");
    a.follow(&LinkChange::Mtu(4200)).unwrap();
    send(&mut a, 1..2, later);
    assert_eq!(receive(&mut b, later), [1]);
}

#[test]
fn copy_buffers_grow_with_raised_mtu() {
    let (mut a, mut b) = pair_with("dup=nth1,dir=tx");
    for port in [&mut a as &mut dyn Port, &mut b] {
        port.follow(&LinkChange::Mtu(9000)).unwrap();
    }
    let id = a.tx_alloc(9018).expect("room");
    a.tx_frame(&id).write(0, &[7; 9018]);
    a.tx_commit(id);
    a.tx_flush(T0).unwrap();
    assert_eq!(receive_raw(&mut b, T0), [[7; 9018], [7; 9018]]);
    assert_eq!(count(&a, "fault_tx_duplicated"), 1);
}
