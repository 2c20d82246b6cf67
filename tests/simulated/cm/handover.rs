//! A manager dies with its consumer, and a successor ends its connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use roxie::cm::{ConnectionState, Event, Handover, HandoverStore, Manager};
use roxie::time::Nanos;
use roxie::wire::cm::{CommId, Kind, PrivateData};

use super::disconnect::bring_to;
use super::pair::{A, B, Pair, config};

/// Replaces the manager of an end by one that knows only the state that the old one left.
fn die(pair: &mut Pair, end: usize) {
    let ids: Vec<_> = pair.ends[end].ids().collect();
    let handovers: Vec<_> = ids.into_iter().filter_map(|id| pair.ends[end].handover(id)).collect();
    pair.ends[end] = Manager::new(config(end));
    for handover in handovers {
        let read = Handover::from_words(&handover.to_words()).unwrap();
        pair.ends[end].take_over(pair.now, &read).unwrap();
    }
}

#[test]
fn successor_ends_established_connection_at_peer() {
    for end in [A, B] {
        let (mut pair, _) = Pair::listening();
        let (a, b) = pair.established();
        let peer = 1 - end;
        die(&mut pair, end);
        // The first DREQ is lost.
        assert_eq!(pair.lose(end), [Kind::Dreq]);
        pair.wait_for(end);
        assert_eq!(pair.deliver(end), [Kind::Dreq]);
        let event = pair.event(peer);
        assert!(matches!(event, Event::DisconnectRequested { id, .. } if id == [a, b][peer]), "{event:?}");
        pair.ends[peer].disconnect(pair.now, event.id(), PrivateData::EMPTY).unwrap();
        assert_eq!(pair.deliver(peer), [Kind::Drep]);
        pair.assert_empty();
        assert!(pair.events(end).is_empty(), "no listener exists");
    }
}

#[test]
fn successor_waits_a_second_for_peer() {
    let (mut pair, _) = Pair::listening();
    pair.established();
    die(&mut pair, A);
    let begun = pair.now;
    let mut sent = pair.lose(A);
    while pair.ends[A].connections() > 0 {
        assert!(pair.step(A), "it waits for ever");
        sent.extend(pair.lose(A));
    }
    assert_eq!(sent, [Kind::Dreq; 5]);
    let took = Nanos(pair.now.0 - begun.0);
    assert!((Nanos::from_millis(900)..Nanos::from_millis(1100)).contains(&took), "{took:?}");
}

/// In each state, the connection ends at both ends, and the peer is notified if necessary.
#[test]
fn successor_ends_connections_of_any_state() {
    for stop in 0..8 {
        let (mut pair, _) = Pair::listening();
        let (end, id) = bring_to(&mut pair, stop);
        let state = pair.state(end, id).unwrap();
        pair.lose(end);
        pair.events(1 - end);
        let has_handover = pair.ends[end].handover(id).is_some();
        die(&mut pair, end);
        let sent = pair.deliver(end);
        assert_eq!(!sent.is_empty(), has_handover, "{state:?}: {sent:?}");
        for event in pair.events(1 - end) {
            pair.ends[1 - end].destroy(pair.now, event.id());
        }
        pair.settle();
        pair.exhaust();
        assert_eq!(pair.ends[end].connections(), 0, "{state:?}");
        let expected = match state {
            ConnectionState::ReqSent
            | ConnectionState::ReqRcvd
            | ConnectionState::RepSent
            | ConnectionState::RepRcvd
            | ConnectionState::MraRepRcvd => &[Kind::Rej][..],
            ConnectionState::Established | ConnectionState::DreqSent => &[Kind::Dreq],
            ConnectionState::DreqRcvd => &[Kind::Drep],
            _ => &[],
        };
        assert_eq!(sent, expected, "{state:?}");
    }
}

/// The saved state survives encoding, also in a state without a code of its own: after the peer's MRA.
#[test]
fn saved_state_survives_encoding() {
    for stop in 0..8 {
        let (mut pair, _) = Pair::listening();
        let (end, id) = bring_to(&mut pair, stop);
        let handovers = pair.ends[end].handover(id).unwrap();
        assert_eq!(Handover::from_words(&handovers.to_words()), Some(handovers), "{:?}", pair.state(end, id));
    }
}

/// The DREP may not have been sent before its sender died.
#[test]
fn successor_repeats_the_drep() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.ends[A].disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    pair.deliver(A);
    pair.ends[B].disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
    assert_eq!(pair.lose(B), [Kind::Drep]);
    die(&mut pair, B);
    assert_eq!(pair.deliver(B), [Kind::Drep]);
    assert!(matches!(pair.event(A), Event::Disconnected { id, .. } if id == a));
    // Once the DREP has arrived, no further message is needed.
    assert_eq!(pair.ends[A].handover(a), None);
}

#[derive(Clone, Debug, Default)]
struct Notes(Arc<Mutex<BTreeMap<CommId, Handover>>>);

impl HandoverStore for Notes {
    fn store(&mut self, id: CommId, handover: Option<&Handover>) {
        let mut notes = self.0.lock().unwrap();
        match handover {
            Some(handover) => notes.insert(id, *handover),
            None => notes.remove(&id),
        };
    }
}

#[test]
fn keeper_always_has_the_current_state() {
    for stop in 0..8 {
        let (mut pair, _) = Pair::listening();
        let notes = [Notes::default(), Notes::default()];
        for (end, notes) in pair.ends.iter_mut().zip(&notes) {
            end.hand_over_to(Box::new(notes.clone()));
        }
        bring_to(&mut pair, stop);
        let agree = |pair: &Pair| {
            for (end, notes) in pair.ends.iter().zip(&notes) {
                let now: BTreeMap<_, _> = end.ids().filter_map(|id| Some((id, end.handover(id)?))).collect();
                assert_eq!(*notes.0.lock().unwrap(), now);
            }
        };
        agree(&pair);
        for end in [A, B] {
            let ids: Vec<_> = pair.ends[end].ids().collect();
            ids.into_iter().for_each(|id| pair.ends[end].destroy(pair.now, id));
            agree(&pair);
            pair.settle();
            agree(&pair);
        }
        pair.exhaust();
        agree(&pair);
        assert!(notes.iter().all(|notes| notes.0.lock().unwrap().is_empty()));
    }
}
