//! Pacing: frames are never early, never permanently late, and bursts are bounded.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;
use roxie::congestion::{Pacer, Rate};
use roxie::time::Nanos;
use roxie::timer::TimerWheel;

use crate::congestion::random::Random;

/// Frames that a pacer released.
struct Run {
    /// Times and bytes.
    frames: Vec<(u64, u64)>,
}

impl Run {
    fn bytes(&self) -> u64 {
        self.frames.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the most bytes by which frames ran ahead of `speed` bytes per nanosecond, from the first on.
    fn most_ahead(&self, speed: f64) -> f64 {
        let start = self.frames[0].0;
        let mut sent = 0;
        let ahead = self.frames.iter().map(|(at, bytes)| {
            sent += bytes;
            sent as f64 - (at - start) as f64 * speed
        });
        ahead.fold(f64::MIN, f64::max)
    }

    /// Returns the most bytes beyond the rate in any span, ends included.
    fn worst_window(&self, speed: f64) -> f64 {
        // Kadane's algorithm: bytes sent minus time, over all spans that begin with a frame.
        let (mut best, mut here, mut last) = (f64::MIN, 0.0f64, self.frames[0].0);
        for (at, bytes) in &self.frames {
            here = (here - (at - last) as f64 * speed).max(0.0) + *bytes as f64;
            last = *at;
            best = best.max(here);
        }
        best
    }
}

/// Sends frames of these sizes, each as soon as allowed. `wake` maps the due time to the wake-up.
fn run(
    pacer: &mut Pacer,
    rate: Rate,
    sizes: impl Iterator<Item = u64>,
    mut wake: impl FnMut(u64) -> u64,
) -> Run {
    let (mut now, mut frames) = (0, Vec::new());
    for bytes in sizes {
        if pacer.ready_at().0 > now {
            now = wake(pacer.ready_at().0).max(now);
        }
        pacer.sent(Nanos(now), bytes, rate);
        frames.push((now, bytes));
    }
    Run { frames }
}

fn speed(rate: Rate) -> f64 {
    rate.0 / 8e9
}

const RATES: [f64; 8] = [10e6, 97e6, 1e9, 2.5e9, 10e9, 40e9, 100e9, 400e9];

#[test]
fn million_frames_drift_less_than_a_nanosecond() {
    for rate in RATES.map(Rate) {
        let sizes = (0..1_000_000u64).map(|i| 60 + i * 37 % 4100);
        let run = run(&mut Pacer::new(), rate, sizes, |at| at);
        let (last, bytes) = *run.frames.last().unwrap();
        let ideal = (run.bytes() - bytes) as f64 / speed(rate);
        assert!((last as f64 - ideal).abs() < 1.001, "{rate}: {last} and not {ideal}");
        assert!(last as f64 >= ideal - 1e-3, "{rate}: ahead of the curve");
        assert!(run.most_ahead(speed(rate)) <= 4160.0 + 1e-3, "{rate}");
    }
}

#[test]
fn clock_ticks_cost_no_rate() {
    for tick in [128u64, 1_024] {
        for rate in RATES.map(Rate) {
            // At 400 Gb/s many frames per tick, at 10 Mb/s thousands of ticks per frame.
            let size = 1_086;
            let run = run(&mut Pacer::new(), rate, std::iter::repeat_n(size, 100_000), |at| {
                at.div_ceil(tick) * tick
            });
            let (last, _) = *run.frames.last().unwrap();
            let ideal = (run.bytes() - size) as f64 / speed(rate);
            assert!(last as f64 >= ideal - 1e-3, "{rate}, {tick} ns: ahead");
            assert!(last as f64 <= ideal + tick as f64 + 1.0, "{rate}, {tick} ns: {last} and not {ideal}");
            assert!(run.most_ahead(speed(rate)) <= size as f64 + 1e-3, "{rate}, {tick} ns");
        }
    }
}

#[test]
fn late_wakeup_catches_up_one_burst() {
    let rate = Rate::from_gbps(8.0); // One byte per nanosecond.
    let mut pacer = Pacer::new();
    pacer.set_burst(10_000, 0);
    pacer.sent(Nanos(0), 1_000, rate);
    assert_eq!(pacer.ready_at(), Nanos(1_000));
    // 4,000 ns late: four frames at once, beside the due one.
    for _ in 0..4 {
        pacer.sent(Nanos(5_000), 1_000, rate);
        assert!(pacer.ready_at() <= Nanos(5_000));
    }
    pacer.sent(Nanos(5_000), 1_000, rate);
    assert_eq!(pacer.ready_at(), Nanos(6_000), "all is caught up");
    // A second late: ten frames, and the due one.
    let late = Nanos(1_000_000_000);
    let mut frames = 0;
    while pacer.ready_at() <= late {
        pacer.sent(late, 1_000, rate);
        frames += 1;
    }
    assert_eq!((frames, pacer.ready_at()), (11, late + Nanos(1_000)));
}

#[test]
fn pauses_bring_no_credit() {
    let rate = Rate::from_gbps(8.0);
    let mut pacer = Pacer::new();
    assert_eq!(pacer.ready_at(), Nanos::ZERO);
    pacer.sent(Nanos::from_millis(5), 1_000, rate);
    assert_eq!(pacer.ready_at(), Nanos::from_millis(5) + Nanos(1_000), "there was no rate before");
    let later = Nanos::from_millis(9);
    pacer.was_idle(later);
    pacer.sent(later, 1_000, rate);
    assert_eq!(pacer.ready_at(), later + Nanos(1_000));
    // A pause that ends before the next frame is due changes nothing.
    pacer.was_idle(later + Nanos(400));
    assert_eq!(pacer.ready_at(), later + Nanos(1_000));
    pacer.sent(later + Nanos(1_000), 1_000, rate);
    assert_eq!(pacer.ready_at(), later + Nanos(2_000));
}

#[test]
fn burst_holds_a_typical_packet() {
    let rate = Rate::from_gbps(8.0);
    let burst = |max: u32, typical: u16| {
        let mut pacer = Pacer::new();
        pacer.sent(Nanos(0), 1, rate);
        pacer.set_burst(max, typical);
        let mut bytes = 0;
        while pacer.ready_at() <= Nanos(1_000_000_000) {
            pacer.sent(Nanos(1_000_000_000), 1, rate);
            bytes += 1;
        }
        bytes - 1
    };
    assert_eq!((burst(100, 1_500), burst(2_000, 1_500), burst(0, 1_500)), (1_500, 2_000, Pacer::MAX_BURST));
}

#[test]
fn rate_change_moves_a_waiting_frame() {
    let mut pacer = Pacer::new();
    pacer.sent(Nanos(0), 1_000, Rate::from_gbps(8.0));
    assert_eq!(pacer.ready_at(), Nanos(1_000));
    // 600 bytes of debt are left.
    pacer.rate_changed(Nanos(400), Rate::from_gbps(4.0));
    assert_eq!(pacer.ready_at(), Nanos(1_600));
    pacer.rate_changed(Nanos(1_000), Rate::from_gbps(80.0));
    assert_eq!(pacer.ready_at(), Nanos(1_030));
    // Credit stays the same number of bytes at another rate.
    pacer.rate_changed(Nanos(1_130), Rate::from_gbps(0.8));
    pacer.sent(Nanos(1_130), 1_100, Rate::from_gbps(0.8));
    assert_eq!(pacer.ready_at(), Nanos(2_130));
}

#[test]
fn absurd_rates_and_times_do_not_panic() {
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE].map(Rate) {
        let mut pacer = Pacer::new();
        pacer.sent(Nanos::MAX, u64::MAX, rate);
        pacer.sent(Nanos::ZERO, u64::MAX, rate);
        pacer.rate_changed(Nanos::MAX, rate);
        pacer.was_idle(Nanos::MAX);
        assert!(pacer.ready_at() <= Nanos::MAX);
    }
}

/// A thousand QPs of different rates in one event loop with a ticking clock: each keeps its own rate.
#[test]
fn thousand_pacers_keep_their_rates() {
    const TICK: u64 = 128;
    let mut random = Random(1);
    let rates: Vec<Rate> = (0..1_000).map(|_| Rate(random.scale(10e6, 400e9))).collect();
    let mut pacers = vec![Pacer::new(); rates.len()];
    let mut runs: Vec<Run> = rates.iter().map(|_| Run { frames: Vec::new() }).collect();
    let mut queue: BinaryHeap<Reverse<(u64, usize)>> = (0..rates.len()).map(|i| Reverse((0, i))).collect();
    for _ in 0..2_000_000 {
        let Reverse((now, i)) = queue.pop().unwrap();
        let bytes = 60 + random.below(4_100);
        pacers[i].sent(Nanos(now), bytes, rates[i]);
        runs[i].frames.push((now, bytes));
        let next = pacers[i].ready_at().0;
        queue.push(Reverse((if next <= now { now } else { next.div_ceil(TICK) * TICK }, i)));
    }
    for (rate, run) in rates.iter().zip(&runs) {
        assert!(run.most_ahead(speed(*rate)) <= 4_160.0 + 1e-3, "{rate}");
        let (last, bytes) = *run.frames.last().unwrap();
        let behind = last as f64 - (run.bytes() - bytes) as f64 / speed(*rate);
        assert!((-1e-3..=TICK as f64 + 1.0).contains(&behind), "{rate}: {behind} ns behind");
    }
    assert!(runs.iter().all(|run| !run.frames.is_empty()));
}

/// The NIC's timer wheel has a tick longer than a frame takes at high rates. After a millisecond, each QP has sent what
/// its rate allows, less a frame and what a tick may wait.
#[test]
fn timer_wheel_keeps_a_thousand_rates() {
    const TICK: f64 = 1_024.0;
    const END: Nanos = Nanos::from_millis(1);
    let mut random = Random(2);
    let rates: Vec<Rate> = (0..1_000).map(|_| Rate(random.scale(10e6, 400e9))).collect();
    let mut pacers = vec![Pacer::new(); rates.len()];
    let mut runs: Vec<Run> = rates.iter().map(|_| Run { frames: Vec::new() }).collect();
    let mut wheel = TimerWheel::new(rates.len() as u32);
    (0..rates.len() as u32).for_each(|i| wheel.set(i, Nanos(u64::from(i))));
    let mut due = Vec::new();
    loop {
        let now = wheel.next_deadline();
        if now > END {
            break;
        }
        wheel.advance(now, |owner| due.push(owner));
        for owner in due.drain(..) {
            let i = owner as usize;
            while pacers[i].ready_at() <= now {
                let bytes = 60 + random.below(4_100);
                pacers[i].sent(now, bytes, rates[i]);
                runs[i].frames.push((now.0, bytes));
            }
            wheel.set(owner, pacers[i].ready_at());
        }
    }
    for (rate, run) in rates.iter().zip(&runs) {
        let ideal = (END.0 - run.frames[0].0) as f64 * speed(*rate);
        let off = run.bytes() as f64 - ideal;
        assert!((-2.0 * TICK * speed(*rate)..=4_160.0).contains(&off), "{rate}: {off} bytes off");
        assert!(run.most_ahead(speed(*rate)) <= 4_160.0 + 1e-3, "{rate}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Woken in time or far too late, with changing rates: no span exceeds its highest rate by more than a burst and a
    /// frame. Woken in time, it never runs more than a frame ahead.
    #[test]
    fn bursts_are_bounded_and_frames_never_early(
        seed in any::<u64>(), burst in 1u32..200_000, late in 0u64..1_000_000, slowest in 10e6f64..400e9
    ) {
        let mut random = Random(seed);
        let mut pacer = Pacer::new();
        pacer.set_burst(burst, 1);
        let fastest = (slowest * 16.0).min(400e9);
        let (mut now, mut frames, mut given, mut sent, mut rate) = (0u64, Vec::new(), 0.0, 0.0, Rate(slowest));
        for _ in 0..2_000 {
            let due = pacer.ready_at().0.max(now);
            // The rate may change in between.
            if random.below(4) == 0 && due > now {
                let at = now + random.below(due - now);
                given += (at - now) as f64 * speed(rate);
                rate = Rate(random.scale(slowest, fastest));
                pacer.rate_changed(Nanos(at), rate);
                now = at;
            }
            let due = pacer.ready_at().0.max(now);
            let at = due + if late != 0 && random.below(16) == 0 { random.below(late) } else { 0 };
            given += (at - now) as f64 * speed(rate);
            now = at;
            let bytes = 60 + random.below(4_100);
            prop_assert!(sent <= given + 1e-3, "{} bytes early", sent - given);
            pacer.sent(Nanos(now), bytes, rate);
            sent += bytes as f64;
            frames.push((now, bytes));
        }
        let run = Run { frames };
        let worst = run.worst_window(speed(Rate(fastest)));
        prop_assert!(worst <= f64::from(burst) + 4_160.0 + 1e-3, "{}", worst);
    }
}
