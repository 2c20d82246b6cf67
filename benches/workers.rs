//! Two workers against one: devices joined by memory, one thread that turns both ends, or two threads that turn both ends of a worker each.
//!
//! Run by `cargo bench --bench workers`, on an idle machine of two processors at least. Rounds of both kinds take turns; the last column is
//! the median ratio. Budget: 1.6.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use roxie::host::{CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, QueuePair, Stack};
use roxie::verbs::{Access, SendWr, Wc, WcStatus, WrOpcode};

const ROUNDS: usize = 5;
const MEASURED: Duration = Duration::from_millis(700);
const DEPTH: usize = 32;
/// One request in so many is signaled.
const SIGNALED: usize = 8;
const CASES: [(WrOpcode, u32); 4] =
    [(WrOpcode::Write, 64), (WrOpcode::Write, 4096), (WrOpcode::Write, 65_536), (WrOpcode::Read, 65_536)];

/// A connection between the same worker of both devices.
struct Lane {
    worker: usize,
    devices: [Device; 2],
    qp: QueuePair,
    cq: CompletionQueue,
    source: MemoryRegion,
    target: MemoryRegion,
    _peer: (QueuePair, CompletionQueue),
}

fn lanes(workers: usize) -> Vec<Lane> {
    let stack = Stack::default();
    let devices =
        Device::memory_pair_of(workers, &DeviceConfig::caller_only(), [&stack, &stack]).expect("two devices");
    let lane = |worker| {
        let [near, far] = &devices;
        let make = |device: &Device| {
            let (pd, cq) =
                (device.alloc_pd().expect("a domain"), device.create_cq(256, None).expect("a queue"));
            let qp = pd.queue_pair(&cq).create().expect("a QP");
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            (qp, cq, pd.register(1 << 16, access).expect("memory"))
        };
        let ((qp, cq, source), (peer, peer_cq, target)) = (make(near), make(far));
        let (here, there) = (qp.endpoint(0).expect("an address"), peer.endpoint(0).expect("an address"));
        qp.connect(&here, &there, &ConnectOptions::default()).expect("connected");
        peer.connect(&there, &here, &ConnectOptions::default()).expect("connected");
        Lane { worker, devices: devices.clone(), qp, cq, source, target, _peer: (peer, peer_cq) }
    };
    (0..workers).map(lane).collect()
}

impl Lane {
    /// Keeps [`DEPTH`] requests outstanding, of which one in [`SIGNALED`] is signaled, until the time is over. Returns the requests per second.
    fn run(&self, opcode: WrOpcode, length: u32) -> f64 {
        let engines =
            self.devices.each_ref().map(|device| &device.workers().expect("its own").all()[self.worker]);
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
        done as f64 / begun.elapsed().as_secs_f64()
    }
}

/// Returns the requests per second of all lanes, each turned by a thread.
fn rate(lanes: &[Lane], opcode: WrOpcode, length: u32) -> f64 {
    let start = Barrier::new(lanes.len());
    thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .iter()
            .map(|lane| {
                scope.spawn(|| {
                    start.wait();
                    lane.run(opcode, length)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rate")).sum()
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let (one, two) = (lanes(1), lanes(2));
    println!("{:<14} {:>14} {:>14} {:>22}", "request", "1 worker /s", "2 workers /s", "ratio (budget: 1.6)");
    for (opcode, length) in CASES {
        let rounds: Vec<_> =
            (0..ROUNDS).map(|_| (rate(&one, opcode, length), rate(&two, opcode, length))).collect();
        let ratios: Vec<_> = rounds.iter().map(|(one, two)| two / one).collect();
        let (low, high) =
            ratios.iter().fold((f64::MAX, 0.0f64), |(low, high), r| (low.min(*r), high.max(*r)));
        let (ones, twos) = rounds.into_iter().unzip();
        let name = format!("{opcode:?} {length}");
        let (ones, twos, ratio) = (median(ones), median(twos), median(ratios));
        println!("{name:<14} {ones:>14.0} {twos:>14.0} {ratio:>8.2} [{low:.2} {high:.2}]");
    }
}
