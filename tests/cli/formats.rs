//! The JSON of all commands, compared with formats that are kept: a change needs a new version.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roxie::netdev::Links;
use roxie_conform_bench::report::Report;
use roxie_conform_bench::run::Outcome;
use roxie_conform_bench::verdict::Verdict;
use serde_json::Value;

use crate::network::Net;
use crate::{A, Running, kept, run};

/// Names of objects whose keys are data: counters, resources, facts of a machine or of a lab.
const MAPS: [&str; 5] = ["counters", "server_counters", "account", "facts", "device"];

/// Formats by command: the version, and the types of each key.
#[derive(Default)]
struct Formats(BTreeMap<String, (u32, Keys)>);

type Keys = BTreeMap<String, BTreeSet<&'static str>>;

impl Formats {
    /// Adds the objects that a command printed.
    #[track_caller]
    fn add(&mut self, name: &str, printed: impl IntoIterator<Item = Value>) {
        for object in printed {
            let version = object.get("version").and_then(Value::as_u64);
            let version = version.unwrap_or_else(|| panic!("{name}: no version in {object}")) as u32;
            let (known, keys) = self.0.entry(name.to_owned()).or_insert((version, Keys::new()));
            assert_eq!(*known, version, "{name}: one version in a release");
            add_keys(keys, "", &object);
        }
    }

    /// Adds what a command prints that needs no network. Its first word is the name of the format.
    #[track_caller]
    fn run(&mut self, arguments: &str) {
        let name = arguments.split(' ').next().unwrap_or_default();
        self.add(name, run(&format!("{arguments} --json")).succeeded().json());
    }

    /// Compares with the formats in a file.
    #[track_caller]
    fn compare(self, file: &str) {
        let line = |(key, types): (String, BTreeSet<_>)| format!("{key} {}", Vec::from_iter(types).join("|"));
        let lines = |(name, (version, keys)): (String, (u32, Keys))| {
            (name, (version, keys.into_iter().map(line).collect()))
        };
        let now = self.0.into_iter().map(lines).collect();
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(file);
        kept::compare(
            &file,
            &now,
            true,
            "src/report/formats.rs, or FORMAT in src/conform/bench/report/mod.rs",
        );
    }
}

/// Adds the keys of a value, and those of the objects in it. A list may be empty on some machines, so the types of
/// plain entries do not count.
fn add_keys(keys: &mut Keys, place: &str, value: &Value) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !place.is_empty() {
        keys.entry(place.to_owned()).or_default().insert(kind);
    }
    match value {
        Value::Array(all) => {
            let lists = all.iter().filter(|one| one.is_object() || one.is_array());
            lists.for_each(|one| add_keys(keys, &format!("{place}[]"), one));
        }
        Value::Object(of) if !MAPS.iter().any(|map| place.rsplit('.').next() == Some(*map)) => {
            of.iter().for_each(|(key, one)| add_keys(keys, &format!("{place}.{key}"), one));
        }
        _ => {}
    }
}

/// Returns the path of a capture that is kept.
fn data(name: &str) -> String {
    format!("{}/../../tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Returns a report of `roxie conform`.
fn report() -> Value {
    let device = BTreeMap::from([("device".to_owned(), "rxe0".to_owned())]);
    let mut report = Report::new("192.0.2.2".into(), "192.0.2.1".into(), "raw", device);
    report.checks.push(Outcome {
        name: "rc/duplicate".into(),
        chapter: "Duplicates".into(),
        clause: "9.7.5".into(),
        stimulus: "a SEND, twice".into(),
        asks: "two ACKs".into(),
        verdict: Verdict::Breaks,
        came: "one".into(),
        seconds: 0.25,
        ladder: "|-- SEND -->|".into(),
        adapters: vec!["as cx5 does (measured)".into()],
        script: "pair RC first=0x1".into(),
        capture: Vec::new(),
    });
    serde_json::from_str(&report.json()).expect("JSON")
}

#[test]
fn changed_json_has_a_new_version() {
    let mut formats = Formats::default();
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str| place.path().join(name).display().to_string();
    fs::write(place.path().join("events.json"), r#"[{"us": 0, "cnp": true}]"#).unwrap();
    fs::write(place.path().join("small.toml"), crate::sim::SCENARIO).unwrap();
    formats.run("cc knobs");
    formats.run("profile list");
    formats.run("profile show cx6");
    formats.run("profile try cx6 bad-rkey --batch 2");
    formats.run("profile try cx6 silent");
    formats.add("cc", run(&format!("cc replay --line-rate 40 {}", file("events.json"))).succeeded().json());
    formats.add("conform report", [report()]);
    let listed = run("conform list --json").succeeded().stdout;
    formats.add("conform list", [serde_json::from_str(&listed).expect("JSON")]);
    for capture in ["rxe-6.12-verbs-ipv4.pcap", "rxe-6.12-cm.pcap", "cm-made.pcapng", "lost-near.pcapng"] {
        formats.run(&format!("decode {}", data(capture)));
    }
    formats.run("demo --port memory --no-programs --seconds 0.1");
    formats.run("demo congestion --no-programs --seconds 0.2 --senders 2 --rate 100");
    formats.run(&format!("judge {}", data("lost-near.pcapng")));
    for lab in ["list", "check 1", "frame", "doorbell", "go-back-n", "dcqcn"] {
        formats.run(&format!("lab {lab}"));
    }
    formats.run(&format!("nfs ls / --port memory --export {}", place.path().display()));
    for command in ["list", "id", "bench -D 0.01"] {
        formats.run(&format!("nvme {command} --port memory"));
    }
    for options in
        ["send bw -n 20", "send lat -n 5", "send bw -n 20 --floor", "write bw -n 400 --cc dcqcn --plot"]
    {
        formats.run(&format!("perf {options} --port memory"));
    }
    formats.run("pingpong rc --port memory -n 2");
    for what in ["counters --open", "gids", "device"] {
        formats.run(&format!("show {what} --port memory"));
    }
    formats.run(&format!("sim run {}", file("small.toml")));
    formats.compare("formats.txt");
}

/// Ends a command by SIGTERM, and returns what it printed.
fn ended(command: Running) -> Vec<Value> {
    kill(Pid::from_raw(command.child.id().cast_signed()), Signal::SIGTERM).unwrap();
    command.finish().succeeded().json()
}

#[test]
fn changed_json_of_programs_has_a_new_version() {
    let Some(net) = Net::new("formats") else { return };
    let mut formats = Formats::default();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "bytes").unwrap();
    let target = net.start_left("nvme target --port udp --json memory:1M");
    let files = net.start_left(&format!("nfs serve --port udp --json {}", folder.path().display()));
    for server in [&target, &files] {
        server.stdout.recv().expect("it serves");
    }
    let host = net.start_right(&format!("nvme bench --port udp -D 2 {A}"));
    net.wait_until_left_has_received(100);
    for what in ["processes", "qps", "mrs", "cm_ids", "counters", "device"] {
        formats.add("show", net.left(&format!("show {what} --json")).succeeded().json());
    }
    let pid = target.child.id();
    formats.add("top", net.left(&format!("top -n 1 -d 0.05 --pid {pid} --json")).succeeded().json());
    let captured = format!("capture --pid {pid} --count 1 --json -w /dev/null");
    formats.add("capture", net.left(&captured).succeeded().json());
    host.finish().succeeded();
    let copy = folder.path().join("copy");
    let get = format!("nfs get --port udp {A}:/file --mount-port 20048 -o {} --json", copy.display());
    formats.add("nfs", net.right(&get).succeeded().json());
    formats.add("nvme", ended(target));
    formats.add("nfs", ended(files));
    let (server, client) = net.both("perf send bw --port udp --json", "perf send bw --port udp -n 20 --json");
    formats.add("perf", server.succeeded().json().into_iter().chain(client.succeeded().json()));
    let mut links = Links::open_in(&net.a).unwrap();
    links.create_veth("near", &net.a, "far", 1).unwrap();
    ["near", "far"].iter().for_each(|name| links.set_up(name, true).unwrap());
    let wire = "wire near far --script write/middle_lost --seconds 1 --json";
    formats.add("wire", net.left(wire).json());
    // An interface that is down is a finding on each machine.
    links.set_up("left", false).unwrap();
    formats.add("doctor", net.left("doctor --dev left --json").json());
    formats.compare("formats-network.txt");
}
