//! Two workers against one: devices joined by memory, one thread that turns both ends, or two threads that turn both
//! ends of a connection each. Crossed: each connection joins different workers, so that all frames arrive at the wrong
//! one and are redirected.
//!
//! Run by `cargo bench -p benches --bench workers`, on an idle machine of two processors at least. Rounds of all kinds
//! take turns; the last columns are median ratios to one worker. Budget: 1.6, without redirection.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use roxie::host::{CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, QueuePair, Stack};
use roxie::verbs::{Access, SendWr, Wc, WcStatus, WrOpcode};

const ROUNDS: usize = 5;
const MEASURED: Duration = Duration::from_millis(700);
const DEPTH: usize = 32;
/// One request in so many is signaled.
const SIGNALED: usize = 8;
const CASES: [(WrOpcode, u32); 4] =
    [(WrOpcode::Write, 64), (WrOpcode::Write, 4096), (WrOpcode::Write, 65_536), (WrOpcode::Read, 65_536)];

/// A connection, and the workers of its two ends.
struct Lane {
    workers: [usize; 2],
    devices: [Device; 2],
    qp: QueuePair,
    cq: CompletionQueue,
    source: MemoryRegion,
    target: MemoryRegion,
    _peer: (QueuePair, CompletionQueue),
}

/// Makes a connection from each worker. `crossed`: to the next worker; its frames arrive at this one's link, and are
/// redirected.
fn lanes(workers: usize, crossed: bool) -> Vec<Lane> {
    let stack = Stack::default();
    let devices =
        Device::memory_pair_of(workers, &DeviceConfig::caller_only(), [&stack, &stack]).expect("two devices");
    let make = |device: &Device| {
        let (pd, cq) = (device.alloc_pd().expect("a domain"), device.create_cq(256, None).expect("a queue"));
        let qp = pd.queue_pair(&cq).create().expect("a QP");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        (qp, cq, pd.register(1 << 16, access).expect("memory"))
    };
    // QPs go to the workers in turn.
    let [local, mut remote] =
        devices.each_ref().map(|device| (0..workers).map(|_| make(device)).collect::<Vec<_>>());
    remote.rotate_left(crossed.into());
    let lane = |(worker, ((qp, cq, source), (peer, peer_cq, target)))| {
        let (qp, peer): (QueuePair, QueuePair) = (qp, peer);
        let (here, there) = (qp.endpoint(0).expect("an address"), peer.endpoint(0).expect("an address"));
        qp.connect(&here, &there, &ConnectOptions::default()).expect("connected");
        peer.connect(&there, &here, &ConnectOptions::default()).expect("connected");
        let workers = [worker, (worker + usize::from(crossed)) % workers];
        Lane { workers, devices: devices.clone(), qp, cq, source, target, _peer: (peer, peer_cq) }
    };
    local.into_iter().zip(remote).enumerate().map(lane).collect()
}

impl Lane {
    /// Keeps [`DEPTH`] requests outstanding, of which one in [`SIGNALED`] is signaled, until the time is over. Returns
    /// the requests per second. `running`: the number of lanes that are not done. Their frames may need this thread's
    /// workers.
    fn run(&self, opcode: WrOpcode, length: u32, running: &AtomicUsize) -> f64 {
        let engine = |end: usize| &self.devices[end].workers().expect("its own").all()[self.workers[end]];
        let engines = [engine(0), engine(1)];
        let (mut posted, mut done) = (0usize, 0usize);
        let begun = Instant::now();
        // At the end nothing is outstanding: the next round counts its own.
        while begun.elapsed() < MEASURED || done < posted {
            while posted - done < DEPTH && (begun.elapsed() < MEASURED || posted % SIGNALED != 0) {
                let base = match opcode {
                    WrOpcode::Read => SendWr::read(self.target.address(), self.target.rkey()),
                    _ => SendWr::write(self.target.address(), self.target.rkey()),
                };
                posted += 1;
                let wr = if posted % SIGNALED == 0 { base.signaled() } else { base };
                self.qp.post_send(&wr, &[self.source.sge(0, length)]).expect("room");
            }
            for engine in &engines {
                engine.caller_pass();
            }
            // Runs no pass: one of `poll_one` would be of all workers.
            let mut ready = [Wc::default(); DEPTH];
            let count = self.cq.poll_ready(&mut ready);
            for wc in &ready[..count] {
                assert_eq!(wc.status, WcStatus::Success);
                done += SIGNALED;
            }
        }
        let rate = done as f64 / begun.elapsed().as_secs_f64();
        running.fetch_sub(1, Relaxed);
        while running.load(Relaxed) > 0 {
            for engine in &engines {
                engine.caller_pass();
            }
        }
        rate
    }
}

/// Returns the requests per second of all lanes, each turned by a thread.
fn rate(lanes: &[Lane], opcode: WrOpcode, length: u32) -> f64 {
    let (start, running) = (Barrier::new(lanes.len()), AtomicUsize::new(lanes.len()));
    thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .iter()
            .map(|lane| {
                scope.spawn(|| {
                    // Threads that yield to each other stay on one processor, if nothing moves them.
                    let mut own = CpuSet::new();
                    own.set(lane.workers[0]).expect("a processor");
                    sched_setaffinity(Pid::from_raw(0), &own).expect("its processor");
                    start.wait();
                    lane.run(opcode, length, &running)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rate")).sum()
    })
}

/// Returns how many redirected frames the devices of lanes have dropped, because too many were under way.
fn dropped(lanes: &[Lane]) -> u64 {
    let counters = lanes[0].devices.iter().flat_map(Device::counters);
    counters.filter(|(name, _)| *name == "rx_redirect_dropped").map(|(_, count)| count).sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the median, the smallest and the largest ratio of some rounds' rates.
fn ratios(rounds: &[[f64; 3]], of: usize) -> String {
    let mut all: Vec<_> = rounds.iter().map(|rates| rates[of] / rates[0]).collect();
    all.sort_by(f64::total_cmp);
    format!("{:.2} [{:.2} {:.2}]", median(all.clone()), all[0], all[all.len() - 1])
}

fn main() {
    let (one, two, crossed) = (lanes(1, false), lanes(2, false), lanes(2, true));
    println!(
        "{:<12} {:>12} {:>12} {:>12} {:>19} {:>19} {:>8}",
        "request", "1 worker /s", "2 workers", "all crossed", "2 (budget: 1.6)", "crossed", "dropped"
    );
    for (opcode, length) in CASES {
        let round = |_| [&one, &two, &crossed].map(|lanes| rate(lanes, opcode, length));
        let before = dropped(&crossed);
        let rounds: Vec<_> = (0..ROUNDS).map(round).collect();
        let rates = [0, 1, 2].map(|of| median(rounds.iter().map(|rates| rates[of]).collect()));
        let name = format!("{opcode:?} {length}");
        println!(
            "{name:<12} {:>12.0} {:>12.0} {:>12.0} {:>19} {:>19} {:>8}",
            rates[0],
            rates[1],
            rates[2],
            ratios(&rounds, 1),
            ratios(&rounds, 2),
            dropped(&crossed) - before
        );
    }
}
