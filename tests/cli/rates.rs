//! Options of congestion control and traffic classes, and plots of rates.

use std::fs;

use serde_json::Value;

use crate::run;

/// Invalid options, with parts of their errors.
const WRONG: [(&str, &[&str]); 13] = [
    ("--cc fixed,rate=0", &["`0` is no rate", "from 1k to 10T", "100M"]),
    ("--cc fixed,rate=0M", &["`0M` is no rate", "from 1k to 10T", "100M"]),
    ("--cc fixed", &["fixed,rate=100M"]),
    ("--cc dqcn", &["`dqcn` is no congestion control", "did you mean dcqcn?"]),
    ("--cc dcqcn,rpg_ai_rat=40", &["rpg_ai_rat", "did you mean rpg_ai_rate?"]),
    ("--cc @/nosuch/knobs", &["/nosuch/knobs: No such file"]),
    ("--ecn dscp=64", &["0 to 63"]),
    ("--ecn perhaps", &["off, on, or dscp=26+46"]),
    ("--qos pfc=8", &["pfc=8: priorities are 0 to 7"]),
    ("--qos map=26:8", &["0 to 63 and 0 to 7"]),
    ("--qos strict=8", &["strict=8: priorities are 0 to 7"]),
    ("--qos color=3", &["`color` is no setting", "trust, map, strict"]),
    ("--speed fast", &["`fast` is no rate", "100M"]),
];

#[test]
fn invalid_options_are_refused_with_valid_values() {
    for (options, parts) in WRONG {
        for command in ["perf send bw --port memory", "pingpong rc --port memory", "env", "run"] {
            let program = if command == "run" { "-- true" } else { "" };
            run(&format!("{command} {options} {program}")).failed(2, parts);
        }
    }
    for command in ["run --tos 256 -- true", "env --tos 256"] {
        run(command).failed(2, &["256", "0..=255"]);
    }
    let wrong = tempfile::NamedTempFile::new().unwrap();
    let name = wrong.path().display();
    run(&format!("env --cc @{name}")).failed(2, &["is empty", "dcqcn,rpg_ai_rate=40"]);
    fs::write(wrong.path(), "dcqcn,rpg_ai_rat=40").unwrap();
    run(&format!("env --cc @{name}")).failed(2, &["rpg_ai_rat", "did you mean rpg_ai_rate?"]);
    fs::write(wrong.path(), "dcqcn").unwrap();
    run(&format!("perf send bw --port memory --cc @{name}")).failed(2, &["--port memory has none"]);
}

/// The sender's port marks its own packets, in place of a switch.
const MARKED: &str = "perf write bw --port memory --cc dcqcn --fault tx.mark=every100 -n 400 -s 65536 -t 16";

#[test]
fn marks_cut_rates_in_the_series() {
    let plain = run(&format!("{MARKED} --json")).succeeded().json();
    assert_eq!(plain[0]["series"], Value::Null);

    let row = &run(&format!("{MARKED} --json --plot")).succeeded().json()[0];
    let of = |from: &str, name: &str| row[from][name].as_u64().unwrap_or(0);
    let (marked, seen) =
        (of("counters", "fault_tx_marked"), of("server_counters", "np_ecn_marked_roce_packets"));
    assert!(marked > 0 && marked == seen, "{marked} marked, {seen} seen");
    let sent = of("server_counters", "np_cnp_sent");
    let (handled, ignored) = (of("counters", "rp_cnp_handled"), of("counters", "rp_cnp_ignored"));
    assert!(sent > 0 && sent <= marked && handled > 0 && handled + ignored == sent, "{row}");
    let samples = row["series"].as_array().expect("a series");
    let rates: Vec<f64> = samples.iter().map(|s| s["qps"][0]["rate_bps"].as_f64().unwrap()).collect();
    assert_eq!(rates[0], 1e10, "it begins at line rate");
    assert!(rates.iter().any(|rate| *rate < 1e10), "it falls: {rates:?}");
    assert!(samples.iter().all(|s| s["qps"][0]["alpha"].as_f64().is_some_and(|alpha| alpha <= 1.0)));
    let grows = |name: &str| samples.windows(2).all(|pair| pair[0][name].as_f64() <= pair[1][name].as_f64());
    assert!(grows("seconds") && grows("completed") && grows("rp_cnp_handled"), "{samples:?}");
}

#[test]
fn chart_fits_80_columns_and_picture_is_svg() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rates.svg");
    let shown = run(&format!("{MARKED} --plot {}", file.display())).succeeded();
    let chart: Vec<&str> = shown.stdout.lines().skip_while(|line| !line.starts_with("Gb/s:")).collect();
    assert!(chart.len() > 20 && chart.iter().all(|line| line.chars().count() <= 80), "{shown:#?}");
    assert!(chart.contains(&"alpha") && chart[0].contains(" notifications"), "{shown:#?}");
    let picture = fs::read_to_string(&file).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
    assert!(picture.contains("class=\"mark\"") && picture.contains("alpha"), "{picture}");

    run("perf write bw --port memory -n 10 --plot").succeeded();
    for (arguments, part) in [
        ("perf write bw --port memory --plot 192.0.2.1", "ends in .svg"),
        ("perf write lat --port memory --plot", "measure bw"),
        ("perf write bw --port memory --floor --plot", "without --floor"),
        ("perf write bw --port memory -s 8,64 --plot x.svg", "one by one"),
        ("perf write bw --dev lo --plot", "--plot is the client's"),
    ] {
        run(arguments).failed(2, &[part]);
    }
}
