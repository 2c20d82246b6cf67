//! Connections that share receive queues, reliable and extended, over the same links: queues that run dry and change their
//! size, connections that end while others go on.
//!
//! The oracle knows what was posted to each queue and what each connection sent. Each message arrives once, whole, in the order
//! of its connection, in a receive of the queue that it was for; receives are taken in the order in which they were posted, by
//! whichever connection. A connection that ends takes one receive along at most, and says so if it goes through the error state.

use std::collections::{BTreeMap, BTreeSet};

use roxie::limits::Limits;
use roxie::nic::{Command, ControlError, NicConfig, QpHandle, ReceiveSource};
use roxie::port::Port;
use roxie::port::fault::{FaultConfig, FaultPort};
use roxie::shared::CompletionRing;
use roxie::shared::work_queue::Payload;
use roxie::sim::{Host, HostQp, HostRegion, HostSrq, Pair, joined_ports};
use roxie::time::Nanos;
use roxie::verbs::{
    Access, AsyncEvent, EventKind, Mtu, Psn, QpAttr, QpCaps, QpIndex, QpInit, QpState, QpType, Qpn, SendWr,
    SrqInit, SrqKind, Srqn, Wc, WcFlags, WcOpcode, WcStatus, WrOpcode,
};

use super::faults;
use crate::generate::Rng;
use crate::oracle::pattern;
use crate::world::Outcome;

const PATIENCE: Nanos = Nanos::from_millis(60_000);
/// What a shared queue is resized to at most.
const LARGEST: u64 = 24;

/// One message to come.
#[derive(Clone, Debug)]
pub struct Message {
    pub length: u32,
    pub imm: Option<u32>,
    /// The queue that it is for, where messages say so.
    pub queue: usize,
}

/// How the receiving end of a connection ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Error,
    Reset,
    Destruction,
}

#[derive(Clone, Debug)]
pub struct Connection {
    pub messages: Vec<Message>,
    pub depth: usize,
    pub psn: u32,
    /// After so many steps.
    pub ending: Option<(Ending, u64)>,
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub mtu: Mtu,
    pub faults: [FaultConfig; 2],
    /// XRC: each message names its queue.
    pub extended: bool,
    pub queues: usize,
    pub size: u32,
    pub ahead: usize,
    pub dawdles: u64,
    pub resizes: bool,
    pub connections: Vec<Connection>,
}

impl Scenario {
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x50_4ed);
        let mtu = rng.pick(&[Mtu::Mtu256, Mtu::Mtu256, Mtu::Mtu1024]);
        let queues = 1 + rng.below(2) as usize;
        let count = 1 + rng.below(4);
        Scenario {
            seed,
            mtu,
            faults: [faults(&mut rng), faults(&mut rng)],
            extended: rng.one_in(2),
            queues,
            size: 1 + rng.below(16) as u32,
            ahead: 1 + rng.below(16) as usize,
            dawdles: rng.pick(&[3, 50, 1_000_000]),
            resizes: rng.one_in(2),
            connections: (0..count).map(|_| connection(&mut rng, mtu, queues)).collect(),
        }
    }
}

fn connection(rng: &mut Rng, mtu: Mtu, queues: usize) -> Connection {
    let full = mtu.bytes() as u64;
    let edges = [0, 1, full - 1, full, full + 1, 3 * full + 2];
    let message = |rng: &mut Rng| Message {
        length: if rng.one_in(2) { rng.below(8 * full) } else { rng.pick(&edges) } as u32,
        imm: rng.one_in(2).then(|| rng.next() as u32),
        queue: rng.below(queues as u64) as usize,
    };
    let ending = rng.pick(&[Ending::Error, Ending::Reset, Ending::Destruction]);
    Connection {
        messages: (0..rng.below(20)).map(|_| message(rng)).collect(),
        depth: 1 + rng.below(8) as usize,
        psn: (rng.pick(&[0, 0xff_fff0, 0x7f_fff0]) + rng.below(16) as u32) & 0xff_ffff,
        ending: rng.one_in(2).then(|| (ending, rng.below(60))),
    }
}

/// A shared queue, and what is known of its receives.
#[derive(Debug)]
struct Queue {
    srq: HostSrq,
    /// Where its receives complete, if not to each QP's own queue.
    cq: Option<CompletionRing>,
    inbox: HostRegion,
    slots: u64,
    posted: u64,
    /// Posted and not completed.
    open: BTreeSet<u64>,
    armed: Option<u32>,
    /// Receives that connections may have taken along.
    leaks: usize,
}

#[derive(Debug)]
struct Flow {
    id: u64,
    plan: Connection,
    sender: HostQp,
    source: HostRegion,
    /// The receiving end: a QP with a completion queue, or a target.
    end: QpHandle,
    sharing: Option<HostQp>,
    /// The queue of a QP that was made for one.
    queue: usize,
    posted: usize,
    sent: usize,
    received: usize,
    /// The same for each queue.
    came: Vec<usize>,
    ended: Option<Ending>,
    flushed: usize,
    said_last: usize,
    /// The last receive that it took from each queue.
    last: Vec<Option<u64>>,
}

struct Run<'a> {
    scenario: &'a Scenario,
    pair: Pair,
    rng: Rng,
    queues: Vec<Queue>,
    flows: Vec<Flow>,
    room: u32,
    counts: BTreeMap<&'static str, u64>,
    steps: u64,
}

/// Runs a scenario. An oracle that objects panics.
pub fn run(scenario: &Scenario) -> Outcome {
    let mut run = Run::new(scenario);
    loop {
        run.applications();
        let alive = run.pair.step();
        run.steps += 1;
        let done = run.flows.iter().all(Flow::done);
        if done && !alive {
            break;
        }
        let waits = run.queues.iter().any(|q| q.posted < q.slots);
        assert!(alive || waits, "everything is quiet, and not everything is done");
        assert!(run.pair.now < PATIENCE, "not done after {} of virtual time", run.pair.now);
    }
    run.poll_receives();
    run.poll_events();
    run.check_end();
    let counters = [&run.pair.a, &run.pair.b].map(|host| host.worker.counters());
    for (name, value) in counters.into_iter().flatten() {
        *run.counts.entry(name).or_default() += value;
    }
    Outcome { counts: run.counts, ..Outcome::default() }
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Run<'a> {
        let (a, b) = joined_ports(4200, None);
        let faulty =
            |port, i: usize| -> Box<dyn Port> { Box::new(FaultPort::new(port, &scenario.faults[i])) };
        let host = |number: u8, port| {
            let seed = scenario.seed ^ u64::from(number);
            Host::new(number, NicConfig { limits: Limits::small(), seed, ..NicConfig::default() }, port)
        };
        let mut pair = Pair::new(host(1, faulty(a, 0)), host(2, faulty(b, 1)));
        let messages = || scenario.connections.iter().flat_map(|c| &c.messages);
        let room = messages().map(|m| m.length).max().unwrap_or(0).max(1);
        // One for each message, and one that each connection may take along.
        let slots = (messages().count() + scenario.connections.len() + 4) as u64;
        let xrcd = scenario.extended.then(|| pair.b.open_xrcd());
        let queues: Vec<_> = (0..scenario.queues)
            .map(|_| {
                let made = xrcd.map(|xrcd| (xrcd, pair.b.create_cq(512)));
                let (kind, cq) = match made {
                    Some((xrcd, (cq, ring))) => (SrqKind::Xrc { xrcd, cq }, Some(ring)),
                    None => (SrqKind::Basic, None),
                };
                let srq = pair.b.create_srq(SrqInit { kind, limit: 0 }, scenario.size, 1);
                let inbox = pair.b.register((slots * u64::from(room)) as usize, Access::LOCAL_WRITE);
                Queue { srq, cq, inbox, slots, posted: 0, open: BTreeSet::new(), armed: None, leaks: 0 }
            })
            .collect();
        let mut run = Run {
            scenario,
            rng: Rng::new(scenario.seed ^ 0x77),
            pair,
            queues,
            flows: Vec::new(),
            room,
            counts: BTreeMap::new(),
            steps: 0,
        };
        for (i, plan) in scenario.connections.iter().enumerate() {
            let flow = run.connect(i, plan, xrcd);
            run.flows.push(flow);
        }
        run
    }

    fn connect(&mut self, id: usize, plan: &Connection, xrcd: Option<roxie::verbs::XrcdId>) -> Flow {
        let init = |qp_type| QpInit { qp_type, caps: QpCaps::default(), sq_sig_all: true };
        let queue = id % self.queues.len();
        let (near, far) = (&mut self.pair.a, &mut self.pair.b);
        let (sender, end, sharing) = match xrcd {
            Some(xrcd) => {
                let sender = near.create_qp_from(init(QpType::XrcSend), ReceiveSource::None, 256);
                (sender, far.create_xrc_target(xrcd), None)
            }
            None => {
                let source = ReceiveSource::Shared(self.queues[queue].srq.index);
                let qp = far.create_qp_from(init(QpType::Rc), source, 256);
                (near.create_qp_as(init(QpType::Rc), 256), qp.handle, Some(qp))
            }
        };
        let source = near.register((plan.messages.len() * self.room as usize).max(1), Access::empty());
        for (i, message) in plan.messages.iter().enumerate() {
            let at = i as u64 * u64::from(self.room);
            source.memory.write(at, &pattern(id as u64, i, message.length as usize)).expect("within");
        }
        let types = if xrcd.is_some() { [QpType::XrcSend, QpType::XrcRecv] } else { [QpType::Rc; 2] };
        let psns = [plan.psn, plan.psn ^ 0x55];
        let (one, two) = ((near, sender.handle), (far, end));
        bring_up(one.0, one.1.index, types[0], 2, two.1.qpn, psns, self.scenario.mtu);
        bring_up(two.0, two.1.index, types[1], 1, one.1.qpn, [psns[1], psns[0]], self.scenario.mtu);
        Flow {
            id: id as u64,
            plan: plan.clone(),
            sender,
            source,
            end,
            sharing,
            queue,
            posted: 0,
            sent: 0,
            received: 0,
            came: vec![0; self.queues.len()],
            ended: None,
            flushed: 0,
            said_last: 0,
            last: vec![None; self.queues.len()],
        }
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    fn applications(&mut self) {
        for queue in &mut self.queues {
            queue.post(&self.pair.b, self.scenario, self.room, &mut self.rng);
        }
        for flow in &mut self.flows {
            flow.poll_sends(&self.pair.a);
            flow.post(&self.pair.a, &self.queues, self.room);
        }
        self.poll_receives();
        self.poll_events();
        self.trouble();
    }

    fn poll_receives(&mut self) {
        for at in 0..self.flows.len() {
            let Some(qp) = &self.flows[at].sharing else { continue };
            let all: Vec<_> = std::iter::from_fn(|| qp.cq.poll()).collect();
            let queue = self.flows[at].queue;
            all.iter().for_each(|wc| self.take(queue, wc));
        }
        for queue in 0..self.queues.len() {
            let Some(cq) = &self.queues[queue].cq else { continue };
            let all: Vec<_> = std::iter::from_fn(|| cq.poll()).collect();
            all.iter().for_each(|wc| self.take(queue, wc));
        }
    }

    /// A receive of a queue completed.
    fn take(&mut self, queue: usize, wc: &Wc) {
        let flow = self.flows.iter_mut().find(|flow| flow.end.qpn == wc.qpn);
        let Some(flow) = flow else { panic!("a completion of nobody's: {wc:?}") };
        let what = format!("connection {}, queue {queue}: {wc:?}", flow.id);
        let q = &mut self.queues[queue];
        assert!(q.open.remove(&wc.wr_id), "{what}: it is not open");
        assert!(flow.last[queue].is_none_or(|last| last < wc.wr_id), "{what}: out of its order");
        flow.last[queue] = Some(wc.wr_id);
        if wc.status == WcStatus::WrFlush {
            assert!(flow.ended == Some(Ending::Error), "{what}");
            flow.flushed += 1;
            assert!(flow.flushed == 1, "{what}: more than what was under way");
            return self.count("flushed_under_way");
        }
        assert!(wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv, "{what}");
        assert!(flow.ended.is_none(), "{what}: after its end");
        let i = flow.due(queue);
        let message = &flow.plan.messages[i];
        let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
        assert!((imm, wc.byte_len) == (message.imm, message.length), "{what}: not {message:?}");
        let bytes = q.inbox.bytes(wc.wr_id * u64::from(self.room), message.length as usize);
        assert!(bytes == pattern(flow.id, i, bytes.len()), "{what}: not its bytes");
        flow.received += 1;
        flow.came[queue] += 1;
        let name = if flow.sharing.is_some() { "shared_taken" } else { "extended_taken" };
        self.count(name);
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.pair.b.event() {
            match event {
                AsyncEvent::Srq(index, EventKind::SrqLimitReached) => {
                    let queue =
                        self.queues.iter_mut().find(|q| q.srq.index == index).expect("a queue of ours");
                    assert!(queue.armed.take().is_some(), "a limit was reached that was not armed");
                    self.count("limit_reached");
                }
                AsyncEvent::Qp(index, EventKind::LastWqeReached) => self.last_receive(index),
                AsyncEvent::Qp(_, EventKind::CommunicationEstablished) => {}
                other => panic!("{other:?}"),
            }
        }
        for queue in &mut self.queues {
            let status = self.pair.b.query_srq(self.pair.now, &queue.srq);
            // The query is a pass, in which the limit may have been reached.
            match queue.armed {
                Some(limit) if status.limit != 0 => {
                    assert!(status.limit == limit && status.waiting >= limit, "{status:?}, armed at {limit}");
                }
                armed => assert!(armed.is_some() || status.limit == 0, "{status:?} is not armed"),
            }
        }
    }

    fn last_receive(&mut self, index: QpIndex) {
        let flow = self.flows.iter_mut().find(|flow| flow.end.index == index).expect("a QP of ours");
        flow.said_last += 1;
        assert!(
            flow.ended == Some(Ending::Error) && flow.said_last == 1,
            "connection {} ended twice",
            flow.id
        );
    }

    /// Limits, sizes, ends.
    fn trouble(&mut self) {
        for at in 0..self.queues.len() {
            if self.queues[at].armed.is_none() && self.rng.one_in(10) {
                let status = self.pair.b.query_srq(self.pair.now, &self.queues[at].srq);
                let limit = 1 + self.rng.below(status.max_wr.into()) as u32;
                self.queues[at].armed = Some(limit);
                self.pair.b.arm_srq(self.pair.now, &self.queues[at].srq, limit).expect("within its size");
            }
            if self.scenario.resizes && self.rng.one_in(10) {
                self.resize(at);
            }
        }
        for at in 0..self.flows.len() {
            let Some((ending, after)) = self.flows[at].plan.ending else { continue };
            if self.flows[at].ended.is_some() || self.steps < after {
                continue;
            }
            // Best in the midst of a message.
            if self.is_under_way() || self.steps > 4 * after {
                self.end(at, ending);
            }
        }
    }

    /// True if some receive has been taken and has not completed.
    fn is_under_way(&mut self) -> bool {
        let now = self.pair.now;
        let mut waiting = 0;
        for queue in &self.queues {
            waiting += self.pair.b.query_srq(now, &queue.srq).waiting as usize;
        }
        self.poll_receives();
        self.queues.iter().map(|queue| queue.open.len()).sum::<usize>() > waiting
    }

    fn resize(&mut self, at: usize) {
        let size = 1 + self.rng.below(LARGEST) as u32;
        let queue = &mut self.queues[at];
        // A limit is no larger than its queue.
        if queue.armed.is_some_and(|limit| limit > size) {
            return;
        }
        match self.pair.b.resize_srq(self.pair.now, &mut queue.srq, size) {
            Ok(()) => self.count("resized"),
            Err(ControlError::TooSmall { size: asked, holds, .. }) => {
                assert!(asked == size && holds > size, "{holds} fit {size}");
                self.count("resize_refused");
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn end(&mut self, at: usize, ending: Ending) {
        // What had completed before is no completion after the end.
        self.poll_receives();
        let (now, index) = (self.pair.now, self.flows[at].end.index);
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        let set = |host: &mut Host, state| host.modify_at(now, index, &to(state)).expect("from every state");
        self.flows[at].ended = Some(ending);
        for queue in &mut self.queues {
            queue.leaks += usize::from(ending != Ending::Error);
        }
        match ending {
            Ending::Error => set(&mut self.pair.b, QpState::Err),
            Ending::Reset => set(&mut self.pair.b, QpState::Reset),
            Ending::Destruction => {
                self.pair.b.call(now, Command::DestroyQp(index)).expect("it was there");
            }
        }
        self.count(match ending {
            Ending::Error => "ended_by_error",
            Ending::Reset => "ended_by_reset",
            Ending::Destruction => "ended_by_destruction",
        });
    }

    fn check_end(&mut self) {
        for flow in &self.flows {
            let expected = usize::from(flow.ended == Some(Ending::Error));
            assert!(flow.said_last == expected, "connection {}: the last receive was not told", flow.id);
        }
        let silent = [Ending::Reset, Ending::Destruction];
        let leaks = self.flows.iter().filter(|f| f.ended.is_some_and(|e| silent.contains(&e))).count();
        let mut missing = 0;
        for (at, queue) in self.queues.iter().enumerate() {
            let waiting = u64::from(self.pair.b.query_srq(self.pair.now, &queue.srq).waiting);
            let taken = queue.posted - waiting;
            // What waits is what was posted last.
            let late = queue.open.range(taken..).count() as u64;
            assert!(late == waiting, "queue {at}: {late} of {waiting} were not taken in their order");
            missing += queue.open.range(..taken).count();
        }
        assert!(
            missing <= leaks,
            "{missing} receives are missing, {leaks} connections may have taken one along"
        );
    }
}

fn bring_up(
    host: &mut Host,
    qp: QpIndex,
    qp_type: QpType,
    to: u8,
    peer: Qpn,
    [own, theirs]: [u32; 2],
    mtu: Mtu,
) {
    let (answers, asks) = (qp_type.is_reliable_responder(), qp_type.is_reliable_requester());
    let attrs = [
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::READ_WRITE),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rtr),
            av: Some(host.path(to, false)),
            path_mtu: Some(mtu),
            dest_qpn: Some(peer),
            rq_psn: Some(Psn::new(theirs)),
            max_dest_rd_atomic: answers.then_some(4),
            min_rnr_timer: answers.then_some(5),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(own)),
            timeout: (answers || asks).then_some(10),
            retry_cnt: asks.then_some(7),
            rnr_retry: asks.then_some(7),
            max_rd_atomic: asks.then_some(4),
            ..QpAttr::default()
        },
    ];
    for attr in &attrs {
        host.modify_at(Nanos::ZERO, qp, attr).expect("a legal transition");
    }
}

impl Queue {
    fn post(&mut self, host: &Host, scenario: &Scenario, room: u32, rng: &mut Rng) {
        while self.posted < self.slots
            && self.open.len() < scenario.ahead + self.leaks
            && !rng.one_in(scenario.dawdles)
        {
            let sges = [self.inbox.sge(self.posted * u64::from(room), room)];
            if host.post_srq_recv(&self.srq, self.posted, &sges).is_err() {
                return;
            }
            self.open.insert(self.posted);
            self.posted += 1;
        }
    }
}

impl Flow {
    /// The message that comes next through a queue: queues that have completions of their own may be looked at in any order.
    fn due(&self, queue: usize) -> usize {
        let all = self.plan.messages.iter().enumerate();
        let through = |m: &Message| self.sharing.is_some() || m.queue == queue;
        let mut due = all.filter(|(_, m)| through(m)).map(|(i, _)| i).skip(self.came[queue]);
        due.next().unwrap_or_else(|| panic!("connection {}: a message too many", self.id))
    }

    fn done(&self) -> bool {
        let all = self.sent == self.posted;
        all && (self.ended.is_some() || self.received == self.plan.messages.len())
    }

    fn post(&mut self, from: &Host, queues: &[Queue], room: u32) {
        let all = self.plan.messages.len();
        while self.ended.is_none() && self.posted < all && self.posted < self.sent + self.plan.depth {
            let message = &self.plan.messages[self.posted];
            let named =
                if self.sharing.is_some() { Srqn::default() } else { queues[message.queue].srq.number };
            let wr = SendWr {
                wr_id: self.posted as u64,
                opcode: if message.imm.is_some() { WrOpcode::SendImm } else { WrOpcode::Send },
                imm: message.imm.unwrap_or(0),
                remote_srqn: named,
                ..SendWr::default()
            };
            let sges = [self.source.sge(self.posted as u64 * u64::from(room), message.length)];
            from.post_send(&self.sender, &wr, Payload::Sges(&sges)).expect("room for a request");
            self.posted += 1;
        }
    }

    fn poll_sends(&mut self, from: &Host) {
        while let Some(wc) = from.poll_cq(&self.sender) {
            let what = format!("connection {}: {wc:?} where send {} is due", self.id, self.sent);
            assert!(wc.wr_id == self.sent as u64, "{what}");
            assert!(wc.status == WcStatus::Success || self.ended.is_some(), "{what}");
            self.sent += 1;
        }
    }
}
