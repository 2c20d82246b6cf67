//! Who turns the worker: the caller, a thread of its own, or a fallback thread.
//!
//! On few cores the caller is best: an application that polls for completions runs a pass itself, and there is no
//! hand-off between threads. A fallback thread takes over when nobody has polled for a while, so that a peer is
//! answered while the application computes or sleeps. On many cores a pinned thread spins, then sleeps.
//!
//! Sleeping loses no wake-up: [`Worker::prepare_sleep`] first makes every ring of a doorbell write an eventfd, then
//! looks once more.

pub mod control;
pub mod worker;

pub use control::Request;
pub use worker::{Progress, Worker};

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::nic::{Answer, Command, ControlError, Nic, NicConfig};
use crate::port::Port;
use crate::shared::Doorbells;
use crate::time::{Clock, Nanos};
use crate::verbs::AsyncEvent;

/// Asynchronous events that may wait for the application.
const EVENT_QUEUE: usize = 4096;
/// Commands that may wait for the worker.
const COMMAND_QUEUE: usize = 64;
/// The longest sleep: a bound on how late a missed wake-up of the kernel's could be noticed.
const LONGEST_SLEEP: Nanos = Nanos::from_millis(100);

/// Who turns the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// The caller's polls; a fallback thread while there are none.
    Caller {
        /// How long nobody must have polled before the fallback thread takes over.
        fallback_after: Nanos,
    },
    /// Nobody but the caller: for tests, benchmarks and virtual time.
    CallerOnly,
    /// A thread of its own, pinned to a core if one is named, that sleeps after `spin` without work.
    Thread {
        /// Which core.
        core: Option<usize>,
        /// How long it spins; `Nanos::MAX`: for ever.
        spin: Nanos,
    },
}

impl Default for Drive {
    fn default() -> Drive {
        Drive::Caller { fallback_after: Nanos::from_millis(2) }
    }
}

/// What callers and threads share.
#[derive(Debug)]
struct Shared {
    worker: Mutex<Worker>,
    clock: Clock,
    /// When a caller last ran a pass.
    last_caller_pass: AtomicU64,
    /// The last caller's pass took in and did not send.
    owes_sending: AtomicBool,
    stop: AtomicBool,
    /// How many wait for the worker besides the thread that turns it: a thread that spins on the lock lets them in.
    waiting: AtomicU32,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Worker> {
        // A panic in a pass is a bug of ours; the state it left is no worse for the next pass than a stop would be.
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, for those who do not turn the worker in a loop.
    fn lock_between(&self) -> MutexGuard<'_, Worker> {
        self.waiting.fetch_add(1, Relaxed);
        let guard = self.lock();
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }

    /// The lock, for a thread that takes it again and again.
    fn lock_in_turn(&self) -> MutexGuard<'_, Worker> {
        while self.waiting.load(Relaxed) > 0 && !self.stop.load(Relaxed) {
            thread::yield_now();
        }
        self.lock()
    }

    /// Before anything is taken away: a caller that ends after its last completion, destroying its QP, must not keep
    /// the acknowledgement of that very message from its peer.
    fn send_what_is_owed(&self, worker: &mut Worker, now: Nanos) {
        if self.owes_sending.swap(false, Relaxed) {
            worker.send_out(now);
        }
    }
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
    pub fn start(config: NicConfig, port: Box<dyn Port>, drive: Drive) -> io::Result<Engine> {
        let doorbells = Doorbells::new(config.limits.qps)?;
        let (requests, request_queue) = bounded(COMMAND_QUEUE);
        let (event_sender, events) = bounded(EVENT_QUEUE);
        let worker = Worker::new(Nic::new(config), port, doorbells.clone(), request_queue, event_sender);
        let shared = Arc::new(Shared {
            worker: Mutex::new(worker),
            clock: Clock::new(),
            last_caller_pass: AtomicU64::new(0),
            owes_sending: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
        });
        let thread = match drive {
            Drive::CallerOnly => None,
            _ => Some(spawn(Arc::clone(&shared), drive)?),
        };
        let caller_drives = !matches!(drive, Drive::Thread { .. });
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
    /// A pass that brings something ends there: the caller has what it polls for, a completion or bytes in memory, and what
    /// it posts because of it leaves together with the acknowledgements, in one kick of the port. The next call sends at the
    /// latest.
    pub fn help(&self) -> Progress {
        if !self.caller_drives {
            return Progress::default();
        }
        let Ok(mut worker) = self.shared.worker.try_lock() else { return Progress::default() };
        let now = self.now();
        self.shared.last_caller_pass.store(now.0, Relaxed);
        let came = worker.take_in(now);
        let owes = came.received > 0 && !self.shared.owes_sending.load(Relaxed);
        self.shared.owes_sending.store(owes, Relaxed);
        if owes {
            return Progress { more: true, ..came };
        }
        let left = worker.send_out(now);
        Progress { sent: left.sent, more: came.more || left.more, ..came }
    }

    /// Carries a command out and waits for the answer.
    ///
    /// # Panics
    /// If the engine's thread has died.
    pub fn call(&self, command: Command) -> Result<Answer, ControlError> {
        let (answer, answered) = bounded(1);
        self.requests.send(Request { command, answer }).expect("the worker outlives the engine");
        self.doorbells.wake_if_sleeping();
        loop {
            if let Ok(answer) = answered.try_recv() {
                return answer;
            }
            if self.caller_drives {
                let now = self.now();
                let mut worker = self.shared.lock_between();
                self.shared.send_what_is_owed(&mut worker, now);
                worker.poll(now);
            } else if let Ok(answer) = answered.recv_timeout(Duration::from_secs(10)) {
                return answer;
            } else {
                assert!(
                    self.thread.as_ref().is_some_and(|t| !t.is_finished()),
                    "the engine's thread has died"
                );
            }
        }
    }

    /// The next asynchronous event, if one waits.
    pub fn event(&self) -> Option<AsyncEvent> {
        self.events.try_recv().ok()
    }

    /// Looks at the worker between two passes.
    pub fn inspect<T>(&self, look: impl FnOnce(&Worker) -> T) -> T {
        look(&self.shared.lock_between())
    }

    /// Changes the worker between two passes.
    pub fn adjust<T>(&self, change: impl FnOnce(&mut Worker) -> T) -> T {
        change(&mut self.shared.lock_between())
    }

    /// Why the link failed, if it did; said once.
    pub fn take_link_error(&self) -> Option<io::Error> {
        self.shared.lock_between().take_link_error()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let now = self.now();
        self.shared.send_what_is_owed(&mut self.shared.lock_between(), now);
        self.shared.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            // Written whether it sleeps or not.
            let _ = self.doorbells.wake_fd().write(1);
            let _ = thread.join();
        }
    }
}

fn spawn(shared: Arc<Shared>, drive: Drive) -> io::Result<JoinHandle<()>> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    {
        let worker = shared.lock();
        let wake = worker.doorbells().wake_fd().as_fd();
        for fd in worker.port().event_fds().into_iter().chain([wake]) {
            epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, fd.as_raw_fd() as u64))?;
        }
    }
    thread::Builder::new().name("roxie-worker".into()).spawn(move || match drive {
        Drive::Caller { fallback_after } => fall_back(&shared, &epoll, fallback_after),
        Drive::Thread { core, spin } => {
            if let Some(id) = core {
                core_affinity::set_for_current(core_affinity::CoreId { id });
            }
            spin_then_sleep(&shared, &epoll, spin);
        }
        Drive::CallerOnly => {}
    })
}

/// The loop of a thread that owns its worker.
fn spin_then_sleep(shared: &Shared, epoll: &Epoll, spin: Nanos) {
    let mut busy_at = shared.clock.now();
    while !shared.stop.load(Acquire) {
        let now = shared.clock.now();
        let mut worker = shared.lock_in_turn();
        if !worker.poll(now).is_idle() {
            busy_at = now;
        } else if now - busy_at > spin {
            sleep(shared, epoll, worker);
            busy_at = shared.clock.now();
        }
    }
}

/// The loop of a thread that only works while callers do not.
fn fall_back(shared: &Shared, epoll: &Epoll, after: Nanos) {
    while !shared.stop.load(Acquire) {
        let now = shared.clock.now();
        if now - Nanos(shared.last_caller_pass.load(Relaxed)) < after {
            thread::sleep(after.as_duration());
            continue;
        }
        let mut worker = shared.lock_in_turn();
        if worker.poll(now).is_idle() {
            sleep(shared, epoll, worker);
        }
    }
}

/// Sleeps until a frame, a doorbell, a command or a timer. The lock is free meanwhile.
fn sleep(shared: &Shared, epoll: &Epoll, mut worker: MutexGuard<'_, Worker>) {
    if !worker.prepare_sleep() {
        return;
    }
    let until = worker.next_deadline() - shared.clock.now();
    drop(worker);
    let timeout = until.min(LONGEST_SLEEP).0.div_ceil(1_000_000);
    let timeout = EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::ZERO);
    let mut events = [EpollEvent::empty(); 8];
    // An interrupted or failed wait is a short one: the next pass looks at everything anyway.
    let _ = epoll.wait(&mut events, timeout);
    shared.lock().sleep_ends();
}
