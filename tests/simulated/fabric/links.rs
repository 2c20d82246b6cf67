//! Serialization, propagation and switching delays of frames.

use roxie::time::Nanos;
use roxie_sim::fabric::{
    End, Fabric, FabricConfig, LinkConfig, LinkRate, PortConfig, Routing, StationConfig, SwitchConfig,
};

use super::{DELAY, delivered, frame, link, mac, star, stations, switch};

#[test]
fn frame_is_serialized_twice_and_crosses_cables() {
    let mut fabric = star(2, switch(2));
    assert!(fabric.send(Nanos(1000), 0, &frame(0, 1, 1476, 0)));
    assert_eq!(fabric.next_event(), Nanos(1000 + 1500 + DELAY.0));
    assert!(fabric.run(Nanos::from_millis(1)));
    assert_eq!(delivered(&mut fabric, 1), [(1000 + 2 * (1500 + DELAY.0), 1476)]);
}

#[test]
fn busy_link_has_minimal_gaps() {
    let mut fabric = star(2, switch(2));
    for length in [1000, 20, 500, 1000] {
        let mut bytes = frame(0, 1, 500.max(length), 0);
        bytes.truncate(length);
        fabric.send(Nanos(0), 0, &bytes);
    }
    fabric.run(Nanos::from_millis(1));
    // The short frame is padded. The switch stores and forwards.
    let first = 1024 + 100 + 1024 + 100;
    assert_eq!(
        delivered(&mut fabric, 1),
        [(first, 1000), (first + 84, 20), (first + 84 + 524, 500), (first + 84 + 524 + 1024, 1000)]
    );
}

#[test]
fn slow_link_after_fast_one_queues() {
    let slow = LinkConfig::new(LinkRate::from_gbps(1), Nanos(3000));
    let mut config = switch(2);
    config.ports[1].link = slow;
    let mut fabric = star(2, config);
    for _ in 0..10 {
        fabric.send(Nanos(0), 0, &frame(0, 1, 976, 0));
    }
    fabric.run(Nanos::from_millis(1));
    let expected: Vec<_> = (1..=10).map(|n| (1000 + 100 + n * 8000 + 3000, 976)).collect();
    assert_eq!(delivered(&mut fabric, 1), expected);
    let queue = fabric.switch(0).queue(1, 0);
    // When the last frame arrived, the second was on the line: 8,000 ns hold eight frames.
    assert_eq!((queue.depth.peak(), queue.depth.now()), (8 * 976, 0));
    assert_eq!(queue.depth.series()[..3], [(Nanos(1100), 976), (Nanos(1100), 0), (Nanos(2100), 976)]);
}

#[test]
fn group_frame_floods_and_unknown_is_counted() {
    let mut fabric = star(3, switch(3));
    let mut all = frame(0, 1, 100, 0);
    all[..6].copy_from_slice(&[0xff; 6]);
    fabric.send(Nanos(0), 0, &all);
    fabric.send(Nanos(0), 0, &frame(0, 77, 100, 0));
    fabric.send(Nanos(0), 0, &frame(0, 0, 100, 0));
    fabric.run(Nanos::from_millis(1));
    let counts = [0, 1, 2].map(|station| delivered(&mut fabric, station).len());
    assert_eq!(counts, [0, 1, 1]);
    let ingress = fabric.switch(0).ingress(0);
    assert_eq!((ingress.frames, ingress.copies, ingress.drops.all()), (3, 2, 2));
    super::assert_conserved(fabric.switch(0));
}

/// Two leaves and two spines.
fn leaves_and_spines() -> FabricConfig {
    let port = PortConfig::new(link());
    let leaf = SwitchConfig::new(FabricConfig::ports(4, &port));
    let spine = SwitchConfig::new(FabricConfig::ports(2, &port));
    let at = |switch, port| End::Switch { switch, port };
    let mut links = Vec::new();
    for leaf in 0..2 {
        for port in 0..2_u16 {
            links.push([End::Station(2 * leaf + usize::from(port)), at(leaf, port)]);
            links.push([at(leaf, 2 + port), at(2 + usize::from(port), leaf as u16)]);
        }
    }
    let switches = vec![leaf.clone(), leaf, spine.clone(), spine];
    FabricConfig { stations: stations(4), switches, links, routing: Routing::ShortestPath, seed: 0 }
}

#[test]
fn flows_spread_over_equal_paths() {
    let mut fabric = Fabric::new(leaves_and_spines()).expect("a fabric");
    let mut spines = [0, 0];
    for flow in 0..64_u8 {
        let mut bytes = frame(0, 2, 100, 0);
        bytes[35] = flow;
        let before = [2, 3].map(|spine| fabric.switch(spine).ingress(0).frames);
        let start = fabric.now();
        for _ in 0..4 {
            fabric.send(start, 0, &bytes);
        }
        fabric.run(start + Nanos(10_000));
        let after = [2, 3].map(|spine| fabric.switch(spine).ingress(0).frames);
        let taken = [after[0] - before[0], after[1] - before[1]];
        assert!(taken == [4, 0] || taken == [0, 4], "flow {flow} was split: {taken:?}");
        spines[usize::from(taken[0] == 0)] += 1;
        assert_eq!(delivered(&mut fabric, 2).len(), 4);
    }
    assert!(spines.iter().all(|flows| *flows >= 16), "{spines:?}");
}

#[test]
fn traffic_within_a_leaf_avoids_spines() {
    let mut fabric = Fabric::new(leaves_and_spines()).expect("a fabric");
    fabric.send(Nanos(0), 0, &frame(0, 1, 100, 0));
    fabric.run(Nanos(10_000));
    assert_eq!(delivered(&mut fabric, 1).len(), 1);
    assert_eq!([2, 3].map(|spine| fabric.switch(spine).ingress(0).frames), [0, 0]);
}

#[test]
fn full_ring_has_room_after_departure() {
    let station = StationConfig { slots: 2, ..StationConfig::new(mac(0), link()) };
    let config = FabricConfig::star(vec![station, stations(2).remove(1)], switch(2));
    let mut fabric = Fabric::new(config).expect("a fabric");
    let bytes = frame(0, 1, 976, 0);
    let taken = [0, 0, 0].map(|_| fabric.send(Nanos(0), 0, &bytes));
    assert_eq!(taken, [true, true, false]);
    fabric.run(Nanos(999));
    assert!(!fabric.send(Nanos(999), 0, &bytes));
    fabric.run(Nanos(1000));
    assert!(fabric.send(Nanos(1000), 0, &bytes));
    assert_eq!(fabric.station(0).refused, 2);
}
