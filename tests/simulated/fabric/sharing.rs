//! Schedulers and buffer sharing.

use roxie::time::Nanos;
use roxie_sim::fabric::{DropReason, Fabric, PriorityMap, Schedule, SwitchConfig, Threshold};

use super::{assert_conserved, frame, star, switch};

/// Returns the TOS of a priority.
fn tos(priority: u8) -> u8 {
    priority << 5
}

/// Stations 0 to n-1 send to station n at line rate with these priorities. Returns the bytes delivered of each in
/// `time`.
fn shares(schedule: &[(u8, Schedule)], time: Nanos) -> Vec<u64> {
    let senders = schedule.len();
    let mut config = switch(senders + 1);
    // No queue may fill the buffer: each gets all that it sends.
    config.lossy = Threshold::Static(500_000);
    for (priority, schedule) in schedule {
        config.ports[senders].schedule[usize::from(*priority)] = *schedule;
    }
    let mut fabric = star(senders + 1, config);
    for (station, (priority, _)) in schedule.iter().enumerate() {
        // Frames differ in length, so that shares of frames differ from shares of bytes.
        let length = 400 + 300 * station;
        for _ in 0..time.0 / length as u64 {
            fabric.send(Nanos(0), station, &frame(station, senders, length, tos(*priority)));
        }
    }
    fabric.run(time);
    assert_conserved(fabric.switch(0));
    schedule
        .iter()
        .map(|(priority, _)| fabric.switch(0).queue(senders, usize::from(*priority)).sent_bytes)
        .collect()
}

#[test]
fn strict_priority_goes_before_lower_ones() {
    use Schedule::Strict;
    let shares = shares(&[(5, Strict), (3, Strict)], Nanos::from_micros(500));
    // The higher priority fills its link; the lower gets only the first frames' time.
    assert!(shares[0] > 450_000 && shares[1] < 10_000, "{shares:?}");
}

#[test]
fn weights_are_shares_of_bytes() {
    use Schedule::Ets;
    let shares = shares(&[(1, Ets(10)), (2, Ets(30)), (6, Ets(60))], Nanos::from_millis(2));
    let total: u64 = shares.iter().sum();
    for (share, percent) in shares.iter().zip([10.0, 30.0, 60.0]) {
        let got = 100.0 * *share as f64 / total as f64;
        assert!((got - percent).abs() < 0.5, "{shares:?}: {got} instead of {percent}");
    }
}

#[test]
fn strict_comes_before_weights() {
    let shares = shares(&[(0, Schedule::Strict), (7, Schedule::Ets(100))], Nanos::from_micros(500));
    assert!(shares[0] > 450_000 && shares[1] < 10_000, "{shares:?}");
}

/// Two stations send at full rate to a third for a while.
fn congested(config: SwitchConfig, frames: usize, length: usize) -> Fabric {
    let mut fabric = star(3, config);
    for station in 0..2 {
        for _ in 0..frames {
            fabric.send(Nanos(0), station, &frame(station, 2, length, 0));
        }
    }
    fabric
}

#[test]
fn every_frame_is_counted_once_at_each_moment() {
    let mut config = switch(3);
    config.lossy = Threshold::Static(20_000);
    let mut fabric = congested(config, 500, 1000);
    for micros in 0..700 {
        fabric.run(Nanos::from_micros(micros));
        let switch = fabric.switch(0);
        assert_conserved(switch);
        let queue = switch.queue(2, 0);
        let sent: u64 = (0..2).map(|station| fabric.station(station).sent).sum();
        let delivered = fabric.station(2).delivered;
        assert_eq!(sent, delivered + queue.drops.all() + queue.queued() + fabric.on_links(), "{micros} us");
        assert_eq!(switch.used().0, queue.depth.now(), "the buffer holds what the queues do");
    }
    let queue = fabric.switch(0).queue(2, 0);
    let dropped = queue.drops.by(DropReason::Threshold);
    assert!((400..500).contains(&dropped) && queue.drops.all() == dropped, "{queue:?}");
    assert_eq!((fabric.station(2).delivered, fabric.on_links()), (1000 - dropped, 0));
    assert_eq!(queue.depth.peak(), 20_000);
}

#[test]
fn dynamic_threshold_leaves_room_for_others() {
    let mut config = switch(3);
    config.buffer = 90_000;
    config.lossy = Threshold::Dynamic(2.0);
    // A single queue settles at twice the free space: two thirds of the buffer.
    let mut fabric = congested(config, 300, 1000);
    fabric.run(Nanos::from_millis(1));
    let queue = fabric.switch(0).queue(2, 0);
    assert!(queue.drops.by(DropReason::Threshold) > 0 && queue.drops.by(DropReason::Full) == 0, "{queue:?}");
    assert!((59_000..=61_000).contains(&queue.depth.peak()), "{}", queue.depth.peak());
}

#[test]
fn full_buffer_keeps_reservations() {
    let mut config = switch(3);
    config.lossy = Threshold::Static(1_000_000);
    config.reserved = 2000;
    config.buffer = 3 * 8 * 2000 + 10_000;
    let mut fabric = congested(config, 100, 1000);
    fabric.run(Nanos::from_micros(40));
    // Each ingress uses its reservation, and they share the rest.
    let (used, peak) = fabric.switch(0).used();
    assert_eq!((used, peak), (14_000, 14_000));
    assert!(fabric.switch(0).queue(2, 0).drops.by(DropReason::Full) > 0);
    assert_eq!(fabric.switch(0).queue(2, 0).drops.by(DropReason::Threshold), 0);
}

#[test]
fn frame_takes_whole_cells() {
    let mut config = switch(3);
    (config.cell, config.lossy) = (208, Threshold::Static(1_000_000));
    config.buffer = 208 * 50;
    let mut fabric = congested(config, 100, 209);
    fabric.run(Nanos::from_micros(20));
    assert_eq!(fabric.switch(0).used().1, 208 * 50, "25 frames of two cells");
    assert_eq!(fabric.switch(0).queue(2, 0).depth.peak(), 25 * 209);
}

#[test]
fn oversized_frame_is_dropped_at_ingress() {
    let mut config = switch(2);
    (config.longest_frame, config.priorities) = (1000, PriorityMap::Pcp([0; 8]));
    let mut fabric = star(2, config);
    fabric.send(Nanos(0), 0, &frame(0, 1, 1001, 0));
    fabric.send(Nanos(0), 0, &frame(0, 1, 1000, 0));
    fabric.send(Nanos(0), 0, &[1, 2, 3]);
    fabric.run(Nanos::from_micros(10));
    let drops = fabric.switch(0).ingress(0).drops;
    assert_eq!([DropReason::TooLong, DropReason::Malformed].map(|reason| drops.by(reason)), [1, 1]);
    assert_eq!(super::delivered(&mut fabric, 1).len(), 1);
}
