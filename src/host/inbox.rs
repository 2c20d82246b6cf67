//! What QP1 received and the connection manager has not taken in yet, and whose turn it is.
//!
//! A stranger sends requests faster than a manager takes them in. If they were taken in as they came, and dropped as there was no room, a
//! request of somebody else would be lost with as many of them, and come again after seconds. So each address has its own queue, the queues
//! take turns, and an address has no more room than its share. Whoever sends from very many addresses has as many shares; more of
//! them than there is room for find none.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use crate::wire::Gid;

/// Messages of an address that is alone, and addresses at a time.
const ROOM: usize = 4096;
/// Messages of each address at least: what one connection has under way.
const LEAST: usize = 4;

/// Messages by the address that they came from.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    queues: HashMap<Gid, VecDeque<T>>,
    /// Those that have something, in turn.
    turns: VecDeque<Gid>,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Inbox<T> {
        Inbox { queues: HashMap::new(), turns: VecDeque::new() }
    }

    /// A message has come. It is dropped if its address has its share already.
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

    /// The next message, of another address than the last if there is one.
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
    fn one_message_has_its_turn_behind_any_number_of_a_thousand_addresses() {
        let mut inbox = Inbox::new();
        for number in 0..1_000_000 {
            inbox.add(address(number % 1000), "stranger");
        }
        inbox.add(address(1_000_000), "honest");
        let turn = std::iter::from_fn(|| inbox.next()).position(|message| message == "honest");
        assert_eq!(turn, Some(1000));
    }

    #[test]
    fn an_address_that_is_alone_has_all_the_room_and_many_have_a_bounded_one() {
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
