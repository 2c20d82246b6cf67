//! The objects of the verbs API. Each frees its part of the device when it is dropped; those that use one another
//! keep one another alive.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::channel::CompletionChannel;
use super::datagram::AhOptions;
use super::device::{Device, DeviceError, random};
use crate::congestion::{Settings, State};
use crate::engine::WaitSet;
use crate::limits::MAX_CQE;
use crate::nic::{Answer, Command, ControlError, QpHandle, QpRecord, QpStatus, ReceiveSource};
use crate::shared::work_queue::Payload;
use crate::shared::{Armed, CompletionRing, PostError, RecvRing, SendRing};
use crate::time::Nanos;
use crate::verbs::{
    Access, CqIndex, Mtu, PdId, Psn, QpAttr, QpCaps, QpIndex, QpInit, QpState, QpType, Qpn, RateLimit,
    SendWr, Sge, Wc,
};
use crate::wire::Gid;

/// The device answered a command with something else than it is specified to: a bug of ours.
pub(super) fn unexpected(answer: &Answer) -> ! {
    unreachable!("the device answered {answer:?}")
}

#[derive(Debug)]
pub(super) struct PdInner {
    pub(super) device: Device,
    pub(super) id: PdId,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        let _ = self.device.call(Command::DeallocPd(self.id));
    }
}

/// A protection domain. Cloning it gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(super) inner: Arc<PdInner>,
}

impl Device {
    /// Makes a protection domain.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, DeviceError> {
        match self.call(Command::AllocPd)? {
            Answer::Pd(id) => Ok(ProtectionDomain { inner: Arc::new(PdInner { device: self.clone(), id }) }),
            other => unexpected(&other),
        }
    }

    /// Makes a completion queue of at least `entries`, with a channel for its events if one is given.
    pub fn create_cq(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, DeviceError> {
        within("completion queue entries", entries, MAX_CQE)?;
        let ring = CompletionRing::new(entries).map_err(no_memory)?;
        let notify = channel.map(|c| c.waits.events().clone());
        match self.call(Command::CreateCq { ring: ring.clone(), notify })? {
            Answer::Cq(index) => {
                let inner = CqInner {
                    device: self.clone(),
                    index,
                    waits: channel.map(|c| Arc::clone(&c.waits)),
                    ring: Mutex::new(Polled { ring, forgotten: Vec::new() }),
                };
                Ok(CompletionQueue { inner: Arc::new(inner) })
            }
            other => unexpected(&other),
        }
    }

    /// Makes an RC QP in RESET. `sq_sig_all`: every send completes, signaled or not.
    pub fn create_qp(
        &self,
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        caps: QpCaps,
        sq_sig_all: bool,
    ) -> Result<QueuePair, DeviceError> {
        self.create_qp_as(pd, send_cq, recv_cq, &QpInit { qp_type: QpType::Rc, caps, sq_sig_all })
    }

    /// Makes a QP in RESET, of any service.
    pub fn create_qp_as(
        &self,
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        init: &QpInit,
    ) -> Result<QueuePair, DeviceError> {
        let caps = &init.caps;
        check_caps(caps)?;
        let receives = RecvRing::new(caps.max_recv_wr, caps.max_recv_sge).map_err(no_memory)?;
        self.create_qp_from(pd, (send_cq, recv_cq), init, (ReceiveSource::Own(receives), Kept::new()))
    }

    /// Makes a QP that takes its receives from a source, and keeps what else it needs alive.
    pub(super) fn create_qp_from(
        &self,
        pd: &ProtectionDomain,
        (send_cq, recv_cq): (&CompletionQueue, &CompletionQueue),
        init: &QpInit,
        (source, also): (ReceiveSource, Kept),
    ) -> Result<QueuePair, DeviceError> {
        self.claim()?;
        let caps = &init.caps;
        check_caps(caps)?;
        let sends = SendRing::new(caps.max_send_wr, caps.max_send_sge, caps.max_inline).map_err(no_memory)?;
        let receives = match &source {
            ReceiveSource::Own(ring) => Some(ring.clone()),
            _ => None,
        };
        let answer = self.call(Command::CreateQp {
            pd: pd.inner.id,
            send_cq: send_cq.inner.index,
            recv_cq: recv_cq.inner.index,
            init: *init,
            sends: sends.clone(),
            receives: source,
        })?;
        let Answer::Qp(handle) = answer else { unexpected(&answer) };
        let mut uses: Kept = vec![Arc::clone(&pd.inner) as _, send_cq.kept(), recv_cq.kept()];
        uses.extend(also);
        Ok(QueuePair::new(self, handle, init.qp_type, sends, receives, uses))
    }
}

fn check_caps(caps: &QpCaps) -> Result<(), DeviceError> {
    match caps.beyond_limit() {
        Some((what, value, limit)) => {
            Err(ControlError::TooLarge { what, value: value.into(), limit: limit.into() }.into())
        }
        None => Ok(()),
    }
}

pub(super) fn within(what: &'static str, value: u32, limit: u32) -> Result<(), DeviceError> {
    if value > limit {
        return Err(ControlError::TooLarge { what, value: value.into(), limit: limit.into() }.into());
    }
    Ok(())
}

pub(super) fn no_memory(source: std::io::Error) -> DeviceError {
    DeviceError::System { what: "memory for a queue", source }
}

impl ProtectionDomain {
    pub(super) fn device(&self) -> &Device {
        &self.inner.device
    }

    pub(super) fn id(&self) -> PdId {
        self.inner.id
    }
}

#[derive(Debug)]
struct CqInner {
    device: Device,
    index: CqIndex,
    /// Where its events are waited for.
    waits: Option<Arc<WaitSet>>,
    /// Who polls, arms or changes it takes turns.
    ring: Mutex<Polled>,
}

/// A ring as the application polls it.
#[derive(Debug)]
struct Polled {
    ring: CompletionRing,
    /// QPs whose completions below a position are not to be seen any more.
    forgotten: Vec<(Qpn, u64)>,
}

impl Polled {
    fn poll(&mut self) -> Option<Wc> {
        if self.forgotten.is_empty() { self.ring.poll() } else { self.poll_timed().map(|(wc, _)| wc) }
    }

    fn poll_timed(&mut self) -> Option<(Wc, u64)> {
        loop {
            let (position, _) = self.ring.positions();
            self.forgotten.retain(|(_, end)| *end > position);
            let (wc, time) = self.ring.poll_timed()?;
            if !self.forgotten.iter().any(|(qpn, _)| *qpn == wc.qpn) {
                return Some((wc, time));
            }
        }
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let _ = self.device.call(Command::DestroyCq(self.index));
    }
}

/// A completion queue. Cloning it gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<CqInner>,
}

impl CompletionQueue {
    pub(super) fn kept(&self) -> Arc<dyn std::fmt::Debug + Send + Sync> {
        Arc::clone(&self.inner) as _
    }

    /// Takes up to `out.len()` completions. If there is none and callers turn the device, runs a pass first.
    pub fn poll(&self, out: &mut [Wc]) -> usize {
        let taken = self.poll_ready(out);
        if taken > 0 || out.is_empty() {
            return taken;
        }
        self.turn();
        self.poll_ready(out)
    }

    /// Runs a pass if callers turn the device: what [`CompletionQueue::poll`] does when it finds nothing.
    pub fn turn(&self) {
        self.inner.device.inner.engine.help_for(|| lock(&self.inner.ring).ring.has_completions());
    }

    /// Takes up to `out.len()` completions that are there, and runs no pass.
    pub fn poll_ready(&self, out: &mut [Wc]) -> usize {
        let mut ring = lock(&self.inner.ring);
        let mut taken = 0;
        for slot in out {
            let Some(wc) = ring.poll() else { break };
            *slot = wc;
            taken += 1;
        }
        taken
    }

    /// Takes one completion.
    pub fn poll_one(&self) -> Option<Wc> {
        let mut wc = [Wc::default()];
        (self.poll(&mut wc) == 1).then_some(wc[0])
    }

    /// Polls until a completion comes or `timeout` has passed; a timeout beyond the clock's range (`Duration::MAX`) is
    /// for ever. `None` at once if the device has failed.
    pub fn wait(&self, timeout: Duration) -> Option<Wc> {
        let until = Instant::now().checked_add(timeout);
        loop {
            if let Some(wc) = self.poll_one() {
                return Some(wc);
            }
            if self.inner.device.has_failed() || until.is_some_and(|until| Instant::now() >= until) {
                return None;
            }
        }
    }

    /// Completions of a QP that wait are not seen any more: it was reset or destroyed, and its work requests are nobody's.
    pub fn forget(&self, qpn: Qpn) {
        let mut polled = lock(&self.inner.ring);
        let (position, end) = polled.ring.positions();
        if end != position {
            polled.forgotten.push((qpn, end));
        }
    }

    /// Takes an event that the queue has raised on its channel; false: it has none.
    pub fn take_event(&self) -> bool {
        lock(&self.inner.ring).ring.take_event()
    }

    /// Its place in the device's table: what events call it.
    pub fn index(&self) -> CqIndex {
        self.inner.index
    }

    /// Asks for an event on the channel. If a completion that is wanted waits already, unpolled, the event comes at once. From now on
    /// the caller is expected to wait, and the device is looked after meanwhile.
    pub fn arm(&self, armed: Armed) {
        let raised = lock(&self.inner.ring).ring.arm(armed);
        let Some(waits) = &self.inner.waits else { return };
        if raised {
            waits.events().raise();
        } else {
            self.inner.device.inner.engine.armed(waits);
        }
    }

    /// Takes one completion with the time at which it came about, on the [device's clock](Device::now).
    pub fn poll_timed(&self) -> Option<(Wc, Nanos)> {
        let take = || lock(&self.inner.ring).poll_timed().map(|(wc, time_ns)| (wc, Nanos(time_ns)));
        take().or_else(|| {
            self.turn();
            take()
        })
    }

    /// Makes it hold at least `entries` completions. Those that wait stay in their order, and what was armed stays armed.
    ///
    /// # Errors
    /// If more wait than that, or it is beyond the device's limit; the queue is as before then.
    pub fn resize(&self, entries: u32) -> Result<(), DeviceError> {
        within("completion queue entries", entries, MAX_CQE)?;
        let mut polled = lock(&self.inner.ring);
        let other = CompletionRing::new(entries).map_err(no_memory)?;
        let (gone, _) = polled.ring.positions();
        self.inner.device.call(Command::ResizeCq { cq: self.inner.index, ring: other.clone() })?;
        polled.ring = other;
        // What waited is at the new one's beginning.
        for (_, end) in &mut polled.forgotten {
            *end = end.saturating_sub(gone);
        }
        Ok(())
    }

    /// Holds events back (`ibv_modify_cq`): one for `count` completions, or `period` after the first of them. 0 or 1: at
    /// once. A completion in error waits for nothing. Completions themselves come as ever.
    ///
    /// # Errors
    /// If there is a count and no period.
    pub fn moderate(&self, count: u32, period: Duration) -> Result<(), DeviceError> {
        let period = Nanos(u64::try_from(period.as_nanos()).unwrap_or(u64::MAX));
        self.inner.device.call(Command::ModerateCq { cq: self.inner.index, count, period }).map(drop)
    }
}

/// One end of a connection: what the other end must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The QP's number.
    pub qpn: Qpn,
    /// The first PSN that it sends.
    pub psn: Psn,
    /// Its address.
    pub gid: Gid,
}

/// How a QP is connected. The defaults are those of `ibv_rc_pingpong`, with more READs and atomics outstanding.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// Payload of a full packet; `None`: the largest that the link carries.
    pub path_mtu: Option<Mtu>,
    /// What the peer may do.
    pub access: Access,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// RNR retries, 7 = for ever.
    pub rnr_retry: u8,
    /// RNR timer code that we ask of the peer.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding, both ways.
    pub max_rd_atomic: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level: the priority, where that goes by it (0 to 7).
    pub sl: u8,
    /// TTL.
    pub hop_limit: u8,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            path_mtu: None,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            traffic_class: 0,
            sl: 0,
            hop_limit: 64,
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    device: Device,
    handle: QpHandle,
    qp_type: QpType,
    sends: Mutex<SendRing>,
    /// Its own; `None`: it shares one, or has none.
    receives: Option<Mutex<RecvRing>>,
    /// The state as last set here; the device may have gone on to ERR.
    state: AtomicU32,
    posts: AtomicU32,
    _uses: Kept,
}

/// What an object keeps alive.
pub(super) type Kept = Vec<Arc<dyn std::fmt::Debug + Send + Sync>>;

impl Drop for QueuePair {
    fn drop(&mut self) {
        let _ = self.device.call(Command::DestroyQp(self.handle.index));
    }
}

impl QueuePair {
    pub(super) fn new(
        device: &Device,
        handle: QpHandle,
        qp_type: QpType,
        sends: SendRing,
        receives: Option<RecvRing>,
        uses: Kept,
    ) -> QueuePair {
        QueuePair {
            device: device.clone(),
            handle,
            qp_type,
            sends: Mutex::new(sends),
            receives: receives.map(Mutex::new),
            state: AtomicU32::new(QpState::Reset as u32),
            posts: AtomicU32::new(0),
            _uses: uses,
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.handle.qpn
    }

    /// Its service.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// It takes its receives from a queue of its own.
    pub(super) fn has_own_receives(&self) -> bool {
        self.receives.is_some()
    }

    /// Its place in the device's table.
    pub fn index(&self) -> QpIndex {
        self.handle.index
    }

    /// What a peer must know to connect to it: its number, a random first PSN, the address at a GID index.
    pub fn endpoint(&self, gid_index: usize) -> Result<Endpoint, DeviceError> {
        let gid = self.device.gid(gid_index)?;
        Ok(Endpoint { qpn: self.qpn(), psn: Psn::new(random() as u32), gid })
    }

    /// Sets attributes and state, as `ibv_modify_qp`.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), DeviceError> {
        self.device.call(Command::ModifyQp(self.handle.index, Box::new(*attr)))?;
        if let Some(state) = attr.state {
            self.state.store(state as u32, Relaxed);
        }
        Ok(())
    }

    /// How it is.
    pub fn query(&self) -> Result<QpStatus, DeviceError> {
        match self.device.call(Command::QueryQp(self.handle.index))? {
            Answer::QpStatus(status) => Ok(*status),
            other => unexpected(&other),
        }
    }

    /// How fast it may send by now, and what decides that: its reaction point's rate, target, alpha and round trip, bounded by what
    /// [`set_rate_limit`](QueuePair::set_rate_limit) and its path say. `None`: nothing holds it back. A command, as
    /// [`query`](QueuePair::query): a few microseconds.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn control_state(&self) -> Result<Option<State>, DeviceError> {
        self.query().map(|status| status.control)
    }

    /// What happened to it that was not routine, oldest first: states, what it dropped and refused, when it went back and
    /// why. The newest [`LOG_LENGTH`](crate::nic::LOG_LENGTH) are kept, and what repeats is one.
    pub fn log(&self) -> Result<Vec<QpRecord>, DeviceError> {
        match self.device.call(Command::QueryLog(self.handle.index))? {
            Answer::QpLog(records) => Ok(records),
            other => unexpected(&other),
        }
    }

    /// RESET to INIT: receives may be posted, what the peer may do is known.
    pub fn initialize(&self, access: Access) -> Result<(), DeviceError> {
        self.modify(&QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(access),
            ..QpAttr::default()
        })
    }

    /// Gives it a reaction point that is not the device's; `None`: the device's again.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn set_control(&self, settings: Option<Settings>) -> Result<(), DeviceError> {
        self.device.call(Command::SetQpControl(self.handle.index, settings.map(Box::new))).map(|_| ())
    }

    /// Bounds how fast it sends (`ibv_modify_qp_rate_limit`); in RTS.
    ///
    /// # Errors
    /// If it is in another state, or the device has failed.
    pub fn set_rate_limit(&self, limit: RateLimit) -> Result<(), DeviceError> {
        self.modify(&QpAttr { rate_limit: Some(limit), ..QpAttr::default() })
    }

    /// RESET (or INIT) to RTS: resolves the way to `there` and connects.
    pub fn connect(
        &self,
        here: &Endpoint,
        there: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        if self.state.load(Relaxed) == QpState::Reset as u32 {
            self.initialize(options.access)?;
        }
        let way = AhOptions {
            traffic_class: options.traffic_class,
            sl: options.sl,
            hop_limit: options.hop_limit,
            ..AhOptions::default()
        };
        let av = self.device.address_vector(here.gid, there.gid, &way)?;
        // What goes without answers, or has none to give, has none to bound or to wait for.
        let (answers, asks) = (self.qp_type.is_reliable_responder(), self.qp_type.is_reliable_requester());
        self.modify(&QpAttr {
            state: Some(QpState::Rtr),
            av: Some(av),
            path_mtu: Some(options.path_mtu.unwrap_or_else(|| self.device.largest_mtu())),
            dest_qpn: Some(there.qpn),
            rq_psn: Some(there.psn),
            max_dest_rd_atomic: answers.then_some(options.max_rd_atomic),
            min_rnr_timer: answers.then_some(options.min_rnr_timer),
            ..QpAttr::default()
        })?;
        self.modify(&QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(here.psn),
            timeout: (asks || answers).then_some(options.timeout),
            retry_cnt: asks.then_some(options.retry_cnt),
            rnr_retry: asks.then_some(options.rnr_retry),
            max_rd_atomic: asks.then_some(options.max_rd_atomic),
            ..QpAttr::default()
        })
    }

    /// Posts a send work request with a scatter/gather list.
    pub fn post_send(&self, wr: &SendWr, sges: &[Sge]) -> Result<(), PostError> {
        self.post(wr, Payload::Sges(sges))
    }

    /// Posts a send work request with its payload inside.
    pub fn post_send_inline(&self, wr: &SendWr, bytes: &[u8]) -> Result<(), PostError> {
        self.post(wr, Payload::Inline(bytes))
    }

    fn post(&self, wr: &SendWr, payload: Payload<'_>) -> Result<(), PostError> {
        self.check_send(wr)?;
        let outstanding = {
            let sends = lock(&self.sends);
            sends.post(wr, payload)?;
            sends.outstanding()
        };
        self.posted(outstanding);
        Ok(())
    }

    /// Writes a send work request behind `staged` others that are written and not published: the NIC sees none of them before
    /// [`publish`](QueuePair::publish), and what never is published never was. Meanwhile nobody else may post to the QP.
    pub fn stage(&self, staged: u32, wr: &SendWr, payload: Payload<'_>) -> Result<(), PostError> {
        self.check_send(wr)?;
        lock(&self.sends).stage(staged, wr, payload)
    }

    /// Shows the NIC `count` staged work requests, with one ring of the doorbell.
    pub fn publish(&self, count: u32) {
        let outstanding = {
            let sends = lock(&self.sends);
            sends.publish(count);
            sends.outstanding()
        };
        self.posted(outstanding);
    }

    fn check_send(&self, wr: &SendWr) -> Result<(), PostError> {
        self.check_state(|state| matches!(state, QpState::Reset | QpState::Init | QpState::Rtr))?;
        if !self.qp_type.serves(wr.opcode) {
            return Err(PostError::NotServed { opcode: wr.opcode, qp_type: self.qp_type });
        }
        Ok(())
    }

    fn posted(&self, outstanding: u32) {
        let posts = self.posts.fetch_add(1, Relaxed);
        self.device.inner.engine.posted(self.handle.index, outstanding, posts);
    }

    /// Posts a receive.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.check_state(|state| state == QpState::Reset)?;
        let receives = self.receives.as_ref().ok_or(PostError::NoReceiveQueue)?;
        if lock(receives).post(wr_id, sges)? {
            self.device.inner.engine.doorbells().ring(self.handle.index);
        }
        Ok(())
    }

    pub(super) fn check_state(&self, refused: impl Fn(QpState) -> bool) -> Result<(), PostError> {
        if self.device.has_failed() {
            return Err(PostError::DeviceFatal);
        }
        match QpState::from_code(self.state.load(Relaxed)) {
            Some(state) if refused(state) => Err(PostError::WrongState(state)),
            _ => Ok(()),
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
