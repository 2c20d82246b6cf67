//! Cut-through, link errors, the PFC watchdog, and taps.

use roxie::time::Nanos;
use roxie::wire::mac_control::MacControl;
use roxie_sim::fabric::{
    DropReason, EgressOutcome, End, Fabric, FabricConfig, IngressOutcome, LinkConfig, LinkRate, MacPause,
    PfcConfig, PriorityMap, Schedule, SwitchConfig, Threshold, WatchdogConfig,
};

use super::{DELAY, RATE, assert_conserved, delivered, frame, link, mac, star, stations, switch};

/// TOS of priority 3.
const TOS: u8 = 3 << 5;

#[test]
fn cut_through_forwards_after_the_header() {
    let arrives = |config: SwitchConfig| {
        let mut fabric = star(2, config);
        fabric.send(Nanos(0), 0, &frame(0, 1, 976, 0));
        fabric.run(Nanos(10_000));
        delivered(&mut fabric, 1)[0].0
    };
    let cut = || SwitchConfig { cut_through: true, ..switch(2) };
    let stored = 1000 + DELAY.0 + 1000 + DELAY.0;
    assert_eq!(arrives(switch(2)), stored);
    // The switch reads 60 bytes of the frame; 24 bytes surround it on the wire.
    assert_eq!(arrives(cut()), stored - (976 - 60));
    let to = |rate: u64| {
        let mut config = cut();
        config.ports[1].link = LinkConfig { rate: LinkRate(rate), ..link() };
        arrives(config)
    };
    assert_eq!(to(RATE.0 / 2), stored - (976 - 60) + 1000, "a slower way out is never short of bytes");
    assert_eq!(to(2 * RATE.0), stored - 500, "a faster one would be, so the frame is stored");
}

#[test]
fn cut_through_keeps_order_and_counts() {
    let mut fabric = star(3, SwitchConfig { cut_through: true, ..switch(3) });
    for n in 0..50 {
        fabric.send(Nanos(0), 0, &frame(0, 2, 100 + 10 * n, 0));
        fabric.send(Nanos(0), 1, &frame(1, 2, 101 + 10 * n, 0));
    }
    assert!(fabric.run(Nanos::from_millis(1)));
    let lengths: Vec<usize> = delivered(&mut fabric, 2).into_iter().map(|(_, length)| length).collect();
    let [even, odd]: [Vec<usize>; 2] =
        [0, 1].map(|rest| lengths.iter().copied().filter(|l| l % 10 == rest).collect());
    assert!(even.is_sorted() && odd.is_sorted() && even.len() == 50 && odd.len() == 50, "{lengths:?}");
    assert_conserved(fabric.switch(0));
}

#[test]
fn links_damage_a_reproducible_share() {
    let play = |seed| {
        let mut ends = stations(2);
        ends[0].link.frame_errors = 0.25;
        let config = FabricConfig { seed, ..FabricConfig::star(ends, switch(2)) };
        let mut fabric = Fabric::new(config).expect("a fabric");
        for _ in 0..4000 {
            fabric.send(Nanos(0), 0, &frame(0, 1, 100, 0));
        }
        assert!(fabric.run(Nanos::from_millis(2)));
        let times: Vec<u64> = delivered(&mut fabric, 1).into_iter().map(|(time, _)| time).collect();
        (fabric.link(End::Switch { switch: 0, port: 0 }).damaged, times, fabric.on_links())
    };
    let (damaged, times, on_links) = play(1);
    assert!((900..1100).contains(&damaged), "{damaged}");
    assert_eq!((damaged + times.len() as u64, on_links), (4000, 0));
    assert_eq!(play(1), (damaged, times.clone(), 0));
    assert_ne!(play(2).1, times);
}

/// Station 1 pauses priority 3 for 4.19 ms, and frames of that priority wait in the switch.
fn storm(watchdog: Option<WatchdogConfig>) -> Fabric {
    let mut config = switch(2);
    config.pfc =
        Some(PfcConfig { response: Some(Nanos(100)), watchdog, ..PfcConfig::new(&[3]).expect("a priority") });
    let mut fabric = star(2, config);
    let mut quanta = [0; 8];
    quanta[3] = 0xffff;
    fabric.send(Nanos(0), 1, &MacControl::Pfc { enable: 1 << 3, quanta }.build(mac(1)));
    fabric.run(Nanos(10_000));
    for _ in 0..10 {
        fabric.send(Nanos(10_000), 0, &frame(0, 1, 976, TOS));
    }
    fabric
}

#[test]
fn watchdog_flushes_closes_and_reopens_queue() {
    let millis = Nanos::from_millis;
    let dog = WatchdogConfig { detect: millis(1), restore: millis(1) };
    let mut fabric = storm(Some(dog));
    // The queue has had frames since 11.1 us.
    fabric.run(Nanos(1_011_099));
    assert_eq!((fabric.switch(0).queue(1, 3).storms, fabric.switch(0).queue(1, 3).queued()), (0, 10));
    fabric.run(Nanos(1_011_200));
    let queue = fabric.switch(0).queue(1, 3);
    assert_eq!((queue.storms, queue.flushed, queue.queued(), fabric.switch(0).used().0), (1, 10, 0, 0));
    fabric.send(millis(2), 0, &frame(0, 1, 976, TOS));
    fabric.send(millis(2), 0, &frame(0, 1, 500, 0));
    fabric.run(millis(3));
    assert_eq!(fabric.switch(0).queue(1, 3).drops.by(DropReason::Watchdog), 1);
    assert_eq!(delivered(&mut fabric, 1).len(), 1, "other priorities go on");
    // The pause ends at 4.19 ms.
    fabric.send(millis(5), 0, &frame(0, 1, 976, TOS));
    fabric.run(Nanos(5_100_000));
    assert_eq!(delivered(&mut fabric, 1).len(), 0, "1 ms has to pass");
    fabric.send(Nanos(5_300_000), 0, &frame(0, 1, 976, TOS));
    assert!(fabric.run(millis(7)));
    assert_eq!(delivered(&mut fabric, 1).len(), 1);
    assert_conserved(fabric.switch(0));
}

#[test]
fn queue_waits_without_watchdog() {
    let mut fabric = storm(None);
    assert!(fabric.run(Nanos::from_millis(6)));
    let queue = fabric.switch(0).queue(1, 3);
    assert_eq!((queue.storms, queue.flushed, queue.sent), (0, 0, 10));
    assert!(delivered(&mut fabric, 1)[0].0 > 4_194_000, "after the pause");
}

#[test]
fn watchdog_ignores_interrupted_pauses() {
    let dog = WatchdogConfig { detect: Nanos(50_000), restore: Nanos(50_000) };
    let mut config = switch(2);
    config.pfc = Some(PfcConfig {
        response: Some(Nanos(100)),
        watchdog: Some(dog),
        ..PfcConfig::new(&[3]).expect("a priority")
    });
    let mut fabric = star(2, config);
    for n in 0..40 {
        let mut quanta = [0; 8];
        // 600 quanta of 64 ns.
        quanta[3] = 600;
        let now = Nanos(n * 45_000);
        fabric.send(now, 1, &MacControl::Pfc { enable: 1 << 3, quanta }.build(mac(1)));
        for _ in 0..10 {
            fabric.send(now, 0, &frame(0, 1, 976, TOS));
        }
        fabric.run(Nanos((n + 1) * 45_000));
    }
    fabric.run(Nanos::from_millis(10));
    let queue = fabric.switch(0).queue(1, 3);
    assert_eq!((queue.storms, queue.flushed, queue.sent), (0, 0, 400));
    assert!(queue.pause_received > Nanos::from_millis(1));
}

#[test]
fn tap_sees_both_directions_and_fates() {
    let mut fabric = star(3, switch(3));
    fabric.tap(End::Switch { switch: 0, port: 1 });
    fabric.send(Nanos(0), 0, &frame(0, 1, 976, TOS));
    fabric.send(Nanos(0), 2, &frame(2, 1, 976, TOS));
    fabric.send(Nanos(0), 1, &frame(1, 77, 100, 0));
    fabric.run(Nanos(10_000));
    let sights = fabric.take_sights();
    let pauses: Vec<_> =
        sights.iter().map(|sight| (sight.at.0, sight.is_arrival, sight.ingress, sight.egress)).collect();
    let story = |waited, behind| {
        Some(EgressOutcome::Data { priority: 3, waited: Nanos(waited), marked: false, behind })
    };
    assert_eq!(
        pauses,
        [
            (224, true, Some(IngressOutcome::Dropped(DropReason::NoRoute)), None),
            (1100, false, None, story(0, 0)),
            (2100, false, None, story(1000, 0)),
        ]
    );
    assert_eq!(sights[0].to_string(), "dropped: no_route");
    assert_eq!(sights[2].to_string(), "priority 3, waited 1000 ns, 0 B behind it");
    assert!(fabric.take_sights().is_empty());
}

/// A switch that pauses its peer at the first lossless frame, with a slow egress.
#[test]
fn paused_station_sends_other_priorities() {
    let mut ends = stations(2);
    ends[0].mac_pause = Some(MacPause { response: Some(Nanos(0)), priorities: PriorityMap::default() });
    let mut config = switch(2);
    config.pfc = Some(PfcConfig::new(&[3]).expect("a priority"));
    config.lossless = Threshold::Static(0);
    config.ports[1].link.rate = LinkRate(RATE.0 / 100);
    config.ports[1].schedule = [Schedule::Ets(1); 8];
    let mut fabric = Fabric::new(FabricConfig::star(ends, config)).expect("a fabric");
    for _ in 0..4 {
        fabric.send(Nanos(0), 0, &frame(0, 1, 976, TOS));
    }
    fabric.send(Nanos(2000), 0, &frame(0, 1, 500, 0));
    fabric.run(Nanos(50_000));
    // The first frame is forwarded at once. The second waits, and the third has begun when the pause arrives; the other
    // priority overtakes the fourth.
    let sent = [3, 0].map(|priority| fabric.switch(0).queue(1, priority).offered);
    assert_eq!(sent, [3, 1]);
}
