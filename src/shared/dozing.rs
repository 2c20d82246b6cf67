//! A poller that sleeps for a moment, while the NIC, which is another process, may need its processor.
//!
//! | who | does | then |
//! | --- | --- | --- |
//! | the poller | says that it dozes, fence | looks for a completion, and sleeps if there is none |
//! | the NIC | writes the completion, fence | looks whether somebody dozes, and wakes it |
//!
//! One of the two sees the other. Of several who doze at one queue one may take back what another has said: that one wakes when its
//! time is up.

use std::time::Duration;

use super::completion_queue::{CompletionRing, DOZING};
use super::futex;
use super::sync::{
    Ordering::{Relaxed, SeqCst},
    fence,
};

impl CompletionRing {
    /// The application's side: sleeps until a completion is published, or for so long at most.
    pub fn doze(&self, limit: Duration) {
        let dozing = self.word(DOZING);
        dozing.store(1, Relaxed);
        fence(SeqCst);
        if !self.has_completions() {
            futex::wait(dozing, 1, limit);
        }
        dozing.store(0, Relaxed);
    }

    /// The NIC's side, after a push to a queue that another process polls: wakes it.
    pub fn rouse(&self) {
        fence(SeqCst);
        let dozing = self.word(DOZING);
        // One who writes nonsense here costs the NIC a system call for each batch, and nobody else anything.
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
    fn one_who_dozes_is_woken_by_a_completion_and_by_none_that_waits_already() {
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
        // It waits: nobody sleeps on it.
        ring.doze(long);
        assert!(begun.elapsed() < long / 2);
        assert_eq!(ring.word(DOZING).load(Relaxed), 0);
        ring.poll().expect("the completion");
        ring.doze(Duration::from_millis(1));
    }
}
