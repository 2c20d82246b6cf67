//! `roxie sim`: scenarios in virtual time, without a network or privilege.

use std::fs;
use std::path::Path;

use crate::in_time::CommandInTime;
use serde_json::Value;

use crate::run;

pub(crate) const SCENARIO: &str = "name = \"small\"\nseed = 5\ntime = \"2 ms\"\n[network]\nshape = \"star\"\nhosts = 4\nrate = \"10 Gb/s\"\n[ecn]\nkmin = \"5 KB\"\n\
    kmax = \"50 KB\"\npmax = 0.1\n[cc]\ncontrol = \"dcqcn\"\n[[traffic]]\npattern = \"incast\"\nbytes = \"100 KB\"\n[output]\ncapture = [\"host0-switch0\"]\n";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("small.toml"), SCENARIO).expect("a file");
    folder
}

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn scenario_writes_its_tables() {
    let folder = folder();
    let at = folder.path().display();
    let done = run(&format!("sim run {at}/small.toml --out {at}/out --parquet")).succeeded();
    for part in [
        "small, seed 5",
        "3 ended, 0 failed, 0 open",
        "slowdown",
        "slowest flows",
        "CNPs",
        "deepest queues",
        "host3",
    ] {
        assert!(done.stdout.contains(part), "{part}: {done:#?}");
    }
    assert!(done.stderr.contains("million a second"), "{done:#?}");
    let out = folder.path().join("out");
    assert_eq!(read(&out, "flows.csv").lines().count(), 4);
    assert!(read(&out, "flows.csv").contains(",marked,dropped,damaged,retransmitted_packets,cnps,"));
    assert!(read(&out, "ports.csv").starts_with("switch,port,peer,priority,"));
    assert!(read(&out, "queues.csv").lines().count() > 100);
    assert!(fs::read(out.join("flows.parquet")).is_ok_and(|bytes| bytes.starts_with(b"PAR1")));
    let summary: Value = serde_json::from_str(&read(&out, "summary.json")).expect("JSON");
    let results = run(&format!("sim run {at}/small.toml --json")).succeeded().json();
    assert_eq!((results.len(), &results[0]), (1, &summary), "the same again");
    assert_eq!(results[0]["ended"], 3);
    let ladder = run(&format!("decode {at}/out/host0-switch0.pcapng")).succeeded();
    assert!(
        ladder.stdout.contains("behind") && ladder.stdout.contains("RC_WRITE_FIRST"),
        "{}",
        &ladder.stdout[..800]
    );
    let other = run(&format!("sim run {at}/small.toml --json --seed 6")).succeeded().json();
    assert_ne!(other[0], summary);
}

/// Each host has the ACK timer of the adapter, which is longer than the 4.2 ms of the scenario.
#[test]
fn hosts_behave_as_the_adapter_of_a_profile() {
    let folder = folder();
    let at = folder.path().display();
    let lossy = SCENARIO.replace("hosts = 4", "hosts = 4\nframe_errors = 0.02").replace("2 ms", "20 s");
    let ended = |hosts: &str| {
        fs::write(folder.path().join("lossy.toml"), format!("{lossy}[hosts]\n{hosts}\n")).expect("a file");
        let results = run(&format!("sim run {at}/lossy.toml --json --seed 3")).succeeded().json();
        assert_eq!((&results[0]["ended"], &results[0]["failed"]), (&Value::from(3), &Value::from(0)));
        results[0].clone()
    };
    let (own, adapter) = (ended("depth = 8"), ended("depth = 8\nprofile = \"cx6\""));
    assert_ne!(own, adapter);
    let wrong = format!("{lossy}[hosts]\nprofile = \"cx0\"\n");
    fs::write(folder.path().join("wrong.toml"), wrong).expect("a file");
    let why = ["line", "[hosts]", "\"cx0\"", "built in are cx4lx"];
    run(&format!("sim run {at}/wrong.toml")).failed(2, &why);
}

#[test]
fn invalid_scenario_is_reported_with_its_line() {
    let folder = folder();
    let at = folder.path().display();
    fs::write(folder.path().join("wrong.toml"), SCENARIO.replace("hosts = 4", "host = 4")).expect("a file");
    run(&format!("sim run {at}/wrong.toml")).failed(2, &["wrong.toml", "line 6", "`hosts`"]);
    fs::write(folder.path().join("none.toml"), SCENARIO.replace("hosts = 4", "hosts = 0")).expect("a file");
    run(&format!("sim run {at}/none.toml")).failed(2, &["none.toml: line 6: [network]", "1 to 10000"]);
    fs::remove_file(folder.path().join("none.toml")).expect("it is there");
    run(&format!("sim run {at}/none.toml")).failed(2, &["none.toml", "No such file"]);
    run(&format!("sim sweep {at}/small.toml --set network.hsts=3 --out {at}/s"))
        .failed(2, &["hsts", "`hosts`"]);
    run(&format!("sim sweep {at}/small.toml --set hosts --out {at}/s")).failed(2, &["KEY=A,B,C"]);
    run(&format!("sim collect {at}")).failed(2, &["no runs"]);
}

#[test]
fn names_of_nodes_lead_to_no_file_outside() {
    let folder = folder();
    let at = folder.path().display();
    let custom = |name: &str, captured: &str| {
        let toml = |text: &str| toml::Value::from(text).to_string();
        let (name, captured) = (toml(name), toml(captured));
        format!(
            "time = \"1 ms\"\n[network]\nshape = \"custom\"\n[network.nodes]\nhosts = [{name}, \"b\"]\nswitches = [\"s\"]\nlinks = [{{ends = \
             [{name}, \"s\"]}}, {{ends = [\"b\", \"s\"]}}]\n[[traffic]]\npattern = \"incast\"\nfrom = [0]\nto = [1]\nbytes = \"5 KB\"\n\
             [output]\ncapture = [{captured}]\n"
        )
    };
    let file = folder.path().join("custom.toml");
    let outside = format!("{at}/outside");
    for name in [&*outside, "../outside", "..", ".hidden", "a\0b", "a\u{1b}b", ""] {
        fs::write(&file, custom(name, &format!("{name}-s"))).expect("a file");
        let refused = run(&format!("sim run {at}/custom.toml --out {at}/out"));
        refused.failed(
            2,
            &["custom.toml: line 4: [network]", "cannot be the name of a file", "neither slashes"],
        );
    }
    // A link that does not exist leaves no file either.
    fs::write(&file, custom("a", &format!("{at}/outside-s"))).expect("a file");
    run(&format!("sim run {at}/custom.toml --out {at}/out")).failed(2, &["there is no link"]);
    let files: Vec<_> = fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(files.len(), 2, "the two scenarios: {files:?}");
    fs::write(&file, custom("a", "a-s")).expect("a file");
    run(&format!("sim run {at}/custom.toml --out {at}/out")).succeeded();
    assert!(folder.path().join("out/a-s.pcapng").exists());
}

#[test]
fn sweep_runs_all_combinations_and_resumes() {
    let folder = folder();
    let at = folder.path().display();
    let sweep = format!(
        "sim sweep {at}/small.toml --set cc.rpg_ai_rate=5,20 --set network.hosts=3,4,5 --seeds 2 --out {at}/s"
    );
    let done = run(&sweep).succeeded();
    assert!(done.stderr.contains("12 runs, 12 to be played"), "{done:#?}");
    let out = folder.path().join("s");
    let table = read(&out, "sweep.csv");
    assert_eq!(table.lines().count(), 13);
    assert!(table.starts_with("cc.rpg_ai_rate,network.hosts,seed,"), "{table}");
    let one = out.join("cc.rpg_ai_rate=20+network.hosts=5+seed=6");
    assert_eq!(read(&one, "flows.csv").lines().count(), 5, "four senders");
    // One run is missing and another incomplete: only these two run again.
    let before = read(&one, "summary.json");
    fs::remove_dir_all(&one).expect("it was there");
    fs::remove_file(out.join("cc.rpg_ai_rate=5+network.hosts=3+seed=5/summary.json")).expect("it was there");
    let again = run(&format!("{sweep} --jobs 1 --json")).succeeded();
    assert!(again.stderr.contains("12 runs, 2 to be played, 1 at a time"), "{again:#?}");
    assert_eq!(
        (read(&one, "summary.json"), read(&out, "sweep.csv")),
        (before, table),
        "for every way to run it"
    );
    assert_eq!(again.json().len(), 12);
}

#[test]
fn listed_jobs_run_in_a_shell() {
    let folder = folder();
    let at = folder.path().display();
    run(&format!("sim sweep {at}/small.toml --set traffic.0.bytes=50KB,200KB --out {at}/s --list"))
        .succeeded();
    let list = read(&folder.path().join("s"), "jobs.txt");
    assert_eq!(list.lines().count(), 2);
    let roxie = Path::new(env!("CARGO_BIN_EXE_roxie"));
    let path = format!(
        "{}:{}",
        roxie.parent().expect("a folder").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let first = list.lines().next().expect("a line");
    let status = std::process::Command::new("sh")
        .arg("-c")
        .arg(first)
        .env("PATH", path)
        .output_in_time()
        .expect("a shell");
    assert!(status.status.success(), "{first}: {status:?}");
    let done = run(&format!("sim collect {at}/s")).succeeded();
    assert!(done.stdout.contains("50KB") && !done.stdout.contains("200KB"), "{done:#?}");
    assert!(done.stderr.contains("1 runs are not complete"), "{done:#?}");
}
