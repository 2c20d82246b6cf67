//! Waking a client of a NIC that serves other processes.
//!
//! Whatever wakes a process visits all that wait for the same file or word, and a client can add as many as it likes to
//! its eventfds, futexes and sockets. The worker therefore touches none of these. It marks what is due in the NIC's own
//! memory ([`Due`]), and a thread for each client, the notifier, does the rest in its own time:
//!
//! ```text
//! worker                                   notifier of the client
//! ------                                   ----------------------
//! publishes a completion
//! Due::mark: counts, rings a bell  ------> Notifier::take: for each mark
//!                                          adds to the eventfd, or wakes the pollers
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

use super::completion_queue::CompletionRing;
use super::doorbell::Doorbells;
use super::event_counter::{EventCounter, WeakCounter};
use super::sync::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use crate::verbs::QpIndex;
use roxie_base::threads::lock;

/// The place of the client's messages; each other target has one behind it.
const MESSAGES: QpIndex = QpIndex(0);

/// The worker's side of a target: marks that it is due.
#[derive(Debug)]
pub(super) struct Due {
    bells: Doorbells,
    place: QpIndex,
    times: AtomicU32,
}

impl Due {
    /// Has the notifier wake the target once more. Never blocks.
    pub(super) fn mark(&self) {
        self.times.fetch_add(1, Relaxed);
        self.bells.ring(self.place);
    }
}

/// A target.
#[derive(Debug)]
pub(super) enum Target {
    Events(WeakCounter),
    Pollers(CompletionRing),
}

/// The place of a target, free once the mark is dropped.
#[derive(Debug)]
struct Place {
    due: Weak<Due>,
    target: Target,
}

/// A wake that is due.
#[derive(Debug)]
pub enum Wake {
    /// The client's messages wait to be sent.
    Messages,
    /// One event is to be counted.
    Event(EventCounter),
    /// The threads that sleep on a completion queue are to be woken.
    Pollers(CompletionRing),
}

/// The notifier of a client; see the module's page. A clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct Notifier {
    /// A bell for each target.
    bells: Doorbells,
    targets: Arc<Mutex<Vec<Place>>>,
    messages: Arc<Due>,
    has_ended: Arc<AtomicBool>,
    most: usize,
}

impl Notifier {
    /// Makes a notifier for up to `targets` targets in addition to the messages.
    ///
    /// # Errors
    /// If there is no memory or descriptor for it.
    pub fn new(targets: u32) -> io::Result<Notifier> {
        let bells = Doorbells::new(targets.saturating_add(1))?;
        let messages = Arc::new(Due { bells: bells.clone(), place: MESSAGES, times: AtomicU32::new(0) });
        let (targets, most) = (Arc::default(), targets as usize);
        Ok(Notifier { bells, targets, messages, has_ended: Arc::new(AtomicBool::new(false)), most })
    }

    /// Adds a target, which stays until its mark is dropped.
    ///
    /// # Errors
    /// If there are as many as may be.
    pub(super) fn add(&self, target: Target) -> io::Result<Arc<Due>> {
        let mut targets = lock(&self.targets);
        let free = targets.iter().position(|place| place.due.strong_count() == 0).unwrap_or(targets.len());
        if free >= self.most {
            let why = format!("{free} completion queues and channels are to be woken, as many as may");
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
        }
        let place = QpIndex(free as u32 + 1);
        let due = Arc::new(Due { bells: self.bells.clone(), place, times: AtomicU32::new(0) });
        let entry = Place { due: Arc::downgrade(&due), target };
        match targets.get_mut(free) {
            Some(old) => *old = entry,
            None => targets.push(entry),
        }
        Ok(due)
    }

    /// Marks that messages wait.
    pub fn mark_messages(&self) {
        self.messages.mark();
    }

    /// The notifier's side: takes all that is due, one wake at a time.
    pub fn take(&self, mut each: impl FnMut(&Wake)) {
        let mut rung = Vec::new();
        self.bells.take(|place| rung.push(place));
        for place in rung {
            let Some((due, wake)) = self.target(place) else { continue };
            for _ in 0..due.times.swap(0, AcqRel) {
                each(&wake);
            }
        }
    }

    fn target(&self, place: QpIndex) -> Option<(Arc<Due>, Wake)> {
        if place == MESSAGES {
            return Some((Arc::clone(&self.messages), Wake::Messages));
        }
        let targets = lock(&self.targets);
        let Place { due, target } = targets.get(place.0 as usize - 1)?;
        let wake = match target {
            Target::Events(counter) => Wake::Event(counter.upgrade()?),
            Target::Pollers(ring) => Wake::Pollers(ring.clone()),
        };
        Some((due.upgrade()?, wake))
    }

    /// The notifier's side: calls `block` with the descriptor that becomes readable when something is due, unless
    /// something is. `block` returns whether it is readable. Returns false once the notifier has to end.
    pub fn sleep(&self, block: impl FnOnce(BorrowedFd<'_>) -> bool) -> bool {
        self.bells.sleep_begins();
        let rests = !self.bells.any() && !self.has_ended();
        let rang = rests && block(self.bells.wake_fd().as_fd());
        self.bells.sleep_ends(rang);
        !self.has_ended()
    }

    /// Ends [`sleep`](Self::sleep), also later ones.
    pub fn end(&self) {
        self.has_ended.store(true, Release);
        let _ = self.bells.wake_fd().write(1);
    }

    /// True after [`end`](Self::end).
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Acquire)
    }
}

impl Wake {
    /// Wakes the target. Takes as long as others wait for it, and never blocks. Messages are the caller's.
    pub fn run(&self) {
        match self {
            Wake::Messages => {}
            Wake::Event(counter) => counter.raise(),
            Wake::Pollers(ring) => ring.wake_sleepers(),
        }
    }
}
