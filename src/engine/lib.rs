//! The engine: runs the worker in the application's calls or in a thread.
//!
//! ```
//! use roxie_engine::{Drive, Engine};
//! use roxie_nic::nic::{Answer, Command, NicConfig};
//! use roxie_port::memory::{MemoryConfig, pair};
//!
//! let (port, _link) = pair(MemoryConfig::default(), MemoryConfig::default());
//! let engine = Engine::start(NicConfig::default(), Box::new(port), Drive::Caller)?;
//! assert!(matches!(engine.call(Command::AllocPd), Ok(Answer::Pd(_))));
//! assert!(!engine.is_dead());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! With few cores, the application's calls run it. A poll for completions runs a pass, and a post sends before it
//! returns, so no work is handed between threads. The engine thread runs passes in between: while the application
//! computes, spins on memory, or blocks. `handoff.rs` describes its states. With many cores, a pinned thread runs all
//! passes: it spins, then sleeps.
//!
//! A caller that blocks in a call until a completion comes sleeps on the link's descriptors in the engine thread's
//! place ([`Engine::begin_wait`]). A frame then wakes the thread that wants it.
//!
//! Posted work is not lost. A caller that rings a doorbell and finds the worker locked returns; the lock's holder
//! checks the doorbells again after unlocking (`combining_lock.rs`). Before a thread sleeps, [`Worker::prepare_sleep`]
//! makes each doorbell ring write an eventfd, then checks for work once more.
//!
//! A pass that panics is a bug, and leaves the worker in an unknown state. The engine is then dead: blocked threads are
//! woken, a device-fatal event is raised, and posts and commands fail immediately.

#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod adapter;
mod combining_lock;
mod control;
mod copying;
mod engine_thread;
mod handoff;
mod load;
mod pass_times;
mod pollers;
mod polling;
mod port_requests;
mod progress;
mod shared;
mod siblings;
mod spin_then_sleep;
mod stall;
mod sync;
mod visits;
mod wait;
mod wait_policy;
mod wait_set;
mod waiters;
mod worker;
mod worker_port;
mod workers;

pub use adapter::Adapter;
pub use control::{Answered, Request, Visit};
pub use pass_times::PassTimes;
pub use progress::Progress;
pub use wait::{MAX_WATCHED, Wait, Watched};
pub use wait_policy::WaitPolicy;
pub use wait_set::WaitSet;
pub use worker::{EventSink, Worker};
pub use workers::{MAX_WORKERS, Workers};

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TryRecvError, bounded};

use roxie_base::limits::Limits;
use roxie_base::threads::lock;
use roxie_base::time::{Clock, Nanos};
use roxie_nic::nic::{Answer, Command, ControlError, Nic, NicConfig};
use roxie_nic::shared::Doorbells;
use roxie_nic::verbs::{AsyncEvent, Mtu, QpIndex};
use roxie_port::pcap::{Background, Recorder};
use roxie_port::{Port, PortInfo};

use shared::Shared;

/// Capacity of the queue of asynchronous events.
const EVENT_QUEUE: usize = 4096;
/// Capacity of the queue of commands.
const COMMAND_QUEUE: usize = 64;
/// Approximate time of one pass by a thread that has to be woken.
const A_MOMENT: Duration = Duration::from_micros(20);

/// Which threads run the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drive {
    /// Calls of the application, and the engine thread between them.
    #[default]
    Caller,
    /// Calls of the application only: for tests and benchmarks.
    CallerOnly,
    /// [`Engine::step`] only, in virtual time: the engine's clock stands at the time of the last step. Commands run
    /// immediately, at that time. Posts and polls run nothing.
    Stepped,
    /// A thread of its own, optionally pinned to a core, that sleeps after `spin` without work.
    Thread {
        /// The core that the thread is pinned to; `None`: the scheduler decides.
        core: Option<usize>,
        /// How long the thread spins before it sleeps; `Nanos::MAX`: forever.
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
    /// Time of the last step of a [`Drive::Stepped`] engine; `None`: the engine has a clock.
    stepped_at: Option<AtomicU64>,
    limits: Limits,
    /// The port's properties, and the largest path MTU: read without the worker. Whatever changes them renews this
    /// copy.
    facts: Mutex<(PortInfo, Mtu)>,
}

impl Engine {
    /// Starts a NIC on a port.
    ///
    /// # Errors
    /// If the system is out of memory, descriptors or threads.
    pub fn start(config: NicConfig, port: Box<dyn Port>, drive: Drive) -> io::Result<Engine> {
        let doorbells = Doorbells::new(config.limits.qps)?;
        Engine::start_on(config, port, drive, doorbells, Clock::new())
    }

    /// Like [`Engine::start`] on existing doorbells, which another process may ring, and with an existing clock.
    /// `doorbells` must be made for as many QPs as the NIC has.
    ///
    /// # Errors
    /// The errors of [`Engine::start`].
    pub fn start_on(
        config: NicConfig,
        port: Box<dyn Port>,
        drive: Drive,
        doorbells: Doorbells,
        clock: Clock,
    ) -> io::Result<Engine> {
        let (requests, request_queue) = bounded(COMMAND_QUEUE);
        let (event_sender, events) = bounded(EVENT_QUEUE);
        let (limits, facts) = (config.limits, (port.info().clone(), config.largest_mtu));
        let worker = Worker::new(Nic::new(config), port, doorbells.clone(), request_queue, event_sender);
        let caller_drives = matches!(drive, Drive::Caller | Drive::CallerOnly);
        let has_thread = matches!(drive, Drive::Caller | Drive::Thread { .. });
        let shared = Arc::new(Shared::new(worker, !caller_drives, clock)?);
        let thread = has_thread.then(|| engine_thread::spawn(Arc::clone(&shared), drive)).transpose()?;
        let stepped_at = (drive == Drive::Stepped).then(AtomicU64::default);
        let facts = Mutex::new(facts);
        Ok(Engine { shared, doorbells, requests, events, caller_drives, thread, stepped_at, limits, facts })
    }

    /// The time on the engine's clock, in ns.
    pub fn now(&self) -> Nanos {
        match &self.stepped_at {
            None => self.shared.clock.now(),
            Some(at) => Nanos(at.load(Relaxed)),
        }
    }

    /// Runs one pass at `now`, for [`Drive::Stepped`]. `now` must not be before the time of the last step. A dead
    /// engine does nothing.
    pub fn step(&self, now: Nanos) -> Progress {
        if let Some(at) = &self.stepped_at {
            at.store(now.0, Relaxed);
        }
        self.adjust(move |worker| worker.poll(now)).unwrap_or_default()
    }

    /// The doorbells of the NIC's QPs.
    pub fn doorbells(&self) -> &Doorbells {
        &self.doorbells
    }

    /// Runs a pass if callers drive this engine and no other thread is in one. Returns immediately otherwise.
    ///
    /// A pass that receives something may return before its sending half. The caller then has its completion or bytes,
    /// and what it posts in response leaves in one port flush with the acknowledgements. If the caller posts nothing,
    /// the engine thread sends them.
    pub fn caller_pass(&self) -> Progress {
        self.caller_pass_until(|| false)
    }

    /// Like [`caller_pass`](Self::caller_pass), for a caller that found its completion queue empty. `has_come` returns
    /// true if the queue has a completion by now. A caller that spins before sleeping evaluates it between passes.
    pub fn caller_pass_until(&self, has_come: impl Fn() -> bool) -> Progress {
        if !self.caller_drives {
            return Progress::default();
        }
        let progress = self.poll_and_watch(&has_come);
        if self.shared.handoff_due.load(Relaxed) && !has_come() {
            // The caller stood in for the engine thread while it spun, and will not do so again: the engine thread must
            // not sleep in that expectation.
            self.shared.handoff.distrust_substitutes();
            self.step_aside();
        }
        if progress.completions > 0 {
            let now = self.now();
            if self.shared.others_poll(now) && !self.shared.is_crowded(now) && !has_come() {
                // The completion is for another poller, which may need this processor.
                thread::yield_now();
            }
        }
        progress
    }

    fn poll_and_watch(&self, has_come: &impl Fn() -> bool) -> Progress {
        let now = self.now();
        self.shared.pollers.note_thread(now.0, waiters::this_thread());
        self.shared.passed(now);
        let just_polled = self.shared.blocked_recently(now) && self.shared.was_empty_recently(now);
        if just_polled && !self.shared.spinning.is_due() {
            return Progress::default();
        }
        let Some(mut worker) = self.shared.try_turn() else {
            self.shared.give_way(now);
            return Progress::default();
        };
        let intake = worker.take_in(now);
        self.shared.note(now, &intake);
        if self.defer_replies(&worker, now, &intake) {
            return Progress { more: intake.received > 0, ..intake };
        }
        let progress = intake.and(&self.shared.send_out(&mut worker, now));
        if progress.is_idle() {
            let published = worker.nic().published();
            drop(worker);
            if let Some(intake) = self.spin_for_completion(now, published, has_come) {
                return intake;
            }
            self.shared.note_empty_pass(now);
        } else {
            self.shared.note_busy_pass();
            self.shared.wake_if_needed(&worker, progress.more);
            let ended = self.now();
            self.shared.handoff.pass_ended(ended.0);
            worker.note_pass(ended - now);
        }
        progress
    }

    /// Puts off the sending half of the pass if no work is posted, only acknowledgements are pending, and the caller is
    /// trusted to poll again soon. Requests unblocked by an ACK, and READ responses, are sent immediately. Returns true
    /// if the pass may end.
    fn defer_replies(&self, worker: &Worker, now: Nanos, came: &Progress) -> bool {
        let deferred_since = self.shared.deferred_ack_since();
        let is_trusted = self.thread.is_none() || self.shared.handoff.is_in_backoff();
        if !is_trusted || worker.doorbells().any() || worker.nic().has_pressing() {
            return false;
        }
        match deferred_since {
            None => {
                if came.received > 0 {
                    self.shared.defer_acks(worker, now);
                }
                came.received > 0
            }
            // A caller that polls again may still reply, also to frames that the port delivers one by one. A caller
            // that has begun to block will not.
            Some(at) => {
                self.thread.is_some()
                    && now - at < Nanos(WaitPolicy::OWED_FOR_NS)
                    && self.shared.handoff.broke_at() <= at.0
            }
        }
    }

    /// Sends the new work requests of a QP. `outstanding`: its work requests that are not complete; `posts`: the calls
    /// that posted them. The requests leave before this returns, or in a later pass that is certain: the holder of the
    /// worker's lock checks the doorbells after unlocking, and an engine thread in a backoff sleep, which needs callers
    /// that poll without a gap, wakes soon.
    pub fn ring_doorbell(&self, qp: QpIndex, outstanding: u32, posts: u32) {
        if !self.caller_drives {
            self.doorbells.ring(qp);
            return;
        }
        self.doorbells.ring_silently(qp);
        self.shared.spinning.note_post();
        let may_wait = outstanding > WaitPolicy::FEW_OUTSTANDING
            && posts % WaitPolicy::HELD_POSTS != WaitPolicy::HELD_POSTS - 1;
        if may_wait && (self.thread.is_none() || self.shared.handoff.is_in_backoff()) {
            return;
        }
        if let Some(mut worker) = self.shared.try_turn() {
            let now = self.now();
            self.shared.passed(now);
            let sent = self.shared.send_out(&mut worker, now);
            self.shared.wake_if_needed(&worker, sent.more);
        }
    }

    /// Sends posted work requests and deferred acknowledgements before the process ends, as an adapter would. If there
    /// is an engine thread, that thread sends them. Allocates nothing and uses no thread-local value, so it may be
    /// called wherever a process can end. Gives up after `limit`: the calling thread may be in a signal handler that
    /// interrupted its own pass.
    pub fn send_last(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut is_warned = false;
        while !self.is_dead() && Instant::now() < until {
            match self.try_to_send_last() {
                Some(true) => return,
                Some(false) if !std::mem::replace(&mut is_warned, true) => {
                    self.step_aside();
                    self.shared.wake_engine_thread();
                }
                _ => {}
            }
            thread::sleep(A_MOMENT);
        }
    }

    /// True if nothing is left to send; `None` if another thread holds the worker. Sends if there is no engine thread.
    fn try_to_send_last(&self) -> Option<bool> {
        let mut worker = self.shared.try_turn_between()?;
        let has_work = |worker: &Worker| {
            let has_deferred = self.shared.deferred_ack_since().is_some();
            has_deferred || worker.doorbells().any() || worker.nic().has_ready()
        };
        if has_work(&worker) && self.thread.is_none() {
            self.shared.send_out(&mut worker, self.now());
        }
        Some(!has_work(&worker))
    }

    /// Replaces the NIC's port, and adopts the new one's MAC address and MTU. The previous port must not have carried
    /// any frame.
    ///
    /// # Errors
    /// If the port's descriptors cannot be duplicated, or the engine is dead. The port is then closed.
    pub fn set_port(&self, port: Box<dyn Port>) -> io::Result<()> {
        self.shared.watch_port(&*port)?;
        let now = self.now();
        self.adjust(move |worker| worker.set_port(now, port))
            .ok_or_else(|| io::Error::other("the engine is dead"))?;
        self.read_facts();
        self.doorbells.wake_if_sleeping();
        Ok(())
    }

    /// Captures frames from now on, above all layers of the port: the recorder gets what the NIC sends and receives,
    /// and why. Returns the recorder if frames are captured in this way already, or the engine is dead.
    #[must_use = "a recorder that is returned writes nothing"]
    pub fn attach_capture(&self, recorder: Recorder<Background>) -> Option<Recorder<Background>> {
        let now = self.now();
        // Kept here until the worker takes it: a dead engine does not.
        let unattached = Arc::new(Mutex::new(Some(recorder)));
        let slot = Arc::clone(&unattached);
        let attach = move |worker: &mut Worker| {
            let mut unattached = lock(&slot);
            *unattached = unattached.take().and_then(|recorder| worker.attach_capture(now, recorder));
        };
        self.adjust(attach);
        self.read_facts();
        lock(&unattached).take()
    }

    /// Ends the capture that was attached, and returns its recorder. `None`: there is none, or the engine is dead.
    pub fn detach_capture(&self) -> Option<Recorder<Background>> {
        let recorder = self.adjust(Worker::detach_capture).flatten();
        self.read_facts();
        recorder
    }

    /// Passes future events to `sink`. The thread that runs the worker calls it: it must be short and must not use the
    /// device. Returns false if a sink is already set.
    pub fn set_event_sink(&self, sink: EventSink) -> bool {
        self.adjust(|worker| worker.set_event_sink(sink)).unwrap_or(false)
    }

    /// True if a pass panicked. The worker then runs no more, and posts and commands fail.
    pub fn is_dead(&self) -> bool {
        self.shared.is_dead()
    }

    /// Executes a command and blocks until its answer.
    ///
    /// # Errors
    /// The errors of the command; [`ControlError::DeviceFatal`] if the engine is dead.
    pub fn call(&self, command: impl Into<Command>) -> Result<Answer, ControlError> {
        let (answer, answered) = bounded(1);
        self.submit(Request::Command { command: command.into().prepare()?, answer })?;
        self.doorbells.wake_if_sleeping();
        loop {
            match answered.try_recv() {
                Ok(answer) => return answer.result,
                Err(TryRecvError::Disconnected) => return Err(ControlError::DeviceFatal),
                Err(TryRecvError::Empty) if self.is_dead() => return Err(ControlError::DeviceFatal),
                Err(TryRecvError::Empty) => {}
            }
            if !self.caller_drives && self.thread.is_some() {
                // The engine thread answers soon. Wake up now and then to check that the engine is not dead.
                if let Ok(answer) = answered.recv_timeout(Nanos(WaitPolicy::LONGEST_SLEEP_NS).as_duration()) {
                    return answer.result;
                }
            } else if let Ok(mut worker) = self.shared.lock_between() {
                let now = self.now();
                worker.take_in(now);
                self.shared.send_out(&mut worker, now);
                self.shared.wake_if_needed(&worker, false);
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

    /// Returns the next asynchronous event, if any.
    pub fn event(&self) -> Option<AsyncEvent> {
        self.events.try_recv().ok()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Ok(mut worker) = self.shared.lock_between() {
            let now = self.now();
            self.shared.send_deferred_acks(&mut worker, now);
        }
        self.shared.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            // Ends any kind of sleep.
            self.shared.wake_engine_thread();
            let _ = thread.join();
        }
    }
}
