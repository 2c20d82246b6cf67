//! Memory for queues that a process shares with its NIC.
//!
//! Queues lie side by side in arenas: with a descriptor and a mapping for each queue, thousands of QPs would exhaust
//! the process's limits. The words of a queue are free again when its last handle is dropped, by which time the NIC has
//! been told that the queue is gone.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use super::message::ArenaPlace;
use roxie_base::threads::lock;
use roxie_nic::shared::Region;
use roxie_nic::shared::region::LINE;

/// Words of the first arena, unless a larger one is needed: 64 KiB. Its pages are allocated immediately, used or not.
const FIRST: usize = 1 << 13;
/// Maximum words of an arena, unless a larger one is needed: 4 MiB. Up to there, each arena is as large as all before
/// it together.
const ARENA: usize = 1 << 19;

#[derive(Debug)]
struct Arena {
    region: Arc<Region>,
    /// Free stretches: from the first word to the number of words.
    free: BTreeMap<usize, usize>,
}

impl Arena {
    /// Takes words from the first stretch that is long enough.
    fn take(&mut self, words: usize) -> Option<usize> {
        let (&at, &length) = self.free.iter().find(|(_, length)| **length >= words)?;
        self.free.remove(&at);
        if length > words {
            self.free.insert(at + words, length - words);
        }
        Some(at)
    }

    fn give_back(&mut self, at: usize, words: usize) {
        let (mut at, mut words) = (at, words);
        if let Some(after) = self.free.remove(&(at + words)) {
            words += after;
        }
        if let Some((&before, &length)) = self.free.range(..at).next_back()
            && before + length == at
        {
            self.free.remove(&before);
            (at, words) = (before, length + words);
        }
        self.free.insert(at, words);
    }
}

/// All arenas of a process.
#[derive(Debug, Default)]
pub(super) struct Arenas(Arc<Mutex<Vec<Arena>>>);

/// Frees words of an arena on drop.
#[derive(Debug)]
struct Lease {
    arenas: Weak<Mutex<Vec<Arena>>>,
    arena: usize,
    at: usize,
    words: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(arenas) = self.arenas.upgrade() {
            lock(&arenas)[self.arena].give_back(self.at, self.words);
        }
    }
}

impl Arenas {
    /// Returns zeroed memory for a queue. `add` passes a new arena of this many words to the NIC.
    pub(super) fn take(
        &self,
        words: usize,
        add: impl FnOnce(usize, OwnedFd) -> io::Result<()>,
    ) -> io::Result<Arc<Region>> {
        let words = words.max(1).next_multiple_of(LINE);
        let mut arenas = lock(&self.0);
        let taken =
            arenas.iter_mut().enumerate().find_map(|(index, arena)| Some((index, arena.take(words)?)));
        let (arena, at) = match taken {
            Some(taken) => taken,
            None => {
                let before: usize = arenas.iter().map(|arena| arena.region.words().len()).sum();
                let size = words.max(before.clamp(FIRST, ARENA));
                let (region, fd) = Region::to_lend(size)?;
                add(size, fd)?;
                let mut arena = Arena { region, free: BTreeMap::from([(0, size)]) };
                let at = arena.take(words).ok_or(io::ErrorKind::OutOfMemory)?;
                arenas.push(arena);
                (arenas.len() - 1, at)
            }
        };
        let lease = Lease { arenas: Arc::downgrade(&self.0), arena, at, words };
        let region = arenas[arena].region.part_with(at, words, lease)?;
        drop(arenas);
        region.words().iter().for_each(|word| word.store(0, Relaxed));
        Ok(region)
    }

    /// Returns the place of a queue, given by its words. `None` if they are not in an arena.
    pub(super) fn place_of(&self, queue: &[AtomicU64]) -> Option<ArenaPlace> {
        let arenas = lock(&self.0);
        arenas.iter().enumerate().find_map(|(index, arena)| {
            let words = arena.region.words();
            let at = (queue.as_ptr() as usize).checked_sub(words.as_ptr() as usize)? / size_of::<AtomicU64>();
            (at < words.len()).then_some(ArenaPlace { arena: index as u32, at: at as u64 })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_adjacent_and_reused_zeroed() {
        let arenas = Arenas::default();
        let mut added = Vec::new();
        let mut take = |words| {
            arenas
                .take(words, |size, _| {
                    added.push(size);
                    Ok(())
                })
                .expect("room")
        };
        let [a, b, c] = [5, 16, 8].map(&mut take);
        let place = |region: &Region| arenas.place_of(region.words()).expect("of an arena");
        assert_eq!([&a, &b, &c].map(|region| place(region).at), [0, 8, 24]);
        b.words()[3].store(7, Relaxed);
        drop((a, b));
        // The two stretches have been merged.
        let d = take(24);
        assert_eq!((place(&d), d.words()[11].load(Relaxed)), (ArenaPlace { arena: 0, at: 0 }, 0));
        let e = take(FIRST);
        assert_eq!(place(&e), ArenaPlace { arena: 1, at: 0 }, "what was left of the first is too short");
        drop((c, d));
        assert_eq!(place(&take(FIRST)).arena, 0);
        let rest: Vec<_> = [FIRST, FIRST + 8, ARENA].map(&mut take).into();
        assert_eq!(rest.iter().map(|region| place(region).arena).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(added, [FIRST, FIRST, 2 * FIRST, ARENA]);
        assert_eq!(arenas.place_of(Region::new(8).expect("memory").words()), None);
    }

    #[test]
    fn refused_arena_is_not_used() {
        let arenas = Arenas::default();
        let refused = arenas.take(8, |_, _| Err(io::ErrorKind::QuotaExceeded.into()));
        assert_eq!(refused.expect_err("refused").kind(), io::ErrorKind::QuotaExceeded);
        let region = arenas.take(8, |_, _| Ok(())).expect("room");
        assert_eq!(arenas.place_of(region.words()), Some(ArenaPlace { arena: 0, at: 0 }));
    }
}
