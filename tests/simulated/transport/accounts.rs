//! Reference counts. A wrong count shows late: an object cannot be destroyed, or is destroyed too early. `Stage`
//! compares all counts when a test ends; the cases here occur in no other test.

use roxie::nic::{Answer as Reply, Command, MemoryCommand, ReceiveSource};
use roxie::shared::{CompletionRing, RecvRing, SendRing};
use roxie::verbs::{CqIndex, PdId, QpCaps, QpInit, QpState, QpType};
use roxie::wire::{Ext, Opcode};

use crate::transport::{Setup, Stage};

const INIT: QpInit =
    QpInit { qp_type: QpType::Rc, caps: QpCaps { max_recv_wr: 8, ..QpCaps::NONE }, sq_sig_all: true };

fn domain(stage: &mut Stage) -> PdId {
    match stage.host.call(stage.now, Command::AllocPd) {
        Ok(Reply::Pd(pd)) => pd,
        other => panic!("a domain: {other:?}"),
    }
}

fn create_qp(
    stage: &mut Stage,
    pd: PdId,
    (send_cq, recv_cq): (CqIndex, CqIndex),
) -> Option<roxie::nic::QpHandle> {
    let sends = SendRing::new(8, 1, 0).expect("memory");
    let receives = ReceiveSource::Own(RecvRing::new(8, 1).expect("memory"));
    let command = MemoryCommand::CreateQp { pd, send_cq, recv_cq, init: INIT, sends, receives };
    match stage.host.call(stage.now, command) {
        Ok(Reply::Qp(handle)) => Some(handle),
        _ => None,
    }
}

#[test]
fn region_moved_to_another_pd_releases_the_first() {
    let mut stage = Stage::new();
    let (first, second) = (domain(&mut stage), domain(&mut stage));
    let mr = stage.host.register(64, roxie::verbs::Access::LOCAL_WRITE).index;
    for pd in [first, second, first] {
        let change = MemoryCommand::ReregisterMemory { mr, pd: Some(pd), access: None, translation: None };
        stage.host.call(stage.now, change).expect("both domains exist");
    }
    stage.host.call(stage.now, Command::DeallocPd(second)).expect("no users left");
    assert!(stage.host.call(stage.now, Command::DeallocPd(first)).is_err(), "the region belongs to it");
    stage.host.call(stage.now, Command::DeregisterMemory(mr)).expect("the object exists");
    stage.host.call(stage.now, Command::DeallocPd(first)).expect("no users left");
}

#[test]
fn failed_create_qp_releases_its_references() {
    let mut stage = Stage::new();
    let pd = domain(&mut stage);
    let cq = stage.host.create_cq(8, None).0;
    let mut made = Vec::new();
    while let Some(handle) = create_qp(&mut stage, pd, (cq, cq)) {
        made.push(handle);
    }
    assert_eq!(made.len() + 1, stage.host.worker.nic().limits().qps as usize);
    assert_eq!(stage.host.worker.nic().inconsistency(), None);
    for handle in made {
        stage.host.call(stage.now, Command::DestroyQp(handle.index)).expect("the object exists");
    }
    stage.host.call(stage.now, Command::DestroyCq(cq)).expect("no users left");
    stage.host.call(stage.now, Command::DeallocPd(pd)).expect("no users left");
}

/// The full queue may be a QP's send or its receive completion queue (IBTA 11.6.3.2).
#[test]
fn cq_overflow_fails_only_qps_that_use_it() {
    let mut stage =
        Stage::with(Setup { caps: QpCaps { max_recv_wr: 64, ..QpCaps::default() }, ..Setup::default() });
    let pd = stage.host.pd();
    let full = stage.qp.cq_index;
    let other = stage.host.create_cq(8, None).0;
    let users = [(full, other), (other, full), (other, other)]
        .map(|cqs| create_qp(&mut stage, pd, cqs).expect("room"));
    for handle in users {
        let attr = roxie::verbs::QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(roxie::verbs::Access::empty()),
            ..Default::default()
        };
        stage.host.modify(stage.now, handle.index, &attr).expect("a legal transition");
    }
    for id in 0..20 {
        stage.receive(id, 0, 8);
    }
    // The queue holds 16 completions.
    for psn in 0..17 {
        stage.request(Opcode::RC_SEND_ONLY, psn, Ext::None, &[1]);
    }
    let states = users.map(|handle| stage.host.query(stage.now, handle.index).state);
    assert_eq!(states, [QpState::Err, QpState::Err, QpState::Init]);
    assert_eq!(stage.state(), QpState::Err);
}

/// A queue that lost a completion stays failed after a resize. New completions would hide the gap.
#[test]
fn resize_does_not_revive_an_overflowed_cq() {
    let mut stage = Stage::new();
    for id in 0..40 {
        stage.receive(id, 0, 8);
    }
    for psn in 0..17 {
        stage.request(Opcode::RC_SEND_ONLY, psn, Ext::None, &[1]);
    }
    let (cq, ring) = (stage.qp.cq_index, CompletionRing::new(64).expect("memory"));
    stage.host.call(stage.now, MemoryCommand::ResizeCq { cq, ring: ring.clone() }).expect("more room");
    let held = ring.positions();
    stage.request(Opcode::RC_SEND_ONLY, 17, Ext::None, &[1]);
    assert_eq!((held, ring.positions()), ((0, 16), (0, 16)));
}
