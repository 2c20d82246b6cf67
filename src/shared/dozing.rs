//! Sleeping pollers: the application waits a moment for a completion, while a NIC in another process may need its processor.
//!
//! | side | writes | then |
//! | --- | --- | --- |
//! | poller | sets [`DOZING`], fence | checks for a completion, and sleeps if there is none |
//! | NIC | publishes the completion, fence | checks [`DOZING`], and wakes the pollers if it is set |
//!
//! At least one side sees the other's write. With several pollers on one queue, a poller that returns may clear the word while
//! another still sleeps: the sleeper then waits for its whole limit.

use std::time::Duration;

use super::completion_queue::{CompletionRing, DOZING};
use super::futex;
use super::sync::{
    Ordering::{Relaxed, SeqCst},
    fence,
};

impl CompletionRing {
    /// The application's side: sleeps until a completion is published, or for `limit` at most.
    pub fn doze(&self, limit: Duration) {
        let dozing = self.word(DOZING);
        dozing.store(1, Relaxed);
        fence(SeqCst);
        if !self.has_completions() {
            futex::wait(dozing, 1, limit);
        }
        dozing.store(0, Relaxed);
    }

    /// The NIC's side: wakes the sleepers, after a push to a queue that another process polls.
    pub fn rouse(&self) {
        fence(SeqCst);
        let dozing = self.word(DOZING);
        // A client that writes nonsense here costs the NIC one system call a batch, and harms no other client.
        if dozing.load(Relaxed) != 0 && dozing.swap(0, Relaxed) != 0 {
            futex::wake(dozing);
        }
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
            let dozes = scope.spawn(|| ring.doze(long));
            while ring.word(DOZING).load(Relaxed) == 0 {
                thread::yield_now();
            }
            ring.push(&Wc::default(), 0).expect("room");
            ring.rouse();
            dozes.join().expect("it wakes");
        });
        // A completion waits: the poller does not sleep.
        ring.doze(long);
        assert!(begun.elapsed() < long / 2);
        assert_eq!(ring.word(DOZING).load(Relaxed), 0);
        ring.poll().expect("the completion");
        ring.doze(Duration::from_millis(1));
    }
}
