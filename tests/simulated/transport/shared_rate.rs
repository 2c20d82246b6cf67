//! A rate shared by several QPs: the sum is bounded, and the QPs take turns.

use roxie::congestion::{Rate, SharedRate};
use roxie::limits::Limits;
use roxie::nic::{Command, NicConfig};
use roxie::port::Port;
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, RateLimit, SendFlags, SendWr, WrOpcode,
};
use roxie::wire::{Bth, Ext, Opcode, Psn, parse};
use roxie_sim::{Host, HostQp, HostRegion, joined_ports};

use crate::transport::pacing::departures;
use crate::transport::{MTU, Setup, Stage, attributes};

/// Bytes of a full packet's frame: Ethernet, IPv4, UDP, BTH, payload, ICRC.
const FULL: u64 = 14 + 20 + 8 + 12 + MTU.bytes() as u64 + 4;

/// QPs of one host with more to send than the rate allows, and the number of packets that each has sent.
struct Senders {
    host: Host,
    peer: Box<dyn Port>,
    qps: Vec<HostQp>,
    memory: HostRegion,
    setup: Setup,
    sent: Vec<u64>,
    now: Nanos,
}

impl Senders {
    fn new(qps: usize) -> Senders {
        let (local, peer) = joined_ports(1500, None);
        let limits = Limits { qps: 16, cqs: 16, ..Limits::small() };
        let mut host = Host::new(1, NicConfig { limits, seed: 1, ..NicConfig::default() }, local);
        let caps = QpCaps { max_send_wr: 64, ..QpCaps::default() };
        let init = QpInit { qp_type: QpType::Uc, caps, sq_sig_all: false };
        let setup = Setup { qp_type: QpType::Uc, ..Setup::default() };
        let memory = host.register(1 << 16, Access::READ_WRITE);
        let qps = (0..qps).map(|_| host.queue_pair().init(init).cq_entries(64).create()).collect();
        Senders { host, peer, sent: vec![0; 16], qps, memory, setup, now: Nanos::ZERO }
    }

    fn share(&mut self, qps: std::ops::Range<usize>, rate: Rate) {
        let rate = SharedRate::new(rate);
        for qp in &self.qps[qps] {
            let command = Command::ShareRate(qp.handle.index, rate.clone());
            self.host.call(self.now, command).expect("carried out");
        }
    }

    /// Connects a QP, from any state, and posts WRITEs of `packets` packets.
    fn start(&mut self, number: usize, packets: usize) {
        let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        self.host.modify(self.now, &self.qps[number], &reset).expect("from any state");
        for mut attr in attributes(&self.host, &self.setup) {
            // The destination QPN identifies the sending QP.
            attr.dest_qpn = attr.dest_qpn.map(|_| Qpn::new(number as u32));
            self.host.modify(self.now, &self.qps[number], &attr).expect("a legal transition");
        }
        let wr = SendWr { opcode: WrOpcode::Write, ..SendWr::default() };
        let mut remaining = packets * MTU.bytes();
        while remaining > 0 {
            let length = remaining.min(64 * MTU.bytes());
            let sges = [self.memory.sge(0, length as u32)];
            self.host.post_send(&self.qps[number], &wr, Payload::Sges(&sges)).expect("room");
            remaining -= length;
        }
    }

    fn run(&mut self, until: Nanos) {
        while self.now < until {
            self.host.worker.poll(self.now);
            loop {
                let count = self.peer.rx_burst(self.now);
                for i in 0..count {
                    let packet = parse(&self.peer.rx_frame(i).frame).expect("a good packet");
                    self.sent[packet.bth.dest_qp.value() as usize] += 1;
                }
                self.peer.rx_release();
                if count == 0 {
                    break;
                }
            }
            self.now = self.host.worker.next_deadline().max(self.now + Nanos(1)).min(until);
        }
    }
}

/// Number of full frames that `rate` carries in `time`.
fn frames(rate: Rate, time: Nanos) -> u64 {
    (time.0 as f64 / rate.nanos_for(FULL)) as u64
}

#[test]
fn shared_rate_is_kept_and_split_evenly() {
    let (rate, time) = (Rate::from_mbps(100.0), Nanos::from_millis(50));
    let mut senders = Senders::new(9);
    senders.share(0..8, rate);
    (0..9).for_each(|number| senders.start(number, 1000));
    senders.run(time);
    let due = frames(rate, time);
    let sum: u64 = senders.sent[..8].iter().sum();
    // Each QP may send one frame at the start.
    assert!((due..=due + 8).contains(&sum), "{:?}: {due} are due", senders.sent);
    assert!(senders.sent[..8].iter().all(|sent| sent.abs_diff(sum / 8) <= 2), "{:?}", senders.sent);
    assert_eq!(senders.sent[8], 1000, "the ninth QP does not share the rate");
}

#[test]
fn unused_share_goes_to_the_other_qps() {
    let (rate, time) = (Rate::from_mbps(100.0), Nanos::from_millis(50));
    let mut senders = Senders::new(4);
    senders.share(0..4, rate);
    (0..3).for_each(|number| senders.start(number, 1000));
    let slow = RateLimit { kbps: 10_000, ..RateLimit::default() };
    let attr = QpAttr { state: Some(QpState::Rts), rate_limit: Some(slow), ..QpAttr::default() };
    senders.host.modify(senders.now, &senders.qps[0], &attr).expect("in RTS");
    senders.run(time);
    let (own, due) = (frames(Rate::from_mbps(10.0), time), frames(rate, time));
    let [first, second, third, fourth] = *senders.sent.first_chunk().expect("four");
    assert!(first.abs_diff(own) <= 2 && fourth == 0, "{:?}: {own} of the first", senders.sent);
    assert!((due..=due + 4).contains(&(first + second + third)), "{:?}: {due} are due", senders.sent);
    assert!(second.abs_diff(third) <= 1, "{:?}", senders.sent);
}

#[test]
fn resetting_a_qp_does_not_bypass_the_rate() {
    let (rate, time) = (Rate::from_mbps(100.0), Nanos::from_millis(20));
    let mut senders = Senders::new(4);
    senders.share(0..4, rate);
    while senders.now < time {
        (0..4).for_each(|number| senders.start(number, 1));
        senders.run(senders.now + Nanos::from_micros(5));
    }
    let (sum, due) = (senders.sent.iter().sum::<u64>(), frames(rate, time));
    assert!((due / 2..=due + 4).contains(&sum), "{:?}: {due} are due", senders.sent);
}

#[test]
fn read_responses_are_paced_and_acks_are_not() {
    let mut stage = Stage::new();
    let rate = Rate::from_mbps(10.0);
    let command = Command::ShareRate(stage.qp.handle.index, SharedRate::new(rate));
    stage.host.call(stage.now, command).expect("carried out");
    let reth = stage.reth(0, 4 * MTU.bytes() as u32);
    let bth = Bth {
        opcode: Opcode::RC_READ_REQUEST,
        dest_qp: stage.qp.handle.qpn,
        psn: Psn::new(0),
        ..Bth::default()
    };
    stage.send(&bth, &Ext::Reth(reth), &[]);
    let sent = departures(&mut stage, Nanos::from_millis(2));
    let gap = rate.nanos_for(FULL);
    for (number, (at, ..)) in sent.iter().enumerate() {
        let ideal = gap * number as f64;
        assert!((at.0 as f64 - ideal).abs() < gap / 4.0, "response {number} at {at}, ideally {ideal}");
    }
    assert_eq!(sent.len(), 4);
    // The QP's own data is paced, its ACK is not.
    stage.post_as(0, WrOpcode::Write, SendFlags::SIGNALED, 12 * MTU.bytes() as u32);
    stage.receive(1, 0, 64);
    departures(&mut stage, Nanos::from_millis(3));
    let answers = stage.request(Opcode::RC_SEND_ONLY, 4, Ext::None, &[1; 8]);
    assert_eq!(answers.iter().map(|a| a.opcode).collect::<Vec<_>>(), [Opcode::RC_ACKNOWLEDGE]);
}
