//! Results from publications or theory, with tolerances.

use roxie::time::Nanos;
use roxie_sim::fabric::SharedSwitch;
use roxie_sim::scenario::{Bytes, Simulation, Summary};

use super::{played, scenario, simulation};

/// Returns the bytes delivered to a host so far.
fn delivered(simulation: &Simulation, host: usize) -> u64 {
    simulation.fabric().station(host).delivered_bytes
}

/// Jain's fairness index (Jain, Chiu and Hawe 1984).
fn fairness(shares: &[f64]) -> f64 {
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
    sum * sum / (shares.len() as f64 * squares)
}

/// DCQCN, SIGCOMM 2015, figure 8: flows that share a bottleneck get equal rates. Jain's index is 0.99 or more.
#[test]
fn two_dcqcn_flows_share_a_link() {
    let mut simulation = simulation(
        r#"
        time = "40 ms"
        [network]
        shape = "dumbbell"
        pairs = 2
        rate = "40 Gb/s"
        [hosts]
        mtu = 4096
        [ecn]
        [pfc]
        [cc]
        control = "dcqcn"
        preset = "paper"
        [[traffic]]
        pattern = "flows"
        from = [0]
        to = [2]
        bytes = "1 GB"
        [[traffic]]
        pattern = "flows"
        from = [1]
        to = [3]
        bytes = "1 GB"
        start = "1 ms"
        "#,
    );
    simulation.advance(Nanos::from_millis(20)).expect("connections");
    let before = [2, 3].map(|host| delivered(&simulation, host));
    simulation.run().expect("connections");
    let shares = [0, 1].map(|n| (delivered(&simulation, 2 + n) - before[n]) as f64);
    let index = fairness(&shares);
    assert!(index >= 0.99, "{index}: {shares:?}");
    let share = shares.iter().sum::<f64>() * 8.0 / 20e-3 / 40e9;
    assert!(share > 0.85, "the link is used: {share}");
    assert_eq!(simulation.results().summary.dropped, 0);
}

/// An incast with rates, constants and thresholds of the DCQCN paper. Twenty senders on four leaves, a receiver on a
/// fifth, and a bystander flow to another host of that leaf, which crosses the same spine. The spine carries as much as
/// four of the paper's. With packets of 4 KiB, the windows of twenty queue pairs (128 packets each) exceed a switch's
/// buffer; a hardware NIC has no such window.
fn incast(control: &str) -> (Simulation, [Summary; 2], [f64; 2]) {
    let mut scenario = scenario(&format!(
        r#"
        time = "60 ms"
        [network]
        shape = "leaf-spine"
        leaves = 5
        spines = 1
        hosts = 6
        rate = "40 Gb/s"
        trunk_rate = "160 Gb/s"
        [hosts]
        mtu = 4096
        [ecn]
        kmin = "5 KB"
        kmax = "200 KB"
        pmax = 0.01
        [pfc]
        alpha = 1.0
        [cc]
        {control}
        [[traffic]]
        pattern = "incast"
        from = [6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 24, 25, 26, 27, 28]
        to = [0]
        bytes = "1 GB"
        [[traffic]]
        pattern = "flows"
        from = [11]
        to = [1]
        bytes = "1 GB"
        "#
    ));
    // The shared buffer: what the paper's 12 MB leave beside the headroom of these ports. Only the threshold is free:
    // beta is 8, for 8 priorities.
    let config = scenario.fabric(&scenario.shape().expect("a shape")).expect("a network");
    let shared = SharedSwitch::paper().t_pfc_dynamic(8.0, 0.0) as u64;
    scenario.switch.buffer = Bytes(shared + config.switches[0].promised());
    let mut simulation = Simulation::new(&scenario).expect("a scenario that can be played");
    simulation.advance(Nanos::from_millis(48)).expect("connections");
    let before = simulation.results().summary;
    let bystander = delivered(&simulation, 1);
    let target = delivered(&simulation, 0);
    simulation.run().expect("connections");
    let after = simulation.results().summary;
    let rate = |host, since| (delivered(&simulation, host) - since) as f64 * 8.0 / 12e-3;
    let rates = [rate(0, target), rate(1, bystander)];
    (simulation, [before, after], rates)
}

/// The purpose of DCQCN (SIGCOMM 2015, sections 2 and 6). With PFC alone, a 20 to 1 incast pauses the spine, and a
/// bystander that crosses it gets little. With DCQCN, once converged, nine tenths of the pauses are gone, and the
/// bystander gets nine tenths of its link.
#[test]
fn dcqcn_frees_bystander_of_an_incast() {
    let (alone, [before, after], [target, bystander]) = incast("");
    assert_eq!(after.dropped, 0);
    let spine = alone.fabric().switch(5);
    assert!(spine.queue(0, 3).pause_received > Nanos::from_millis(30), "the leaf pauses the spine");
    assert!((1..5).any(|leaf| spine.queue(leaf, 3).xoff_sent > 0), "and the spine another leaf");
    assert!(bystander < 0.2 * 40e9, "{bystander}");
    assert!(target > 0.9 * 40e9, "{target}");
    let pauses_alone = after.pause_ns - before.pause_ns;

    let (_, [before, after], [target, bystander]) = incast("control = \"dcqcn\"\npreset = \"paper\"");
    assert_eq!(after.dropped, 0);
    assert!(before.pauses > 0, "it begins at line rate, and so it pauses first");
    let pauses = after.pause_ns - before.pause_ns;
    assert!(pauses * 10 <= pauses_alone, "{pauses} ns of {pauses_alone}");
    assert!(bystander >= 0.9 * 40e9, "{bystander}");
    assert!(target >= 0.9 * 40e9, "{target}");
}

/// Five switches in a ring. Each host sends to the host two switches further, so that each link carries two flows.
fn ring(routing: &str, watchdog: &str) -> Summary {
    played(&format!(
        r#"
        time = "6 ms"
        [network]
        shape = "ring"
        switches = 5
        hosts = 2
        rate = "10 Gb/s"
        routing = "{routing}"
        [pfc]
        xoff = "20 KB"
        {watchdog}
        [hosts]
        timeout = 14
        {}
        "#,
        (0..10)
            .map(|n| format!(
                "[[traffic]]\npattern = \"flows\"\nfrom = [{n}]\nto = [{}]\nbytes = \"1 MB\"\n",
                (n + 4) % 10
            ))
            .collect::<String>()
    ))
    .summary
}

/// A cyclic buffer dependency deadlocks (Hu et al., HotNets 2016). A watchdog breaks it at the cost of frames. Routes
/// that go up and then down have no cycle (Stephens et al., INFOCOM 2014).
#[test]
fn ring_deadlocks_without_watchdog_or_updown_routes() {
    let stuck = ring("shortest", "");
    let cycle = stuck.deadlock.as_deref().unwrap_or_else(|| panic!("no deadlock: {stuck:?}"));
    assert!(cycle.starts_with("priority 3: switch0:"), "{cycle}");
    assert!(
        (0..5).all(|n| cycle.contains(&format!("switch{n}:"))) && cycle.matches("->").count() == 5,
        "{cycle}"
    );
    assert!(stuck.ended < 10 && stuck.deadlock_ns > 3_000_000, "for ever: {stuck:?}");
    assert_eq!((stuck.dropped, stuck.time_ns), (0, 6_000_000));

    let watched = ring("shortest", "watchdog = \"500 us\"");
    assert!(watched.storms > 0 && watched.dropped > 0, "{watched:?}");
    assert!(watched.deadlock_ns < 1_500_000, "it is broken: {watched:?}");

    let up_down = ring("up-down", "");
    assert_eq!((up_down.deadlock, up_down.ended, up_down.dropped), (None, 10, 0));
}

/// Go-back-N: each loss costs everything sent until its NAK arrives, and a lost NAK costs the timeout. Frames in the
/// host port's ring are sent in any case.
#[test]
fn go_back_n_goodput_follows_loss_rate() {
    const BYTES: f64 = 8e6;
    const DELAY: f64 = 2_000.0;
    let run = |errors: f64| {
        played(&format!(
            "seed = 4\ntime = \"100 ms\"\n[network]\nshape = \"star\"\nhosts = 2\nrate = \"10 Gb/s\"\ndelay = \"{DELAY} ns\"\nframe_errors = \
             {errors}\n[hosts]\ntimeout = 6\n[[traffic]]\npattern = \"flows\"\nfrom = [0]\nto = [1]\nbytes = \"{} MB\"\n",
            BYTES / 1e6
        ))
    };
    // A packet's time on the wire, and the time from its loss to its retransmission.
    let packet = (1024.0 + 58.0 + 24.0) * 0.8;
    let ring = 64.0 * packet;
    let back = ring + 4.0 * DELAY + 2.0 * packet + 2.0 * 84.0 * 0.8;
    let timeout = 262_144.0;
    for errors in [0.0, 0.0005, 0.002, 0.005] {
        let results = run(errors);
        let packets = (BYTES / 1024.0).ceil();
        // Losses on either link, and in the reverse direction.
        let lost = 1.0 - (1.0 - errors) * (1.0 - errors);
        let losses = packets * lost / (1.0 - lost);
        let expected = packets * packet + losses * (back + lost * timeout);
        let took = results.summary.time_ns as f64;
        assert_eq!(results.summary.ended, 1);
        assert_eq!(results.summary.retransmitted > 0, errors > 0.0);
        assert!((0.85..1.15).contains(&(took / expected)), "{errors}: {took} ns, {expected} by theory");
    }
}

/// 802.1Q 37: weights are shares of what strict queues leave, within 2 %.
#[test]
fn ets_gives_each_priority_its_share() {
    let mut simulation = simulation(
        r#"
        time = "2 ms"
        [network]
        shape = "star"
        hosts = 4
        rate = "10 Gb/s"
        [switch]
        schedule = [10, 20, "strict", 70]
        [pfc]
        lossless = [0, 1, 3]
        [[traffic]]
        pattern = "incast"
        from = [0]
        bytes = "10 MB"
        priority = 0
        [[traffic]]
        pattern = "incast"
        from = [1]
        bytes = "10 MB"
        priority = 1
        [[traffic]]
        pattern = "incast"
        from = [2]
        bytes = "10 MB"
        priority = 3
        "#,
    );
    let sent = |simulation: &Simulation| {
        [0, 1, 3].map(|priority| simulation.fabric().switch(0).queue(3, priority).sent_bytes)
    };
    simulation.advance(Nanos(200_000)).expect("connections");
    let before = sent(&simulation);
    simulation.run().expect("connections");
    let after = sent(&simulation);
    let bytes = [0, 1, 2].map(|n| (after[n] - before[n]) as f64);
    let all: f64 = bytes.iter().sum();
    let shares = bytes.map(|bytes| bytes / all);
    for (share, expected) in shares.iter().zip([0.1, 0.2, 0.7]) {
        assert!((share - expected).abs() <= 0.02, "{shares:?}");
    }
}

/// DCQCN+ (Gao et al., ICNP 2018): DCQCN suits few flows, and at 10 Gb/s about 80 are too many: between two
/// notifications, their increases exceed what marks take away, and the queue swings far beyond the thresholds.
#[test]
fn dcqcn_keeps_queues_short_for_few_flows() {
    const KMAX: u64 = 50_000;
    let depths = |senders: usize| {
        let mut simulation = simulation(&format!(
            r#"
            time = "16 ms"
            [network]
            shape = "star"
            hosts = {}
            rate = "10 Gb/s"
            [hosts]
            message = "8 KB"
            depth = 4
            [ecn]
            kmin = "5 KB"
            kmax = "{KMAX} B"
            pmax = 0.1
            [switch]
            buffer = "64 MB"
            limit = "32 MB"
            [cc]
            control = "dcqcn"
            preset = "paper"
            [[traffic]]
            pattern = "incast"
            bytes = "100 MB"
            "#,
            senders + 1
        ));
        simulation.run().expect("connections");
        assert_eq!(simulation.results().summary.dropped, 0);
        let queue = simulation.fabric().switch(0).queue(senders, 3);
        let settled = queue.depth.series().iter().filter(|(time, _)| *time > Nanos::from_millis(8));
        let mut depths: Vec<u64> = settled.map(|(_, depth)| *depth).collect();
        depths.sort_unstable();
        (depths[depths.len() / 2], depths[depths.len() * 99 / 100])
    };
    let (_, most) = depths(8);
    assert!(most < KMAX, "99 % below {most} bytes with eight");
    let (median, most) = depths(80);
    assert!(median > KMAX, "{median} bytes with eighty");
    assert!(most > 4 * KMAX, "99 % below {most} bytes with eighty");
}
