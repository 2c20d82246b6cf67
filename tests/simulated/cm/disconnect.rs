//! Ending a connection.

use roxie::cm::{CmError, ConnectionState, Event, HowDisconnected};
use roxie::verbs::Qpn;
use roxie::wire::cm::{CmMessage, CommId, Dreq, Kind, PrivateData, Rep};

use super::pair::{A, B, Pair};

fn how(event: &Event) -> HowDisconnected {
    match event {
        Event::Disconnected { how, .. } => *how,
        other => panic!("{other:?}"),
    }
}

#[test]
fn either_end_can_disconnect() {
    for (asks, agrees) in [(A, B), (B, A)] {
        let (mut pair, _) = Pair::listening();
        let (a, b) = pair.established();
        let ids = [a, b];
        let now = pair.now;
        let goodbye = PrivateData::new(Kind::Dreq, b"goodbye").unwrap();
        pair.ends[asks].disconnect(now, ids[asks], goodbye).unwrap();
        assert_eq!(pair.deliver(asks), [Kind::Dreq]);
        let event = pair.event(agrees);
        let Event::DisconnectRequested { id, private_data } = event else { panic!("{event:?}") };
        assert!(id == ids[agrees] && private_data.starts_with(b"goodbye\0"));
        pair.ends[agrees].disconnect(now, id, PrivateData::EMPTY).unwrap();
        assert_eq!(how(&pair.event(agrees)), HowDisconnected::AsAsked);
        assert_eq!(pair.deliver(agrees), [Kind::Drep]);
        assert_eq!(how(&pair.event(asks)), HowDisconnected::Agreed);
        for end in [A, B] {
            assert_eq!(pair.state(end, ids[end]), Some(ConnectionState::TimeWait));
        }
        pair.assert_empty();
        for end in [A, B] {
            assert_eq!(pair.events(end), [Event::TimeWaitExit { id: ids[end] }]);
        }
    }
}

#[test]
fn both_ends_can_disconnect_at_once() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let now = pair.now;
    pair.ends[A].disconnect(now, a, PrivateData::EMPTY).unwrap();
    pair.ends[B].disconnect(now, b, PrivateData::EMPTY).unwrap();
    pair.settle();
    assert_eq!(
        (how(&pair.event(A)), how(&pair.event(B))),
        (HowDisconnected::Agreed, HowDisconnected::Agreed)
    );
    pair.assert_empty();
}

/// A DREP belongs to the transaction of the DREQ that it answers, not to that of the same end's DREQ.
#[test]
fn crossing_disconnects_keep_their_transactions() {
    let (mut pair, _) = Pair::listening();
    let ids = <[CommId; 2]>::from(pair.established());
    let now = pair.now;
    for end in [A, B] {
        pair.ends[end].disconnect(now, ids[end], PrivateData::EMPTY).unwrap();
    }
    let requests = [A, B].map(|end| CmMessage::read(&pair.outbox(end)[0].mad).unwrap().0);
    assert_ne!(requests[A], requests[B]);
    let crossing = [A, B].map(|end| std::mem::take(pair.outbox(end)));
    pair.give(B, &crossing[A][0]);
    pair.give(A, &crossing[B][0]);
    for end in [A, B] {
        let answers = pair.take(end);
        let [(tid, CmMessage::Drep(drep))] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(
            (*tid, drep.local_comm_id, drep.remote_comm_id),
            (requests[1 - end], ids[end], ids[1 - end])
        );
    }
}

#[test]
fn id_is_kept_during_timewait() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    pair.settle();
    pair.events(B);
    pair.ends[B].disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
    pair.settle();
    let ended = pair.now;
    pair.events(A);
    let error = pair.ends[A].disconnect(ended, a, PrivateData::EMPTY).unwrap_err();
    assert!(matches!(error, CmError::State { state: ConnectionState::TimeWait, .. }));
    while pair.state(A, a).is_some() {
        pair.step(A);
    }
    // 4.096 us * 2^17: the local ACK timeout.
    let lingered = (pair.now - ended).0;
    assert!((4096 << 17..(4096 << 17) + 2_000_000).contains(&lingered), "{lingered} ns");
}

#[test]
fn repeated_dreq_is_answered_again() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    let dreq = pair.outbox(A)[0].clone();
    pair.deliver(A);
    // The consumer has not agreed yet: no answer is sent.
    pair.give(B, &dreq);
    assert!(pair.lose(B).is_empty());
    assert!(matches!(pair.event(B), Event::DisconnectRequested { .. }));
    pair.ends[B].disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
    assert_eq!(pair.lose(B), [Kind::Drep]);
    pair.wait_for(A);
    assert_eq!(pair.deliver(A), [Kind::Dreq]);
    assert_eq!(pair.deliver(B), [Kind::Drep]);
    assert_eq!(how(&pair.event(A)), HowDisconnected::Agreed);
}

#[test]
fn dreq_for_unknown_connection_is_answered() {
    let mut pair = Pair::new();
    let dreq = Dreq { local_comm_id: CommId(5), remote_comm_id: CommId(6), ..Dreq::default() };
    pair.forge(B, 77, &CmMessage::Dreq(dreq));
    let (tid, answer) = pair.take(B).remove(0);
    let CmMessage::Drep(drep) = answer else { panic!("{answer}") };
    assert_eq!((tid, drep.local_comm_id, drep.remote_comm_id), (77, CommId(6), CommId(5)));
    pair.no_events();
}

#[test]
fn dreq_must_name_the_qp() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let dreq = Dreq { local_comm_id: a, remote_comm_id: b, remote_qpn: Qpn::new(0x23), ..Dreq::default() };
    pair.forge(B, 1, &CmMessage::Dreq(dreq.clone()));
    assert_eq!((pair.state(B, b), pair.lose(B).len()), (Some(ConnectionState::Established), 0));
    pair.no_events();
    pair.forge(B, 1, &CmMessage::Dreq(Dreq { remote_qpn: Qpn::new(0x22), ..dreq }));
    assert_eq!(pair.state(B, b), Some(ConnectionState::DreqRcvd));
}

#[test]
fn silent_peer_exhausts_dreq_retries() {
    let (mut pair, _) = Pair::listening();
    let (a, _) = pair.established();
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    let mut requests = 0;
    loop {
        pair.wait_for(A);
        match pair.lose(A)[..] {
            [Kind::Dreq] => requests += 1,
            _ => break,
        }
        if pair.state(A, a) == Some(ConnectionState::TimeWait) {
            break;
        }
    }
    assert_eq!(requests, 16);
    let events = pair.events(A);
    assert_eq!(how(&events[0]), HowDisconnected::NoAnswer);
}

#[test]
fn dreq_overtakes_a_lost_rtu() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.settle();
    pair.events(A);
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    assert_eq!(pair.lose(A), [Kind::Rtu]);
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    pair.deliver(A);
    assert!(matches!(pair.event(B), Event::DisconnectRequested { id, .. } if id == b));
    // The REP is not retransmitted.
    pair.ends[B].disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
    pair.settle();
    assert_eq!(how(&pair.event(A)), HowDisconnected::Agreed);
    pair.assert_empty();
}

/// The active end's QP is in RTS before its RTU, and its data may have established the passive end.
#[test]
fn dreq_may_precede_the_consumers_rtu() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.settle();
    assert!(matches!(pair.event(A), Event::Reply { .. }));
    pair.ends[B].established(b).unwrap();
    pair.ends[B].disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
    pair.settle();
    assert!(matches!(pair.event(A), Event::DisconnectRequested { id, .. } if id == a));
    assert!(matches!(pair.ends[A].ready(a, PrivateData::EMPTY), Err(CmError::State { .. })));
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    pair.settle();
    pair.assert_empty();
}

#[test]
fn destroyed_connection_sends_dreq() {
    for end in [A, B] {
        let (mut pair, _) = Pair::listening();
        let (a, b) = pair.established();
        let ids = [a, b];
        pair.ends[end].destroy(pair.now, ids[end]);
        assert!(matches!(
            pair.ends[end].disconnect(pair.now, ids[end], PrivateData::EMPTY),
            Err(CmError::Unknown { .. })
        ));
        // The first DREQ is lost.
        assert_eq!(pair.lose(end), [Kind::Dreq]);
        pair.wait_for(end);
        pair.settle();
        let other = 1 - end;
        assert!(matches!(pair.event(other), Event::DisconnectRequested { .. }));
        pair.ends[other].destroy(pair.now, ids[other]);
        pair.settle();
        pair.assert_empty();
        pair.no_events();
    }
}

/// In each state, with a responsive and with a silent peer: no state is left, and no event raised.
#[test]
fn destroying_leaves_no_state() {
    for stop in 0..8 {
        for silent in [false, true] {
            let (mut pair, _) = Pair::listening();
            let (end, id) = bring_to(&mut pair, stop);
            let state = pair.state(end, id).unwrap();
            pair.events(end);
            pair.ends[end].destroy(pair.now, id);
            if !silent {
                pair.settle();
                for event in pair.events(1 - end) {
                    pair.ends[1 - end].destroy(pair.now, event.id());
                }
                pair.settle();
            }
            pair.exhaust();
            assert_eq!(pair.state(end, id), None, "{state:?} silent {silent}");
            let events = pair.events(end);
            assert!(events.is_empty(), "{state:?} silent {silent}: {events:?}");
        }
    }
}

/// Brings a connection to one of the states; returns it and its end.
pub fn bring_to(pair: &mut Pair, stop: u32) -> (usize, CommId) {
    if stop >= 5 {
        let (a, b) = pair.established();
        if stop == 5 {
            return (A, a);
        }
        pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
        pair.deliver(A);
        return if stop == 6 { (A, a) } else { (B, b) };
    }
    let a = pair.connect();
    if stop == 0 {
        return (A, a);
    }
    pair.settle();
    if stop == 1 {
        let event = pair.event(B);
        return (B, event.id());
    }
    let b = pair.accept();
    if stop == 2 {
        return (B, b);
    }
    pair.settle();
    if stop == 3 {
        return (A, a);
    }
    pair.ends[A].delay(a, 20, PrivateData::EMPTY).unwrap();
    pair.settle();
    (B, b)
}

#[test]
fn unsolicited_answers_are_only_counted() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let answers = [
        CmMessage::Rep(Rep { local_comm_id: a, remote_comm_id: b, ..Rep::default() }),
        CmMessage::Drep(roxie::wire::cm::Drep { local_comm_id: a, remote_comm_id: b, ..Default::default() }),
        CmMessage::Apr(roxie::wire::cm::Apr { local_comm_id: a, remote_comm_id: b, ..Default::default() }),
    ];
    for message in answers {
        pair.forge(B, 4, &message);
    }
    assert_eq!(pair.ends[B].counters().out_of_state, 2);
    assert_eq!(pair.state(B, b), Some(ConnectionState::Established));
    pair.no_events();
}
