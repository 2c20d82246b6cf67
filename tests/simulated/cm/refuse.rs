//! Refused connections.

use roxie::cm::{ConnectRequest, ConnectionState, Event};
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
fn missing_listener_gives_invalid_service_id() {
    let mut pair = Pair::new();
    let a = pair.connect();
    pair.deliver(A);
    let (_, message) = {
        let rej = pair.outbox(B)[0].clone();
        CmMessage::read(&rej.mad).unwrap()
    };
    let CmMessage::Rej(rej) = message else { panic!("{message}") };
    // As Linux answers: without a communication ID of its own.
    assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.message), (CommId(0), a, Stage::Req));
    pair.settle();
    assert_eq!(reason(&pair.event(A)), RejReason::INVALID_SERVICE_ID);
    assert_eq!(pair.state(A, a), None);
    pair.assert_empty();
    pair.no_events();
}

#[test]
fn consumer_may_refuse_a_request() {
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
    pair.assert_empty();
    pair.no_events();
}

#[test]
fn consumer_may_refuse_a_reply() {
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
    pair.assert_empty();
    pair.no_events();
}

#[test]
fn passive_consumer_may_refuse_after_its_reply() {
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
    pair.assert_empty();
    pair.no_events();
}

#[test]
fn lost_refusal_is_repeated_for_repeated_request() {
    let (mut pair, _) = Pair::listening();
    pair.connect();
    let req = pair.outbox(A)[0].clone();
    pair.settle();
    let event = pair.event(B);
    pair.ends[B].reject(pair.now, event.id(), RejReason::CONSUMER, Ari::NONE, PrivateData::EMPTY).unwrap();
    assert_eq!(pair.lose(B), [Kind::Rej]);
    // A delayed copy of the request: the consumer is not asked again.
    pair.give(B, &req);
    assert_eq!(pair.deliver(B), [Kind::Rej]);
    assert_eq!(reason(&pair.event(A)), RejReason::CONSUMER);
    pair.no_events();
}

#[test]
fn reply_to_unknown_request_is_refused() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    let rep = pair.outbox(B)[0].clone();
    pair.lose(B);
    // A forgets the connection, and B does not learn of that.
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
    pair.assert_empty();
}

#[test]
fn reply_to_withdrawn_request_is_refused() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.ends[A].destroy(pair.now, a);
    assert_eq!(pair.lose(A), [Kind::Rej]);
    pair.settle();
    assert_eq!(reason(&pair.event(B)), RejReason::TIMEOUT);
    assert_eq!(pair.state(B, b), Some(ConnectionState::TimeWait));
    pair.assert_empty();
    pair.no_events();
}

#[test]
fn withdrawing_a_request_reaches_the_peer() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let id = pair.event(B).id();
    // The REJ cannot name B's ID of the connection: A's adapter and ID identify it.
    pair.ends[A].destroy(pair.now, a);
    let (_, CmMessage::Rej(rej)) = CmMessage::read(&pair.outbox(A)[0].mad).unwrap() else { panic!("no REJ") };
    assert_eq!((rej.remote_comm_id, rej.ari.guid()), (CommId(0), Some(pair.ends[A].config().ca_guid)));
    pair.settle();
    let event = pair.event(B);
    assert_eq!((event.id(), reason(&event)), (id, RejReason::TIMEOUT));
    pair.assert_empty();
}

/// Returns A's REQ with a change.
fn req(change: impl FnOnce(&mut Req)) -> CmMessage {
    let mut pair = Pair::new();
    pair.connect();
    let (_, mut message) = pair.take(A).remove(0);
    let CmMessage::Req(req) = &mut message else { panic!("{message}") };
    change(req);
    message
}

#[test]
fn invalid_request_is_refused_without_the_consumer() {
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
fn refusal_from_another_host_is_ignored() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    let rej = Rej { remote_comm_id: a, reason: RejReason::CONSUMER, ..Rej::default() };
    let mut transmit = pair.outbox(A)[0].clone();
    transmit.mad = CmMessage::Rej(rej.clone()).to_mad(1);
    transmit.route.local = "10.0.0.9".parse::<std::net::IpAddr>().unwrap().into();
    transmit.route.remote = address(A).into();
    pair.give(A, &transmit);
    assert_eq!(pair.ends[A].counters().not_from_peer, 1);
    assert_eq!(pair.state(A, a), Some(ConnectionState::ReqSent));
    pair.no_events();
}

#[test]
fn refusal_ends_an_established_connection() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let rej = Rej { local_comm_id: b, remote_comm_id: a, reason: RejReason::TIMEOUT, ..Rej::default() };
    pair.forge(A, 9, &CmMessage::Rej(rej));
    assert!(matches!(pair.event(A), Event::Disconnected { id, .. } if id == a));
    assert_eq!(pair.state(A, a), Some(ConnectionState::TimeWait));
}

/// Only a request may be refused without the refusing end's ID, which other hosts do not know.
#[test]
fn refusal_without_id_ends_no_connection() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let forge = |pair: &mut Pair, end: usize, id: CommId| {
        for (reason, message) in [
            (RejReason::CONSUMER, Stage::Req),
            (RejReason::INVALID_COMM_ID, Stage::Rep),
            (RejReason::TIMEOUT, Stage::Rep),
        ] {
            let rej = Rej { remote_comm_id: id, reason, message, ..Rej::default() };
            pair.forge(end, 9, &CmMessage::Rej(rej));
        }
    };
    for (end, id) in [(A, a), (B, b)] {
        forge(&mut pair, end, id);
        assert_eq!(
            (pair.state(end, id), pair.ends[end].counters().unknown_id),
            (Some(ConnectionState::Established), 3)
        );
    }
    pair.no_events();
    let (mut pair, _) = Pair::listening();
    pair.connect();
    pair.settle();
    let half_open = pair.accept();
    forge(&mut pair, B, half_open);
    assert_eq!(pair.state(B, half_open), Some(ConnectionState::RepSent));
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
fn ids_are_not_reused_soon() {
    let mut pair = Pair::new();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        let id = pair.ends[A].connect(pair.now, &ConnectRequest { service: SERVICE, ..request() }).unwrap();
        assert!(seen.insert(id), "{id} again");
        pair.settle();
        pair.events(A);
    }
}
