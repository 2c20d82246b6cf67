//! Peers that have forgotten, and old copies of what they said before.

use roxie::cm::{ConnectRequest, Event, HowDisconnected, LocalQp, Manager, State};
use roxie::verbs::{Psn, Qpn};
use roxie::wire::cm::{CmMessage, Dreq, Kind, Rej, RejReason};

use super::pair::{A, B, Pair, acceptance, config, request};

/// A is made anew: it knows nothing of its connections, and its IDs are others.
fn forget(pair: &mut Pair, end: usize) {
    let config = roxie::cm::Config { seed: 999, ..config(end) };
    pair.ends[end] = Manager::new(config);
    pair.sent[end].clear();
}

#[test]
fn a_request_for_a_qp_that_counts_as_connected_is_stale_and_ends_the_old_connection() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    forget(&mut pair, A);
    pair.connect();
    assert_eq!(pair.deliver(A), [Kind::Req]);
    // A refusal for the new, a request for release of the old.
    assert_eq!(pair.deliver(B), [Kind::Rej, Kind::Dreq]);
    let event = pair.event(A);
    assert!(
        matches!(&event, Event::Rejected { reject, .. } if reject.reason == RejReason::STALE),
        "{event:?}"
    );
    // Which A, who knows nothing, grants.
    assert_eq!(pair.deliver(A), [Kind::Drep]);
    let event = pair.event(B);
    assert_eq!(event, Event::Disconnected { id: b, how: HowDisconnected::Agreed });
    // Now it goes.
    pair.connect();
    pair.settle();
    assert!(matches!(pair.event(B), Event::Request { .. }));
}

#[test]
fn a_reply_from_a_qp_that_counts_as_connected_is_stale() {
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
fn a_qp_may_be_connected_again_when_its_connection_is_over() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.ends[A].destroy(pair.now, a);
    pair.settle();
    pair.events(B);
    pair.ends[B].destroy(pair.now, b);
    pair.settle();
    // Both linger; the same QPs are asked for again.
    pair.connect();
    pair.settle();
    let event = pair.event(B);
    pair.ends[B].accept(pair.now, event.id(), &acceptance()).unwrap();
    pair.settle();
    assert!(matches!(pair.event(A), Event::Reply { .. }));
}

#[test]
fn old_copies_of_a_request_do_not_open_a_connection_that_is_over() {
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

/// The request came twice, and the second copy when the first acceptance was over for B but not for A.
#[test]
fn a_second_acceptance_of_one_request_is_refused() {
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
fn messages_of_another_connection_of_the_peer_do_not_count() {
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
fn a_survivor_learns_from_its_request_for_release_that_the_peer_forgot() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    forget(&mut pair, A);
    pair.ends[B].disconnect(pair.now, b, Default::default()).unwrap();
    pair.settle();
    assert_eq!(pair.event(B), Event::Disconnected { id: b, how: HowDisconnected::Agreed });
}
