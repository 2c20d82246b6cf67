//! The application's queue pairs.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::ah_options::AhOptions;
use super::device::Device;
use super::error::{DeviceError, unexpected};
use super::pd::KeptObjects;
use super::selective_repeat::SelectiveRepeat;
use roxie_base::random::unguessable;
use roxie_base::threads::lock;
use roxie_nic::congestion::{Settings, State};
use roxie_nic::nic::{Answer, Command, QpHandle, QpRecord, QpStatus};
use roxie_nic::shared::work_queue::Payload;
use roxie_nic::shared::{PostError, RecvRing, SendRing};
use roxie_nic::verbs::{
    Access, LocalGid, Mtu, Psn, QpAttr, QpIndex, QpState, QpType, Qpn, RateLimit, SendWr, Sge,
};
use roxie_wire::{Encapsulation, Gid};

/// One end of a connection, as the other end must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The QPN, to which the peer sends.
    pub qpn: Qpn,
    /// The first PSN sent.
    pub psn: Psn,
    /// The device's address, as a GID.
    pub gid: Gid,
    /// RoCE version and VLAN of the device's GID. Not told to the peer: they mean nothing in the peer's endpoint.
    pub encapsulation: Encapsulation,
}

impl Endpoint {
    /// Returns an endpoint as a peer has told it.
    pub fn new(qpn: Qpn, psn: Psn, gid: Gid) -> Endpoint {
        Endpoint { qpn, psn, gid, encapsulation: Encapsulation::default() }
    }
}

/// Parameters of a connection. The defaults are as in `ibv_rc_pingpong`, with more outstanding READs and atomics.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// Payload of a full packet; `None`: the largest that the link carries.
    pub path_mtu: Option<Mtu>,
    /// Access for the peer.
    pub access: Access,
    /// Local ACK timeout code: 4.096 us * 2^code.
    pub timeout: u8,
    /// Maximum number of retransmissions before the connection fails, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retries; 7: infinite.
    pub rnr_retry: u8,
    /// RNR timer code that the peer shall wait for.
    pub min_rnr_timer: u8,
    /// Maximum number of outstanding READs and atomics, in each direction.
    pub max_rd_atomic: u8,
    /// Traffic class or type of service: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Service level, 0 to 7: the priority, if priorities are taken from service levels.
    pub sl: u8,
    /// Time to live of IPv4, hop limit of IPv6; 0: the route's.
    pub hop_limit: u8,
    /// Send lost packets alone again (selective repeat), instead of everything from the lost one on. RC only, and only
    /// if the peer does so too: both ends must have agreed. `None`: as the device is configured
    /// ([`SelectiveRepeat::Assume`], or not).
    pub selective_repeat: Option<bool>,
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
            hop_limit: 0,
            selective_repeat: None,
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
    /// The QP's own receive queue; `None`: it has a shared one, or none.
    receives: Option<Mutex<RecvRing>>,
    /// The state last set here. The device may have moved the QP to ERR since.
    state: AtomicU32,
    posts: AtomicU32,
    _uses: KeptObjects,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.device.inner.qps.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.handle.qpn);
        let _ = self.device.execute(Command::DestroyQp(self.handle.index));
    }
}

impl QueuePair {
    pub(super) fn new(
        device: &Device,
        handle: QpHandle,
        qp_type: QpType,
        sends: SendRing,
        receives: Option<RecvRing>,
        uses: KeptObjects,
    ) -> QueuePair {
        device.inner.qps.lock().unwrap_or_else(PoisonError::into_inner).insert(handle.qpn, handle.index);
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

    /// The QPN.
    pub fn qpn(&self) -> Qpn {
        self.handle.qpn
    }

    /// The QP's type.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// True if the QP has a receive queue of its own.
    pub(super) fn has_own_receives(&self) -> bool {
        self.receives.is_some()
    }

    /// Index of the QP in the device's table.
    pub fn index(&self) -> QpIndex {
        self.handle.index
    }

    /// Returns what a peer must know to connect: QPN, a random first PSN, and the address at a GID index.
    ///
    /// # Errors
    /// If there is no address at that index.
    pub fn endpoint(&self, gid_index: usize) -> Result<Endpoint, DeviceError> {
        let LocalGid { gid, encapsulation } = self.device.local_gid(gid_index)?;
        Ok(Endpoint { qpn: self.qpn(), psn: Psn::new(unguessable() as u32), gid, encapsulation })
    }

    /// Sets attributes and state, as `ibv_modify_qp` does.
    ///
    /// # Errors
    /// If the transition is not allowed, or attributes are missing, not allowed or out of range. The error names them.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), DeviceError> {
        let mut attr = Box::new(*attr);
        if attr.state == Some(QpState::Rtr) && self.device.selective_repeat() == SelectiveRepeat::Assume {
            attr.selective_repeat = attr.selective_repeat.or(Some(true));
        }
        let state = attr.state;
        self.device.execute(Command::ModifyQp(self.handle.index, attr))?;
        if let Some(state) = state {
            self.state.store(state as u32, Relaxed);
        }
        Ok(())
    }

    /// Returns the QP's status.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn query(&self) -> Result<QpStatus, DeviceError> {
        match self.device.execute(Command::QueryQp(self.handle.index))? {
            Answer::QpStatus(status) => Ok(*status),
            other => unexpected(&other),
        }
    }

    /// Returns the state of the QP's congestion control: rate, target, alpha and round trip of its reaction point,
    /// within the limits of [`set_rate_limit`](QueuePair::set_rate_limit) and the path. `None`: the rate is unlimited.
    /// Takes a few microseconds, as [`query`](QueuePair::query) does.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn control_state(&self) -> Result<Option<State>, DeviceError> {
        self.query().map(|status| status.control)
    }

    /// Returns the log of exceptional events, oldest first: state changes, dropped and rejected packets,
    /// retransmissions with their reasons. The log keeps the newest [`LOG_LENGTH`](roxie_nic::nic::LOG_LENGTH);
    /// repetitions count as one.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn log(&self) -> Result<Vec<QpRecord>, DeviceError> {
        match self.device.execute(Command::QueryLog(self.handle.index))? {
            Answer::QpLog(records) => Ok(records),
            other => unexpected(&other),
        }
    }

    /// Moves the QP from RESET to INIT, with this access for the peer. Receives may then be posted.
    ///
    /// # Errors
    /// If the QP is not in RESET.
    pub fn initialize(&self, access: Access) -> Result<(), DeviceError> {
        self.modify(&QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(access),
            ..QpAttr::default()
        })
    }

    /// Gives the QP congestion control settings of its own; `None`: the device's.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn set_control(&self, settings: Option<Settings>) -> Result<(), DeviceError> {
        self.device.execute(Command::SetQpControl(self.handle.index, settings.map(Box::new))).map(|_| ())
    }

    /// Limits the QP's rate in RTS (`ibv_modify_qp_rate_limit`).
    ///
    /// # Errors
    /// If the QP is not in RTS, or the device has failed.
    pub fn set_rate_limit(&self, limit: RateLimit) -> Result<(), DeviceError> {
        self.modify(&QpAttr { rate_limit: Some(limit), ..QpAttr::default() })
    }

    /// Moves the QP from RESET or INIT to RTS, connected to `there`. Blocks while the path is resolved.
    ///
    /// # Errors
    /// If the QP is in another state, the peer is unreachable, or the path MTU does not fit the link.
    pub fn connect(
        &self,
        here: &Endpoint,
        there: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        if self.state.load(Relaxed) == QpState::Reset as u32 {
            self.initialize(options.access)?;
        }
        let ah_options = AhOptions {
            traffic_class: options.traffic_class,
            sl: options.sl,
            hop_limit: options.hop_limit,
            ..AhOptions::default()
        };
        let source = LocalGid { gid: here.gid, encapsulation: here.encapsulation };
        let av = self.device.address_vector(source, there.gid, &ah_options)?;
        // Attributes of acknowledgements apply only to QP types that send or expect them.
        let (answers, requests) =
            (self.qp_type.is_reliable_responder(), self.qp_type.is_reliable_requester());
        self.modify(&QpAttr {
            state: Some(QpState::Rtr),
            av: Some(av),
            path_mtu: Some(options.path_mtu.unwrap_or_else(|| self.device.largest_mtu())),
            dest_qpn: Some(there.qpn),
            rq_psn: Some(there.psn),
            max_dest_rd_atomic: answers.then_some(options.max_rd_atomic),
            min_rnr_timer: answers.then_some(options.min_rnr_timer),
            selective_repeat: options.selective_repeat,
            ..QpAttr::default()
        })?;
        self.modify(&QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(here.psn),
            timeout: (requests || answers).then_some(options.timeout),
            retry_cnt: requests.then_some(options.retry_cnt),
            rnr_retry: requests.then_some(options.rnr_retry),
            max_rd_atomic: requests.then_some(options.max_rd_atomic),
            ..QpAttr::default()
        })
    }

    /// Posts a send work request with a scatter/gather list.
    ///
    /// # Errors
    /// If the queue is full or its state allows no sends, the list is too long, or the QP type does not support the
    /// operation.
    pub fn post_send(&self, wr: &SendWr, sges: &[Sge]) -> Result<(), PostError> {
        self.post(wr, Payload::Sges(sges))
    }

    /// Posts a send work request with inline payload.
    ///
    /// # Errors
    /// The errors of [`QueuePair::post_send`]; also if the payload is longer than `max_inline`.
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
        self.start_sending(outstanding);
        Ok(())
    }

    /// Writes a send work request behind `staged` unpublished ones. The NIC sees none of them before
    /// [`publish`](QueuePair::publish); those never published are discarded. Meanwhile no other thread may post to the
    /// QP.
    ///
    /// # Errors
    /// The errors of [`QueuePair::post_send`] and [`QueuePair::post_send_inline`].
    pub fn stage(&self, staged: u32, wr: &SendWr, payload: Payload<'_>) -> Result<(), PostError> {
        self.check_send(wr)?;
        lock(&self.sends).stage(staged, wr, payload)
    }

    /// Publishes `count` staged work requests, with one ring of the doorbell.
    pub fn publish(&self, count: u32) {
        let outstanding = {
            let sends = lock(&self.sends);
            sends.publish(count);
            sends.outstanding()
        };
        self.start_sending(outstanding);
    }

    fn check_send(&self, wr: &SendWr) -> Result<(), PostError> {
        self.check_state(|state| matches!(state, QpState::Reset | QpState::Init | QpState::Rtr))?;
        if !self.qp_type.serves(wr.opcode) {
            return Err(PostError::NotServed { opcode: wr.opcode, qp_type: self.qp_type });
        }
        Ok(())
    }

    fn start_sending(&self, outstanding: u32) {
        let posts = self.posts.fetch_add(1, Relaxed);
        self.device.inner.adapter.ring_doorbell(self.handle.index, outstanding, posts);
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// If the queue is full, the list is too long, or the QP is in RESET or has no receive queue of its own.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.check_state(|state| state == QpState::Reset)?;
        let receives = self.receives.as_ref().ok_or(PostError::NoReceiveQueue)?;
        if lock(receives).post(wr_id, sges)? {
            self.device.inner.adapter.ring_for_receive(self.handle.index);
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
