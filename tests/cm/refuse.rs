//! How a connection does not come about.

use roxie::cm::{ConnectRequest, Event, State};
use roxie::wire::cm::{
    AprStatus, Ari, CmMessage, CommId, Kind, Lap, Path, PrivateData, Rej, RejReason, Req, Stage, Transport,
};

use super::pair::{A, B, Pair, SERVICE, address, request};

fn reason(event: &Event) -> RejReason {
    match event {
        Event::Rejected { reject, .. } => reject.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn where_nobody_listens_the_service_id_is_invalid() {
    let mut pair = Pair::new();
    let a = pair.connect();
    pair.deliver(A);
    let (_, message) = {
        let rej = pair.outbox(B)[0].clone();
        CmMessage::read(&rej.mad).unwrap()
    };
    let CmMessage::Rej(rej) = message else { panic!("{message}") };
    // As Linux answers: without a name of its own.
    assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.message), (CommId(0), a, Stage::Req));
    pair.settle();
    assert_eq!(reason(&pair.event(A)), RejReason::INVALID_SERVICE_ID);
    assert_eq!(pair.state(A, a), None);
    pair.nothing_is_left();
    pair.no_events();
}

#[test]
fn the_consumer_may_refuse_a_request_and_say_why() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let event = pair.event(B);
    let why = PrivateData::new(Kind::Rej, b"closed").unwrap();
    pair.ends[B].reject(pair.now, event.id(), RejReason::CONSUMER, Ari::new(b"!"), why).unwrap();
    pair.settle();
    let event = pair.event(A);
    let Event::Rejected { id, reject } = event else { panic!("{event:?}") };
    assert_eq!((id, reject.reason, reject.message), (a, RejReason::CONSUMER, Stage::Req));
    assert!(reject.private_data.starts_with(b"closed\0") && *reject.ari == *b"!");
    pair.nothing_is_left();
    pair.no_events();
}

#[test]
fn the_consumer_may_refuse_a_reply() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.settle();
    assert!(matches!(pair.event(A), Event::Reply { .. }));
    pair.ends[A].reject(pair.now, a, RejReason::CONSUMER, Ari::NONE, PrivateData::EMPTY).unwrap();
    pair.settle();
    let event = pair.event(B);
    assert_eq!((event.id(), reason(&event)), (b, RejReason::CONSUMER));
    assert!(matches!(event, Event::Rejected { reject, .. } if reject.message == Stage::Rep));
    pair.nothing_is_left();
    pair.no_events();
}

#[test]
fn a_passive_consumer_may_change_its_mind_after_its_reply() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.deliver(B);
    pair.ends[B].reject(pair.now, b, RejReason::NO_RESOURCES, Ari::NONE, PrivateData::EMPTY).unwrap();
    pair.settle();
    let events = pair.events(A);
    assert!(matches!(events[0], Event::Reply { .. }));
    assert_eq!((events.len(), reason(&events[1])), (2, RejReason::NO_RESOURCES));
    assert_eq!(events[1].id(), a);
    pair.nothing_is_left();
    pair.no_events();
}

#[test]
fn a_lost_refusal_is_said_again_when_the_request_comes_again() {
    let (mut pair, _) = Pair::listening();
    pair.connect();
    let req = pair.outbox(A)[0].clone();
    pair.settle();
    let event = pair.event(B);
    pair.ends[B].reject(pair.now, event.id(), RejReason::CONSUMER, Ari::NONE, PrivateData::EMPTY).unwrap();
    assert_eq!(pair.lose(B), [Kind::Rej]);
    // The request under way a second time: the consumer is not asked again.
    pair.give(B, &req);
    assert_eq!(pair.deliver(B), [Kind::Rej]);
    assert_eq!(reason(&pair.event(A)), RejReason::CONSUMER);
    pair.no_events();
}

#[test]
fn a_reply_to_a_request_that_is_gone_has_an_invalid_communication_id() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    let rep = pair.outbox(B)[0].clone();
    pair.lose(B);
    // A forgets all of it, and B hears nothing of that.
    pair.ends[A].destroy(pair.now, a);
    pair.lose(A);
    while pair.state(A, a).is_some() {
        assert!(pair.step(A));
    }
    pair.give(A, &rep);
    let answer = pair.outbox(A)[0].clone();
    let (_, CmMessage::Rej(rej)) = CmMessage::read(&answer.mad).unwrap() else { panic!("no REJ") };
    assert_eq!((rej.reason, rej.message), (RejReason::INVALID_COMM_ID, Stage::Rep));
    pair.deliver(A);
    let event = pair.event(B);
    assert_eq!((event.id(), reason(&event)), (b, RejReason::INVALID_COMM_ID));
    pair.nothing_is_left();
}

#[test]
fn a_reply_to_a_request_that_was_withdrawn_hears_so() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.ends[A].destroy(pair.now, a);
    assert_eq!(pair.lose(A), [Kind::Rej]);
    pair.settle();
    assert_eq!(reason(&pair.event(B)), RejReason::TIMEOUT);
    assert_eq!(pair.state(B, b), Some(State::TimeWait));
    pair.nothing_is_left();
    pair.no_events();
}

#[test]
fn a_request_that_is_withdrawn_is_withdrawn_at_the_peer() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let asked = pair.event(B).id();
    // The REJ does not know B's name for the connection: its adapter and its own name tell.
    pair.ends[A].destroy(pair.now, a);
    let (_, CmMessage::Rej(rej)) = CmMessage::read(&pair.outbox(A)[0].mad).unwrap() else { panic!("no REJ") };
    assert_eq!((rej.remote_comm_id, rej.ari.guid()), (CommId(0), Some(pair.ends[A].config().ca_guid)));
    pair.settle();
    let event = pair.event(B);
    assert_eq!((event.id(), reason(&event)), (asked, RejReason::TIMEOUT));
    pair.nothing_is_left();
}

/// A REQ as A would send it, changed.
fn req(change: impl FnOnce(&mut Req)) -> CmMessage {
    let mut pair = Pair::new();
    pair.connect();
    let (_, mut message) = pair.take(A).remove(0);
    let CmMessage::Req(req) = &mut message else { panic!("{message}") };
    change(req);
    message
}

#[test]
fn what_cannot_be_is_refused_before_anybody_is_asked() {
    let cases: [(RejReason, CmMessage); 5] = [
        (RejReason::INVALID_GID, req(|r| r.primary_path.local_gid = address(B).into())),
        (
            RejReason::INVALID_GID,
            req(|r| r.primary_path = Path { remote_gid: address(A).into(), ..r.primary_path }),
        ),
        (RejReason::INVALID_TRANSPORT, req(|r| r.transport = Transport::Rd)),
        (RejReason::INVALID_MTU, req(|r| r.path_mtu = 6)),
        (RejReason::INVALID_MTU, req(|r| r.path_mtu = 0)),
    ];
    for (expected, message) in cases {
        let (mut pair, _) = Pair::listening();
        pair.forge(B, 5, &message);
        pair.no_events();
        let (tid, answer) = pair.take(B).remove(0);
        let CmMessage::Rej(rej) = answer else { panic!("{answer}") };
        assert_eq!((tid, rej.reason, rej.message), (5, expected, Stage::Req));
        assert_eq!(pair.ends[B].connections(), 0);
    }
}

#[test]
fn a_refusal_from_elsewhere_does_not_count() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    let rej = Rej { remote_comm_id: a, reason: RejReason::CONSUMER, ..Rej::default() };
    let mut transmit = pair.outbox(A)[0].clone();
    transmit.mad = CmMessage::Rej(rej.clone()).to_mad(1);
    transmit.route.local = "10.0.0.9".parse::<std::net::IpAddr>().unwrap().into();
    transmit.route.remote = address(A).into();
    pair.give(A, &transmit);
    assert_eq!(pair.ends[A].counters().not_from_peer, 1);
    assert_eq!(pair.state(A, a), Some(State::ReqSent));
    pair.no_events();
}

#[test]
fn a_refusal_of_an_established_connection_ends_it() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let rej = Rej { local_comm_id: b, remote_comm_id: a, reason: RejReason::TIMEOUT, ..Rej::default() };
    pair.forge(A, 9, &CmMessage::Rej(rej));
    assert!(matches!(pair.event(A), Event::Disconnected { id, .. } if id == a));
    assert_eq!(pair.state(A, a), Some(State::TimeWait));
}

#[test]
fn alternate_paths_are_refused() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let lap = Lap { local_comm_id: a, remote_comm_id: b, ..Lap::default() };
    for (id, expected) in [(b, AprStatus::UNSUPPORTED), (CommId(b.0 ^ 1), AprStatus::INVALID_COMM_ID)] {
        pair.forge(B, 3, &CmMessage::Lap(Lap { remote_comm_id: id, ..lap.clone() }));
        let (tid, answer) = pair.take(B).remove(0);
        let CmMessage::Apr(apr) = answer else { panic!("{answer}") };
        assert_eq!((tid, apr.status, apr.remote_comm_id), (3, expected, a));
    }
    pair.no_events();
}

#[test]
fn a_name_is_not_given_again_soon() {
    let mut pair = Pair::new();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        let id = pair.ends[A].connect(pair.now, &ConnectRequest { service: SERVICE, ..request() }).unwrap();
        assert!(seen.insert(id), "{id} again");
        pair.settle();
        pair.events(A);
    }
}
