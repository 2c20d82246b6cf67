//! Values of `--cc`, and errors about invalid ones.

use proptest::prelude::*;
use roxie::congestion::knobs::{TABLE, Unit};
use roxie::congestion::{Knob, Knobs, Preset, Rate, Sample, Settings};
use roxie::time::Nanos;

fn read(text: &str) -> Settings {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn settings_survive_formatting() {
    for (text, shown) in [
        ("off", "off"),
        ("dcqcn", "dcqcn"),
        (" DCQCN ", "dcqcn"),
        ("dcqcn,preset=connectx", "dcqcn"),
        ("dcqcn,preset=paper,rpg_ai_rate=40", "dcqcn,preset=paper"),
        ("dcqcn,preset=paper,rpg_ai_rate=0.25", "dcqcn,preset=paper,rpg_ai_rate=0.25"),
        ("dcqcn,rpg_ai_rate=40, rp_dce_tcp_g = 1000", "dcqcn,rpg_ai_rate=40,dce_tcp_g=1000"),
        ("dcqcn,RPG_GD=10,cnp_moderation=Port", "dcqcn,rpg_gd=10,cnp_moderation=port"),
        ("dcqcn,preset=paper,rpg_hai_rate=400", "dcqcn,preset=paper,rpg_hai_rate=400"),
        ("swift", "swift"),
        ("swift,base_target=30,beta=0.5", "swift,base_target=30,beta=0.5"),
        ("fixed,rate=100M", "fixed,rate=100M"),
        ("fixed,rate=2500Mb/s", "fixed,rate=2.5G"),
        ("fixed,rate=40 Gbit/s", "fixed,rate=40G"),
        ("fixed,rate=1k", "fixed,rate=1k"),
        ("fixed,rate=0.1T", "fixed,rate=100G"),
    ] {
        let settings = read(text);
        assert_eq!(settings.to_string(), shown);
        assert_eq!(read(shown), settings, "{shown}");
    }
}

#[test]
fn invalid_settings_are_refused_with_valid_values() {
    for (text, parts) in [
        ("", &["off, dcqcn, swift and fixed"][..]),
        ("dcqn", &["`dcqn`", "did you mean dcqcn?"]),
        ("bbr", &["`bbr` is no congestion control"]),
        ("dcqcn,", &["`` sets nothing", "KNOB=VALUE"]),
        ("dcqcn,rpg_ai_rate", &["`rpg_ai_rate` sets nothing"]),
        ("dcqcn,rpg_ai_rat=40", &["`rpg_ai_rat`", "did you mean rpg_ai_rate?", "roxie cc knobs"]),
        ("dcqcn,ai=40", &["`ai` is no knob"]),
        ("dcqcn,=40", &["`` is no knob"]),
        ("dcqcn,rpg_ai_rate=0", &["rpg_ai_rate=0", "it takes 0.001..10000000 Mb/s"]),
        ("dcqcn,rpg_ai_rate=-5", &["rpg_ai_rate=-5"]),
        ("dcqcn,rpg_ai_rate=NaN", &["rpg_ai_rate=NaN"]),
        ("dcqcn,rpg_ai_rate=inf", &["rpg_ai_rate=inf"]),
        ("dcqcn,rpg_ai_rate=40M", &["rpg_ai_rate=40M", "Mb/s"]),
        ("dcqcn,rpg_min_rate=0", &["rpg_min_rate=0"]),
        ("dcqcn,rpg_max_rate=0.0001", &["0 or 0.001..10000000 Mb/s"]),
        ("dcqcn,rpg_time_reset=0", &["a whole number, 1..131071 us"]),
        ("dcqcn,rpg_time_reset=1.5", &["a whole number"]),
        ("dcqcn,dce_tcp_rtt=0", &["dce_tcp_rtt=0", "1..131071"]),
        ("dcqcn,dce_tcp_g=1024", &["a whole number of 1/1024, 0..1023"]),
        ("dcqcn,rpg_threshold=32", &["0..31"]),
        ("dcqcn,rpg_gd=12", &["10..11"]),
        ("dcqcn,rpg_min_dec_fac=101", &["0..100 %"]),
        ("dcqcn,cnp_802p_prio=8", &["a whole number, 0..7"]),
        ("dcqcn,cnp_dscp=64", &["0..63"]),
        ("dcqcn,cnp_moderation=ip", &["one of qp, destination, port"]),
        ("dcqcn,clamp_tgt_rate=yes", &["clamp_tgt_rate=yes: it takes 0 or 1"]),
        ("dcqcn,preset=papier", &["`papier` is no preset", "connectx and paper"]),
        ("dcqcn,rpg_ai_rate=4,preset=paper", &["preset=paper sets all knobs", "before"]),
        ("dcqcn,rpg_min_rate=200,rpg_max_rate=100", &["rpg_min_rate=200 is above rpg_max_rate=100"]),
        ("off,rpg_ai_rate=40", &["off and has no knobs", "dcqcn,rpg_ai_rate=40"]),
        ("fixed", &["fixed,rate=100M"]),
        ("fixed,rate=0", &["`0` is no rate", "1k to 10T"]),
        ("fixed,rate=0M", &["`0M` is no rate"]),
        ("fixed,rate=100", &["`100` is no rate", "with its unit"]),
        ("fixed,rate=µ", &["is no rate"]),
        ("fixed,rate=", &["`` is no rate"]),
        ("fixed,rate=20T", &["1k to 10T"]),
        ("fixed,speed=1M", &["`speed` is no knob of fixed", "there are rate"]),
        ("swift,base_targt=3", &["did you mean base_target?"]),
        ("swift,beta=0", &["beta=0: it takes 0.001..1"]),
        ("swift,fs_min_cwnd=200", &["fs_min_cwnd=200 must be below fs_max_cwnd=100"]),
    ] {
        let error = text.parse::<Settings>().expect_err(text).to_string();
        for part in parts {
            assert!(error.contains(part), "{text}: no {part:?} in {error:?}");
        }
    }
}

#[test]
fn failed_change_changes_nothing() {
    let mut settings = read("dcqcn,rpg_ai_rate=40");
    let before = settings.clone();
    for bad in ["rpg_hai_rate=400,rpg_gd=9", "rpg_max_rate=10,rpg_min_rate=11", "preset=paper,nothing=1", ""]
    {
        settings.change(bad).expect_err(bad);
        assert_eq!(settings, before, "{bad}");
    }
    settings.change("rpg_hai_rate=400,rpg_gd=10").unwrap();
    assert_eq!(settings.to_string(), "dcqcn,rpg_ai_rate=40,rpg_hai_rate=400,rpg_gd=10");
    settings.change("preset=paper").unwrap();
    assert_eq!(settings.to_string(), "dcqcn,preset=paper");
    let mut off = Settings::Off;
    off.change("rpg_ai_rate=40").expect_err("it is off");
}

#[test]
fn paper_hyper_increase_defaults_to_ten_times_additive() {
    let mut knobs = Knobs::new(Preset::Paper);
    assert_eq!(knobs.value(Knob::HaiRate), 400.0);
    knobs.set("rpg_ai_rate", "5").unwrap();
    assert_eq!(knobs.value(Knob::HaiRate), 50.0);
    knobs.set("rpg_hai_rate", "60").unwrap();
    knobs.set("rpg_ai_rate", "7").unwrap();
    assert_eq!(knobs.value(Knob::HaiRate), 60.0);
    let mut adapter = Knobs::new(Preset::ConnectX);
    adapter.set("rpg_ai_rate", "40").unwrap();
    assert_eq!(adapter.value(Knob::HaiRate), 50.0, "an adapter's stands for itself");
}

#[test]
fn each_knob_accepts_its_default() {
    for (index, row) in TABLE.iter().enumerate() {
        assert_eq!(row.knob as usize, index, "{}", row.name);
        for preset in Preset::ALL {
            let mut knobs = Knobs::new(preset);
            let before = knobs.clone();
            knobs.set(row.name, &row.text(row.default_of(preset))).unwrap();
            assert_eq!(knobs.value(row.knob), before.value(row.knob));
        }
        for name in [row.name, row.alias].into_iter().filter(|name| !name.is_empty()) {
            assert_eq!(Knobs::find(name).unwrap().knob, row.knob);
            assert_eq!(TABLE.iter().filter(|r| r.name == name || r.alias == name).count(), 1);
        }
        assert!(!row.help.is_empty() && (row.alias.is_empty() == matches!(row.unit, Unit::Word(_))));
    }
}

#[test]
fn control_accepts_only_its_own_settings() {
    let line = Rate::from_gbps(10.0);
    let all = ["dcqcn", "swift", "fixed,rate=1G"].map(read);
    assert!(Settings::Off.control(line, Nanos::ZERO).is_none());
    for (i, mine) in all.iter().enumerate() {
        let mut control = mine.control(line, Nanos::ZERO).unwrap();
        let rate = control.rate(Nanos::ZERO);
        assert_eq!(rate, if i == 2 { Rate::from_gbps(1.0) } else { line });
        for (j, other) in all.iter().enumerate() {
            assert_eq!(control.set(Nanos::ZERO, other), i == j);
        }
        assert!(!control.set(Nanos::ZERO, &Settings::Off));
        assert_eq!(control.rate(Nanos::ZERO), rate);
    }
    let mut fixed = all[2].control(line, Nanos::ZERO).unwrap();
    assert!(fixed.set(Nanos::ZERO, &read("fixed,rate=100G")) && !fixed.notified(Nanos::ZERO));
    assert_eq!(fixed.rate(Nanos::ZERO), line, "no faster than the line");
}

#[test]
fn running_control_follows_new_knobs() {
    let line = Rate::from_gbps(10.0);
    let sample = Sample { round_trip: Nanos::from_micros(5000), bytes: 1000 };
    let mut dcqcn = read("dcqcn").control(line, Nanos::ZERO).unwrap();
    assert!(!dcqcn.acknowledged(Nanos::ZERO, sample), "round trips are for others");
    assert!(dcqcn.set(Nanos::ZERO, &read("dcqcn,rpg_max_rate=2000")));
    assert_eq!(dcqcn.rate(Nanos::ZERO).mbps(), 2000.0);
    // With a target of one second, no round trip is too long.
    let mut swift = read("swift").control(line, Nanos::ZERO).unwrap();
    assert!(swift.set(Nanos::ZERO, &read("swift,base_target=1000000")));
    assert!(!swift.acknowledged(Nanos(1000), sample));
    assert_eq!(swift.rate(Nanos(1000)), line);
}

#[test]
fn settings_convert_from_text() {
    assert_eq!(Settings::try_from("swift,beta=0.5".to_owned()).unwrap(), read("swift,beta=0.5"));
    assert!(Settings::try_from("fast".to_owned()).is_err());
    assert!(read("dcqcn").knobs().is_some() && read("swift").knobs().is_none());
    assert_eq!(read("fixed,rate=1000M").to_string(), "fixed,rate=1G");
}

proptest! {
    /// Every accepted setting survives formatting and parsing, and its control neither stalls nor exceeds the line
    /// rate.
    #[test]
    fn accepted_settings_give_working_controls(
        sets in prop::collection::vec((0usize..TABLE.len(), 0.0f64..1.0), 0..30),
        paper in any::<bool>(),
        line in 1e3f64..1e12,
        calls in prop::collection::vec((any::<u64>(), 0u32..64, 0u8..3), 1..60),
    ) {
        let mut text = format!("dcqcn,preset={}", if paper { "paper" } else { "connectx" });
        for (index, part) in sets {
            let row = &TABLE[index];
            // Half of the values are an end of the range.
            let value = match part {
                p if p < 0.25 => row.least,
                p if p > 0.75 => row.most,
                p => (row.least + (row.most - row.least) * (p - 0.25) * 2.0).round().max(row.least),
            };
            text += &format!(",{}={}", row.name, row.text(value));
        }
        let Ok(settings) = text.parse::<Settings>() else {
            // Only these two can contradict one another, or the preset's value of the other.
            prop_assert!(text.contains("rpg_max_rate") || text.contains("rpg_min_rate"), "{}", text);
            return Ok(());
        };
        prop_assert_eq!(&settings.to_string().parse::<Settings>().unwrap(), &settings);
        let mut control = settings.control(Rate(line), Nanos::ZERO).unwrap();
        let mut now = Nanos::ZERO;
        for (noise, shift, what) in calls {
            now = now + Nanos(noise >> shift);
            match what {
                0 => { control.notified(now); }
                1 => control.sent(now, noise >> (63 - shift)),
                _ => {}
            }
            let rate = control.rate(now).0;
            let state = control.state();
            let (target, alpha) = (state.target.unwrap().0, state.alpha.unwrap());
            prop_assert!(rate > 0.0 && rate <= target && target <= line, "{} {}", rate, target);
            prop_assert!((0.0..=1.0).contains(&alpha), "{}", alpha);
        }
    }

    #[test]
    fn any_rate_survives_formatting(number in 1u32..100_000, scale in 0usize..4) {
        let text = format!("fixed,rate={}{}", f64::from(number) / 97.0, ["k", "M", "G", "T"][scale]);
        if let Ok(settings) = text.parse::<Settings>() {
            prop_assert_eq!(&settings.to_string().parse::<Settings>().unwrap(), &settings);
        }
    }

    #[test]
    fn no_text_causes_a_panic(text in "(dcqcn|swift|fixed)?,?[a-z_0-9.=,µ]{0,60}") {
        let _ = text.parse::<Settings>();
    }
}

/// The unit changes where the number would get a fourth digit before its point.
#[test]
fn rate_is_shown_with_fitting_unit() {
    for (rate, shown) in [
        (40e9, "40 Gb/s"),
        (1e9, "1 Gb/s"),
        (999e6, "999 Mb/s"),
        (1.25e6, "1.25 Mb/s"),
        (1e6, "1 Mb/s"),
        (999e3, "999 kb/s"),
        (12_345_678.0, "12.346 Mb/s"),
        (500.0, "0.5 kb/s"),
    ] {
        assert_eq!(Rate(rate).to_string(), shown);
    }
}
