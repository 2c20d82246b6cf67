//! One NIC against a peer that the test plays packet by packet: the cases of the transport, one script each.
//!
//! Requester and responder:
//!
//! * [`requester`], [`requests`]: what the requester sends, and how it reacts to responses. [`answers`]: responses that
//!   are invalid. [`asks`], [`shown`]: which packets ask for an acknowledgement. [`examination`]: whether the peer has
//!   the connection.
//! * [`responder`], [`order`], [`replays`], [`atomics`]: how requests are checked, executed and answered, and
//!   duplicates of them.
//! * [`headers`]: header checks of either side. [`credits`]: end-to-end credits. [`states`]: states and transitions of
//!   a QP.
//! * [`selective`]: selective repeat on either side; [`early`]: where early packets are placed, and what takes them
//!   back.
//! * [`peers`], [`adapters`]: behavior of other implementations that differs from Roxie's. [`hostile`]: regressions of
//!   faults found earlier.
//! * [`between`]: an application that posts in the middle of a pass. [`parts`]: pieces that need no NIC.
//!
//! Other services and objects:
//!
//! * [`uc`], [`ud`], [`raw`], [`xrc`]: the services besides RC. [`srq`], [`queues`]: shared receive queues, completion
//!   queues.
//! * [`regions`], [`regions_gone`], [`gone`], [`far`], [`windows`], [`placement`]: memory regions, windows, ATOMIC
//!   WRITE and FLUSH.
//! * [`late`], [`late_failures`]: copies for other processes that are made late, or lost.
//! * [`accounts`]: reference counts. [`vlan`]: GIDs of VLANs and of RoCE v1.
//!
//! Congestion: [`congestion`] and [`notifications`] for marks and CNPs, [`pacing`] and [`shared_rate`] for rates and
//! pauses, [`slowed`] for how far an attacker can slow a QP.
//!
//! Planted bugs that break scripts of these: `planted`, with that feature.
//!
//! Observation: [`counters`], [`log`] for the log of a QP, [`reasons`] and [`checks`] for the comments in a capture.
//! [`hidden`]: header fields that sockets do not show. [`off_path`]: an attacker off the path.

mod accounts;
mod adapters;
mod answers;
mod asks;
mod atomics;
mod between;
mod captured_cnp;
mod checks;
mod congestion;
mod counters;
mod credits;
mod early;
mod early_responses;
mod examination;
mod far;
mod gone;
mod headers;
mod hidden;
mod hostile;
mod late;
mod late_failures;
mod log;
mod notifications;
mod off_path;
mod order;
mod pacing;
mod parts;
mod peers;
mod placement;
#[cfg(feature = "planted-bugs")]
mod planted;
mod queues;
mod raw;
mod reasons;
mod regions;
mod regions_gone;
mod replays;
mod requester;
mod requests;
mod responder;
mod selective;
mod shared_rate;
mod shown;
mod slowed;
mod srq;
mod states;
mod steering;
mod uc;
mod ud;
mod vlan;
mod windows;
mod xrc;

use roxie::frame::FrameMut;
use roxie::limits::Limits;
use roxie::nic::NicConfig;
use roxie::port::Port;
use roxie::profile::Profile;
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::transport::AckRequestPolicy;
use roxie::verbs::{
    Access, AsyncEvent, EventKind, Gid, Mtu, Psn, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, RKey,
    SendFlags, SendWr, Wc, WcStatus, WrOpcode,
};
use roxie::wire::{
    Aeth, Bth, Ext, FlowSpec, Icrc, MAX_HEADERS, NakCode, Opcode, Packet, Reth, RoceVersion, Syndrome,
    Template, parse,
};
use roxie_sim::{Host, HostQp, HostRegion, joined_ports};

const PEER_QPN: Qpn = Qpn::new(0x77);
/// First PSN that the NIC sends. PSNs wrap after two packets.
const FIRST: Psn = Psn::new(0xff_fffe);
const MTU: Mtu = Mtu::Mtu256;
/// 4.096 us << 12.
const TIMEOUT_CODE: u8 = 12;
const TIMEOUT: Nanos = Nanos(4096 << TIMEOUT_CODE);
const RETRIES: u8 = 2;

/// Settings that tests vary.
struct Setup {
    qp_type: QpType,
    /// Local ACK timeout code.
    timeout: u8,
    rnr_retry: u8,
    /// End-to-end credits are in use.
    credits: bool,
    /// FLUSH packets have the ICRC that rdma_rxe computes.
    rxe_flush_icrc: bool,
    /// With a hidden IPv4 identification, accept only an ICRC that a plausible identification explains.
    strict_icrc: bool,
    mig_req: bool,
    /// Every send work request generates a completion, signaled or not.
    sq_sig_all: bool,
    caps: QpCaps,
    /// Remote access rights of the QP.
    access: Access,
    /// Number of READs and atomics that the NIC may have outstanding.
    max_rd_atomic: u8,
    /// Regions may lie in other processes.
    serves: bool,
    /// Selective repeat is agreed with the peer.
    selective: bool,
    /// When unsignaled messages ask for an acknowledgement.
    ack_requests: AckRequestPolicy,
    /// The behaviour of an adapter.
    profile: Option<&'static Profile>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            qp_type: QpType::Rc,
            timeout: TIMEOUT_CODE,
            rnr_retry: 7,
            credits: false,
            rxe_flush_icrc: false,
            strict_icrc: false,
            mig_req: false,
            sq_sig_all: true,
            caps: QpCaps::default(),
            access: Access::READ_WRITE | Access::FLUSH_GLOBAL,
            max_rd_atomic: 4,
            serves: false,
            selective: false,
            ack_requests: AckRequestPolicy::Late,
            profile: None,
        }
    }
}

/// A packet that the NIC sent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    opcode: Opcode,
    psn: u32,
    syndrome: Option<Syndrome>,
    original: Option<u64>,
    payload: Vec<u8>,
}

impl Answer {
    fn ack(psn: u32) -> Answer {
        Answer::acknowledge(psn, Syndrome::Ack { credits: 31 })
    }

    fn nak(psn: u32, code: NakCode) -> Answer {
        Answer::acknowledge(psn, Syndrome::Nak(code))
    }

    fn acknowledge(psn: u32, syndrome: Syndrome) -> Answer {
        let opcode = Opcode::RC_ACKNOWLEDGE;
        Answer { opcode, psn, syndrome: Some(syndrome), original: None, payload: Vec::new() }
    }
}

/// A connected NIC, and the frames on the other end of its link.
struct Stage {
    host: Host,
    qp: HostQp,
    memory: HostRegion,
    peer: Box<dyn Port>,
    template: Template,
    now: Nanos,
    /// MSN of the last packet with an AETH.
    msn: Option<u32>,
}

impl Stage {
    fn new() -> Stage {
        Stage::with(Setup::default())
    }

    fn with(setup: Setup) -> Stage {
        let (local, remote) = joined_ports(1500, None);
        Stage::on(setup, local, remote)
    }

    /// Builds the stage on a given pair of ports.
    fn on(setup: Setup, near: Box<dyn Port>, far: Box<dyn Port>) -> Stage {
        let config = NicConfig {
            limits: Limits::small(),
            seed: 1,
            largest_mtu: Mtu::Mtu1024,
            mig_req: setup.mig_req,
            end_to_end_credits: setup.credits,
            rxe_flush_icrc: setup.rxe_flush_icrc,
            strict_icrc: setup.strict_icrc,
            profile: setup.profile,
            ack_requests: setup.ack_requests,
            serves: setup.serves,
            assumes_selective_repeat: false,
        };
        let mut host = Host::new(1, config, near);
        let memory = host.register(1 << 16, Access::READ_WRITE | Access::MW_BIND | Access::FLUSH_GLOBAL);
        let qp = host
            .queue_pair()
            .init(QpInit { qp_type: setup.qp_type, caps: setup.caps, sq_sig_all: setup.sq_sig_all })
            .create();
        let template = template(2);
        let mut stage = Stage { host, qp, memory, peer: far, template, now: Nanos::ZERO, msn: None };
        stage.connect(&setup);
        stage
    }

    fn post(&self, opcode: WrOpcode, length: u32) {
        self.post_as(0, opcode, SendFlags::SIGNALED, length);
    }

    fn post_as(&self, wr_id: u64, opcode: WrOpcode, flags: SendFlags, length: u32) {
        let wr = SendWr { wr_id, opcode, flags, remote_addr: 0x1000, rkey: RKey(1), ..SendWr::default() };
        let sges = [self.memory.sge(0, length)];
        self.host.post_send(&self.qp, &wr, Payload::Sges(&sges)).expect("room for a request");
    }

    /// Posts a receive of `length` bytes at `offset` of the region.
    fn receive(&self, wr_id: u64, offset: u64, length: u32) {
        self.host.post_recv(&self.qp, wr_id, &[self.memory.sge(offset, length)]).expect("room for a receive");
    }

    /// Sends a request with the AckReq bit from the peer, and returns the NIC's packets.
    fn request(&mut self, opcode: Opcode, psn: u32, ext: Ext, payload: &[u8]) -> Vec<Answer> {
        let bth =
            Bth { opcode, dest_qp: self.qp.handle.qpn, psn: Psn::new(psn), ack_req: true, ..Bth::default() };
        self.send(&bth, &ext, payload);
        self.answers()
    }

    /// Runs eight passes and returns the packets that the NIC sent.
    fn answers(&mut self) -> Vec<Answer> {
        let mut all = Vec::new();
        for _ in 0..8 {
            self.host.worker.poll(self.now);
            let count = self.peer.rx_burst(self.now);
            for i in 0..count {
                let frame = self.peer.rx_frame(i).frame;
                let packet = parse(&frame).expect("a good packet");
                assert_eq!(packet.check_icrc(&frame), Icrc::Ok);
                let payload = frame.slices(packet.payload.clone());
                self.msn = packet.aeth().map(|aeth| aeth.msn).or(self.msn);
                all.push(Answer {
                    opcode: packet.bth.opcode,
                    psn: packet.bth.psn.value(),
                    syndrome: packet.aeth().map(|aeth| Syndrome::from(aeth.syndrome)),
                    original: packet.atomic_ack(),
                    payload: [payload.0, payload.1].concat(),
                });
            }
            self.peer.rx_release();
        }
        all
    }

    /// Runs eight passes and returns the sent packets with their headers and payload.
    fn packets(&mut self) -> Vec<(Packet, Vec<u8>)> {
        let mut all = Vec::new();
        for _ in 0..8 {
            self.host.worker.poll(self.now);
            for i in 0..self.peer.rx_burst(self.now) {
                let frame = self.peer.rx_frame(i).frame;
                let packet = parse(&frame).expect("a good packet");
                assert_eq!(packet.check_icrc(&frame), Icrc::Ok);
                let payload = frame.slices(packet.payload.clone());
                all.push((packet, [payload.0, payload.1].concat()));
            }
            self.peer.rx_release();
        }
        all
    }

    /// Moves the QP through INIT and RTR to RTS.
    fn connect(&mut self, setup: &Setup) {
        for attr in attributes(&self.host, setup) {
            self.host.modify(self.now, &self.qp, &attr).expect("a legal transition");
        }
    }

    fn state(&mut self) -> QpState {
        let (now, qp) = (self.now, &self.qp);
        self.host.query(now, qp).state
    }

    fn counter(&self, name: &str) -> u64 {
        self.host.counter(name)
    }

    /// Polls all completions and returns their `wr_id` and status.
    fn statuses(&self) -> Vec<(u64, WcStatus)> {
        self.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn events(&self) -> Vec<EventKind> {
        std::iter::from_fn(|| self.host.event())
            .filter_map(|event| match event {
                AsyncEvent::Qp(_, kind) => Some(kind),
                _ => None,
            })
            .collect()
    }

    /// The RETH that names `dma_len` bytes at `offset` of the region.
    fn reth(&self, offset: u64, dma_len: u32) -> Reth {
        Reth { va: self.memory.address + offset, rkey: self.memory.key, dma_len }
    }

    /// Advances the clock by `time` and returns the packets that leave meanwhile.
    fn wait(&mut self, time: Nanos) -> Vec<(Opcode, Psn)> {
        let until = self.now + time;
        let mut seen = Vec::new();
        while self.now < until {
            // Several passes: handling a frame can make more work.
            for _ in 0..4 {
                self.host.worker.poll(self.now);
                seen.extend(self.arrived());
            }
            self.now = self.host.worker.next_deadline().max(self.now + Nanos(1)).min(until);
        }
        seen
    }

    fn arrived(&mut self) -> Vec<(Opcode, Psn)> {
        let count = self.peer.rx_burst(self.now);
        let packet = |i| parse(&self.peer.rx_frame(i).frame).expect("a good packet");
        let seen = (0..count).map(packet).map(|p| (p.bth.opcode, p.bth.psn)).collect();
        self.peer.rx_release();
        seen
    }

    /// Sends a response from the peer.
    fn answer(&mut self, opcode: Opcode, psn: Psn, ext: Ext, payload: &[u8]) {
        let bth = Bth { opcode, dest_qp: self.qp.handle.qpn, psn, ..Bth::default() };
        self.send(&bth, &ext, payload);
    }

    fn send(&mut self, bth: &Bth, ext: &Ext, payload: &[u8]) {
        let opcode = bth.opcode;
        let mut headers = [0; MAX_HEADERS];
        let at = self.template.write_headers(&mut headers, bth, ext, payload.len());
        let id = self.peer.tx_alloc(self.template.frame_len(opcode, payload.len())).expect("room");
        let mut frame = self.peer.tx_frame(&id);
        frame.write(0, &headers[..at]);
        frame.write(at, payload);
        self.template.seal(&mut frame);
        self.peer.tx_commit(id);
        self.peer.tx_flush(self.now).expect("memory does not fail");
    }

    /// Sends a packet of BTH and `payload`, with pad count `pad` and without the extended headers of its opcode.
    fn send_padded(&mut self, bth: &Bth, payload: &[u8], pad: u8) {
        let mut headers = [0; MAX_HEADERS];
        let plain = Bth { opcode: Opcode::RC_SEND_ONLY, ..*bth };
        let honest = self.template.write_headers(&mut headers, &plain, &Ext::None, payload.len() & !3);
        headers[honest - 12] = bth.opcode.0;
        // The pad count is in bits 5:4 of the BTH's second byte.
        headers[honest - 11] = headers[honest - 11] & !0x30 | pad << 4;
        let length = honest + payload.len() + 4;
        let [high, low] = ((length - 14) as u16).to_be_bytes();
        (headers[16], headers[17]) = (high, low);
        let [high, low] = ((length - 34) as u16).to_be_bytes();
        (headers[38], headers[39]) = (high, low);
        let id = self.peer.tx_alloc(length).expect("room");
        let mut frame = self.peer.tx_frame(&id);
        frame.write(0, &headers[..honest]);
        frame.write(honest, payload);
        let icrc = roxie::wire::icrc::compute(&frame.as_frame(), 14, length - 4);
        frame.write(length - 4, &icrc.to_le_bytes());
        self.peer.tx_commit(id);
        self.peer.tx_flush(self.now).expect("memory does not fail");
    }

    /// Sends a valid SEND of 8 bytes after `change` has modified the finished frame.
    fn send_bytes(&mut self, change: impl Fn(&mut [u8])) {
        let bth = Bth { opcode: Opcode::RC_SEND_ONLY, dest_qp: self.qp.handle.qpn, ..Bth::default() };
        let mut headers = [0; MAX_HEADERS];
        let at = self.template.write_headers(&mut headers, &bth, &Ext::None, 8);
        let mut bytes = vec![0; self.template.frame_len(bth.opcode, 8)];
        bytes[..at].copy_from_slice(&headers[..at]);
        self.template.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
        change(&mut bytes);
        let id = self.peer.tx_alloc(bytes.len()).expect("room");
        self.peer.tx_frame(&id).write(0, &bytes);
        self.peer.tx_commit(id);
        self.peer.tx_flush(self.now).expect("memory does not fail");
    }

    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        let aeth = Aeth { syndrome: syndrome.into(), msn };
        self.answer(Opcode::RC_ACKNOWLEDGE, psn, Ext::Aeth(aeth), &[]);
    }

    /// Sends a READ RESPONSE MIDDLE filled with `byte`.
    fn read_middle(&mut self, psn: Psn, byte: u8) {
        self.answer(Opcode::RC_READ_RESPONSE_MIDDLE, psn, Ext::None, &[byte; MTU.bytes()]);
    }

    fn completions(&self) -> Vec<Wc> {
        std::iter::from_fn(|| self.host.poll_cq(&self.qp)).collect()
    }
}

impl Drop for Stage {
    /// Checks the NIC's redundant state at the end of every test.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.host.worker.nic().inconsistency(), None);
        }
    }
}

/// Headers of packets from host `from` to the NIC.
fn template(from: u8) -> Template {
    Template::new(&flow(from))
}

fn flow(from: u8) -> FlowSpec {
    let gid = |n| Gid::from(Host::address(n, false));
    FlowSpec {
        src_mac: Host::mac(from.into()),
        dst_mac: Host::mac(1),
        vlan: None,
        src: gid(from.into()),
        dst: gid(1),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xc000,
        version: RoceVersion::V2,
    }
}

fn attributes(host: &Host, setup: &Setup) -> [QpAttr; 3] {
    if setup.qp_type.is_datagram() {
        return ud::attributes(setup.qp_type);
    }
    if setup.qp_type == QpType::RawPacket {
        return raw::attributes();
    }
    let (answers, requests) = (setup.qp_type.is_reliable_responder(), setup.qp_type.is_reliable_requester());
    [
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(setup.access),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rtr),
            av: Some(host.path(2, false)),
            path_mtu: Some(MTU),
            dest_qpn: Some(PEER_QPN),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: answers.then_some(4),
            min_rnr_timer: answers.then_some(12),
            selective_repeat: setup.selective.then_some(true),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(FIRST),
            timeout: (answers || requests).then_some(setup.timeout),
            retry_cnt: requests.then_some(RETRIES),
            rnr_retry: requests.then_some(setup.rnr_retry),
            max_rd_atomic: requests.then_some(setup.max_rd_atomic),
            ..QpAttr::default()
        },
    ]
}
