//! Peers that have lost their state, and old copies of their messages.

use roxie::cm::{ConnectRequest, Event, HowDisconnected, LocalQp, Manager, State};
use roxie::verbs::{Psn, Qpn};
use roxie::wire::cm::{CmMessage, Dreq, Kind, Rej, RejReason};

use super::pair::{A, B, Pair, acceptance, config, request};

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
    let asked = pair.accept();
    pair.settle();
    let events = pair.events(A);
    assert!(
        matches!(&events[0], Event::Rejected { id, reject } if *id == second && reject.reason == RejReason::STALE)
    );
    // The old connection was released, with B's consent.
    assert_eq!(events[1], Event::Disconnected { id: a, how: HowDisconnected::Agreed });
    let event = pair.event(B);
    assert!(
        matches!(&event, Event::Rejected { id, reject } if *id == asked && reject.reason == RejReason::STALE)
    );
    pair.nothing_is_left();
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
    assert_eq!(pair.state(B, b), Some(State::TimeWait));
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
    assert_eq!((pair.state(A, a), pair.events(A).len()), (Some(State::RepRcvd), 0));
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
    assert_eq!((pair.state(B, b), pair.ends[B].counters().unknown_id), (Some(State::Established), 2));
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
