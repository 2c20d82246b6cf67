//! Places in a listener's backlog: how requests get, keep and lose one.

use roxie::cm::{Config, ConnectionState, Event, ListenOn, ResolveRequest, Route};
use roxie::limits::CmLimits;
use roxie::time::Nanos;
use roxie::verbs::Qpn;
use roxie::wire::cm::{CommId, Kind, PrivateData};

use super::bounds::flood_from;
use super::pair::{A, B, Pair, SERVICE, acceptance, address, config, request};

const MS: u64 = 1_000_000;

/// Returns a pair with a listener of `backlog` places at B.
fn pair(backlog: u32) -> Pair {
    let mut pair = with_real_limits();
    pair.ends[B].listen(SERVICE, ListenOn::Any, backlog).unwrap();
    pair
}

/// Returns a pair with a listener at B, where a request keeps its place until the connection is confirmed.
fn server(places: u32) -> Pair {
    let mut pair = with_real_limits();
    pair.ends[B].listen_until_confirmed(SERVICE, ListenOn::Any, places).unwrap();
    pair
}

/// Returns a pair in which B has the limits of a real manager, and both repeat early.
fn with_real_limits() -> Pair {
    let Config { unproven_messages, first_repeat, .. } = Config::default();
    let b = Config { limits: CmLimits::default(), unproven_messages, first_repeat, ..config(B) };
    Pair::with(Config { first_repeat, ..config(A) }, b)
}

fn requests(events: &[Event]) -> Vec<CommId> {
    events.iter().filter(|event| matches!(event, Event::Request { .. })).map(Event::id).collect()
}

fn withdrawn(events: &[Event]) -> Vec<CommId> {
    events.iter().filter(|event| matches!(event, Event::Withdrawn { .. })).map(Event::id).collect()
}

/// Accepts a request with a QP of its own.
fn accept(pair: &mut Pair, id: CommId) {
    let mut options = acceptance();
    options.qp.qpn = Qpn::new(id.0 & 0x00ff_ffff);
    pair.ends[B].accept(pair.now, id, &options).unwrap();
}

fn pass(pair: &mut Pair, ms: u64) {
    pair.now = pair.now + Nanos(ms * MS);
    for end in [A, B] {
        pair.ends[end].handle_timeouts(pair.now);
    }
    pair.agrees();
}

#[test]
fn crowded_address_gives_its_oldest_place() {
    let mut pair = pair(4);
    for number in 1..=4 {
        flood_from(&mut pair, 1, number, SERVICE);
    }
    let first = requests(&pair.events(B));
    flood_from(&mut pair, 1, 5, SERVICE);
    assert!(pair.events(B).is_empty(), "the same address has places enough");
    flood_from(&mut pair, 2, 6, SERVICE);
    flood_from(&mut pair, 2, 7, SERVICE);
    let events = pair.events(B);
    assert_eq!((withdrawn(&events), requests(&events).len()), (first[..2].to_vec(), 2));
    // Two places each.
    flood_from(&mut pair, 2, 8, SERVICE);
    assert!(pair.events(B).is_empty());
    assert_eq!((pair.ends[B].counters().evicted, pair.ends[B].counters().backlog_full), (2, 2));
    assert!(pair.lose(B).is_empty(), "nobody is told");
    pair.agrees();
}

#[test]
fn repeated_request_gets_a_strangers_place() {
    let mut pair = pair(3);
    for number in 1..=3 {
        flood_from(&mut pair, number, number, SERVICE);
    }
    let requests_of_flood = requests(&pair.events(B));
    pair.connect();
    pair.deliver(A);
    assert!(pair.events(B).is_empty(), "dropped");
    pair.wait_for(A);
    pair.deliver(A);
    let events = pair.events(B);
    assert_eq!(withdrawn(&events), requests_of_flood[..1]);
    let honest = requests(&events)[0];
    // Strangers no longer get that place, nor do they take each other's at once.
    for number in 4..=100 {
        flood_from(&mut pair, number, number, SERVICE);
    }
    assert!(pair.events(B).is_empty());
    pair.ends[B].accept(pair.now, honest, &acceptance()).unwrap();
    assert!(pair.lose(B).contains(&Kind::Rep));
}

#[test]
fn place_is_safe_for_half_a_second() {
    let mut pair = pair(2);
    flood_from(&mut pair, 1, 1, SERVICE);
    flood_from(&mut pair, 2, 2, SERVICE);
    let first = requests(&pair.events(B));
    pass(&mut pair, 490);
    flood_from(&mut pair, 3, 3, SERVICE);
    assert!(pair.events(B).is_empty());
    pass(&mut pair, 20);
    flood_from(&mut pair, 4, 4, SERVICE);
    assert_eq!(withdrawn(&pair.events(B)), first[..1]);
}

#[test]
fn request_without_repetitions_leaves_the_backlog() {
    let mut pair = pair(8);
    flood_from(&mut pair, 1, 1, SERVICE);
    let id = pair.event(B).id();
    pair.wait_for(B);
    while pair.state(B, id).is_some() {
        assert!(pair.step(B));
    }
    assert_eq!(withdrawn(&pair.events(B)), [id]);
    assert_eq!((pair.ends[B].counters().not_repeated, pair.lose(B)), (1, vec![]));
    assert!(pair.now < Nanos(20_000 * MS), "{}", pair.now);
    pair.assert_empty();
}

#[test]
fn repeated_request_stays_in_the_backlog() {
    let mut pair = pair(8);
    let a = pair.connect();
    pair.deliver(A);
    let b = pair.event(B).id();
    // The peer waits for as long as it was asked to.
    let began = pair.now;
    while pair.now < began + Nanos(300_000 * MS) {
        let end = if pair.ends[A].next_deadline() < pair.ends[B].next_deadline() { A } else { B };
        assert!(pair.step(end));
        pair.settle();
        assert!(pair.state(B, b).is_some(), "after {}", pair.now - began);
    }
    assert!(pair.ends[B].counters().sent(Kind::Mra) > 1);
    pair.ends[B].accept(pair.now, b, &acceptance()).unwrap();
    pair.settle();
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    pair.settle();
    assert_eq!(pair.state(B, b), Some(ConnectionState::Established));
}

#[test]
fn taken_request_has_no_place_and_no_limit() {
    let mut pair = pair(1);
    flood_from(&mut pair, 1, 1, SERVICE);
    let taken = pair.event(B).id();
    pair.ends[B].take(taken);
    flood_from(&mut pair, 2, 2, SERVICE);
    let pending = pair.event(B).id();
    pass(&mut pair, 60_000);
    assert_eq!((pair.state(B, taken), pair.state(B, pending)), (Some(ConnectionState::ReqRcvd), None));
    pair.ends[B].accept(pair.now, taken, &acceptance()).unwrap();
    pair.agrees();
}

#[test]
fn unread_resolution_leaves_the_backlog() {
    let mut pair = pair(1);
    pair.ends[A]
        .resolve(pair.now, &ResolveRequest::new(SERVICE, Route::new(address(A), address(B))))
        .unwrap();
    pair.deliver(A);
    let id = pair.event(B).id();
    pass(&mut pair, 60_000);
    assert_eq!((pair.event(B), pair.state(B, id)), (Event::Withdrawn { id }, None));
}

#[test]
fn server_bounds_half_open_connections() {
    const PLACES: u32 = 8;
    let mut pair = server(PLACES);
    let mut open = std::collections::BTreeSet::new();
    for number in 1..=1000 {
        flood_from(&mut pair, number % 5, number, SERVICE);
        for event in pair.events(B) {
            match event {
                Event::Request { id, .. } => {
                    accept(&mut pair, id);
                    open.insert(id);
                }
                Event::Unreachable { id, .. } => assert!(open.remove(&id)),
                other => panic!("{other:?}"),
            }
        }
        pair.agrees();
        assert!(open.len() <= PLACES as usize);
    }
    // An established connection has no place.
    let mut request = request();
    for number in 0..3 * PLACES {
        request.qp.qpn = Qpn::new(0x100 + number);
        let a = pair.ends[A].connect(pair.now, &request).unwrap();
        pair.deliver(A);
        let id = requests(&pair.events(B))[0];
        accept(&mut pair, id);
        pair.outbox(B).retain(|transmit| transmit.route.remote == address(A).into());
        pair.deliver(B);
        pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
        pair.deliver(A);
        assert_eq!(pair.state(B, id), Some(ConnectionState::Established));
        pair.events(B);
    }
    // Without confirmation, all others end.
    pass(&mut pair, 60_000);
    pass(&mut pair, 60_000);
    pass(&mut pair, 60_000);
    assert_eq!(pair.ends[B].connections(), 3 * PLACES as usize);
}

#[test]
fn honest_client_connects_to_flooded_server() {
    each_connects_during_flood(u32::MAX);
}

#[test]
fn honest_client_connects_beside_repeated_flood() {
    each_connects_during_flood(5_000);
}

/// 10,000 requests a second that name random addresses, `different` ones in turn: each of 50 connections is made within
/// 2 s.
fn each_connects_during_flood(different: u32) {
    const CLIENTS: u32 = 50;
    let mut pair = server(128);
    let (mut number, mut honest) = (0u32, request());
    let mut serve = |pair: &mut Pair, ms: u64| {
        for _ in 0..10 * ms {
            number = (number + 1) % different;
            flood_from(pair, number.wrapping_mul(0x9e37_79b9) >> 8, number, SERVICE);
        }
        pass(pair, ms);
        pair.deliver(A);
        for id in requests(&pair.events(B)) {
            // Another request may have its place by now.
            if pair.state(B, id) == Some(ConnectionState::ReqRcvd) {
                accept(pair, id);
            }
        }
        pair.outbox(B).retain(|transmit| transmit.route.remote == address(A).into());
        pair.deliver(B);
        pair.events(A)
    };
    serve(&mut pair, 3000);
    for client in 0..CLIENTS {
        let began = pair.now;
        honest.qp.qpn = Qpn::new(0x100 + client);
        let a = pair.ends[A].connect(pair.now, &honest).unwrap();
        while !serve(&mut pair, 10).iter().any(|event| matches!(event, Event::Reply { id, .. } if *id == a)) {
            assert!(pair.now < began + Nanos(2000 * MS), "client {client} waits");
        }
        // The confirmation takes as long again.
        serve(&mut pair, 200);
        pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
        pair.deliver(A);
        let open = |pair: &Pair| {
            let ids =
                pair.ends[B].ids().filter(|id| pair.state(B, *id) == Some(ConnectionState::Established));
            ids.count() as u32
        };
        assert_eq!(open(&pair), client + 1, "client {client} was evicted");
    }
}
