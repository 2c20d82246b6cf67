//! Sleeping pollers: the application waits a moment for a completion, while a NIC in another process may need its
//! processor.
//!
//! | side | writes | then |
//! | --- | --- | --- |
//! | poller | sets [`POLLERS_SLEEP`], fence | checks for a completion, and sleeps if there is none |
//! | NIC | publishes the completion, fence | checks [`POLLERS_SLEEP`], and wakes the pollers if it is set |
//!
//! At least one side sees the other's write. With several pollers on one queue, a poller that returns may clear the
//! word while another still sleeps: the sleeper then waits for its whole limit.

use std::io;
use std::time::Duration;

use super::completion_queue::{CompletionRing, POLLERS_SLEEP};
use super::futex;
use super::notifier::{Notifier, Target};
use super::sync::{
    Ordering::{Relaxed, SeqCst},
    fence,
};

impl CompletionRing {
    /// The application's side: sleeps until a completion is published, or for `limit` at most.
    pub fn sleep_until_completion(&self, limit: Duration) {
        let sleeping = self.word(POLLERS_SLEEP);
        sleeping.store(1, Relaxed);
        fence(SeqCst);
        if !self.has_completions() {
            futex::wait(sleeping, 1, limit);
        }
        sleeping.store(0, Relaxed);
    }

    /// The NIC's side: wakes the sleepers, after a push to a queue that another process polls.
    pub fn wake_pollers(&self) {
        fence(SeqCst);
        let sleeping = self.word(POLLERS_SLEEP);
        // A client that writes nonsense here costs the NIC one mark a batch, and harms no other client.
        if sleeping.load(Relaxed) != 0 && sleeping.swap(0, Relaxed) != 0 {
            match &self.due {
                Some(due) => due.mark(),
                None => self.wake_sleepers(),
            }
        }
    }

    /// Wakes the sleepers. Takes longer the more threads of the other process sleep.
    pub(super) fn wake_sleepers(&self) {
        futex::wake(self.word(POLLERS_SLEEP));
    }

    /// Has a notifier wake the sleepers.
    ///
    /// # Errors
    /// If the notifier has no place for it.
    pub fn woken_by(mut self, notifier: &Notifier) -> io::Result<CompletionRing> {
        self.due = Some(notifier.add(Target::Pollers(self.clone()))?);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::verbs::Wc;

    #[test]
    fn sleeping_poller_is_woken_by_a_completion() {
        let ring = CompletionRing::new(4).expect("memory");
        let long = Duration::from_secs(60);
        let begun = Instant::now();
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| ring.sleep_until_completion(long));
            while ring.word(POLLERS_SLEEP).load(Relaxed) == 0 {
                thread::yield_now();
            }
            ring.push(&Wc::default(), 0).expect("room");
            ring.wake_pollers();
            sleeper.join().expect("it wakes");
        });
        // A completion waits: the poller does not sleep.
        ring.sleep_until_completion(long);
        assert!(begun.elapsed() < long / 2);
        assert_eq!(ring.word(POLLERS_SLEEP).load(Relaxed), 0);
        ring.poll().expect("the completion");
        ring.sleep_until_completion(Duration::from_millis(1));
    }
}
