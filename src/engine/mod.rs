//! Who turns the worker: the caller, a thread of its own, or a fallback thread.
//!
//! On few cores the caller is best: an application that polls for completions runs a pass itself, and there is no
//! hand-off between threads. A fallback thread takes over when nobody has polled for a while, so that a peer is
//! answered while the application computes or sleeps. On many cores a pinned thread spins, then sleeps.
//!
//! Sleeping loses no wake-up: [`Worker::prepare_sleep`] first makes every ring of a doorbell write an eventfd, then
//! looks once more. While the thread sleeps, a caller's pass may take what would have woken it (a socket that was
//! read is no longer readable) and leave something behind: an acknowledgement that is owed, a timer. Such a pass
//! wakes the thread, once.
//!
//! A pass that panics is a bug of ours, and what it leaves is not to be trusted. The engine is dead then: whoever
//! waits is woken, an event says so, and posts and commands fail instead of waiting.

pub mod control;
pub mod worker;

pub use control::Request;
pub use worker::{EventSink, Progress, Worker};

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TryRecvError, bounded};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::nic::{Answer, Command, ControlError, Nic, NicConfig};
use crate::port::Port;
use crate::shared::Doorbells;
use crate::threads::spawn_unsignalled;
use crate::time::{Clock, Nanos};
use crate::verbs::AsyncEvent;

/// Asynchronous events that may wait for the application.
const EVENT_QUEUE: usize = 4096;
/// Commands that may wait for the worker.
const COMMAND_QUEUE: usize = 64;
/// The longest sleep: a bound on how late a missed wake-up of the kernel's could be noticed.
const LONGEST_SLEEP: Nanos = Nanos::from_millis(100);
/// How long a caller that took something in may be away before the fallback thread sends what is owed for it.
const OWED_GRACE: Nanos = Nanos::from_micros(100);
/// How long the fallback thread goes on looking after it had something to do. The next burst of a peer that writes comes within
/// this time; to sleep between the bursts costs a third of the bandwidth over AF_XDP.
const LINGER: Nanos = Nanos::from_micros(50);
/// How long a pass of the thread takes that has been woken, about.
const A_MOMENT: Duration = Duration::from_micros(20);
/// No deadline: the thread is awake.
const AWAKE: u64 = 0;

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
    /// When the thread will wake by itself; [`AWAKE`]: it does not sleep. Changes only under the worker's lock.
    asleep_until: AtomicU64,
    stop: AtomicBool,
    /// A pass panicked: nobody turns the worker any more.
    dead: AtomicBool,
    /// What wakes the thread: the bell, and the port's descriptors.
    epoll: Epoll,
    /// How many wait for the worker besides the thread that turns it: a thread that spins on the lock lets them in.
    waiting: AtomicU32,
}

/// The engine is dead: a pass panicked.
#[derive(Debug)]
struct Dead;

impl Shared {
    /// The worker, to turn it.
    fn lock(&self) -> Result<MutexGuard<'_, Worker>, Dead> {
        self.worker.lock().map_err(|poisoned| self.declare_dead(&mut poisoned.into_inner()))
    }

    /// The worker, to look at what is left of it in any case.
    fn lock_to_look(&self) -> MutexGuard<'_, Worker> {
        self.waiting.fetch_add(1, Relaxed);
        let guard = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }

    /// The lock, for those who do not turn the worker in a loop.
    fn lock_between(&self) -> Result<MutexGuard<'_, Worker>, Dead> {
        self.waiting.fetch_add(1, Relaxed);
        let guard = self.lock();
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }

    /// The lock, for a thread that takes it again and again.
    fn lock_in_turn(&self) -> Result<MutexGuard<'_, Worker>, Dead> {
        while self.waiting.load(Relaxed) > 0 && !self.stop.load(Relaxed) {
            thread::yield_now();
        }
        self.lock()
    }

    /// A pass has panicked. Tells everybody, the first time.
    fn declare_dead(&self, worker: &mut Worker) -> Dead {
        if !self.dead.swap(true, Relaxed) {
            worker.die();
        }
        Dead
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// A whole pass; nothing is owed after it.
    fn turn(&self, worker: &mut Worker, now: Nanos) -> Progress {
        self.owes_sending.store(false, Relaxed);
        worker.poll(now)
    }

    /// Before anything is taken away: a caller that ends after its last completion, destroying its QP, must not keep
    /// the acknowledgement of that very message from its peer.
    fn send_what_is_owed(&self, worker: &mut Worker, now: Nanos) {
        if self.owes_sending.swap(false, Relaxed) {
            worker.send_out(now);
        }
    }

    /// After a caller's pass that did something: wakes the thread if it sleeps and has reason to come earlier than it will.
    fn rouse(&self, worker: &mut Worker) {
        let until = self.asleep_until.load(Relaxed);
        if until == AWAKE {
            return;
        }
        let owes = self.owes_sending.load(Relaxed);
        if owes || worker.next_deadline().0 < until || !worker.is_quiet() {
            // Once for each sleep: from here on it counts as awake.
            self.asleep_until.store(AWAKE, Relaxed);
            // The counter can only be full if a wake-up is pending anyway.
            let _ = worker.doorbells().wake_fd().write(1);
        }
    }
}

/// Held by a thread that turns the worker: if it unwinds, the engine is dead.
struct Obituary(Arc<Shared>);

impl Drop for Obituary {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.declare_dead(&mut self.0.lock_to_look());
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
        Engine::start_on(config, port, drive, doorbells)
    }

    /// The same with doorbells that are there already, made for as many QPs as the NIC has: another process may ring them.
    pub fn start_on(
        config: NicConfig,
        port: Box<dyn Port>,
        drive: Drive,
        doorbells: Doorbells,
    ) -> io::Result<Engine> {
        let (requests, request_queue) = bounded(COMMAND_QUEUE);
        let (event_sender, events) = bounded(EVENT_QUEUE);
        let worker = Worker::new(Nic::new(config), port, doorbells.clone(), request_queue, event_sender);
        let shared = Arc::new(Shared {
            worker: Mutex::new(worker),
            clock: Clock::new(),
            last_caller_pass: AtomicU64::new(0),
            owes_sending: AtomicBool::new(false),
            asleep_until: AtomicU64::new(AWAKE),
            dead: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            waiting: AtomicU32::new(0),
        });
        shared.epoll.add(doorbells.wake_fd(), EpollEvent::new(EpollFlags::EPOLLIN, u64::MAX))?;
        watch_port(&shared.epoll, shared.lock_to_look().port())?;
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
        let mut worker = match self.shared.worker.try_lock() {
            Ok(worker) => worker,
            Err(TryLockError::WouldBlock) => {
                // If it is the fallback thread: it leaves the worker to a caller who polls.
                self.shared.last_caller_pass.store(self.now().0, Relaxed);
                return Progress::default();
            }
            Err(TryLockError::Poisoned(poisoned)) => {
                self.shared.declare_dead(&mut poisoned.into_inner());
                return Progress::default();
            }
        };
        let now = self.now();
        self.shared.last_caller_pass.store(now.0, Relaxed);
        let came = worker.take_in(now);
        let owes = came.received > 0 && !self.shared.owes_sending.load(Relaxed);
        self.shared.owes_sending.store(owes, Relaxed);
        if owes {
            self.shared.rouse(&mut worker);
            return Progress { more: true, ..came };
        }
        let left = worker.send_out(now);
        let progress = Progress { sent: left.sent, more: came.more || left.more, ..came };
        if !progress.is_idle() {
            self.shared.rouse(&mut worker);
        }
        progress
    }

    /// True if callers drive this engine and the last pass ended with what it brought: what leaves because of it is not sent yet.
    pub fn owes(&self) -> bool {
        self.caller_drives && self.shared.owes_sending.load(Relaxed)
    }

    /// The caller has posted what may be its answer to what the last pass brought, and the last thing that it does for long: it
    /// leaves now, with the acknowledgements.
    pub fn posted(&self) {
        // Whoever has the worker sends after this, or sees to it that somebody does.
        if let Ok(mut worker) = self.shared.worker.try_lock() {
            let now = self.now();
            self.shared.last_caller_pass.store(now.0, Relaxed);
            self.shared.send_what_is_owed(&mut worker, now);
            self.shared.rouse(&mut worker);
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
                    // It can only be full if a wake-up is pending anyway.
                    let _ = self.doorbells.wake_fd().write(1);
                }
                _ => {}
            }
            thread::sleep(A_MOMENT);
        }
    }

    /// True if nothing is left to send; `None` if somebody has the worker. Sends, where no thread does.
    fn try_to_send_last(&self) -> Option<bool> {
        // A thread that takes it again and again lets this one in, and goes on afterwards.
        self.shared.waiting.fetch_add(1, Relaxed);
        let worker = self.shared.worker.try_lock();
        self.shared.waiting.fetch_sub(1, Relaxed);
        let mut worker = worker.ok()?;
        let is_left = |worker: &Worker| {
            let owes = self.shared.owes_sending.load(Relaxed);
            owes || worker.doorbells().any() || worker.nic().has_ready()
        };
        if is_left(&worker) && self.thread.is_none() {
            self.shared.owes_sending.store(false, Relaxed);
            worker.send_out(self.now());
        }
        Some(!is_left(&worker))
    }

    /// The caller is about to wait for something and will not poll meanwhile: the fallback thread takes over at once.
    pub fn step_aside(&self) {
        if let (true, Some(thread)) = (self.caller_drives, &self.thread) {
            self.shared.last_caller_pass.store(0, Relaxed);
            thread.thread().unpark();
        }
    }

    /// Puts another port under the NIC, and takes over what it carries. The one before must have carried nothing yet.
    ///
    /// # Errors
    /// If the thread cannot wait for its frames, or the engine is dead; the port is closed again.
    pub fn set_port(&self, port: Box<dyn Port>) -> io::Result<()> {
        watch_port(&self.shared.epoll, &*port)?;
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
    pub fn call(&self, command: Command) -> Result<Answer, ControlError> {
        let (answer, answered) = bounded(1);
        self.submit(Request { command, answer })?;
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
                if let Ok(answer) = answered.recv_timeout(LONGEST_SLEEP.as_duration()) {
                    return answer;
                }
            } else if let Ok(mut worker) = self.shared.lock_between() {
                let now = self.now();
                // What was posted before the command leaves before it: it may be to destroy the QP.
                worker.send_out(now);
                self.shared.turn(&mut worker, now);
                self.shared.rouse(&mut worker);
            }
        }
    }

    fn submit(&self, mut request: Request) -> Result<(), ControlError> {
        while !self.is_dead() {
            match self.requests.send_timeout(request, LONGEST_SLEEP.as_duration()) {
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
        self.shared.rouse(&mut worker);
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
            // However it waits: in epoll, whether that began already or not, or in a nap.
            let _ = self.doorbells.wake_fd().write(1);
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Has `epoll` wait for what comes to a port as well.
fn watch_port(epoll: &Epoll, port: &dyn Port) -> io::Result<()> {
    for fd in port.event_fds() {
        epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, fd.as_raw_fd() as u64))?;
    }
    Ok(())
}

fn spawn(shared: Arc<Shared>, drive: Drive) -> io::Result<JoinHandle<()>> {
    spawn_unsignalled("roxie-worker", move || {
        let _obituary = Obituary(Arc::clone(&shared));
        let _dead = match drive {
            Drive::Caller { fallback_after } => fall_back(&shared, fallback_after),
            Drive::Thread { core, spin } => {
                if let Some(id) = core
                    && !core_affinity::set_for_current(core_affinity::CoreId { id })
                {
                    eprintln!(
                        "roxie: the engine's thread cannot be pinned to core {id}, it runs on any: is the core online \
                         and allowed (`taskset -p {}`, cpuset of the container)?",
                        std::process::id()
                    );
                }
                spin_then_sleep(&shared, spin)
            }
            Drive::CallerOnly => Ok(()),
        };
    })
}

/// The loop of a thread that owns its worker.
fn spin_then_sleep(shared: &Shared, spin: Nanos) -> Result<(), Dead> {
    let mut busy_at = shared.clock.now();
    while !shared.stop.load(Acquire) {
        let now = shared.clock.now();
        let mut worker = shared.lock_in_turn()?;
        if !worker.poll(now).is_idle() {
            busy_at = now;
        } else if now - busy_at > spin {
            sleep(shared, worker)?;
            busy_at = shared.clock.now();
        }
    }
    Ok(())
}

/// The loop of a thread that only works while callers do not.
fn fall_back(shared: &Shared, after: Nanos) -> Result<(), Dead> {
    let (mut hurried, mut busy_at) = (false, Nanos::ZERO);
    while !shared.stop.load(Acquire) {
        let now = shared.clock.now();
        let away = now - Nanos(shared.last_caller_pass.load(Relaxed));
        let owes = shared.owes_sending.load(Relaxed);
        let patience = if owes && !hurried { OWED_GRACE.min(after) } else { after };
        if away < patience {
            // One short nap to see whether a caller that owes comes back; one who does is left alone for longer.
            hurried = owes && !hurried;
            thread::park_timeout((patience - away).as_duration());
            continue;
        }
        hurried = false;
        let mut worker = shared.lock_in_turn()?;
        if !shared.turn(&mut worker, now).is_idle() {
            busy_at = now;
        } else if now - busy_at > LINGER {
            sleep(shared, worker)?;
        }
    }
    Ok(())
}

/// Sleeps until a frame, a doorbell, a command, a timer or a caller's pass that leaves something. The lock is free
/// meanwhile.
fn sleep(shared: &Shared, mut worker: MutexGuard<'_, Worker>) -> Result<(), Dead> {
    if !worker.prepare_sleep() {
        return Ok(());
    }
    let now = shared.clock.now();
    let until = worker.next_deadline().min(now + LONGEST_SLEEP);
    shared.asleep_until.store(until.0.max(AWAKE + 1), Relaxed);
    drop(worker);
    let timeout = EpollTimeout::try_from((until - now).0.div_ceil(1_000_000)).unwrap_or(EpollTimeout::ZERO);
    let mut events = [EpollEvent::empty(); 8];
    // An interrupted or failed wait is a short one: the next pass looks at everything anyway.
    let _ = shared.epoll.wait(&mut events, timeout);
    let worker = shared.lock()?;
    shared.asleep_until.store(AWAKE, Relaxed);
    worker.sleep_ends();
    Ok(())
}
