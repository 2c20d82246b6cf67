//! Early repetitions: a lost message costs a fraction of a second instead of the peer's whole response time.

use roxie::cm::{
    Config, ConnectRequest, ConnectionState, Event, ListenOn, ResolveRequest, Route, WhyUnreachable,
};
use roxie::limits::CmLimits;
use roxie::time::Nanos;
use roxie::verbs::Qpn;
use roxie::wire::cm::{Kind, PrivateData};

use super::pair::{A, B, Pair, SERVICE, acceptance, address, config, request};

const MS: u64 = 1_000_000;

/// Returns a configuration with the default early repetitions.
fn hasty(end: usize) -> Config {
    Config { first_repeat: Config::default().first_repeat, ..config(end) }
}

/// Returns a pair with a listener at B.
fn pair() -> Pair {
    let mut pair = Pair::with(hasty(A), hasty(B));
    pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
    pair
}

/// Loses all messages that `end` sends while `goes_on`. Returns the times of the messages of `kind`, in ms.
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
fn early_repetition_costs_no_retry() {
    let mut pair = pair();
    let a = pair.ends[A].connect(pair.now, &ConnectRequest { max_cm_retries: 2, ..request() }).unwrap();
    let at = departures(&mut pair, A, Kind::Req, |pair| pair.state(A, a) == Some(ConnectionState::ReqSent));
    // Within the first wait of 4.83 s, and then the request's number of retries.
    about(&at, &[0, 250, 750, 1750, 3750, 4832, 9664]);
    let why = WhyUnreachable::Silent { sent: 7 };
    assert_eq!(pair.event(A), Event::Unreachable { id: a, unanswered: Kind::Req, why });
    assert_eq!(pair.ends[A].counters().sent_again(Kind::Req), 6);
    pair.assert_empty();
}

#[test]
fn zero_retries_send_one_request() {
    let mut pair = pair();
    let a = pair.ends[A].connect(pair.now, &ConnectRequest { max_cm_retries: 0, ..request() }).unwrap();
    let at = departures(&mut pair, A, Kind::Req, |pair| pair.state(A, a) == Some(ConnectionState::ReqSent));
    about(&at, &[0]);
}

#[test]
fn short_timeout_has_no_early_repetition() {
    let mut pair = pair();
    // 67 ms, and 2 * 268 ms on the way.
    let hurried = ConnectRequest { response_timeout: 14, max_cm_retries: 1, ..request() };
    let a = pair.ends[A].connect(pair.now, &hurried).unwrap();
    let at = departures(&mut pair, A, Kind::Req, |pair| pair.state(A, a) == Some(ConnectionState::ReqSent));
    about(&at, &[0, 250, 603]);
}

#[test]
fn lost_reply_and_rtu_are_repaired_early() {
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
    // The active side waits for nothing. The passive side repeats its reply once early, then at the peer's timeout.
    let mut again =
        departures(&mut pair, B, Kind::Rep, |pair| pair.state(B, b) == Some(ConnectionState::RepSent));
    assert_eq!(again.len(), 15, "{again:?}");
    again.truncate(1);
    assert!(again[0] > 4000, "{again:?}");
}

/// A flooding host must not get two answers for each request.
#[test]
fn half_full_table_stops_early_replies() {
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
fn sidr_request_and_dreq_are_repeated_early() {
    let mut pair = pair();
    let question = ResolveRequest::new(SERVICE, Route::new(address(A), address(B)));
    let resolution = pair.ends[A].resolve(pair.now, &question).unwrap();
    let at = departures(&mut pair, A, Kind::SidrReq, |pair| pair.state(A, resolution).is_some());
    about(&at[..6], &[0, 250, 750, 1750, 3750, 4294]);
    pair.events(A);

    let (a, _) = pair.established();
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    let at = departures(&mut pair, A, Kind::Dreq, |pair| pair.state(A, a) == Some(ConnectionState::DreqSent));
    about(&at[..6], &[0, 250, 750, 1750, 3750, 4832]);
}

/// An MRA would make the peer wait for a minute where it only repeated early.
#[test]
fn early_copy_gets_no_mra() {
    let mut pair = pair();
    let a = pair.connect();
    pair.settle();
    for _ in 0..3 {
        pair.wait_for(A);
        assert_eq!((pair.deliver(A), pair.deliver(B)), (vec![Kind::Req], vec![]));
    }
    assert_eq!(pair.ends[B].counters().received_again(Kind::Req), 3);
    // The fourth copy comes after 3.75 s: the consumer really takes its time.
    pair.wait_for(A);
    assert_eq!((pair.deliver(A), pair.deliver(B)), (vec![Kind::Req], vec![Kind::Mra]));
    assert_eq!(pair.state(A, a), Some(ConnectionState::RepWait));

    let b = pair.accept();
    pair.settle();
    pair.wait_for(B);
    assert_eq!((pair.deliver(B), pair.deliver(A)), (vec![Kind::Rep], vec![]));
    assert_eq!(
        (pair.state(A, a), pair.state(B, b)),
        (Some(ConnectionState::RepRcvd), Some(ConnectionState::RepSent))
    );
    pair.wait_for(B);
    assert_eq!((pair.deliver(B), pair.deliver(A)), (vec![Kind::Rep], vec![Kind::Mra]));
}

/// The granted time is waited for. After it the peer is asked at the normal intervals.
#[test]
fn mra_suspends_early_repetitions() {
    let mut pair = pair();
    let a = pair.connect();
    pair.settle();
    let b = pair.event(B).id();
    pair.ends[B].delay(b, 20, PrivateData::EMPTY).unwrap();
    pair.settle();
    assert_eq!(pair.state(A, a), Some(ConnectionState::RepWait));
    let at = departures(&mut pair, A, Kind::Req, |pair| {
        matches!(pair.state(A, a), Some(ConnectionState::ReqSent | ConnectionState::RepWait))
    });
    about(&at[..3], &[9127, 9127 + 4832, 9127 + 2 * 4832]);
    assert_eq!(at.len(), 15);
}

/// A peer without a listener is asked at the intervals of `insistence`, which neither use retries nor add any.
#[test]
fn starting_peer_gets_all_retries() {
    let insistence = Nanos::from_millis(250);
    let mut pair = Pair::with(Config { insistence, ..hasty(A) }, config(B));
    let a = pair.ends[A].connect(pair.now, &ConnectRequest { max_cm_retries: 2, ..request() }).unwrap();
    // The peer refuses twice for lack of a listener, and then is silent.
    for _ in 0..2 {
        assert_eq!((pair.deliver(A), pair.deliver(B)), (vec![Kind::Req], vec![Kind::Rej]));
        pair.wait_for(A);
    }
    let at = departures(&mut pair, A, Kind::Req, |pair| pair.state(A, a) == Some(ConnectionState::ReqSent));
    about(&at, &[0, 4832, 9664]);
}
