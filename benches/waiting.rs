//! Round-trip times of programs that block, compared with TCP.
//!
//! `cargo bench -p roxie-cli --bench waiting [-- MODE …]`. Two namespaces on a veth pair (root), two processes,
//! `tests/verbs/programs/waits.c`. Each run measures TCP's echo first, then each way to wait over each port. The table
//! shows medians of three runs, and ratios to TCP in the same run. Then follow perftest's WRITEs in both directions,
//! alone and beside a compute-bound program. Then, with `busy`, stock programs beside 2, 5 and 8 compute-bound
//! programs, compared with UDP echoes under the same load. Exit code 1: a result exceeds its budget.

#[path = "waiting/busy.rs"]
mod busy;
#[allow(dead_code, unreachable_pub)]
#[path = "../tests/verbs/site.rs"]
mod site;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use site::{PORTS, Running, Site, compiled, installed, skip};

const RUNS: usize = 3;
/// TCP port by which the two ends exchange addresses.
const TCP_PORT: u16 = 19777;
/// TCP port of perftest.
const PERFTEST_PORT: u16 = 18515;

/// Reference and limit of a median.
#[derive(Clone, Copy)]
enum Budget {
    /// A multiple of TCP's echo: over xdp, over udp.
    OfTcp(f64, f64),
    /// A multiple of another way's median over the same port.
    Of(&'static str, f64),
    /// An absolute limit in microseconds.
    Us(f64),
    None,
}

/// The ways to wait: name, rounds, budget.
const WAYS: [(&str, u32, Budget); 9] = [
    ("epoll", 2000, Budget::OfTcp(1.6, 2.0)),
    ("event", 2000, Budget::OfTcp(1.6, 2.0)),
    ("poll", 2000, Budget::OfTcp(3.0, 3.0)),
    ("select", 2000, Budget::OfTcp(3.0, 3.0)),
    ("uring", 2000, Budget::OfTcp(3.0, 3.0)),
    ("spin", 4000, Budget::None),
    ("spin2", 1000, Budget::Of("spin", 2.0)),
    ("memory", 1000, Budget::None),
    ("late", 200, Budget::Us(100.0)),
];

/// Median and 99th percentile of a run, in us.
type Times = (f64, f64);

fn main() -> ExitCode {
    if skip("waiting", &["cc"]) {
        return ExitCode::SUCCESS;
    }
    let only: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted =
        |name: &str| only.is_empty() || only.iter().any(|o| o == name || (name == "spin" && o == "spin2"));
    let (_place, program) = compiled("waits", &["-O2", "-libverbs", "-lpthread"]);
    let program = program.display().to_string();
    let site = Site::new("bench-waits");
    let mut tcp = Vec::new();
    let mut times: BTreeMap<(&str, &str), Vec<Times>> = BTreeMap::new();
    for run in 0..RUNS {
        eprintln!("waiting: run {} of {RUNS}", run + 1);
        tcp.push(over_tcp(&site, &program));
        for (way, rounds, _) in WAYS.iter().filter(|(way, ..)| wanted(way)) {
            for port in PORTS {
                let (output, _) = site.play(port, &format!("{program} -n {rounds} {way}"), TCP_PORT);
                times.entry((way, port)).or_default().push(parse(&output));
            }
        }
    }
    let mut holds = show(&tcp, &times);
    if wanted("idle") {
        idle(&site, &program);
    }
    if wanted("both") && installed("ib_write_bw") {
        holds &= both_ways(&site);
    }
    if wanted("busy") {
        holds &= busy::measure(&site, &program);
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn over_tcp(site: &Site, program: &str) -> Times {
    parse(&without_rdma(site, program, "-n 2000 tcp"))
}

/// Returns the client's output of an echo without RDMA.
fn without_rdma(site: &Site, program: &str, arguments: &str) -> String {
    let command = |more: &[&str]| {
        let mut command = std::process::Command::new(program);
        command.args(arguments.split(' ')).args(more);
        command
    };
    let mut server = Running::start(&site.local, command(&[]));
    server.wait_until_it_listens(TCP_PORT);
    let client = Running::start(&site.remote, command(&[site::NEAR])).finish();
    server.finish();
    client.output
}

/// Parses `MODE median X us p99 Y us`.
fn parse(said: &str) -> Times {
    after(said, "median").zip(after(said, "p99")).unwrap_or_else(|| panic!("waits said: {said}"))
}

/// Returns the number after a word.
fn after(said: &str, name: &str) -> Option<f64> {
    said.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse().ok()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the table. Returns true if all budgets hold.
fn show(tcp: &[Times], times: &BTreeMap<(&str, &str), Vec<Times>>) -> bool {
    let first = |times: &[Times]| median(times.iter().map(|t| t.0));
    println!("{:<8} {:<6} {:>9} {:>9} {:>7}  budget", "way", "port", "median us", "p99 us", "x TCP");
    println!("{:<8} {:<6} {:>9.1} {:>9.1}", "tcp", "", first(tcp), median(tcp.iter().map(|t| t.1)));
    let mut all = true;
    for (way, _, budget) in WAYS {
        for port in PORTS {
            let Some(own) = times.get(&(way, port)) else { continue };
            let of = |other: &[Times]| median(own.iter().zip(other).map(|(a, b)| a.0 / b.0));
            let (value, most, text) = match budget {
                Budget::OfTcp(xdp, udp) => {
                    let most = if port == "xdp" { xdp } else { udp };
                    (of(tcp), most, format!("<= {most} x TCP"))
                }
                Budget::Of(other, most) => (of(&times[&(other, port)]), most, format!("<= {most} x {other}")),
                Budget::Us(most) => (first(own), most, format!("<= {most} us")),
                Budget::None => (0.0, f64::MAX, "-".to_owned()),
            };
            let holds = value <= most;
            all &= holds;
            let verdict = if holds { "" } else { "  DOES NOT HOLD" };
            let p99 = median(own.iter().map(|t| t.1));
            println!("{way:<8} {port:<6} {:>9.1} {p99:>9.1} {:>7.2}  {text}{verdict}", first(own), of(tcp));
        }
    }
    all
}

/// Prints the processor time of blocked programs without traffic.
fn idle(site: &Site, program: &str) {
    for port in PORTS {
        let (output, _) = site.play(port, &format!("{program} -n 5000 idle"), TCP_PORT);
        println!("{port}: {}", output.trim());
    }
}

/// Measures WRITEs of 64 KiB in both directions: alone, and beside a compute-bound thread.
fn both_ways(site: &Site) -> bool {
    let mut all = true;
    for port in PORTS {
        let mut ratios = Vec::new();
        for _ in 0..RUNS {
            let alone = write_both_ways(site, port);
            let stop = AtomicBool::new(false);
            let loaded = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        std::hint::spin_loop()
                    }
                });
                let loaded = write_both_ways(site, port);
                stop.store(true, Relaxed);
                loaded
            });
            ratios.push((loaded.0 / alone.0, loaded.0 / loaded.1 / (alone.0 / alone.1), alone.0, loaded.0));
        }
        let of = |which: fn(&(f64, f64, f64, f64)) -> f64| median(ratios.iter().map(which));
        let (bandwidth, by_cpu) = (of(|r| r.0), of(|r| r.1));
        let holds = bandwidth >= 0.4 && by_cpu >= 0.8;
        all &= holds;
        println!(
            "WRITEs both ways, {port}: {:.0} MB/s alone, {:.0} beside a busy loop: {bandwidth:.2} (>= 0.4), {by_cpu:.2} by \
             processor time (>= 0.8){}",
            of(|r| r.2),
            of(|r| r.3),
            if holds { "" } else { "  DOES NOT HOLD" }
        );
    }
    all
}

/// Returns the bandwidth in MB/s, and the processor time of both ends in s.
fn write_both_ways(site: &Site, port: &str) -> (f64, f64) {
    let used = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("a count");
        let time = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Duration::from_micros(time.try_into().unwrap_or(0)).as_secs_f64()
    };
    let before = used();
    let (output, _) = site.play(port, "ib_write_bw -x 1 -F -b -D 3", PERFTEST_PORT);
    let line = output.lines().skip_while(|line| !line.contains("#bytes")).nth(1).unwrap_or_default();
    let bandwidth = line.split_whitespace().nth(3).and_then(|word| word.parse().ok());
    (bandwidth.unwrap_or_else(|| panic!("ib_write_bw said: {output}")), used() - before)
}
