//! Regions that are deregistered in the middle of a transfer.

use roxie::nic::Command;
use roxie::verbs::{Access, EventKind, LKey, SendWr, Sge, WcStatus, WrOpcode};
use roxie::wire::{Aeth, Ext, NakCode, Opcode, Reth};

use crate::transport::regions::{ACK, SOON, bytes, memory};
use crate::transport::{Answer, FIRST, Stage};

#[test]
fn deregistration_ends_a_read_response_with_a_nak() {
    let mut stage = Stage::new();
    let memory = memory(1 << 16);
    let region = stage.register(Access::READ_WRITE, 0, memory).expect("a region");
    // More packets than one pass sends.
    let reth = Reth { va: 0, rkey: region.key, dma_len: 1 << 16 };
    let bth = roxie::wire::Bth {
        opcode: Opcode::RC_READ_REQUEST,
        dest_qp: stage.qp.handle.qpn,
        ..roxie::wire::Bth::default()
    };
    stage.send(&bth, &Ext::Reth(reth), &[]);
    stage.host.worker.poll(stage.now);
    let first = stage.all_arrived();
    assert!((1..256).contains(&first.len()), "{}", first.len());
    stage.host.call(stage.now, Command::DeregisterMemory(region.index)).expect("the region exists");
    let refusal = Answer::nak(first.len() as u32, NakCode::RemoteAccess);
    assert!(stage.answers() == [refusal], "not a packet more of it");
}

//= test: IBTA 9.7.4.1.5: key-is-checked-with-each-packet
#[test]
fn deregistration_ends_a_write() {
    let mut stage = Stage::new();
    let memory = memory(512);
    let region = stage.register(Access::READ_WRITE, 0, memory.clone()).expect("a region");
    let reth = Reth { va: 0, rkey: region.key, dma_len: 512 };
    assert_eq!(stage.request(Opcode::RC_WRITE_FIRST, 0, Ext::Reth(reth), &[1; 256]), [Answer::ack(0)]);
    stage.host.call(stage.now, Command::DeregisterMemory(region.index)).expect("the region exists");
    let answers = stage.request(Opcode::RC_WRITE_LAST, 1, Ext::None, &[1; 256]);
    stage.assert_access_ended(&answers, 1);
    assert_eq!(bytes(&memory, 0, 512), [[1; 256], [0; 256]].concat());
}

#[test]
fn deregistration_fails_a_receive_in_progress() {
    let mut stage = Stage::new();
    let memory = memory(512);
    let region = stage.register(Access::LOCAL_WRITE, 0, memory.clone()).expect("a region");
    let sge = Sge { addr: 0, length: 512, lkey: LKey(region.key) };
    stage.host.post_recv(&stage.qp, 5, &[sge]).expect("room");
    stage.request(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; 256]);
    stage.host.call(stage.now, Command::DeregisterMemory(region.index)).expect("the region exists");
    let answers = stage.request(Opcode::RC_SEND_LAST, 1, Ext::None, &[1; 256]);
    assert_eq!(stage.statuses(), [(5, WcStatus::LocProt)]);
    stage.assert_ended_by(&answers, 1, NakCode::RemoteOperational, EventKind::QpFatal);
    assert_eq!(bytes(&memory, 0, 512), [[1; 256], [0; 256]].concat());
}

#[test]
fn deregistration_fails_a_send_in_progress() {
    let mut stage = Stage::new();
    let region = stage.register(Access::empty(), 0, memory(1 << 16)).expect("a region");
    let sges = [Sge { addr: 0, length: 1 << 16, lkey: LKey(region.key) }];
    stage.post_list(&SendWr { wr_id: 1, ..SendWr::default() }, &sges);
    stage.host.worker.poll(stage.now);
    let first = stage.all_arrived();
    assert!((1..256).contains(&first.len()), "{}", first.len());
    stage.host.call(stage.now, Command::DeregisterMemory(region.index)).expect("the region exists");
    assert_eq!(stage.wait(SOON), []);
    stage.acknowledge(FIRST + 63, ACK, 0);
    assert_eq!(stage.wait(SOON), [], "there is room in the window, and not a packet more");
    assert_eq!(stage.statuses(), [(1, WcStatus::LocProt)]);
}

#[test]
fn deregistration_fails_an_outstanding_read() {
    let mut stage = Stage::new();
    let memory = memory(64);
    let region = stage.register(Access::LOCAL_WRITE, 0, memory.clone()).expect("a region");
    let sges = [Sge { addr: 0, length: 64, lkey: LKey(region.key) }];
    stage.post_list(&SendWr { wr_id: 1, opcode: WrOpcode::Read, ..SendWr::default() }, &sges);
    stage.wait(SOON);
    stage.host.call(stage.now, Command::DeregisterMemory(region.index)).expect("the region exists");
    let aeth = Ext::Aeth(Aeth { syndrome: ACK.into(), msn: 1 });
    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST, aeth, &[1; 64]);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::LocProt)]);
    assert_eq!(bytes(&memory, 0, 64), [0; 64]);
}
