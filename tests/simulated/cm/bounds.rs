//! Floods of messages: tables fill to their bounds, and excess is counted.

use std::net::{IpAddr, Ipv4Addr};

use roxie::cm::{Arrival, CmError, Config, ConnectionState, Event, ListenOn, Route};
use roxie::limits::CmLimits;
use roxie::time::Nanos;
use roxie::verbs::Qpn;
use roxie::wire::cm::{Ari, CmMessage, CommId, Kind, PrivateData, RejReason, Req};
use roxie::wire::{PortSpace, ServiceId};

use super::pair::{A, B, Pair, SERVICE, acceptance, address, config, request};

/// Sends a REQ from a new address.
fn flood(pair: &mut Pair, number: u32, service: ServiceId) {
    flood_from(pair, number, number, service);
}

/// Sends a REQ of a foreign host that requests the largest values.
pub fn flood_from(pair: &mut Pair, stranger: u32, number: u32, service: ServiceId) {
    let from: IpAddr = Ipv4Addr::from(0x0a01_0000 + stranger).into();
    let mut req = Req {
        local_comm_id: CommId(number),
        service_id: service,
        local_ca_guid: number.into(),
        local_qpn: Qpn::new(number),
        path_mtu: 3,
        local_cm_response_timeout: 31,
        max_cm_retries: 15,
        ..Req::default()
    };
    req.primary_path.local_ack_timeout = 31;
    req.primary_path.local_gid = from.into();
    req.primary_path.remote_gid = address(B).into();
    let arrival = Arrival { route: Route::new(address(B), from), src_qp: Qpn::GSI };
    let now = pair.now;
    pair.ends[B].handle_mad(now, &CmMessage::Req(req).to_mad(number.into()), &arrival);
}

#[test]
fn backlog_is_bounded_and_places_are_freed() {
    let mut pair = Pair::new();
    let other = ServiceId::of_port(PortSpace::Tcp, 1);
    pair.ends[B].listen(SERVICE, ListenOn::Any, 3).unwrap();
    pair.ends[B].listen(other, ListenOn::Any, 3).unwrap();
    for number in 1..=10 {
        flood(&mut pair, number, SERVICE);
    }
    let events = pair.events(B);
    assert_eq!((events.len(), pair.ends[B].counters().backlog_full), (3, 7));
    // Dropped silently: the REQs are retransmitted.
    assert!(pair.lose(B).is_empty());
    // Other listeners are not affected.
    flood(&mut pair, 11, other);
    assert_eq!(pair.events(B).len(), 1);
    // One request answered, one withdrawn: room for two.
    pair.ends[B].accept(pair.now, events[0].id(), &acceptance()).unwrap();
    pair.ends[B].destroy(pair.now, events[1].id());
    for number in 12..=14 {
        flood(&mut pair, number, SERVICE);
    }
    assert_eq!(pair.events(B).len(), 2);
}

#[test]
fn full_table_drops_requests_and_refuses_calls() {
    let limits = CmLimits { connections: 5, ..CmLimits::default() };
    let mut pair = Pair::with(config(A), Config { limits, ..config(B) });
    pair.ends[B].listen(SERVICE, ListenOn::Any, 100).unwrap();
    for number in 1..=20 {
        flood(&mut pair, number, SERVICE);
    }
    assert_eq!((pair.events(B).len(), pair.ends[B].connections()), (5, 5));
    assert_eq!(pair.ends[B].counters().table_full, 15);
    let error = pair.ends[B].connect(pair.now, &request()).unwrap_err();
    assert_eq!(error, CmError::Full { what: "connections", limit: 5 });
}

#[test]
fn full_event_queue_stops_requests() {
    let limits = CmLimits { events: 4, ..CmLimits::default() };
    let mut pair = Pair::with(config(A), Config { limits, ..config(B) });
    pair.ends[B].listen(SERVICE, ListenOn::Any, 100).unwrap();
    for number in 1..=20 {
        flood(&mut pair, number, SERVICE);
    }
    assert_eq!(pair.ends[B].counters().events_full, 16);
    assert_eq!(pair.events(B).len(), 4);
    flood(&mut pair, 21, SERVICE);
    assert!(matches!(pair.event(B), Event::Request { .. }));
}

#[test]
fn answer_queue_is_bounded() {
    let limits = CmLimits { transmits: 7, ..CmLimits::default() };
    let mut pair = Pair::with(config(A), Config { limits, ..config(B) });
    for number in 1..=20 {
        flood(&mut pair, number, SERVICE);
    }
    assert_eq!(pair.lose(B), [Kind::Rej; 7]);
    assert_eq!(pair.ends[B].counters().transmits_full, 13);
}

#[test]
fn listeners_are_bounded() {
    let mut pair = Pair::new();
    for port in 0..4 {
        pair.ends[A].listen(ServiceId::of_port(PortSpace::Tcp, port), ListenOn::Any, 1).unwrap();
    }
    let error = pair.ends[A].listen(SERVICE, ListenOn::Any, 1).unwrap_err();
    assert_eq!(error, CmError::Full { what: "listeners", limit: 4 });
}

#[test]
fn malformed_messages_are_counted() {
    let mut pair = Pair::new();
    pair.connect();
    let mad = pair.outbox(A)[0].mad;
    let route = Route::new(address(B), address(A));
    let from = Arrival { route, src_qp: Qpn::GSI };
    let end = &mut pair.ends[B];
    end.handle_mad(pair.now, &mad[..255], &from);
    for (at, value) in [(0, 2), (1, 0x03), (2, 1), (3, 0x83), (17, 0x1b)] {
        let mut wrong = mad;
        wrong[at] = value;
        end.handle_mad(pair.now, &wrong, &from);
    }
    assert_eq!(end.counters().not_cm, 6);
    end.handle_mad(pair.now, &mad, &Arrival { src_qp: Qpn::new(5), ..from });
    assert_eq!(end.counters().not_from_gsi, 1);
    assert!(pair.lose(B).is_empty());
}

/// Managers with default limits.
fn ordinary() -> Pair {
    let mut pair = Pair::with(config(A), Config { limits: CmLimits::default(), ..config(B) });
    pair.ends[B].listen(SERVICE, ListenOn::Any, 128).unwrap();
    pair
}

#[test]
fn requested_timeouts_are_bounded() {
    let mut pair = ordinary();
    flood(&mut pair, 1, SERVICE);
    let (id, began) = (pair.event(B).id(), pair.now);
    pair.ends[B].accept(pair.now, id, &acceptance()).unwrap();
    let mut replies = 0;
    while pair.ends[B].connections() > 0 {
        replies += pair.lose(B).iter().filter(|kind| **kind == Kind::Rep).count();
        assert!(pair.step(B));
    }
    let took = pair.now - began;
    assert_eq!(replies, 6);
    // Each answer is awaited for as long as the code says, at most twice, and the connection then lingers.
    assert!(took < Nanos(14 * (4096 << 20)), "{took}");
}

#[test]
fn one_address_cannot_fill_the_table() {
    let mut pair = ordinary();
    let half_open = CmLimits::default().half_open;
    for number in 1..=half_open + 10 {
        flood_from(&mut pair, 1, number, SERVICE);
        for event in pair.events(B) {
            pair.ends[B].accept(pair.now, event.id(), &acceptance()).unwrap();
        }
        pair.lose(B);
    }
    assert_eq!(pair.ends[B].connections(), half_open as usize);
    assert_eq!(pair.ends[B].counters().address_full, 10);
    pair.connect();
    pair.deliver(A);
    assert!(matches!(pair.event(B), Event::Request { .. }));
    // A request with an outcome, or without one, frees its place.
    pair.exhaust();
    pair.events(B);
    flood_from(&mut pair, 1, 5000, SERVICE);
    assert!(matches!(pair.event(B), Event::Request { .. }));
}

/// An evicted connection no longer counts for its address, which has its full share again.
#[test]
fn eviction_restores_the_address_share() {
    let limits = CmLimits { connections: 4, half_open: 4, ..CmLimits::default() };
    let mut pair = Pair::with(config(A), Config { limits, ..config(B) });
    pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
    let mut take = |stranger: u32, number: u32| {
        flood_from(&mut pair, stranger, number, SERVICE);
        let taken = pair.events(B).into_iter().filter(|event| matches!(event, Event::Request { .. }));
        let taken: Vec<_> = taken.map(|event| event.id()).collect();
        for id in &taken {
            pair.ends[B].accept(pair.now, *id, &acceptance()).unwrap();
        }
        pair.agrees();
        taken.len()
    };
    for number in 1..=4 {
        assert_eq!(take(1, number), 1);
    }
    assert_eq!(take(1, 5), 0, "its share is 4");
    for number in 6..=9 {
        assert_eq!(take(2, number), 1, "in the place of one of the first");
    }
    for number in 10..=13 {
        assert_eq!(take(1, number), 1, "which has none now");
    }
}

#[test]
fn honest_client_connects_during_a_flood() {
    const STRANGERS: u32 = 1000;
    const SECONDS: u32 = 60;
    /// Foreign requests between two of the honest client's: the table fills after a few.
    const BETWEEN: u32 = 2000;
    let mut pair = ordinary();
    let mut number = 0;
    for second in 0..SECONDS {
        for _ in 0..BETWEEN {
            number += 1;
            flood_from(&mut pair, number % STRANGERS, number, SERVICE);
            for event in pair.events(B) {
                // The consumer accepts every request, and hears the end of most.
                if let Event::Request { id, .. } = event {
                    pair.ends[B].accept(pair.now, id, &acceptance()).unwrap();
                }
            }
            pair.lose(B);
        }
        // Foreign hosts do not retransmit, so no time passes.
        let a = pair.connect();
        pair.settle();
        let is_request = |event: &&Event| matches!(event, Event::Request { .. });
        let b = pair.events(B).iter().find(is_request).unwrap_or_else(|| panic!("in second {second}")).id();
        pair.ends[B].accept(pair.now, b, &acceptance()).unwrap();
        pair.settle();
        pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
        pair.settle();
        assert_eq!(pair.state(B, b), Some(ConnectionState::Established), "in second {second}");
        pair.ends[A].destroy(pair.now, a);
        pair.settle();
        pair.ends[B].destroy(pair.now, b);
        pair.settle();
        pair.events(A);
        pair.events(B);
        pair.now = pair.now + Nanos::from_millis(1000);
        for end in [A, B] {
            let now = pair.now;
            pair.ends[end].handle_timeouts(now);
        }
    }
    assert!(pair.ends[B].connections() <= CmLimits::default().connections as usize);
    let counters = *pair.ends[B].counters();
    assert!(counters.evicted > 0 && counters.table_full == 0, "{counters:?}");
    pair.agrees();
}

/// A lingering connection is evicted only if the consumer has released it: its ID must not be reused while the consumer
/// has it.
#[test]
fn released_lingering_connection_is_evicted() {
    let limits = CmLimits { connections: 2, ..CmLimits::default() };
    for forgets in [false, true] {
        let mut pair = Pair::with(config(A), Config { limits, ..config(B) });
        pair.ends[B].listen(SERVICE, ListenOn::Any, 100).unwrap();
        for _ in 0..2 {
            let b = if forgets {
                pair.connect();
                pair.settle();
                let b = pair.event(B).id();
                pair.ends[B].reject(pair.now, b, RejReason::CONSUMER, Ari::NONE, PrivateData::EMPTY).unwrap();
                b
            } else {
                let (a, b) = pair.established();
                pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
                pair.settle();
                assert!(matches!(pair.event(B), Event::DisconnectRequested { .. }));
                pair.ends[B].disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
                b
            };
            pair.settle();
            assert_eq!(pair.state(B, b), Some(ConnectionState::TimeWait));
            pair.events(A);
            pair.events(B);
        }
        pair.connect();
        pair.settle();
        let requests =
            pair.events(B).into_iter().filter(|event| matches!(event, Event::Request { .. })).count();
        let counters = pair.ends[B].counters();
        assert_eq!(
            (requests, counters.evicted, counters.table_full),
            if forgets { (1, 1, 0) } else { (0, 0, 1) }
        );
        pair.agrees();
    }
}
