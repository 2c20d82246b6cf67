//! Moderation of notifications at the notification point.

use roxie::congestion::{Knobs, LastNotification, Moderation, Preset};
use roxie::time::Nanos;

use crate::congestion::random::Random;

fn moderation(scope: &str, interval_us: u32) -> Moderation {
    let mut knobs = Knobs::new(Preset::ConnectX);
    knobs.set("cnp_moderation", scope).unwrap();
    knobs.set("min_time_between_cnps", &interval_us.to_string()).unwrap();
    Moderation::new(&knobs, 0x5eed)
}

fn address(n: u64) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[8..].copy_from_slice(&n.to_be_bytes());
    gid
}

fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

#[test]
fn one_notification_per_interval() {
    for scope in ["qp", "destination", "port"] {
        let mut point = moderation(scope, 50);
        let mut qp = LastNotification::default();
        let admitted: Vec<u64> = (0..200).filter(|at| point.admit(us(*at), &mut qp, &address(1))).collect();
        assert_eq!(admitted, [0, 50, 100, 150], "{scope}");
        // After a silence, the next notification is immediate.
        assert!(point.admit(us(170 + 50), &mut qp, &address(1)), "{scope}");
        assert!(
            !point.admit(us(269), &mut qp, &address(1)),
            "{scope}: the interval is from the last that left"
        );
    }
}

#[test]
fn scope_selects_shared_intervals() {
    // Two QPs with one destination, and a third with another.
    for (scope, wanted) in
        [("qp", [true, true, true]), ("destination", [true, false, true]), ("port", [true, false, false])]
    {
        let mut point = moderation(scope, 4);
        let mut qps = [LastNotification::default(); 3];
        let to = [address(1), address(1), address(2)];
        let admitted: Vec<bool> = (0..3).map(|i| point.admit(us(9), &mut qps[i], &to[i])).collect();
        assert_eq!(admitted, wanted, "{scope}");
    }
}

#[test]
fn zero_interval_answers_each_mark() {
    let mut point = moderation("qp", 0);
    let mut qp = LastNotification::default();
    assert!((0..5).all(|_| point.admit(us(1), &mut qp, &address(1))));
}

#[test]
fn changed_interval_counts_from_last_notification() {
    let mut point = moderation("destination", 50);
    let mut qp = LastNotification::default();
    assert!(point.admit(us(0), &mut qp, &address(1)));
    let mut knobs = Knobs::new(Preset::ConnectX);
    knobs.set("cnp_moderation", "destination").unwrap();
    point.set(&knobs);
    assert!(!point.admit(us(3), &mut qp, &address(1)));
    assert!(point.admit(us(4), &mut qp, &address(1)));
    knobs.set("cnp_moderation", "port").unwrap();
    point.set(&knobs);
    assert!(point.admit(us(4), &mut qp, &address(1)), "the port has sent none");
    knobs.set("cnp_moderation", "destination").unwrap();
    point.set(&knobs);
    assert!(point.admit(us(5), &mut qp, &address(1)), "and of addresses nothing was kept");
}

/// With half as many addresses as the table holds, hardly any is evicted. With many more, none is suppressed, and the
/// table does not grow.
#[test]
fn many_destinations_suppress_no_notification() {
    let mut point = moderation("destination", 1_000);
    let mut qp = LastNotification::default();
    let mut count = |from: u64, n: u64, at: Nanos| {
        (from..from + n).filter(|i| point.admit(at, &mut qp, &address(*i))).count()
    };
    assert_eq!(count(0, 512, us(0)), 512);
    let again = count(0, 512, us(1));
    assert!(again < 80, "{again} of 512 lost their place to others of their set");
    assert_eq!(count(1 << 20, 100_000, us(2)), 100_000);
    assert_eq!(count(0, 512, us(2_000)), 512, "all intervals are over");
}

/// Compared with a list of all addresses: a suppressed notification was due to be, never a false match.
#[test]
fn addresses_never_match_falsely() {
    let mut random = Random(7);
    let mut point = moderation("destination", 100);
    let mut qp = LastNotification::default();
    let mut last = std::collections::HashMap::new();
    let mut refused = 0;
    for step in 0..200_000u64 {
        let (at, to) = (us(step / 8), random.below(300));
        // Addresses that differ in one bit, high or low.
        let gid = if to < 64 { address(1 << to) } else { address(to) };
        let over = last.get(&gid).is_none_or(|last| at - *last >= us(100));
        let admitted = point.admit(at, &mut qp, &gid);
        assert!(admitted || !over, "step {step}");
        refused += u64::from(!admitted);
        if admitted {
            last.insert(gid, at);
        }
    }
    assert!(refused > 100_000, "{refused}");
}
