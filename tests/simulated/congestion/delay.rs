//! The delay-based reaction point (Swift).

use roxie::congestion::{Control, Fixed, Rate, Sample, Settings, Swift};
use roxie::time::Nanos;

const LINE: f64 = 10e9;
/// Bytes of a packet, the unit of windows in the settings below.
const PACKET: f64 = 1000.0;

fn swift(knobs: &str) -> Swift {
    let settings: Settings = format!("swift,packet=1000{knobs}").parse().unwrap();
    let Settings::Swift(knobs) = settings else { panic!("{settings}") };
    Swift::new(&knobs, Rate(LINE))
}

fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

fn sample(round_trip: u64, bytes: u64) -> Sample {
    Sample { round_trip: us(round_trip), bytes }
}

/// Returns the window in packets that the rate gives at a round trip of `us` microseconds.
fn window(control: &mut Swift, us: f64) -> f64 {
    control.rate(Nanos::MAX).0 * us / 8e6 / PACKET
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

#[test]
fn rate_follows_round_trips_only() {
    let mut control = swift("");
    assert!(control.wants_round_trips());
    assert_eq!(control.rate(us(5)), Rate(LINE));
    assert!(!control.notified(us(6)), "notifications are for others");
    assert!(!control.acknowledged(us(7), sample(10, 1000)), "all is well");
    assert_eq!(control.rate(us(7)), Rate(LINE));
}

/// The rate changes only at acknowledgements, so `rises_at` is never.
#[test]
fn delay_based_rate_does_not_rise_alone() {
    let mut control = swift(",fs_range=0");
    control.acknowledged(us(1_000), sample(100, 1000));
    assert!(control.rate(us(1_000)) < Rate(LINE));
    assert_eq!(control.rises_at(), Nanos::MAX);
    assert_eq!(Fixed::new(Rate(1e6), Rate(LINE)).rises_at(), Nanos::MAX);
}

/// By hand, with a target of 50 us and no flow scaling: an excess of 50 us in 100 us cuts the window by 0.8 / 2. Within
/// a round trip there is no second cut. An excess of 950 us in 1000 us cuts half, the maximum.
#[test]
fn decrease_is_proportional_bounded_once_per_rtt() {
    let mut control = swift(",fs_range=0");
    assert!(control.acknowledged(us(1_000), sample(100, 1000)));
    // 10 Gb/s times 100 us are 125 packets.
    assert!(close(window(&mut control, 100.0), 125.0 * 0.6));
    assert!(!control.acknowledged(Nanos(1_099_999), sample(100, 1000)));
    assert!(control.acknowledged(us(1_100), sample(100, 1000)));
    assert!(close(window(&mut control, 100.0), 125.0 * 0.36));
    control.acknowledged(us(5_000), sample(1_000, 1000));
    let mean = 100.0 + 900.0 / 8.0;
    assert!(close(window(&mut control, mean), 125.0 * 0.18));
    assert_eq!(control.state().round_trip, Some(Nanos(212_500)));
}

/// By hand: the window grows by `ai` per round trip, however many acknowledgements report it.
#[test]
fn increase_is_one_packet_per_round_trip() {
    let mut control = swift(",fs_range=0");
    for i in 0..12 {
        control.acknowledged(us(1_000 + i * 100), sample(100, 1000));
    }
    for _ in 0..400 {
        control.acknowledged(us(3_000), sample(40, 0)); // The mean falls to 40 us; no bytes, no growth.
    }
    let before = window(&mut control, 40.0);
    assert!((0.2..5.0).contains(&before), "{before}");
    control.acknowledged(us(3_040), sample(40, 64_000_000));
    assert!(close(window(&mut control, 40.0), before + 1.0));
    let now = window(&mut control, 40.0);
    control.acknowledged(us(3_080), sample(40, 1000));
    assert!(close(window(&mut control, 40.0), now + 1.0 / now.max(1.0)));
}

/// A small window has a higher target: at a round trip between the two targets it grows, while a large window shrinks.
#[test]
fn more_flows_get_a_higher_target() {
    let grown = |from: u64| {
        let mut control = swift(",fs_range=100,fs_min_cwnd=0.1,fs_max_cwnd=100");
        for i in 0..from {
            control.acknowledged(us(10_000 * (i + 1)), sample(1_000, 1000));
        }
        for _ in 0..400 {
            control.acknowledged(us(10_000 * from), sample(70, 0));
        }
        let before = control.rate(Nanos::MAX).0;
        control.acknowledged(us(10_000 * (from + 1)), sample(70, 1000));
        control.rate(Nanos::MAX).0 - before
    };
    assert!(grown(1) < 0.0 && grown(12) > 0.0, "{} {}", grown(1), grown(12));
}

/// Flows that share a queue converge to equal rates, with the queue at its target and the link full.
#[test]
fn flows_through_one_queue_converge() {
    const FLOWS: usize = 4;
    const BASE: f64 = 20e-6;
    let mut flows: Vec<Swift> = (0..FLOWS).map(|_| swift(",base_target=60,fs_range=40")).collect();
    // One flow starts before the others.
    let (mut queue, mut sums, mut steps) = (0.0f64, [0.0; FLOWS], 0);
    let step = 10e-6;
    for tick in 0..100_000u64 {
        let now = us(10 * (tick + 1));
        let active = if tick < 5_000 { 1 } else { FLOWS };
        let rates: Vec<f64> = flows[..active].iter_mut().map(|f| f.rate(now).0).collect();
        queue = (queue + (rates.iter().sum::<f64>() - LINE) * step).max(0.0);
        let round_trip = Nanos(((BASE + queue / LINE) * 1e9) as u64);
        for (flow, rate) in flows.iter_mut().zip(&rates) {
            flow.acknowledged(now, Sample { round_trip, bytes: (rate * step / 8.0) as u64 });
        }
        if tick >= 60_000 {
            rates.iter().zip(&mut sums).for_each(|(rate, sum)| *sum += rate);
            steps += 1;
        }
    }
    let means = sums.map(|sum| sum / f64::from(steps));
    let total: f64 = means.iter().sum();
    let fairness = total * total / (FLOWS as f64 * means.iter().map(|m| m * m).sum::<f64>());
    assert!(fairness > 0.99, "{means:?}: {fairness}");
    assert!((0.9 * LINE..=1.1 * LINE).contains(&total), "{means:?}");
}

#[test]
fn absurd_samples_keep_rate_within_bounds() {
    let mut control = swift("");
    for (at, round_trip, bytes) in [(1, 0, u64::MAX), (2, u64::MAX, u64::MAX), (3, u64::MAX, 0), (3, 1, 1)] {
        control.acknowledged(Nanos(at), Sample { round_trip: Nanos(round_trip), bytes });
        let rate = control.rate(Nanos(at)).0;
        assert!((1e6..=LINE).contains(&rate), "{rate}");
    }
    for i in 0..10_000 {
        control.acknowledged(us(i * 20_000), sample(10_000, 1));
    }
    assert_eq!(control.rate(Nanos::MAX), Rate(1e6), "the lowest rate");
    for i in 0..10_000 {
        control.acknowledged(us(200_000_000 + i * 20), sample(20, 1 << 20));
    }
    assert_eq!(control.rate(Nanos::MAX), Rate(LINE));
}
