//! Missing hosts: ICMP errors, which of them are believed, and how soon silence ends a request.

use roxie::cm::{Config, ConnectionState, Event, ListenOn, ResolveRequest, Route, WhyUnreachable};
use roxie::time::Nanos;
use roxie::wire::cm::{CommId, Kind, PrivateData};
use roxie::wire::{Gid, mad};

use super::pair::{A, B, Pair, SERVICE, address, config, request};

fn gid(end: usize) -> Gid {
    Gid::from(address(end))
}

fn nothing_there(id: CommId, unanswered: Kind) -> Event {
    Event::Unreachable { id, unanswered, why: WhyUnreachable::NothingThere }
}

#[test]
fn undelivered_request_ends_at_once() {
    let mut pair = Pair::new();
    assert!(!pair.ends[A].awaits_answer());
    let a = pair.connect();
    assert!(pair.ends[A].awaits_answer());
    let sent = pair.outbox(A)[0].mad;
    pair.lose(A);
    // Linux quotes nearly the whole datagram; the header is enough.
    pair.ends[A].handle_undelivered(pair.now, gid(B), &sent[..mad::MAD_HEADER_LEN]);
    assert_eq!(pair.event(A), nothing_there(a, Kind::Req));
    assert_eq!((pair.state(A, a), pair.ends[A].awaits_answer(), pair.lose(A)), (None, false, vec![]));
    pair.assert_empty();
    // A second error changes nothing.
    pair.ends[A].handle_undelivered(pair.now, gid(B), &sent);
    assert_eq!(pair.ends[A].counters().unknown_id, 1);
    pair.no_events();
}

#[test]
fn undelivered_sidr_request_ends_at_once() {
    let mut pair = Pair::new();
    let question = ResolveRequest::new(SERVICE, Route::new(address(A), address(B)));
    let a = pair.ends[A].resolve(pair.now, &question).unwrap();
    let sent = pair.outbox(A)[0].mad;
    pair.ends[A].handle_undelivered(pair.now, gid(B), &sent);
    assert_eq!(pair.event(A), nothing_there(a, Kind::SidrReq));
    pair.lose(A);
    pair.assert_empty();
}

#[test]
fn only_matching_icmp_quote_is_believed() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    let sent = pair.outbox(A)[0].mad;
    let mut other_transaction = sent;
    other_transaction[8] ^= 1;
    let mut other_name = sent;
    other_name[15] ^= 1;
    let mut other_message = sent;
    other_message[17] ^= 1;
    for (what, remote, quoted) in [
        ("nothing", gid(B), &sent[..0]),
        ("less than a header", gid(B), &sent[..mad::MAD_HEADER_LEN - 1]),
        ("another transaction", gid(B), &other_transaction[..]),
        ("another connection", gid(B), &other_name[..]),
        ("another message", gid(B), &other_message[..]),
        ("of another host", gid(A), &sent[..]),
    ] {
        let before = pair.ends[A].counters().unknown_id;
        pair.ends[A].handle_undelivered(pair.now, remote, quoted);
        assert_eq!(pair.state(A, a), Some(ConnectionState::ReqSent), "{what}");
        assert_eq!(pair.ends[A].counters().unknown_id, before + 1, "{what}");
    }
    // Bytes beyond the datagram's length are ignored.
    let longer = [&sent[..], &[0; 40]].concat();
    // The peer answers in the end: an error about one copy of the request says nothing of the connection.
    pair.settle();
    pair.accept();
    pair.settle();
    assert!(matches!(pair.event(A), Event::Reply { .. }));
    pair.ends[A].handle_undelivered(pair.now, gid(B), &longer);
    assert_eq!(pair.state(A, a), Some(ConnectionState::RepRcvd));
    assert!(!pair.ends[A].awaits_answer());
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    pair.settle();
    assert_eq!(pair.state(A, a), Some(ConnectionState::Established));
}

/// A host is asked again while its port is not open yet, as while it has no listener.
#[test]
fn starting_host_is_asked_again() {
    for opens in [true, false] {
        let insistence = Nanos::from_millis(250);
        let mut pair = Pair::with(Config { insistence, ..config(A) }, config(B));
        let (a, began) = (pair.connect(), pair.now);
        let mut copies = 0;
        while pair.state(A, a) == Some(ConnectionState::ReqSent) && !(opens && copies == 2) {
            let sent = pair.outbox(A)[0].mad;
            assert_eq!(pair.lose(A), [Kind::Req]);
            copies += 1;
            pair.ends[A].handle_undelivered(pair.now, gid(B), &sent);
            pair.wait_for(A);
        }
        if opens {
            pair.ends[B].listen(SERVICE, ListenOn::Any, 1).unwrap();
            pair.settle();
            assert!(matches!(pair.event(B), Event::Request { .. }));
            continue;
        }
        assert_eq!((pair.event(A), copies), (nothing_there(a, Kind::Req), 3));
        assert!((200_000_000..250_000_000).contains(&(pair.now - began).0), "{}", pair.now - began);
        pair.assert_empty();
    }
}

/// A SIDR request is repeated for the same time.
#[test]
fn sidr_asks_a_starting_host_again() {
    let insistence = Nanos::from_millis(250);
    let mut pair = Pair::with(Config { insistence, ..config(A) }, config(B));
    let question = ResolveRequest::new(SERVICE, Route::new(address(A), address(B)));
    let (a, began) = (pair.ends[A].resolve(pair.now, &question).unwrap(), pair.now);
    let mut copies = 0;
    while pair.state(A, a).is_some() {
        let sent = pair.outbox(A)[0].mad;
        assert_eq!(pair.lose(A), [Kind::SidrReq]);
        copies += 1;
        pair.ends[A].handle_undelivered(pair.now, gid(B), &sent);
        pair.wait_for(A);
    }
    assert_eq!((pair.event(A), copies), (nothing_there(a, Kind::SidrReq), 3));
    assert!((200_000_000..250_000_000).contains(&(pair.now - began).0), "{}", pair.now - began);
    pair.assert_empty();
}

/// Returns the number of copies of a request until it is given up, and the time.
fn copies(pair: &mut Pair) -> (usize, Nanos) {
    let (a, began) = (pair.connect(), pair.now);
    let mut sent = Vec::new();
    while pair.state(A, a) == Some(ConnectionState::ReqSent) {
        sent.append(&mut pair.lose(A));
        pair.wait_for(A);
    }
    let requests = sent.iter().filter(|kind| **kind == Kind::Req).count();
    let why = WhyUnreachable::Silent { sent: requests as u8 };
    assert_eq!(pair.event(A), Event::Unreachable { id: a, unanswered: Kind::Req, why });
    (requests, pair.now - began)
}

#[test]
fn unknown_host_gets_fewer_retries() {
    let silent_retries = Config::default().silent_retries;
    let with = || Pair::with(Config { silent_retries, ..config(A) }, config(B));
    assert_eq!(request().max_cm_retries, 15);
    let mut pair = with();
    let (requests, took) = copies(&mut pair);
    assert_eq!(requests, 3);
    assert!(took < Nanos::from_millis(15_000), "{took}");

    // A host with a connection to this one exists, whatever it answers to this request.
    let mut pair = with();
    pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
    pair.established();
    let (requests, took) = copies(&mut pair);
    assert_eq!(requests, 16);
    assert!(took > Nanos::from_millis(77_000), "{took}");
}

/// SIDR has no message by which a host could ask for time.
#[test]
fn sidr_request_keeps_all_retries() {
    let silent_retries = Config::default().silent_retries;
    let mut pair = Pair::with(Config { silent_retries, ..config(A) }, config(B));
    let question = ResolveRequest::new(SERVICE, Route::new(address(A), address(B)));
    let a = pair.ends[A].resolve(pair.now, &question).unwrap();
    let mut requests = 0;
    while pair.state(A, a).is_some() {
        requests += pair.lose(A).len();
        pair.wait_for(A);
    }
    assert_eq!(requests, 1 + usize::from(question.max_cm_retries));
}

#[test]
fn host_that_sent_mra_is_known() {
    let silent_retries = Config::default().silent_retries;
    let mut pair = Pair::with(Config { silent_retries, ..config(A) }, config(B));
    pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
    let a = pair.connect();
    pair.settle();
    let b = pair.event(B).id();
    pair.ends[B].delay(b, 12, PrivateData::EMPTY).unwrap();
    pair.settle();
    assert_eq!(pair.state(A, a), Some(ConnectionState::RepWait));
    let mut requests = 0;
    while matches!(pair.state(A, a), Some(ConnectionState::ReqSent | ConnectionState::RepWait)) {
        pair.wait_for(A);
        requests += pair.lose(A).iter().filter(|kind| **kind == Kind::Req).count();
    }
    assert!(requests > 3, "{requests}");
}
