//! Comments in a capture of the NIC's port: why a packet was sent, and what the NIC did with a received one.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use std::net::Ipv4Addr;

use roxie::capture::Reader;
use roxie::nic::Command;
use roxie::port::Port;
use roxie::port::pcap::{PcapPort, Timestamps};
use roxie::time::Nanos;
use roxie::verbs::{Gid, QpAttr, QpState, QpType, Qpn, WrOpcode};
use roxie::wire::net::multicast_mac;
use roxie::wire::{
    AtomicEth, Bth, Deth, Ext, FlowSpec, NakCode, Opcode, Psn, Reth, RoceVersion, Syndrome, Template,
};
use roxie_sim::joined_ports;

use crate::transport::{FIRST, PEER_QPN, Setup, Stage, TIMEOUT, template};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// A capture file in memory, and the number of comments that were read.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Vec<u8>>>, Arc<Mutex<usize>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    /// Returns how often `text` occurs in the file.
    fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap().windows(text.len()).filter(|w| *w == text.as_bytes()).count()
    }

    /// Returns the time of each frame.
    fn times(&self) -> Vec<Nanos> {
        let bytes = self.0.lock().unwrap().clone();
        let mut reader = Reader::new(&bytes[..]).expect("a capture");
        std::iter::from_fn(|| {
            reader.next().expect("whole").map(|record| Nanos(record.timestamp_ns.expect("a time")))
        })
        .collect()
    }

    /// Returns the comments since the last call.
    pub(crate) fn comments(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap().clone();
        let mut reader = Reader::new(&bytes[..]).expect("a capture");
        let mut all = Vec::new();
        while let Some(record) = reader.next().expect("whole") {
            all.push(record.comment.unwrap_or("").to_owned());
        }
        all.split_off(std::mem::replace(&mut self.1.lock().unwrap(), all.len()))
    }
}

pub(crate) fn captured(setup: Setup) -> (Stage, Shared) {
    let file = Shared::default();
    let (local, remote) = joined_ports(1500, None);
    let local: Box<dyn Port> =
        Box::new(PcapPort::new(local, file.clone(), Timestamps::Virtual, None).expect("a file"));
    (Stage::on(setup, local, remote), file)
}

/// A post sends without receiving first: the time of the last receive is not that of the frame.
#[test]
fn frame_of_a_post_has_its_time() {
    let (mut stage, file) = captured(Setup::default());
    stage.wait(SOON);
    stage.post(WrOpcode::Send, 4);
    let posted = stage.now + Nanos(5_000_000);
    stage.host.worker.send_out(posted);
    assert_eq!(file.times(), [posted]);
}

#[test]
fn retransmit_comment_names_cause_and_retry() {
    let (mut stage, file) = captured(Setup { rnr_retry: 3, ..Setup::default() });
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    stage.acknowledge(FIRST, Syndrome::RnrNak { timer: 1 }, 0);
    stage.wait(Nanos(20_000));
    stage.acknowledge(FIRST, Syndrome::RnrNak { timer: 1 }, 0);
    stage.wait(Nanos(20_000));
    stage.acknowledge(FIRST, Syndrome::Nak(NakCode::PsnSequence), 0);
    stage.wait(SOON);
    stage.wait(TIMEOUT);
    let comments = [
        "retransmit after RNR NAK, try 1 of 3",
        "retransmit after RNR NAK, try 2 of 3",
        "retransmit after sequence NAK, try 1 of 2",
        "retransmit after timeout, try 2 of 2",
    ];
    assert_eq!(comments.map(|text| file.count(text)), [1; 4]);
    assert_eq!(file.count("retransmit after"), 4);
}

#[test]
fn retransmit_cause_lasts_until_all_is_acknowledged() {
    let (mut stage, file) = captured(Setup::default());
    for _ in 0..3 {
        stage.post(WrOpcode::Write, 4);
    }
    stage.wait(SOON);
    stage.acknowledge(FIRST, Syndrome::Nak(NakCode::PsnSequence), 0);
    // An ACK of the first request: the remaining packets still answer the NAK.
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    assert_eq!(file.count("retransmit after sequence NAK"), 2);
    assert_eq!(file.count("retransmit after timeout"), 0);
}

const EXECUTED: &str = "executed";
const ANSWER: &str = "answer";

#[test]
fn request_and_response_comments_name_the_outcome() {
    let (mut stage, file) = captured(Setup::default());
    stage.receive(1, 0, 100);
    let mut send = |psn| {
        stage.request(Opcode::RC_SEND_ONLY, psn, Ext::None, &[1]);
        file.comments()
    };
    let gap = "ahead of its turn: PSN 0 is due; ";
    assert_eq!(send(1), [&format!("{gap}sequence NAK"), "asks for everything from this PSN again"]);
    assert_eq!(send(2), [format!("{gap}silent, already asked for")]);
    assert_eq!(send(0), [EXECUTED, ANSWER]);
    let again = "answer to a duplicate";
    assert_eq!(send(0), ["duplicate: answered again, not executed again", again]);
    assert_eq!(send(1), ["no receive posted: RNR NAK", "no receive is posted: asks to come again later"]);
}

#[test]
fn refusal_comment_names_the_cause() {
    let cases = [
        (Opcode::RC_WRITE_ONLY, NakCode::RemoteAccess, "key unknown"),
        (Opcode::RC_SEND_MIDDLE, NakCode::InvalidRequest, "goes on with a message that has not begun"),
    ];
    for (opcode, code, why) in cases {
        let (mut stage, file) = captured(Setup::default());
        let nowhere = Reth { rkey: stage.memory.key ^ 1, ..stage.reth(0, 1) };
        let ext = if opcode == Opcode::RC_WRITE_ONLY { Ext::Reth(nowhere) } else { Ext::None };
        stage.request(opcode, 0, ext, &[1]);
        let comments =
            [format!("refused: NAK {code:?}: {why}; QP to error"), format!("refuses: {why}; QP to error")];
        assert_eq!(file.comments(), comments);
        stage.request(Opcode::RC_SEND_ONLY, 1, Ext::None, &[]);
        assert_eq!(file.comments(), ["dropped: QP is in Err"]);
    }
}

#[test]
fn duplicate_comment_tells_saved_from_evicted_results() {
    let (mut stage, file) = captured(Setup::default());
    let eth = AtomicEth { va: stage.memory.address, rkey: stage.memory.key, swap_or_add: 5, compare: 0 };
    let mut add = |psn| {
        stage.request(Opcode::RC_FETCH_ADD, psn, Ext::Atomic(eth), &[]);
        file.comments()
    };
    for psn in 0..5 {
        assert_eq!(add(psn), [EXECUTED, ANSWER]);
    }
    assert_eq!(add(4), ["duplicate: answered again, not executed again", "answer to a duplicate"]);
    // Four results are saved.
    assert_eq!(add(0), ["duplicate whose saved result is gone: dropped"]);
}

#[test]
fn response_comment_names_the_outcome() {
    let (mut stage, file) = captured(Setup { rnr_retry: 3, ..Setup::default() });
    for _ in 0..2 {
        stage.post(WrOpcode::Write, 4);
    }
    stage.wait(SOON);
    assert_eq!(file.comments(), ["request", "request"]);
    let mut acknowledge = |psn, syndrome| {
        stage.acknowledge(psn, syndrome, 0);
        stage.wait(SOON);
        file.comments()
    };
    assert_eq!(acknowledge(FIRST, ACK), ["acknowledges"]);
    assert_eq!(acknowledge(FIRST, ACK), ["old acknowledgement"]);
    assert_eq!(acknowledge(FIRST + 2, ACK), ["ghost: acknowledges nothing that was sent; dropped"]);
    assert_eq!(acknowledge(FIRST + 1, Syndrome::Reserved(0x40)), ["dropped: reserved syndrome 0x40"]);
    let wait = Syndrome::RnrNak { timer: 1 };
    assert_eq!(acknowledge(FIRST + 1, wait), ["receiver not ready: wait 10.000 us"]);
    assert_eq!(acknowledge(FIRST + 1, Syndrome::Nak(NakCode::PsnSequence)), ["stale: already going back"]);
    stage.wait(Nanos(20_000));
    assert_eq!(file.comments(), ["retransmit after RNR NAK, try 1 of 3"]);
    stage.acknowledge(FIRST + 1, Syndrome::Nak(NakCode::PsnSequence), 0);
    stage.wait(SOON);
    let comments = ["sequence NAK: go back and send again", "retransmit after sequence NAK, try 1 of 2"];
    assert_eq!(file.comments(), comments);
    stage.acknowledge(FIRST + 1, Syndrome::Nak(NakCode::RemoteOperational), 0);
    stage.wait(SOON);
    let comments = file.comments();
    assert!(
        comments.len() == 1 && comments[0].starts_with("work request fails, QP to error: remote"),
        "{comments:?}"
    );
    assert_eq!(stage.state(), QpState::Err);
}

#[test]
fn implied_nak_is_named_in_capture() {
    let (mut stage, file) = captured(Setup::default());
    stage.post(WrOpcode::Read, 8);
    stage.post(WrOpcode::Write, 8);
    stage.wait(SOON);
    file.comments();
    stage.acknowledge(FIRST + 1, ACK, 2);
    stage.wait(SOON);
    let again = "retransmit after implied NAK, try 1 of 2";
    assert_eq!(file.comments(), ["implied NAK: go back and send again", again, again]);
}

#[test]
fn dropped_packet_comment_names_the_reason() {
    let (mut stage, file) = captured(Setup::default());
    let bth = Bth { opcode: Opcode::RC_SEND_ONLY, dest_qp: stage.qp.handle.qpn, ..Bth::default() };
    let unknown = Qpn::new(stage.qp.handle.qpn.value() ^ 1);
    let cases = [
        (Bth { dest_qp: unknown, ..bth }, Ext::None, format!("dropped: no QP {unknown}")),
        (Bth { pkey: 0x1234, ..bth }, Ext::None, "dropped: P_Key 0x1234".into()),
        (Bth { opcode: Opcode::UC_SEND_ONLY, ..bth }, Ext::None, "dropped: not the QP's service".into()),
        (
            Bth { opcode: Opcode::CNP, becn: true, ..bth },
            Ext::None,
            "congestion notification, ignored".into(),
        ),
        (
            Bth { opcode: Opcode::CNP, ..bth },
            Ext::None,
            "dropped: congestion notification without BECN or with a payload".into(),
        ),
        (Bth { opcode: Opcode(0x1f), ..bth }, Ext::None, "dropped: unknown opcode 0x1f".into()),
    ];
    for (bth, ext, comments) in cases {
        let good = bth.opcode.info().is_some();
        if good {
            stage.send(&bth, &ext, &[]);
        } else {
            // The packet builder rejects unknown opcodes.
            stage.send_bytes(|frame| frame[42] = bth.opcode.0);
        }
        assert_eq!(stage.answers(), []);
        assert_eq!(file.comments(), [comments]);
    }
    stage.send_bytes(|frame| frame[60] ^= 1);
    assert_eq!(stage.answers(), []);
    let comments = file.comments();
    assert!(comments.len() == 1 && comments[0].starts_with("dropped: ICRC 0x"), "{comments:?}");
    stage.send_bytes(|frame| frame[36] ^= 1);
    assert_eq!(stage.answers(), []);
    assert_eq!(file.comments(), ["dropped: not RoCE: neither UDP port 4791 nor EtherType 0x8915"]);
    stage.template = template(3);
    stage.send(&bth, &Ext::None, &[]);
    assert_eq!(stage.answers(), []);
    assert_eq!(file.comments(), ["dropped: not the QP's peer"]);
}

#[test]
fn uc_drop_comment_names_the_reason() {
    let (mut stage, file) = captured(Setup { qp_type: QpType::Uc, ..Setup::default() });
    let mut send = |opcode, psn, ext, payload: &[u8]| {
        assert_eq!(stage.request(opcode, psn, ext, payload), []);
        file.comments()
    };
    assert_eq!(send(Opcode::UC_SEND_ONLY, 0, Ext::None, &[1]), ["dropped: no receive posted"]);
    let comment = "dropped: part of a message that lost a packet, PSN 1 was due";
    assert_eq!(send(Opcode::UC_SEND_LAST, 5, Ext::None, &[1]), [comment]);
    let reth = Reth { va: 0, rkey: 0, dma_len: 1 };
    let comment = "dropped: key unknown";
    assert_eq!(send(Opcode::UC_WRITE_ONLY, 6, Ext::Reth(reth), &[1]), [comment]);
    stage.receive(1, 0, 4);
    assert_eq!(stage.request(Opcode::UC_SEND_ONLY, 7, Ext::None, &[1]), []);
    assert_eq!(file.comments(), [EXECUTED]);
    stage.post(WrOpcode::Send, 4);
    stage.wait(SOON);
    assert_eq!(file.comments(), ["request"]);
}

#[test]
fn ud_drop_comment_names_the_reason() {
    const QKEY: u32 = 0x1111_2222;
    let (mut stage, file) = captured(Setup { qp_type: QpType::Ud, ..Setup::default() });
    let to = stage.qp.handle.qpn;
    let send = |stage: &mut Stage, to, qkey, payload: &[u8]| {
        let bth = Bth { opcode: Opcode::UD_SEND_ONLY, dest_qp: to, psn: Psn::new(1), ..Bth::default() };
        stage.send(&bth, &Ext::Deth(Deth { qkey, src_qp: PEER_QPN }), payload);
        assert_eq!(stage.answers(), []);
        file.comments()
    };
    assert_eq!(send(&mut stage, to, 5, &[1]), ["dropped: Q_Key 0x00000005 is not the QP's"]);
    assert_eq!(send(&mut stage, to, QKEY, &[1]), ["dropped: no receive posted"]);

    let ip = Ipv4Addr::new(239, 1, 2, 3);
    let one_to_one = std::mem::replace(&mut stage.template, to_group(ip));
    let dropped = "dropped: no QP is attached to its group";
    assert_eq!(send(&mut stage, Qpn::MULTICAST, QKEY, &[1]), [dropped]);
    let attach = Command::AttachMulticast(stage.qp.handle.index, Gid::from(ip));
    stage.host.call(stage.now, attach).expect("a datagram QP and a group");
    let comment = "multicast: taken by 0 of 1 QPs; dropped: no receive posted";
    assert_eq!(send(&mut stage, Qpn::MULTICAST, QKEY, &[1]), [comment]);
    stage.receive(1, 0, 100);
    assert_eq!(send(&mut stage, Qpn::MULTICAST, QKEY, &[1]), ["multicast: taken by 1 of 1 QPs"]);

    stage.template = one_to_one;
    stage.receive(2, 0, 41);
    assert_eq!(send(&mut stage, to, QKEY, &[1, 2]), ["dropped: message is longer than the receive"]);
    let long = vec![1; 1028];
    let comment = "dropped: payload does not fit its place in the message or the path MTU";
    assert_eq!(send(&mut stage, to, QKEY, &long), [comment]);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &reset).expect("always allowed");
    assert_eq!(send(&mut stage, to, QKEY, &[1]), ["dropped: QP is in Reset"]);
}

fn to_group(ip: Ipv4Addr) -> Template {
    Template::new(&FlowSpec {
        src_mac: roxie_sim::Host::mac(2),
        dst_mac: multicast_mac(ip.into()).expect("a group"),
        vlan: None,
        src: Gid::from(roxie_sim::Host::address(2, false)),
        dst: Gid::from(ip),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 1,
        source_port: 0xc000,
        version: RoceVersion::V2,
    })
}
