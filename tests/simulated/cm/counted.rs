//! Counters of each kind of message, and the last event of an ID.

use roxie::cm::{ConnectionState, Event, HowDisconnected, Route, WhyUnreachable};
use roxie::time::Nanos;
use roxie::wire::cm::{CmMessage, CommId, Drep, Kind, Mra, PrivateData, Rej, Rep, Rtu, SidrRep};

use super::pair::{A, B, Pair, SERVICE, address};

/// Returns the counts of each kind: sent, sent again, received, received again. Kinds with zeros only are left out.
fn counted(pair: &Pair, end: usize) -> Vec<(Kind, [u64; 4])> {
    let of = pair.ends[end].counters();
    let each =
        |kind| (kind, [of.sent(kind), of.sent_again(kind), of.received(kind), of.received_again(kind)]);
    Kind::ALL.map(each).into_iter().filter(|(_, counts)| *counts != [0; 4]).collect()
}

#[test]
fn message_kinds_are_counted_per_direction() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    // One request is lost, one doubled.
    assert_eq!(pair.lose(A), [Kind::Req]);
    pair.wait_for(A);
    let again = pair.outbox(A)[0].clone();
    pair.deliver(A);
    pair.now = pair.now + Nanos::from_millis(4000);
    pair.give(B, &again);
    assert_eq!(pair.deliver(B), [Kind::Mra], "the consumer takes its time");
    let b = pair.accept();
    pair.settle();
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    pair.settle();
    for end in [A, B] {
        pair.events(end);
    }
    pair.ends[B].disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
    pair.settle();
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    pair.settle();
    let local = [
        (Kind::Req, [2, 1, 0, 0]),
        (Kind::Mra, [0, 0, 1, 0]),
        (Kind::Rep, [0, 0, 1, 0]),
        (Kind::Rtu, [1, 0, 0, 0]),
        (Kind::Dreq, [0, 0, 1, 0]),
        (Kind::Drep, [1, 0, 0, 0]),
    ];
    let remote = [
        (Kind::Req, [0, 0, 2, 1]),
        (Kind::Mra, [1, 0, 0, 0]),
        (Kind::Rep, [1, 0, 0, 0]),
        (Kind::Rtu, [0, 0, 1, 0]),
        (Kind::Dreq, [1, 0, 0, 0]),
        (Kind::Drep, [0, 0, 1, 0]),
    ];
    assert_eq!((counted(&pair, A), counted(&pair, B)), (local.to_vec(), remote.to_vec()));
    assert!(
        pair.ends[A].counters().drops().iter().all(|(name, count)| name.starts_with("cm_") && *count == 0)
    );
}

/// Messages of the peer with the connection's IDs, but invalid in its state.
#[test]
fn messages_in_wrong_states_are_counted() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let event = pair.event(B);
    let b = event.id();
    let from_a = |message: CmMessage| (B, message);
    let names = (CommId(a.0), CommId(b.0));
    let forged = [
        from_a(CmMessage::Rtu(Rtu { local_comm_id: names.0, remote_comm_id: names.1, ..Rtu::default() })),
        from_a(CmMessage::Rep(Rep { local_comm_id: names.0, remote_comm_id: names.1, ..Rep::default() })),
        from_a(CmMessage::Mra(Mra { local_comm_id: names.0, remote_comm_id: names.1, ..Mra::default() })),
        from_a(CmMessage::Drep(Drep { local_comm_id: names.0, remote_comm_id: names.1, ..Drep::default() })),
    ];
    for (count, (to, message)) in (1..).zip(forged) {
        let kind = message.kind();
        pair.forge(to, 1, &message);
        assert_eq!(pair.ends[to].counters().out_of_state, count, "{kind:?}");
        assert_eq!(pair.state(to, b), Some(ConnectionState::ReqRcvd), "{kind:?}");
    }
    pair.no_events();
    // Invalid messages for a SIDR request, too, which has a single answer.
    let question = roxie::cm::ResolveRequest::new(SERVICE, Route::new(address(A), address(B)));
    let resolution = pair.ends[A].resolve(pair.now, &question).unwrap();
    pair.lose(A);
    let before = pair.ends[A].counters().out_of_state;
    for (count, message) in (1..).zip([
        CmMessage::Rej(Rej { remote_comm_id: resolution, ..Rej::default() }),
        CmMessage::Mra(Mra { remote_comm_id: resolution, ..Mra::default() }),
        CmMessage::Rtu(Rtu { remote_comm_id: resolution, ..Rtu::default() }),
    ]) {
        let kind = message.kind();
        pair.forge(A, 1, &message);
        assert_eq!(pair.ends[A].counters().out_of_state - before, count, "{kind:?}");
        assert_eq!(pair.state(A, resolution), Some(ConnectionState::SidrReqSent), "{kind:?}");
    }
    pair.no_events();
}

/// Each reason for a drop has its own counter.
#[test]
fn drops_are_counted_by_reason() {
    let mut pair = Pair::new();
    for _ in 0..3 {
        let from =
            roxie::cm::Arrival { route: Route::new(address(A), address(B)), src_qp: roxie::verbs::Qpn::GSI };
        pair.ends[A].handle_mad(pair.now, &[0; 256], &from);
    }
    let drops = pair.ends[A].counters().drops();
    let counted: Vec<_> = drops.iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [&("cm_not_cm", 3)]);
    let names: std::collections::BTreeSet<_> = drops.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), drops.len());
}

#[test]
fn listeners_are_counted() {
    let mut pair = Pair::new();
    assert_eq!(pair.ends[B].listeners(), 0);
    let one = pair.ends[B].listen(SERVICE, roxie::cm::ListenOn::AnyIpv4, 1).unwrap();
    pair.ends[B].listen(SERVICE, roxie::cm::ListenOn::AnyIpv6, 1).unwrap();
    assert_eq!(pair.ends[B].listeners(), 2);
    assert!(pair.ends[B].stop_listening(one));
    assert_eq!(pair.ends[B].listeners(), 1);
}

#[test]
fn last_event_of_an_id_is_recognized() {
    let (id, route) = (CommId(7), Route::new(address(A), address(B)));
    let why = WhyUnreachable::Silent { sent: 1 };
    let last = [
        Event::Rejected { id, reject: Box::new(Rej::default()) },
        Event::Unreachable { id, unanswered: Kind::Req, why },
        Event::TimeWaitExit { id },
        Event::Resolved { id, route, reply: Box::new(SidrRep::default()) },
    ];
    let private_data = PrivateData::EMPTY;
    let not = [
        Event::Established { id, private_data },
        Event::DisconnectRequested { id, private_data },
        Event::Disconnected { id, how: HowDisconnected::Agreed },
    ];
    assert!(last.iter().all(Event::is_last) && !not.iter().any(Event::is_last));
    assert!(last.iter().chain(&not).all(|event| event.id() == id));
    // A real connection confirms it.
    let (mut pair, _) = Pair::listening();
    let (a, _) = pair.established();
    pair.ends[A].disconnect(pair.now, a, private_data).unwrap();
    pair.deliver(A);
    let b = pair.event(B).id();
    pair.ends[B].disconnect(pair.now, b, private_data).unwrap();
    pair.settle();
    let first = pair.event(A);
    assert!(!first.is_last() && pair.ends[A].parameters(a).is_ok());
    pair.now = pair.now + Nanos::from_millis(10_000);
    let now = pair.now;
    pair.ends[A].handle_timeouts(now);
    assert!(pair.event(A).is_last() && pair.ends[A].parameters(a).is_err());
}
