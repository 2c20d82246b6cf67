//! Stock programs beside compute-bound programs, compared with UDP echoes under the same load.
//!
//! Two baselines, both from `waits.c`, show the cost of the scheduler alone. One is an echo that sleeps in `recv`, for
//! programs that sleep and for operations that the responder answers by itself. The other is an echo that calls a
//! non-blocking `recv` in a loop, for programs that spin.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::site::{PORTS, Site, UCX_PORT, installed};
use super::{PERFTEST_PORT, RUNS, TCP_PORT, after, median, without_rdma};

/// Numbers of compute-bound programs on this machine's processors.
const LOADS: [usize; 3] = [2, 5, 8];
/// Maximum ratio of a round trip to that of its baseline.
const MOST: f64 = 2.0;

/// Baseline of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Floor {
    Sleeps,
    Spins,
}

/// A program: name, command, factor from the printed time to a round trip (half a round trip: 2), baseline.
const ROWS: [(&str, &str, f64, Floor); 7] = [
    ("WRITE of 64 bytes, spins on memory", "ib_write_lat -x 1 -F -n 300 -s 64", 2.0, Floor::Spins),
    ("WRITE of 5,000 bytes", "ib_write_lat -x 1 -F -n 300 -s 5000", 2.0, Floor::Spins),
    ("WRITE of 65,536 bytes", "ib_write_lat -x 1 -F -n 300 -s 65536", 2.0, Floor::Spins),
    ("SEND of 64 bytes, polls", "ib_send_lat -x 1 -F -n 300 -s 64", 2.0, Floor::Spins),
    ("SEND of 64 bytes, sleeps", "ib_send_lat -x 1 -F -e -n 300 -s 64", 2.0, Floor::Sleeps),
    ("READ of 64 bytes, asleep at both ends", "ib_read_lat -x 1 -F -e -n 300 -s 64", 1.0, Floor::Sleeps),
    ("echo in epoll", "waits -n 300 epoll", 1.0, Floor::Sleeps),
];

/// Programs that must succeed, without a comparison: name, command, TCP port. UCX must not choose shared memory,
/// because its wake-ups do not reach another network namespace.
const OTHERS: [(&str, &str, u16); 2] = [
    ("ib_read_bw", "ib_read_bw -x 1 -F -D 2", PERFTEST_PORT),
    (
        "ucx_perftest",
        "env UCX_TLS=rc_v UCX_NET_DEVICES=roxie0:1 ucx_perftest -t tag_lat -E sleep -n 300 -w 20",
        UCX_PORT,
    ),
];

/// Median and 99.9th percentile of round trips, in us.
type Times = (f64, f64);

/// Measures and prints all rows. Returns true if all are within budget. A program that fails or hangs ends the
/// benchmark.
pub(super) fn measure(site: &Site, waits: &str) -> bool {
    println!("\nbeside programs that compute, {RUNS} runs each: us, and x the floor's (<= {MOST})");
    LOADS.iter().fold(true, |holds, load| under_load(*load, || at_this_load(site, waits, *load)) & holds)
}

/// Runs `meanwhile` next to `load` compute-bound threads.
fn under_load<T>(load: usize, meanwhile: impl FnOnce() -> T) -> T {
    /// Stops the threads, even on panic: the scope would wait for them without end.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..load {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        meanwhile()
    })
}

fn at_this_load(site: &Site, waits: &str, load: usize) -> bool {
    let mut floors = Vec::new();
    let mut rows = vec![Vec::new(); ROWS.len() * PORTS.len()];
    for _ in 0..RUNS {
        let floor = |mode| echo_times(&without_rdma(site, waits, &format!("-n 300 {mode}")));
        let (sleeps, spins) = (floor("udp"), floor("udpspin"));
        floors.push((sleeps, spins));
        let each = ROWS.iter().flat_map(|row| PORTS.iter().map(move |port| (row, port)));
        for ((row, port), times) in each.zip(&mut rows) {
            if installed("ib_write_lat") || row.1.starts_with("waits") {
                let floor = if row.3 == Floor::Sleeps { sleeps } else { spins };
                times.push((one(site, port, waits, row), floor));
            }
        }
    }
    let of = |which: fn(&(Times, Times)) -> f64| median(floors.iter().map(which));
    println!("{load} programs: UDP echo asleep {:.0} us, p99.9 {:.0}", of(|f| f.0.0), of(|f| f.0.1));
    println!("{load} programs: UDP echo that spins {:.0} us, p99.9 {:.0}", of(|f| f.1.0), of(|f| f.1.1));
    let mut holds = true;
    let each = ROWS.iter().flat_map(|row| PORTS.iter().map(move |port| (row, port)));
    for ((row, port), times) in each.zip(&rows).filter(|(_, times)| !times.is_empty()) {
        let of = |which: fn(&(Times, Times)) -> f64| median(times.iter().map(which));
        let (typical, rare) = (of(|(own, floor)| own.0 / floor.0), of(|(own, floor)| own.1 / floor.1));
        holds &= typical <= MOST && rare <= MOST;
        println!(
            "{load} programs: {:<38} {port} {:>7.0} us {typical:>6.2} x, p99.9 {:>7.0} {rare:>5.2} x{}",
            row.0,
            of(|(own, _)| own.0),
            of(|(own, _)| own.1),
            if typical <= MOST && rare <= MOST { "" } else { "  DOES NOT HOLD" }
        );
    }
    for (name, command, tcp_port) in OTHERS.iter().filter(|(name, ..)| installed(name)) {
        PORTS.iter().for_each(|port| drop(site.play(port, command, *tcp_port)));
        println!("{load} programs: {name} ended well over both ports");
    }
    holds
}

/// Measures a row's round trip over a port.
fn one(site: &Site, port: &str, waits: &str, row: &(&str, &str, f64, Floor)) -> Times {
    let (_, command, halves, _) = row;
    if let Some(arguments) = command.strip_prefix("waits") {
        return echo_times(&site.play(port, &format!("{waits}{arguments}"), TCP_PORT).0);
    }
    let (output, _) = site.play(port, command, PERFTEST_PORT);
    // Columns: bytes, iterations, min, max, typical, average, deviation, 99 %, 99.9 %.
    let figures = output.lines().skip_while(|line| !line.contains("#bytes")).nth(1).unwrap_or_default();
    let figure = |at| figures.split_whitespace().nth(at)?.parse::<f64>().ok();
    let (typical, rare) = figure(4).zip(figure(8)).unwrap_or_else(|| panic!("{command} said: {output}"));
    (typical * halves, rare * halves)
}

fn echo_times(said: &str) -> Times {
    after(said, "median").zip(after(said, "p99.9")).unwrap_or_else(|| panic!("waits said: {said}"))
}
