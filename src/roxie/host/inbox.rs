//! Received messages of QP1 that the connection manager has not handled yet, queued by sender.
//!
//! A flood of requests arrives faster than the manager handles them. In a single queue, requests of other senders would
//! be dropped with the flood, and repeated only after seconds. Each address therefore has its own queue of bounded
//! length, and the queues take turns. A sender with many addresses has as many queues, but their number is bounded.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use roxie_wire::Gid;

/// Maximum length of the queue of an address that is alone, and maximum number of queues.
const ROOM: usize = 4096;
/// Length that each queue may have in any case: the messages that one connection has in flight.
const LEAST: usize = 4;

/// Messages by sender address.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    queues: HashMap<Gid, VecDeque<T>>,
    /// Addresses with a non-empty queue, in turn.
    turns: VecDeque<Gid>,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Inbox<T> {
        Inbox { queues: HashMap::new(), turns: VecDeque::new() }
    }

    /// Adds a received message. Drops it if the queue of its address is full.
    pub(super) fn add(&mut self, from: Gid, message: T) {
        let addresses = self.queues.len();
        match self.queues.entry(from) {
            Entry::Occupied(mut waiting) => {
                if waiting.get().len() < (ROOM / addresses).max(LEAST) {
                    waiting.get_mut().push_back(message);
                }
            }
            Entry::Vacant(place) => {
                if addresses < ROOM {
                    place.insert(VecDeque::from([message]));
                    self.turns.push_back(from);
                }
            }
        }
    }

    /// Returns the next message, from another address than the last one if possible.
    pub(super) fn next(&mut self) -> Option<T> {
        let from = self.turns.pop_front()?;
        let waiting = self.queues.get_mut(&from)?;
        let message = waiting.pop_front();
        if waiting.is_empty() {
            self.queues.remove(&from);
        } else {
            self.turns.push_back(from);
        }
        message
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> Gid {
        Gid::from(std::net::IpAddr::from(std::net::Ipv4Addr::from(n)))
    }

    #[test]
    fn flood_of_thousand_addresses_delays_others_one_round() {
        let mut inbox = Inbox::new();
        for number in 0..1_000_000 {
            inbox.add(address(number % 1000), "stranger");
        }
        inbox.add(address(1_000_000), "honest");
        let turn = std::iter::from_fn(|| inbox.next()).position(|message| message == "honest");
        assert_eq!(turn, Some(1000));
    }

    #[test]
    fn queue_bound_shrinks_with_the_number_of_addresses() {
        let mut inbox = Inbox::new();
        for number in 0..10_000 {
            inbox.add(address(1), number);
        }
        let all: Vec<_> = std::iter::from_fn(|| inbox.next()).collect();
        assert_eq!(all, (0..ROOM as i32).collect::<Vec<_>>(), "in the order in which they came");
        assert!(inbox.is_empty());
        for _ in 0..10 {
            for number in 0..2 * ROOM as u32 {
                inbox.add(address(number), 0);
            }
        }
        assert_eq!(std::iter::from_fn(|| inbox.next()).count(), LEAST * ROOM);
        assert!(inbox.is_empty() && inbox.queues.is_empty());
    }
}
