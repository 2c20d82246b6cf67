//! The states of a QP, its transitions, and its destruction.

use roxie::nic::{Command, ControlError, ObjectKind};
use roxie::time::Nanos;
use roxie::verbs::{EventKind, Psn, QpAttr, QpCaps, QpState, SendFlags, WcStatus, WrOpcode};
use roxie::wire::{Bth, Ext, Opcode, Syndrome};

use crate::transport::{Answer, FIRST, Setup, Stage, TIMEOUT, attributes};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

pub(crate) fn modify_to(stage: &mut Stage, state: QpState) {
    let attr = QpAttr { state: Some(state), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
}

//= test: IBTA 10.3.1.5: sqd-finishes-what-has-begun, sqd-tells-when-it-is-drained
#[test]
fn sqd_drains_started_requests_and_raises_an_event() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 8);
    stage.wait(SOON);
    let attr = QpAttr { state: Some(QpState::Sqd), en_sqd_async_notify: Some(true), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
    stage.post_as(2, WrOpcode::Write, SendFlags::SIGNALED, 8);
    assert_eq!(stage.wait(SOON), [], "nothing new starts");
    assert_eq!(stage.events(), [], "not drained yet");
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(stage.events(), [EventKind::SqDrained]);
    modify_to(&mut stage, QpState::Rts);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST + 1)]);
}

//= test: IBTA 10.3.1.7: error-flushes-both-queues
#[test]
fn error_state_flushes_both_queues_in_order() {
    let mut stage = Stage::new();
    stage.receive(100, 0, 8);
    stage.receive(101, 0, 8);
    stage.post_as(1, WrOpcode::Write, SendFlags::empty(), 8);
    stage.wait(SOON);
    stage.post_as(2, WrOpcode::Write, SendFlags::empty(), 8);
    modify_to(&mut stage, QpState::Err);
    stage.wait(SOON);
    let mut statuses = stage.statuses();
    assert!(statuses.iter().all(|(_, status)| *status == WcStatus::WrFlush), "{statuses:?}");
    let sends: Vec<_> = statuses.iter().map(|s| s.0).filter(|id| *id < 100).collect();
    let receives: Vec<_> = statuses.iter().map(|s| s.0).filter(|id| *id >= 100).collect();
    assert_eq!((sends, receives), (vec![1, 2], vec![100, 101]));
    statuses.clear();
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), []);
    assert_eq!(stage.counter("rx_wrong_state"), 1);
}

//= test: IBTA 9.7.1: psn-begins-as-agreed
//= test: IBTA 10.3.1.1: reset-forgets
#[test]
fn reset_qp_can_be_connected_again() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 8);
    stage.receive(1, 0, 8);
    stage.wait(SOON);
    modify_to(&mut stage, QpState::Reset);
    assert_eq!(stage.wait(Nanos::from_millis(500)), [], "no timer is left");
    assert_eq!(stage.statuses(), [], "a reset completes nothing");
    stage.connect(&Setup::default());
    stage.receive(2, 0, 8);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), [Answer::ack(0)]);
    assert_eq!(stage.statuses(), [(2, WcStatus::Success)]);
    stage.post_as(3, WrOpcode::Write, SendFlags::SIGNALED, 8);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST)]);
}

//= test: IBTA 10.3.1.3: rtr-tells-of-the-first-packet
#[test]
fn first_packet_in_rtr_raises_comm_established() {
    let mut stage = Stage::new();
    modify_to(&mut stage, QpState::Reset);
    for attr in &attributes(&stage.host, &Setup::default())[..2] {
        stage.host.modify(stage.now, &stage.qp, attr).expect("a legal transition");
    }
    stage.receive(1, 0, 8);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), [Answer::ack(0)]);
    assert_eq!(stage.events(), [EventKind::CommunicationEstablished]);
    stage.acknowledge(FIRST, ACK, 0);
    stage.wait(SOON);
    assert_eq!(stage.counter("ghost_acks"), 1, "nothing was sent, so nothing can be acknowledged");
    // The event is raised again after a reset.
    modify_to(&mut stage, QpState::Reset);
    for attr in &attributes(&stage.host, &Setup::default())[..2] {
        stage.host.modify(stage.now, &stage.qp, attr).expect("a legal transition");
    }
    stage.receive(2, 0, 8);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), [Answer::ack(0)]);
    assert_eq!(stage.events(), [EventKind::CommunicationEstablished]);
}

#[test]
fn reset_qp_accepts_smaller_max_dest_rd_atomic() {
    let mut stage = Stage::new();
    for psn in 0..3 {
        let ext = Ext::Reth(stage.reth(0, 8));
        assert_eq!(stage.request(Opcode::RC_READ_REQUEST, psn, ext, &[]).len(), 1);
    }
    modify_to(&mut stage, QpState::Reset);
    let mut attributes = attributes(&stage.host, &Setup::default());
    attributes[1].max_dest_rd_atomic = Some(1);
    for attr in &attributes {
        stage.host.modify(stage.now, &stage.qp, attr).expect("a legal transition");
    }
    for psn in 0..3 {
        let ext = Ext::Reth(stage.reth(0, 8));
        let answers = stage.request(Opcode::RC_READ_REQUEST, psn, ext, &[]);
        assert_eq!(answers.iter().map(|a| a.opcode).collect::<Vec<_>>(), [Opcode::RC_READ_RESPONSE_ONLY]);
    }
}

//= test: IBTA 10.3.1: qp-that-is-destroyed-is-gone
#[test]
fn destroyed_qp_is_unknown() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 100 * 256);
    stage.wait(Nanos(1));
    let index = stage.qp.handle.index;
    stage.host.call(stage.now, Command::DestroyQp(index)).expect("the object exists");
    stage.wait(SOON);
    assert_eq!(stage.wait(Nanos::from_millis(500)), [], "no timer, no packet");
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), []);
    assert_eq!(stage.counter("rx_unknown_qp"), 1);
    let again = stage.host.call(stage.now, Command::DestroyQp(index));
    assert_eq!(again.err(), Some(ControlError::NotFound(ObjectKind::QueuePair)));
}

#[test]
fn cq_in_use_cannot_be_destroyed() {
    let mut stage = Stage::new();
    let cq = stage.qp.cq_index;
    let busy = stage.host.call(stage.now, Command::DestroyCq(cq));
    assert_eq!(busy.err(), Some(ControlError::Busy { object: ObjectKind::CompletionQueue, users: 2 }));
    stage.host.call(stage.now, Command::DestroyQp(stage.qp.handle.index)).expect("the object exists");
    stage.host.call(stage.now, Command::DestroyCq(cq)).expect("no users left");
}

//= test: IBTA 11.6.3.2: cq-overflow-is-an-event
#[test]
fn cq_overflow_raises_one_event() {
    let mut stage = Stage::new();
    for id in 0..20 {
        stage.receive(id, 0, 8);
    }
    for psn in 0..20 {
        stage.request(Opcode::RC_SEND_ONLY, psn, Ext::None, &[1]);
    }
    // The queue holds 16 completions.
    let ids: Vec<_> = stage.statuses().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, (0..16).collect::<Vec<_>>());
    assert_eq!(stage.counter("cq_overflow"), 4);
    let events: Vec<_> = std::iter::from_fn(|| stage.host.event()).collect();
    let error = roxie::verbs::AsyncEvent::Cq(stage.qp.cq_index, EventKind::CqError);
    assert_eq!(events.iter().filter(|event| **event == error).count(), 1);
}

//= test: IBTA 10.3.1.5: sqd-finishes-what-has-begun
#[test]
fn sqd_finishes_a_partly_sent_message() {
    let mut stage = Stage::new();
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 200 * 256);
    assert_eq!(stage.wait(SOON).len(), 128, "the window is full");
    modify_to(&mut stage, QpState::Sqd);
    stage.acknowledge(FIRST + 127, ACK, 0);
    assert_eq!(stage.wait(SOON).len(), 72);
    stage.acknowledge(FIRST + 199, ACK, 1);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(stage.events(), [], "no event was requested");
}

//= test: IBTA 10.3.1.1: reset-forgets
#[test]
fn reset_drops_pending_acks_and_the_msn() {
    let mut stage = Stage::new();
    for psn in 0..3 {
        let ext = Ext::Reth(stage.reth(0, 8));
        stage.request(Opcode::RC_WRITE_ONLY, psn, ext, &[1; 8]);
    }
    // The reset comes before the ACK of the fourth packet leaves.
    let (opcode, dest_qp) = (Opcode::RC_WRITE_ONLY, stage.qp.handle.qpn);
    let ext = Ext::Reth(stage.reth(0, 8));
    let bth = Bth { opcode, dest_qp, psn: Psn::new(3), ack_req: true, ..Bth::default() };
    stage.send(&bth, &ext, &[1; 8]);
    stage.host.worker.take_in(stage.now);
    modify_to(&mut stage, QpState::Reset);
    stage.connect(&Setup::default());
    assert_eq!(stage.answers(), []);
    assert_eq!(stage.request(Opcode::RC_WRITE_ONLY, 0, ext, &[2; 8]), [Answer::ack(0)]);
    assert_eq!(stage.msn, Some(1));
}

#[test]
fn reset_keeps_the_queues_usable() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 8);
    stage.wait(SOON);
    modify_to(&mut stage, QpState::Reset);
    stage.connect(&Setup::default());
    stage.memory.memory.write(0, &[7; 8]).expect("within");
    stage.post(WrOpcode::Write, 8);
    stage.post(WrOpcode::Write, 8);
    let payloads: Vec<_> = stage.packets().into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads, [[7; 8], [7; 8]]);
}

#[test]
fn query_qp_returns_the_next_psns() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 300);
    let ext = Ext::Reth(stage.reth(0, 8));
    stage.request(Opcode::RC_WRITE_ONLY, 0, ext, &[1; 8]);
    let status = stage.host.query(stage.now, &stage.qp);
    assert_eq!((status.sq_psn, status.rq_psn), (FIRST + 2, Psn::new(1)));
}

//= test: IBTA 9.7.5.1: nothing-follows-a-refusal
#[test]
fn pending_ack_is_dropped_in_the_error_state() {
    let mut stage = Stage::new();
    let (opcode, dest_qp) = (Opcode::RC_WRITE_ONLY, stage.qp.handle.qpn);
    let bth = Bth { opcode, dest_qp, ack_req: true, ..Bth::default() };
    let ext = Ext::Reth(stage.reth(0, 8));
    stage.send(&bth, &ext, &[1; 8]);
    stage.host.worker.take_in(stage.now);
    modify_to(&mut stage, QpState::Err);
    assert_eq!(stage.answers(), []);
}

//= test: IBTA 11.6.3.2: cq-overflow-is-an-event
#[test]
fn cq_overflow_fails_its_qp() {
    let mut stage = Stage::new();
    for id in 0..17 {
        stage.receive(id, 0, 8);
    }
    for psn in 0..17 {
        assert_eq!(stage.state(), QpState::Rts, "{psn} completions fit");
        stage.request(Opcode::RC_SEND_ONLY, psn, Ext::None, &[1]);
    }
    assert_eq!(stage.state(), QpState::Err);
    assert_eq!(stage.events(), [EventKind::QpFatal]);
}

//= test: IBTA 9.7.6.1.3: timer-runs-while-something-is-outstanding
#[test]
fn idle_connection_has_no_timer() {
    let mut stage = Stage::new();
    assert_eq!(stage.wait(Nanos(TIMEOUT.0 * 8)), []);
    assert_eq!((stage.counter("local_ack_timeout_err"), stage.state()), (0, QpState::Rts));
}

#[test]
fn state_change_does_not_restart_the_timer() {
    let mut stage = Stage::new();
    stage.post(WrOpcode::Write, 8);
    let sent = [(Opcode::RC_WRITE_ONLY, FIRST)];
    assert_eq!(stage.wait(SOON), sent);
    stage.wait(Nanos(TIMEOUT.0 / 2));
    modify_to(&mut stage, QpState::Sqd);
    assert_eq!(stage.wait(Nanos(TIMEOUT.0 / 2)), sent);
}

//= test: IBTA 11.2.5.2: refused-transition-changes-nothing
#[test]
fn refused_modify_qp_changes_nothing() {
    let mut stage = Stage::new();
    let before = stage.host.query(stage.now, &stage.qp);
    let cases = [
        // `min_rnr_timer` may change in RTS, `retry_cnt` may not.
        QpAttr { min_rnr_timer: Some(3), retry_cnt: Some(1), ..QpAttr::default() },
        QpAttr { min_rnr_timer: Some(32), ..QpAttr::default() },
        QpAttr { state: Some(QpState::Init), ..QpAttr::default() },
        QpAttr { cur_state: Some(QpState::Sqd), min_rnr_timer: Some(3), ..QpAttr::default() },
    ];
    for attr in cases {
        assert!(stage.host.modify(stage.now, &stage.qp, &attr).is_err(), "{attr:?}");
        let after = stage.host.query(stage.now, &stage.qp);
        assert_eq!(format!("{after:?}"), format!("{before:?}"), "{attr:?}");
    }
    let good = QpAttr { min_rnr_timer: Some(3), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &good).expect("RTS allows it");
    assert_eq!(stage.host.query(stage.now, &stage.qp).attributes.min_rnr_timer, 3);
}

/// A QP in SQD, in whose queues so many work requests and receives wait, and that completes to a queue with room for
/// all.
fn long_queues(count: u32) -> Stage {
    let mut stage = Stage::new();
    let caps = QpCaps { max_send_wr: count, max_recv_wr: count, ..QpCaps::default() };
    stage.qp = stage.host.queue_pair().caps(caps).signal_all().cq_entries(4 * count).create();
    stage.connect(&Setup::default());
    modify_to(&mut stage, QpState::Sqd);
    for id in 0..u64::from(count) {
        stage.receive(1 << 32 | id, 0, 8);
        stage.post_as(id, WrOpcode::Send, SendFlags::SIGNALED, 8);
    }
    assert_eq!(stage.wait(SOON), [], "nothing starts");
    stage
}

fn ids(stage: &Stage) -> Vec<u64> {
    let statuses = stage.statuses();
    assert!(statuses.iter().all(|(_, status)| *status == WcStatus::WrFlush), "{statuses:?}");
    statuses.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn long_queues_are_flushed_in_slices() {
    const COUNT: u64 = 1000;
    // By its bell, and because it has more.
    const SLICE: usize = 2 * 64;
    let mut stage = long_queues(COUNT as u32);
    modify_to(&mut stage, QpState::Err);
    let mut all = ids(&stage);
    assert!((1..=2 * SLICE).contains(&all.len()), "{} with the command", all.len());
    stage.post_as(COUNT, WrOpcode::Send, SendFlags::SIGNALED, 8);
    while all.len() < 2 * COUNT as usize + 1 {
        assert_eq!(stage.host.worker.needed_by(), Nanos::ZERO, "it goes on by itself");
        stage.host.worker.poll(stage.now);
        let some = ids(&stage);
        assert!((1..=SLICE).contains(&some.len()), "{} in a pass, after {}", some.len(), all.len());
        all.extend(some);
    }
    let (receives, sends): (Vec<u64>, Vec<u64>) = all.into_iter().partition(|id| *id >= 1 << 32);
    assert_eq!(sends, (0..=COUNT).collect::<Vec<_>>());
    assert_eq!(receives, (0..COUNT).map(|id| 1 << 32 | id).collect::<Vec<_>>());
    assert!(stage.host.worker.needed_by() > Nanos::ZERO);
}

#[test]
fn reset_ends_a_flush() {
    let mut stage = long_queues(1000);
    modify_to(&mut stage, QpState::Err);
    let flushed = ids(&stage).len();
    modify_to(&mut stage, QpState::Reset);
    assert_eq!((stage.wait(SOON), ids(&stage)), (vec![], vec![]), "after {flushed}");
    stage.connect(&Setup::default());
    stage.receive(1, 0, 8);
    stage.post_as(2, WrOpcode::Send, SendFlags::SIGNALED, 8);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_SEND_ONLY, FIRST)]);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1]), [Answer::ack(0)]);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn destroyed_qp_flushes_no_more() {
    let mut stage = long_queues(1000);
    modify_to(&mut stage, QpState::Err);
    ids(&stage);
    let index = stage.qp.handle.index;
    stage.host.call(stage.now, Command::DestroyQp(index)).expect("it is there");
    stage.wait(SOON);
    assert!(ids(&stage).is_empty());
}
