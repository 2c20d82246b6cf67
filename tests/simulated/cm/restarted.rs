//! A peer that has restarted connects soon, whatever became of its old connection, and also if a message is lost.

use roxie::cm::{Config, ConnectRequest, ConnectionState, Event, ListenOn, Manager};
use roxie::time::Nanos;
use roxie::wire::cm::{CmMessage, CommId, Kind, PrivateData, Rej, RejReason, Stage};

use super::pair::{A, B, Pair, SERVICE, acceptance, config, request};

/// Time within which a restarted peer connects.
const LIMIT: Nanos = Nanos::from_millis(3000);

/// Returns the configuration of an end as programs have it.
fn ordinary(end: usize) -> Config {
    let Config { seed, ca_guid, .. } = config(end);
    Config { seed, ca_guid, ..Config::default() }
}

/// Returns a pair with a listener at B.
fn pair() -> Pair {
    let mut pair = Pair::with(ordinary(A), ordinary(B));
    pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
    pair
}

/// Replaces the manager of A by one without connections.
fn restart(pair: &mut Pair) {
    pair.ends[A] = Manager::new(Config { seed: 999, ..ordinary(A) });
    pair.sent[A].clear();
}

/// The outcome of a request.
struct Outcome {
    /// `None`: the application of A heard of a failure.
    took: Option<Nanos>,
    /// Messages of both ends, in their order.
    sent: Vec<(usize, Kind)>,
}

/// Requests a connection at A, accepts it at B, and confirms it, until both ends are connected. Loses one message of
/// all.
fn connect(pair: &mut Pair, request: &ConnectRequest, lost: Option<usize>) -> Outcome {
    let begun = pair.now;
    let a = pair.ends[A].connect(pair.now, request).unwrap();
    let mut sent = Vec::new();
    let (mut accepted, mut is_connected) = (Vec::new(), false);
    for _ in 0..1000 {
        for from in [A, B] {
            for transmit in std::mem::take(pair.outbox(from)) {
                if Some(sent.len()) != lost {
                    pair.give(1 - from, &transmit);
                }
                sent.push((from, CmMessage::read(&transmit.mad).unwrap().1.kind()));
            }
        }
        for event in pair.events(B) {
            match event {
                Event::Request { id, .. } => {
                    pair.ends[B].accept(pair.now, id, &acceptance()).unwrap();
                    accepted.push(id);
                }
                Event::Established { id, .. } => is_connected |= accepted.contains(&id),
                _ => {}
            }
        }
        for event in pair.events(A) {
            match event {
                Event::Reply { id, .. } => pair.ends[A].ready(id, PrivateData::EMPTY).unwrap(),
                Event::Rejected { id, .. } | Event::Unreachable { id, .. } if id == a => {
                    return Outcome { took: None, sent };
                }
                _ => {}
            }
        }
        if is_connected && pair.state(A, a) == Some(ConnectionState::Established) {
            pair.agrees();
            return Outcome { took: Some(pair.now - begun), sent };
        }
        if pair.outbox(A).is_empty() && pair.outbox(B).is_empty() {
            let next = if pair.ends[A].next_deadline() < pair.ends[B].next_deadline() { A } else { B };
            assert!(pair.step(next), "an end waits for something");
        }
    }
    panic!("no end in sight: {sent:?}");
}

/// Connects with an old connection that `prepare` makes, once for each message that may be lost.
fn connects_with_one_loss(prepare: impl Fn(&mut Pair)) {
    for lost in 0.. {
        let mut pair = pair();
        prepare(&mut pair);
        restart(&mut pair);
        let Outcome { took, sent } = connect(&mut pair, &request(), Some(lost));
        let took = took.unwrap_or_else(|| panic!("refused without message {lost} of {sent:?}"));
        assert!(took < LIMIT, "{took} without message {lost} of {sent:?}");
        if lost >= sent.len() {
            return;
        }
    }
}

fn old_connection_is_established(pair: &mut Pair) {
    pair.established();
}

fn old_connection_lacks_its_confirmation(pair: &mut Pair) {
    pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.lose(B);
    assert_eq!(pair.state(B, b), Some(ConnectionState::RepSent));
}

fn old_connection_is_ending(pair: &mut Pair) {
    let (_, b) = pair.established();
    pair.ends[B].disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
    pair.lose(B);
    assert_eq!(pair.state(B, b), Some(ConnectionState::DreqSent));
}

#[test]
fn restarted_peer_connects_although_a_message_is_lost() {
    connects_with_one_loss(old_connection_is_established);
}

#[test]
fn unconfirmed_old_connection_ends_at_a_new_request() {
    connects_with_one_loss(old_connection_lacks_its_confirmation);
    let mut pair = pair();
    old_connection_lacks_its_confirmation(&mut pair);
    restart(&mut pair);
    let Outcome { took, sent } = connect(&mut pair, &request(), None);
    let refused = [(A, Kind::Req), (B, Kind::Rej), (B, Kind::Rep), (A, Kind::Rej)];
    assert_eq!(sent, [&refused[..], &[(A, Kind::Req), (B, Kind::Rep), (A, Kind::Rtu)]].concat());
    assert!(took.is_some_and(|took| took < Nanos::from_millis(200)), "{took:?}");
}

#[test]
fn ending_old_connection_ends_at_a_new_request() {
    connects_with_one_loss(old_connection_is_ending);
    let mut pair = pair();
    old_connection_is_ending(&mut pair);
    restart(&mut pair);
    let Outcome { took, sent } = connect(&mut pair, &request(), None);
    let refused = [(A, Kind::Req), (B, Kind::Rej), (B, Kind::Dreq), (A, Kind::Drep)];
    assert_eq!(sent, [&refused[..], &[(A, Kind::Req), (B, Kind::Rep), (A, Kind::Rtu)]].concat());
    assert!(took.is_some_and(|took| took < Nanos::from_millis(200)), "{took:?}");
}

/// The application at B does not answer the DREQ of the old connection, so that the QP stays connected.
#[test]
fn request_is_refused_as_stale_four_times() {
    let mut pair = pair();
    let (a, _) = pair.established();
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    pair.settle();
    restart(&mut pair);
    let begun = pair.now;
    let Outcome { took, sent } = connect(&mut pair, &request(), None);
    assert_eq!(took, None);
    assert_eq!(sent, [(A, Kind::Req), (B, Kind::Rej)].repeat(4));
    assert!(pair.now - begun < Nanos::from_millis(400), "{}", pair.now - begun);
}

/// An examination takes longer than such a requester waits.
#[test]
fn hurried_requester_is_asked_to_wait() {
    let hurried = ConnectRequest { packet_lifetime: 8, response_timeout: 12, max_cm_retries: 2, ..request() };
    let mut pair = pair();
    pair.established();
    restart(&mut pair);
    let a = pair.ends[A].connect(pair.now, &hurried).unwrap();
    pair.deliver(A);
    let answers = pair.take(B);
    let [(_, CmMessage::Mra(mra))] = &answers[..] else { panic!("{answers:?}") };
    // 1.07 s.
    assert_eq!((mra.message, mra.service_timeout), (Stage::Req, 18));
    assert_eq!((mra.local_comm_id, mra.remote_comm_id), (CommId(0), a));
    // A further copy of the request, which was refused meanwhile, may be answered by an MRA too.
    let refused = CmMessage::Rej(Rej {
        remote_comm_id: a,
        reason: RejReason::STALE,
        message: Stage::Req,
        ..Rej::default()
    });
    for _ in 0..2 {
        pair.forge(A, 1, &CmMessage::Mra(mra.clone()));
        assert_eq!(pair.state(A, a), Some(ConnectionState::RepWait));
        pair.forge(A, 1, &refused);
        assert_eq!(pair.state(A, a), Some(ConnectionState::ReqSent));
    }

    let mut pair = self::pair();
    pair.established();
    restart(&mut pair);
    let Outcome { took, sent } = connect(&mut pair, &hurried, None);
    assert!(took.is_some_and(|took| took < LIMIT), "{took:?}: {sent:?}");
    let count = |kind| sent.iter().filter(|sent| **sent == (B, kind)).count();
    assert_eq!((count(Kind::Mra), count(Kind::Rej), count(Kind::Dreq)), (1, 1, 1));
}
