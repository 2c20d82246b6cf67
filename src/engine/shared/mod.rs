//! The worker and its lock: what callers and the engine's threads share.

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

use super::copying::Copying;
use super::load::Load;
use super::look_on::LookOn;
use super::pollers::Pollers;
use super::progress::Progress;
use super::turns::Turns;
use super::wait_policy::WaitPolicy;
use super::waiters::Waiters;
use super::watch::{NOTHING, Watch, is_within};
use super::worker::Worker;
use crate::port::Port;
use crate::shared::Doorbells;
use crate::time::{Clock, Nanos};

/// What callers and threads share.
#[derive(Debug)]
pub(super) struct Shared {
    turns: Turns<Worker>,
    pub(super) clock: Clock,
    pub(super) doorbells: Doorbells,
    pub(super) watch: Watch,
    pub(super) waiters: Waiters,
    pub(super) look_on: LookOn,
    pub(super) pollers: Pollers,
    pub(super) load: Load,
    /// When a caller's pass took in what it did not answer. Changes only under the worker's lock.
    owed_at: AtomicU64,
    /// When a caller last said that it will wait.
    waits_at: AtomicU64,
    /// A caller has armed, and its next poll that finds nothing hands the NIC to the keeper.
    pub(super) handoff_due: AtomicBool,
    /// When a caller last looked, if nothing had come.
    idle_at: AtomicU64,
    pub(super) stop: AtomicBool,
    /// A pass panicked: nobody turns the worker any more.
    dead: AtomicBool,
    /// What rouses the keeper alone.
    pub(super) alarm: EventFd,
    /// What ends its naps. Whoever lengthens a nap sets it anew.
    pub(super) nap_ends: TimerFd,
    /// The port's descriptors: frames make them readable.
    frames: Mutex<Arc<[OwnedFd]>>,
    /// How many wait for the worker besides the thread that turns it: that thread lets one of them in before each pass.
    waiting: AtomicU32,
    /// Its thread's copies from and to remote memory.
    pub(super) remote: Copying,
    /// A thread of the engine's alone turns the worker.
    is_threads: bool,
    /// How many were let in; wraps.
    let_in: AtomicU32,
    /// The thread that turns the worker has let one in, and waits for the lock: no other takes it before.
    is_its_turn: AtomicBool,
}

/// The engine is dead: a pass panicked.
#[derive(Debug)]
pub(super) struct Dead;

/// The worker, for whoever turns it. Dropping it looks whether a bell was rung meanwhile by a caller that found it taken. Where a thread of the
/// engine's alone turns the worker, that thread looks: it may let go of the worker in the middle of a pass.
pub(super) struct Turn<'a> {
    shared: &'a Shared,
    worker: Option<MutexGuard<'a, Worker>>,
}

impl Deref for Turn<'_> {
    type Target = Worker;
    fn deref(&self) -> &Worker {
        self.worker.as_ref().expect("held until it is dropped")
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        self.worker.as_mut().expect("held until it is dropped")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.worker = None;
        if !thread::panicking() {
            self.shared.look_again();
        }
    }
}

impl Shared {
    /// `is_threads`: a thread of the engine's alone turns the worker.
    pub(super) fn new(worker: Worker, is_threads: bool) -> io::Result<Shared> {
        let shared = Shared {
            clock: Clock::new(),
            doorbells: worker.doorbells().clone(),
            watch: Watch::new(),
            waiters: Waiters::default(),
            look_on: LookOn::default(),
            pollers: Pollers::new()?,
            load: Load::new(),
            owed_at: AtomicU64::new(NOTHING),
            waits_at: AtomicU64::new(NOTHING),
            handoff_due: AtomicBool::new(false),
            idle_at: AtomicU64::new(NOTHING),
            dead: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            alarm: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
            nap_ends: TimerFd::new(
                ClockId::CLOCK_MONOTONIC,
                TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
            )?,
            frames: Mutex::new(Arc::new([])),
            waiting: AtomicU32::new(0),
            remote: Copying::default(),
            is_threads,
            let_in: AtomicU32::new(0),
            is_its_turn: AtomicBool::new(false),
            turns: Turns::new(worker),
        };
        shared.watch_port(shared.lock_to_look().port())?;
        Ok(shared)
    }

    /// From now on what comes to this port wakes who watches.
    pub(super) fn watch_port(&self, port: &dyn Port) -> io::Result<()> {
        let frames: io::Result<_> = port.event_fds().into_iter().map(|fd| fd.try_clone_to_owned()).collect();
        *self.frames.lock().unwrap_or_else(PoisonError::into_inner) = frames?;
        Ok(())
    }

    /// The port's descriptors as they are now.
    pub(super) fn frames(&self) -> Arc<[OwnedFd]> {
        Arc::clone(&self.frames.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn turn<'a>(&'a self, worker: MutexGuard<'a, Worker>) -> Turn<'a> {
        Turn { shared: self, worker: Some(worker) }
    }

    /// The worker in any state: between two passes, or in the middle of one that the calling thread has begun.
    pub(super) fn lock(&self) -> Result<Turn<'_>, Dead> {
        match self.turns.worker().lock() {
            Ok(worker) => Ok(self.turn(worker)),
            Err(poisoned) => Err(self.declare_dead(&mut poisoned.into_inner())),
        }
    }

    /// The worker, unless somebody has it. Whoever has rung a bell before may leave it at that: the holder hears it.
    pub(super) fn try_turn(&self) -> Option<Turn<'_>> {
        match self.turns.after_ringing() {
            Ok(worker) => worker.map(|worker| self.turn(worker)),
            Err(mut dead) => {
                self.declare_dead(&mut dead);
                None
            }
        }
    }

    /// The same; a thread that takes it again and again lets this one in, and goes on afterwards.
    pub(super) fn try_turn_between(&self) -> Option<Turn<'_>> {
        self.waiting.fetch_add(1, Relaxed);
        let worker = self.try_turn();
        self.waiting.fetch_sub(1, Relaxed);
        worker
    }

    /// The worker, to look at what is left of it in any case. When the turn ends, the caller may run the event sink: it holds no lock that the
    /// sink takes.
    pub(super) fn lock_to_look(&self) -> Turn<'_> {
        self.turn(self.between(|| self.lock_mid_pass(), |worker| worker.is_mid_pass() && !self.is_dead()))
    }

    /// The worker in any state, for the thread that stands by.
    pub(super) fn lock_mid_pass(&self) -> MutexGuard<'_, Worker> {
        self.turns.worker().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker between two passes, for those who do not turn it in a loop.
    pub(super) fn lock_between(&self) -> Result<Turn<'_>, Dead> {
        self.between(|| self.lock(), |turn| turn.as_ref().is_ok_and(|turn| turn.is_mid_pass()))
    }

    /// Locks between two passes of the thread that turns the worker in a loop. Of any number of callers one comes between two passes, so
    /// neither side starves: see [`lock_in_turn`](Self::lock_in_turn).
    fn between<G>(&self, lock: impl Fn() -> G, is_mid_pass: impl Fn(&G) -> bool) -> G {
        self.waiting.fetch_add(1, Relaxed);
        let guard = loop {
            while self.is_its_turn.load(Relaxed) {
                thread::yield_now();
            }
            let guard = lock();
            if !is_mid_pass(&guard) {
                break guard;
            }
            drop(guard);
            // Its thread copies from or to remote memory.
            thread::sleep(Nanos(WaitPolicy::MID_PASS_NS).as_duration());
        };
        self.let_in.fetch_add(1, Relaxed);
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }

    /// The lock, for a thread that takes it again and again. It lets one of those in that wait, and is the next then, whoever has come
    /// meanwhile: before it are only callers that had already seen that it was not its turn.
    pub(super) fn lock_in_turn(&self) -> Result<Turn<'_>, Dead> {
        let before = self.let_in.load(Relaxed);
        let waits = || self.waiting.load(Relaxed) > 0 && self.let_in.load(Relaxed) == before;
        while waits() && !self.stop.load(Relaxed) {
            thread::yield_now();
        }
        self.is_its_turn.store(true, Relaxed);
        let turn = self.lock();
        self.is_its_turn.store(false, Relaxed);
        turn
    }

    /// A pass has panicked. Tells everybody, the first time.
    pub(super) fn declare_dead(&self, worker: &mut Worker) -> Dead {
        if !self.dead.swap(true, Relaxed) {
            worker.die();
        }
        Dead
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// After unlocking: whoever rang while the worker was taken has left it to its holder.
    fn look_again(&self) {
        if self.is_threads {
            return;
        }
        let send = |worker: &mut Worker| {
            let left = self.send_out(worker, self.clock.now());
            self.rouse(worker, left.more);
        };
        if self.turns.look_again(|| self.doorbells.any(), send) && self.watch.needs_by(0) {
            self.wake_keeper();
        }
    }

    /// The half of a pass that sends; nothing is owed after it.
    pub(super) fn send_out(&self, worker: &mut Worker, now: Nanos) -> Progress {
        self.owed_at.store(NOTHING, Relaxed);
        let progress = worker.send_out(now);
        self.stir(progress.completions);
        progress
    }

    /// Since when something is owed.
    pub(super) fn owed_at(&self) -> Option<Nanos> {
        let at = self.owed_at.load(Relaxed);
        (at != NOTHING).then_some(Nanos(at))
    }

    /// A pass that took something in ends without sending. If nothing of it is to be answered, nothing is owed: to take an
    /// acknowledgement in must not hurry the next answer.
    pub(super) fn owe(&self, worker: &Worker, now: Nanos) {
        if worker.nic().has_ready() {
            self.owed_at.store(now.0, Relaxed);
        }
    }

    /// Before anything is taken away: a caller that ends after its last completion, destroying its QP, must not keep
    /// the acknowledgement of that very message from its peer.
    pub(super) fn send_what_is_owed(&self, worker: &mut Worker, now: Nanos) {
        if self.owed_at().is_some() {
            self.send_out(worker, now);
        }
    }

    /// After a caller's pass that did something: wakes the keeper if it sleeps and has reason to come earlier than it will.
    pub(super) fn rouse(&self, worker: &Worker, more: bool) {
        // In a nap it comes soon anyway, and its callers keep the time.
        if self.watch.naps() {
            return;
        }
        let needed_by = if more { Nanos::ZERO } else { worker.needed_by() };
        if self.watch.needs_by(needed_by.0) {
            self.wake_keeper();
        }
    }

    /// A caller watches the link in the keeper's place, unless another does, for as long as `meanwhile` takes.
    pub(super) fn while_watching<T>(&self, now: Nanos, meanwhile: impl FnOnce() -> T) -> T {
        let watches = self.watch.begin_watching(now.0);
        let result = meanwhile();
        if watches && self.watch.stop_watching() {
            self.wake_keeper();
        }
        result
    }

    /// Ends the keeper's sleep, whatever its kind.
    pub(super) fn wake_keeper(&self) {
        // The counter can only be full if a wake-up is pending anyway.
        let _ = self.alarm.write(1);
    }

    /// Its nap ends then.
    pub(super) fn wake_keeper_at(&self, now: Nanos, until: Nanos) {
        // No time at all would stop the clock.
        let nap = (until - now).max(Nanos(1)).as_duration();
        let _ =
            self.nap_ends.set(Expiration::OneShot(TimeSpec::from_duration(nap)), TimerSetTimeFlags::empty());
    }

    /// A caller runs a pass, or found that somebody does.
    pub(super) fn passed(&self, now: Nanos) {
        self.watch.passed(now.0);
        self.put_nap_off(now);
    }

    /// The same for one that has not been away, whatever the time says.
    pub(super) fn goes_on_passing(&self, now: Nanos) {
        self.watch.pass_ended(now.0);
        self.put_nap_off(now);
    }

    fn put_nap_off(&self, now: Nanos) {
        if let Some(until) = self.watch.lengthen(now.0) {
            self.wake_keeper_at(now, Nanos(until));
        }
    }

    /// A caller found the worker taken. The holder may be waiting for this very processor.
    pub(super) fn give_way(&self, now: Nanos) {
        for _ in 0..WaitPolicy::LOCK_SPINS {
            std::hint::spin_loop();
        }
        if !matches!(self.turns.unless_taken(), Ok(None)) {
            return;
        }
        if self.is_crowded(now) {
            // The holder's unlocking wakes this thread. A yield would last until a program that computes has used up its time slice.
            drop(self.lock_between());
        } else {
            thread::yield_now();
        }
    }

    /// A caller says that it will wait.
    pub(super) fn will_wait(&self, now: u64) {
        self.found_something();
        self.waits_at.store(now, Relaxed);
    }

    /// It would have waited, had it not looked on.
    pub(super) fn goes_on_waiting(&self, now: Nanos) {
        self.waits_at.store(now.0, Relaxed);
    }

    /// True if a caller has said a moment ago that it will wait.
    pub(super) fn said_to_wait_lately(&self, now: Nanos) -> bool {
        is_within(self.waits_at.load(Relaxed), now.0, WaitPolicy::RECENT_NS)
    }

    /// True if it then watched the link itself: who looks does so once more before it sleeps.
    pub(super) fn waits_lately(&self, now: Nanos) -> bool {
        self.said_to_wait_lately(now) && self.watch.relieved_lately(now.0)
    }

    /// What a caller took in.
    pub(super) fn note(&self, now: Nanos, came: &Progress) {
        self.stir(came.completions);
        let idle = came.is_idle();
        self.idle_at.store(if idle { now.0 } else { NOTHING }, Relaxed);
        if !idle {
            self.found_something();
        }
    }

    /// Nothing had come a moment ago, and nothing is to be sent. Whoever is about to sleep on the link's descriptors need not look
    /// again: they tell.
    pub(super) fn found_nothing_lately(&self, now: Nanos) -> bool {
        is_within(self.idle_at.load(Relaxed), now.0, WaitPolicy::JUST_NOW_NS)
            && self.owed_at().is_none()
            && !self.doorbells.any()
    }
}

/// What `sleep_on` takes to sleep until one of these is readable.
pub(super) fn readable<'a>(fds: impl IntoIterator<Item = BorrowedFd<'a>>) -> Vec<PollFd<'a>> {
    fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect()
}

/// Sleeps until one of these is readable, or the time is over.
pub(super) fn sleep_on(fds: &mut [PollFd<'_>], how_long: Nanos) {
    // An interrupted or failed wait is a short one: the next pass looks at everything anyway.
    let _ = ppoll(fds, Some(TimeSpec::from_duration(how_long.as_duration())), None);
}

#[cfg(test)]
mod tests;
