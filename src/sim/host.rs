//! One host in virtual time: a worker, and an application's side of its queues.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Receiver, Sender, bounded};
use nix::sys::eventfd::EventFd;

use crate::engine::{Progress, Request, Worker};
use crate::nic::{
    Answer, Command, ControlError, MemoryCommand, Nic, NicConfig, QpHandle, QpStatus, ReceiveSource,
    SrqStatus,
};
use crate::port::Port;
use crate::shared::work_queue::Payload;
use crate::shared::{CompletionRing, Doorbells, HostMemory, PostError, RecvRing, SendRing};
use crate::time::Nanos;
use crate::verbs::{
    Access, AddressVector, AhId, AsyncEvent, CqIndex, LKey, MrIndex, OpenXrcd, PdId, QpAttr, QpCaps, QpIndex,
    QpInit, QpType, SendWr, Sge, SrqIndex, SrqInit, Srqn, Wc, XrcdId,
};
use crate::wire::Gid;

/// Workers in virtual time do not sleep: one descriptor is enough for a thousand of them.
static WAKE: OnceLock<Arc<EventFd>> = OnceLock::new();

/// A NIC, its port, and the application that uses it.
#[derive(Debug)]
pub struct Host {
    /// The NIC and its port.
    pub worker: Worker,
    number: u16,
    requests: Sender<Request>,
    events: Receiver<AsyncEvent>,
    /// Puts events back that were taken out.
    unread: Sender<AsyncEvent>,
    doorbells: Doorbells,
    pd: PdId,
    /// The virtual address of the next region: the allocator's would differ from run to run.
    next_address: u64,
    /// When it was last turned by [`Host::poll`] or [`Host::call`].
    now: Nanos,
    /// The last pass did something, and may have left something.
    busy: bool,
}

/// A QP as its application sees it.
#[derive(Debug)]
pub struct HostQp {
    /// Its place and number.
    pub handle: QpHandle,
    /// Its completion queue, for both directions.
    pub cq: CompletionRing,
    /// Its queue in the NIC.
    pub cq_index: CqIndex,
    sends: SendRing,
    /// Its own; `None`: it shares one, or has none.
    receives: Option<RecvRing>,
}

/// A shared receive queue as its application sees it.
#[derive(Debug)]
pub struct HostSrq {
    /// The index in the NIC's table, for commands.
    pub index: SrqIndex,
    /// The number by which XRC requests name it.
    pub number: Srqn,
    ring: RecvRing,
}

/// Registered memory.
#[derive(Debug)]
pub struct HostRegion {
    /// The bytes, which the test may read and write at any time.
    pub memory: HostMemory,
    /// The virtual address of the first.
    pub address: u64,
    /// lkey and rkey, which are the same number.
    pub key: u32,
    /// The index in the NIC's table, for commands.
    pub index: MrIndex,
}

impl HostRegion {
    /// An entry for `length` bytes from `offset` on.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.address + offset, length, lkey: LKey(self.key) }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If they are not all in the region.
    pub fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(offset, &mut bytes).expect("within the region");
        bytes
    }
}

impl Host {
    /// Host `number`, from 1 on, with a NIC of this configuration on this port.
    ///
    /// # Panics
    /// If the system has no memory for its doorbells.
    pub fn new(number: u16, config: NicConfig, port: Box<dyn Port>) -> Host {
        let wake = WAKE.get_or_init(|| Doorbells::common_wake().expect("a descriptor"));
        let doorbells = Doorbells::with_wake(config.limits.qps, wake.clone()).expect("memory for doorbells");
        let (requests, queue) = bounded(1);
        let (event_sender, events) = bounded(1024);
        let unread = event_sender.clone();
        let mut worker = Worker::new(Nic::new(config), port, doorbells.clone(), queue, event_sender);
        let pd = match Host::run(&mut worker, &requests, Nanos::ZERO, Command::AllocPd) {
            Ok(Answer::Pd(pd)) => pd,
            other => unreachable!("a new NIC answers AllocPd with {other:?}"),
        };
        let next_address = u64::from(number) << 40;
        Host {
            worker,
            number,
            requests,
            events,
            unread,
            doorbells,
            pd,
            next_address,
            now: Nanos::ZERO,
            busy: true,
        }
    }

    /// One pass of its worker.
    pub fn poll(&mut self, now: Nanos) -> Progress {
        self.now = now;
        let progress = self.worker.poll(now);
        self.busy = !progress.is_idle();
        progress
    }

    /// True if a pass may find something to do: the last one did, something was posted, a frame or a deadline is due.
    pub fn is_due(&self, now: Nanos) -> bool {
        self.busy || self.worker.needed_by() <= now
    }

    /// The way from here to host `to`.
    pub fn path(&self, to: u16, ipv6: bool) -> AddressVector {
        AddressVector {
            sgid: Gid::from(Host::address(self.number, ipv6)),
            dgid: Gid::from(Host::address(to, ipv6)),
            smac: Host::mac(self.number),
            dmac: Host::mac(to),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            sl: 0,
            static_rate: 0,
        }
    }

    fn run(
        worker: &mut Worker,
        requests: &Sender<Request>,
        now: Nanos,
        command: Command,
    ) -> Result<Answer, ControlError> {
        let (answer, answered) = bounded(1);
        requests.send(Request { command: command.prepare()?, answer }).expect("the worker is here");
        loop {
            worker.poll(now);
            if let Ok(answer) = answered.try_recv() {
                return answer.result;
            }
        }
    }

    /// Carries a command out.
    ///
    /// # Errors
    /// What the NIC says of the command.
    pub fn call(&mut self, now: Nanos, command: impl Into<Command>) -> Result<Answer, ControlError> {
        (self.now, self.busy) = (now, true);
        Host::run(&mut self.worker, &self.requests, now, command.into())
    }

    /// The same when it was turned last.
    ///
    /// # Errors
    /// What the NIC says of the command.
    pub fn call_now(&mut self, command: impl Into<Command>) -> Result<Answer, ControlError> {
        self.call(self.now, command)
    }

    /// The protection domain of all that it makes.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Registers zeroed memory.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn register(&mut self, length: usize, access: Access) -> HostRegion {
        let memory = HostMemory::allocate(length).expect("memory for a simulated region");
        self.register_memory(memory, access)
    }

    /// Registers memory that is there already.
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

    /// Makes an RC QP with a completion queue of its own.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_qp(&mut self, caps: QpCaps, sq_sig_all: bool, cq_entries: u32) -> HostQp {
        self.create_qp_as(QpInit { qp_type: QpType::Rc, caps, sq_sig_all }, cq_entries)
    }

    /// Makes a QP with a completion queue of its own.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_qp_as(&mut self, init: QpInit, cq_entries: u32) -> HostQp {
        let caps = &init.caps;
        let receives = RecvRing::new(caps.max_recv_wr, caps.max_recv_sge).expect("memory");
        self.create_qp_from(init, ReceiveSource::Own(receives), cq_entries)
    }

    /// Makes a QP that takes its receives from `source`, with a completion queue of its own.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_qp_from(&mut self, init: QpInit, source: ReceiveSource, cq_entries: u32) -> HostQp {
        let queue = self.create_cq(cq_entries);
        self.create_qp_on(init, source, queue)
    }

    /// The same with a completion queue that is there.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_qp_on(
        &mut self,
        init: QpInit,
        source: ReceiveSource,
        (cq_index, cq): (CqIndex, CompletionRing),
    ) -> HostQp {
        let caps = &init.caps;
        let sends = SendRing::new(caps.max_send_wr, caps.max_send_sge, caps.max_inline).expect("memory");
        let receives = match &source {
            ReceiveSource::Own(ring) => Some(ring.clone()),
            _ => None,
        };
        let command = MemoryCommand::CreateQp {
            pd: self.pd,
            send_cq: cq_index,
            recv_cq: cq_index,
            init,
            sends: sends.clone(),
            receives: source,
        };
        match self.call(self.now, command) {
            Ok(Answer::Qp(handle)) => HostQp { handle, cq, cq_index, sends, receives },
            other => panic!("a QP: {other:?}"),
        }
    }

    /// Makes a completion queue.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_cq(&mut self, entries: u32) -> (CqIndex, CompletionRing) {
        self.create_cq_with(entries, None)
    }

    /// Makes a completion queue whose events are counted in `notify`.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_cq_with(
        &mut self,
        entries: u32,
        notify: Option<Arc<EventFd>>,
    ) -> (CqIndex, CompletionRing) {
        let ring = CompletionRing::new(entries).expect("memory for a queue");
        match self
            .call(self.now, MemoryCommand::CreateCq { ring: ring.clone(), notify: notify.map(Into::into) })
        {
            Ok(Answer::Cq(index)) => (index, ring),
            other => panic!("a completion queue: {other:?}"),
        }
    }

    /// Makes a shared receive queue.
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

    /// Has a shared receive queue go on in a ring of another size.
    ///
    /// # Errors
    /// What the NIC says of the command.
    pub fn resize_srq(&mut self, now: Nanos, srq: &mut HostSrq, max_wr: u32) -> Result<(), ControlError> {
        let ring = RecvRing::new(max_wr, srq.ring.max_sge()).expect("memory for a queue");
        self.call(now, MemoryCommand::ModifySrq { srq: srq.index, ring: Some(ring.clone()), limit: None })?;
        srq.ring = ring;
        Ok(())
    }

    /// Arms the limit of a shared receive queue.
    ///
    /// # Errors
    /// What the NIC says of the command.
    pub fn arm_srq(&mut self, now: Nanos, srq: &HostSrq, limit: u32) -> Result<(), ControlError> {
        self.call(now, MemoryCommand::ModifySrq { srq: srq.index, ring: None, limit: Some(limit) }).map(drop)
    }

    /// How a shared receive queue is.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn query_srq(&mut self, now: Nanos, srq: &HostSrq) -> SrqStatus {
        match self.call(now, Command::QuerySrq(srq.index)) {
            Ok(Answer::SrqStatus(status)) => status,
            other => panic!("querying a shared receive queue: {other:?}"),
        }
    }

    /// Opens an XRC domain of its own.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn open_xrcd(&mut self) -> XrcdId {
        match self.call(self.now, Command::OpenXrcd(OpenXrcd::default())) {
            Ok(Answer::Xrcd(xrcd)) => xrcd,
            other => panic!("an XRC domain: {other:?}"),
        }
    }

    /// Makes the target of an XRC connection.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_xrc_target(&mut self, xrcd: XrcdId) -> QpHandle {
        match self.call(self.now, Command::CreateXrcTarget(xrcd)) {
            Ok(Answer::Qp(handle)) => handle,
            other => panic!("an XRC target: {other:?}"),
        }
    }

    /// The same with queues that stay empty, so that it can be handled as any other QP.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_xrc_target_on(
        &mut self,
        xrcd: XrcdId,
        (cq_index, cq): (CqIndex, CompletionRing),
    ) -> HostQp {
        let handle = self.create_xrc_target(xrcd);
        let sends = SendRing::new(1, 0, 0).expect("memory");
        HostQp { handle, cq, cq_index, sends, receives: None }
    }

    /// Posts a receive to a shared queue.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn post_srq_recv(&self, srq: &HostSrq, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        srq.ring.post(wr_id, sges).map(drop)
    }

    /// The memory of a shared receive queue, to be written over by a test.
    pub fn srq_words<'a>(&self, srq: &'a HostSrq) -> &'a [AtomicU64] {
        srq.ring.words()
    }

    /// Makes an address handle.
    ///
    /// # Panics
    /// If the NIC refuses.
    pub fn create_ah(&mut self, av: &AddressVector) -> AhId {
        match self.call(self.now, Command::CreateAh(self.pd, Box::new(*av))) {
            Ok(Answer::Ah(ah)) => ah,
            other => panic!("an address handle: {other:?}"),
        }
    }

    /// Sets attributes and state.
    ///
    /// # Errors
    /// What the NIC says of the command.
    pub fn modify(&mut self, now: Nanos, qp: &HostQp, attr: &QpAttr) -> Result<(), ControlError> {
        self.modify_at(now, qp.handle.index, attr)
    }

    /// The same for a QP that has no queues here.
    ///
    /// # Errors
    /// What the NIC says of the command.
    pub fn modify_at(&mut self, now: Nanos, qp: QpIndex, attr: &QpAttr) -> Result<(), ControlError> {
        self.call(now, Command::ModifyQp(qp, Box::new(*attr))).map(drop)
    }

    /// How a QP is.
    ///
    /// # Panics
    /// If there is no such QP.
    pub fn query(&mut self, now: Nanos, qp: &HostQp) -> QpStatus {
        self.query_at(now, qp.handle.index)
    }

    /// The same for a QP that has no queues here.
    ///
    /// # Panics
    /// If there is no such QP.
    pub fn query_at(&mut self, now: Nanos, qp: QpIndex) -> QpStatus {
        match self.call(now, Command::QueryQp(qp)) {
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
    /// If the queue is full, or is a shared one.
    pub fn post_recv(&self, qp: &HostQp, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if qp.receives.as_ref().ok_or(PostError::NoReceiveQueue)?.post(wr_id, sges)? {
            self.doorbells.ring(qp.handle.index);
        }
        Ok(())
    }

    /// The oldest completion.
    pub fn poll_cq(&self, qp: &HostQp) -> Option<Wc> {
        qp.cq.poll()
    }

    /// Tells the NIC that a QP's queues have changed.
    pub fn ring(&self, qp: &HostQp) {
        self.doorbells.ring(qp.handle.index);
    }

    /// The memory of a QP's send, receive and completion queue, to be written over by a test.
    pub fn shared_words<'a>(&self, qp: &'a HostQp) -> [&'a [AtomicU64]; 3] {
        [qp.sends.words(), qp.receives.as_ref().map_or(&[], RecvRing::words), qp.cq.words()]
    }

    /// The next asynchronous event.
    pub fn event(&self) -> Option<AsyncEvent> {
        self.events.try_recv().ok()
    }

    /// Takes back the events about something that was destroyed and that nobody has read, as `ibv_destroy_qp` and its like do: its
    /// index may soon be another's. The others keep their order.
    pub fn take_back_events(&self, about: impl Fn(AsyncEvent) -> bool) {
        let waiting: Vec<_> = self.events.try_iter().collect();
        for event in waiting.into_iter().filter(|event| !about(*event)) {
            // There is room: it was in the queue a moment ago, and nobody else turns this NIC.
            let _ = self.unread.try_send(event);
        }
    }
}
