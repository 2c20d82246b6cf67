//! Labs about switches, checked against theory and published results.

use roxie::time::Nanos;
use roxie_sim::fabric::{LinkConfig, LinkRate, worst_case};

use crate::lab::{data, fact, refused, run_of};

#[test]
fn computed_headroom_is_exact() {
    for arguments in
        ["", "--rate 10 --mtu 1518", "--rate 400 --metres 2000 --mtu 9216", "--rate 25 --response 700"]
    {
        let report = data(&format!("pfc {arguments}"));
        for run in report["runs"].as_array().expect("runs") {
            let name = run["choice"][0]["value"].as_str().expect("a name");
            let [needed, headroom, used, rounding] =
                ["needed", "headroom", "headroom_used", "rounding"].map(|name| fact(run, name));
            if name == "as computed" {
                assert_eq!(
                    (fact(run, "dropped"), used + rounding),
                    (0.0, needed),
                    "{arguments} {}",
                    run["choice"]
                );
            } else if name.starts_with("one byte less") {
                assert_eq!((fact(run, "dropped"), headroom), (1.0, needed - rounding - 1.0), "{arguments}");
            } else {
                assert_eq!(fact(run, "dropped") > 0.0, headroom < needed - rounding, "{arguments} {run}");
            }
        }
    }
}

#[test]
fn headroom_sum_matches_the_simulator() {
    let report = data("pfc --rate 100 --metres 300 --mtu 4200");
    let link = LinkConfig::new(LinkRate::from_gbps(100), Nanos(1500));
    let known = worst_case(&link, link.rate.pause_response(), 4200) as f64;
    assert_eq!(fact(&report["runs"][0], "needed"), known);
    let table = &report["runs"][0]["blocks"][0]["rows"];
    let rows = table.as_array().expect("rows");
    let bytes = |i: usize| rows[i][4].as_f64().unwrap_or(0.0);
    let parts: f64 = (0..rows.len() - 1).map(bytes).sum();
    assert_eq!((parts, bytes(rows.len() - 1)), (known, known), "the table adds up");
    let dropped = |cable: &str| fact(run_of(&report, &["XOFF at 80 %", cable]), "dropped");
    assert_eq!([dropped("5 m"), dropped("300 m")], [0.0, 0.0]);
    assert!(dropped("1000 m") > 0.0 && dropped("2000 m") > dropped("1000 m"));
}

#[test]
fn fitting_switch_plan_loses_nothing() {
    let report = data("headroom");
    for run in report["runs"].as_array().expect("runs") {
        let of = |name| fact(run, name);
        assert_eq!(of("promised"), of("headroom_hosts") + of("headroom_uplinks") + of("reserved"));
        assert_eq!(of("shared") - of("missing"), of("buffer") - of("promised"));
        if of("missing") == 0.0 {
            assert_eq!(of("dropped"), 0.0);
            assert!(of("headroom_used") <= of("per_host_port").max(of("per_uplink")));
        }
    }
    let [one, eight] = ["1", "8"].map(|n| fact(run_of(&report, &[n, "300 m"]), "headroom_hosts"));
    assert_eq!(eight, 8.0 * one);
}

#[test]
fn ets_shares_and_pauses_are_kept() {
    let report = data("ets --share 0=20,3=80");
    let of = |pause: &str, name: &str| fact(run_of(&report, &[pause]), name);
    let weighted = of("none", "priority_0_gbps") + of("none", "priority_3_gbps");
    let share = 100.0 * of("none", "priority_3_gbps") / weighted;
    assert!((share - 80.0).abs() < 2.0, "{share} %");
    assert_eq!(of("PFC on 3", "priority_3_paused_gbps"), 0.0);
    assert!(
        (of("PFC on 3", "priority_0_paused_gbps") - weighted).abs() < 0.02 * weighted,
        "it has what the other leaves"
    );
    assert_eq!(of("PFC on 0", "priority_0_paused_gbps"), 0.0);
    assert!(of("PFC on 0", "priority_3_paused_gbps") > 0.98 * weighted);
    for priority in [0, 3, 6] {
        assert_eq!(of("PAUSE of everything", &format!("priority_{priority}_paused_gbps")), 0.0);
    }
    refused("ets --share 0=20,3=70", 2, &["90 % together"]);
    refused("ets --share 6=50,3=50", 2, &["priority 6 is strict"]);
}

#[test]
fn dcqcn_is_fair_and_avoids_most_pauses() {
    let report = data("dcqcn");
    let of = |mode: &str, name: &str| fact(run_of(&report, &[mode]), name);
    let (both, pauses, rates) = ("PFC and DCQCN", "PFC alone", "DCQCN alone");
    assert!(of(both, "paused_settled_us") <= 0.1 * of(pauses, "paused_settled_us"));
    assert!(of(both, "paused_first_us") > 0.0, "it begins at line rate, so it pauses first");
    assert!(of(both, "queue_mean") < 0.3 * of(pauses, "queue_mean"));
    assert!([both, pauses].iter().all(|mode| of(mode, "dropped") == 0.0) && of(rates, "dropped") > 0.0);
    assert!(
        [both, pauses, rates]
            .iter()
            .all(|mode| of(mode, "fairness") > 0.95 && of(mode, "goodput_gbps") > 37.0)
    );
    // One notification halves the rate at alpha 1: published for 40 Gb/s, and tested in tests/congestion.
    assert!(of(pauses, "notifications") == 0.0 && of(both, "notifications") > 0.0);
    refused("dcqcn --set nothing=1", 2, &["nothing"]);
}

#[test]
fn pfc_carries_incast_at_line_rate() {
    let report = data("incast");
    let of = |mode: &str, name: &str| fact(run_of(&report, &[mode]), name);
    assert!(of("PFC alone", "slowdown") < 1.05 && of("PFC alone", "slowdown") >= 1.0);
    assert_eq!((of("PFC alone", "dropped"), of("PFC alone", "sent_again")), (0.0, 0.0));
    // The local ACK timeout is 67 ms, and expires several times.
    assert!(of("neither", "dropped") > 0.0 && of("neither", "last_us") > 67_000.0);
}

#[test]
fn pause_harms_bystander_and_rates_free_it() {
    let report = data("victim");
    let of = |mode: &str, priority: &str| fact(run_of(&report, &[mode, priority]), "victim_share");
    let harmed = of("PFC alone", "the same");
    assert!((0.2..0.3).contains(&harmed), "what one of four senders has: {harmed}");
    assert!(of("PFC and DCQCN", "the same") >= 0.9);
    assert!(of("PFC alone", "another") >= 0.98);
    let run = run_of(&report, &["PFC and DCQCN", "the same"]);
    assert!(
        fact(run, "trunk_paused_us")
            <= 0.1 * fact(run_of(&report, &["PFC alone", "the same"]), "trunk_paused_us")
    );
}

#[test]
fn only_up_down_routes_avoid_deadlock() {
    let report = data("deadlock");
    let of = |cure: &str, name: &str| fact(run_of(&report, &[cure]), name);
    assert_eq!(of("nothing", "cycle_links"), 5.0);
    assert!(of("nothing", "silent_at_us") > 0.0 && of("nothing", "left_behind") > 0.0);
    assert_eq!(of("nothing", "thrown_away"), 0.0);
    let rates = &run_of(&report, &["nothing"])["blocks"][1]["series"][0]["points"];
    let last = rates.as_array().expect("points").iter().rev().take(50);
    assert!(
        last.clone().count() == 50 && last.into_iter().all(|point| point[1] == 0.0),
        "nothing moves any more"
    );
    // The trunks fall silent one after the other.
    let steps = run_of(&report, &["nothing"])["blocks"][0]["steps"].as_array().expect("steps");
    assert!(steps.len() > 3 && steps.last().expect("a step")["states"][0][1] == 2, "{steps:#?}");
    assert!(of("a watchdog", "bites") > 0.0 && of("a watchdog", "thrown_away") > 0.0);
    assert!(of("a watchdog", "delivered") > of("nothing", "delivered"));
    let free = "ways up, then down";
    assert_eq!((of(free, "cycle_links"), of(free, "silent_at_us"), of(free, "thrown_away")), (0.0, 0.0, 0.0));
    assert_eq!(
        (of(free, "left_behind"), of(free, "delivered")),
        (0.0, of(free, "offered")),
        "everything arrives"
    );
    let light = data("deadlock --load 40");
    assert_eq!(fact(&light["runs"][0], "left_behind"), 0.0);
}
