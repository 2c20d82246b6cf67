//! Connections and datagrams without acknowledgements over the same links: what may be lost, and what may not happen.
//!
//! The oracle knows what was sent and what the link did in sum. Of an unreliable connection each message that arrives is one
//! that was sent, whole, and in order unless the link changed the order; a datagram arrives once, unless the link
//! doubled it. Nothing is missing that neither the link nor a missing receive explains.

use std::collections::BTreeMap;

use roxie::limits::Limits;
use roxie::nic::{Command, NicConfig};
use roxie::port::Port;
use roxie::port::fault::{Action, FaultConfig, FaultPort};
use roxie::shared::work_queue::Payload;
use roxie::sim::{Host, HostQp, HostRegion, Pair, joined_ports};
use roxie::time::Nanos;
use roxie::verbs::{
    Access, AhId, Gid, Mtu, Psn, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, RKey, SendFlags, SendWr,
    UdAddress, Wc, WcFlags, WcOpcode, WcStatus, WrOpcode,
};
use roxie::wire::net::multicast_mac;

use crate::oracle::{GUARD, Layout, RECEIVE, pattern};
use crate::scenario::{Rng, faults};
use crate::workload::Outcome;

const PATIENCE: Nanos = Nanos::from_millis(60_000);
const INLINE: u32 = 64;
/// The network header in front of a datagram.
const HEADER: usize = 40;
const QKEY: u32 = 0x0bad_cafe;

/// How a channel carries its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Connection,
    Datagram,
    /// Datagrams to two members of a group.
    Group,
}

/// One message to come.
#[derive(Clone, Debug)]
pub struct Message {
    pub opcode: WrOpcode,
    pub length: u32,
    pub imm: u32,
    pub inline: bool,
    /// A datagram with a key that its receiver does not have.
    pub wrong_key: bool,
}

/// One sender and its receivers.
#[derive(Clone, Debug)]
pub struct Channel {
    pub kind: Kind,
    pub messages: Vec<Message>,
    pub depth: usize,
    pub receives_ahead: usize,
    pub dawdles: u64,
    pub psn: u32,
    /// From the second host to the first.
    pub backwards: bool,
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub mtu: Mtu,
    pub ipv6: bool,
    pub split: Option<usize>,
    pub faults: [FaultConfig; 2],
    pub channels: Vec<Channel>,
}

impl Scenario {
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x0dd5);
        let mtu = rng.pick(&[Mtu::Mtu256, Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096]);
        let count = 1 + rng.below(3);
        Scenario {
            seed,
            mtu,
            ipv6: rng.one_in(3),
            split: rng.one_in(2).then(|| 20 + rng.below(100) as usize),
            faults: [faults(&mut rng), faults(&mut rng)],
            channels: (0..count).map(|_| channel(&mut rng, mtu)).collect(),
        }
    }

    /// True if what arrives at an end arrives as it left, if it does.
    fn keeps_order(&self, end: usize) -> bool {
        let disturbs =
            |a: &Action| matches!(a, Action::Duplicate | Action::Reorder { .. } | Action::Delay(_));
        !self.faults[end].rx.iter().any(|fault| disturbs(&fault.action))
    }

    fn doubles(&self, end: usize) -> bool {
        self.faults[end].rx.iter().any(|fault| matches!(fault.action, Action::Duplicate))
    }
}

fn channel(rng: &mut Rng, mtu: Mtu) -> Channel {
    let kind = rng.pick(&[Kind::Connection, Kind::Connection, Kind::Datagram, Kind::Group]);
    let count = rng.below(40);
    let messages = (0..count).map(|_| message(rng, mtu, kind)).collect();
    let psn = rng.pick(&[0, 0xff_fff0, 0x7f_fff0]) + rng.below(16) as u32;
    Channel {
        kind,
        messages,
        depth: 1 + rng.below(16) as usize,
        receives_ahead: rng.pick(&[1, 4, 64, 64]),
        dawdles: rng.pick(&[3, 1_000_000, 1_000_000]),
        psn: psn & 0xff_ffff,
        backwards: rng.one_in(2),
    }
}

fn message(rng: &mut Rng, mtu: Mtu, kind: Kind) -> Message {
    let full = mtu.bytes() as u64;
    let connected = kind == Kind::Connection;
    let both = [WrOpcode::Send, WrOpcode::SendImm];
    let all = [WrOpcode::Send, WrOpcode::SendImm, WrOpcode::Write, WrOpcode::WriteImm];
    let most = if connected { 20 * full } else { full };
    let edges = [0, 1, 3, 4, full - 1, full, full + 1, 2 * full, 3 * full + 2];
    let length = if rng.one_in(2) { rng.below(most + 1) } else { rng.pick(&edges).min(most) };
    Message {
        opcode: if connected { rng.pick(&all) } else { rng.pick(&both) },
        length: length as u32,
        imm: rng.next() as u32,
        inline: length <= INLINE.into() && rng.one_in(3),
        wrong_key: !connected && rng.one_in(8),
    }
}

/// A QP that takes a channel's messages in.
#[derive(Debug)]
struct Receiver {
    qp: HostQp,
    inbox: HostRegion,
    layout: Layout,
    posted: usize,
    completed: usize,
    /// Numbers of the messages that came, where they can be told apart in order.
    next_message: usize,
    /// What came, and how often.
    came: BTreeMap<(Vec<u8>, Option<u32>), usize>,
    total: usize,
}

#[derive(Debug)]
struct Flow {
    id: u64,
    channel: Channel,
    sender: HostQp,
    way: Option<AhId>,
    source: HostRegion,
    source_layout: Layout,
    /// Where WRITEs go.
    target: HostRegion,
    receivers: Vec<Receiver>,
    remote_qpn: Qpn,
    posted: usize,
    sent: usize,
}

/// Runs a scenario. An oracle that objects panics.
pub fn run(scenario: &Scenario) -> Outcome {
    let (a, b) = joined_ports(4200, scenario.split);
    let faulty = |port, i: usize| -> Box<dyn Port> { Box::new(FaultPort::new(port, &scenario.faults[i])) };
    let host = |number: u8, port| {
        let config = NicConfig {
            limits: Limits::small(),
            seed: scenario.seed ^ u64::from(number),
            largest_mtu: scenario.mtu,
            ..NicConfig::default()
        };
        Host::new(number, config, port)
    };
    let mut pair = Pair::new(host(1, faulty(a, 0)), host(2, faulty(b, 1)));
    let mut rng = Rng::new(scenario.seed ^ 0xa9a9);
    let channels = scenario.channels.iter().enumerate();
    let mut flows: Vec<_> = channels.map(|(i, c)| Flow::new(i as u64, c, scenario, &mut pair)).collect();
    loop {
        for flow in &mut flows {
            flow.drive(&pair, scenario, &mut rng);
        }
        let alive = pair.step();
        let done = flows.iter().all(|flow| flow.sent == flow.channel.messages.len());
        if done && !alive {
            break;
        }
        assert!(alive || !done, "everything is quiet, and not everything was sent");
        assert!(pair.now < PATIENCE, "not done after {} of virtual time", pair.now);
    }
    for flow in &mut flows {
        flow.drive(&pair, scenario, &mut rng);
        flow.check_end(scenario);
    }
    outcome(scenario, &pair, &flows)
}

fn init_attributes(kind: Kind) -> QpAttr {
    let connected = kind == Kind::Connection;
    QpAttr {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: connected.then_some(Access::READ_WRITE),
        qkey: (!connected).then_some(QKEY),
        ..QpAttr::default()
    }
}

fn rts_attributes(psn: u32) -> QpAttr {
    QpAttr { state: Some(QpState::Rts), sq_psn: Some(Psn::new(psn)), ..QpAttr::default() }
}

impl Flow {
    fn new(id: u64, channel: &Channel, scenario: &Scenario, pair: &mut Pair) -> Flow {
        let (from, to, to_number) = match channel.backwards {
            false => (&mut pair.a, &mut pair.b, 2),
            true => (&mut pair.b, &mut pair.a, 1),
        };
        let qp_type = if channel.kind == Kind::Connection { QpType::Uc } else { QpType::Ud };
        let caps = QpCaps { max_inline: INLINE, ..QpCaps::default() };
        let init = QpInit { qp_type, caps, sq_sig_all: true };
        let sender = from.create_qp_as(init, 512);
        let receivers = if channel.kind == Kind::Group { 2 } else { 1 };
        let receivers: Vec<_> =
            (0..receivers).map(|_| Receiver::new(to.create_qp_as(init, 512), channel, to)).collect();
        let lengths = || channel.messages.iter().map(|m| u64::from(m.length));
        let source_layout = Layout::new(lengths());
        let fresh = |host: &mut Host, access| {
            let region = host.register(source_layout.total as usize, access);
            region.memory.write(0, &vec![GUARD; source_layout.total as usize]).expect("within the region");
            region
        };
        let mut flow = Flow {
            id,
            way: None,
            source: fresh(from, Access::empty()),
            target: fresh(to, Access::READ_WRITE),
            source_layout,
            remote_qpn: receivers[0].qp.handle.qpn,
            sender,
            receivers,
            channel: channel.clone(),
            posted: 0,
            sent: 0,
        };
        flow.fill();
        flow.bring_up(scenario, from, to, to_number);
        flow
    }

    fn fill(&self) {
        for (i, message) in self.channel.messages.iter().enumerate() {
            let bytes = pattern(self.id, i, message.length as usize);
            self.source.memory.write(self.source_layout.offsets[i], &bytes).expect("within the region");
        }
    }

    fn bring_up(&mut self, scenario: &Scenario, from: &mut Host, to: &mut Host, to_number: u8) {
        let (kind, psn) = (self.channel.kind, self.channel.psn);
        let set = |host: &mut Host, qp: &HostQp, attr: QpAttr| {
            host.modify(Nanos::ZERO, qp, &attr).expect("a legal transition");
        };
        let mut path = from.path(to_number, scenario.ipv6);
        let back = to.path(3 - to_number, scenario.ipv6);
        let rtr = |av, peer: &HostQp| QpAttr {
            state: Some(QpState::Rtr),
            av: Some(av),
            path_mtu: Some(scenario.mtu),
            dest_qpn: Some(peer.handle.qpn),
            rq_psn: Some(Psn::new(psn)),
            ..QpAttr::default()
        };
        let unconnected = QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() };
        let connected = kind == Kind::Connection;
        set(from, &self.sender, init_attributes(kind));
        set(from, &self.sender, if connected { rtr(path, &self.receivers[0].qp) } else { unconnected });
        set(from, &self.sender, rts_attributes(psn));
        for receiver in &self.receivers {
            set(to, &receiver.qp, init_attributes(kind));
            set(to, &receiver.qp, if connected { rtr(back, &self.sender) } else { unconnected });
            set(to, &receiver.qp, rts_attributes(0));
        }
        if kind == Kind::Group {
            let low = 1 + self.id as u16;
            let group: std::net::IpAddr = match scenario.ipv6 {
                true => std::net::Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, low).into(),
                false => std::net::Ipv4Addr::new(239, 0, 0, low as u8).into(),
            };
            path.dgid = Gid::from(group);
            path.dmac = multicast_mac(group).expect("a group");
            self.remote_qpn = Qpn::MULTICAST;
            for receiver in &self.receivers {
                let attach = Command::AttachMulticast(receiver.qp.handle.index, path.dgid);
                to.call(Nanos::ZERO, attach).expect("a datagram QP and a group");
            }
        }
        self.way = (!connected).then(|| from.create_ah(&path));
    }

    fn drive(&mut self, pair: &Pair, scenario: &Scenario, rng: &mut Rng) {
        let (from, to) = if self.channel.backwards { (&pair.b, &pair.a) } else { (&pair.a, &pair.b) };
        for receiver in &mut self.receivers {
            receiver.post(&self.channel, to, rng);
        }
        while let Some(wc) = from.poll_cq(&self.sender) {
            assert!(
                (wc.wr_id, wc.status, wc.qpn)
                    == (self.sent as u64, WcStatus::Success, self.sender.handle.qpn),
                "channel {}: {wc:?} where send {} is due",
                self.id,
                self.sent
            );
            self.sent += 1;
        }
        // The receivers first have their receives: then nothing is lost without a fault unless they dawdle.
        while self.posted < self.channel.messages.len() && self.posted < self.sent + self.channel.depth {
            self.post(from);
        }
        for i in 0..self.receivers.len() {
            while let Some(wc) = to.poll_cq(&self.receivers[i].qp) {
                self.take(i, &wc, scenario);
            }
        }
    }

    fn post(&mut self, from: &Host) {
        let i = self.posted;
        let message = &self.channel.messages[i];
        let wr = SendWr {
            wr_id: i as u64,
            opcode: message.opcode,
            flags: SendFlags::SIGNALED,
            imm: message.imm,
            remote_addr: self.target.address + self.source_layout.offsets[i],
            rkey: RKey(self.target.key),
            ud: UdAddress {
                ah: self.way.unwrap_or_default(),
                remote_qpn: self.remote_qpn,
                remote_qkey: QKEY ^ u32::from(message.wrong_key),
            },
            ..SendWr::default()
        };
        let bytes = pattern(self.id, i, message.length as usize);
        let sges = [self.source.sge(self.source_layout.offsets[i], message.length)];
        let payload = if message.inline { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
        from.post_send(&self.sender, &wr, payload).expect("room for a request");
        self.posted += 1;
    }

    /// A receive completed: it must be one of the messages, whole.
    fn take(&mut self, receiver: usize, wc: &Wc, scenario: &Scenario) {
        let what = format!("channel {}, receiver {receiver}: {wc:?}", self.id);
        let datagrams = self.channel.kind != Kind::Connection;
        let end = usize::from(!self.channel.backwards);
        let r = &mut self.receivers[receiver];
        assert!(wc.status == WcStatus::Success && wc.qpn == r.qp.handle.qpn, "{what}");
        assert!(wc.wr_id == RECEIVE | r.completed as u64, "{what}: receive {} is due", r.completed);
        let offset = r.layout.offsets[r.completed];
        r.completed += 1;
        r.total += 1;
        let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
        let mut bytes =
            r.inbox.bytes(offset, wc.byte_len as usize * usize::from(wc.opcode == WcOpcode::Recv));
        if datagrams {
            assert!(wc.flags.contains(WcFlags::GRH) && wc.src_qp == self.sender.handle.qpn, "{what}");
            let header: Vec<u8> = bytes.drain(..HEADER).collect();
            check_header(&header, scenario.ipv6, self.channel.backwards, &what);
        }
        let is_it = |(i, m): &(usize, &Message)| {
            let sent_imm = matches!(m.opcode, WrOpcode::SendImm | WrOpcode::WriteImm).then_some(m.imm);
            let write = m.opcode == WrOpcode::WriteImm;
            let same_kind = write == (wc.opcode == WcOpcode::RecvWriteImm) && m.opcode != WrOpcode::Write;
            let content = if write {
                wc.byte_len == m.length
            } else {
                bytes == pattern(self.id, *i, m.length as usize)
            };
            same_kind && !m.wrong_key && sent_imm == imm && content
        };
        let from = if scenario.keeps_order(end) { r.next_message } else { 0 };
        let found = self.channel.messages.iter().enumerate().skip(from).find(is_it);
        let (i, message) = found.unwrap_or_else(|| panic!("{what}: no such message from number {from} on"));
        r.next_message = i + 1;
        if message.opcode == WrOpcode::WriteImm {
            let written = self.target.bytes(self.source_layout.offsets[i], message.length as usize);
            assert!(
                written == pattern(self.id, i, message.length as usize),
                "{what}: not all bytes are there"
            );
        }
        *r.came.entry((bytes, imm)).or_default() += 1;
    }

    /// Messages that should have come and did not, over all receivers.
    fn missing(&self) -> u64 {
        let due = |m: &&Message| m.opcode != WrOpcode::Write && !m.wrong_key;
        let due = self.channel.messages.iter().filter(due).count();
        self.receivers.iter().map(|r| due.saturating_sub(r.total) as u64).sum()
    }

    fn check_end(&self, scenario: &Scenario) {
        let end = usize::from(!self.channel.backwards);
        let copies = if scenario.doubles(end) { 2 } else { 1 };
        for receiver in &self.receivers {
            for ((bytes, imm), count) in &receiver.came {
                let same = |(i, m): &(usize, &Message)| {
                    let sent_imm =
                        matches!(m.opcode, WrOpcode::SendImm | WrOpcode::WriteImm).then_some(m.imm);
                    let write = m.opcode == WrOpcode::WriteImm;
                    sent_imm == *imm && (write || *bytes == pattern(self.id, *i, m.length as usize))
                };
                let sent = self.channel.messages.iter().enumerate().filter(same).count();
                assert!(*count <= sent * copies, "a message of {} bytes came {count} times", bytes.len());
            }
            receiver.check_guards();
        }
        // A WRITE that lost a packet is there in part: what it has not written is as it was.
        let writes = |m: &Message| matches!(m.opcode, WrOpcode::Write | WrOpcode::WriteImm);
        for (i, message) in self.channel.messages.iter().enumerate() {
            let found = self.target.bytes(self.source_layout.offsets[i], message.length as usize);
            let sent = pattern(self.id, i, message.length as usize);
            let ours = |(found, sent): (&u8, &u8)| found == sent && writes(message);
            let wrong = found.iter().zip(&sent).position(|pair| !ours(pair) && *pair.0 != GUARD);
            assert!(wrong.is_none(), "channel {}: byte {wrong:?} of the target of {i} is foreign", self.id);
        }
        let lengths = self.channel.messages.iter().map(|m| u64::from(m.length));
        self.source_layout.assert_guards(&self.target, lengths, "target");
    }
}

/// The addresses in front of a datagram are those of its way.
fn check_header(header: &[u8], ipv6: bool, backwards: bool, what: &str) {
    let (from, to) = if backwards { (2, 1) } else { (1, 2) };
    let address = |n| Gid::from(Host::address(n, ipv6)).0;
    let (source, destination) = (address(from), address(to));
    if ipv6 {
        assert!(header[8..24] == source && (header[24] == 0xff || header[24..40] == destination), "{what}");
    } else {
        assert!(header[..20] == [0; 20] && header[32..36] == source[12..], "{what}");
        assert!(header[36] == 239 || header[36..40] == destination[12..], "{what}");
    }
}

impl Receiver {
    fn new(qp: HostQp, channel: &Channel, host: &mut Host) -> Receiver {
        // One for each message and each of its copies.
        let slots = 2 * channel.messages.len() + 8;
        let layout = Layout::new((0..slots).map(|_| capacity(channel)));
        let inbox = host.register(layout.total as usize, Access::LOCAL_WRITE);
        inbox.memory.write(0, &vec![GUARD; layout.total as usize]).expect("within the region");
        Receiver {
            qp,
            inbox,
            layout,
            posted: 0,
            completed: 0,
            next_message: 0,
            came: BTreeMap::new(),
            total: 0,
        }
    }

    fn post(&mut self, channel: &Channel, to: &Host, rng: &mut Rng) {
        while self.posted < self.layout.offsets.len()
            && self.posted < self.completed + channel.receives_ahead
            && !rng.one_in(channel.dawdles)
        {
            let sges = [self.inbox.sge(self.layout.offsets[self.posted], capacity(channel) as u32)];
            to.post_recv(&self.qp, RECEIVE | self.posted as u64, &sges).expect("room for a receive");
            self.posted += 1;
        }
    }

    fn check_guards(&self) {
        let length = self.layout.offsets.get(1).map_or(0, |second| second - self.layout.offsets[0]);
        // Slices are rounded up to 8 behind their guard: what is certain is that much less.
        let used = self.layout.offsets.iter().map(|_| length.saturating_sub(16));
        self.layout.assert_guards(&self.inbox, used, "inbox");
    }
}

/// Bytes of each receive: the longest message fits.
fn capacity(channel: &Channel) -> u64 {
    let header = if channel.kind == Kind::Connection { 0 } else { HEADER as u64 };
    header + channel.messages.iter().map(|m| u64::from(m.length)).max().unwrap_or(0)
}

fn outcome(scenario: &Scenario, pair: &Pair, flows: &[Flow]) -> Outcome {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (name, value) in pair.a.worker.counters().into_iter().chain(pair.b.worker.counters()) {
        *counts.entry(name).or_default() += value;
    }
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    // A frame that comes late may cost its own message and the one that it falls into.
    let link = of("fault_rx_dropped")
        + of("fault_rx_corrupted")
        + of("fault_rx_duplicated")
        + 2 * of("fault_rx_reordered")
        + 2 * of("fault_rx_delayed");
    let missing: u64 = flows.iter().map(Flow::missing).sum();
    // One lost frame to a group is missed by each of its members.
    let explained = 2 * link + of("out_of_buffer");
    assert!(
        missing <= explained,
        "{missing} messages are missing; the link and receives explain {explained}"
    );
    let unacknowledged = ["retransmitted_packets", "local_ack_timeout_err", "send_rnr_err"];
    for name in unacknowledged {
        assert!(of(name) == 0, "{name} = {} in services without acknowledgements", of(name));
    }
    let mut add = |name, n: u64| *counts.entry(name).or_default() += n;
    add("missing", missing);
    for flow in flows {
        let taken: usize = flow.receivers.iter().map(|r| r.total).sum();
        match flow.channel.kind {
            Kind::Connection => add("uc_taken", taken as u64),
            Kind::Datagram => add("ud_taken", taken as u64),
            Kind::Group => add("group_taken", taken as u64),
        }
        let span: u32 = flow.channel.messages.len() as u32;
        add("psn_wrap", u64::from(flow.channel.psn + span > 0xff_ffff));
    }
    let calm = scenario.faults.iter().all(|f| f.rx.is_empty());
    add("calm", u64::from(calm));
    Outcome { counts }
}
