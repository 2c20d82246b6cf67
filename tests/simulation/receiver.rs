//! The receiving end of a way: posted receives, and the oracle for their contents.

use std::collections::VecDeque;

use roxie::shared::HostMemory;
use roxie::verbs::{Access, Wc, WcFlags, WcOpcode, WcStatus, WrOpcode};
use roxie_sim::fabric::Hosts;
use roxie_sim::{Host, HostQp};

use crate::flow::{Fate, Flow, Patch, split};
use crate::generate::Rng;
use crate::law::Law;
use crate::oracle::{Layout, assert_bytes, bytes, pattern};
use crate::script::{Channel, Op, Service, Way};
use crate::srq::Shared;

/// Bit of a `wr_id` that marks receives.
pub const RECEIVE: u64 = 1 << 63;
/// Length in bytes of the network header in front of a datagram.
pub const HEADER: u32 = 40;

/// Location of the bytes of a completed receive.
struct Place {
    memory: HostMemory,
    offset: u64,
    /// Slot number, if the receive is of the QP's own queue.
    slot: Option<usize>,
    /// Index of the shared receive queue that the receive is of.
    queue: usize,
}

/// One receiving QP of a way.
#[derive(Debug)]
pub struct Receiver {
    way: Way,
    service: Service,
    pub inbox: Patch,
    layout: Layout,
    capacity: Vec<u32>,
    pieces: u32,
    ahead: usize,
    dawdles: u64,
    rng: Rng,
    /// The next slot to post.
    next_slot: usize,
    posted: VecDeque<usize>,
    /// Shared receive queues that the QP uses instead of its own.
    pub srqs: Vec<Shared>,
    /// Number of the last receive taken from each of them.
    last: Vec<Option<u64>>,
    /// Index of the operation that the next message of each queue belongs to.
    next_message: Vec<usize>,
    messages: usize,
    /// True if a receive has failed in this life.
    failed: bool,
    /// Number of receives flushed in this life.
    flushed: u32,
    /// Messages received through shared queues, and flushed receives of such queues, over all lives.
    pub from_shared: [u64; 2],
    /// How often the message of each operation arrived.
    pub arrivals: Vec<u32>,
}

impl Receiver {
    /// `srqs`: the shared receive queues on its host that the QP uses.
    pub fn new(
        spec: &Channel,
        way: Way,
        host: usize,
        ops: &[Op],
        hosts: &mut Hosts,
        srqs: Vec<Shared>,
    ) -> Receiver {
        // Receives of an RC connection fit their message to the byte. On other services, the message of a receive is
        // unknown: there is one receive for each message and its copies.
        let capacity: Vec<u32> = match spec.service {
            _ if !srqs.is_empty() => Vec::new(),
            Service::Rc => ops.iter().map(Op::received).collect(),
            _ => {
                let header = if spec.service.is_datagram() { HEADER } else { 0 };
                let longest = ops.iter().map(|op| op.length).max().unwrap_or(0) + header;
                vec![longest; 2 * ops.len() + 16]
            }
        };
        let layout = Layout::new(capacity.iter().map(|length| u64::from(*length)));
        Receiver {
            way,
            service: spec.service,
            inbox: Patch::new(&mut hosts[host], layout.total, Access::LOCAL_WRITE),
            layout,
            capacity,
            pieces: 1 + (way.channel as u32 + ops.len() as u32) % 4,
            ahead: spec.ahead,
            dawdles: spec.dawdles,
            rng: Rng::new(way.channel as u64 * 64 + host as u64 * 2 + u64::from(way.back)),
            next_slot: 0,
            posted: VecDeque::new(),
            last: vec![None; srqs.len()],
            next_message: vec![0; srqs.len().max(1)],
            srqs,
            messages: 0,
            failed: false,
            flushed: 0,
            from_shared: [0; 2],
            arrivals: vec![0; ops.len()],
        }
    }

    /// Begins a new life, in which the sender continues with operation `first`.
    pub fn begin_life(&mut self, first: usize, ops: &[Op]) {
        self.posted.clear();
        self.messages = 0;
        (self.failed, self.flushed) = (false, 0);
        if self.service.is_reliable() {
            self.next_slot = next_receiving(ops, first);
            self.next_message.fill(first);
        }
    }

    /// Forgets the posted receives of a destroyed QP.
    pub fn abandon(&mut self) {
        self.posted.clear();
    }

    /// Length in bytes of each receive of the own queue, if all are alike.
    pub fn room(&self) -> Option<u32> {
        self.capacity.first().copied().filter(|_| self.service != Service::Rc)
    }

    pub fn is_idle(&self) -> bool {
        self.posted.is_empty()
    }

    pub fn messages_of_life(&self) -> usize {
        self.messages
    }

    /// Posts receives. Returns true if the application deferred some.
    pub fn post(&mut self, host: &Host, qp: &HostQp, ops: &[Op]) -> bool {
        while self.next_slot < self.capacity.len() && self.posted.len() < self.ahead {
            if self.dawdles > 0 && self.rng.one_in(self.dawdles) {
                return true;
            }
            let slot = self.next_slot;
            let sges = split(&self.inbox.region, self.layout.offsets[slot], self.capacity[slot], self.pieces);
            if host.post_recv(qp, RECEIVE | slot as u64, &sges).is_err() {
                return false;
            }
            self.posted.push_back(slot);
            self.next_slot = match self.service {
                Service::Rc => next_receiving(ops, slot + 1),
                _ => slot + 1,
            };
        }
        false
    }

    /// Removes the receive of a completion and returns its location.
    fn take(&mut self, wc: &Wc, queue: usize, what: &str) -> Place {
        if let Some(srq) = self.srqs.get(queue) {
            let (number, memory, offset) = srq.borrow_mut().take(wc, what);
            let last = self.last[queue].replace(number);
            assert!(last.is_none_or(|last| last < number), "{what}: receive {number} comes after {last:?}");
            return Place { memory, offset, slot: None, queue };
        }
        let Some(slot) = self.posted.pop_front() else { panic!("{what}: a completion too many") };
        assert!(wc.wr_id == RECEIVE | slot as u64, "{what}: receive {slot} is due");
        let (memory, offset) = (self.inbox.memory.clone(), self.layout.offsets[slot]);
        Place { memory, offset, slot: Some(slot), queue }
    }

    /// Checks a failed receive. `fatal`: the QP is known to be in the error state.
    pub fn failed(&mut self, wc: &Wc, queue: usize, fatal: bool, law: &Law) {
        let what = format!("{}: {wc:?}", self.way);
        self.take(wc, queue, &what);
        let explained = match wc.status {
            WcStatus::WrFlush => fatal || self.failed,
            status => !self.failed && law.receive_may_fail(self.way, status),
        };
        self.flushed += u32::from(wc.status == WcStatus::WrFlush);
        self.failed = true;
        assert!(explained, "{what}: nothing explains this failure");
        let shares = !self.srqs.is_empty();
        self.from_shared[1] += u64::from(shares && wc.status == WcStatus::WrFlush);
        assert!(!shares || self.flushed <= 1, "{what}: more is flushed than what was under way");
    }

    /// True if the message of `op` belongs to `queue`.
    fn is_for(&self, op: &Op, queue: usize) -> bool {
        self.srqs.len() < 2 || op.queue % self.srqs.len() == queue
    }
}

/// Index of the first operation from `at` on that consumes a receive.
fn next_receiving(ops: &[Op], at: usize) -> usize {
    (at..ops.len()).find(|i| ops[*i].opcode.consumes_receive()).unwrap_or(ops.len())
}

impl Flow {
    /// Checks a message that receiver `r` received. `queue`: index of the shared receive queue, if it has several.
    pub fn received(&mut self, r: usize, wc: &Wc, queue: usize, law: &Law, checks: &Checks) {
        let what = format!("{}: {wc:?}", self.way);
        let place = self.receivers[r].take(wc, queue, &what);
        let i = match self.service {
            Service::Rc | Service::Xrc => self.next_in_order(r, wc, &place, &what),
            _ => self.find_message(r, wc, &place, law, checks, &what),
        };
        let receiver = &mut self.receivers[r];
        receiver.arrivals[i] += 1;
        receiver.messages += 1;
        receiver.from_shared[0] += u64::from(!receiver.srqs.is_empty());
        let op = &self.ops[i];
        if op.opcode == WrOpcode::WriteImm {
            assert_bytes(&self.target.memory, self.layout.offsets[i], &self.pattern(i), &what);
        }
    }

    /// Returns the index of the next expected message of a reliable connection, after checking it.
    fn next_in_order(&mut self, r: usize, wc: &Wc, place: &Place, what: &str) -> usize {
        let receiver = &self.receivers[r];
        let from = receiver.next_message[place.queue];
        let is_next = |i: &usize| {
            let op = &self.ops[*i];
            op.opcode.consumes_receive() && receiver.is_for(op, place.queue)
        };
        let i = (from..self.ops.len()).find(is_next).unwrap_or(self.ops.len());
        assert!(i < self.ops.len() && self.was_posted(i), "{what}: nothing was sent that could have come");
        assert!(place.slot.is_none_or(|slot| i == slot), "{what}: message {i} comes in another's receive");
        let op = &self.ops[i];
        let opcode = if op.opcode == WrOpcode::WriteImm { WcOpcode::RecvWriteImm } else { WcOpcode::Recv };
        assert!(wc.opcode == opcode, "{what}: {i} arrives as {:?}", wc.opcode);
        assert!(wc.byte_len == op.length, "{what}: {i} has {} bytes of {}", wc.byte_len, op.length);
        let has_imm = wc.flags.contains(WcFlags::WITH_IMM);
        assert!(has_imm == op.has_imm(), "{what}: {i}: immediate data: {has_imm}");
        assert!(!has_imm || wc.imm == op.imm, "{what}: {i}: immediate {:#x}", wc.imm);
        if opcode == WcOpcode::Recv {
            assert_bytes(&place.memory, place.offset, &self.pattern(i), what);
        }
        self.receivers[r].next_message[place.queue] = i + 1;
        i
    }

    /// Returns the index of the received message of an unreliable service. The message must be complete, have been
    /// sent, and be in order unless the link reorders.
    fn find_message(
        &mut self,
        r: usize,
        wc: &Wc,
        place: &Place,
        law: &Law,
        checks: &Checks,
        what: &str,
    ) -> usize {
        let receiver = &self.receivers[r];
        let write = wc.opcode == WcOpcode::RecvWriteImm;
        let length = if write { 0 } else { wc.byte_len as usize };
        let mut content = bytes(&place.memory, place.offset, length);
        let mut payload = wc.byte_len;
        if self.service.is_datagram() {
            assert!(wc.flags.contains(WcFlags::GRH) && checks.senders.contains(&wc.src_qp), "{what}");
            let header: Vec<u8> = content.drain(..HEADER as usize).collect();
            payload -= HEADER;
            (checks.header)(&header, what);
        }
        let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
        let is_it = |i: &usize| {
            let op = &self.ops[*i];
            let kind = op.opcode.consumes_receive() && (op.opcode == WrOpcode::WriteImm) == write;
            let wrong_key = op.odd && self.service.is_datagram();
            kind && !wrong_key
                && self.was_posted(*i)
                && op.length == payload
                && op.has_imm().then_some(op.imm) == imm
                && (write || content == pattern(self.number(), *i, op.length as usize))
        };
        let from = if law.keeps_order { receiver.next_message[0] } else { 0 };
        let index = (from..self.ops.len()).filter(is_it).min_by_key(|i| receiver.arrivals[*i]);
        let i = index.unwrap_or_else(|| panic!("{what}: no such message from number {from} on"));
        assert!(receiver.arrivals[i] < law.most_copies, "{what}: message {i} comes once too often");
        self.receivers[r].next_message[0] = i + 1;
        i
    }

    /// Number of messages that did not arrive, over all receivers.
    pub fn missing(&self) -> u64 {
        let due = |i: &usize| {
            let op = &self.ops[*i];
            let wrong_key = op.odd && self.service.is_datagram();
            op.opcode.consumes_receive() && !wrong_key && self.fates[*i] == Fate::Done
        };
        let due = (0..self.ops.len()).filter(due).count();
        let missing = |r: &Receiver| due.saturating_sub(r.arrivals.iter().filter(|n| **n > 0).count()) as u64;
        self.receivers.iter().map(missing).sum()
    }

    pub fn check_inboxes(&self) {
        for receiver in &self.receivers {
            let lengths = receiver.capacity.iter().map(|length| u64::from(*length));
            receiver.layout.assert_guards(&receiver.inbox.memory, lengths, &format!("{} inbox", self.way));
        }
    }
}

/// Checks of a datagram's sender.
pub struct Checks<'a> {
    /// Current and earlier QPNs of the sender.
    pub senders: &'a [roxie::wire::Qpn],
    pub header: &'a dyn Fn(&[u8], &str),
}
