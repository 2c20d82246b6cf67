//! Fuzz targets, and the properties that must hold for any input.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use roxie::capture::Reader;
use roxie::flow::FlowKey;
use roxie::frame::{Frame, FrameMut};
use roxie::limits::Limits;
use roxie::nic::{Command, NicConfig};
use roxie::port::Port;
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, AhId, LKey, Mtu, Psn, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, RKey, SendFlags, SendWr, Sge,
    UdAddress, WrOpcode,
};
use roxie::wire::{Bth, Ext, FlowSpec, Gid, MAX_HEADERS, Opcode, RoceVersion, Template, icrc, parse};
use roxie_sim::{Host, HostQp, HostRegion, joined_ports};

use crate::commands::{GROUP, command};
use crate::congestion;
use crate::input::Input;

/// Passes after which an unfed NIC must be idle.
const PATIENCE: usize = 20_000;
const PEER: Qpn = Qpn::new(0x77);
const QKEY: u32 = 0x1111_1111;

/// Any bytes are a packet or an error, in one piece or two, and can be printed.
pub fn parser(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let split = usize::from(input.u8()).min(bytes.len());
    let whole = Frame::whole(bytes);
    let (a, b) = bytes.split_at(split);
    let pieces = Frame { a, b };
    assert_eq!(FlowKey::of(&whole), FlowKey::of(&pieces));
    let mut text = String::new();
    match (parse(&whole), parse(&pieces)) {
        (Ok(one), Ok(two)) => {
            assert_eq!(one.bth, two.bth);
            assert_eq!(one.check_icrc(&whole), two.check_icrc(&pieces));
            assert!(one.payload.end <= bytes.len());
            write!(text, "{one}{one:#}").expect("a string takes everything");
        }
        (Err(one), Err(two)) => {
            assert_eq!(one, two);
            write!(text, "{one}").expect("a string takes everything");
        }
        (one, two) => panic!("whole {one:?}, in pieces {two:?}"),
    }
    let _ = icrc::compute(&whole, split, bytes.len());
}

/// Any bytes are a capture that ends, in records or in one error.
pub fn capture(bytes: &[u8]) {
    let Ok(mut reader) = Reader::new(bytes) else { return };
    let mut records = 0;
    while let Ok(Some(record)) = reader.next() {
        assert!(record.data.len() <= bytes.len());
        records += 1;
        assert!(records <= bytes.len(), "more records than bytes");
    }
}

/// A NIC with a few QPs, and the far end of its link.
struct Stage {
    host: Host,
    peer: Box<dyn Port>,
    /// To the NIC, to a group, and to the NIC through a marking switch.
    templates: [Template; 3],
    qps: Vec<HostQp>,
    types: Vec<QpType>,
    /// An address handle for the peer.
    way: AhId,
    memory: HostRegion,
    /// A region without remote access.
    forbidden: HostRegion,
    posted: u64,
    completed: u64,
    now: Nanos,
}

const FORBIDDEN: usize = 8192;

impl Stage {
    fn new() -> Stage {
        let (local, peer) = joined_ports(1500, None);
        let mut host =
            Host::new(1, NicConfig { limits: Limits::small(), seed: 7, ..NicConfig::default() }, local);
        let memory = host.register(1 << 14, Access::READ_WRITE);
        let forbidden = host.register(FORBIDDEN, Access::LOCAL_WRITE);
        let gid = |n| Gid::from(Host::address(n, false));
        let towards = |dst, dst_mac, traffic_class| {
            Template::new(&FlowSpec {
                src_mac: Host::mac(2),
                dst_mac,
                vlan: None,
                src: gid(2),
                dst,
                traffic_class,
                flow_label: 0,
                hop_limit: 64,
                source_port: 0xc000,
                version: RoceVersion::V2,
            })
        };
        let way = host.create_ah(&host.path(2, false));
        Stage {
            host,
            peer,
            templates: [
                towards(gid(1), Host::mac(1), 0),
                towards(GROUP, [1, 0, 0x5e, 1, 2, 3], 0),
                towards(gid(1), Host::mac(1), 3),
            ],
            qps: Vec::new(),
            types: Vec::new(),
            way,
            memory,
            forbidden,
            posted: 0,
            completed: 0,
            now: Nanos(1),
        }
    }

    fn create(&mut self, qp_type: QpType) {
        let caps =
            QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline: 16 };
        let qp =
            self.host.queue_pair().init(QpInit { qp_type, caps, sq_sig_all: true }).cq_entries(64).create();
        if qp_type == QpType::Ud {
            let joined = self.host.call(self.now, Command::AttachMulticast(qp.handle.index, GROUP));
            assert!(joined.is_ok(), "{joined:?}");
        }
        self.qps.push(qp);
        self.types.push(qp_type);
    }

    fn modify(&mut self, qp: usize, attr: &QpAttr) {
        // Refusals are valid results.
        let _ = self.host.modify(self.now, &self.qps[qp], attr);
    }

    /// Moves a QP through as many states as the byte says.
    fn bring_up(&mut self, qp: usize, how_far: u8) {
        let steps = match self.types[qp] {
            QpType::Ud => self.datagram_steps(),
            QpType::Uc => {
                // Attributes of acknowledgements do not apply to this QP.
                self.steps().map(|attr| QpAttr {
                    max_dest_rd_atomic: None,
                    min_rnr_timer: None,
                    timeout: None,
                    retry_cnt: None,
                    rnr_retry: None,
                    max_rd_atomic: None,
                    ..attr
                })
            }
            _ => self.steps(),
        };
        // Half of the QPs have selective repeat.
        let selective_repeat = (how_far >= 128).then_some(true);
        for attr in &steps[..usize::from(how_far) % (steps.len() + 1)] {
            self.modify(qp, &QpAttr { selective_repeat, ..*attr });
        }
    }

    fn datagram_steps(&self) -> [QpAttr; 5] {
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        let init = QpAttr { qkey: Some(QKEY), pkey_index: Some(0), port: Some(1), ..to(QpState::Init) };
        let rts = QpAttr { sq_psn: Some(Psn::new(0xff_fffe)), ..to(QpState::Rts) };
        [init, to(QpState::Rtr), rts, to(QpState::Sqd), to(QpState::Err)]
    }

    fn steps(&self) -> [QpAttr; 5] {
        let init = QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::READ_WRITE),
            ..QpAttr::default()
        };
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            av: Some(self.host.path(2, false)),
            path_mtu: Some(Mtu::Mtu256),
            dest_qpn: Some(PEER),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(2),
            min_rnr_timer: Some(1),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(0xff_fffe)),
            timeout: Some(1),
            retry_cnt: Some(1),
            rnr_retry: Some(1),
            max_rd_atomic: Some(2),
            ..QpAttr::default()
        };
        let after = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        [init, rtr, rts, after(QpState::Sqd), after(QpState::Err)]
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let qp = usize::from(input.u8()) % self.qps.len();
        let sge = Sge {
            addr: input.number(self.memory.address),
            length: input.number(300) as u32,
            lkey: LKey(input.number(self.memory.key.into()) as u32),
        };
        let ok = if input.flag() {
            self.host.post_recv(&self.qps[qp], 0, &[sge]).is_ok()
        } else {
            let wr = SendWr {
                opcode: input.pick(&WrOpcode::ALL),
                flags: SendFlags::from_bits_truncate(input.u8()) - SendFlags::INLINE,
                imm: input.u32(),
                remote_addr: input.u64(),
                rkey: RKey(input.u32()),
                ud: UdAddress {
                    ah: AhId(input.number(self.way.0.into()) as u32),
                    remote_qpn: PEER,
                    remote_qkey: input.number(QKEY.into()) as u32,
                },
                ..SendWr::default()
            };
            self.host.post_send(&self.qps[qp], &wr, Payload::Sges(&[sge])).is_ok()
        };
        self.posted += u64::from(ok);
    }

    /// Delivers a packet with a correct ICRC and otherwise arbitrary fields.
    fn packet(&mut self, input: &mut Input<'_>) {
        let qp = usize::from(input.u8()) % self.qps.len();
        let local = input.pick(&[0, 0xff_fffe]);
        let to_group = self.types[qp] == QpType::Ud && input.u8().is_multiple_of(4);
        let marked = !to_group && input.u8().is_multiple_of(4);
        let template = &self.templates[if marked { 2 } else { to_group.into() }];
        let bth = Bth {
            opcode: Opcode::RC_SEND_ONLY,
            dest_qp: if to_group {
                Qpn::MULTICAST
            } else if input.u8().is_multiple_of(16) {
                Qpn::new(input.u32() & 0xff_ffff)
            } else {
                self.qps[qp].handle.qpn
            },
            psn: Psn::new((local + u32::from(input.u8())).wrapping_sub(4) & 0xff_ffff),
            ack_req: input.flag(),
            solicited: input.flag(),
            ..Bth::default()
        };
        let service = match self.types[qp] {
            QpType::Uc => 0x20,
            QpType::Ud => 0x60,
            _ => 0,
        };
        let opcode = if input.u8().is_multiple_of(8) { input.u8() } else { service + input.u8() % 0x20 };
        // Of the manufacturer-specific opcodes, one is in use.
        let opcode = if opcode >= 0xc0 { Opcode::RC_SELECTIVE_ACKNOWLEDGE.0 } else { opcode };
        let mut tail = Vec::new();
        if opcode == Opcode::RC_SELECTIVE_ACKNOWLEDGE.0 {
            // As an AETH and a SACK that may be coherent.
            let latest = (local + u32::from(input.u8())).wrapping_sub(4) & 0xff_ffff;
            tail.extend([0x1f, 0, 0, 0, input.u8()]);
            tail.extend_from_slice(&latest.to_be_bytes()[1..]);
            tail.extend((u128::from(input.u32()) << (input.u8() % 96)).to_be_bytes());
        } else if self.types[qp] == QpType::Ud && input.flag() {
            // As a DETH.
            tail.extend((input.number(QKEY.into()) as u32).to_be_bytes());
            tail.extend(input.u32().to_be_bytes());
        } else if input.flag() {
            // As a RETH, or the beginning of an AtomicETH.
            tail.extend(input.number(self.memory.address).to_be_bytes());
            tail.extend((input.number(self.memory.key.into()) as u32).to_be_bytes());
            tail.extend((input.number(256) as u32).to_be_bytes());
        } else {
            // As an AETH.
            tail.extend([input.u8(), 0, 0, input.u8()]);
        }
        tail.extend(input.bytes(1024));
        let mut headers = [0; MAX_HEADERS];
        let at = template.write_headers(&mut headers, &bth, &Ext::None, tail.len());
        // The BTH is the last 12 bytes of the headers.
        headers[at - 12] = opcode;
        if input.u8().is_multiple_of(16) {
            headers[at - 11] ^= input.u8();
        }
        let length = template.frame_len(Opcode::RC_SEND_ONLY, tail.len());
        let Some(id) = self.peer.tx_alloc(length) else { return };
        let mut frame = self.peer.tx_frame(&id);
        frame.write(0, &headers[..at]);
        frame.write(at, &tail);
        template.seal(&mut frame);
        self.peer.tx_commit(id);
        self.peer.tx_flush(self.now).expect("memory does not fail");
    }

    /// Delivers a congestion notification, as a peer could send it.
    fn notification(&mut self, input: &mut Input<'_>) {
        let qp = usize::from(input.u8()) % self.qps.len();
        let (bth, length) = congestion::notification(input, self.qps[qp].handle.qpn);
        // Built as a SEND, with the bytes behind a notification's headers as its payload: 16 bytes in a valid one.
        let (template, opcode, length) = (&self.templates[0], Opcode::RC_SEND_ONLY, 16 + length);
        let mut headers = [0; MAX_HEADERS];
        let at = template.write_headers(&mut headers, &Bth { opcode, ..bth }, &Ext::None, length);
        headers[at - Bth::LEN] = bth.opcode.0;
        let mut bytes = vec![0; template.frame_len(opcode, length)];
        bytes[..at].copy_from_slice(&headers[..at]);
        template.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
        self.frame(&bytes);
    }

    fn frame(&mut self, bytes: &[u8]) {
        let Some(id) = self.peer.tx_alloc(bytes.len()) else { return };
        self.peer.tx_frame(&id).write(0, bytes);
        self.peer.tx_commit(id);
        self.peer.tx_flush(self.now).expect("memory does not fail");
    }

    fn set_congestion(&mut self, input: &mut Input<'_>) {
        let command = Command::SetCongestion(Box::new(congestion::settings(input)));
        let _ = self.host.call(self.now, command);
    }

    fn turn(&mut self) {
        self.host.worker.poll(self.now);
        while self.peer.rx_burst(self.now) > 0 {
            self.peer.rx_release();
        }
        self.take_completions();
    }

    fn take_completions(&mut self) {
        for qp in &self.qps {
            while self.host.poll_cq(qp).is_some() {
                self.completed += 1;
            }
        }
        while self.host.event().is_some() {}
    }

    /// Without further input, the NIC becomes idle, and no unrequested effect occurred.
    fn settle(&mut self) {
        for pass in 0.. {
            let idle = self.host.worker.poll(self.now).is_idle();
            while self.peer.rx_burst(self.now) > 0 {
                self.peer.rx_release();
            }
            self.take_completions();
            if idle {
                match self.host.worker.next_deadline() {
                    Nanos::MAX => break,
                    next => self.now = next.max(self.now + Nanos(1)),
                }
            }
            assert!(pass < PATIENCE, "the NIC does not come to rest");
        }
        assert!(self.completed <= self.posted, "{} completions of {} requests", self.completed, self.posted);
        assert!(
            self.forbidden.bytes(0, FORBIDDEN).iter().all(|b| *b == 0),
            "memory outside the region changed"
        );
    }
}

/// Packets for QPs in every state, between work requests and the passing of time.
pub fn packets(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut stage = Stage::new();
    for qp in 0..2 {
        stage.create(input.pick(&[QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]));
        stage.bring_up(qp, input.u8());
    }
    while !input.is_empty() {
        match input.u8() % 12 {
            8 => stage.notification(&mut input),
            9 => stage.frame(&congestion::pause(&mut input)),
            10 => stage.set_congestion(&mut input),
            11 => {
                let rate_limit = Some(congestion::limit(&mut input));
                let qp = usize::from(input.u8()) % 2;
                stage.modify(qp, &QpAttr { state: Some(QpState::Rts), rate_limit, ..QpAttr::default() });
            }
            0 | 1 => stage.post(&mut input),
            2 => stage.turn(),
            3 => stage.now = stage.now + Nanos(u64::from(input.u16()) << 6),
            4 if input.u8().is_multiple_of(8) => {
                let qp = usize::from(input.u8()) % 2;
                stage.modify(qp, &QpAttr { state: Some(QpState::Reset), ..QpAttr::default() });
                stage.posted += 16;
                stage.bring_up(qp, input.u8());
            }
            _ => stage.packet(&mut input),
        }
    }
    stage.settle();
}

/// Commands as a broken or malicious client sends them.
pub fn commands(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut stage = Stage::new();
    let mut rings = Vec::new();
    while !input.is_empty() {
        let command = command(&mut input, &mut rings);
        // Any result is valid.
        let _ = stage.host.call(stage.now, command);
        if input.flag() {
            stage.now = stage.now + Nanos(u64::from(input.u16()));
            stage.turn();
        }
    }
    // Commands may have reached the regions; their content does not matter here.
    stage.turn();
}

/// An application that overwrites the memory shared with the NIC.
pub fn queues(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut stage = Stage::new();
    stage.create(QpType::Rc);
    stage.bring_up(0, 3 + input.u8() % 3);
    let before = stage.forbidden.bytes(0, FORBIDDEN);
    while !input.is_empty() {
        match input.u8() % 8 {
            0 => stage.post(&mut input),
            1 => stage.packet(&mut input),
            2 => stage.turn(),
            _ => scribble(&stage, &mut input),
        }
    }
    // The application's queues may be corrupt, so completions are not checked; the NIC continues with other QPs.
    for _ in 0..64 {
        stage.host.worker.poll(stage.now);
        stage.now = stage.now + Nanos(1 << 16);
        while stage.peer.rx_burst(stage.now) > 0 {
            stage.peer.rx_release();
        }
    }
    assert_eq!(stage.forbidden.bytes(0, FORBIDDEN), before, "memory that no key opened has changed");
    stage.create(QpType::Rc);
    stage.bring_up(1, 3);
    let sge = stage.memory.sge(0, 8);
    let wr = SendWr { opcode: WrOpcode::Write, ..SendWr::default() };
    stage.host.post_send(&stage.qps[1], &wr, Payload::Sges(&[sge])).expect("a new QP has room");
    let sent = (0..64).any(|_| {
        stage.host.worker.poll(stage.now);
        let qpn = stage.qps[1].handle.qpn;
        let count = stage.peer.rx_burst(stage.now);
        let ours = (0..count).any(|i| {
            parse(&stage.peer.rx_frame(i).frame).is_ok_and(|p| p.bth.opcode == Opcode::RC_WRITE_ONLY)
        });
        stage.peer.rx_release();
        ours && qpn != Qpn::new(0)
    });
    assert!(sent, "another QP of the same NIC no longer works");
}

fn scribble(stage: &Stage, input: &mut Input<'_>) {
    let words = stage.host.shared_words(&stage.qps[0]);
    let ring = words[usize::from(input.u8()) % words.len()];
    let at = usize::from(input.u16()) % ring.len();
    ring[at].store(input.number(8), Relaxed);
    stage.host.ring(&stage.qps[0]);
}
