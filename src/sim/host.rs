//! A host in virtual time: a worker, and the application's side of its queues.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Receiver, Sender, bounded};
use nix::sys::eventfd::EventFd;

use roxie_base::time::Nanos;
use roxie_engine::{Answered, Progress, Request, Worker};
use roxie_nic::nic::{
    Answer, Command, ControlError, MemoryCommand, Nic, NicConfig, QpHandle, QpStatus, ReceiveSource,
    SrqStatus,
};
use roxie_nic::shared::work_queue::Payload;
use roxie_nic::shared::{CompletionRing, Doorbells, HostMemory, PostError, RecvRing, SendRing};
use roxie_nic::verbs::{
    Access, AddressVector, AhId, AsyncEvent, CqIndex, LKey, MrIndex, OpenXrcd, PdId, QpAttr, QpCaps, QpIndex,
    QpInit, QpType, SendWr, Sge, SrqIndex, SrqInit, Srqn, Wc, XrcdId,
};
use roxie_port::Port;
use roxie_wire::Gid;

/// Workers in virtual time do not sleep, so all of them share one descriptor. A run may have a thousand.
static WAKE: OnceLock<Arc<EventFd>> = OnceLock::new();

/// A NIC, its port, and the application that uses the NIC.
#[derive(Debug)]
pub struct Host {
    /// The NIC and its port.
    pub worker: Worker,
    number: u16,
    requests: Sender<Request>,
    /// The channel of all answers. One for each command would leave gaps in the heap, between the QPs of a test or
    /// benchmark.
    answers: (Sender<Answered>, Receiver<Answered>),
    events: Receiver<AsyncEvent>,
    /// Re-queues events that were taken from `events`.
    unread: Sender<AsyncEvent>,
    doorbells: Doorbells,
    pd: PdId,
    /// Virtual address of the next region. The allocator's addresses would differ between runs.
    next_address: u64,
    /// Time of the last pass by [`Host::poll`] or [`Host::call`].
    now: Nanos,
    /// True if the last pass did something: the next one may find more.
    busy: bool,
}

/// A QP as the application sees it.
#[derive(Debug)]
pub struct HostQp {
    /// Index and QPN.
    pub handle: QpHandle,
    /// Completion queue of both directions.
    pub cq: CompletionRing,
    /// Index of the completion queue in the NIC's table.
    pub cq_index: CqIndex,
    /// Send queue.
    pub sends: SendRing,
    /// Receive queue; `None`: the QP uses a shared one, or has none.
    pub receives: Option<RecvRing>,
}

impl From<&HostQp> for QpIndex {
    fn from(qp: &HostQp) -> QpIndex {
        qp.handle.index
    }
}

/// Attributes of a new QP: see [`Host::queue_pair`].
#[derive(Debug)]
#[must_use = "a builder makes nothing before `create`"]
pub struct HostQpBuilder<'a> {
    host: &'a mut Host,
    init: QpInit,
    receives: Option<ReceiveSource>,
    cq: Option<(CqIndex, CompletionRing)>,
    cq_entries: u32,
}

impl HostQpBuilder<'_> {
    /// Sets the sizes of the queues.
    pub fn caps(mut self, caps: QpCaps) -> Self {
        self.init.caps = caps;
        self
    }

    /// Makes all sends complete visibly, signaled or not (`sq_sig_all`).
    pub fn signal_all(mut self) -> Self {
        self.init.sq_sig_all = true;
        self
    }

    /// Sets transport service, sizes and `sq_sig_all` together.
    pub fn init(self, init: QpInit) -> Self {
        HostQpBuilder { init, ..self }
    }

    /// Takes receives from `source` instead of a queue of the QP's own.
    pub fn receives(self, source: ReceiveSource) -> Self {
        HostQpBuilder { receives: Some(source), ..self }
    }

    /// Sets the entries of the QP's own completion queue; without this, 16.
    pub fn cq_entries(self, cq_entries: u32) -> Self {
        HostQpBuilder { cq_entries, ..self }
    }

    /// Sends completions of both directions to an existing queue.
    pub fn cq(self, cq: (CqIndex, CompletionRing)) -> Self {
        HostQpBuilder { cq: Some(cq), ..self }
    }

    /// Makes the QP, in RESET.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create(self) -> HostQp {
        let HostQpBuilder { host, init, receives, cq, cq_entries } = self;
        let QpCaps { max_send_wr, max_send_sge, max_inline, max_recv_wr, max_recv_sge } = init.caps;
        let (cq_index, cq) = cq.unwrap_or_else(|| host.create_cq(cq_entries, None));
        let sends = SendRing::new(max_send_wr, max_send_sge, max_inline).expect("memory");
        let own = || ReceiveSource::Own(RecvRing::new(max_recv_wr, max_recv_sge).expect("memory"));
        let source = receives.unwrap_or_else(own);
        let receives = match &source {
            ReceiveSource::Own(ring) => Some(ring.clone()),
            _ => None,
        };
        let command = MemoryCommand::CreateQp {
            pd: host.pd,
            send_cq: cq_index,
            recv_cq: cq_index,
            init,
            sends: sends.clone(),
            receives: source,
        };
        match host.call(host.now, command) {
            Ok(Answer::Qp(handle)) => HostQp { handle, cq, cq_index, sends, receives },
            other => panic!("a QP: {other:?}"),
        }
    }
}

/// A shared receive queue as the application sees it.
#[derive(Debug)]
pub struct HostSrq {
    /// The index in the NIC's table, for commands.
    pub index: SrqIndex,
    /// Number by which XRC requests name the queue.
    pub number: Srqn,
    /// The queue, to which receives are posted.
    pub ring: RecvRing,
}

/// A registered memory region.
#[derive(Debug)]
pub struct HostRegion {
    /// The bytes. A test may read and write them at any time.
    pub memory: HostMemory,
    /// Virtual address of the first byte.
    pub address: u64,
    /// lkey and rkey, which are equal.
    pub key: u32,
    /// The index in the NIC's table, for commands.
    pub index: MrIndex,
}

impl HostRegion {
    /// Returns a scatter/gather entry for `length` bytes at `offset`.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.address + offset, length, lkey: LKey(self.key) }
    }

    /// Copies `length` bytes at `offset` out of the region.
    ///
    /// # Panics
    /// If the range exceeds the region.
    pub fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(offset, &mut bytes).expect("within the region");
        bytes
    }
}

impl Host {
    /// Creates host `number`, 1 or above, with a NIC of this configuration on `port`.
    ///
    /// # Panics
    /// If memory for the doorbells cannot be allocated.
    pub fn new(number: u16, config: NicConfig, port: Box<dyn Port>) -> Host {
        let wake = WAKE.get_or_init(|| Doorbells::common_wake().expect("a descriptor"));
        let doorbells = Doorbells::with_wake(config.limits.qps, wake.clone()).expect("memory for doorbells");
        let (requests, queue) = bounded(1);
        let (event_sender, events) = bounded(1024);
        let unread = event_sender.clone();
        let mut worker = Worker::new(Nic::new(config), port, doorbells.clone(), queue, event_sender);
        let answers = bounded(1);
        let pd = match Host::run(&mut worker, (&requests, &answers), Nanos::ZERO, Command::AllocPd) {
            Ok(Answer::Pd(pd)) => pd,
            other => unreachable!("a new NIC answers AllocPd with {other:?}"),
        };
        let next_address = u64::from(number) << 40;
        Host {
            worker,
            number,
            requests,
            answers,
            events,
            unread,
            doorbells,
            pd,
            next_address,
            now: Nanos::ZERO,
            busy: true,
        }
    }

    /// Runs one pass of the worker.
    pub fn poll(&mut self, now: Nanos) -> Progress {
        self.now = now;
        let progress = self.worker.poll(now);
        self.busy = !progress.is_idle();
        progress
    }

    /// Returns true if a pass may find work: the last pass did, something was posted, or a frame or deadline is due.
    pub fn is_due(&self, now: Nanos) -> bool {
        self.busy || self.worker.needed_by() <= now
    }

    /// Returns a counter of the NIC or its port; 0 if none has this name.
    pub fn counter(&self, name: &str) -> u64 {
        self.worker.counters().into_iter().filter(|(known, _)| *known == name).map(|(_, value)| value).sum()
    }

    /// Returns the path from this host to host `to`.
    pub fn path(&self, to: u16, ipv6: bool) -> AddressVector {
        AddressVector::new(
            Gid::from(Host::address(self.number, ipv6)),
            Gid::from(Host::address(to, ipv6)),
            Host::mac(self.number),
            Host::mac(to),
        )
    }

    fn run(
        worker: &mut Worker,
        (requests, (answer, answered)): (&Sender<Request>, &(Sender<Answered>, Receiver<Answered>)),
        now: Nanos,
        command: Command,
    ) -> Result<Answer, ControlError> {
        requests
            .send(Request::Command { command: command.prepare()?, answer: answer.clone() })
            .expect("the worker is here");
        loop {
            worker.poll(now);
            if let Ok(answer) = answered.try_recv() {
                return answer.result;
            }
        }
    }

    /// Runs a command, and one pass of the worker.
    ///
    /// # Errors
    /// The NIC's error if it rejects the command.
    pub fn call(&mut self, now: Nanos, command: impl Into<Command>) -> Result<Answer, ControlError> {
        (self.now, self.busy) = (now, true);
        Host::run(&mut self.worker, (&self.requests, &self.answers), now, command.into())
    }

    /// Begins a command, which passes execute. The answer may come late.
    #[expect(clippy::missing_panics_doc, reason = "for tests, with one command at a time")]
    pub fn begin(&mut self, command: Command) {
        let request =
            Request::Command { command: command.prepare().expect("memory"), answer: self.answers.0.clone() };
        self.requests.try_send(request).expect("no other command");
        self.busy = true;
    }

    /// Takes the answer to a command that was begun.
    pub fn answered(&mut self) -> Option<Result<Answer, ControlError>> {
        self.answers.1.try_recv().ok().map(|answered| answered.result)
    }

    /// Runs a command at the time of the last pass.
    ///
    /// # Errors
    /// The NIC's error if it rejects the command.
    pub fn call_now(&mut self, command: impl Into<Command>) -> Result<Answer, ControlError> {
        self.call(self.now, command)
    }

    /// Returns the protection domain of all objects of this host.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Allocates and registers zeroed memory.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn register(&mut self, length: usize, access: Access) -> HostRegion {
        let memory = HostMemory::allocate(length).expect("memory for a simulated region");
        self.register_memory(memory, access)
    }

    /// Registers existing memory.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn register_memory(&mut self, memory: HostMemory, access: Access) -> HostRegion {
        let length = memory.len();
        let address = self.next_address;
        self.next_address += (length as u64).next_multiple_of(4096) + 4096;
        let command =
            MemoryCommand::RegisterMemory { pd: self.pd, access, start: address, memory: memory.clone() };
        match self.call(self.now, command) {
            Ok(Answer::Memory(index, key)) => HostRegion { memory, address, key, index },
            other => panic!("registering {length} bytes: {other:?}"),
        }
    }

    /// Starts to make an RC QP with the sizes of [`QpCaps::default`], receives and a completion queue of its own, as
    /// `roxie::host::ProtectionDomain::queue_pair` does.
    pub fn queue_pair(&mut self) -> HostQpBuilder<'_> {
        let init = QpInit { qp_type: QpType::Rc, caps: QpCaps::default(), sq_sig_all: false };
        HostQpBuilder { host: self, init, receives: None, cq: None, cq_entries: 16 }
    }

    /// Creates a completion queue. Events are counted in `notify`, if given.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_cq(&mut self, entries: u32, notify: Option<Arc<EventFd>>) -> (CqIndex, CompletionRing) {
        let ring = CompletionRing::new(entries).expect("memory for a queue");
        let notify = notify.map(Into::into);
        match self.call(self.now, MemoryCommand::CreateCq { ring: ring.clone(), notify }) {
            Ok(Answer::Cq(index)) => (index, ring),
            other => panic!("a completion queue: {other:?}"),
        }
    }

    /// Creates a shared receive queue.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_srq(&mut self, init: SrqInit, max_wr: u32, max_sge: u32) -> HostSrq {
        let ring = RecvRing::new(max_wr, max_sge).expect("memory for a queue");
        let command = MemoryCommand::CreateSrq { pd: self.pd, init, ring: ring.clone() };
        match self.call(self.now, command) {
            Ok(Answer::Srq(index, number)) => HostSrq { index, number, ring },
            other => panic!("a shared receive queue: {other:?}"),
        }
    }

    /// Moves a shared receive queue to a ring of another size.
    ///
    /// # Errors
    /// The NIC's error if it rejects the command.
    pub fn resize_srq(&mut self, now: Nanos, srq: &mut HostSrq, max_wr: u32) -> Result<(), ControlError> {
        let ring = RecvRing::new(max_wr, srq.ring.max_sge()).expect("memory for a queue");
        self.call(now, MemoryCommand::ModifySrq { srq: srq.index, ring: Some(ring.clone()), limit: None })?;
        srq.ring = ring;
        Ok(())
    }

    /// Arms the limit of a shared receive queue.
    ///
    /// # Errors
    /// The NIC's error if it rejects the command.
    pub fn arm_srq(&mut self, now: Nanos, srq: &HostSrq, limit: u32) -> Result<(), ControlError> {
        self.call(now, MemoryCommand::ModifySrq { srq: srq.index, ring: None, limit: Some(limit) }).map(drop)
    }

    /// Queries the status of a shared receive queue.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn query_srq(&mut self, now: Nanos, srq: &HostSrq) -> SrqStatus {
        match self.call(now, Command::QuerySrq(srq.index)) {
            Ok(Answer::SrqStatus(status)) => status,
            other => panic!("querying a shared receive queue: {other:?}"),
        }
    }

    /// Opens a new XRC domain.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn open_xrcd(&mut self) -> XrcdId {
        match self.call(self.now, Command::OpenXrcd(OpenXrcd::default())) {
            Ok(Answer::Xrcd(xrcd)) => xrcd,
            other => panic!("an XRC domain: {other:?}"),
        }
    }

    /// Creates an XRC target QP.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_xrc_target(&mut self, xrcd: XrcdId) -> QpHandle {
        match self.call(self.now, Command::CreateXrcTarget(xrcd)) {
            Ok(Answer::Qp(handle)) => handle,
            other => panic!("an XRC target: {other:?}"),
        }
    }

    /// Creates an address handle.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_ah(&mut self, av: &AddressVector) -> AhId {
        match self.call(self.now, Command::CreateAh(self.pd, Box::new(*av))) {
            Ok(Answer::Ah(ah)) => ah,
            other => panic!("an address handle: {other:?}"),
        }
    }

    /// Modifies the attributes and state of a QP.
    ///
    /// # Errors
    /// The NIC's error if it rejects the command.
    pub fn modify(&mut self, now: Nanos, qp: impl Into<QpIndex>, attr: &QpAttr) -> Result<(), ControlError> {
        self.call(now, Command::ModifyQp(qp.into(), Box::new(*attr))).map(drop)
    }

    /// Queries the status of a QP.
    ///
    /// # Panics
    /// If there is no such QP.
    pub fn query(&mut self, now: Nanos, qp: impl Into<QpIndex>) -> QpStatus {
        match self.call(now, Command::QueryQp(qp.into())) {
            Ok(Answer::QpStatus(status)) => *status,
            other => panic!("querying a QP: {other:?}"),
        }
    }

    /// Posts a send.
    ///
    /// # Errors
    /// If the queue is full, or the work request does not fit it.
    pub fn post_send(&self, qp: &HostQp, wr: &SendWr, payload: Payload<'_>) -> Result<(), PostError> {
        qp.sends.post(wr, payload)?;
        self.doorbells.ring(qp.handle.index);
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// If the queue is full, or the QP uses a shared receive queue.
    pub fn post_recv(&self, qp: &HostQp, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if qp.receives.as_ref().ok_or(PostError::NoReceiveQueue)?.post(wr_id, sges)? {
            self.doorbells.ring(qp.handle.index);
        }
        Ok(())
    }

    /// Takes the oldest completion.
    #[inline(always)]
    pub fn poll_cq(&self, qp: &HostQp) -> Option<Wc> {
        qp.cq.poll()
    }

    /// Rings the doorbell of a QP.
    pub fn ring(&self, qp: &HostQp) {
        self.doorbells.ring(qp.handle.index);
    }

    /// Returns the memory of a QP's send, receive and completion queue, for a test to overwrite.
    pub fn shared_words<'a>(&self, qp: &'a HostQp) -> [&'a [AtomicU64]; 3] {
        [qp.sends.words(), qp.receives.as_ref().map_or(&[], RecvRing::words), qp.cq.words()]
    }

    /// Takes the next asynchronous event.
    pub fn event(&self) -> Option<AsyncEvent> {
        self.events.try_recv().ok()
    }

    /// Discards unread events about a destroyed object, as `ibv_destroy_qp` and its siblings do, because the object's
    /// index may be reused. Other events keep their order.
    pub fn take_back_events(&self, about: impl Fn(AsyncEvent) -> bool) {
        let waiting: Vec<_> = self.events.try_iter().collect();
        for event in waiting.into_iter().filter(|event| !about(*event)) {
            // Cannot fail: the event was just taken from this queue, and no other thread runs this NIC.
            let _ = self.unread.try_send(event);
        }
    }
}
