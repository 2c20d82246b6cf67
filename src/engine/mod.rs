//! Who turns the worker: the caller, or a thread.
//!
//! On few cores the caller is best: an application that polls for completions runs a pass itself, an application that posts sends in
//! that call, and there is no hand-off between threads. The keeper, a thread of the engine's, looks after the NIC in between: while the
//! application computes, spins on memory, or waits. `watch.rs` says what it does when. On many cores a pinned thread spins, then sleeps.
//!
//! A caller that blocks in a call until a completion comes watches the link in the keeper's place ([`Engine::begin_wait`]): a frame then
//! wakes the thread that wants it.
//!
//! What is posted is never forgotten: whoever rings a bell and finds the worker taken leaves it to its holder, who looks at the bells once
//! more after unlocking (`turns.rs`). Sleeping loses no wake-up: [`Worker::prepare_sleep`] first makes every ring of a doorbell write
//! an eventfd, then looks once more.
//!
//! A pass that panics is a bug of ours, and what it leaves is not to be trusted. The engine is dead then: whoever
//! waits is woken, an event says so, and posts and commands fail instead of waiting.

mod control;
mod copying;
mod keeper;
mod load;
mod look_on;
mod pass_times;
mod pollers;
mod polling;
mod progress;
mod remote_pass;
mod shared;
mod stall;
mod sync;
mod turns;
mod wait;
mod wait_policy;
mod wait_set;
mod waiters;
mod watch;
mod worker;

pub use control::Request;
pub use pass_times::PassTimes;
pub use progress::Progress;
pub use wait::{MAX_WATCHED, Wait, Watched};
pub(crate) use wait_policy::WaitPolicy;
pub use wait_set::WaitSet;
pub use worker::{EventSink, Worker};

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TryRecvError, bounded};

use crate::nic::{Answer, Command, ControlError, Nic, NicConfig};
use crate::port::Port;
use crate::shared::Doorbells;
use crate::time::Nanos;
use crate::verbs::{AsyncEvent, QpIndex};

use shared::Shared;

/// Asynchronous events that may wait for the application.
const EVENT_QUEUE: usize = 4096;
/// Commands that may wait for the worker.
const COMMAND_QUEUE: usize = 64;
/// How long a pass of the thread takes that has been woken, about.
const A_MOMENT: Duration = Duration::from_micros(20);

/// Who turns the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drive {
    /// The calls of the application, and the keeper between them.
    #[default]
    Caller,
    /// Nobody but the caller: for tests, benchmarks and virtual time.
    CallerOnly,
    /// A thread of its own, pinned to a core if one is named, that sleeps after `spin` without work.
    Thread {
        /// The core that it is pinned to; `None`: the scheduler decides.
        core: Option<usize>,
        /// How long it spins; `Nanos::MAX`: for ever.
        spin: Nanos,
    },
}

/// A running NIC.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    doorbells: Doorbells,
    requests: Sender<Request>,
    events: Receiver<AsyncEvent>,
    caller_drives: bool,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts a NIC on a port.
    ///
    /// # Errors
    /// If the system has no memory, descriptors or threads for it.
    pub fn start(config: NicConfig, port: Box<dyn Port>, drive: Drive) -> io::Result<Engine> {
        let doorbells = Doorbells::new(config.limits.qps)?;
        Engine::start_on(config, port, drive, doorbells)
    }

    /// The same with doorbells that are there already, made for as many QPs as the NIC has: another process may ring them.
    ///
    /// # Errors
    /// As those of [`Engine::start`].
    pub fn start_on(
        config: NicConfig,
        port: Box<dyn Port>,
        drive: Drive,
        doorbells: Doorbells,
    ) -> io::Result<Engine> {
        let (requests, request_queue) = bounded(COMMAND_QUEUE);
        let (event_sender, events) = bounded(EVENT_QUEUE);
        let serves = config.serves;
        let worker = Worker::new(Nic::new(config), port, doorbells.clone(), request_queue, event_sender);
        let caller_drives = !matches!(drive, Drive::Thread { .. });
        let shared = Arc::new(Shared::new(worker, !caller_drives)?);
        let thread = match drive {
            Drive::CallerOnly => None,
            _ => Some(keeper::spawn(Arc::clone(&shared), drive, serves)?),
        };
        Ok(Engine { shared, doorbells, requests, events, caller_drives, thread })
    }

    /// The time on the engine's clock.
    pub fn now(&self) -> Nanos {
        self.shared.clock.now()
    }

    /// The bells of its QPs.
    pub fn doorbells(&self) -> &Doorbells {
        &self.doorbells
    }

    /// Runs a pass if callers drive this engine and nobody else is in one. Cheap otherwise.
    ///
    /// A pass that brings something may end there: the caller has what it polls for, a completion or bytes in memory, and what
    /// it posts because of it leaves together with the acknowledgements, in one kick of the port. The keeper sees to it that they leave
    /// in any case.
    pub fn caller_pass(&self) -> Progress {
        self.caller_pass_until(|| false)
    }

    /// The same for a caller that polls a completion queue and found it empty. `has_come` tells whether something is in it by now: a caller
    /// that looks on for an answer asks it between its passes.
    pub fn caller_pass_until(&self, has_come: impl Fn() -> bool) -> Progress {
        if !self.caller_drives {
            return Progress::default();
        }
        let progress = self.pass_and_look_on(&has_come);
        if self.shared.handoff_due.load(Relaxed) && !has_come() {
            // It watched the link while it spun, and will not do so again: the keeper must not nap in that hope.
            self.shared.watch.forget_relief();
            self.step_aside();
        }
        if progress.completions > 0 {
            let now = self.now();
            if self.shared.others_poll(now) && !self.shared.is_crowded(now) && !has_come() {
                // It is for another poller, which may be waiting for this very processor.
                thread::yield_now();
            }
        }
        progress
    }

    fn pass_and_look_on(&self, has_come: &impl Fn() -> bool) -> Progress {
        let now = self.now();
        self.shared.pollers.note_thread(now.0, waiters::this_thread());
        self.shared.passed(now);
        let just_looked = self.shared.waits_lately(now) && self.shared.found_nothing_lately(now);
        if just_looked && !self.shared.look_on.is_due() {
            return Progress::default();
        }
        let Some(mut worker) = self.shared.try_turn() else {
            self.shared.give_way(now);
            return Progress::default();
        };
        let came = worker.take_in(now);
        self.shared.note(now, &came);
        if self.may_owe(&worker, now, &came) {
            return Progress { more: came.received > 0, ..came };
        }
        let progress = came.and(&self.shared.send_out(&mut worker, now));
        if progress.is_idle() {
            let published = worker.nic().published();
            drop(worker);
            if let Some(came) = self.look_on(now, published, has_come) {
                return came;
            }
            self.shared.found_nothing(now);
        } else {
            self.shared.found_something();
            self.shared.rouse(&worker, progress.more);
            let ended = self.now();
            self.shared.watch.pass_ended(ended.0);
            worker.note_pass(ended - now);
        }
        progress
    }

    /// True if the pass ends with what it took in: nothing is posted, nothing but acknowledgements is to leave, and the caller is
    /// trusted to come back soon. A request that an answer made room for, or the answer to a READ, has nothing to wait for.
    fn may_owe(&self, worker: &Worker, now: Nanos, came: &Progress) -> bool {
        let owed_at = self.shared.owed_at();
        let is_trusted = self.thread.is_none() || self.shared.watch.naps();
        if !is_trusted || worker.doorbells().any() || worker.nic().has_pressing() {
            return false;
        }
        match owed_at {
            None => {
                if came.received > 0 {
                    self.shared.owe(worker, now);
                }
                came.received > 0
            }
            // A caller that polls again may still reply, also to what a port delivers frame by frame; one that has begun to block will not.
            Some(at) => {
                self.thread.is_some()
                    && now - at < Nanos(WaitPolicy::OWED_FOR_NS)
                    && self.shared.watch.broke_at() <= at.0
            }
        }
    }

    /// A QP has new work requests, and `outstanding` that are not complete in all; `posts` counts the calls that posted them. What was
    /// posted leaves before this returns, or with a pass that somebody is certain to run: who has the worker looks at the bells
    /// again before going, and a keeper that naps, which it does only while its callers poll without a break, looks soon.
    pub fn posted(&self, qp: QpIndex, outstanding: u32, posts: u32) {
        if !self.caller_drives {
            self.doorbells.ring(qp);
            return;
        }
        self.doorbells.ring_silently(qp);
        self.shared.look_on.posted();
        let may_wait = outstanding > WaitPolicy::FEW_OUTSTANDING
            && posts % WaitPolicy::HELD_POSTS != WaitPolicy::HELD_POSTS - 1;
        if may_wait && (self.thread.is_none() || self.shared.watch.naps()) {
            return;
        }
        if let Some(mut worker) = self.shared.try_turn() {
            let now = self.now();
            self.shared.passed(now);
            let left = self.shared.send_out(&mut worker, now);
            self.shared.rouse(&worker, left.more);
        }
    }

    /// The process is about to end: what was posted leaves, and what is owed for what came, as it would from an adapter. The engine's
    /// thread sends it, where there is one: here nothing allocates and no thread-local value is looked at, so that it can be called
    /// wherever a process can end. Gives up after `limit`: the calling thread may be in the handler of a signal that interrupted its
    /// own pass.
    pub fn send_last(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut is_told = false;
        while !self.is_dead() && Instant::now() < until {
            match self.try_to_send_last() {
                Some(true) => return,
                Some(false) if !std::mem::replace(&mut is_told, true) => {
                    self.step_aside();
                    self.shared.wake_keeper();
                }
                _ => {}
            }
            thread::sleep(A_MOMENT);
        }
    }

    /// True if nothing is left to send; `None` if somebody has the worker. Sends, where no thread does.
    fn try_to_send_last(&self) -> Option<bool> {
        let mut worker = self.shared.try_turn_between()?;
        let is_left = |worker: &Worker| {
            let owes = self.shared.owed_at().is_some();
            owes || worker.doorbells().any() || worker.nic().has_ready()
        };
        if is_left(&worker) && self.thread.is_none() {
            self.shared.send_out(&mut worker, self.now());
        }
        Some(!is_left(&worker))
    }

    /// Puts another port under the NIC, and takes over what it carries. The one before must have carried nothing yet.
    ///
    /// # Errors
    /// If the thread cannot wait for its frames, or the engine is dead; the port is closed again.
    pub fn set_port(&self, port: Box<dyn Port>) -> io::Result<()> {
        self.shared.watch_port(&*port)?;
        let now = self.now();
        self.adjust(|worker| worker.set_port(now, port))
            .ok_or_else(|| io::Error::other("the engine is dead"))?;
        self.doorbells.wake_if_sleeping();
        Ok(())
    }

    /// From now on events go to `sink`, which is called by whoever turns the NIC: it must be short, and not use the
    /// device. False: there is one already.
    pub fn set_event_sink(&self, sink: EventSink) -> bool {
        self.adjust(|worker| worker.set_event_sink(sink)).unwrap_or(false)
    }

    /// True if a pass panicked: nothing turns the NIC any more, posts and commands fail.
    pub fn is_dead(&self) -> bool {
        self.shared.is_dead()
    }

    /// Carries a command out and waits for the answer.
    ///
    /// # Errors
    /// As the command's; [`ControlError::DeviceFatal`] if the engine is dead.
    pub fn call(&self, command: impl Into<Command>) -> Result<Answer, ControlError> {
        let (answer, answered) = bounded(1);
        self.submit(Request { command: command.into(), answer })?;
        self.doorbells.wake_if_sleeping();
        loop {
            match answered.try_recv() {
                Ok(answer) => return answer,
                Err(TryRecvError::Disconnected) => return Err(ControlError::DeviceFatal),
                Err(TryRecvError::Empty) if self.is_dead() => return Err(ControlError::DeviceFatal),
                Err(TryRecvError::Empty) => {}
            }
            if !self.caller_drives {
                // The thread answers at once; a look now and then whether it lives.
                if let Ok(answer) = answered.recv_timeout(Nanos(WaitPolicy::LONGEST_SLEEP_NS).as_duration()) {
                    return answer;
                }
            } else if let Ok(mut worker) = self.shared.lock_between() {
                let now = self.now();
                // What was posted before the command leaves before it: it may be to destroy the QP.
                self.shared.send_out(&mut worker, now);
                worker.poll(now);
                self.shared.rouse(&worker, false);
            }
        }
    }

    fn submit(&self, mut request: Request) -> Result<(), ControlError> {
        while !self.is_dead() {
            match self.requests.send_timeout(request, Nanos(WaitPolicy::LONGEST_SLEEP_NS).as_duration()) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Timeout(back)) => request = back,
                Err(SendTimeoutError::Disconnected(_)) => break,
            }
        }
        Err(ControlError::DeviceFatal)
    }

    /// The next asynchronous event, if one waits.
    pub fn event(&self) -> Option<AsyncEvent> {
        self.events.try_recv().ok()
    }

    /// Looks at the worker between two passes; also at what is left of a dead one.
    pub fn inspect<T>(&self, look: impl FnOnce(&Worker) -> T) -> T {
        look(&self.shared.lock_to_look())
    }

    /// Changes the worker between two passes. `None`: the engine is dead.
    pub fn adjust<T>(&self, change: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let mut worker = self.shared.lock_between().ok()?;
        let result = change(&mut worker);
        self.shared.rouse(&worker, false);
        Some(result)
    }

    /// Why the link failed, if it did; said once.
    pub fn take_link_error(&self) -> Option<io::Error> {
        self.shared.lock_to_look().take_link_error()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Ok(mut worker) = self.shared.lock_between() {
            let now = self.now();
            self.shared.send_what_is_owed(&mut worker, now);
        }
        self.shared.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            // However it sleeps, this wakes it.
            self.shared.wake_keeper();
            let _ = thread.join();
        }
    }
}
