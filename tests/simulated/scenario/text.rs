//! The scenario file format, and its errors.

use roxie_sim::scenario::{Scenario, Simulation};

const GOOD: &str = "time = \"1 ms\"\n[network]\nshape = \"star\"\nhosts = 3\n";

fn refused(text: &str) -> String {
    match Scenario::read(text).and_then(|scenario| Simulation::new(&scenario)) {
        Ok(_) => panic!("taken: {text}"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn check_message(text: &str, parts: &[&str]) {
    let message = refused(text);
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn unknown_key_error_has_line_and_choices() {
    let text = GOOD.replace("hosts = 3", "hosts = 3\nspeed = \"10G\"");
    check_message(&text, &["line 5", "speed", "`rate`", "`trunk_delay`"]);
    check_message(&format!("{GOOD}[swich]\n"), &["line 5", "swich", "`switch`"]);
    check_message(
        &format!("{GOOD}[[traffic]]\npattern = \"incest\"\n"),
        &["line 6", "`incast`", "`ring-all-reduce`"],
    );
}

#[test]
fn quantity_error_lists_units() {
    check_message(&GOOD.replace("1 ms", "1 min"), &["line 1", "ns, us, ms or s"]);
    check_message(&format!("{GOOD}rate = \"10 GB\"\n"), &["line 5", "100 Gb/s"]);
    check_message(&format!("{GOOD}[switch]\nbuffer = -5\n"), &["line 6", "KiB"]);
}

#[test]
fn shape_parameters_are_checked() {
    check_message(&GOOD.replace("hosts = 3", ""), &["give `hosts`", "star has hosts"]);
    check_message(&GOOD.replace("hosts = 3", "hosts = 3\nspines = 2"), &["no `spines`"]);
    check_message(&GOOD.replace("star", "fat-tree").replace("hosts = 3", "k = 3"), &["3 ports", "even"]);
    check_message(&GOOD.replace("star", "leaf-spine"), &["give `leaves`", "leaves, spines, hosts"]);
}

#[test]
fn missing_traffic_parameters_are_named() {
    let with = |traffic: &str| format!("{GOOD}[[traffic]]\n{traffic}\n");
    check_message(&with("pattern = \"incast\""), &["traffic 0: incast", "give `bytes`"]);
    check_message(&with("pattern = \"poisson\"\nload = 0.5"), &["web-search, data-mining, hadoop"]);
    check_message(&with("pattern = \"flows\"\nbytes = 1\nto = [\"host7\"]"), &["host7", "host0 to host2"]);
    check_message(&with("pattern = \"flows\"\nbytes = 1\npriority = 8"), &["0 to 7"]);
    check_message(&format!("{GOOD}[cc]\ncontrol = \"dcqcn\"\nrpg_ai_rat = 5\n"), &["rpg_ai_rate"]);
    check_message(&format!("{GOOD}[hosts]\nmtu = 1500\n"), &["1024, 2048 or 4096"]);
    check_message(&format!("{GOOD}[pfc]\nwatchdog = 0\n"), &["watchdog"]);
    check_message(&format!("{GOOD}frame_errors = 2.0\n"), &["0 to 1"]);
}

#[test]
fn custom_network_is_built_and_checked() {
    let nodes = |links: &str| {
        format!(
            "time = \"1 ms\"\n[network]\nshape = \"custom\"\n[network.nodes]\nhosts = [\"a\", \"b\"]\nswitches = [\"s\"]\n\
             links = [{links}]\n[[traffic]]\npattern = \"flows\"\nfrom = [\"a\"]\nto = [\"b\"]\nbytes = \"10 KB\"\n"
        )
    };
    let good = nodes("{ ends = [\"a\", \"s\"] }, { ends = [\"s\", \"b\"], rate = \"10 Gb/s\" }");
    let results = super::played(&good);
    assert_eq!(results.summary.ended, 1);
    // 10 KB at 10 Gb/s, with headers.
    assert!((8_000..12_500).contains(&results.summary.fct_max_ns), "{}", results.summary.fct_max_ns);
    check_message(&nodes("{ ends = [\"a\", \"b\"] }"), &["join each to a switch"]);
    check_message(&nodes("{ ends = [\"a\", \"x\"] }"), &["`x`", "neither"]);
    check_message(&nodes("{ ends = [\"a\", \"s\"] }"), &["station 1 has no link"]);
}

#[test]
fn scenario_survives_writing_and_reading() {
    let text = format!(
        "{GOOD}[pfc]\nxoff = \"20 KB\"\n[ecn]\n[cc]\ncontrol = \"dcqcn\"\npreset = \"paper\"\n[switch]\nschedule = [\"strict\", \
         30]\n[[traffic]]\npattern = \"poisson\"\nload = 0.5\nsizes = \"hadoop\"\nfrom = [0, \"host1\"]\n"
    );
    let scenario = super::scenario(&text);
    let again = toml::to_string(&scenario).expect("a text");
    assert_eq!(Scenario::read(&again).expect("a scenario"), scenario, "{again}");
}

/// Returns the error of an invalid file, which the command prints as well.
fn refused_file(text: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("wrong.toml");
    std::fs::write(&path, text).expect("a file");
    let played = Scenario::open(&path).and_then(|scenario| Simulation::new(&scenario));
    match played.map_err(|error| error.within(&path)) {
        Ok(_) => panic!("taken: {text}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn invalid_value_error_has_line_and_range() {
    let good = "time = \"1 ms\"\n[network]\nshape = \"star\"\nhosts = 3\nrate = \"10 Gb/s\"\n[switch]\nbuffer = \"12 MB\"\nalpha = 1.0\n\
                schedule = [10, 90]\n[ecn]\nkmin = \"5 KB\"\npmax = 0.1\n[pfc]\nlossless = [3]\n[hosts]\nmtu = 1024\ndepth = 8\n[cc]\n\
                control = \"dcqcn\"\npreset = \"paper\"\n[[traffic]]\npattern = \"permutation\"\nbytes = 1\n[[traffic]]\npattern = \"incast\"\n\
                bytes = \"1 KB\"\npriority = 3\n[output]\ncapture = [\"host0-switch0\"]\n";
    Scenario::read(good).and_then(|scenario| Simulation::new(&scenario)).expect("nothing is wrong with it");
    let cases: &[(&str, &str, &[&str])] = &[
        ("time = \"1 ms\"", "time = 0", &["line 1:", "\"20 ms\""]),
        ("hosts = 3", "hosts = 0", &["line 4:", "[network]", "1 to 10000"]),
        ("hosts = 3", "hosts = -3", &["line 4,", "whole number from 0 on"]),
        ("hosts = 3", "hosts = 3\nk = 4", &["line 5:", "star has no `k`: it has hosts"]),
        ("\"10 Gb/s\"", "10", &["line 5:", "10 bits per second", "100 Gb/s"]),
        ("\"12 MB\"", "\"1 KB\"", &["line 7:", "has 1000: give at least as much"]),
        ("alpha = 1.0", "alpha = 0", &["line 8:", "above 0"]),
        ("[10, 90]", "[10, \"strickt\"]", &["line 9:", "`strickt`", "1 to 100"]),
        ("[10, 90]", "[10, 190]", &["line 9:", "1 to 100"]),
        ("\"5 KB\"", "\"500 KB\"", &["line 11:", "Kmin is at most Kmax"]),
        ("pmax = 0.1", "pmax = 2", &["line 12:", "0 to 1"]),
        ("lossless = [3]", "lossless = [9]", &["line 14:", "0 to 7"]),
        ("lossless = [3]", "alpha = -1", &["line 14:", "[pfc]", "above 0"]),
        ("mtu = 1024", "mtu = 1500", &["line 16:", "1024, 2048 or 4096"]),
        ("depth = 8", "depth = 0", &["line 17:", "1 to 1024"]),
        ("\"dcqcn\"", "\"dctcp\"", &["line 19:", "off, dcqcn, swift and fixed"]),
        ("preset = ", "preeset = ", &["line 20:", "`preeset`"]),
        ("\"paper\"", "\"papers\"", &["line 20:", "connectx and paper"]),
        ("bytes = 1\n", "bytes = 0\n", &["line 23:", "traffic 0: permutation", "1 or more"]),
        ("bytes = 1\n", "bytes = 1\nfrom = [9]\n", &["line 24:", "`9`", "0 to 2"]),
        ("priority = 3", "priority = 8", &["line 27:", "traffic 1: incast", "0 to 7"]),
        ("priority = 3", "to = [0, 1]", &["line 27:", "the one host"]),
        ("priority = 3", "load = 0.5", &["line 27:", "no `load`"]),
        ("priority = 3", "repeat = 0", &["line 27:", "1 or more"]),
        ("priority = 3", "start = \"2 ms\"", &["line 27:", "less than 1 ms"]),
        ("bytes = \"1 KB\"\n", "", &["line 24:", "give `bytes`"]),
        ("host0-switch0", "host0-host1", &["line 29:", "no link `host0-host1`", "host2-switch0"]),
    ];
    for (from, to, parts) in cases {
        assert_eq!(good.matches(from).count(), 1, "{from}");
        let message = refused_file(&good.replace(from, to));
        for part in parts.iter().chain(&["wrong.toml"]) {
            assert!(message.contains(part), "{to}: `{part}` is not in: {message}");
        }
    }
}
