//! Disturbances of a running fabric: faults of frames, pulled cables, changed stations, foreign frames, lost time.

use roxie::frame::Frame;
use roxie::nic::NicConfig;
use roxie::port::{LinkChange, Port};
use roxie::time::Nanos;
use roxie_sim::Host;
use roxie_sim::fabric::{
    Arrival, DropReason, End, Fabric, FabricConfig, FrameFaults, LinkConfig, LinkRate, LinkStats,
    StationConfig,
};

use super::{DELAY, assert_conserved, delivered, frame, mac, ones_sum, star, stations, switch};

const ECT0: u8 = 2;

/// Frames to station 1 arrive twice, the second late, damaged and marked; frames to station 2 never arrive.
#[derive(Debug)]
struct Storm;

impl FrameFaults for Storm {
    fn judge(&mut self, _: Nanos, to: End, _: &[u8], arrivals: &mut Vec<Arrival>) {
        if to == End::Station(2) {
            return;
        }
        arrivals.push(Arrival::default());
        if to == End::Station(1) {
            arrivals.push(Arrival { delay: Nanos(50), flipped_bit: Some(8 * 6), marked: true });
        }
    }
}

fn port_of(station: usize) -> End {
    End::Switch { switch: 0, port: station as u16 }
}

#[test]
fn weather_decides_arrivals() {
    let mut fabric = star(3, switch(3));
    fabric.set_frame_faults(Box::new(Storm));
    for (to, tos) in [(1, ECT0), (1, 0), (2, ECT0)] {
        fabric.send(Nanos(0), 0, &frame(0, to, 476, tos));
    }
    assert!(fabric.run(Nanos::from_millis(1)));
    let first = 2 * (500 + DELAY.0);
    let mut copies: Vec<_> = std::iter::from_fn(|| fabric.take(1)).collect();
    let times: Vec<_> = copies.iter().map(|(time, _)| time.0 - first).collect();
    assert_eq!(times, [0, 50, 500, 550]);
    let sent = [frame(0, 1, 476, ECT0), frame(0, 1, 476, 0)];
    assert_eq!((&copies[0].1, &copies[2].1), (&sent[0], &sent[1]));
    for at in [1, 3] {
        let harmed = &mut copies[at].1;
        harmed[6] ^= 1;
        assert_eq!(ones_sum(&harmed[14..34]), 0xffff);
    }
    assert_eq!((copies[1].1[15], &copies[3].1), (ECT0 | 1, &sent[1]), "what is not capable is not marked");
    let stats = LinkStats {
        entered: 2,
        doubled: 2,
        flipped: 2,
        delayed: 2,
        marked: 1,
        arrived: 4,
        ..Default::default()
    };
    assert_eq!(fabric.link(End::Station(1)), stats);
    assert_eq!(fabric.link(End::Station(2)), LinkStats { entered: 1, lost: 1, ..LinkStats::default() });
    assert_eq!(fabric.link(port_of(0)), LinkStats { entered: 3, arrived: 3, ..LinkStats::default() });
    assert_eq!((fabric.station(2).delivered, fabric.on_links()), (0, 0));
    assert_conserved(fabric.switch(0));
}

#[test]
fn pulled_cable_loses_its_frames() {
    let mut fabric = star(2, switch(2));
    // One frame from station 1 and one to it are on its cable.
    fabric.send(Nanos(0), 0, &frame(0, 1, 476, 0));
    fabric.run(Nanos(500 + DELAY.0));
    fabric.send(fabric.now(), 1, &frame(1, 0, 476, 0));
    fabric.plug(1, false);
    assert_eq!(fabric.on_links(), 2);
    fabric.run(Nanos::from_millis(1));
    let lost = LinkStats { entered: 1, unplugged: 1, ..LinkStats::default() };
    assert_eq!((fabric.link(End::Station(1)), fabric.link(port_of(1))), (lost, lost));
    // One more in each direction starts meanwhile; the cable is plugged in before they would arrive.
    fabric.send(fabric.now(), 0, &frame(0, 1, 476, 0));
    fabric.run(fabric.now() + Nanos(500 + DELAY.0));
    fabric.send(fabric.now(), 1, &frame(1, 0, 476, 0));
    fabric.plug(1, true);
    fabric.run(Nanos::from_millis(2));
    let lost = LinkStats { entered: 2, unplugged: 2, ..LinkStats::default() };
    assert_eq!((fabric.link(End::Station(1)), fabric.link(port_of(1))), (lost, lost));
    assert!(delivered(&mut fabric, 0).is_empty() && delivered(&mut fabric, 1).is_empty());
    fabric.send(fabric.now(), 0, &frame(0, 1, 476, 0));
    fabric.send(fabric.now(), 1, &frame(1, 0, 476, 0));
    assert!(fabric.run(Nanos::from_millis(3)));
    assert_eq!((delivered(&mut fabric, 0).len(), delivered(&mut fabric, 1).len()), (1, 1));
}

/// Returns a fabric of two stations with a host at station 1.
fn with_a_host() -> Fabric {
    let mut fabric = star(2, switch(2));
    let port = fabric.port(1);
    fabric.attach(1, Host::new(2, NicConfig::default(), Box::new(port)));
    fabric
}

fn received(fabric: &Fabric) -> u64 {
    let counters = fabric.hosts()[1].worker.counters();
    counters.iter().find(|(name, _)| *name == "rx_packets").expect("a counter of the port").1
}

#[test]
fn moved_host_is_found_at_new_address() {
    let mut fabric = with_a_host();
    for moved in [[2, 0, 0, 0, 9, 9], [6, 1, 2, 3, 4, 5], [2, 0, 0, 0, 0, 3]] {
        let before = (received(&fabric), fabric.switch(0).ingress(0).drops.by(DropReason::NoRoute));
        let mut old = frame(0, 1, 476, 0);
        old[..6].copy_from_slice(&fabric.hosts()[1].worker.port().info().mac);
        let mut new = old.clone();
        new[..6].copy_from_slice(&moved);
        assert_eq!(fabric.follow(1, &LinkChange::Mac(moved)).expect("memory follows"), 0);
        let now = fabric.now();
        fabric.send(now, 0, &old);
        fabric.send(now, 0, &new);
        fabric.run(now + Nanos::from_millis(1));
        let after = (received(&fabric), fabric.switch(0).ingress(0).drops.by(DropReason::NoRoute));
        assert_eq!(after, (before.0 + 1, before.1 + 1));
    }
}

#[test]
fn overlong_frame_is_dropped_on_shrunk_link() {
    let mut fabric = with_a_host();
    fabric.follow(1, &LinkChange::Mtu(1000)).expect("memory follows");
    for length in [1018, 1019] {
        fabric.send(Nanos(0), 0, &frame(0, 1, length, 0));
    }
    fabric.run(Nanos::from_millis(1));
    assert_eq!((received(&fabric), fabric.station(1).too_long), (1, 1));
}

#[test]
fn replacement_host_receives_frames() {
    let mut fabric = with_a_host();
    let arrives = Nanos(2 * (500 + DELAY.0));
    fabric.send(Nanos(0), 0, &frame(0, 1, 476, 0));
    // The first host is in a pass when the frame arrives.
    fabric.run(Nanos(arrives.0 - 100));
    fabric.host(1);
    fabric.run(arrives);
    assert_eq!((fabric.station(1).delivered, received(&fabric)), (1, 0));
    let port = fabric.port(1);
    fabric.attach(1, Host::new(2, NicConfig::default(), Box::new(port)));
    fabric.run(Nanos::from_millis(1));
    assert_eq!(received(&fabric), 1);
}

#[test]
fn frames_between_passes_are_sent_at_once() {
    let mut fabric = with_a_host();
    let mut port = fabric.port(1);
    for _ in 0..2 {
        let id = port.tx_alloc(476).expect("a slot");
        port.tx_frame(&id).write(0, &frame(1, 0, 476, 0));
        port.tx_commit(id);
        port.tx_flush(fabric.now()).expect("memory does not fail");
        assert_eq!(fabric.link(port_of(1)).entered, 0);
    }
    fabric.flush(1);
    assert_eq!(fabric.link(port_of(1)).entered, 1, "and the other behind it");
    fabric.run(Nanos::from_millis(1));
    assert_eq!(delivered(&mut fabric, 0).len(), 2);
}

#[test]
fn injected_frame_ignores_the_weather() {
    let mut fabric = star(3, switch(3));
    fabric.set_frame_faults(Box::new(Storm));
    fabric.inject(2, &frame(0, 2, 100, 0));
    fabric.plug(1, false);
    fabric.inject(1, &frame(0, 1, 100, 0));
    assert!(fabric.run(Nanos::from_millis(1)));
    assert_eq!(delivered(&mut fabric, 2), [(DELAY.0, 100)]);
    assert_eq!((delivered(&mut fabric, 1), fabric.link(End::Station(1)).unplugged), (vec![], 1));
}

#[test]
fn overdue_events_run_in_order() {
    let mut fabric = star(2, switch(2));
    for length in [476, 276] {
        fabric.send(Nanos(0), 0, &frame(0, 1, length, 0));
    }
    fabric.run(Nanos(100));
    fabric.jump(Nanos::from_millis(1));
    let now = fabric.now();
    assert_eq!(now, Nanos(1_000_100));
    while fabric.step(now).is_some() {
        assert_eq!(fabric.now(), now);
    }
    // The first frame is on its second line, and the other behind it.
    fabric.run(now + Nanos::from_millis(1));
    let last = now.0 + DELAY.0 + 500;
    assert_eq!(delivered(&mut fabric, 1), [(last, 476), (last + 300, 276)]);
}

#[test]
fn unbounded_link_takes_burst_at_once() {
    let link = LinkConfig::new(LinkRate::UNBOUNDED, DELAY);
    let stations = (0..2).map(|n| StationConfig { slots: 100, ..StationConfig::new(mac(n), link) }).collect();
    let mut config = switch(2);
    config.ports.iter_mut().for_each(|port| port.link = link);
    let mut fabric = Fabric::new(FabricConfig::star(stations, config)).expect("a fabric");
    for n in 0..100 {
        assert!(fabric.send(Nanos(5), 0, &frame(0, 1, 100 + n, 0)));
    }
    assert!(fabric.run(Nanos::from_millis(1)));
    let all: Vec<_> = (0..100).map(|n| (5 + 2 * DELAY.0, 100 + n)).collect();
    assert_eq!(delivered(&mut fabric, 1), all);
}

#[test]
fn port_delivers_frames_in_configured_pieces() {
    for (split, pieces) in [(Some(20), (20, 80)), (Some(100), (100, 0)), (None, (100, 0))] {
        let mut config = FabricConfig::star(stations(2), switch(2));
        config.stations[1].split = split;
        let mut fabric = Fabric::new(config).expect("a fabric");
        let mut port = fabric.port(1);
        fabric.send(Nanos(0), 0, &frame(0, 1, 100, 0));
        fabric.run(Nanos::from_millis(1));
        assert_eq!(port.rx_burst(fabric.now()), 1);
        let Frame { a, b } = port.rx_frame(0).frame;
        assert_eq!(((a.len(), b.len()), [a, b].concat()), (pieces, frame(0, 1, 100, 0)));
        port.rx_release();
        let id = port.tx_alloc(100).expect("a slot");
        let mut sent = port.tx_frame(&id);
        assert_eq!((sent.a.len(), sent.b.len()), pieces);
        sent.write(0, &frame(1, 0, 100, 0));
        port.tx_commit(id);
        port.tx_flush(fabric.now()).expect("memory does not fail");
        // A sender on a port without a host starts the line itself.
        fabric.send(fabric.now(), 1, &frame(1, 0, 60, 0));
        fabric.run(Nanos::from_millis(2));
        assert_eq!(fabric.take(0).expect("the frame").1, frame(1, 0, 100, 0));
    }
}
