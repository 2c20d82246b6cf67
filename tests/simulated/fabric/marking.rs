//! ECN marks follow the configured curve, and change only the necessary bits.

use roxie::time::Nanos;
use roxie_sim::fabric::{EcnConfig, PriorityMap, Switch};

use super::{frame, mac, ones_sum, switch};

/// ECN codepoints: Not-ECT, ECT(1), ECT(0), CE.
const NOT_ECT: u8 = 0;
const ECT0: u8 = 2;

fn marking_switch(ecn: EcnConfig, seed: u64) -> Switch {
    let mut config = switch(2);
    config.seed = seed;
    // One queue for all priorities.
    config.priorities = PriorityMap::Pcp([0; 8]);
    config.ports[1].ecn = [Some(ecn); 8];
    let mut switch = Switch::new(config).expect("a switch");
    switch.set_route(mac(1), &[1]).expect("a port");
    switch
}

/// True if a frame is marked that finds `depth` bytes in a queue that is not drained.
fn is_marked(ecn: EcnConfig, seed: u64, depth: usize) -> bool {
    let mut switch = marking_switch(ecn, seed);
    for length in [9000, 1000, 100].into_iter().scan(depth, |left, size| {
        let count = *left / size;
        *left -= count * size;
        Some(vec![size; count])
    }) {
        length.into_iter().for_each(|length| switch.arrive(Nanos(0), 0, frame(0, 1, length, NOT_ECT)));
    }
    assert_eq!(switch.queue(1, 0).depth.now(), depth as u64);
    switch.arrive(Nanos(0), 0, frame(0, 1, 500, ECT0));
    switch.queue(1, 0).marked == 1
}

#[test]
fn marks_follow_the_curve_over_many_seeds() {
    let ecn = EcnConfig { kmin: 40_000, kmax: 160_000, pmax: 0.2 };
    const SEEDS: u64 = 1500;
    let share = |depth| (0..SEEDS).filter(|seed| is_marked(ecn, *seed, depth)).count() as f64;
    for depth in [0, 39_900, 40_000] {
        assert_eq!(share(depth), 0.0, "{depth} bytes");
    }
    for depth in [160_100, 500_000] {
        assert_eq!(share(depth), SEEDS as f64, "{depth} bytes");
    }
    let depths = [50_000, 60_000, 70_000, 80_000, 100_000, 120_000, 140_000, 160_000];
    let mut chi_square = 0.0;
    for depth in depths {
        let expected = SEEDS as f64 * 0.2 * (depth - 40_000) as f64 / 120_000.0;
        let variance = expected * (1.0 - expected / SEEDS as f64);
        chi_square += (share(depth) - expected).powi(2) / variance;
    }
    // Chi-square with eight degrees of freedom: exceeds 31.8 once in ten thousand runs.
    assert!((0.5..31.8).contains(&chi_square), "{chi_square}");
}

#[test]
fn same_seed_marks_the_same_frames() {
    let ecn = EcnConfig { kmin: 0, kmax: 1_000_000, pmax: 1.0 };
    let marks = |seed| {
        let mut switch = marking_switch(ecn, seed);
        (0..500).for_each(|_| switch.arrive(Nanos(0), 0, frame(0, 1, 1000, ECT0)));
        std::iter::from_fn(|| {
            let now = switch.wakes(1);
            switch.serve(now, 1).map(|departure| departure.frame[15] & 3 == 3)
        })
        .collect::<Vec<_>>()
    };
    assert_eq!(marks(1), marks(1));
    assert_ne!(marks(1), marks(2));
    assert!((50..450).contains(&marks(1).iter().filter(|marked| **marked).count()));
}

/// Returns the frame after a queue that marks every markable frame.
fn through(bytes: &[u8]) -> Vec<u8> {
    let mut switch = marking_switch(EcnConfig { kmin: 0, kmax: 0, pmax: 1.0 }, 0);
    switch.arrive(Nanos(0), 0, frame(0, 1, 60, NOT_ECT));
    switch.arrive(Nanos(0), 0, bytes.to_vec());
    switch.serve(Nanos(0), 1).expect("the first");
    switch.serve(switch.wakes(1), 1).expect("the frame").frame
}

fn changed(before: &[u8], after: &[u8]) -> Vec<usize> {
    assert_eq!(before.len(), after.len());
    (0..before.len()).filter(|i| before[*i] != after[*i]).collect()
}

#[test]
fn mark_changes_ecn_bits_and_checksum() {
    for tos in 0..=255_u8 {
        let before = frame(0, 1, 100, tos);
        let after = through(&before);
        if !matches!(tos & 3, 1 | 2) {
            assert_eq!(after, before, "TOS {tos:#x}");
            continue;
        }
        assert_eq!(after[15], tos | 3);
        assert_eq!(ones_sum(&after[14..34]), 0xffff, "TOS {tos:#x}");
        assert!(changed(&before, &after).iter().all(|at| [15, 24, 25].contains(at)), "TOS {tos:#x}");
    }
}

#[test]
fn ipv6_mark_changes_two_bits() {
    let mut before = vec![0; 100];
    before[..6].copy_from_slice(&mac(1));
    before[12..14].copy_from_slice(&[0x86, 0xdd]);
    (before[14], before[15]) = (0x6c, 0x15);
    // Traffic class 0xc1 with ECT(1).
    let after = through(&before);
    assert_eq!((changed(&before, &after), after[15]), (vec![15], 0x35));
}

#[test]
fn tagged_frames_are_marked_others_unchanged() {
    let plain = frame(0, 1, 100, ECT0);
    let mut tagged = plain[..12].to_vec();
    tagged.extend([0x81, 0x00, 0x60, 0x01]);
    tagged.extend(&plain[12..]);
    let after = through(&tagged);
    assert_eq!((after[19] & 3, ones_sum(&after[18..38])), (3, 0xffff));
    let mut arp = plain.clone();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(through(&arp), arp);
    let cut = &plain[..33];
    assert_eq!(through(cut), cut, "a header that is cut short is none");
}

#[test]
fn priority_comes_from_dscp_or_tag() {
    let queue_of = |map: PriorityMap, bytes: Vec<u8>| {
        let mut config = switch(2);
        config.priorities = map;
        let mut switch = Switch::new(config).expect("a switch");
        switch.set_route(mac(1), &[1]).expect("a port");
        switch.arrive(Nanos(0), 0, bytes);
        (0..8).find(|priority| switch.queue(1, *priority).offered == 1)
    };
    let mut tagged = frame(0, 1, 100, 46 << 2);
    tagged.splice(12..12, [0x81, 0x00, 0x60, 0x01]);
    assert_eq!(queue_of(PriorityMap::default(), frame(0, 1, 100, 46 << 2)), Some(5));
    assert_eq!(queue_of(PriorityMap::default(), tagged.clone()), Some(5));
    assert_eq!(queue_of(PriorityMap::Pcp([0, 1, 2, 4, 3, 5, 6, 7]), tagged), Some(4));
    assert_eq!(queue_of(PriorityMap::Pcp([1; 8]), frame(0, 1, 100, 46 << 2)), Some(0), "no tag");
}
