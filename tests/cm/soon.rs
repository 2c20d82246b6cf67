//! What is said again before the peer's time to answer is up, so that a message that was lost costs a fraction of a second.

use roxie::cm::{Config, ConnectRequest, Event, ListenOn, ResolveRequest, Route, State, WhyUnreachable};
use roxie::limits::CmLimits;
use roxie::time::Nanos;
use roxie::verbs::Qpn;
use roxie::wire::cm::{Kind, PrivateData};

use super::pair::{A, B, Pair, SERVICE, acceptance, address, config, request};

const MS: u64 = 1_000_000;

/// As managers are by default.
fn hasty(end: usize) -> Config {
    Config { first_repeat: Config::default().first_repeat, ..config(end) }
}

/// With somebody who listens at B.
fn pair() -> Pair {
    let mut pair = Pair::with(hasty(A), hasty(B));
    pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
    pair
}

/// Loses all that `end` sends from now on while `goes_on`, and says when each message left, in ms.
fn departures(pair: &mut Pair, end: usize, kind: Kind, goes_on: impl Fn(&Pair) -> bool) -> Vec<u64> {
    let (began, mut at) = (pair.now, Vec::new());
    loop {
        let ms = (pair.now - began).0 / MS;
        at.extend(pair.lose(end).into_iter().filter(|sent| *sent == kind).map(|_| ms));
        if !goes_on(pair) {
            return at;
        }
        pair.wait_for(end);
    }
}

fn about(at: &[u64], wanted: &[u64]) {
    let alike =
        at.len() == wanted.len() && at.iter().zip(wanted).all(|(at, wanted)| at.abs_diff(*wanted) < 20);
    assert!(alike, "{at:?} ms, not {wanted:?}");
}

#[test]
fn a_lost_request_comes_again_soon_and_that_costs_no_try() {
    let mut pair = pair();
    let a = pair.ends[A].connect(pair.now, &ConnectRequest { max_cm_retries: 2, ..request() }).unwrap();
    let at = departures(&mut pair, A, Kind::Req, |pair| pair.state(A, a) == Some(State::ReqSent));
    // Within the first wait of 4.83 s, and then as often as the request says.
    about(&at, &[0, 250, 750, 1750, 3750, 4832, 9664]);
    let why = WhyUnreachable::Silent { asked: 7 };
    assert_eq!(pair.event(A), Event::Unreachable { id: a, unanswered: Kind::Req, why });
    assert_eq!(pair.ends[A].counters().sent_again(Kind::Req), 6);
    pair.nothing_is_left();
}

#[test]
fn who_may_ask_only_once_asks_once() {
    let mut pair = pair();
    let a = pair.ends[A].connect(pair.now, &ConnectRequest { max_cm_retries: 0, ..request() }).unwrap();
    let at = departures(&mut pair, A, Kind::Req, |pair| pair.state(A, a) == Some(State::ReqSent));
    about(&at, &[0]);
}

#[test]
fn an_answer_that_is_awaited_for_less_is_not_asked_for_sooner() {
    let mut pair = pair();
    // 67 ms, and 2 * 268 ms on the way.
    let hurried = ConnectRequest { response_timeout: 14, max_cm_retries: 1, ..request() };
    let a = pair.ends[A].connect(pair.now, &hurried).unwrap();
    let at = departures(&mut pair, A, Kind::Req, |pair| pair.state(A, a) == Some(State::ReqSent));
    about(&at, &[0, 250, 603]);
}

#[test]
fn a_lost_reply_and_a_lost_ready_are_made_good_soon() {
    let mut pair = pair();
    let (a, began) = (pair.connect(), pair.now);
    pair.settle();
    let b = pair.accept();
    assert_eq!(pair.lose(B), [Kind::Rep]);
    pair.wait_for(B);
    assert_eq!(pair.deliver(B), [Kind::Rep]);
    assert!(matches!(pair.event(A), Event::Reply { .. }));
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    assert_eq!(pair.lose(A), [Kind::Rtu]);
    assert_eq!((pair.now - began).0 / MS / 50, 5, "after 250 ms");
    // The active side has nothing more to ask. The passive side says its reply once more soon, and then when the peer's time is up.
    let mut again = departures(&mut pair, B, Kind::Rep, |pair| pair.state(B, b) == Some(State::RepSent));
    assert_eq!(again.len(), 15, "{again:?}");
    again.truncate(1);
    assert!(again[0] > 4000, "{again:?}");
}

/// A stranger that floods shall not have two answers for each request.
#[test]
fn replies_are_not_repeated_soon_while_the_table_is_half_full() {
    let limits = CmLimits { connections: 8, ..config(B).limits };
    let mut pair = Pair::with(hasty(A), Config { limits, ..hasty(B) });
    pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
    for n in 0..5 {
        let mut request = request();
        request.qp.qpn = Qpn::new(0x100 + n);
        pair.ends[A].connect(pair.now, &request).unwrap();
    }
    pair.deliver(A);
    let began = pair.now;
    for event in pair.events(B) {
        pair.ends[B].accept(pair.now, event.id(), &acceptance()).unwrap();
    }
    assert_eq!(pair.lose(B).len(), 5);
    pair.wait_for(B);
    assert!((pair.now - began).0 > 4000 * MS, "{}", pair.now - began);
}

#[test]
fn a_question_and_the_wish_to_end_come_again_soon() {
    let mut pair = pair();
    let question = ResolveRequest::new(SERVICE, Route::new(address(A), address(B)));
    let asked = pair.ends[A].resolve(pair.now, &question).unwrap();
    let at = departures(&mut pair, A, Kind::SidrReq, |pair| pair.state(A, asked).is_some());
    about(&at[..6], &[0, 250, 750, 1750, 3750, 4294]);
    pair.events(A);

    let (a, _) = pair.established();
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    let at = departures(&mut pair, A, Kind::Dreq, |pair| pair.state(A, a) == Some(State::DreqSent));
    about(&at[..6], &[0, 250, 750, 1750, 3750, 4832]);
}

/// It would make the peer wait for a minute where it had asked only to be sure.
#[test]
fn a_copy_that_comes_before_the_peers_time_is_up_grants_no_time() {
    let mut pair = pair();
    let a = pair.connect();
    pair.settle();
    for _ in 0..3 {
        pair.wait_for(A);
        assert_eq!((pair.deliver(A), pair.deliver(B)), (vec![Kind::Req], vec![]));
    }
    assert_eq!(pair.ends[B].counters().received_again(Kind::Req), 3);
    // The fourth comes after 3.75 s: the consumer does take its time.
    pair.wait_for(A);
    assert_eq!((pair.deliver(A), pair.deliver(B)), (vec![Kind::Req], vec![Kind::Mra]));
    assert_eq!(pair.state(A, a), Some(State::RepWait));

    let b = pair.accept();
    pair.settle();
    pair.wait_for(B);
    assert_eq!((pair.deliver(B), pair.deliver(A)), (vec![Kind::Rep], vec![]));
    assert_eq!((pair.state(A, a), pair.state(B, b)), (Some(State::RepRcvd), Some(State::RepSent)));
    pair.wait_for(B);
    assert_eq!((pair.deliver(B), pair.deliver(A)), (vec![Kind::Rep], vec![Kind::Mra]));
}

/// What was granted is waited for, and after it the peer is asked at its usual pace.
#[test]
fn time_that_a_peer_asked_for_is_not_disturbed() {
    let mut pair = pair();
    let a = pair.connect();
    pair.settle();
    let b = pair.event(B).id();
    pair.ends[B].delay(b, 20, PrivateData::EMPTY).unwrap();
    pair.settle();
    assert_eq!(pair.state(A, a), Some(State::RepWait));
    let at = departures(&mut pair, A, Kind::Req, |pair| {
        matches!(pair.state(A, a), Some(State::ReqSent | State::RepWait))
    });
    about(&at[..3], &[9127, 9127 + 4832, 9127 + 2 * 4832]);
    assert_eq!(at.len(), 15);
}

/// Where nobody listens yet, a peer is asked in steps of its own: they give no more tries, and take none.
#[test]
fn a_peer_that_is_only_starting_is_asked_as_often_as_before() {
    let insistence = Nanos::from_millis(250);
    let mut pair = Pair::with(Config { insistence, ..hasty(A) }, config(B));
    let a = pair.ends[A].connect(pair.now, &ConnectRequest { max_cm_retries: 2, ..request() }).unwrap();
    // It says twice that nobody listens, and then nothing.
    for _ in 0..2 {
        assert_eq!((pair.deliver(A), pair.deliver(B)), (vec![Kind::Req], vec![Kind::Rej]));
        pair.wait_for(A);
    }
    let at = departures(&mut pair, A, Kind::Req, |pair| pair.state(A, a) == Some(State::ReqSent));
    about(&at, &[0, 4832, 9664]);
}
