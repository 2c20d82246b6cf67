//! One direction of a channel: the work requests of the sending application, and the oracles for their effects.

use std::collections::VecDeque;

use roxie::shared::HostMemory;
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, AhId, Qpn, RKey, SendFlags, SendWr, Sge, UdAddress, Wc, WcOpcode, WcStatus, WrOpcode,
};
use roxie_sim::fabric::Hosts;
use roxie_sim::{Host, HostQp, HostRegion};

use crate::grant::{Access as Granted, Granter};
use crate::law::Law;
use crate::oracle::{GUARD, Layout, assert_bytes, assert_in_part, pattern};
use crate::receiver::Receiver;
use crate::script::{Channel, Op, Part, Script, Service, SrqPlace, Way};
use crate::srq::Shared;

/// The longest inline payload.
pub const INLINE: u32 = 64;
/// The key of all datagram QPs.
pub const QKEY: u32 = 0x0bad_cafe;
/// Bit of a `wr_id` that marks work requests that are no [`Op`].
pub const LOCAL: u64 = 1 << 62;

/// Progress of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Waiting,
    Posted,
    Done,
    Failed,
    /// Its QP was destroyed or reset before it completed.
    Unknown,
}

/// Memory of an application, and its registration.
#[derive(Debug)]
pub struct Patch {
    pub memory: HostMemory,
    access: Access,
    /// The last registration.
    pub region: HostRegion,
    pub open: bool,
}

impl Patch {
    pub fn new(host: &mut Host, length: u64, access: Access) -> Patch {
        let region = host.register(length as usize, access);
        region.memory.write(0, &vec![GUARD; length as usize]).expect("within the region");
        Patch { memory: region.memory.clone(), access, region, open: true }
    }

    /// Registers the memory again, if it is not registered.
    pub fn reopen(&mut self, host: &mut Host) {
        if !self.open {
            self.region = host.register_memory(self.memory.clone(), self.access);
            self.open = true;
        }
    }
}

/// An outstanding work request.
#[derive(Clone, Copy, Debug)]
struct Posted {
    wr_id: u64,
    signaled: bool,
}

/// State of a sending end, as its application knows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// The send queue has failed.
    pub failed: bool,
    /// Number of the oldest outstanding requests that are flushed although the send queue works again: its application
    /// resumed it first.
    pub flushing: usize,
    /// The QP entered the error state for a reason that no completion need report.
    pub fatal: bool,
    /// The other end has failed or does not exist.
    pub peer_failed: bool,
}

/// One direction of a channel.
#[derive(Debug)]
pub struct Flow {
    pub way: Way,
    pub service: Service,
    pub ops: Vec<Op>,
    pub fates: Vec<Fate>,
    due: Vec<Nanos>,
    signaled: Vec<bool>,
    depth: usize,
    sig_all: bool,
    pub source: Patch,
    pub landing: Patch,
    pub target: Patch,
    pub layout: Layout,
    pub receivers: Vec<Receiver>,
    /// Index of the next operation to post.
    pub posted: usize,
    outstanding: VecDeque<Posted>,
    /// Index of the first operation of this life.
    first: usize,
    /// Address handle for datagrams.
    pub handle: Option<AhId>,
    pub remote_qpn: Qpn,
    pub granted: Granted,
    pub granter: Granter,
    /// Messages of this life with a success reported to the sender.
    promised: usize,
}

impl Flow {
    /// `from`, `to`: the hosts of the sender and of the receivers; `srqs`: the shared receive queues of the script.
    pub fn new(
        script: &Script,
        way: Way,
        hosts: &mut Hosts,
        from: usize,
        to: &[usize],
        srqs: &[Shared],
    ) -> Flow {
        let spec = &script.channels[way.channel];
        let served = |op: &Op| service_has(spec.service, op.opcode);
        let (due, ops): (Vec<Nanos>, Vec<Op>) =
            script.ops(way).filter(|(_, op)| served(op)).map(|(at, op)| (at, op.clone())).unzip();
        let signaled = (0..ops.len())
            .map(|i| !ops[i].unsignaled || i + 1 == ops.len() || (i + 1).is_multiple_of(spec.depth))
            .collect();
        let layout = Layout::new(ops.iter().map(|op| op.length.into()));
        let remote = Access::READ_WRITE | Access::FLUSH_GLOBAL | Access::MW_BIND;
        let shared = |host: usize| {
            let on_host = |srq: &usize| {
                let place = SrqPlace { srq: *srq, host };
                srqs.iter().find(|srq| srq.borrow().place == place).cloned()
            };
            spec.srqs.iter().filter_map(on_host).collect()
        };
        let receivers =
            to.iter().map(|host| Receiver::new(spec, way, *host, &ops, hosts, shared(*host))).collect();
        let mut flow = Flow {
            way,
            service: spec.service,
            fates: vec![Fate::Waiting; ops.len()],
            due,
            signaled,
            depth: spec.depth,
            sig_all: spec.sig_all,
            source: Patch::new(&mut hosts[from], layout.total, Access::empty()),
            landing: Patch::new(&mut hosts[from], layout.total, Access::LOCAL_WRITE),
            target: Patch::new(&mut hosts[to[0]], layout.total, remote),
            receivers,
            layout,
            ops,
            posted: 0,
            outstanding: VecDeque::new(),
            first: 0,
            handle: None,
            remote_qpn: Qpn::new(0),
            granted: Granted::default(),
            granter: Granter::default(),
            promised: 0,
        };
        flow.fill();
        flow
    }

    pub fn number(&self) -> u64 {
        self.way.channel as u64 * 2 + u64::from(self.way.back)
    }

    pub fn pattern(&self, i: usize) -> Vec<u8> {
        pattern(self.number(), i, self.ops[i].length as usize)
    }

    fn fill(&mut self) {
        for (i, op) in self.ops.iter().enumerate() {
            let at = self.layout.offsets[i];
            let (patch, bytes) = match op.opcode {
                WrOpcode::Read => (&self.target, self.pattern(i)),
                WrOpcode::CompareSwap | WrOpcode::FetchAdd => (&self.target, vec![0; 8]),
                _ => (&self.source, self.pattern(i)),
            };
            patch.memory.write(at, &bytes).expect("within the region");
        }
    }

    pub fn patch_mut(&mut self, part: Part) -> &mut Patch {
        match part {
            Part::Source => &mut self.source,
            Part::Landing => &mut self.landing,
            Part::Target => &mut self.target,
            Part::Inbox => &mut self.receivers[0].inbox,
        }
    }

    /// Begins a new life. The fate of outstanding requests becomes unknown.
    pub fn begin_life(&mut self) {
        self.abandon();
        self.first = self.posted;
        self.promised = 0;
        for receiver in &mut self.receivers {
            receiver.begin_life(self.posted, &self.ops);
        }
    }

    /// Marks outstanding requests as unknown, because the sending QP was destroyed or reset.
    pub fn abandon(&mut self) {
        for posted in self.outstanding.drain(..).filter(|posted| posted.wr_id & LOCAL == 0) {
            self.fates[posted.wr_id as usize] = Fate::Unknown;
        }
    }

    pub fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    pub fn all_posted(&self) -> bool {
        self.posted == self.ops.len()
    }

    /// Offset of the word that atomics of this opcode operate on: the slice of the first such operation.
    fn word(&self, opcode: WrOpcode) -> u64 {
        let first = self.ops.iter().position(|op| op.opcode == opcode).expect("there is one");
        self.layout.offsets[first]
    }

    /// The value that an atomic finds if all earlier ones have been executed.
    fn finds(&self, i: usize) -> u64 {
        let opcode = self.ops[i].opcode;
        let counts = |op: &&Op| op.opcode == opcode && (opcode == WrOpcode::FetchAdd || !op.odd);
        self.ops[..i].iter().filter(counts).count() as u64
    }

    fn work_request(&self, i: usize) -> SendWr {
        let op = &self.ops[i];
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.signaled[i]);
        flags.set(SendFlags::FENCE, op.fence || op.opcode == WrOpcode::SendInvalidate);
        flags.set(SendFlags::SOLICITED, op.solicited);
        let offset = if op.opcode.is_atomic() { self.word(op.opcode) } else { self.layout.offsets[i] };
        let key = self.granted.key().filter(|_| op.granted).unwrap_or(self.target.region.key);
        let queues = &self.receivers[0].srqs;
        let queue = (self.service == Service::Xrc).then(|| queues[op.queue % queues.len()].borrow().number());
        let mut wr = SendWr {
            // A destroyed queue: the default number, which no queue has.
            remote_srqn: queue.flatten().unwrap_or_default(),
            wr_id: i as u64,
            opcode: op.opcode,
            flags,
            imm: op.imm,
            remote_addr: self.target.region.address + offset,
            rkey: RKey(key),
            compare_add: 1,
            ud: UdAddress {
                ah: self.handle.unwrap_or_default(),
                remote_qpn: self.remote_qpn,
                remote_qkey: QKEY ^ u32::from(op.odd),
            },
            ..SendWr::default()
        };
        match op.opcode {
            WrOpcode::Flush => {
                wr.imm = 1 | u32::from(op.odd) << 4;
                wr.compare_add = 8;
            }
            WrOpcode::CompareSwap => {
                let finds = self.finds(i);
                wr.compare_add = if op.odd { finds + 1000 } else { finds };
                wr.swap = finds + 1;
            }
            WrOpcode::SendInvalidate => match self.granted.key_to_invalidate() {
                Some(key) => wr.rkey = RKey(key),
                None => wr.opcode = WrOpcode::Send,
            },
            _ => {}
        }
        wr
    }

    fn sges(&self, i: usize) -> Vec<Sge> {
        let op = &self.ops[i];
        let patch = if op.opcode.returns_data() { &self.landing } else { &self.source };
        split(&patch.region, self.layout.offsets[i], op.length, op.pieces)
    }

    /// Posts the operations that are due, while there is room.
    pub fn post(&mut self, now: Nanos, host: &Host, qp: &HostQp) {
        while self.posted < self.ops.len()
            && self.due[self.posted] <= now
            && self.outstanding.len() < self.depth
        {
            let i = self.posted;
            let wr = self.work_request(i);
            let bytes;
            let sges;
            let payload = if self.ops[i].inline {
                bytes = self.pattern(i);
                Payload::Inline(&bytes)
            } else {
                sges = self.sges(i);
                Payload::Sges(&sges)
            };
            if host.post_send(qp, &wr, payload).is_err() {
                break;
            }
            let invalidates = wr.opcode == WrOpcode::SendInvalidate;
            self.granted.note_use(i, self.ops[i].granted, invalidates);
            self.fates[i] = Fate::Posted;
            self.outstanding
                .push_back(Posted { wr_id: wr.wr_id, signaled: self.signaled[i] || self.sig_all });
            self.posted += 1;
        }
    }

    /// Posts a work request that sends no packet. Returns false if the queue is full.
    pub fn post_local(&mut self, host: &Host, qp: &HostQp, wr: &SendWr) -> bool {
        debug_assert!(wr.wr_id & LOCAL != 0);
        let posted = host.post_send(qp, wr, Payload::Sges(&[])).is_ok();
        if posted {
            self.outstanding.push_back(Posted { wr_id: wr.wr_id, signaled: true });
        }
        posted
    }

    /// Checks the completion of a send, and returns the new state of the end.
    pub fn sent(&mut self, wc: &Wc, state: Standing, law: &Law) -> Standing {
        let what = format!("{}: {wc:?}", self.way);
        let mut state = state;
        let flushing = state.flushing > 0;
        state.flushing = state.flushing.saturating_sub(1);
        let failed = state.failed || flushing;
        loop {
            let Some(posted) = self.outstanding.pop_front() else { panic!("{what}: a completion too many") };
            if posted.wr_id == wc.wr_id {
                break;
            }
            assert!(!posted.signaled && !failed, "{what}: {:#x} is due", posted.wr_id);
            self.done(posted.wr_id as usize);
        }
        if wc.status == WcStatus::Success {
            assert!(!failed, "{what}: success behind a failure");
            self.check_sent(wc, &what);
            return state;
        }
        state.failed |= !flushing;
        let explained = if !failed {
            let flushed = wc.status == WcStatus::WrFlush && state.fatal;
            flushed || law.send_may_fail(self.way, wc.status, state.peer_failed)
        } else {
            wc.status == WcStatus::WrFlush
        };
        assert!(explained, "{what}: nothing explains this failure");
        if wc.wr_id & LOCAL == 0 {
            self.fates[wc.wr_id as usize] = Fate::Failed;
        }
        state
    }

    fn done(&mut self, i: usize) {
        self.fates[i] = Fate::Done;
        self.promised += usize::from(self.ops[i].opcode.consumes_receive());
    }

    fn check_sent(&mut self, wc: &Wc, what: &str) {
        if wc.wr_id & LOCAL != 0 {
            return;
        }
        let i = wc.wr_id as usize;
        self.done(i);
        let op = &self.ops[i];
        let opcode = match op.opcode {
            WrOpcode::Write | WrOpcode::WriteImm => WcOpcode::Write,
            WrOpcode::Read => WcOpcode::Read,
            WrOpcode::CompareSwap => WcOpcode::CompareSwap,
            WrOpcode::FetchAdd => WcOpcode::FetchAdd,
            WrOpcode::AtomicWrite => WcOpcode::AtomicWrite,
            WrOpcode::Flush => WcOpcode::Flush,
            _ => WcOpcode::Send,
        };
        assert!(wc.opcode == opcode, "{what}: not {opcode:?}");
        if op.opcode == WrOpcode::Read {
            assert_bytes(&self.landing.memory, self.layout.offsets[i], &self.pattern(i), what);
        }
        if op.opcode.is_atomic() {
            self.check_atomic(i, what);
        }
    }

    /// Checks that atomics were executed once, in order. The value is exact unless the fate of an earlier atomic is
    /// unknown.
    fn check_atomic(&self, i: usize, what: &str) {
        let mut bytes = [0; 8];
        self.landing.memory.read(self.layout.offsets[i], &mut bytes).expect("within the region");
        let bytes = u64::from_ne_bytes(bytes);
        let opcode = self.ops[i].opcode;
        let expected = self.finds(i);
        let before = (0..i).filter(|n| self.ops[*n].opcode == opcode);
        let known = before.clone().all(|n| self.fates[n] == Fate::Done);
        if known {
            assert!(bytes == expected, "{what}: finds {bytes}, not {expected}");
            return;
        }
        assert!(bytes <= expected, "{what}: finds {bytes}, and {expected} at most can have run");
        if opcode == WrOpcode::FetchAdd {
            let least = before.filter(|n| self.fates[*n] == Fate::Done).count() as u64;
            assert!(bytes >= least, "{what}: finds {bytes}, and {least} at least have run");
        }
    }

    /// Number of requests that have not completed.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Checks that every message with a reported success has arrived. The receiver must have polled all its
    /// completions.
    pub fn check_promises(&self) {
        if !self.service.is_reliable() {
            return;
        }
        let received = self.receivers[0].messages_of_life();
        assert!(
            received >= self.promised,
            "{}: {} messages were acknowledged, {received} have come",
            self.way,
            self.promised
        );
    }

    /// Checks after the run that every byte is where it belongs, and that no other byte was written.
    pub fn check_memory(&self) {
        let what = |i: usize| format!("{:?} {i} of {}", self.ops[i].opcode, self.way);
        for (i, op) in self.ops.iter().enumerate() {
            let (at, bytes) = (self.layout.offsets[i], self.pattern(i));
            let reliable = self.service.is_reliable();
            match op.opcode {
                WrOpcode::Write | WrOpcode::WriteImm | WrOpcode::AtomicWrite => {
                    let done = self.fates[i] == Fate::Done && reliable;
                    let check = if done { assert_bytes } else { assert_in_part };
                    check(&self.target.memory, at, &bytes, &what(i));
                }
                WrOpcode::Read => {
                    let done = self.fates[i] == Fate::Done;
                    let check = if done { assert_bytes } else { assert_in_part };
                    check(&self.landing.memory, at, &bytes, &what(i));
                }
                _ => {}
            }
        }
        for opcode in [WrOpcode::CompareSwap, WrOpcode::FetchAdd] {
            self.check_word(opcode);
        }
        let lengths = |touched: fn(&Op) -> bool| {
            self.ops.iter().map(move |op| if touched(op) { u64::from(op.length) } else { 0 })
        };
        self.layout.assert_guards(
            &self.landing.memory,
            lengths(|op| op.opcode.returns_data()),
            &format!("{} landing", self.way),
        );
        let touched: fn(&Op) -> bool = |op| {
            let send = op.opcode.consumes_receive() && op.opcode != WrOpcode::WriteImm;
            !send && op.opcode != WrOpcode::Flush
        };
        self.layout.assert_guards(&self.target.memory, lengths(touched), &format!("{} target", self.way));
    }

    /// Checks that the word of an atomic lies between the number of operations known to be executed and the number
    /// posted.
    fn check_word(&self, opcode: WrOpcode) {
        let counts = |i: &usize| {
            let op = &self.ops[*i];
            op.opcode == opcode && (opcode == WrOpcode::FetchAdd || !op.odd)
        };
        let ours = (0..self.ops.len()).filter(counts);
        if !self.ops.iter().any(|op| op.opcode == opcode) {
            return;
        }
        let mut word = [0; 8];
        self.target.memory.read(self.word(opcode), &mut word).expect("within the region");
        let word = u64::from_ne_bytes(word);
        let all_known = ours.clone().all(|i| matches!(self.fates[i], Fate::Done | Fate::Waiting));
        let done = ours.clone().filter(|i| self.fates[*i] == Fate::Done).count() as u64;
        let most = ours.filter(|i| self.fates[*i] != Fate::Waiting).count() as u64;
        let least = if all_known || opcode == WrOpcode::FetchAdd { done } else { 0 };
        assert!(
            (least..=most).contains(&word),
            "{} {opcode:?}: the word is {word}, not {least}..={most}",
            self.way
        );
    }

    /// True if operation `i` has been posted.
    pub fn was_posted(&self, i: usize) -> bool {
        self.fates[i] != Fate::Waiting
    }
}

/// True if the service supports the operation.
pub fn service_has(service: Service, opcode: WrOpcode) -> bool {
    match service {
        Service::Rc | Service::Xrc => true,
        Service::Uc => {
            matches!(opcode, WrOpcode::Send | WrOpcode::SendImm | WrOpcode::Write | WrOpcode::WriteImm)
        }
        Service::Ud | Service::Group => matches!(opcode, WrOpcode::Send | WrOpcode::SendImm),
    }
}

/// Splits `length` bytes at `offset` into `pieces` SGEs.
pub fn split(region: &HostRegion, offset: u64, length: u32, pieces: u32) -> Vec<Sge> {
    let pieces = pieces.max(1);
    let piece = length / pieces;
    (0..pieces)
        .map(|i| {
            let at = i * piece;
            let n = if i + 1 == pieces { length - at } else { piece };
            region.sge(offset + u64::from(at), n)
        })
        .collect()
}

/// Capacities of the QPs of a channel.
pub fn caps(spec: &Channel) -> roxie::verbs::QpCaps {
    roxie::verbs::QpCaps {
        max_inline: INLINE,
        max_send_wr: spec.depth as u32 + 4,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_recv_wr: 128,
    }
}
