//! The worker and its lock, and the state shared by callers and the engine's threads.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::combining_lock::CombiningLock;
use super::handoff::{Handoff, NOTHING, is_within};
use super::load::Load;
use super::pollers::Pollers;
use super::progress::Progress;
use super::spin_then_sleep::SpinThenSleep;
use super::wait_policy::WaitPolicy;
use super::waiters::Waiters;
use super::worker::Worker;
use roxie_base::time::{Clock, Nanos};
use roxie_nic::shared::Doorbells;
use roxie_port::Port;

/// State shared by callers and threads.
#[derive(Debug)]
pub(super) struct Shared {
    turns: CombiningLock<Worker>,
    pub(super) clock: Clock,
    pub(super) doorbells: Doorbells,
    pub(super) handoff: Handoff,
    pub(super) waiters: Waiters,
    pub(super) spinning: SpinThenSleep,
    pub(super) pollers: Pollers,
    pub(super) load: Load,
    /// When a caller's pass deferred an acknowledgement. Changes only under the worker's lock.
    deferred_ack_since: AtomicU64,
    /// When a caller last announced that it will wait.
    waits_at: AtomicU64,
    /// A caller has armed a completion queue. Its next poll that finds nothing hands polling over to the engine thread.
    pub(super) handoff_due: AtomicBool,
    /// Time of the last caller's pass, if it found nothing.
    idle_at: AtomicU64,
    pub(super) stop: AtomicBool,
    /// A pass panicked: the worker runs no more.
    dead: AtomicBool,
    /// Wakes the engine thread from any sleep.
    pub(super) alarm: EventFd,
    /// Ends a backoff sleep. A caller that extends the sleep sets the timer again.
    pub(super) backoff_timer: TimerFd,
    /// The port's descriptors, readable when frames arrive.
    frames: Mutex<Arc<[OwnedFd]>>,
    /// Number of threads that wait for the worker, without the thread that owns it. The owner lets them in before a
    /// pass.
    waiting: AtomicU32,
    /// True if callers do not run the worker: a thread of the engine does, or [`Engine::step`](super::Engine::step).
    has_owner: bool,
}

/// The engine is dead: a pass panicked.
#[derive(Debug)]
pub(super) struct Dead;

/// The locked worker. After unlocking, `drop` checks for doorbells rung meanwhile by callers that found the worker
/// locked. If callers do not run the worker, its owner checks instead.
pub(super) struct WorkerGuard<'a> {
    shared: &'a Shared,
    worker: Option<MutexGuard<'a, Worker>>,
}

impl Deref for WorkerGuard<'_> {
    type Target = Worker;
    fn deref(&self) -> &Worker {
        self.worker.as_ref().expect("held until it is dropped")
    }
}

impl DerefMut for WorkerGuard<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        self.worker.as_mut().expect("held until it is dropped")
    }
}

impl Drop for WorkerGuard<'_> {
    fn drop(&mut self) {
        self.worker = None;
        if !thread::panicking() {
            self.shared.recheck_doorbells();
        }
    }
}

impl Shared {
    /// `has_owner`: callers do not run the worker.
    pub(super) fn new(worker: Worker, has_owner: bool, clock: Clock) -> io::Result<Shared> {
        let shared = Shared {
            clock,
            doorbells: worker.doorbells().clone(),
            handoff: Handoff::new(),
            waiters: Waiters::default(),
            spinning: SpinThenSleep::default(),
            pollers: Pollers::new()?,
            load: Load::new(),
            deferred_ack_since: AtomicU64::new(NOTHING),
            waits_at: AtomicU64::new(NOTHING),
            handoff_due: AtomicBool::new(false),
            idle_at: AtomicU64::new(NOTHING),
            dead: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            alarm: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
            backoff_timer: TimerFd::new(
                ClockId::CLOCK_MONOTONIC,
                TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
            )?,
            frames: Mutex::new(Arc::new([])),
            waiting: AtomicU32::new(0),
            has_owner,
            turns: CombiningLock::new(worker),
        };
        shared.watch_port(shared.lock_to_inspect().port())?;
        Ok(shared)
    }

    /// Sleeping threads will wake for frames of this port.
    pub(super) fn watch_port(&self, port: &dyn Port) -> io::Result<()> {
        let frames: io::Result<_> = port.event_fds().into_iter().map(|fd| fd.try_clone_to_owned()).collect();
        *self.frames.lock().unwrap_or_else(PoisonError::into_inner) = frames?;
        Ok(())
    }

    /// Returns the port's current descriptors.
    pub(super) fn frames(&self) -> Arc<[OwnedFd]> {
        Arc::clone(&self.frames.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn turn<'a>(&'a self, worker: MutexGuard<'a, Worker>) -> WorkerGuard<'a> {
        WorkerGuard { shared: self, worker: Some(worker) }
    }

    /// Locks the worker between two passes.
    fn lock(&self) -> Result<WorkerGuard<'_>, Dead> {
        match self.turns.worker().lock() {
            Ok(worker) => Ok(self.turn(worker)),
            Err(poisoned) => Err(self.declare_dead(&mut poisoned.into_inner())),
        }
    }

    /// Locks the worker unless it is locked. A caller that has rung a doorbell before need not retry: the holder checks
    /// the doorbells.
    pub(super) fn try_turn(&self) -> Option<WorkerGuard<'_>> {
        match self.turns.after_ringing() {
            Ok(worker) => worker.map(|worker| self.turn(worker)),
            Err(mut dead) => {
                self.declare_dead(&mut dead);
                None
            }
        }
    }

    /// Like [`try_turn`](Self::try_turn), but a thread that owns the worker lets this caller in between two passes.
    pub(super) fn try_turn_between(&self) -> Option<WorkerGuard<'_>> {
        self.waiting.fetch_add(1, Relaxed);
        let worker = self.try_turn();
        self.waiting.fetch_sub(1, Relaxed);
        worker
    }

    /// Locks the worker for reading, dead or alive. When the turn ends, the caller may run the event sink: it must hold
    /// no lock that the sink takes.
    pub(super) fn lock_to_inspect(&self) -> WorkerGuard<'_> {
        self.turn(self.between(|| self.lock_any()))
    }

    /// Locks the worker dead or alive, also after a panic in a pass.
    pub(super) fn lock_any(&self) -> MutexGuard<'_, Worker> {
        self.turns.worker().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the worker between two passes, for a thread that does not own it.
    pub(super) fn lock_between(&self) -> Result<WorkerGuard<'_>, Dead> {
        self.between(|| self.lock())
    }

    /// Locks between two passes of the thread that owns the worker. That thread waits until the caller unlocks, so only
    /// callers that end the engine do this. All others send it a [`Visit`](super::Visit).
    fn between<G>(&self, lock: impl Fn() -> G) -> G {
        self.waiting.fetch_add(1, Relaxed);
        let guard = lock();
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }

    /// Locks the worker for the thread that owns it. Lets waiting callers in first.
    pub(super) fn lock_in_turn(&self) -> Result<WorkerGuard<'_>, Dead> {
        while self.waiting.load(Relaxed) > 0 && !self.stop.load(Relaxed) {
            thread::yield_now();
        }
        self.lock()
    }

    /// Marks the engine dead after a panic. The first call notifies all waiting threads.
    pub(super) fn declare_dead(&self, worker: &mut Worker) -> Dead {
        if !self.dead.swap(true, Relaxed) {
            worker.die();
        }
        Dead
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// After unlocking: sends for callers that rang a doorbell while the worker was locked.
    fn recheck_doorbells(&self) {
        if self.has_owner {
            return;
        }
        let send = |worker: &mut Worker| {
            let sent = self.send_out(worker, self.clock.now());
            self.wake_if_needed(worker, sent.more);
        };
        if self.turns.recheck(|| self.doorbells.any(), send) && self.handoff.needs_by(0) {
            self.wake_engine_thread();
        }
    }

    /// Runs the sending half of a pass. No acknowledgement is deferred afterwards.
    pub(super) fn send_out(&self, worker: &mut Worker, now: Nanos) -> Progress {
        self.deferred_ack_since.store(NOTHING, Relaxed);
        let waits = is_within(self.waits_at.load(Relaxed), now.0, WaitPolicy::WAITING_PROGRAM_NS);
        worker.order_acknowledgements(waits);
        let progress = worker.send_out(now);
        self.wake_pollers(progress.completions);
        progress
    }

    /// Returns since when an acknowledgement is deferred.
    pub(super) fn deferred_ack_since(&self) -> Option<Nanos> {
        let at = self.deferred_ack_since.load(Relaxed);
        (at != NOTHING).then_some(Nanos(at))
    }

    /// Ends a caller's pass without its sending half. The acknowledgement counts as deferred only if there is something
    /// to send: a received acknowledgement must not start the time limit of the next reply.
    pub(super) fn defer_acks(&self, worker: &Worker, now: Nanos) {
        if worker.nic().has_ready() {
            self.deferred_ack_since.store(now.0, Relaxed);
        }
    }

    /// Sends deferred acknowledgements before the engine is taken down. A caller that destroys its QP after the last
    /// completion would otherwise withhold the acknowledgement of that very message from its peer.
    pub(super) fn send_deferred_acks(&self, worker: &mut Worker, now: Nanos) {
        if self.deferred_ack_since().is_some() {
            self.send_out(worker, now);
        }
    }

    /// After a caller's pass that did something: wakes the engine thread if the next pass is needed before the thread
    /// will wake by itself.
    pub(super) fn wake_if_needed(&self, worker: &Worker, more: bool) {
        // A backoff sleep ends soon anyway, and polling callers handle the timers.
        if self.handoff.is_in_backoff() {
            return;
        }
        let needed_by = if more { Nanos::ZERO } else { worker.needed_by() };
        if self.handoff.needs_by(needed_by.0) {
            self.wake_engine_thread();
        }
    }

    /// Runs `meanwhile` while this caller stands in for the engine thread on the link, unless another caller already
    /// does.
    pub(super) fn while_substituting<T>(&self, now: Nanos, meanwhile: impl FnOnce() -> T) -> T {
        let substitutes = self.handoff.begin_substituting(now.0);
        let result = meanwhile();
        if substitutes && self.handoff.end_substituting() {
            self.wake_engine_thread();
        }
        result
    }

    /// Wakes the engine thread from any kind of sleep.
    pub(super) fn wake_engine_thread(&self) {
        // The counter can only be full if a wake-up is already pending.
        let _ = self.alarm.write(1);
    }

    /// Sets the end of the engine thread's backoff sleep.
    pub(super) fn set_backoff_end(&self, now: Nanos, until: Nanos) {
        // A zero time would disarm the timer.
        let backoff = (until - now).max(Nanos(1)).as_duration();
        let _ = self
            .backoff_timer
            .set(Expiration::OneShot(TimeSpec::from_duration(backoff)), TimerSetTimeFlags::empty());
    }

    /// Records that a caller polls: it runs a pass, or found another thread running one.
    pub(super) fn passed(&self, now: Nanos) {
        self.handoff.passed(now.0);
        self.extend_backoff(now);
    }

    /// Like [`passed`](Self::passed), without counting the time since the last pass as a gap.
    pub(super) fn keeps_polling(&self, now: Nanos) {
        self.handoff.pass_ended(now.0);
        self.extend_backoff(now);
    }

    fn extend_backoff(&self, now: Nanos) {
        if let Some(until) = self.handoff.extend(now.0) {
            self.set_backoff_end(now, Nanos(until));
        }
    }

    /// A caller found the worker locked: let the holder run, which may need this processor.
    pub(super) fn give_way(&self, now: Nanos) {
        for _ in 0..WaitPolicy::LOCK_SPINS {
            std::hint::spin_loop();
        }
        if !matches!(self.turns.unless_taken(), Ok(None)) {
            return;
        }
        if self.is_crowded(now) {
            // Sleep until the holder unlocks. A yield would last until a program that computes has used up its time
            // slice.
            drop(self.lock_between());
        } else {
            thread::yield_now();
        }
    }

    /// Records that a caller will wait for an event.
    pub(super) fn will_wait(&self, now: u64) {
        self.note_busy_pass();
        self.waits_at.store(now, Relaxed);
    }

    /// Records that a caller that spun would otherwise have waited.
    pub(super) fn keeps_waiting(&self, now: Nanos) {
        self.waits_at.store(now.0, Relaxed);
    }

    /// True if a caller announced within [`WaitPolicy::RECENT_NS`] that it will wait.
    pub(super) fn announced_wait_recently(&self, now: Nanos) -> bool {
        is_within(self.waits_at.load(Relaxed), now.0, WaitPolicy::RECENT_NS)
    }

    /// True if such a caller blocked on the link itself. The caller checks the link once more before it sleeps.
    pub(super) fn blocked_recently(&self, now: Nanos) -> bool {
        self.announced_wait_recently(now) && self.handoff.had_substitute_recently(now.0)
    }

    /// Records what a caller's pass received.
    pub(super) fn note(&self, now: Nanos, came: &Progress) {
        self.wake_pollers(came.completions);
        let idle = came.is_idle();
        self.idle_at.store(if idle { now.0 } else { NOTHING }, Relaxed);
        if !idle {
            self.note_busy_pass();
        }
    }

    /// True if the last caller's pass, at most [`WaitPolicy::JUST_NOW_NS`] ago, found nothing, and nothing is to be
    /// sent. A caller about to sleep on the link's descriptors need not poll again: the descriptors report new frames.
    pub(super) fn was_empty_recently(&self, now: Nanos) -> bool {
        is_within(self.idle_at.load(Relaxed), now.0, WaitPolicy::JUST_NOW_NS)
            && self.deferred_ack_since().is_none()
            && !self.doorbells.any()
    }
}

/// Returns `sleep_on`'s argument for waiting until one of these is readable.
pub(super) fn readable<'a>(fds: impl IntoIterator<Item = BorrowedFd<'a>>) -> Vec<PollFd<'a>> {
    fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect()
}

/// Sleeps until one of these is readable, or for `how_long`.
pub(super) fn sleep_on(fds: &mut [PollFd<'_>], how_long: Nanos) {
    // An interrupted or failed wait only ends early: the next pass checks everything anyway.
    let _ = ppoll(fds, Some(TimeSpec::from_duration(how_long.as_duration())), None);
}

#[cfg(test)]
mod tests;
