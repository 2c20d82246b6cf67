//! Peers that have lost their state, and old copies of their messages.

use roxie::cm::{Config, ConnectRequest, ConnectionState, Event, HowDisconnected, LocalQp, Manager};
use roxie::time::Nanos;
use roxie::verbs::{Psn, Qpn};
use roxie::wire::cm::{CmMessage, CommId, Dreq, Kind, Rej, RejReason, Req};
use roxie::wire::{PortSpace, ServiceId};

use super::pair::{A, B, Hears, Pair, SERVICE, acceptance, address, config, request};

/// Duration of an examination, and of what surrounds it.
const LONG: Nanos = Nanos::from_millis(1000);
const SHORT: Nanos = Nanos::from_millis(100);

/// Replaces a manager by a new one, with other IDs and without connections.
fn forget(pair: &mut Pair, end: usize) {
    let config = roxie::cm::Config { seed: 999, ..config(end) };
    pair.ends[end] = Manager::new(config);
    pair.sent[end].clear();
}

#[test]
fn request_for_connected_qp_is_stale() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    forget(&mut pair, A);
    pair.connect();
    assert_eq!(pair.deliver(A), [Kind::Req]);
    // No answer while the old connection's peer may be alive.
    let requested_at = pair.now;
    assert_eq!(pair.deliver(B), []);
    pair.wait_for(B);
    let took = pair.now - requested_at;
    assert!((LONG..LONG + SHORT).contains(&took), "{took}");
    assert_eq!(pair.questions[B], 3);
    // A refusal for the new connection, a DREQ for the old one.
    assert_eq!(pair.deliver(B), [Kind::Rej, Kind::Dreq]);
    let event = pair.event(A);
    assert!(
        matches!(&event, Event::Rejected { reject, .. } if reject.reason == RejReason::STALE),
        "{event:?}"
    );
    // A has no state, and answers with a DREP.
    assert_eq!(pair.deliver(A), [Kind::Drep]);
    let event = pair.event(B);
    assert_eq!(event, Event::Disconnected { id: b, how: HowDisconnected::Agreed });
    // The next attempt succeeds.
    pair.connect();
    pair.settle();
    assert!(matches!(pair.event(B), Event::Request { .. }));
}

#[test]
fn reply_from_connected_qp_is_stale() {
    let (mut pair, _) = Pair::listening();
    let (a, _) = pair.established();
    forget(&mut pair, B);
    pair.ends[B].listen(super::pair::SERVICE, roxie::cm::ListenOn::Any, 1).unwrap();
    // Another QP of A, the same of B.
    let qp = LocalQp { qpn: Qpn::new(0x12), psn: Psn::new(1), srq: false };
    let second = pair.ends[A].connect(pair.now, &ConnectRequest { qp, ..request() }).unwrap();
    pair.settle();
    let requested = pair.accept();
    pair.settle();
    let event = pair.event(A);
    assert!(
        matches!(&event, Event::Rejected { id, reject } if *id == second && reject.reason == RejReason::STALE)
    );
    // The old connection is released after a second, with B's consent.
    pair.wait_for(A);
    pair.settle();
    assert_eq!(pair.event(A), Event::Disconnected { id: a, how: HowDisconnected::Agreed });
    let event = pair.event(B);
    assert!(
        matches!(&event, Event::Rejected { id, reject } if *id == requested && reject.reason == RejReason::STALE)
    );
    pair.assert_empty();
}

#[test]
fn qp_can_be_connected_again() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.ends[A].destroy(pair.now, a);
    pair.settle();
    pair.events(B);
    pair.ends[B].destroy(pair.now, b);
    pair.settle();
    // The connections linger; the same QPs are connected again.
    pair.connect();
    pair.settle();
    let event = pair.event(B);
    pair.ends[B].accept(pair.now, event.id(), &acceptance()).unwrap();
    pair.settle();
    assert!(matches!(pair.event(A), Event::Reply { .. }));
}

#[test]
fn old_request_copies_open_no_connection() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    let req = pair.outbox(A)[0].clone();
    pair.settle();
    let b = pair.accept();
    pair.settle();
    pair.events(A);
    pair.ends[A].destroy(pair.now, a);
    pair.settle();
    pair.events(B);
    assert_eq!(pair.state(B, b), Some(ConnectionState::TimeWait));
    pair.give(B, &req);
    pair.no_events();
    assert_eq!((pair.ends[B].connections(), pair.lose(B).len()), (1, 0));
}

/// The request arrived twice, the second time when the first acceptance was over for B but not for A.
#[test]
fn second_acceptance_is_refused() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    let req = pair.outbox(A)[0].clone();
    pair.settle();
    pair.accept();
    pair.settle();
    assert!(matches!(pair.event(A), Event::Reply { .. }));
    forget(&mut pair, B);
    pair.ends[B].listen(super::pair::SERVICE, roxie::cm::ListenOn::Any, 1).unwrap();
    pair.give(B, &req);
    let second = pair.accept();
    pair.settle();
    let event = pair.event(B);
    assert!(
        matches!(&event, Event::Rejected { id, reject } if *id == second && reject.reason == RejReason::INVALID_COMM_ID),
        "{event:?}"
    );
    assert_eq!((pair.state(A, a), pair.events(A).len()), (Some(ConnectionState::RepRcvd), 0));
}

#[test]
fn messages_of_other_connections_are_ignored() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let other = roxie::wire::cm::CommId(a.0 ^ 1);
    let remote_qpn = Qpn::new(0x22);
    let dreq = Dreq { local_comm_id: other, remote_comm_id: b, remote_qpn, ..Dreq::default() };
    pair.forge(B, 1, &CmMessage::Dreq(dreq));
    let rej = Rej { local_comm_id: other, remote_comm_id: b, reason: RejReason::CONSUMER, ..Rej::default() };
    pair.forge(B, 1, &CmMessage::Rej(rej));
    assert_eq!(
        (pair.state(B, b), pair.ends[B].counters().unknown_id),
        (Some(ConnectionState::Established), 2)
    );
    pair.no_events();
}

#[test]
fn dreq_reveals_a_restarted_peer() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    forget(&mut pair, A);
    pair.ends[B].disconnect(pair.now, b, Default::default()).unwrap();
    pair.settle();
    assert_eq!(pair.event(B), Event::Disconnected { id: b, how: HowDisconnected::Agreed });
}

/// Returns a REQ of another host in A's name, for the QP of A's connection.
fn forged(number: u32, service_id: ServiceId) -> CmMessage {
    let mut req = Req {
        local_comm_id: CommId(0x8000_0000 + number),
        service_id,
        local_ca_guid: config(A).ca_guid,
        local_qpn: request().qp.qpn,
        path_mtu: 3,
        remote_cm_response_timeout: 20,
        ..Req::default()
    };
    req.primary_path.local_gid = address(A).into();
    req.primary_path.remote_gid = address(B).into();
    CmMessage::Req(req)
}

/// Forges a request and advances by a time. Returns what B has sent.
fn forge_and_wait(pair: &mut Pair, number: u32, wait: Nanos) -> Vec<Kind> {
    pair.forge(B, 1, &forged(number, SERVICE));
    let until = pair.now + wait;
    let mut sent = pair.lose(B);
    while pair.ends[B].next_deadline() <= until {
        pair.step(B);
        sent.extend(pair.lose(B));
    }
    pair.now = until;
    pair.agrees();
    sent
}

#[test]
fn forged_request_leaves_idle_connection() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    pair.receives[B] = Hears::Answers;
    assert_eq!(forge_and_wait(&mut pair, 0, LONG + SHORT), []);
    assert_eq!((pair.questions[B], pair.state(B, b)), (1, Some(ConnectionState::Established)));
    let counters = pair.ends[B].counters();
    assert_eq!((counters.names_connected_qp, counters.peers_alive), (1, 1));
    // The connection works as before.
    pair.ends[B].disconnect(pair.now, b, Default::default()).unwrap();
    pair.settle();
    assert!(matches!(pair.event(A), Event::DisconnectRequested { .. }));
}

#[test]
fn busy_connection_is_kept_without_question() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    pair.receives[B] = Hears::Data;
    assert_eq!(forge_and_wait(&mut pair, 0, LONG + SHORT), []);
    assert_eq!((pair.questions[B], pair.state(B, b)), (0, Some(ConnectionState::Established)));
}

#[test]
fn late_manager_gives_the_peer_its_time() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    pair.forge(B, 1, &forged(0, SERVICE));
    pair.ends[B].poll_examination().expect("about the time before");
    for step in 1..=3 {
        // As after a stop of the process.
        pair.now = pair.now + LONG;
        pair.ends[B].handle_timeouts(pair.now);
        let question = pair.ends[B].poll_examination().expect("a question");
        assert!(
            question.probes_peer && pair.ends[B].poll_examination().is_none(),
            "step {step}: {question:?}"
        );
        pair.ends[B].examined(pair.now, &question, false);
        pair.ends[B].handle_timeouts(pair.now + Nanos::from_millis(290));
        assert_eq!(pair.ends[B].poll_examination(), None, "step {step}");
    }
    assert_eq!(pair.state(B, b), Some(ConnectionState::Established));
}

#[test]
fn late_answer_of_an_earlier_examination_ends_nothing() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    pair.forge(B, 1, &forged(0, SERVICE));
    pair.ends[B].poll_examination().expect("about the time before");
    let mut questions = (0..4).map(|_| {
        pair.now = pair.now + LONG;
        pair.ends[B].handle_timeouts(pair.now);
        pair.ends[B].poll_examination().expect("a question")
    });
    let last = questions.nth(3).expect("four questions");
    assert!(!last.probes_peer);
    // The peer was heard by then, and the examination is over. Another one begins.
    pair.ends[B].examined(pair.now, &last, true);
    pair.now = pair.now + LONG;
    pair.ends[B].handle_timeouts(pair.now);
    pair.forge(B, 2, &forged(0, SERVICE));
    pair.ends[B].examined(pair.now, &last, false);
    assert_eq!((pair.lose(B), pair.state(B, b)), (vec![], Some(ConnectionState::Established)));
}

#[test]
fn packet_before_the_request_proves_nothing() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    pair.forge(B, 1, &forged(0, SERVICE));
    // The first answer is about the time before.
    let first = pair.ends[B].poll_examination().expect("a question");
    pair.ends[B].examined(pair.now, &first, true);
    pair.wait_for(B);
    assert_eq!(
        (pair.lose(B), pair.state(B, b)),
        (vec![Kind::Rej, Kind::Dreq], Some(ConnectionState::DreqSent))
    );
}

#[test]
fn request_without_listener_ends_nothing() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    pair.forge(B, 1, &forged(0, ServiceId::of_port(PortSpace::Tcp, 9)));
    assert_eq!(pair.lose(B), [Kind::Rej]);
    assert!(!pair.step(B), "nothing is examined");
    assert_eq!((pair.questions[B], pair.state(B, b)), (0, Some(ConnectionState::Established)));
}

#[test]
fn flood_causes_three_questions_a_second() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    pair.receives[B] = Hears::Answers;
    for number in 0..10_000 {
        assert_eq!(forge_and_wait(&mut pair, number, Nanos::from_millis(1)), []);
    }
    assert_eq!(pair.state(B, b), Some(ConnectionState::Established));
    assert!((5..=30).contains(&pair.questions[B]), "{}", pair.questions[B]);
    forge_and_wait(&mut pair, 10_000, LONG + SHORT);
    assert_eq!(pair.ends[B].counters().names_connected_qp, 10_001);
    assert_eq!(pair.ends[B].connections(), 1);
}

#[test]
fn disconnection_ends_the_examination() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.forge(B, 1, &forged(0, SERVICE));
    pair.step(B);
    pair.ends[A].disconnect(pair.now, a, Default::default()).unwrap();
    pair.settle();
    assert!(matches!(pair.event(B), Event::DisconnectRequested { .. }));
    pair.ends[B].disconnect(pair.now, b, Default::default()).unwrap();
    pair.settle();
    assert!(matches!(pair.event(B), Event::Disconnected { how: HowDisconnected::AsAsked, .. }));
    pair.assert_empty();
}

/// The application of the restarted peer does not hear of the old connection.
#[test]
fn restarted_peer_asks_once_more() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    let insists = Config { seed: 999, insistence: Nanos::from_millis(250), ..config(A) };
    pair.ends[A] = Manager::new(insists);
    pair.sent[A].clear();
    let begun = pair.now;
    pair.connect();
    pair.settle();
    pair.wait_for(B);
    pair.settle();
    assert_eq!(pair.event(B), Event::Disconnected { id: b, how: HowDisconnected::Agreed });
    pair.wait_for(A);
    pair.settle();
    pair.accept();
    pair.settle();
    assert!(matches!(pair.event(A), Event::Reply { .. }));
    assert!(pair.now - begun < LONG + SHORT + SHORT, "{}", pair.now - begun);
}
