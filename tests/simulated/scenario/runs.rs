//! Output of a run, and its reproducibility.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use roxie::capture::Reader;
use roxie::time::Nanos;
use roxie_sim::scenario::{Column, Results, Simulation};

use super::{played, scenario, simulation};

/// A file in memory, written by the simulation.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no thread panicked").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Memory {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no thread panicked").clone()
    }
}

/// A hundred hosts with every random element: arrivals, sizes, paths, marks, errors.
const HUNDRED: &str = r#"
    time = "100 us"
    [network]
    shape = "leaf-spine"
    leaves = 10
    spines = 4
    hosts = 10
    rate = "10 Gb/s"
    frame_errors = 0.001
    [ecn]
    kmin = "2 KB"
    kmax = "50 KB"
    pmax = 0.2
    [pfc]
    xoff = "20 KB"
    [cc]
    control = "dcqcn"
    [[traffic]]
    pattern = "poisson"
    sizes = "hadoop"
    load = 0.6
    [[traffic]]
    pattern = "incast"
    from = [10, 20, 30, 40, 50]
    to = [0]
    bytes = "50 KB"
"#;

fn captures(seed: u64) -> (Vec<Vec<u8>>, Results) {
    let mut scenario = scenario(HUNDRED);
    scenario.seed = seed;
    let mut simulation = Simulation::new(&scenario).expect("a scenario");
    let files: Vec<Memory> = ["leaf0-host0", "leaf0-spine0", "spine3-leaf7"]
        .iter()
        .map(|link| {
            let file = Memory::default();
            simulation.capture(link, Box::new(file.clone())).expect("a link");
            file
        })
        .collect();
    simulation.run().expect("connections");
    (files.iter().map(Memory::bytes).collect(), simulation.results())
}

#[test]
fn same_seed_gives_the_same_bytes() {
    let (first, results) = captures(1);
    let (again, same) = captures(1);
    assert!(
        first.iter().all(|file| file.len() > 1_000),
        "{:?}",
        first.iter().map(Vec::len).collect::<Vec<_>>()
    );
    assert_eq!(first, again);
    assert_eq!(results, same);
    assert!(
        results.summary.marked > 0 && results.summary.damaged > 0 && results.summary.pauses > 0,
        "{:?}",
        results.summary
    );
    let (other, _) = captures(2);
    assert_ne!(first, other, "another seed is another run");
}

#[test]
fn progress_interval_does_not_change_results() {
    let whole = played(HUNDRED);
    let mut stepped = simulation(HUNDRED);
    while !stepped.is_over() {
        stepped.advance(stepped.now() + Nanos(777)).expect("connections");
    }
    assert_eq!(stepped.results(), whole);
}

#[test]
fn capture_has_both_ends_and_drop_reasons() {
    let mut simulation = simulation(
        "time = \"1 ms\"\n[network]\nshape = \"star\"\nhosts = 3\n[ecn]\nkmin = \"1 KB\"\nkmax = \"5 KB\"\n[pfc]\nxoff = \"20 KB\"\n\
         [[traffic]]\npattern = \"incast\"\nbytes = \"64 KiB\"\n",
    );
    let file = Memory::default();
    simulation.capture("switch0-host0", Box::new(file.clone())).expect("a link, by its other name");
    let target = Memory::default();
    simulation.capture("host2-switch0", Box::new(target.clone())).expect("a link");
    let wrong = simulation.capture("host1-host2", Box::new(Memory::default())).expect_err("no link");
    assert!(wrong.to_string().contains("host0-switch0"), "{wrong}");
    simulation.run().expect("connections");
    let text = |file: &Memory| String::from_utf8_lossy(&file.bytes()).into_owned();
    let (local, remote) = (text(&file), text(&target));
    for part in [
        "host0",
        "switch0:0",
        "to port 2, priority 3, behind",
        "the peer is told to pause",
        "of the switch itself",
    ] {
        assert!(local.contains(part), "{part}");
    }
    assert!(remote.contains("marked (CE)") && remote.contains("waited"), "of the port that marks");
    let bytes = file.bytes();
    let mut reader = Reader::new(&bytes[..]).expect("a capture");
    let mut frames = 0;
    while reader.next().expect("a block").is_some() {
        frames += 1;
    }
    // At least 64 packets in each direction, seen at both ends.
    assert!(frames > 128, "{frames}");
}

#[test]
fn lone_flow_takes_the_ideal_time() {
    for (bytes, read, most) in
        [("100 B", false, 1.05), ("64 KiB", false, 1.05), ("3 MB", false, 1.06), ("3 MB", true, 1.10)]
    {
        let results = played(&format!(
            "time = \"10 ms\"\n[network]\nshape = \"leaf-spine\"\nleaves = 2\nspines = 2\nhosts = 2\n[[traffic]]\npattern = \
             \"flows\"\nfrom = [0]\nto = [3]\nbytes = \"{bytes}\"\nread = {read}\n"
        ));
        let slowdown = results.flows[0].slowdown().expect("it ended");
        assert!((0.99..most).contains(&slowdown), "{bytes}, read {read}: {slowdown}, {:?}", results.flows[0]);
    }
}

#[test]
fn tables_cover_flows_ports_hosts_queues_rates() {
    let results = played(
        "time = \"1 ms\"\n[network]\nshape = \"star\"\nhosts = 3\n[output]\ninterval = \"5 us\"\n[[traffic]]\nname = \
         \"burst\"\npattern = \"incast\"\nbytes = \"100 KB\"\n",
    );
    let cell = |table: &str, column: &str, row: usize| {
        let column = results.table(table).and_then(|table| table.column(column));
        column.unwrap_or_else(|| panic!("{table} has {column:?}")).cell(row)
    };
    let flow = ["traffic", "verb", "from", "to", "bytes", "start_ns"].map(|column| cell("flows", column, 1));
    assert_eq!(flow, ["burst", "write", "host1", "host2", "100000", "0"]);
    // Two flows at half the rate each.
    let rate: f64 = cell("flows", "rate_bps", 0).parse().expect("a number");
    assert!((40e9..51e9).contains(&rate), "{rate}");
    let ports = results.table("ports").expect("it is there");
    let row = (0..ports.rows()).find(|row| cell("ports", "peer", *row) == "host2").expect("the target's");
    assert!(cell("ports", "sent_bytes", row).parse::<u64>().expect("a number") > 200_000);
    let Some(Column::Count(depths)) = results.table("queues").and_then(|table| table.column("bytes")) else {
        panic!("queues")
    };
    assert_eq!(depths.iter().max().map(u64::to_string), Some(cell("ports", "depth_peak_bytes", row)));
    let Some(Column::Real(sent)) = results.table("rates").and_then(|table| table.column("sent_bps")) else {
        panic!("rates")
    };
    assert!(sent.iter().flatten().any(|rate| (90e9..101e9).contains(rate)), "{sent:?}");
    assert_eq!(results.table("hosts").map(|table| table.rows()), Some(3));
}

#[test]
fn control_table_is_written_on_request() {
    let text = "time = \"2 ms\"\n[network]\nshape = \"star\"\nhosts = 3\nrate = \"10 Gb/s\"\n[ecn]\n[cc]\ncontrol = \"dcqcn\"\npreset = \
                \"paper\"\n[[traffic]]\npattern = \"incast\"\nbytes = \"500 KB\"\n[output]\ninterval = \"20 us\"\ncontrol = true\n";
    let mut simulation = simulation(text);
    simulation.run().expect("connections");
    let samples = simulation.control_samples();
    let lowest = samples.iter().map(|sample| sample.state.rate.0).fold(f64::INFINITY, f64::min);
    assert!(samples[0].state.rate.0 == 10e9 && lowest < 6e9, "from the line's rate down: {lowest}");
    assert!(
        samples.iter().all(|sample| sample.state.alpha.is_some_and(|alpha| (0.0..=1.0).contains(&alpha)))
    );
    let results = simulation.results();
    assert_eq!(results.table("control").map(|table| table.rows()), Some(samples.len()));
    assert!(played(&text.replace("control = true", "")).table("control").is_none());
}

#[test]
fn idle_hosts_cost_no_events() {
    let events = |leaves: usize| {
        let results = played(&format!(
            "time = \"10 ms\"\n[network]\nshape = \"leaf-spine\"\nleaves = {leaves}\nspines = 2\nhosts = 20\n[[traffic]]\npattern = \
             \"flows\"\nfrom = [0]\nto = [1]\nbytes = \"100 KB\"\n"
        ));
        assert_eq!(results.summary.ended, 1);
        results.summary.events
    };
    let few = events(1);
    // Each host runs once, at the start.
    assert_eq!(events(20), few + 19 * 20);
}

#[test]
fn flow_over_dead_link_fails_alone() {
    let results = played(
        "time = \"200 ms\"\n[network]\nshape = \"custom\"\n[network.nodes]\nhosts = [\"a\", \"b\", \"c\"]\nswitches = [\"s\"]\nlinks = [{ \
         ends = [\"a\", \"s\"] }, { ends = [\"b\", \"s\"], frame_errors = 1.0 }, { ends = [\"c\", \"s\"] }]\n[hosts]\ntimeout = \
         5\n[[traffic]]\npattern = \"flows\"\nfrom = [\"a\"]\nbytes = 1000\n",
    );
    assert_eq!((results.summary.ended, results.summary.failed), (1, 1), "{:?}", results.flows);
    assert!(
        results.flows[0].failed.as_deref().is_some_and(|why| why.to_lowercase().contains("retries")),
        "{:?}",
        results.flows[0]
    );
    assert_eq!(results.flows[0].slowdown(), None);
}
