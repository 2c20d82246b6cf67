//! Accuracy and cost of paced queue pairs.
//!
//! `cargo bench -p roxie-cli --bench pacing [-- PORT or WAY …]`. Two namespaces on a veth pair (root), two processes,
//! `tests/verbs/programs/paced.c`. Each rate is measured over each port with WRITEs of 64 KiB and SENDs of 1 KiB, by a
//! program that polls continuously and by two that block. Then follows the processor time at 10 Mb/s of a program that
//! blocks. Exit code 1: a rate is missed by more than 2 %.

#[allow(dead_code, unreachable_pub)]
#[path = "../tests/verbs/site.rs"]
mod site;

use std::process::ExitCode;

use site::{NEAR, PORTS, Site, compiled, skip};

/// TCP port by which the two ends exchange addresses.
const TCP_PORT: u16 = 19778;
/// Rates in Mb/s.
const RATES: [u32; 4] = [10, 100, 500, 1_000];
/// Operation, bytes, and number posted at once: that of perftest, but at most the data of one second at 10 Mb/s.
const MESSAGES: [(&str, u32, u32); 2] = [("write", 65_536, 16), ("send", 1_024, 128)];
const WAYS: [&str; 3] = ["spin", "event", "epoll"];
/// Maximum deviation of the ratio of achieved to requested rate from 1.
const MISSED: f64 = 0.02;

fn main() -> ExitCode {
    if skip("pacing", &["cc"]) {
        return ExitCode::SUCCESS;
    }
    let only: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str, of: &[&str]| {
        let chosen = |o: &String| of.contains(&o.as_str());
        !only.iter().any(chosen) || only.iter().any(|o| o == name)
    };
    let (_place, program) = compiled("paced", &["-O2", "-libverbs"]);
    let site = Site::new("bench-paced");
    println!("{:<5} {:<6} {:<6} {:>9} {:>8} {:>10}", "port", "way", "what", "Mb/s", "ratio", "processor");
    let mut all = true;
    for port in PORTS.into_iter().filter(|port| wanted(port, &PORTS)) {
        for way in WAYS.into_iter().filter(|way| wanted(way, &WAYS)) {
            for (what, size, depth) in MESSAGES {
                for rate in RATES {
                    let options = format!("-r {} -s {size} -d {depth} {way} {what}", rate * 1_000);
                    let (ratio, processor) =
                        measure(&site, port, &format!("{} {options}", program.display()));
                    let holds = (ratio - 1.0).abs() <= MISSED;
                    all &= holds;
                    println!(
                        "{port:<5} {way:<6} {what:<6} {rate:>9} {ratio:>8.4} {:>8.1} %{}",
                        processor * 100.0,
                        if holds { "" } else { "  DOES NOT HOLD" }
                    );
                }
            }
        }
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the ratio of achieved to requested rate, and the share of a processor that the client uses.
fn measure(site: &Site, port: &str, program: &str) -> (f64, f64) {
    let mut server = site.local(port, program);
    server.wait_until_it_listens(TCP_PORT);
    let client = site.remote(port, &format!("{program} {NEAR}")).finish();
    assert!(client.status.success(), "{program}: {client:?}");
    let words: Vec<&str> = client.output.split_whitespace().collect();
    let after = |name: &str| -> f64 {
        let at = words.iter().position(|word| *word == name);
        at.and_then(|at| words.get(at + 1)?.parse().ok()).unwrap_or_else(|| panic!("paced said: {client:?}"))
    };
    (after("ratio"), after("processor"))
}
