//! One NIC against a peer that the test plays packet by packet: what other implementations do that Roxie does not.

use roxie::limits::Limits;
use roxie::nic::NicConfig;
use roxie::port::Port;
use roxie::shared::work_queue::Payload;
use roxie::sim::{Host, HostQp, HostRegion, joined_ports};
use roxie::time::Nanos;
use roxie::verbs::{
    Access, Gid, Mtu, Psn, QpAttr, QpCaps, QpState, Qpn, RKey, SendWr, Wc, WcStatus, WrOpcode,
};
use roxie::wire::{
    Aeth, Bth, Ext, FlowSpec, MAX_HEADERS, NakCode, Opcode, RoceVersion, Syndrome, Template, parse,
    rnr_timer_ns,
};

const PEER_QPN: Qpn = Qpn::new(0x77);
/// What the NIC sends first. The wrap is near.
const FIRST: Psn = Psn::new(0xff_fffe);
const MTU: Mtu = Mtu::Mtu256;
/// 4.096 us << 12.
const TIMEOUT_CODE: u8 = 12;
const TIMEOUT: Nanos = Nanos(4096 << TIMEOUT_CODE);
const RETRIES: u8 = 2;

/// A connected NIC, and the frames on the other end of its link.
struct Stage {
    host: Host,
    qp: HostQp,
    memory: HostRegion,
    peer: Box<dyn Port>,
    template: Template,
    now: Nanos,
}

impl Stage {
    fn new() -> Stage {
        let (near, far) = joined_ports(1500, None);
        let config = NicConfig { limits: Limits::small(), seed: 1, ..NicConfig::default() };
        let mut host = Host::new(1, config, near);
        let memory = host.register(1 << 16, Access::LOCAL_WRITE);
        let qp = host.create_qp(QpCaps::default(), true, 16);
        for attr in attributes(&host) {
            host.modify(Nanos::ZERO, &qp, &attr).expect("a legal transition");
        }
        let gid = |n| Gid::from(Host::address(n, false));
        let template = Template::new(&FlowSpec {
            src_mac: Host::mac(2),
            dst_mac: Host::mac(1),
            vlan: None,
            src: gid(2),
            dst: gid(1),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            source_port: 0xc000,
            version: RoceVersion::V2,
        });
        Stage { host, qp, memory, peer: far, template, now: Nanos::ZERO }
    }

    fn post(&self, opcode: WrOpcode, length: u32) {
        let wr = SendWr { opcode, remote_addr: 0x1000, rkey: RKey(1), ..SendWr::default() };
        let sges = [self.memory.sge(0, length)];
        self.host.post_send(&self.qp, &wr, Payload::Sges(&sges)).expect("room for a request");
    }

    /// Moves the time and returns the packets that leave meanwhile.
    fn wait(&mut self, time: Nanos) -> Vec<(Opcode, Psn)> {
        let until = self.now + time;
        let mut seen = Vec::new();
        while self.now < until {
            // Once for what is there, once for what that leads to.
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

    /// The peer answers.
    fn answer(&mut self, opcode: Opcode, psn: Psn, ext: Ext, payload: &[u8]) {
        let bth = Bth { opcode, dest_qp: self.qp.handle.qpn, psn, ..Bth::default() };
        let mut headers = [0; MAX_HEADERS];
        let at = self.template.write_headers(&mut headers, &bth, &ext, payload.len());
        let id = self.peer.tx_alloc(self.template.frame_len(opcode, payload.len())).expect("room");
        let mut frame = self.peer.tx_frame(&id);
        frame.write(0, &headers[..at]);
        frame.write(at, payload);
        self.template.seal(&mut frame);
        self.peer.tx_commit(id);
        self.peer.tx_flush(self.now).expect("memory does not fail");
    }

    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        let aeth = Aeth { syndrome: syndrome.into(), msn };
        self.answer(Opcode::RC_ACKNOWLEDGE, psn, Ext::Aeth(aeth), &[]);
    }

    /// A response from the midst of a READ's answer, full of `byte`.
    fn read_middle(&mut self, psn: Psn, byte: u8) {
        self.answer(Opcode::RC_READ_RESPONSE_MIDDLE, psn, Ext::None, &[byte; MTU.bytes()]);
    }

    fn completions(&self) -> Vec<Wc> {
        std::iter::from_fn(|| self.host.poll_cq(&self.qp)).collect()
    }
}

fn attributes(host: &Host) -> [QpAttr; 3] {
    [
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::all()),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rtr),
            av: Some(host.path(2, false)),
            path_mtu: Some(MTU),
            dest_qpn: Some(PEER_QPN),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(4),
            min_rnr_timer: Some(12),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(FIRST),
            timeout: Some(TIMEOUT_CODE),
            retry_cnt: Some(RETRIES),
            rnr_retry: Some(7),
            max_rd_atomic: Some(4),
            ..QpAttr::default()
        },
    ]
}

/// rdma_rxe answers the packets behind one that it had no receive for with a sequence NAK, after the RNR NAK.
#[test]
fn sequence_naks_during_an_rnr_wait_use_up_no_retries() {
    const TIMER: u8 = 14;
    let mut stage = Stage::new();
    stage.post(WrOpcode::Send, 3 * 256);
    let message = [
        (Opcode::RC_SEND_FIRST, FIRST),
        (Opcode::RC_SEND_MIDDLE, FIRST + 1),
        (Opcode::RC_SEND_LAST, FIRST + 2),
    ];
    assert_eq!(stage.wait(Nanos(1000)), message);
    for round in 0..3 * u32::from(RETRIES) {
        stage.acknowledge(FIRST, Syndrome::RnrNak { timer: TIMER }, 0);
        stage.acknowledge(FIRST, Syndrome::Nak(NakCode::PsnSequence), 0);
        let wait = Nanos(rnr_timer_ns(TIMER));
        assert_eq!(
            stage.wait(wait - Nanos(2000)),
            [],
            "round {round}: nothing leaves before the wait is over"
        );
        assert_eq!(stage.wait(Nanos(4000)), message, "round {round}");
    }
    assert_eq!(stage.completions(), []);
    stage.acknowledge(FIRST + 2, Syndrome::Ack { credits: 31 }, 1);
    stage.wait(Nanos(1000));
    assert_eq!(stage.completions().iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
}

/// A peer that streams a long answer takes up the repeated request when it is through, as rdma_rxe does.
#[test]
fn the_rest_of_an_answer_that_lost_a_packet_is_no_silence() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Read, 100 * 256);
    assert_eq!(stage.wait(Nanos(1000)), [(Opcode::RC_READ_REQUEST, FIRST)]);
    // The first packet of the answer is lost; the others come, over several times the ACK timeout.
    stage.read_middle(FIRST + 1, 0xee);
    assert_eq!(stage.wait(Nanos(1000)), [(Opcode::RC_READ_REQUEST, FIRST)]);
    for k in 2..40 {
        stage.read_middle(FIRST + k, 0xee);
        assert_eq!(stage.wait(Nanos(TIMEOUT.0 / 4)), [], "response {k} shows that the peer is at work");
    }
    // Then nothing more comes: each silence costs one retry, and what is late does not cost another.
    assert_eq!(stage.wait(TIMEOUT), [(Opcode::RC_READ_REQUEST, FIRST)]);
    stage.read_middle(FIRST + 40, 0xee);
    assert_eq!(stage.wait(Nanos(1000)), []);
    // What belongs to the repeated request is taken.
    stage.read_middle(FIRST, 0x11);
    stage.wait(Nanos(1000));
    assert_eq!(
        stage.memory.bytes(0, 512),
        [[0x11; 256], [0; 256]].concat(),
        "only what came in order is stored"
    );
    assert_eq!(stage.completions(), []);
}
