//! Requests that arrive before a listener exists.

use roxie::cm::{ConnectionState, Event, ListenOn, ResolveRequest, Route};
use roxie::time::Nanos;
use roxie::wire::cm::{CmMessage, Kind, PrivateData, Rej, RejReason, SidrStatus, Stage};

use super::pair::{A, B, Pair, SERVICE, address, config, request};

const GRACE: Nanos = Nanos::from_millis(100);

fn patient() -> Pair {
    let mut b = config(B);
    b.grace = GRACE;
    Pair::with(config(A), b)
}

fn question() -> ResolveRequest {
    ResolveRequest::new(SERVICE, Route::new(address(A), address(B)))
}

#[test]
fn early_request_waits_for_a_listener() {
    let mut pair = patient();
    let a = pair.connect();
    pair.settle();
    pair.no_events();
    pair.now = pair.now + Nanos::from_millis(99);
    pair.ends[B].handle_timeouts(pair.now);
    pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
    assert!(pair.step(B));
    let b = pair.accept();
    pair.settle();
    assert!(matches!(pair.event(A), Event::Reply { id, .. } if id == a));
    assert_ne!(pair.state(B, b), None);
}

#[test]
fn unwanted_request_is_refused_once_after_grace() {
    let mut pair = patient();
    pair.connect();
    // Two copies of the request arrive.
    let sent = pair.outbox(A).clone();
    pair.give(B, &sent[0]);
    pair.settle();
    // A listener for another service changes nothing.
    let other_service = roxie::wire::ServiceId(SERVICE.0 + 1);
    pair.ends[B].listen(other_service, ListenOn::Any, 8).unwrap();
    assert!(pair.step(B));
    assert!(pair.outbox(B).is_empty());
    let begun = pair.now;
    pair.wait_for(B);
    assert!(pair.now + Nanos::from_millis(1) >= begun + GRACE, "{:?}", pair.now);
    assert_eq!(pair.deliver(B), [Kind::Rej]);
    let event = pair.event(A);
    assert!(
        matches!(&event, Event::Rejected { reject, .. } if reject.reason == RejReason::INVALID_SERVICE_ID),
        "{event:?}"
    );
    pair.assert_empty();
}

#[test]
fn early_sidr_request_waits_for_a_listener() {
    for listener_comes in [true, false] {
        let mut pair = patient();
        pair.ends[A].resolve(pair.now, &question()).unwrap();
        pair.settle();
        pair.no_events();
        if listener_comes {
            pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
            assert!(pair.step(B));
            assert!(matches!(pair.event(B), Event::ResolutionRequest { .. }));
        } else {
            pair.wait_for(B);
            assert_eq!(pair.deliver(B), [Kind::SidrRep]);
            let event = pair.event(A);
            assert!(
                matches!(&event, Event::Resolved { reply, .. } if reply.status == SidrStatus::UNSUPPORTED),
                "{event:?}"
            );
        }
    }
}

#[test]
fn early_requests_are_bounded() {
    let mut pair = Pair::new();
    let mut b = config(B);
    (b.grace, b.limits.early) = (GRACE, 2);
    pair.ends[B] = roxie::cm::Manager::new(b);
    for _ in 0..3 {
        pair.connect();
    }
    pair.deliver(A);
    assert_eq!(pair.lose(B), [Kind::Rej], "the third");
    pair.wait_for(B);
    assert_eq!(pair.lose(B), [Kind::Rej, Kind::Rej]);
}

/// A refusal is an answer: it uses no retry.
#[test]
fn refusals_do_not_use_retries() {
    let (mut a, mut request) = (config(A), request());
    a.insistence = Nanos::from_millis(250);
    request.max_cm_retries = 1;
    let mut pair = Pair::with(a, config(B));
    let begun = pair.now;
    pair.ends[A].connect(begun, &request).unwrap();
    let mut requests = 0;
    loop {
        requests += pair.deliver(A).len();
        assert_eq!(pair.deliver(B).len(), 1, "refused at once");
        if let Some(event) = pair.ends[A].poll_event() {
            assert!(matches!(event, Event::Rejected { .. }), "{event:?}");
            break;
        }
        pair.wait_for(A);
    }
    // Every 20 ms of the 250.
    assert_eq!((requests, pair.now < begun + a.insistence), (13, true));
    pair.assert_empty();
}

/// A request that a kernel refuses at once is repeated, without using retries.
#[test]
fn refused_request_is_repeated_for_a_while() {
    for listener_comes in [true, false] {
        let mut a = config(A);
        a.insistence = Nanos::from_millis(50);
        let mut pair = Pair::with(a, config(B));
        let id = pair.connect();
        let (mut requests, begun) = (Vec::new(), pair.now);
        for _ in 0..2 {
            requests.extend(pair.take(A));
            let refusal = requests.last().map(|(tid, _)| *tid).unwrap();
            let rej = Rej {
                remote_comm_id: id,
                message: Stage::Req,
                reason: RejReason::INVALID_SERVICE_ID,
                ..Rej::default()
            };
            pair.forge(A, refusal, &CmMessage::Rej(rej));
            pair.no_events();
            pair.wait_for(A);
        }
        // Each message is the same request.
        requests.extend(pair.outbox(A).iter().map(|transmit| CmMessage::read(&transmit.mad).unwrap()));
        assert!(requests.len() == 3 && requests.windows(2).all(|two| two[0] == two[1]), "{requests:?}");
        if listener_comes {
            pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
        }
        pair.settle();
        if listener_comes {
            pair.accept();
            pair.settle();
            assert!(matches!(pair.event(A), Event::Reply { .. }));
            pair.ends[A].ready(id, PrivateData::EMPTY).unwrap();
            // An old refusal changes nothing.
            let old = Rej {
                remote_comm_id: id,
                message: Stage::Req,
                reason: RejReason::INVALID_SERVICE_ID,
                ..Rej::default()
            };
            pair.forge(A, 1, &CmMessage::Rej(old));
            assert_eq!(pair.state(A, id), Some(ConnectionState::Established));
        } else {
            assert!(matches!(pair.event(A), Event::Rejected { .. }));
            assert!(pair.now < begun + Nanos::from_millis(60));
            pair.assert_empty();
        }
    }
}
