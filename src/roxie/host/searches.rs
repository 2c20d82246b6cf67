//! Path resolution for many hosts at a time, each bounded in time.
//!
//! The sender of a request chooses its source address, and an address without a host is silent. No search therefore
//! delays another. Each host is asked for immediately and polled after 1 ms, 2 ms, 4 ms and so on. A search ends after
//! 3 s, or as the oldest when there are too many. An existing host answers in less than 1 ms, long before a flood of
//! forged addresses evicts its search.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Maximum number of searches.
pub(super) const PLACES: usize = 256;
/// Maximum number of messages that wait for a search. Further ones are dropped, and retransmitted later.
const MESSAGES: usize = 4;
/// The first and the longest interval between two polls of a search.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(250)];
/// Maximum duration of a search: the kernel asks three times at intervals of 1 s.
const PATIENCE: Duration = Duration::from_secs(3);

/// A bounded cache of resolved paths. Evicts the least recently used one.
#[derive(Debug)]
pub(super) struct Found<W, T> {
    by_path: HashMap<W, (T, u64)>,
    bound: usize,
    /// Counter of uses, for the age of entries.
    uses: u64,
}

impl<W: Eq + Hash + Copy, T> Found<W, T> {
    /// Makes a cache of up to `bound` paths.
    pub(super) fn new(bound: usize) -> Found<W, T> {
        Found { by_path: HashMap::new(), bound, uses: 0 }
    }

    pub(super) fn get(&mut self, path: &W) -> Option<&T> {
        self.uses += 1;
        let (value, used) = self.by_path.get_mut(path)?;
        *used = self.uses;
        Some(value)
    }

    pub(super) fn insert(&mut self, path: W, found: T) {
        self.uses += 1;
        if self.by_path.len() >= self.bound
            && !self.by_path.contains_key(&path)
            && let Some(oldest) =
                self.by_path.iter().min_by_key(|(_, (_, used))| *used).map(|(path, _)| *path)
        {
            self.by_path.remove(&oldest);
        }
        self.by_path.insert(path, (found, self.uses));
    }
}

/// Searches, oldest first.
#[derive(Debug)]
pub(super) struct Searches<W, M>(VecDeque<Search<W, M>>);

#[derive(Debug)]
struct Search<W, M> {
    path: W,
    messages: Vec<M>,
    since: Instant,
    next_poll: Instant,
    pause: Duration,
}

/// Result of polling a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup<T> {
    Found(T),
    NotYet,
    Never,
}

/// How a search ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SearchEnd<W, M, T> {
    /// The path is resolved, and these messages can be sent.
    Found(T, Vec<M>),
    /// The path is not resolved: end the kernel's resolution.
    GivenUp(W),
}

impl<W: PartialEq + Copy, M> Searches<W, M> {
    pub(super) fn new() -> Searches<W, M> {
        Searches(VecDeque::with_capacity(PLACES))
    }

    /// Adds a message for a path, and a search if needed. Returns the path of a search that was evicted.
    pub(super) fn add(&mut self, now: Instant, path: W, message: M) -> Option<W> {
        if let Some(search) = self.0.iter_mut().find(|search| search.path == path) {
            if search.messages.len() < MESSAGES {
                search.messages.push(message);
            }
            return None;
        }
        let evicted = if self.0.len() >= PLACES { self.0.pop_front() } else { None };
        self.0.push_back(Search {
            path,
            messages: vec![message],
            since: now,
            next_poll: now,
            pause: LOOKS[0],
        });
        evicted.map(|search| search.path)
    }

    /// Returns when the next search is to be polled.
    pub(super) fn next_poll(&self) -> Option<Instant> {
        self.0.iter().map(|search| search.next_poll).min()
    }

    /// Polls the searches that are due, and returns those that ended. The first poll of a path starts its resolution.
    pub(super) fn poll<T>(
        &mut self,
        now: Instant,
        lookup: impl Fn(&W) -> Lookup<T>,
    ) -> Vec<SearchEnd<W, M, T>> {
        let mut ends = Vec::new();
        self.0.retain_mut(|search| {
            if search.next_poll > now {
                return true;
            }
            match lookup(&search.path) {
                Lookup::Found(found) => {
                    ends.push(SearchEnd::Found(found, std::mem::take(&mut search.messages)))
                }
                Lookup::NotYet if now.duration_since(search.since) < PATIENCE => {
                    search.next_poll = now + search.pause;
                    search.pause = (2 * search.pause).min(LOOKS[1]);
                    return true;
                }
                Lookup::NotYet | Lookup::Never => ends.push(SearchEnd::GivenUp(search.path)),
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
    fn silent_hosts_do_not_delay_other_searches() {
        let mut searches = Searches::new();
        let mut now = Instant::now();
        let honest = 1_000_000;
        // A thousand new addresses per millisecond, and one that answers after 3 ms.
        for host in 0..10_000u32 {
            searches.add(now, host, host);
            if host % 1000 == 0 {
                searches.poll(now, |_| Lookup::<()>::NotYet);
                now += MS;
            }
        }
        searches.add(now, honest, honest);
        assert!(searches.0.len() <= PLACES);
        let answered = now + 3 * MS;
        let mut ended = Vec::new();
        for _ in 0..8 {
            for host in 0..(PLACES as u32 - 1) / 8 {
                searches.add(now, 2_000_000 + host, host);
            }
            let there = |path: &u32| *path == honest && now >= answered;
            ended.extend(
                searches.poll(now, |path| if there(path) { Lookup::Found(*path) } else { Lookup::NotYet }),
            );
            now += MS;
        }
        assert!(
            matches!(&ended[..], [SearchEnd::Found(path, messages)] if *path == honest && messages == &[honest])
        );
    }

    #[test]
    fn recently_used_path_stays_cached() {
        let mut cache = Found::new(8);
        cache.insert(0, "honest");
        for stranger in 1..100 {
            cache.insert(stranger, "stranger");
            assert_eq!(cache.get(&0), Some(&"honest"), "after {stranger} strangers");
        }
        assert_eq!(cache.get(&99), Some(&"stranger"));
        assert_eq!(cache.get(&92), None, "the least recently used one");
        cache.insert(0, "anew");
        assert_eq!(cache.get(&0), Some(&"anew"));
        assert_eq!(cache.get(&94), Some(&"stranger"), "replacing an entry evicts none");
    }

    #[test]
    fn silent_or_oldest_search_is_given_up() {
        let mut searches = Searches::new();
        let start = Instant::now();
        assert_eq!(searches.add(start, 7, "first"), None);
        assert_eq!(searches.add(start, 7, "second"), None, "the same search");
        for host in 100..100 + PLACES as u32 - 1 {
            assert_eq!(searches.add(start, host, "other"), None);
        }
        assert_eq!(searches.add(start, 8, "more"), Some(7));
        let mut now = start;
        let mut polls = 0;
        while now < start + PATIENCE {
            assert_eq!(searches.poll(now, |_| Lookup::<()>::NotYet), []);
            now = searches.next_poll().unwrap();
            polls += 1;
        }
        assert!(polls < 30, "{polls} looks");
        assert_eq!(searches.poll(now, |_| Lookup::<()>::NotYet).len(), PLACES);
        assert_eq!(searches.next_poll(), None);
    }

    #[test]
    fn bounded_messages_are_returned_with_the_found_path() {
        let mut searches = Searches::new();
        let now = Instant::now();
        for message in 0..10 {
            searches.add(now, 7, message);
        }
        assert_eq!(searches.poll(now, |_| Lookup::Found(1)), [SearchEnd::Found(1, vec![0, 1, 2, 3])]);
        searches.add(now, 8, 0);
        assert_eq!(searches.poll(now, |_| Lookup::<()>::Never), [SearchEnd::GivenUp(8)]);
    }
}
