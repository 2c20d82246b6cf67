//! Hosts that are looked for: many at a time, each for a moment.
//!
//! Whoever sends a request chooses the address that it comes from, and one that belongs to nobody is silent. So no search waits for
//! another: each host is asked for at once, looked at after 1 ms, 2 ms, 4 ms and so on, and forgotten after a few seconds, or as the oldest when
//! there are too many. A host that is there answers in less than a millisecond, and has long been found when many strangers' are
//! given up.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Hosts that are looked for at a time.
pub(super) const PLACES: usize = 256;
/// Messages that wait for one of them; more are dropped, and come again.
const MESSAGES: usize = 4;
/// The first look after the question, and the longest time between two.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(250)];
/// How long a host is looked for: the kernel asks three times, with a second between.
const PATIENCE: Duration = Duration::from_secs(3);

/// What was found, bounded: who was spoken to longest ago makes room.
#[derive(Debug)]
pub(super) struct Found<W, T> {
    by_way: HashMap<W, (T, u64)>,
    bound: usize,
    /// Counts what was asked for.
    uses: u64,
}

impl<W: Eq + Hash + Copy, T> Found<W, T> {
    /// Room for `bound` of them.
    pub(super) fn new(bound: usize) -> Found<W, T> {
        Found { by_way: HashMap::new(), bound, uses: 0 }
    }

    pub(super) fn get(&mut self, way: &W) -> Option<&T> {
        self.uses += 1;
        let (found, used) = self.by_way.get_mut(way)?;
        *used = self.uses;
        Some(found)
    }

    pub(super) fn insert(&mut self, way: W, found: T) {
        self.uses += 1;
        if self.by_way.len() >= self.bound
            && !self.by_way.contains_key(&way)
            && let Some(oldest) = self.by_way.iter().min_by_key(|(_, (_, used))| *used).map(|(way, _)| *way)
        {
            self.by_way.remove(&oldest);
        }
        self.by_way.insert(way, (found, self.uses));
    }
}

/// Searches, oldest first.
#[derive(Debug)]
pub(super) struct Searches<W, M>(VecDeque<Search<W, M>>);

#[derive(Debug)]
struct Search<W, M> {
    way: W,
    messages: Vec<M>,
    since: Instant,
    look: Instant,
    pause: Duration,
}

/// What a look showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight<T> {
    Found(T),
    NotYet,
    Never,
}

/// How a search ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End<W, M, T> {
    /// The messages can go.
    Found(T, Vec<M>),
    /// Nobody is to be asked for it any more.
    GivenUp(W),
}

impl<W: PartialEq + Copy, M> Searches<W, M> {
    pub(super) fn new() -> Searches<W, M> {
        Searches(VecDeque::with_capacity(PLACES))
    }

    /// A message has to go this way. Gives the search that has to make room, if one has.
    pub(super) fn add(&mut self, now: Instant, way: W, message: M) -> Option<W> {
        if let Some(search) = self.0.iter_mut().find(|search| search.way == way) {
            if search.messages.len() < MESSAGES {
                search.messages.push(message);
            }
            return None;
        }
        let evicted = if self.0.len() >= PLACES { self.0.pop_front() } else { None };
        self.0.push_back(Search { way, messages: vec![message], since: now, look: now, pause: LOOKS[0] });
        evicted.map(|search| search.way)
    }

    /// When somebody is to be looked at.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.0.iter().map(|search| search.look).min()
    }

    /// Looks at those whose time it is, and tells how searches ended. The first look at a host asks for it.
    pub(super) fn look<T>(&mut self, now: Instant, sight: impl Fn(&W) -> Sight<T>) -> Vec<End<W, M, T>> {
        let mut ends = Vec::new();
        self.0.retain_mut(|search| {
            if search.look > now {
                return true;
            }
            match sight(&search.way) {
                Sight::Found(found) => ends.push(End::Found(found, std::mem::take(&mut search.messages))),
                Sight::NotYet if now.duration_since(search.since) < PATIENCE => {
                    search.look = now + search.pause;
                    search.pause = (2 * search.pause).min(LOOKS[1]);
                    return true;
                }
                Sight::NotYet | Sight::Never => ends.push(End::GivenUp(search.way)),
            }
            false
        });
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn any_number_of_silent_hosts_keep_nobody_from_being_found() {
        let mut searches = Searches::new();
        let mut now = Instant::now();
        let honest = 1_000_000;
        // A thousand new addresses in each millisecond, and one that answers after three.
        for host in 0..10_000u32 {
            searches.add(now, host, host);
            if host % 1000 == 0 {
                searches.look(now, |_| Sight::<()>::NotYet);
                now += MS;
            }
        }
        searches.add(now, honest, honest);
        assert!(searches.0.len() <= PLACES);
        let answered = now + 3 * MS;
        let mut found = Vec::new();
        for _ in 0..8 {
            for host in 0..(PLACES as u32 - 1) / 8 {
                searches.add(now, 2_000_000 + host, host);
            }
            let there = |way: &u32| *way == honest && now >= answered;
            found.extend(
                searches.look(now, |way| if there(way) { Sight::Found(*way) } else { Sight::NotYet }),
            );
            now += MS;
        }
        assert!(matches!(&found[..], [End::Found(way, messages)] if *way == honest && messages == &[honest]));
    }

    #[test]
    fn whoever_is_spoken_to_keeps_its_place_among_strangers() {
        let mut found = Found::new(8);
        found.insert(0, "honest");
        for stranger in 1..100 {
            found.insert(stranger, "stranger");
            assert_eq!(found.get(&0), Some(&"honest"), "after {stranger} strangers");
        }
        assert_eq!(found.get(&99), Some(&"stranger"));
        assert_eq!(found.get(&92), None, "it was spoken to longest ago");
        found.insert(0, "anew");
        assert_eq!(found.get(&0), Some(&"anew"));
        assert_eq!(found.get(&94), Some(&"stranger"), "nobody makes room for who is there");
    }

    #[test]
    fn one_who_is_silent_is_given_up_after_a_while_and_the_oldest_when_there_is_no_room() {
        let mut searches = Searches::new();
        let start = Instant::now();
        assert_eq!(searches.add(start, 7, "first"), None);
        assert_eq!(searches.add(start, 7, "second"), None, "the same search");
        for host in 100..100 + PLACES as u32 - 1 {
            assert_eq!(searches.add(start, host, "other"), None);
        }
        assert_eq!(searches.add(start, 8, "more"), Some(7));
        let mut now = start;
        let mut looks = 0;
        while now < start + PATIENCE {
            assert_eq!(searches.look(now, |_| Sight::<()>::NotYet), []);
            now = searches.next_look().unwrap();
            looks += 1;
        }
        assert!(looks < 30, "{looks} looks");
        assert_eq!(searches.look(now, |_| Sight::<()>::NotYet).len(), PLACES);
        assert_eq!(searches.next_look(), None);
    }

    #[test]
    fn the_messages_of_one_who_is_found_are_given_back_and_bounded() {
        let mut searches = Searches::new();
        let now = Instant::now();
        for message in 0..10 {
            searches.add(now, 7, message);
        }
        assert_eq!(searches.look(now, |_| Sight::Found(1)), [End::Found(1, vec![0, 1, 2, 3])]);
        searches.add(now, 8, 0);
        assert_eq!(searches.look(now, |_| Sight::<()>::Never), [End::GivenUp(8)]);
    }
}
