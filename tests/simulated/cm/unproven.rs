//! Messages to an address that has not shown that it receives any: few for each message that names it as the source.

use roxie::cm::{Config, ConnectRequest, ConnectionState, Event, ListenOn};
use roxie::limits::CmLimits;
use roxie::verbs::Qpn;
use roxie::wire::cm::{
    Apr, Ari, CmMessage, CommId, Drep, Dreq, Kind, Lap, Mra, PrivateData, Rej, RejReason, Rep, Rtu, SidrReq,
    Stage,
};

use super::pair::{A, B, Pair, SERVICE, acceptance, config, request};

/// Returns a pair with a listener at B, which has the limits of a real manager.
fn pair() -> Pair {
    let real = Config::default();
    let b = Config {
        limits: CmLimits::default(),
        unproven_messages: real.unproven_messages,
        first_repeat: real.first_repeat,
        ..config(B)
    };
    let mut pair = Pair::with(config(A), b);
    pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
    pair
}

/// Delivers one REQ, and loses all messages of B until nothing is left. Returns their kinds.
fn sent_for_one_request(pair: &mut Pair, answer: impl Fn(&mut Pair, CommId)) -> Vec<Kind> {
    pair.ends[A].connect(pair.now, &ConnectRequest { max_cm_retries: 15, ..request() }).unwrap();
    pair.deliver(A);
    let id = pair.event(B).id();
    answer(pair, id);
    let mut sent = pair.lose(B);
    while pair.ends[B].connections() > 0 && pair.step(B) {
        sent.extend(pair.lose(B));
    }
    sent
}

fn accept(pair: &mut Pair, id: CommId) {
    pair.ends[B].accept(pair.now, id, &acceptance()).unwrap();
}

#[test]
fn accepted_request_causes_three_messages() {
    let sent = sent_for_one_request(&mut pair(), accept);
    assert_eq!(sent, [Kind::Rep, Kind::Rep, Kind::Rej]);
}

#[test]
fn delayed_answer_causes_three_messages() {
    let sent = sent_for_one_request(&mut pair(), |pair, id| {
        pair.ends[B].delay(id, 20, PrivateData::EMPTY).unwrap();
        accept(pair, id);
    });
    assert_eq!(sent, [Kind::Mra, Kind::Rep, Kind::Rej]);
    let sent = sent_for_one_request(&mut pair(), |pair, id| {
        for _ in 0..10 {
            pair.ends[B].delay(id, 20, PrivateData::EMPTY).unwrap();
        }
        accept(pair, id);
    });
    assert_eq!(sent, [Kind::Mra; 3]);
}

#[test]
fn refused_request_causes_one_message() {
    let reject = |pair: &mut Pair, id| {
        pair.ends[B].reject(pair.now, id, RejReason::CONSUMER, Ari::NONE, PrivateData::EMPTY).unwrap();
    };
    assert_eq!(sent_for_one_request(&mut pair(), reject), [Kind::Rej]);
    assert_eq!(sent_for_one_request(&mut pair(), |pair, id| pair.ends[B].destroy(pair.now, id)), [Kind::Rej]);
}

/// An address that has confirmed a connection gets as many repetitions as its request allows.
#[test]
fn proven_address_gets_all_repetitions() {
    let mut pair = pair();
    let (a, b) = pair.established();
    for (end, id) in [(A, a), (B, b)] {
        pair.ends[end].destroy(pair.now, id);
    }
    pair.settle();
    let sent = sent_for_one_request(&mut pair, accept);
    let replies = 2 + usize::from(CmLimits::default().granted_retries);
    assert_eq!(sent, [vec![Kind::Rep; replies], vec![Kind::Rej]].concat());
}

/// A peer that repeats its REQ gets an answer each time, so that a lost REP costs no connection.
#[test]
fn repeated_request_is_answered_each_time() {
    let mut pair = pair();
    let a = pair.connect();
    let req = pair.outbox(A)[0].clone();
    pair.deliver(A);
    let b = pair.accept();
    for _ in 0..20 {
        assert_eq!(pair.lose(B), [Kind::Rep]);
        pair.give(B, &req);
    }
    pair.deliver(B);
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    pair.deliver(A);
    assert_eq!(pair.state(B, b), Some(ConnectionState::Established));
    assert!(matches!(pair.event(B), Event::Established { .. }));
}

/// The reply to a peer's other messages is one message, if any, and no timer repeats it.
#[test]
fn unsolicited_message_causes_one_answer() {
    let (local, remote) = (CommId(7), CommId(8));
    let ids = |message: Stage| (local, remote, message);
    let (local_comm_id, remote_comm_id, message) = ids(Stage::Req);
    let messages = [
        CmMessage::Mra(Mra { local_comm_id, remote_comm_id, message, ..Mra::default() }),
        CmMessage::Rej(Rej { local_comm_id, remote_comm_id, message, ..Rej::default() }),
        CmMessage::Rep(Rep { local_comm_id, remote_comm_id, local_qpn: Qpn::new(9), ..Rep::default() }),
        CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
        CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, ..Dreq::default() }),
        CmMessage::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
        CmMessage::Lap(Lap { local_comm_id, remote_comm_id, ..Lap::default() }),
        CmMessage::Apr(Apr { local_comm_id, remote_comm_id, ..Apr::default() }),
        CmMessage::SidrReq(SidrReq { request_id: local, ..SidrReq::default() }),
    ];
    for message in messages {
        let mut pair = pair();
        pair.forge(B, 1, &message);
        let mut sent = pair.lose(B);
        while pair.step(B) {
            sent.extend(pair.lose(B));
        }
        assert!(sent.len() <= 1, "{:?} is answered by {sent:?}", message.kind());
    }
}
