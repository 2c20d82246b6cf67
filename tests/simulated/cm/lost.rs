//! Lost, late and doubled messages while a connection is established.

use roxie::cm::{ConnectRequest, ConnectionState, Event, WhyUnreachable};
use roxie::time::Nanos;
use roxie::wire::cm::{CmMessage, Kind, Mra, PrivateData, RejReason, Stage};

use super::pair::{A, B, Pair, request};

#[test]
fn lost_request_is_retransmitted() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    let began = pair.now;
    let first = pair.outbox(A)[0].clone();
    pair.lose(A);
    pair.wait_for(A);
    // Twice a lifetime of code 16 and a response timeout of code 20: 4.83 s. A kernel's retransmission came after 4.86
    // s.
    let waited = (pair.now - began).0;
    assert!((2 * (4096 << 16) + (4096 << 20)..4_860_000_000).contains(&waited), "{waited} ns");
    assert_eq!(pair.outbox(A)[0], first, "the same message, transaction included");
    pair.settle();
    assert!(matches!(pair.event(B), Event::Request { .. }));
    assert_eq!(pair.state(A, a), Some(ConnectionState::ReqSent));
    assert_eq!(pair.ends[A].counters().sent_again(Kind::Req), 1);
}

#[test]
fn silent_peer_is_given_up_with_a_rej() {
    let (mut pair, _) = Pair::listening();
    let a = pair.ends[A].connect(pair.now, &ConnectRequest { max_cm_retries: 3, ..request() }).unwrap();
    let mut sent = pair.lose(A);
    while pair.state(A, a) == Some(ConnectionState::ReqSent) {
        pair.wait_for(A);
        sent.extend(pair.take(A).iter().map(|(_, message)| {
            if let CmMessage::Rej(rej) = message {
                assert_eq!((rej.reason, rej.message), (RejReason::TIMEOUT, Stage::Req));
            }
            message.kind()
        }));
    }
    assert_eq!(sent, [Kind::Req, Kind::Req, Kind::Req, Kind::Req, Kind::Rej]);
    assert_eq!(
        pair.event(A),
        Event::Unreachable { id: a, unanswered: Kind::Req, why: WhyUnreachable::Silent { sent: 4 } }
    );
    pair.assert_empty();
    pair.no_events();
}

#[test]
fn repeated_request_is_answered_by_mra() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    pair.wait_for(A);
    assert_eq!(pair.deliver(A), [Kind::Req]);
    let began = pair.now;
    assert_eq!(pair.deliver(B), [Kind::Mra]);
    assert_eq!(pair.state(A, a), Some(ConnectionState::RepWait));
    // Two copies give one event, and a wait of 4.096 us * 2^24.
    let id = pair.event(B).id();
    assert_eq!(pair.state(B, id), Some(ConnectionState::MraReqSent));
    pair.wait_for(A);
    assert!(pair.now - began > Nanos(4096 << 24), "{}", pair.now - began);
    assert_eq!(pair.lose(A), [Kind::Req]);
    assert_eq!(pair.state(A, a), Some(ConnectionState::ReqSent));
    // The consumer decides in the end.
    pair.ends[B].accept(pair.now, id, &super::pair::acceptance()).unwrap();
    pair.settle();
    assert!(matches!(pair.event(A), Event::Reply { .. }));
}

#[test]
fn consumer_may_send_mra_at_once() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.event(B).id();
    pair.ends[B].delay(b, 22, PrivateData::new(Kind::Mra, b"soon").unwrap()).unwrap();
    let (_, CmMessage::Mra(mra)) = CmMessage::read(&pair.outbox(B)[0].mad).unwrap() else { panic!("no MRA") };
    assert_eq!((mra.message, mra.service_timeout, mra.remote_comm_id), (Stage::Req, 22, a));
    pair.settle();
    assert_eq!(
        (pair.state(A, a), pair.state(B, b)),
        (Some(ConnectionState::RepWait), Some(ConnectionState::MraReqSent))
    );
    // Once per message: repeated MRAs cannot hold the peer for ever.
    let deadline = pair.ends[A].next_deadline();
    pair.now = pair.now + Nanos::from_millis(5);
    pair.ends[B].delay(b, 22, PrivateData::EMPTY).unwrap();
    pair.settle();
    assert_eq!(pair.ends[A].next_deadline(), deadline);
}

#[test]
fn lost_reply_is_retransmitted() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    let req = pair.outbox(A)[0].clone();
    pair.settle();
    let b = pair.accept();
    assert_eq!(pair.lose(B), [Kind::Rep]);
    pair.give(B, &req);
    assert_eq!(pair.lose(B), [Kind::Rep]);
    pair.wait_for(B);
    assert_eq!(pair.deliver(B), [Kind::Rep]);
    assert!(matches!(pair.event(A), Event::Reply { id, .. } if id == a));
    assert_eq!(pair.state(B, b), Some(ConnectionState::RepSent));
}

#[test]
fn repeated_reply_is_answered_by_mra() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.settle();
    pair.wait_for(B);
    pair.deliver(B);
    assert_eq!(pair.deliver(A), [Kind::Mra]);
    assert_eq!(
        (pair.state(A, a), pair.state(B, b)),
        (Some(ConnectionState::MraRepSent), Some(ConnectionState::MraRepRcvd))
    );
    assert_eq!(pair.events(A).len(), 1);
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    pair.settle();
    assert!(matches!(pair.event(B), Event::Established { id, .. } if id == b));
}

#[test]
fn reply_is_retransmitted_after_mra_timeout() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.settle();
    pair.ends[A].delay(a, 21, PrivateData::EMPTY).unwrap();
    pair.settle();
    let began = pair.now;
    assert_eq!(pair.state(B, b), Some(ConnectionState::MraRepRcvd));
    pair.wait_for(B);
    assert!(pair.now - began > Nanos(4096 << 21));
    // The peer may request more time again.
    assert_eq!((pair.state(B, b), pair.deliver(B)), (Some(ConnectionState::RepSent), vec![Kind::Rep]));
    assert_eq!(pair.deliver(A), [Kind::Mra]);
    assert_eq!(pair.state(B, b), Some(ConnectionState::MraRepRcvd));
}

#[test]
fn repeated_reply_recovers_a_lost_rtu() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.settle();
    pair.events(A);
    pair.ends[A].ready(a, PrivateData::new(Kind::Rtu, b"x").unwrap()).unwrap();
    assert_eq!(pair.lose(A), [Kind::Rtu]);
    pair.wait_for(B);
    assert_eq!(pair.deliver(B), [Kind::Rep]);
    assert_eq!(pair.deliver(A), [Kind::Rtu]);
    let event = pair.event(B);
    assert!(matches!(event, Event::Established { id, private_data } if id == b && private_data[0] == b'x'));
    assert!(pair.events(A).is_empty());
}

#[test]
fn passive_end_gives_up_without_rtu() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.settle();
    pair.events(A);
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    pair.lose(A);
    let mut last = Vec::new();
    while pair.state(B, b) != Some(ConnectionState::TimeWait) {
        pair.wait_for(B);
        last = std::mem::take(pair.outbox(B));
    }
    assert_eq!(
        pair.event(B),
        Event::Unreachable { id: b, unanswered: Kind::Rep, why: WhyUnreachable::Silent { sent: 16 } }
    );
    let (_, CmMessage::Rej(rej)) = CmMessage::read(&last[0].mad).unwrap() else { panic!("no REJ") };
    assert_eq!((rej.reason, rej.message), (RejReason::TIMEOUT, Stage::Rep));
    pair.give(A, &last[0]);
    assert!(matches!(pair.event(A), Event::Disconnected { id, .. } if id == a));
}

#[test]
fn duplicate_messages_change_nothing() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    let both = |pair: &mut Pair, from: usize| {
        for transmit in std::mem::take(pair.outbox(from)) {
            pair.give(1 - from, &transmit);
            pair.give(1 - from, &transmit);
        }
    };
    both(&mut pair, A);
    assert_eq!(pair.lose(B), []);
    let b = pair.accept();
    both(&mut pair, B);
    assert_eq!(pair.lose(A), []);
    assert!(matches!(pair.event(A), Event::Reply { .. }));
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    both(&mut pair, A);
    assert!(matches!(pair.event(B), Event::Established { .. }));
    pair.ends[B].disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
    both(&mut pair, B);
    assert!(matches!(pair.event(A), Event::DisconnectRequested { .. }));
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    both(&mut pair, A);
    assert!(matches!(pair.event(A), Event::Disconnected { .. }));
    assert!(matches!(pair.event(B), Event::Disconnected { .. }));
    pair.assert_empty();
    assert_eq!((pair.events(A).len(), pair.events(B).len()), (1, 1));
}

#[test]
fn peers_timeout_code_is_bounded() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.event(B).id();
    let mra = Mra { local_comm_id: b, remote_comm_id: a, service_timeout: 31, ..Mra::default() };
    pair.forge(A, 1, &CmMessage::Mra(mra));
    assert_eq!(pair.state(A, a), Some(ConnectionState::RepWait));
    let wait = pair.ends[A].next_deadline() - pair.now;
    assert!(wait < Nanos(2 * (4096 << 24)), "{wait}");
}
