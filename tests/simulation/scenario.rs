//! From a seed to the parameters of a run. Each seed turns a random subset of features and faults on.

use roxie::port::fault::{Action, Fault, FaultConfig, When};
use roxie::time::Nanos;
use roxie::transport::permutation::splitmix;
use roxie::verbs::{Mtu, WrOpcode};

/// A sequence of numbers that a seed decides.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed)
    }

    pub fn next(&mut self) -> u64 {
        splitmix(&mut self.0)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// One work request to come.
#[derive(Clone, Debug)]
pub struct Op {
    pub opcode: WrOpcode,
    pub length: u32,
    /// How many entries its list has.
    pub pieces: u32,
    pub inline: bool,
    pub signaled: bool,
    pub fence: bool,
    pub solicited: bool,
    pub imm: u32,
    /// A compare-and-swap whose compare value is wrong.
    pub wrong_compare: bool,
}

/// One direction of one connection.
#[derive(Clone, Debug)]
pub struct Stream {
    pub ops: Vec<Op>,
    /// Work requests outstanding at most.
    pub depth: usize,
    /// Receives that stand ready at most.
    pub receives_ahead: usize,
    /// The receiving application dawdles once in so many steps.
    pub dawdles: u64,
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Connection {
    pub streams: [Stream; 2],
    pub psns: [u32; 2],
    pub max_rd_atomic: u8,
    pub sig_all: bool,
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub mtu: Mtu,
    pub ipv6: bool,
    pub split: Option<usize>,
    pub faults: [FaultConfig; 2],
    pub connections: Vec<Connection>,
    pub ack_coalesce: u32,
    pub window: u32,
    pub timeout: u8,
    pub min_rnr_timer: u8,
}

impl Scenario {
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        let mtu = rng.pick(&[Mtu::Mtu256, Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu4096]);
        let allowed = allowed_operations(&mut rng);
        let count = 1 + rng.below(3);
        let connections = (0..count).map(|_| connection(&mut rng, mtu, &allowed)).collect();
        Scenario {
            seed,
            mtu,
            ipv6: rng.one_in(3),
            split: rng.one_in(2).then(|| 20 + rng.below(100) as usize),
            faults: [faults(&mut rng), faults(&mut rng)],
            connections,
            ack_coalesce: rng.pick(&[4, 64, 1000]),
            window: rng.pick(&[8, 32, 128]),
            timeout: rng.pick(&[8, 10, 12]),
            min_rnr_timer: rng.pick(&[1, 5, 12]),
        }
    }

    /// True if no fault is injected: then nothing may be retried but for want of receives.
    pub fn is_calm(&self) -> bool {
        self.faults.iter().all(|f| f.rx.is_empty())
    }
}

/// What a stream is made of.
const OPERATIONS: [WrOpcode; 9] = [
    WrOpcode::Write,
    WrOpcode::WriteImm,
    WrOpcode::Send,
    WrOpcode::SendImm,
    WrOpcode::Read,
    WrOpcode::CompareSwap,
    WrOpcode::FetchAdd,
    WrOpcode::AtomicWrite,
    WrOpcode::Flush,
];

fn allowed_operations(rng: &mut Rng) -> Vec<WrOpcode> {
    let mut allowed: Vec<_> = OPERATIONS.into_iter().filter(|_| !rng.one_in(3)).collect();
    if allowed.is_empty() {
        allowed.push(WrOpcode::Send);
    }
    allowed
}

pub fn faults(rng: &mut Rng) -> FaultConfig {
    let mut rx = Vec::new();
    let mut maybe = |rng: &mut Rng, action: Action| {
        if rng.one_in(2) {
            let when = When::Rate(rng.pick(&[0.002, 0.01, 0.03]));
            rx.push(Fault { action, when });
        }
    };
    maybe(rng, Action::Drop);
    maybe(rng, Action::Duplicate);
    let after = 1 + rng.below(6) as u32;
    maybe(rng, Action::Reorder { after, within: Nanos::from_micros(500) });
    let delay = Nanos::from_micros(10 + rng.below(3_000));
    maybe(rng, Action::Delay(delay));
    maybe(rng, Action::Corrupt);
    if rng.one_in(8) {
        rx.clear();
    }
    FaultConfig { seed: rng.next(), rx, ..FaultConfig::default() }
}

fn connection(rng: &mut Rng, mtu: Mtu, allowed: &[WrOpcode]) -> Connection {
    let psn = |rng: &mut Rng| match rng.below(3) {
        // Just before the wrap.
        0 => 0xff_ffff - rng.below(40) as u32,
        // Just before the sign changes.
        1 => 0x7f_ffff - rng.below(40) as u32,
        _ => rng.below(1 << 24) as u32,
    };
    Connection {
        streams: [stream(rng, mtu, allowed), stream(rng, mtu, allowed)],
        psns: [psn(rng), psn(rng)],
        max_rd_atomic: rng.pick(&[1, 2, 4, 16]),
        sig_all: rng.one_in(4),
    }
}

fn stream(rng: &mut Rng, mtu: Mtu, allowed: &[WrOpcode]) -> Stream {
    let count = rng.below(25);
    let mut ops: Vec<Op> = (0..count).map(|_| op(rng, mtu, allowed)).collect();
    let depth = 1 + rng.below(16) as usize;
    // An application learns of room from completions: one at least in each stretch of `depth`, and the last.
    for op in ops.iter_mut().rev().step_by(depth) {
        op.signaled = true;
    }
    Stream { ops, depth, receives_ahead: 1 + rng.below(8) as usize, dawdles: rng.pick(&[3, 50, 1_000_000]) }
}

fn op(rng: &mut Rng, mtu: Mtu, allowed: &[WrOpcode]) -> Op {
    let opcode = rng.pick(allowed);
    let full = mtu.bytes() as u64;
    let edges = [0, 1, 3, 4, full - 1, full, full + 1, 2 * full, 3 * full + 2];
    let length = match rng.below(3) {
        _ if opcode.is_atomic() || opcode == WrOpcode::AtomicWrite => 8,
        _ if opcode == WrOpcode::Flush => 0,
        0 => rng.below(20 * full) + 1,
        _ => rng.pick(&edges),
    };
    let inline = length <= 64 && opcode.may_be_inline() && rng.one_in(3);
    Op {
        opcode,
        length: length as u32,
        pieces: 1 + rng.below(4) as u32,
        inline,
        signaled: !rng.one_in(3),
        fence: rng.one_in(5),
        solicited: rng.one_in(5),
        imm: rng.next() as u32,
        wrong_compare: rng.one_in(3),
    }
}
