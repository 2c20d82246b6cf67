//! The workers of a device: one engine for each, which share nothing on the data path.
//!
//! A QP belongs to one worker, which its QPN's unit and its index name. Protection domains, registered memory,
//! completion queues and address handles, shared receive queues and XRC domains exist at every worker under one name:
//! each worker executes the same commands about them in the same order. A completion queue takes completions from all
//! of them ([`CompletionRing`](roxie_nic::shared::CompletionRing)), a shared receive queue gives receives to all
//! ([`SharedReceives`](roxie_nic::shared::SharedReceives)).
//!
//! QP1 belongs to the first worker. Objects whose keys change on the data path (memory windows, fast-registered
//! regions), raw packet QPs, and queues that change their size are refused on several workers.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roxie_base::time::{Clock, Nanos};
use roxie_nic::nic::{Answer, Command, ControlError, MemoryCommand, Nic, NicConfig, Object, QpStatus};
use roxie_nic::shared::{CompletionRing, Doorbells, HostMemory, Region};
use roxie_nic::verbs::{AsyncEvent, CqIndex, Mtu, OpenXrcd, PdId, QpIndex, QpInit, QpType, SrqKind};
use roxie_port::{Port, PortInfo};

use super::siblings::{Shares, Siblings};
use super::{Adapter, Drive, Engine, EventSink, Progress, Wait, WaitSet};

/// Base-2 logarithm of the QPs of one of several workers: as many as a unit of QPNs has.
const QP_BITS: u32 = 12;
/// Maximum number of workers: a QP's index has 16 bits.
pub const MAX_WORKERS: usize = 16;

/// Slots of a worker's tables that are read between two passes: few hold an object, and each piece is a round trip to a
/// thread.
const PIECE: u32 = 8192;

/// The workers of a device. There is at least one.
#[derive(Debug)]
pub struct Workers {
    engines: Box<[Engine]>,
    shares: Arc<Shares>,
    /// Locked for a command to several workers. The worker of the next QP.
    next: Mutex<usize>,
}

impl Workers {
    /// Starts a worker on each port. Worker `n` is pinned to `cores[n]`, if `drive` is a thread and there is such a
    /// core.
    ///
    /// # Errors
    /// If the system is out of memory, descriptors or threads. If there is no port or there are more than
    /// [`MAX_WORKERS`], or if calls of the application are to run several workers next to threads ([`Drive::Caller`]).
    pub fn start(
        config: NicConfig,
        ports: Vec<Box<dyn Port>>,
        drive: Drive,
        cores: &[usize],
    ) -> io::Result<Workers> {
        let invalid = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let count = ports.len();
        if count == 0 || count > MAX_WORKERS {
            return invalid(format!("{count} workers, of 1 to {MAX_WORKERS}"));
        }
        if count > 1 && drive == Drive::Caller {
            return invalid(
                "several workers run on threads of their own, not in calls of the application".into(),
            );
        }
        let clock = Clock::new();
        let longest = ports.iter().map(|port| port.info().max_frame).max().unwrap_or_default();
        let bells = (0..count).map(|_| Doorbells::new(config.limits.qps)).collect::<io::Result<Vec<_>>>()?;
        let start = |(worker, port): (usize, Box<dyn Port>)| {
            let drive = match (drive, cores.get(worker)) {
                (Drive::Thread { spin, .. }, Some(core)) => Drive::Thread { core: Some(*core), spin },
                _ => drive,
            };
            Engine::start_on(config, port, drive, bells[worker].clone(), clock)
        };
        let engines: Box<[Engine]> = ports.into_iter().enumerate().map(start).collect::<io::Result<_>>()?;
        let workers = Workers { engines, shares: Arc::new(Shares::new()), next: Mutex::new(0) };
        if count > 1 {
            let siblings = Siblings::of(&bells, &workers.shares, longest);
            for (engine, siblings) in workers.engines.iter().zip(siblings) {
                engine.adjust(|worker| worker.join(siblings));
            }
        }
        Ok(workers)
    }

    /// Allocates the QPNs of worker `n` from `units[n]`. Several workers need units before their first QP.
    ///
    /// # Errors
    /// If a worker has QPs without a unit, or is dead.
    pub fn take_units(&self, units: impl IntoIterator<Item = u8>) -> Result<(), ControlError> {
        for ((worker, engine), unit) in (0..).zip(&self.engines).zip(units) {
            self.shares.set(unit, worker);
            engine.call(Command::AddQpnUnit(unit))?;
        }
        Ok(())
    }

    /// Replaces the ports, one for each worker: see [`Engine::set_port`]. `are_copied`: each port gets all frames that
    /// are for no single QP, datagrams to groups and MAC control frames; else one of the ports gets them.
    ///
    /// # Errors
    /// The errors of [`Engine::set_port`].
    pub fn set_ports(
        &self,
        ports: impl IntoIterator<Item = Box<dyn Port>>,
        are_copied: bool,
    ) -> io::Result<()> {
        self.shares.set_copied(are_copied);
        self.engines.iter().zip(ports).try_for_each(|(engine, port)| engine.set_port(port))
    }

    /// The first worker's engine.
    pub fn first(&self) -> &Engine {
        &self.engines[0]
    }

    /// All workers' engines.
    pub fn all(&self) -> &[Engine] {
        &self.engines
    }

    fn is_one(&self) -> bool {
        self.engines.len() == 1
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the worker of a QP, and the QP's index there.
    fn at(&self, qp: QpIndex) -> (&Engine, QpIndex) {
        if self.is_one() {
            return (&self.engines[0], qp);
        }
        let worker = (qp.place() >> QP_BITS) as usize;
        // An index that no worker has given is none of the first's.
        (self.engines.get(worker).unwrap_or(&self.engines[0]), QpIndex(qp.0 - ((worker as u32) << QP_BITS)))
    }

    fn call_several(&self, mut command: Command) -> Result<Answer, ControlError> {
        let mut next = self.lock();
        if let Some(qp) = command.qp_mut() {
            let place = qp.place() >> QP_BITS;
            let (engine, here) = self.at(*qp);
            *qp = here;
            return engine.call(command).map(|answer| of_device(place, answer));
        }
        let copies: Option<Vec<Command>> = self.engines[1..].iter().map(|_| command.for_sibling()).collect();
        if let Some(copies) = copies {
            return self.call_all(command, copies);
        }
        match command {
            Command::ListQps => {
                let mut all = Vec::new();
                for (worker, engine) in (0..).zip(&self.engines) {
                    if let Answer::Qps(qps) = of_device(worker, engine.call(Command::ListQps)?) {
                        all.extend(qps);
                    }
                }
                Ok(Answer::Qps(all))
            }
            Command::Memory(command) => match *command {
                MemoryCommand::CreateQp { init: QpInit { qp_type: QpType::RawPacket, .. }, .. } => refused(),
                MemoryCommand::CreateQp { init, .. } => {
                    self.create_qp(&mut next, init.qp_type == QpType::Gsi, (*command).into())
                }
                MemoryCommand::CreateSrq { pd, init, .. } => self.create_srq(pd, init.kind, *command),
                MemoryCommand::AllocFastMemory { .. } | MemoryCommand::ResizeCq { .. } => refused(),
                other => self.engines[0].call(other),
            },
            Command::CreateXrcTarget(_) => self.create_qp(&mut next, false, command),
            Command::AllocWindow { .. } => refused(),
            other => self.engines[0].call(other),
        }
    }

    /// Makes a QP at the next worker, or at the first.
    fn create_qp(&self, next: &mut usize, is_firsts: bool, command: Command) -> Result<Answer, ControlError> {
        let worker = if is_firsts { 0 } else { *next };
        let made = self.engines[worker].call(command)?;
        if !is_firsts {
            *next = (worker + 1) % self.engines.len();
        }
        Ok(of_device(worker as u32, made))
    }

    /// Makes a shared receive queue whose receives all workers take.
    fn create_srq(&self, pd: PdId, kind: SrqKind, command: MemoryCommand) -> Result<Answer, ControlError> {
        let answer = self.engines[0].call(command)?;
        let Answer::Srq(srq, _) = answer else { return Ok(answer) };
        let Some(receives) = self.engines[0].inspect(move |worker| worker.nic().shared_receives(srq)) else {
            return Err(ControlError::DeviceFatal);
        };
        let join = || Command::JoinSrq(pd, kind, Arc::clone(&receives));
        let copies = self.engines[1..].iter().map(|_| join()).collect();
        self.call_siblings(&answer, copies)?;
        Ok(answer)
    }

    /// Executes a command at every worker; `copies` are the siblings'. Objects of all have one name, because all
    /// execute the same commands in the same order.
    fn call_all(&self, command: Command, copies: Vec<Command>) -> Result<Answer, ControlError> {
        if let Some(object) = command.takes_away() {
            for engine in &self.engines {
                engine.inspect(move |worker| worker.nic().check_unused(object))?;
            }
        }
        let answer = self.engines[0].call(command)?;
        self.call_siblings(&answer, copies)?;
        Ok(answer)
    }

    /// Executes a command at all workers but the first. `answer`: the first's.
    fn call_siblings(&self, answer: &Answer, copies: Vec<Command>) -> Result<(), ControlError> {
        for (engine, command) in self.engines[1..].iter().zip(copies) {
            let other = engine.call(command)?;
            debug_assert_eq!(other.made(), answer.made(), "workers name an object alike");
        }
        Ok(())
    }

    /// Returns the names of all QPs, memory regions and memory windows.
    pub fn names(&self) -> Vec<Object> {
        let mut names = names_of(&self.engines[0]);
        for (worker, engine) in (1..).zip(&self.engines[1..]) {
            // Each worker has the same memory.
            names.extend(names_of(engine).into_iter().filter_map(|name| match name {
                Object::Qp(qp) => Some(Object::Qp(qp_of_device(worker, qp))),
                _ => None,
            }));
        }
        names
    }

    /// Returns the statuses of some QPs as of their last packets, without those that do not exist. Neighbours of the
    /// same worker are read between two of its passes.
    pub fn qp_statuses(&self, qps: &[QpIndex]) -> Vec<QpStatus> {
        if self.is_one() {
            let qps = qps.to_vec();
            return self.engines[0].inspect(move |worker| statuses(worker.nic(), qps));
        }
        let of_worker = |same: &[QpIndex]| {
            let (worker, (engine, _)) = (same[0].place() >> QP_BITS, self.at(same[0]));
            let local = same.iter().map(|qp| self.at(*qp).1).collect();
            let mut read = engine.inspect(move |worker| statuses(worker.nic(), local));
            read.iter_mut().for_each(|qp| qp.handle.index = qp_of_device(worker, qp.handle.index));
            read
        };
        qps.chunk_by(|a, b| a.place() >> QP_BITS == b.place() >> QP_BITS).flat_map(of_worker).collect()
    }
}

impl Adapter for Workers {
    /// Executes a command at the workers that it concerns. [`ControlError::WrongKind`] if several workers do not have
    /// the object.
    fn call(&self, command: Command) -> Result<Answer, ControlError> {
        if self.is_one() { self.engines[0].call(command) } else { self.call_several(command) }
    }

    fn open_xrcd(&self, open: OpenXrcd, _file: Option<BorrowedFd<'_>>) -> Result<Answer, ControlError> {
        self.call(Command::OpenXrcd(open))
    }

    fn region(&self, words: usize) -> io::Result<Arc<Region>> {
        Region::new(words)
    }

    fn memory(&self, length: usize) -> io::Result<HostMemory> {
        HostMemory::allocate(length)
    }

    fn ring_doorbell(&self, qp: QpIndex, outstanding: u32, posts: u32) {
        let (engine, qp) = self.at(qp);
        engine.ring_doorbell(qp, outstanding, posts);
    }

    fn ring_for_receive(&self, qp: QpIndex) {
        let (engine, qp) = self.at(qp);
        engine.doorbells().ring(qp);
    }

    /// Runs a pass of each worker that callers drive.
    fn caller_pass(&self) -> Progress {
        let passes = self.engines.iter().map(Engine::caller_pass);
        passes.reduce(|all, one| all.plus(&one)).unwrap_or_default()
    }

    fn after_empty_poll(&self, _: CqIndex, has_come: &dyn Fn() -> bool, _: &dyn Fn() -> CompletionRing) {
        for engine in &self.engines {
            engine.caller_pass_until(has_come);
        }
    }

    fn now(&self) -> Nanos {
        self.engines[0].now()
    }

    fn is_dead(&self) -> bool {
        self.engines.iter().any(Engine::is_dead)
    }

    fn set_event_sink(&self, sink: EventSink) -> bool {
        if self.is_one() {
            return self.engines[0].set_event_sink(sink);
        }
        let sink = Arc::new(Mutex::new(sink));
        let set = |(worker, engine): (u32, &Engine)| {
            let sink = Arc::clone(&sink);
            engine.set_event_sink(Box::new(move |event| {
                sink.lock().unwrap_or_else(PoisonError::into_inner)(event_of_device(worker, event));
            }))
        };
        (0..).zip(&self.engines).all(set)
    }

    fn event(&self) -> Option<AsyncEvent> {
        let of =
            |(worker, engine): (u32, &Engine)| engine.event().map(|event| event_of_device(worker, event));
        (0..).zip(&self.engines).find_map(of)
    }

    fn raise(&self, event: AsyncEvent) {
        self.engines[0].adjust(move |worker| worker.raise(event));
    }

    fn port(&self) -> PortInfo {
        self.engines[0].port()
    }

    fn largest_mtu(&self) -> Mtu {
        self.engines[0].largest_mtu()
    }

    /// Returns the counters of all workers, summed up by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sum = self.engines[0].inspect(super::Worker::counters);
        for engine in &self.engines[1..] {
            for ((name, sum), (other, value)) in sum.iter_mut().zip(engine.inspect(super::Worker::counters)) {
                debug_assert_eq!(*name, other, "workers have the same counters");
                *sum += value;
            }
        }
        sum
    }

    fn workers(&self) -> Option<&Workers> {
        Some(self)
    }

    fn armed(&self, set: &WaitSet) {
        self.engines[0].armed(set);
    }

    fn begin_wait(&self, set: &WaitSet) -> Wait {
        self.engines[0].begin_wait(set)
    }

    fn end_wait(&self, rang: bool) {
        self.engines[0].end_wait(rang);
    }

    fn step_aside(&self) {
        self.engines[0].step_aside();
    }

    fn send_last(&self, limit: Duration) {
        self.engines.iter().for_each(|engine| engine.send_last(limit));
    }
}

/// Returns the names of a worker's QPs, memory regions and memory windows, in pieces between passes.
fn names_of(engine: &Engine) -> Vec<Object> {
    let piece = |from: u32| {
        // The caller's memory: the worker allocates none.
        let mut names = Vec::with_capacity(2 * PIECE as usize);
        engine.inspect(move |worker| worker.nic().names(from..from + PIECE, &mut names).then_some(names))
    };
    (0..).step_by(PIECE as usize).map_while(piece).flatten().collect()
}

fn statuses(nic: &Nic, qps: Vec<QpIndex>) -> Vec<QpStatus> {
    qps.into_iter().filter_map(|qp| nic.qp_status(qp)).collect()
}

fn refused() -> Result<Answer, ControlError> {
    Err(ControlError::WrongKind(
        "a device with several workers has no memory windows, no fast registration, no raw packet QPs, and no queues that change their \
         size: open it with one worker",
    ))
}

/// Returns a QP's index at the device.
fn qp_of_device(worker: u32, qp: QpIndex) -> QpIndex {
    debug_assert!(qp.place() < 1 << QP_BITS, "a worker of several has one unit of QPNs");
    QpIndex(qp.0 + (worker << QP_BITS))
}

fn event_of_device(worker: u32, event: AsyncEvent) -> AsyncEvent {
    match event {
        AsyncEvent::Qp(qp, kind) => AsyncEvent::Qp(qp_of_device(worker, qp), kind),
        other => other,
    }
}

/// Returns a worker's answer with the QPs' indices at the device.
fn of_device(worker: u32, mut answer: Answer) -> Answer {
    match &mut answer {
        Answer::Qp(handle) => handle.index = qp_of_device(worker, handle.index),
        Answer::QpStatus(status) => status.handle.index = qp_of_device(worker, status.handle.index),
        Answer::Qps(all) => {
            all.iter_mut().for_each(|qp| qp.handle.index = qp_of_device(worker, qp.handle.index));
        }
        _ => {}
    }
    answer
}
