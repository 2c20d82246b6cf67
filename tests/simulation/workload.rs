//! The applications: they post what the scenario says and hand what they see to the oracle.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use roxie::limits::Limits;
use roxie::nic::NicConfig;
use roxie::port::Port;
use roxie::port::fault::FaultPort;
use roxie::port::pcap::{PcapPort, Timestamps};
use roxie::shared::work_queue::Payload;
use roxie::sim::{Host, HostQp, HostRegion, Pair, joined_ports};
use roxie::time::Nanos;
use roxie::verbs::{Access, Psn, QpAttr, QpCaps, QpState, RKey, SendFlags, SendWr, Sge, WrOpcode};

use crate::oracle::{Completions, GUARD, Layout, RECEIVE, assert_bytes, pattern};
use crate::scenario::{Connection, Rng, Scenario, Stream};

/// Longer than any recovery takes.
const PATIENCE: Nanos = Nanos::from_millis(60_000);
const INLINE: u32 = 64;

/// What a run counted.
#[derive(Debug, Default)]
pub struct Outcome {
    pub counts: BTreeMap<&'static str, u64>,
}

/// One direction: the regions on both sides and how far it is.
#[derive(Debug)]
struct Flow {
    id: u64,
    stream: Stream,
    sig_all: bool,
    /// At the sender: what is sent, and where results land.
    source: HostRegion,
    landing: HostRegion,
    local: Layout,
    /// At the receiver: what is written, read and counted, and where SENDs land.
    target: HostRegion,
    remote: Layout,
    inbox: HostRegion,
    inbox_layout: Layout,
    posted: usize,
    receives_posted: usize,
    sends: Completions,
    receives: Completions,
}

impl Flow {
    fn lengths(stream: &Stream) -> impl Iterator<Item = u64> + '_ {
        stream.ops.iter().map(|op| op.length.into())
    }

    fn new(id: u64, stream: &Stream, sig_all: bool, from: &mut Host, to: &mut Host) -> Flow {
        let local = Layout::new(Flow::lengths(stream));
        let remote = local.clone();
        let incoming: Vec<u64> = stream
            .ops
            .iter()
            .filter(|op| op.opcode.consumes_receive())
            .map(|op| if op.opcode == WrOpcode::WriteImm { 0 } else { op.length.into() })
            .collect();
        let inbox_layout = Layout::new(incoming.into_iter());
        let region = |host: &mut Host, total: u64, access| {
            let region = host.register(total as usize, access);
            region.memory.write(0, &vec![GUARD; total as usize]).expect("within the region");
            region
        };
        let everything = Access::READ_WRITE | Access::FLUSH_GLOBAL;
        let flow = Flow {
            id,
            sig_all,
            source: region(from, local.total, Access::empty()),
            landing: region(from, local.total, Access::LOCAL_WRITE),
            target: region(to, remote.total, everything),
            inbox: region(to, inbox_layout.total, Access::LOCAL_WRITE),
            sends: Completions::sends(&stream.ops, sig_all, format!("stream {id}, sends")),
            receives: Completions::receives(&stream.ops, format!("stream {id}, receives")),
            stream: stream.clone(),
            local,
            remote,
            inbox_layout,
            posted: 0,
            receives_posted: 0,
        };
        flow.fill();
        flow
    }

    /// The words that atomics count in are the first of their kind's slices.
    fn word(&self, opcode: WrOpcode) -> u64 {
        let first = self.stream.ops.iter().position(|op| op.opcode == opcode).expect("there is one");
        self.remote.offsets[first]
    }

    fn fill(&self) {
        for (i, op) in self.stream.ops.iter().enumerate() {
            let bytes = pattern(self.id, i, op.length as usize);
            let at = self.local.offsets[i];
            let (region, bytes) = match op.opcode {
                WrOpcode::Read => (&self.target, bytes),
                WrOpcode::CompareSwap | WrOpcode::FetchAdd => (&self.target, vec![0; 8]),
                _ => (&self.source, bytes),
            };
            region.memory.write(at, &bytes).expect("within the region");
        }
    }

    /// What the n-th atomic of its kind finds: they run one after another, each once.
    fn atomic_history(&self, opcode: WrOpcode) -> (Vec<(usize, u64)>, u64) {
        let mut value = 0;
        let mut found = Vec::new();
        for (i, op) in self.stream.ops.iter().enumerate().filter(|(_, op)| op.opcode == opcode) {
            found.push((i, value));
            value += u64::from(opcode == WrOpcode::FetchAdd || !op.wrong_compare);
        }
        (found, value)
    }

    fn work_request(&self, i: usize) -> SendWr {
        let op = &self.stream.ops[i];
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, op.signaled);
        flags.set(SendFlags::FENCE, op.fence);
        flags.set(SendFlags::SOLICITED, op.solicited);
        let remote = if op.opcode.is_atomic() { self.word(op.opcode) } else { self.remote.offsets[i] };
        let mut wr = SendWr {
            wr_id: i as u64,
            opcode: op.opcode,
            flags,
            imm: op.imm,
            remote_addr: self.target.address + remote,
            rkey: RKey(self.target.key),
            compare_add: 1,
            swap: 0,
            ..SendWr::default()
        };
        if op.opcode == WrOpcode::Flush {
            wr.imm = 1 | u32::from(op.wrong_compare) << 4;
            wr.compare_add = 8;
        }
        if op.opcode == WrOpcode::CompareSwap {
            let (history, _) = self.atomic_history(op.opcode);
            let finds = history.iter().find(|(n, _)| *n == i).expect("it is one of them").1;
            wr.compare_add = if op.wrong_compare { finds + 1000 } else { finds };
            wr.swap = finds + 1;
        }
        wr
    }

    /// The list of an operation: its slice, in pieces.
    fn sges(&self, i: usize) -> Vec<Sge> {
        let op = &self.stream.ops[i];
        let region = if op.opcode.returns_data() { &self.landing } else { &self.source };
        split(region, self.local.offsets[i], op.length, op.pieces)
    }

    fn post(&mut self, from: &Host, qp: &HostQp) {
        let completed = self.completed_sends();
        while self.posted < self.stream.ops.len() && self.posted < completed + self.stream.depth {
            let wr = self.work_request(self.posted);
            let op = &self.stream.ops[self.posted];
            let bytes = pattern(self.id, self.posted, op.length as usize);
            let sges = self.sges(self.posted);
            let payload = if op.inline { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
            if from.post_send(qp, &wr, payload).is_err() {
                break;
            }
            self.posted += 1;
        }
    }

    /// Operations known to be done: those up to the last completion that came.
    fn completed_sends(&self) -> usize {
        let signaled = |i: &usize| self.sig_all || self.stream.ops[*i].signaled;
        let mut done = (0..self.stream.ops.len()).filter(signaled);
        match self.sends.count() {
            0 => 0,
            n => done.nth(n - 1).map_or(0, |i| i + 1),
        }
    }

    fn post_receives(&mut self, to: &Host, qp: &HostQp, rng: &mut Rng) {
        let total = self.inbox_layout.offsets.len();
        while self.receives_posted < total
            && self.receives_posted < self.receives.count() + self.stream.receives_ahead
            && !rng.one_in(self.stream.dawdles)
        {
            let n = self.receives_posted;
            let op =
                self.stream.ops.iter().filter(|op| op.opcode.consumes_receive()).nth(n).expect("as many");
            let length = if op.opcode == WrOpcode::WriteImm { 0 } else { op.length };
            let sges = split(&self.inbox, self.inbox_layout.offsets[n], length, op.pieces);
            to.post_recv(qp, RECEIVE | n as u64, &sges).expect("room for a receive");
            self.receives_posted += 1;
        }
    }

    fn check_read(&self, i: usize) {
        let op = &self.stream.ops[i];
        if op.opcode == WrOpcode::Read {
            let expected = pattern(self.id, i, op.length as usize);
            assert_bytes(
                &self.landing,
                self.local.offsets[i],
                &expected,
                &format!("READ {i} of {}", self.id),
            );
        }
    }

    fn check_received(&self, number: usize, i: usize) {
        let op = &self.stream.ops[i];
        let expected = pattern(self.id, i, op.length as usize);
        let what = format!("{:?} {i} of {}, as it completes at the receiver", op.opcode, self.id);
        if op.opcode == WrOpcode::WriteImm {
            assert_bytes(&self.target, self.remote.offsets[i], &expected, &what);
        } else {
            assert_bytes(&self.inbox, self.inbox_layout.offsets[number], &expected, &what);
        }
    }

    fn done(&self) -> bool {
        self.posted == self.stream.ops.len() && self.sends.all_came() && self.receives.all_came()
    }

    /// After everything: all bytes are where they belong, each atomic ran once, and nothing else was touched.
    fn check_end(&self) {
        for (i, op) in self.stream.ops.iter().enumerate() {
            self.check_read(i);
            if matches!(op.opcode, WrOpcode::Write | WrOpcode::WriteImm | WrOpcode::AtomicWrite) {
                let expected = pattern(self.id, i, op.length as usize);
                assert_bytes(
                    &self.target,
                    self.remote.offsets[i],
                    &expected,
                    &format!("WRITE {i} of {}", self.id),
                );
            }
        }
        for opcode in [WrOpcode::CompareSwap, WrOpcode::FetchAdd] {
            let (history, last) = self.atomic_history(opcode);
            for (i, found) in &history {
                let what = format!("{opcode:?} {i} of {} returns", self.id);
                assert_bytes(&self.landing, self.local.offsets[*i], &found.to_ne_bytes(), &what);
            }
            if !history.is_empty() {
                let what = format!("the word of {opcode:?} of {}", self.id);
                assert_bytes(&self.target, self.word(opcode), &last.to_ne_bytes(), &what);
            }
        }
        let written = |results: bool| {
            self.stream.ops.iter().map(move |op| {
                let counts = op.opcode.returns_data() == results;
                if counts { op.length.into() } else { 0 }
            })
        };
        self.local.assert_guards(&self.landing, written(true), "landing");
        let touched = self.stream.ops.iter().map(|op| {
            let send = matches!(op.opcode, WrOpcode::Send | WrOpcode::SendImm);
            if send { 0 } else { u64::from(op.length) }
        });
        self.remote.assert_guards(&self.target, touched, "target");
        let received = self.stream.ops.iter().filter(|op| op.opcode.consumes_receive());
        let lengths = received.map(|op| if op.opcode == WrOpcode::WriteImm { 0 } else { op.length.into() });
        self.inbox_layout.assert_guards(&self.inbox, lengths, "inbox");
    }
}

fn split(region: &HostRegion, offset: u64, length: u32, pieces: u32) -> Vec<Sge> {
    let piece = length / pieces;
    (0..pieces)
        .map(|i| {
            let at = i * piece;
            let n = if i + 1 == pieces { length - at } else { piece };
            region.sge(offset + u64::from(at), n)
        })
        .collect()
}

/// Both ends of a connection and its two directions: `flows[0]` goes from a to b.
#[derive(Debug)]
struct Link {
    qps: [HostQp; 2],
    flows: [Flow; 2],
}

fn host(number: u8, scenario: &Scenario, port: Box<dyn Port>) -> Host {
    let limits = Limits { ack_coalesce: scenario.ack_coalesce, window: scenario.window, ..Limits::small() };
    let config = NicConfig { limits, seed: scenario.seed ^ u64::from(number), ..NicConfig::default() };
    Host::new(number, config, port)
}

fn connect(scenario: &Scenario, connection: &Connection, pair: &mut Pair) -> [HostQp; 2] {
    let caps = QpCaps { max_inline: INLINE, max_send_sge: 4, max_recv_sge: 4, ..QpCaps::default() };
    let qps =
        [pair.a.create_qp(caps, connection.sig_all, 512), pair.b.create_qp(caps, connection.sig_all, 512)];
    for (i, (host, to)) in [(&mut pair.a, 2), (&mut pair.b, 1)].into_iter().enumerate() {
        let attrs = attributes(scenario, connection, i, host, to, &qps[1 - i]);
        for attr in &attrs {
            host.modify(Nanos::ZERO, &qps[i], attr).expect("a legal transition");
        }
    }
    qps
}

fn attributes(
    scenario: &Scenario,
    connection: &Connection,
    end: usize,
    host: &Host,
    to: u8,
    peer: &HostQp,
) -> [QpAttr; 3] {
    let all = Access::READ_WRITE | Access::FLUSH_GLOBAL;
    [
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(all),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rtr),
            av: Some(host.path(to, scenario.ipv6)),
            path_mtu: Some(scenario.mtu),
            dest_qpn: Some(peer.handle.qpn),
            rq_psn: Some(Psn::new(connection.psns[1 - end])),
            max_dest_rd_atomic: Some(connection.max_rd_atomic),
            min_rnr_timer: Some(scenario.min_rnr_timer),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(connection.psns[end])),
            timeout: Some(scenario.timeout),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(connection.max_rd_atomic),
            ..QpAttr::default()
        },
    ]
}

/// Runs a scenario. An oracle that objects panics.
pub fn run(scenario: &Scenario, capture: Option<PathBuf>) -> Outcome {
    let (a, b) = joined_ports(4200, scenario.split);
    let faulty = |port, i: usize| Box::new(FaultPort::new(port, &scenario.faults[i]));
    let (mut a, b): (Box<dyn Port>, Box<dyn Port>) = (faulty(a, 0), faulty(b, 1));
    if let Some(path) = capture {
        let file = BufWriter::new(File::create(path).expect("a capture file"));
        a = Box::new(PcapPort::new(a, file, Timestamps::Virtual, None).expect("a capture"));
    }
    let mut pair = Pair::new(host(1, scenario, a), host(2, scenario, b));
    let mut rng = Rng::new(scenario.seed ^ 0xa99);
    let mut links: Vec<Link> = Vec::new();
    for (i, connection) in scenario.connections.iter().enumerate() {
        let qps = connect(scenario, connection, &mut pair);
        let id = i as u64 * 2;
        let [forth, back] = &connection.streams;
        let flows = [
            Flow::new(id, forth, connection.sig_all, &mut pair.a, &mut pair.b),
            Flow::new(id + 1, back, connection.sig_all, &mut pair.b, &mut pair.a),
        ];
        links.push(Link { qps, flows });
    }
    drive(&mut pair, &mut links, &mut rng);
    for flow in links.iter().flat_map(|l| &l.flows) {
        flow.check_end();
    }
    outcome(scenario, &pair, &links)
}

fn drive(pair: &mut Pair, links: &mut [Link], rng: &mut Rng) {
    loop {
        for link in links.iter_mut() {
            let [forth, back] = &mut link.flows;
            for (flow, from, to) in [(forth, 0, 1), (back, 1, 0)] {
                let hosts = [&pair.a, &pair.b];
                flow.post(hosts[from], &link.qps[from]);
                flow.post_receives(hosts[to], &link.qps[to], rng);
            }
            for end in 0..2 {
                while let Some(wc) = [&pair.a, &pair.b][end].poll_cq(&link.qps[end]) {
                    let (sending, receiving) = (end, 1 - end);
                    if wc.wr_id & RECEIVE == 0 {
                        let flow = &mut link.flows[sending];
                        let op = flow.sends.send(&wc, &link.qps[end], &flow.stream.ops);
                        flow.check_read(op);
                    } else {
                        let flow = &mut link.flows[receiving];
                        let number = flow.receives.count();
                        let op = flow.receives.receive(&wc, &link.qps[end], &flow.stream.ops);
                        flow.check_received(number, op);
                    }
                }
            }
        }
        let done = links.iter().flat_map(|l| &l.flows).all(Flow::done);
        let alive = pair.step();
        if done && !alive {
            return;
        }
        let waits =
            links.iter().flat_map(|l| &l.flows).any(|f| f.receives_posted < f.inbox_layout.offsets.len());
        assert!(alive || waits, "everything is quiet, and not everything is done: {}", progress(links));
        assert!(pair.now < PATIENCE, "not done after {} of virtual time", pair.now);
    }
}

fn progress(links: &[Link]) -> String {
    let flow = |f: &Flow| {
        let (total, inbox) = (f.stream.ops.len(), f.inbox_layout.offsets.len());
        format!(
            "stream {}: {}/{total} posted, {} sends completed (all: {}), {}/{inbox} receives posted, {} completed",
            f.id,
            f.posted,
            f.sends.count(),
            f.sends.all_came(),
            f.receives_posted,
            f.receives.count()
        )
    };
    links.iter().flat_map(|l| &l.flows).map(flow).collect::<Vec<_>>().join("; ")
}

fn outcome(scenario: &Scenario, pair: &Pair, links: &[Link]) -> Outcome {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (name, value) in pair.a.worker.counters().into_iter().chain(pair.b.worker.counters()) {
        *counts.entry(name).or_default() += value;
    }
    if scenario.is_calm() {
        let retried = ["local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err"];
        for name in retried {
            assert!(counts[name] == 0, "{name} = {} without a fault", counts[name]);
        }
    }
    for op in links.iter().flat_map(|l| &l.flows).flat_map(|f| &f.stream.ops) {
        let name = match op.opcode {
            WrOpcode::Send => "Send",
            WrOpcode::SendImm => "SendImm",
            WrOpcode::Write => "Write",
            WrOpcode::WriteImm => "WriteImm",
            WrOpcode::Read => "Read",
            WrOpcode::CompareSwap => "CompareSwap",
            WrOpcode::FetchAdd => "FetchAdd",
            WrOpcode::AtomicWrite => "AtomicWrite",
            WrOpcode::Flush => "Flush",
            _ => "other",
        };
        *counts.entry(name).or_default() += 1;
        *counts.entry("inline").or_default() += u64::from(op.inline);
        *counts.entry("fence").or_default() += u64::from(op.fence);
    }
    for connection in &scenario.connections {
        for (psn, stream) in connection.psns.iter().zip(&connection.streams) {
            let mtu = scenario.mtu.bytes() as u32;
            let packets: u32 = stream.ops.iter().map(|op| op.length.div_ceil(mtu).max(1)).sum();
            *counts.entry("psn_wrap").or_default() += u64::from(psn + packets > 0xff_ffff);
        }
    }
    Outcome { counts }
}
