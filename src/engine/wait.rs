//! Callers that wait for completions. Such a caller may sleep on the link's descriptors itself.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Engine;
use super::wait_policy::WaitPolicy;
use super::wait_set::WaitSet;
use super::waiters::this_thread;
use roxie_base::time::Nanos;

/// Maximum number of descriptors that a caller sleeps on. The engine thread waits for a port with more.
pub const MAX_WATCHED: usize = 16;

/// Descriptors to sleep on. Has no destructor, because a thread may be cancelled while it holds the value.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    fds: [RawFd; MAX_WATCHED],
    count: usize,
}

impl Watched {
    fn of(fds: impl Iterator<Item = RawFd>) -> Option<Watched> {
        let mut watched = Watched { fds: [-1; MAX_WATCHED], count: 0 };
        for fd in fds {
            *watched.fds.get_mut(watched.count)? = fd;
            watched.count += 1;
        }
        Some(watched)
    }

    /// The descriptors.
    pub fn fds(&self) -> &[RawFd] {
        &self.fds[..self.count]
    }
}

/// How a caller waits for an event.
#[derive(Debug)]
pub enum Wait {
    /// Sleep until the caller's own descriptor or one of these is readable, or the timeout; then call
    /// [`Engine::end_wait`] and poll again.
    Watch {
        /// Descriptors that are readable when a pass is needed; valid as long as the engine. The last one is the
        /// doorbells'.
        on: Watched,
        /// Maximum time to sleep.
        timeout: Duration,
    },
    /// An event came and was consumed.
    Taken,
    /// Poll again immediately: something came.
    Look,
    /// Sleep until the caller's own descriptor is readable: another thread runs the worker.
    Sleep,
}

impl Engine {
    fn engine_thread_serves(&self) -> bool {
        self.caller_drives && self.thread.is_some()
    }

    /// Hands polling over to the engine thread: the caller is about to wait, and will not poll meanwhile.
    pub fn step_aside(&self) {
        self.shared.handoff_due.store(false, Relaxed);
        if self.engine_thread_serves() && self.shared.handoff.caller_waits(self.now().0) {
            self.shared.wake_engine_thread();
        }
    }

    /// A caller has armed a completion queue of this channel, and will wait for the event.
    pub fn armed(&self, set: &WaitSet) {
        if !self.engine_thread_serves() {
            return;
        }
        let now = self.now().0;
        self.shared.will_wait(now);
        if !self.shared.waiters.is_alone(this_thread(), now) {
            self.shared.handoff.distrust_substitutes();
        } else if set.takes_expectation() {
            // The caller has blocked inside a call before, and is expected to sleep on the link there again.
            if let Some(mut worker) = self.shared.try_turn() {
                worker.prepare_wait();
            }
            self.shared.handoff.began_to_wait(now);
            return;
        } else if self.shared.spinning.is_due() {
            // The caller must poll once more, since a completion may have come before arming. The poll spins before the
            // handoff.
            self.shared.handoff_due.store(true, Relaxed);
            return;
        }
        if self.shared.handoff.caller_waits(now) {
            self.shared.wake_engine_thread();
        }
    }

    /// Prepares a caller to sleep inside a call until an event comes to `set`. The caller sleeps on the link itself,
    /// unless another one does.
    pub fn begin_wait(&self, set: &WaitSet) -> Wait {
        if !self.engine_thread_serves() {
            return Wait::Sleep;
        }
        let mut now = self.now();
        if !self.shared.waiters.is_alone(this_thread(), now.0) {
            self.shared.handoff.distrust_substitutes();
            self.step_aside();
            return Wait::Sleep;
        }
        self.shared.will_wait(now.0);
        set.expect_block();
        let Ok(mut worker) = self.shared.lock_between() else { return Wait::Sleep };
        self.shared.passed(now);
        if !self.shared.was_empty_recently(now) {
            let (taken, intake) = set.events().catch(|| worker.take_in(now));
            self.shared.note(now, &intake);
            if taken || intake.completions > 0 {
                // If the caller does not return, the engine thread sends the deferred acknowledgements; only in a
                // backoff sleep does it wake in time.
                let is_posted = worker.doorbells().any() || worker.nic().has_pressing();
                if intake.received > 0 && self.shared.handoff.is_in_backoff() && !is_posted {
                    self.shared.defer_acks(&worker, now);
                } else {
                    self.shared.send_out(&mut worker, now);
                }
                return if taken { Wait::Taken } else { Wait::Look };
            }
        }
        self.shared.send_out(&mut worker, now);
        if self.shared.spinning.is_due() {
            let published = worker.nic().published();
            drop(worker);
            let has_completed = || set.events().has_caught();
            match set.events().catch(|| self.spin_for_completion(now, published, has_completed)) {
                (true, _) => return Wait::Taken,
                (false, Some(_)) => return Wait::Look,
                (false, None) => {}
            }
            let Ok(again) = self.shared.lock_between() else { return Wait::Sleep };
            worker = again;
            now = self.now();
        }
        if !worker.prepare_sleep() {
            return Wait::Look;
        }
        let bell = self.doorbells.wake_fd().as_fd().as_raw_fd();
        let on = Watched::of(self.shared.frames().iter().map(AsRawFd::as_raw_fd).chain([bell]));
        let Some(on) = on.filter(|_| self.shared.handoff.begin_substituting(now.0)) else {
            worker.sleep_ends();
            drop(worker);
            self.step_aside();
            return Wait::Sleep;
        };
        let until = worker.next_deadline().min(now + Nanos(WaitPolicy::LONGEST_SLEEP_NS));
        Wait::Watch { on, timeout: (until - self.now()).as_duration() }
    }

    /// Ends a sleep of [`Wait::Watch`]. `rang`: the last of the descriptors was readable.
    pub fn end_wait(&self, rang: bool) {
        self.doorbells.sleep_ends(rang);
        // The caller is about to run a pass: the engine thread need not.
        self.shared.handoff.pass_ended(self.now().0);
        if self.shared.handoff.end_substituting() {
            self.shared.wake_engine_thread();
        }
    }
}
