//! The scenarios of `docs/sim` run.

use std::path::PathBuf;

use roxie::time::Nanos;
use roxie_sim::scenario::{Results, Scenario, Simulation};

fn example(name: &str, time: Option<Nanos>) -> Results {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/sim").join(name);
    let mut scenario = Scenario::open(&path).unwrap_or_else(|error| panic!("{error}"));
    if let Some(time) = time {
        scenario.time.0 = time;
    }
    let mut simulation = Simulation::new(&scenario).unwrap_or_else(|error| panic!("{name}: {error}"));
    simulation.run().unwrap_or_else(|error| panic!("{name}: {error}"));
    simulation.results()
}

#[test]
fn incast_with_dcqcn_drops_nothing() {
    let summary = example("incast.toml", None).summary;
    assert_eq!((summary.ended, summary.dropped), (summary.flows, 0));
    assert!(summary.marked > 0);
}

#[test]
fn web_search_on_a_leaf_spine_has_slowdowns() {
    let summary = example("web-search.toml", Some(Nanos(200_000))).summary;
    assert!(summary.ended > 0 && summary.slowdown_p50 >= 1.0, "{summary:?}");
}

#[test]
fn all_reduce_ends() {
    let summary = example("all-reduce.toml", None).summary;
    assert_eq!((summary.ended, summary.failed), (summary.flows, 0), "{summary:?}");
}

#[test]
fn deadlock_is_found() {
    let summary = example("deadlock.toml", None).summary;
    assert!(summary.deadlock.is_some(), "{summary:?}");
}

#[test]
fn storage_on_separate_network_ends() {
    let summary = example("storage.toml", None).summary;
    assert_eq!((summary.ended, summary.dropped), (summary.flows, 0), "{summary:?}");
}

#[test]
fn page_lists_all_values_with_defaults() {
    let page = include_str!("../../../docs/simulator.md");
    let section = page.split_once("### All values").expect("the section").1;
    let block = section.split("```").nth(1).and_then(|block| block.strip_prefix("text\n")).expect("a block");
    let needed = "time = \"1 ms\"\n";
    let shape = "shape = \"star\"\nhosts = 2\n";
    let scenario = format!("{needed}{}", block.replace("[network]", &format!("[network]\n{shape}#")));
    let defaults = Scenario::read(&format!("{needed}[network]\n{shape}[ecn]\n[pfc]\n")).expect("a scenario");
    assert_eq!(Scenario::read(&scenario).expect("a scenario"), defaults);
    // Every commented-out value is valid, and no key is missing.
    let all =
        scenario.lines().map(|line| line.strip_prefix("# ").unwrap_or(line)).collect::<Vec<_>>().join("\n");
    let all = toml::to_string(&Scenario::read(&all).expect("a scenario")).expect("a text");
    for table in ["network", "switch", "ecn", "pfc", "hosts", "output"] {
        let unknown = scenario.replace(&format!("[{table}]"), &format!("[{table}]\nnothing = 1"));
        let error = Scenario::read(&unknown).expect_err("no such key").to_string();
        let known = error.split_once("expected one of").expect("what is allowed").1;
        for key in known.split('`').skip(1).step_by(2) {
            let shapes = ["pairs", "leaves", "spines", "switches", "k", "file", "nodes"];
            assert!(
                all.contains(&format!("{key} = ")) || shapes.contains(&key),
                "{key} of [{table}] in {all}"
            );
        }
    }
}
