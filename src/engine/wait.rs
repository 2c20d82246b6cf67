//! Callers that wait for completions, and may watch the link themselves meanwhile.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::shared::Shared;
use super::wait_set::WaitSet;
use super::waiters::this_thread;
use super::watch::{QUIET, RELIEF, Relief};
use super::{Engine, LONGEST_SLEEP};

/// Looks for an event that one who watches may take in vain before it asks again.
const LOOKS_IN_VAIN: u32 = 3;

/// Descriptors that a caller may watch at most; where there are more the keeper does.
pub const MAX_WATCHED: usize = 16;

/// Descriptors to watch: nothing that has to be destroyed, for a thread may be cancelled while it has it.
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

/// What a caller is to do that wants to wait for an event.
#[derive(Debug)]
pub enum Wait {
    /// Sleep until its own descriptor is readable, or one of these, or so long; then say [`Engine::end_wait`], and look.
    Watch {
        /// Readable when the NIC is to be turned; of the engine, as long as it lives. The last of them is the doorbells'.
        on: Watched,
        /// How long at most.
        timeout: Duration,
    },
    /// An event has come, and is taken.
    Taken,
    /// Look again at once: something has come.
    Look,
    /// Sleep until its own descriptor is readable: somebody watches.
    Sleep,
}

impl Shared {
    /// The program that waits on its descriptor does not watch the link any more.
    pub(super) fn take_back(&self) {
        let set = self.waiters.in_front.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(set) = set {
            set.remove_frames(&self.frames());
            if self.watch.stop_watching() {
                self.wake_keeper();
            }
        }
    }

    /// `set` watches from now on. False: it cannot, or another caller does.
    fn put_in_front(&self, set: &Arc<WaitSet>, now: u64) -> bool {
        let mut in_front = self.waiters.in_front.lock().unwrap_or_else(PoisonError::into_inner);
        let frames = self.frames();
        if frames.is_empty() || !self.watch.begin_watching(Relief::OnDescriptor, now) {
            return false;
        }
        if set.add_frames(&frames).is_err() {
            let _ = self.watch.stop_watching();
            return false;
        }
        *in_front = Some(Arc::clone(set));
        true
    }

    fn is_in_front(&self, set: &Arc<WaitSet>) -> bool {
        let in_front = self.waiters.in_front.lock().unwrap_or_else(PoisonError::into_inner);
        in_front.as_ref().is_some_and(|front| Arc::ptr_eq(front, set))
    }
}

impl Engine {
    fn keeper_serves(&self) -> bool {
        self.caller_drives && self.thread.is_some()
    }

    /// The caller is about to wait for something, and will not poll meanwhile: the NIC is looked after from now on.
    pub fn step_aside(&self) {
        if self.keeper_serves() {
            self.shared.take_back();
            if self.shared.watch.caller_waits(self.now().0) {
                self.shared.wake_keeper();
            }
        }
    }

    /// The same for a caller that has armed a completion queue, and will wait on this descriptor.
    pub fn armed(&self, set: &Arc<WaitSet>) {
        if !self.keeper_serves() {
            return;
        }
        let now = self.now().0;
        self.shared.will_wait(now);
        set.asked();
        if !self.shared.waiters.is_alone(this_thread(), now) {
            self.shared.watch.forget_relief();
        } else {
            let will_block = set.takes_expectation();
            let watches = will_block
                || self.shared.watch.relief() == Relief::OnDescriptor
                || (set.is_nonblocking() && self.shared.put_in_front(set, now));
            if watches && self.may_watch_until_a_frame(now, will_block) {
                self.shared.watch.began_to_wait(now);
                return;
            }
        }
        self.shared.take_back();
        if self.shared.watch.caller_waits(now) {
            self.shared.wake_keeper();
        }
    }

    /// True if a frame is all that a caller has to wait for who has armed: time does not make its descriptor readable, and when something
    /// is due before the keeper would look, such as the next packet of a QP that is paced, the keeper is to watch. Who sleeps inside
    /// a call keeps the time itself.
    fn may_watch_until_a_frame(&self, now: u64, will_block: bool) -> bool {
        let Some(mut worker) = self.shared.try_turn() else { return true };
        if !will_block && worker.next_deadline().0 < now + RELIEF + QUIET {
            return false;
        }
        worker.prepare_wait();
        true
    }

    /// The caller's descriptor was readable, and it has come to look for an event: runs a pass, if it is the one who is to. True if
    /// that brought an event; it is taken.
    pub fn came_to_look(&self, set: &Arc<WaitSet>) -> bool {
        let is_to = self.keeper_serves() && self.shared.is_in_front(set);
        is_to && set.events().catch(|| self.caller_pass()).0
    }

    /// It has found none. If it looks in vain again and again, its descriptor is readable when there is an event from now on, and not
    /// before.
    pub fn found_no_event(&self, set: &Arc<WaitSet>) {
        if self.keeper_serves() && self.shared.is_in_front(set) && set.looked_in_vain() > LOOKS_IN_VAIN {
            self.step_aside();
        }
    }

    /// The caller wants to sleep until an event comes to `set`, inside a call. Unless somebody else watches it does so itself.
    pub fn begin_wait(&self, set: &Arc<WaitSet>) -> Wait {
        if !self.keeper_serves() {
            return Wait::Sleep;
        }
        let mut now = self.now();
        if !self.shared.waiters.is_alone(this_thread(), now.0) {
            self.shared.watch.forget_relief();
            self.step_aside();
            return Wait::Sleep;
        }
        self.shared.take_back();
        self.shared.will_wait(now.0);
        set.expect_block();
        let Ok(mut worker) = self.shared.lock_between() else { return Wait::Sleep };
        self.shared.passed(now);
        if !self.shared.found_nothing_lately(now) {
            let (taken, came) = set.events().catch(|| worker.take_in(now));
            self.shared.note(now, &came);
            if taken || came.completions > 0 {
                // The keeper sends what is owed, if the caller does not come back; but only in a nap does it know when.
                let is_posted = worker.doorbells().any() || worker.nic().has_pressing();
                if came.received > 0 && self.shared.watch.naps() && !is_posted {
                    self.shared.owe(&worker, now);
                } else {
                    self.shared.send_out(&mut worker, now);
                }
                return if taken { Wait::Taken } else { Wait::Look };
            }
        }
        self.shared.send_out(&mut worker, now);
        if self.shared.look_on.is_due() {
            let published = worker.nic().published();
            drop(worker);
            let has_come = || set.events().has_caught();
            match set.events().catch(|| self.look_on(now, published, has_come)) {
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
        let Some(on) = on.filter(|_| self.shared.watch.begin_watching(Relief::Blocked, now.0)) else {
            worker.sleep_ends();
            drop(worker);
            self.step_aside();
            return Wait::Sleep;
        };
        let until = worker.next_deadline().min(now + LONGEST_SLEEP);
        Wait::Watch { on, timeout: (until - self.now()).as_duration() }
    }

    /// After [`Wait::Watch`]. `rang`: the last of the descriptors was readable.
    pub fn end_wait(&self, rang: bool) {
        self.doorbells.sleep_ends(rang);
        // Awake, and about to run a pass: the keeper need not.
        self.shared.watch.pass_ended(self.now().0);
        if self.shared.watch.stop_watching() {
            self.shared.wake_keeper();
        }
    }
}
