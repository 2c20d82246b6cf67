//! The reaction point of DCQCN against the published algorithm, and at the corner cases of the closed form.

use roxie::congestion::{Control, Dcqcn, Knobs, Preset, Rate};
use roxie::time::Nanos;

use crate::congestion::published::{Published, Table};
use crate::congestion::random::Random;

const LINE: f64 = 40e9;

fn preset(preset: Preset) -> Dcqcn {
    Dcqcn::new(&Knobs::new(preset), Rate(LINE))
}

fn knobs(preset: Preset, sets: &[(&str, &str)]) -> Knobs {
    let mut knobs = Knobs::new(preset);
    for (name, value) in sets {
        knobs.set(name, value).unwrap();
    }
    knobs
}

fn with(preset: Preset, sets: &[(&str, &str)]) -> Dcqcn {
    Dcqcn::new(&knobs(preset, sets), Rate(LINE))
}

fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

fn gbps(control: &mut Dcqcn, at: Nanos) -> f64 {
    control.rate(at).0 / 1e9
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()) || a.abs().max(b.abs()) < 1e-290
}

/// By hand: alpha 1 halves 40 Gb/s, and each of five timer periods recovers half of the difference.
#[test]
fn notification_at_40_gbps_matches_the_paper() {
    let mut control = preset(Preset::Paper);
    assert!(control.notified(us(0)));
    let wanted = [20.0, 30.0, 35.0, 37.5, 38.75, 39.375];
    for (step, wanted) in wanted.into_iter().enumerate() {
        let at = us(55 * step as u64);
        assert_eq!(gbps(&mut control, at), wanted, "after {at}");
    }
    // No increase before its time.
    let mut early = preset(Preset::Paper);
    early.notified(us(0));
    assert_eq!(gbps(&mut early, Nanos(54_999)), 20.0);
    // The target is at line rate: additive increase also recovers half of the difference.
    assert_eq!(gbps(&mut control, us(330)), 39.6875);
    // Alpha stays 1 at the notification, then is multiplied six times by 1020/1024.
    assert!(close(control.alpha(), (1020.0f64 / 1024.0).powi(6)));
}

/// Setting the same knobs again does not restart timers.
#[test]
fn same_knobs_keep_timers_running() {
    let (mut alone, mut notified) = (preset(Preset::Paper), preset(Preset::Paper));
    assert!(alone.notified(us(0)) && notified.notified(us(0)));
    notified.change(us(10), &knobs(Preset::Paper, &[]));
    for at in [10, 54, 56, 300] {
        assert_eq!(alone.rate(us(at)), notified.rate(us(at)), "after {at} us");
        assert!(close(alone.alpha(), notified.alpha()), "after {at} us");
    }
}

/// By hand: alpha 1023/1024 at the first decrease, and min_dec_fac has no effect.
#[test]
fn notification_matches_the_adapter() {
    let mut control = preset(Preset::ConnectX);
    assert!(control.notified(us(0)));
    let after = 40.0 * (1.0 - 1023.0 / 2048.0);
    assert_eq!(gbps(&mut control, us(0)), after);
    // Alpha is updated each microsecond, and a notification arrived before the first update.
    control.rate(us(1));
    let alpha = 1023.0 / 1024.0 * (1019.0 / 1024.0) + 5.0 / 1024.0;
    assert!(close(control.alpha(), alpha));
    control.rate(us(3));
    assert!(close(control.alpha(), alpha * (1019.0 / 1024.0) * (1019.0 / 1024.0)));
    // One step of fast recovery, then additive; the target is at line rate.
    assert!(close(gbps(&mut control, us(300)), (40.0 + after) / 2.0));
    assert!(close(gbps(&mut control, us(600)), (40.0 + (40.0 + after) / 2.0) / 2.0));
}

#[test]
fn decreases_are_limited_but_alpha_is_updated() {
    let mut control = preset(Preset::ConnectX);
    control.notified(us(10));
    let after = gbps(&mut control, us(10));
    assert!(!control.notified(us(12)));
    assert!(!control.notified(Nanos(13_999)));
    assert_eq!(gbps(&mut control, us(13)), after);
    assert!(control.notified(us(14)), "the period is over at its end");
    assert!(gbps(&mut control, us(14)) < after);
    // Updates at 11, 13 and 14 us saw a notification, that at 12 us none: an update runs before a notification of the
    // same instant.
    let g = 1019.0 / 1024.0;
    let up = |alpha: f64| alpha * g + (1.0 - g);
    let wanted = up(up(up(1023.0 / 1024.0) * g));
    assert!(close(control.alpha(), wanted), "{} {wanted}", control.alpha());
}

#[test]
fn unclamped_target_survives_second_decrease() {
    let mut control = with(Preset::ConnectX, &[("clamp_tgt_rate_after_time_inc", "0")]);
    control.notified(us(0));
    control.notified(us(10));
    assert_eq!(control.target().0, LINE, "nothing rose");
    control.notified(us(320));
    assert_eq!(control.target().0, LINE, "the timer has, which does not count");
    control.sent(us(330), 32_767);
    let before = control.rate(us(330));
    control.notified(us(330));
    assert_eq!(control.target(), before, "the byte counter has");

    let mut control = preset(Preset::ConnectX);
    control.notified(us(0));
    let before = control.rate(us(310));
    control.notified(us(310));
    assert_eq!(control.target(), before, "the timer counts as adapters are delivered");
}

#[test]
fn decrease_drops_byte_counter_remainder() {
    let mut control = with(Preset::Paper, &[("rpg_byte_reset", "1000")]);
    control.sent(us(0), 10_000);
    control.notified(us(1));
    assert_eq!(control.byte_stage(), 0, "nothing counts before the first notification");
    control.sent(us(2), 999);
    assert_eq!((control.byte_stage(), gbps(&mut control, us(2))), (0, 20.0));
    control.sent(us(3), 1);
    assert_eq!((control.byte_stage(), gbps(&mut control, us(3))), (1, 30.0));
    control.sent(us(4), 2_500);
    assert_eq!(control.byte_stage(), 3);
    control.sent(us(5), 500);
    assert_eq!(control.byte_stage(), 4);
    control.sent(us(6), 900);
    control.notified(us(7));
    control.sent(us(8), 999);
    assert_eq!(control.byte_stage(), 0);

    let mut off = with(Preset::Paper, &[("rpg_byte_reset", "0")]);
    off.notified(us(0));
    off.sent(us(1), u64::MAX);
    off.sent(us(1), u64::MAX);
    assert_eq!((off.byte_stage(), gbps(&mut off, us(1))), (0, 20.0));
}

#[test]
fn both_stages_above_threshold_start_hyper_increase() {
    let sets = [("rpg_byte_reset", "1000"), ("rpg_threshold", "1"), ("rpg_min_dec_fac", "0")];
    let mut control = with(Preset::Paper, &sets);
    for _ in 0..12 {
        control.notified(us(0));
    }
    let target = control.target().0;
    control.rate(us(55)); // Fast recovery: stages 0 and 0.
    assert_eq!(control.target().0, target);
    control.sent(us(60), 2_000); // Additive: stages 1 and 0, then 1 and 1.
    assert_eq!(control.target().0, target + 2.0 * 40e6);
    control.rate(us(110)); // Additive: stages 1 and 2.
    assert_eq!(control.target().0, target + 3.0 * 40e6);
    control.sent(us(111), 1_000); // Hyper: stages 2 and 2.
    assert_eq!(control.target().0, target + 3.0 * 40e6 + 400e6);
    assert_eq!((control.timer_stage(), control.byte_stage()), (2, 3));
}

#[test]
fn first_notification_sets_rate_within_bounds() {
    let mut control = with(Preset::ConnectX, &[("rate_to_set_on_first_cnp", "10000")]);
    assert!(control.notified(us(0)));
    assert_eq!((control.rate(us(0)), control.target()), (Rate(10e9), Rate(10e9)));
    control.notified(us(10));
    assert!(gbps(&mut control, us(10)) < 10.0);

    let mut least = with(Preset::Paper, &[("rpg_min_rate", "30000"), ("rpg_gd", "10")]);
    assert!(least.notified(us(0)));
    assert_eq!(gbps(&mut least, us(0)), 30.0);
    assert!(!least.notified(us(1)), "it is as low as it gets");

    let mut none = with(Preset::Paper, &[("rpg_min_dec_fac", "100")]);
    assert!(!none.notified(us(0)));
    assert_eq!(gbps(&mut none, us(0)), 40.0);

    let mut quarter = with(Preset::Paper, &[("rpg_min_dec_fac", "25"), ("rpg_gd", "10")]);
    quarter.notified(us(0));
    assert_eq!(gbps(&mut quarter, us(0)), 10.0);

    let mut max = with(Preset::Paper, &[("rpg_max_rate", "10000")]);
    assert_eq!(gbps(&mut max, us(0)), 10.0);
    max.notified(us(0));
    assert!(close(gbps(&mut max, us(1_000_000)), 10.0));
}

/// A year of silence costs as much as a microsecond, and the rate has recovered.
#[test]
fn long_silence_ends_at_line_rate() {
    for name in Preset::ALL {
        let mut control = with(name, &[("rpg_ai_rate", "0.001"), ("rpg_hai_rate", "0.001")]);
        for i in 0..100 {
            control.notified(us(i * 100));
        }
        control.rate(us(366 * 24 * 3600 * 1_000_000));
        assert!(control.timer_stage() > 100_000_000_000, "{}", control.timer_stage());
        assert_eq!(control.alpha(), 0.0);
        control.sent(Nanos(u64::MAX - 1), u64::MAX);
        assert_eq!(control.rate(Nanos::MAX).0, LINE);
        control.notified(Nanos::MAX);
        assert_eq!(control.rate(Nanos::MAX).0, LINE, "alpha is nothing");
    }
}

#[test]
fn changed_knobs_keep_the_rate() {
    let mut control = preset(Preset::Paper);
    control.notified(us(0));
    control.change(us(10), &knobs(Preset::Paper, &[("rpg_time_reset", "20"), ("rpg_ai_rate", "1000")]));
    assert_eq!(gbps(&mut control, us(29)), 20.0);
    assert_eq!(gbps(&mut control, us(30)), 30.0, "a shorter period begins now");
    control.change(us(31), &knobs(Preset::Paper, &[]));
    assert_eq!(gbps(&mut control, us(50)), 35.0, "a period that runs ends as it would have");
    assert_eq!(gbps(&mut control, us(104)), 35.0);
    assert_eq!(gbps(&mut control, us(105)), 37.5);
    control.change(us(106), &knobs(Preset::Paper, &[("rpg_max_rate", "8000")]));
    assert_eq!((gbps(&mut control, us(106)), control.target()), (8.0, Rate(8e9)));
    control.change(us(107), &knobs(Preset::Paper, &[("rpg_min_rate", "9000")]));
    assert_eq!((gbps(&mut control, us(107)), control.target()), (9.0, Rate(9e9)));
}

/// `rises_at` names the next time at which the rate rises.
#[test]
fn next_rise_is_predicted() {
    let mut control = preset(Preset::Paper);
    assert_eq!(control.rises_at(), Nanos::MAX, "it is as fast as it gets");
    control.notified(us(7));
    let mut now = us(7);
    for _ in 0..70 {
        let (at, before) = (control.rises_at(), control.rate(now));
        if at == Nanos::MAX {
            break;
        }
        assert_eq!((at - now, control.rate(at - Nanos(1))), (us(55), before));
        assert!(control.rate(at) > before);
        now = at;
    }
    assert_eq!((control.rate(now), control.rises_at()), (Rate(LINE), Nanos::MAX));
}

/// Returns a random value for every knob, for both programs.
fn random_table(random: &mut Random, paper: bool, line: f64) -> (Knobs, Table) {
    let mut rate = |least: f64, most: f64| (random.scale(least, most) * 1e3).round() / 1e3;
    let (ai, hai, min) = (rate(0.01, 20e3), rate(0.01, 50e3), rate(0.01, 1e3));
    let (max, first) = (rate(1e3, 500e3), rate(1.0, 50e3));
    let max = if random.below(2) == 0 { 0.0 } else { max.max(min) };
    let first = if random.below(2) == 0 { 0.0 } else { first };
    let timer = random.scale(1.0, 2_000.0) as u64;
    let alpha_timer = random.scale(1.0, 300.0) as u64;
    let bytes = if random.below(4) == 0 { 0 } else { random.scale(1_000.0, 1e7) as u64 };
    let (f, g, alpha) = (random.below(32), random.below(1024), 1 + random.below(1024));
    let (f, g) =
        (if random.below(2) == 0 { f % 4 } else { f }, if random.below(2) == 0 { 1000 + g % 24 } else { g });
    let (gd, min_dec_fac) = (10 + random.below(2), random.one_of(&[0, 10, 50, 50, 75, 100]));
    let monitor = random.one_of(&[0, 4, 50, 500]);
    let (clamp, ati) = (random.below(2), random.below(2));
    let sets = [
        ("rpg_ai_rate", ai.to_string()),
        ("rpg_hai_rate", hai.to_string()),
        ("rpg_min_rate", min.to_string()),
        ("rpg_max_rate", max.to_string()),
        ("rate_to_set_on_first_cnp", first.to_string()),
        ("rpg_time_reset", timer.to_string()),
        ("dce_tcp_rtt", alpha_timer.to_string()),
        ("rpg_byte_reset", bytes.to_string()),
        ("rpg_threshold", f.to_string()),
        ("dce_tcp_g", g.to_string()),
        ("initial_alpha_value", alpha.to_string()),
        ("rpg_gd", gd.to_string()),
        ("rpg_min_dec_fac", min_dec_fac.to_string()),
        ("rate_reduce_monitor_period", monitor.to_string()),
        ("clamp_tgt_rate", clamp.to_string()),
        ("clamp_tgt_rate_after_time_inc", ati.to_string()),
    ];
    let mut knobs = Knobs::new(if paper { Preset::Paper } else { Preset::ConnectX });
    for (name, value) in &sets {
        knobs.set(name, value).unwrap_or_else(|e| panic!("{e}"));
    }
    knobs.check().unwrap();
    let table = Table {
        paper,
        line,
        max: max * 1e6,
        min: min * 1e6,
        ai: ai * 1e6,
        hai: hai * 1e6,
        f,
        timer: timer * 1_000,
        bytes,
        g: g as f64,
        alpha_timer: alpha_timer * 1_000,
        alpha: alpha as f64,
        gd: gd as i32,
        min_dec_fac: min_dec_fac as f64,
        monitor: monitor * 1_000,
        first: first * 1e6,
        clamp: clamp == 1,
        clamp_ati: ati == 1,
    };
    (knobs, table)
}

/// Number of comparisons of each kind.
#[derive(Debug, Default)]
struct Reached {
    decreases: u64,
    ignored: u64,
    timers: u64,
    byte_increases: u64,
    hyper: u64,
    at_line: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Notified,
    Sent(u64),
    Look,
}

/// Both programs, on one schedule.
struct Pair<'a> {
    seed: u64,
    table: &'a Table,
    ours: Dcqcn,
    theirs: Published,
    /// Events of the schedule so far.
    done: Vec<String>,
}

impl Pair<'_> {
    /// Asserts that rates and states are equal.
    fn compare(&mut self, now: u64) {
        let Pair { seed, table, ours, theirs, done } = self;
        let rate = ours.rate(Nanos(now)).0;
        let state = (ours.byte_stage(), ours.timer_stage());
        let same = close(rate, theirs.rc)
            && close(ours.target().0, theirs.rt)
            && close(ours.alpha(), theirs.alpha)
            && state == (theirs.bc, theirs.t);
        assert!(
            same,
            "seed {seed} at {now} ns: {ours:#?}\nagainst rc {} rt {} alpha {} stages {:?}\n{table:#?}\nafter\n{}",
            theirs.rc,
            theirs.rt,
            theirs.alpha,
            (theirs.bc, theirs.t),
            done.join("\n")
        );
    }

    /// Notifies both of congestion. Returns true if the published algorithm lowers its rate.
    fn notify(&mut self, now: u64) -> bool {
        let Pair { seed, ours, theirs, done, .. } = self;
        let rc = theirs.rc;
        theirs.notified(now);
        // A decrease within rounding error may be reported either way.
        let fell = theirs.rc < rc * (1.0 - 1e-9);
        let notified = ours.notified(Nanos(now));
        assert!(notified || !fell, "seed {seed} at {now} ns: not told of\n{}", done.join("\n"));
        assert!(
            !notified || theirs.rc < rc * (1.0 + 1e-9),
            "seed {seed} at {now} ns: told of\n{}",
            done.join("\n")
        );
        fell
    }
}

/// Runs both programs through one random schedule. Half of the schedules read the rate at each timer event; the others
/// skip ahead in one step.
fn one_schedule(seed: u64, knobs: &Knobs, table: &Table, reached: &mut Reached) {
    let mut random = Random(seed);
    let each_timer = random.below(2) == 0;
    let (ours, theirs) = (Dcqcn::new(knobs, Rate(table.line)), Published::new(table.clone()));
    let mut pair = Pair { seed, table, ours, theirs, done: Vec::new() };
    let top = pair.theirs.rc;
    let mut now = random.below(1_000_000);
    // Choose the span so that periods of most knobs are likely to fall between two events.
    let longest = random.one_of(&[5_000.0, 100_000.0, 1_000_000.0]);
    for _ in 0..12 + random.below(12) {
        let event = match random.below(10) {
            0..4 => Event::Notified,
            4..9 => Event::Sent(random.scale(60.0, 4.0 * table.bytes.clamp(1_000, 10_000_000) as f64) as u64),
            _ => Event::Look,
        };
        let at = match random.below(8) {
            // At the same instant, or just when a timer is due.
            0 => now,
            1 => pair.theirs.next().unwrap_or(now),
            2 => now + table.monitor,
            _ => now + random.scale(1.0, longest) as u64,
        };
        while each_timer && pair.theirs.next().is_some_and(|next| next <= at) {
            let next = pair.theirs.next().unwrap();
            pair.theirs.run_to(next);
            pair.compare(next);
            reached.timers += 1;
        }
        now = at;
        pair.done.push(format!("{now} {event:?}"));
        pair.theirs.run_to(now);
        match event {
            Event::Notified => {
                *(if pair.notify(now) { &mut reached.decreases } else { &mut reached.ignored }) += 1;
            }
            Event::Sent(bytes) => {
                let bc = pair.theirs.bc;
                pair.theirs.sent(now, bytes);
                pair.ours.sent(Nanos(now), bytes);
                reached.byte_increases += pair.theirs.bc - bc;
            }
            Event::Look => {}
        }
        pair.compare(now);
        reached.hyper += u64::from(pair.theirs.bc.min(pair.theirs.t) > table.f + 1);
        reached.at_line += u64::from(pair.theirs.rc == top);
    }
}

const SCHEDULES: u64 = 10_000;

/// Asserts that each kind was compared often enough.
fn all_reached(reached: &Reached, hyper: bool) {
    let Reached { decreases, ignored, timers, byte_increases, hyper: hypers, at_line } = *reached;
    for n in [decreases, timers, byte_increases, at_line] {
        assert!(n > SCHEDULES / 2, "{reached:?}");
    }
    assert!(ignored > 0 && (!hyper || hypers > SCHEDULES / 10), "{reached:?}");
}

#[test]
fn paper_preset_is_the_published_algorithm() {
    let (knobs, mut reached) = (Knobs::new(Preset::Paper), Reached::default());
    for seed in 0..SCHEDULES {
        let line = Random(seed).one_of(&[1e9, 10e9, 40e9, 100e9, 400e9]);
        one_schedule(seed, &knobs, &Table::paper(line), &mut reached);
    }
    all_reached(&reached, false);
}

#[test]
fn connectx_preset_is_the_published_algorithm() {
    let (knobs, mut reached) = (Knobs::new(Preset::ConnectX), Reached::default());
    for seed in 0..SCHEDULES {
        let line = Random(seed).one_of(&[1e9, 10e9, 40e9, 100e9, 400e9]);
        one_schedule(seed, &knobs, &Table::connectx(line), &mut reached);
    }
    all_reached(&reached, false);
}

#[test]
fn any_knobs_give_the_published_algorithm() {
    let mut reached = Reached::default();
    for seed in 0..SCHEDULES {
        let mut random = Random(!seed);
        let line = random.scale(1e6, 800e9);
        let paper = random.below(2) == 0;
        let (knobs, table) = random_table(&mut random, paper, line);
        one_schedule(seed, &knobs, &table, &mut reached);
    }
    all_reached(&reached, true);
}
