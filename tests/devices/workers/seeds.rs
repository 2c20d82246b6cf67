//! Devices with several workers in virtual time. A seed determines the number of workers, the faults of the links, the
//! requests, and the order of the workers' passes. QPs are connected across workers, so that most frames are
//! redirected.
//!
//! `SEEDS=n` runs n seeds, `FIRST=k` begins at seed k. A failure prints its seed.

use std::collections::VecDeque;

use roxie::host::{
    CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QueuePair,
    SharedReceiveQueue, Stack,
};
use roxie::limits::Limits;
use roxie::port::fault::FaultConfig;
use roxie::random::splitmix;
use roxie::time::{Nanos, set_virtual_time};
use roxie::verbs::{Access, SendWr, Wc, WcOpcode, WcStatus};

/// Requests that a QP may have outstanding, and receives for each QP.
const SLOTS: usize = 4;
/// Bytes of a slot: four packets.
const SLOT: usize = 4000;
/// Requests of a run.
const REQUESTS: usize = 300;
/// Passes without which a run has come to an end; a run takes some ten thousand.
const MOST_PASSES: usize = 2_000_000;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        (splitmix(&mut self.0) % bound as u64) as usize
    }
}

/// Where bytes of an end lie: each zone has a slot for each of its QPs' requests or receives.
#[derive(Clone, Copy)]
enum Zone {
    /// Bytes that the end sends, and results of its READs and atomics.
    Own,
    /// Bytes that peers write.
    Written,
    /// Bytes that peers read.
    Read,
    /// Receives.
    Received,
}

/// A request and what it must have done when it completes.
#[derive(Debug)]
struct Posted {
    opcode: WcOpcode,
    slot: usize,
    length: usize,
    number: u64,
}

/// The requests of one QP to its peer.
#[derive(Default)]
struct Flow {
    peer: usize,
    count: u64,
    outstanding: VecDeque<Posted>,
    /// Length and number of each message that the peer has not received.
    messages: VecDeque<(usize, u64)>,
}

struct End {
    qps: Vec<QueuePair>,
    flows: Vec<Flow>,
    srq: Option<SharedReceiveQueue>,
    memory: MemoryRegion,
    cq: CompletionQueue,
    _pd: ProtectionDomain,
    device: Device,
}

impl End {
    fn new(device: &Device, qps: usize, is_shared: bool) -> End {
        let pd = device.alloc_pd().expect("room");
        let cq = device.create_cq(4096, None).expect("room");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let memory = pd.register(4 * qps * SLOTS * SLOT + 8, access).expect("room");
        let srq = is_shared.then(|| pd.create_srq((qps * SLOTS) as u32, 1).expect("room"));
        let make = |_| {
            let builder = pd.queue_pair(&cq).signal_all();
            srq.iter().fold(builder, |builder, srq| builder.srq(srq)).create().expect("room")
        };
        let qps: Vec<_> = (0..qps).map(make).collect();
        let flows = qps.iter().map(|_| Flow::default()).collect();
        End { qps, flows, srq, memory, cq, _pd: pd, device: device.clone() }
    }

    /// Returns the offset of a slot, of all QPs' slots.
    fn at(&self, zone: Zone, slot: usize) -> usize {
        (zone as usize * self.qps.len() * SLOTS + slot) * SLOT
    }

    fn bytes(&self, zone: Zone, slot: usize, length: usize) -> Vec<u8> {
        self.memory.to_vec(self.at(zone, slot), length).expect("within the region")
    }

    fn post_receive(&self, qp: usize, slot: usize) {
        let sge = [self.memory.sge(self.at(Zone::Received, slot), SLOT as u32)];
        let posted = match &self.srq {
            Some(srq) => srq.post_recv(slot as u64, &sge),
            None => self.qps[qp].post_recv(slot as u64, &sge),
        };
        posted.expect("room");
    }
}

fn pattern(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (number.wrapping_mul(0x9e37_79b9) >> (i % 23)) as u8 ^ i as u8).collect()
}

/// Numbers the bytes that peers read from a slot.
fn number_of(side: usize, slot: usize) -> u64 {
    (1 << 40) + ((side as u64) << 32) + slot as u64
}

/// Two devices, and what their programs have done.
struct World {
    random: Random,
    ends: [End; 2],
    now: Nanos,
    posted: usize,
    adds: Vec<u64>,
    /// All completions in their order, condensed.
    digest: u64,
}

impl World {
    fn new(seed: u64) -> World {
        set_virtual_time(Some(Nanos::ZERO));
        let mut random = Random(seed);
        let workers = [2, 3, 4, 16][random.below(4)];
        let qps = workers + random.below(8);
        let drop = random.below(3);
        let fault: FaultConfig =
            format!("drop=0.0{drop},duplicate=0.01,reorder=0.0{drop},seed={seed}").parse().expect("faults");
        let stack = Stack { fault: Some(fault), ..Stack::default() };
        let config =
            DeviceConfig { limits: Limits::small(), seed: Some(seed), ..DeviceConfig::caller_only() };
        let devices = Device::memory_pair_of(workers, &config, [&stack, &stack]).expect("two devices");
        let shares = [random.below(2) == 0, random.below(2) == 0];
        let [local, remote] = devices;
        let mut ends = [End::new(&local, qps, shares[0]), End::new(&remote, qps, shares[1])];
        let mut peers: Vec<usize> = (0..qps).collect();
        for at in (1..qps).rev() {
            peers.swap(at, random.below(at + 1));
        }
        // 1 us to 33 ms: some time out early, none fails.
        let options = ConnectOptions { timeout: 12, min_rnr_timer: 1, ..ConnectOptions::default() };
        for (qp, peer) in peers.into_iter().enumerate() {
            let (here, there) = (&ends[0].qps[qp], &ends[1].qps[peer]);
            let [a, b] = [here, there].map(|qp| qp.endpoint(0).expect("an address"));
            here.connect(&a, &b, &options).expect("connected");
            there.connect(&b, &a, &options).expect("connected");
            (ends[0].flows[qp].peer, ends[1].flows[peer].peer) = (peer, qp);
        }
        for (side, end) in ends.iter().enumerate() {
            for slot in 0..qps * SLOTS {
                end.post_receive(slot / SLOTS, slot);
                let bytes = pattern(number_of(side, slot), SLOT);
                end.memory.write_at(end.at(Zone::Read, slot), &bytes).expect("within the region");
            }
        }
        World { random, ends, now: Nanos::ZERO, posted: 0, adds: Vec::new(), digest: seed }
    }

    fn run(&mut self) {
        while self.posted < REQUESTS {
            match self.random.below(8) {
                0..4 => drop(self.pass()),
                4 | 5 => self.post(),
                6 => self.complete(),
                _ => {
                    self.now = self.now + Nanos(self.random.below(20_000) as u64);
                    set_virtual_time(Some(self.now));
                }
            }
        }
        let mut idle = 0;
        for _ in 0..MOST_PASSES {
            self.complete();
            if self.ends.iter().flat_map(|end| &end.flows).all(|flow| flow.outstanding.is_empty()) {
                return;
            }
            idle = if self.pass() { idle + 1 } else { 0 };
            // Each worker has had its turns, by all odds.
            if idle > 400 {
                let due = self.workers_of_all(|worker| worker.needed_by());
                let next = due.into_iter().min().expect("workers");
                assert!(next < Nanos::MAX, "requests are outstanding, and no worker has anything to do");
                self.now = self.now.max(next);
                set_virtual_time(Some(self.now));
                idle = 0;
            }
        }
        panic!("the run does not come to its end");
    }

    fn workers_of_all<T: Send + 'static>(&self, look: fn(&roxie::engine::Worker) -> T) -> Vec<T> {
        let engines = self.ends.iter().flat_map(|end| end.device.workers().expect("its own").all());
        engines.map(|engine| engine.inspect(look)).collect()
    }

    /// Runs a pass of a worker. Returns true if it did nothing.
    fn pass(&mut self) -> bool {
        let engines = self.ends[self.random.below(2)].device.workers().expect("its own").all();
        let engine = &engines[self.random.below(engines.len())];
        let now = self.now;
        engine.adjust(move |worker| worker.poll(now)).expect("no pass panics").is_idle()
    }

    fn post(&mut self) {
        let side = self.random.below(2);
        let qp = self.random.below(self.ends[side].qps.len());
        let (kind, length) = (self.random.below(4), 1 + self.random.below(SLOT - 1));
        let [local, other_device] = &mut self.ends;
        let (end, peer) = if side == 0 { (local, other_device) } else { (other_device, local) };
        let flow = &mut end.flows[qp];
        if flow.outstanding.len() == SLOTS {
            return;
        }
        let number = ((side as u64) << 56) + ((qp as u64) << 40) + flow.count;
        let index = (flow.count % SLOTS as u64) as usize;
        let (slot, target) = (qp * SLOTS + index, flow.peer * SLOTS + index);
        flow.count += 1;
        let remote = |zone| (peer.memory.address() + peer.at(zone, target) as u64, peer.memory.rkey());
        let (opcode, wr, length) = match kind {
            0 => (WcOpcode::Send, SendWr::send(), length),
            1 => {
                let (address, key) = remote(Zone::Written);
                (WcOpcode::Write, SendWr::write(address, key), length)
            }
            2 => {
                let (address, key) = remote(Zone::Read);
                (WcOpcode::Read, SendWr::read(address, key), length)
            }
            _ => {
                // One counter for all: the last word of the second end's region, or of the first's for the second.
                let last = (peer.memory.len() - 8) as u64;
                (
                    WcOpcode::FetchAdd,
                    SendWr::fetch_add(peer.memory.address() + last, peer.memory.rkey(), 1),
                    8,
                )
            }
        };
        if opcode == WcOpcode::Send {
            flow.messages.push_back((length, number));
        }
        flow.outstanding.push_back(Posted { opcode, slot, length, number });
        let at = end.at(Zone::Own, slot);
        end.memory.write_at(at, &pattern(number, length)).expect("within the region");
        end.qps[qp].post_send(&wr, &[end.memory.sge(at, length as u32)]).expect("room");
        self.posted += 1;
    }

    /// Takes all completions, and compares what they report with what was posted.
    fn complete(&mut self) {
        for side in 0..2 {
            let mut completions = [Wc::default(); 64];
            let count = self.ends[side].cq.poll_ready(&mut completions);
            for wc in &completions[..count] {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                let qp = self.ends[side].qps.iter().position(|qp| qp.qpn() == wc.qpn).expect("its QP");
                for part in
                    [side as u64, u64::from(wc.qpn.value()), wc.wr_id, wc.opcode as u64, wc.byte_len.into()]
                {
                    self.digest = (self.digest ^ part).wrapping_mul(0x0100_0000_01b3);
                }
                if wc.opcode == WcOpcode::Recv {
                    self.received(side, qp, wc)
                } else {
                    self.sent(side, qp, wc)
                }
            }
        }
    }

    fn sent(&mut self, side: usize, qp: usize, wc: &Wc) {
        let posted = self.ends[side].flows[qp].outstanding.pop_front().expect("a request");
        assert_eq!(wc.opcode, posted.opcode, "in the order of the requests");
        let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
        let target = end.flows[qp].peer * SLOTS + posted.slot % SLOTS;
        let Posted { slot, length, number, .. } = posted;
        match posted.opcode {
            WcOpcode::Write => {
                assert!(
                    peer.bytes(Zone::Written, target, length) == pattern(number, length),
                    "WRITE {posted:?}"
                );
            }
            WcOpcode::Read => {
                let expected = pattern(number_of(1 - side, target), length);
                assert!(end.bytes(Zone::Own, slot, length) == expected, "READ {posted:?}");
            }
            WcOpcode::FetchAdd => {
                let before = u64::from_ne_bytes(end.bytes(Zone::Own, slot, 8).try_into().expect("8 bytes"));
                self.adds.push(((side as u64) << 32) + before);
            }
            _ => {}
        }
    }

    fn received(&mut self, side: usize, qp: usize, wc: &Wc) {
        let peer = self.ends[side].flows[qp].peer;
        let (length, number) = self.ends[1 - side].flows[peer].messages.pop_front().expect("a message");
        assert_eq!(wc.byte_len as usize, length, "in the order of the messages");
        let slot = wc.wr_id as usize;
        let end = &self.ends[side];
        assert!(end.bytes(Zone::Received, slot, length) == pattern(number, length), "SEND {number:#x}");
        end.memory.write_at(end.at(Zone::Received, slot), &[0; SLOT]).expect("within the region");
        end.post_receive(qp, slot);
    }

    /// Checks what is left, and returns the frames that were redirected.
    fn end(mut self) -> u64 {
        let inconsistent = self.workers_of_all(|worker| worker.nic().inconsistency());
        assert!(inconsistent.iter().all(Option::is_none), "{inconsistent:?}");
        // Each atomic of a side found another value: the counter was executed once for each.
        self.adds.sort_unstable();
        for side in 0..2 {
            let of_side = self.adds.iter().filter(|value| (*value >> 32) as usize == side);
            let completions: Vec<_> = of_side.map(|value| value & 0xffff_ffff).collect();
            assert!((0..completions.len() as u64).eq(completions.iter().copied()), "{completions:?}");
        }
        let count = |name| self.ends.iter().map(|end| end.device.counter(name)).sum::<u64>();
        assert_eq!(count("rx_unknown_qp"), 0);
        let redirected = count("rx_redirected");
        let devices = self.ends.map(|end| end.device.clone());
        for engine in devices.iter().flat_map(|device| device.workers().expect("its own").all()) {
            let objects = engine.inspect(|worker| worker.nic().objects());
            assert_eq!(
                (objects.qps, objects.cqs, objects.srqs, objects.memory, objects.pds),
                (0, 0, 0, 0, 0)
            );
        }
        redirected
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        set_virtual_time(None);
    }
}

/// Lets the thread's clocks run again at the end of a test.
struct RealTime;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn seeds_keep_bytes_and_order() {
    let _real = RealTime;
    let (first, seeds) = (number("FIRST", 1), number("SEEDS", 200));
    let mut redirected = 0;
    for seed in first..first + seeds {
        println!("seed {seed}");
        let mut world = World::new(seed);
        world.run();
        redirected += world.end();
    }
    assert!(redirected > 100 * seeds, "{redirected} redirected frames");
}

#[test]
fn seed_repeats_a_run() {
    let _real = RealTime;
    let digest = |seed| {
        let mut world = World::new(seed);
        world.run();
        (world.digest, world.now)
    };
    assert_eq!(digest(7), digest(7));
    assert_ne!(digest(7), digest(8));
}
