//! Control commands: plain data in, plain data out, so that they can come from another process.

use super::cq::CQ;
use super::log::{QpLog, QpRecord};
use super::srq::Receives;
use super::{CongestionConfig, Nic, QpEntry, split};
use crate::congestion::{LastNotification, Settings, State};
use crate::limits::MAX_SGE;
use crate::shared::{CompletionRing, EventCounter, HostMemory, PageList, RecvRing, SendRing};
use crate::time::Nanos;
use crate::transport::coverage::{Mover, Watch};
use crate::transport::qp::Attributes;
use crate::transport::{Qp, QpConfig};
use crate::verbs::{
    Access, AddressVector, AhId, CqIndex, FlowId, FlowRule, Gid, ModifyError, MrIndex, MwIndex, MwType,
    OpenXrcd, PdId, Psn, QpAttr, QpCaps, QpIndex, QpInit, QpState, QpType, Qpn, Rss, SrqIndex, SrqInit,
    SrqKind, Srqn, XrcdId, check_transition,
};

/// What an application asks of the device.
#[derive(Debug)]
pub enum Command {
    /// Makes a protection domain.
    AllocPd,
    /// Removes one that nothing uses.
    DeallocPd(PdId),
    /// Registers memory.
    RegisterMemory {
        /// For users of this domain.
        pd: PdId,
        /// What may be done to it.
        access: Access,
        /// The address by which work requests and peers call its first byte.
        start: u64,
        /// The memory.
        memory: HostMemory,
    },
    /// Registers a region again: what is `Some` changes, with new memory its key as well. After an error it is as it was.
    ReregisterMemory {
        /// The region.
        mr: MrIndex,
        /// Its new domain.
        pd: Option<PdId>,
        /// What may be done to it.
        access: Option<Access>,
        /// New memory, and the address of its first byte.
        translation: Option<(u64, HostMemory)>,
    },
    /// Takes a region out. When the answer comes, nothing touches it any more.
    DeregisterMemory(MrIndex),
    /// The same for a region whose owner is gone: windows that are bound to it are unbound first.
    ReleaseMemory(MrIndex),
    /// Makes a region that work requests give pages and keys to.
    AllocFastMemory {
        /// For users of this domain.
        pd: PdId,
        /// The memory that pages are taken from.
        memory: HostMemory,
        /// Where the application writes which.
        pages: PageList,
    },
    /// Makes a memory window.
    AllocWindow {
        /// For users of this domain.
        pd: PdId,
        /// Its kind.
        kind: MwType,
    },
    /// Asks for the key that the next bind of a window of type 1 gives it.
    NextWindowKey(MwIndex),
    /// Removes a window, bound or not.
    FreeWindow(MwIndex),
    /// Makes a completion queue.
    CreateCq {
        /// Its ring.
        ring: CompletionRing,
        /// What to write when an armed queue gets a completion.
        notify: Option<EventCounter>,
    },
    /// Has a completion queue go on in a ring of another size: what waits is moved there in its order. Nobody may poll or
    /// arm meanwhile.
    ResizeCq {
        /// Which.
        cq: CqIndex,
        /// The new ring.
        ring: CompletionRing,
    },
    /// Holds the events of a completion queue back (`ibv_modify_cq`); completions come as ever.
    ModerateCq {
        /// Which.
        cq: CqIndex,
        /// Completions for one event; 0 or 1: an event comes at once.
        count: u32,
        /// From the first of them on, when it comes at the latest.
        period: Nanos,
    },
    /// Removes one that no QP uses.
    DestroyCq(CqIndex),
    /// Makes a shared receive queue.
    CreateSrq {
        /// Its domain: that of the memory in its lists, and for XRC of what peers reach through it.
        pd: PdId,
        /// What it is for.
        init: SrqInit,
        /// Its ring, which has its sizes.
        ring: RecvRing,
    },
    /// Changes one. Nothing may be posted to it meanwhile.
    ModifySrq {
        /// Which.
        srq: SrqIndex,
        /// A ring of another size: what waits is moved there in its order, and posts go there from then on.
        ring: Option<RecvRing>,
        /// Arms the limit: an event comes, once, when fewer receives are left. 0 disarms it.
        limit: Option<u32>,
    },
    /// Says what is so.
    QuerySrq(SrqIndex),
    /// Removes one that no QP was made for. What waits in it is forgotten.
    DestroySrq(SrqIndex),
    /// Opens an XRC domain.
    OpenXrcd(OpenXrcd),
    /// Closes one. The last to do so removes it; then nothing may be in it.
    CloseXrcd(XrcdId),
    /// Makes the target of an XRC connection: it has neither queues nor a protection domain of its own.
    CreateXrcTarget(XrcdId),
    /// Makes a QP.
    CreateQp {
        /// Its domain.
        pd: PdId,
        /// Where send completions go.
        send_cq: CqIndex,
        /// Where receive completions go.
        recv_cq: CqIndex,
        /// Its service and its sizes.
        init: QpInit,
        /// Its send queue.
        sends: SendRing,
        /// Where it takes receives from.
        receives: ReceiveSource,
    },
    /// Makes a QP that spreads what is steered to it over others.
    CreateRssQp(PdId, Box<Rss>),
    /// Changes a QP's attributes and state.
    ModifyQp(QpIndex, Box<QpAttr>),
    /// Gives a QP a reaction point that is not the device's; `None`: the device's again.
    SetQpControl(QpIndex, Option<Box<Settings>>),
    /// How all QPs react to congestion, and what traffic classes there are, from now on.
    SetCongestion(Box<CongestionConfig>),
    /// Says what is so.
    QueryQp(QpIndex),
    /// Tells what happened to a QP that was not routine.
    QueryLog(QpIndex),
    /// Destroys a QP, whatever it is doing.
    DestroyQp(QpIndex),
    /// Makes an address handle.
    CreateAh(PdId, Box<AddressVector>),
    /// Removes one. Work requests that still name it fail.
    DestroyAh(AhId),
    /// Has a datagram QP get what is sent to a group.
    AttachMulticast(QpIndex, Gid),
    /// Ends that.
    DetachMulticast(QpIndex, Gid),
    /// Steers frames of other protocols to a raw packet QP.
    CreateFlow(QpIndex, Box<FlowRule>),
    /// Ends that.
    DestroyFlow(FlowId),
    /// Lists the QPs.
    ListQps,
}

/// Where a QP takes receives from.
#[derive(Clone, Debug)]
pub enum ReceiveSource {
    /// A queue of its own.
    Own(RecvRing),
    /// One that it shares with others.
    Shared(SrqIndex),
    /// Nowhere: the initiator of an XRC connection.
    None,
}

/// What the device answers.
#[derive(Debug)]
pub enum Answer {
    /// Done.
    Done,
    /// A protection domain.
    Pd(PdId),
    /// A memory region and its key.
    Memory(MrIndex, u32),
    /// A memory window and its key.
    Window(MwIndex, u32),
    /// A key.
    Key(u32),
    /// A completion queue.
    Cq(CqIndex),
    /// A QP.
    Qp(QpHandle),
    /// An address handle.
    Ah(AhId),
    /// A shared receive queue and its number.
    Srq(SrqIndex, Srqn),
    /// How a shared receive queue is.
    SrqStatus(SrqStatus),
    /// An XRC domain.
    Xrcd(XrcdId),
    /// How a QP is.
    QpStatus(Box<QpStatus>),
    /// What happened to a QP, oldest first.
    QpLog(Vec<QpRecord>),
    /// A flow.
    Flow(FlowId),
    /// How all QPs are.
    Qps(Vec<QpStatus>),
}

/// Names a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpHandle {
    /// Its place.
    pub index: QpIndex,
    /// Its number.
    pub qpn: Qpn,
}

/// How a QP is.
#[derive(Clone, Debug)]
pub struct QpStatus {
    /// Which.
    pub handle: QpHandle,
    /// Its service.
    pub qp_type: QpType,
    /// Its state.
    pub state: QpState,
    /// Its attributes.
    pub attributes: Attributes,
    /// The sizes of its queues. Those of a receive queue that is not its own are 0.
    pub caps: QpCaps,
    /// Every send completes.
    pub sq_sig_all: bool,
    /// In SQD: something that was started is not complete yet.
    pub draining: bool,
    /// The shared receive queue that it was made for.
    pub srq: Option<SrqIndex>,
    /// The next PSN that it sends.
    pub sq_psn: Psn,
    /// The PSN that it expects.
    pub rq_psn: Psn,
    /// How fast it may send, if somebody decides that: as of now for a QP that is asked for, else as of its last packet.
    pub control: Option<State>,
}

/// How a shared receive queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqStatus {
    /// Which.
    pub index: SrqIndex,
    /// Its number.
    pub number: Srqn,
    /// Its domain.
    pub pd: PdId,
    /// What it is for.
    pub kind: SrqKind,
    /// Receives that it holds at most.
    pub max_wr: u32,
    /// Entries that a receive may have.
    pub max_sge: u32,
    /// The armed limit; 0: none, or it was reached.
    pub limit: u32,
    /// Receives that wait.
    pub waiting: u32,
    /// It is broken.
    pub failed: bool,
}

/// How many objects a device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Protection domains.
    pub pds: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// XRC domains.
    pub xrcds: usize,
    /// Memory regions and windows.
    pub memory: usize,
    /// Address handles.
    pub handles: usize,
    /// Flows.
    pub flows: usize,
}

/// What a QP holds on to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    pub(super) pd: Option<PdId>,
    pub(super) cqs: [Option<CqIndex>; 2],
    pub(super) srq: Option<SrqIndex>,
    pub(super) xrcd: Option<XrcdId>,
}

impl Uses {
    /// A protection domain and nothing else.
    pub(super) fn domain(pd: PdId) -> Uses {
        Uses { pd: Some(pd), ..Uses::default() }
    }
}

/// Why a command was not carried out; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The object does not exist (`EINVAL`).
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// Something still uses it (`EBUSY`).
    #[error("the {object} is still used by {users} others; destroy those first")]
    Busy {
        /// What it is.
        object: &'static str,
        /// By how many.
        users: u32,
    },
    /// The table is full (`ENOMEM`).
    #[error("the device has no room for another {object}: its limit is {limit}")]
    Full {
        /// What it is.
        object: &'static str,
        /// How many there may be.
        limit: u32,
    },
    /// A value is beyond what the device offers (`EINVAL`).
    #[error("{what} = {value} is more than the device offers, {limit}")]
    TooLarge {
        /// Which.
        what: &'static str,
        /// What was asked.
        value: u64,
        /// What there is.
        limit: u64,
    },
    /// A smaller queue than what is in it (`EINVAL`).
    #[error(
        "the {object} holds {holds} now, which do not fit {size}; take some out first or ask for more room"
    )]
    TooSmall {
        /// What it is.
        object: &'static str,
        /// What was asked.
        size: u32,
        /// What is in it.
        holds: u32,
    },
    /// Receives from a place that does not go with the QP's type (`EINVAL`).
    #[error(
        "a QP of type {0:?} does not go with this place for receives: XRC initiators have none, XRC targets are made by a \
         command of their own, all others have a queue or share one"
    )]
    Receives(QpType),
    /// The system has no memory for it (`ENOMEM`).
    #[error("no memory for a {0}")]
    NoMemory(&'static str),
    /// There may be one of it (`EBUSY`).
    #[error("the device has its {0} already; destroy that first")]
    Taken(&'static str),
    /// Only datagram QPs can be in a group (`EINVAL`).
    #[error("a QP of type {0:?} cannot be in a multicast group, only a datagram QP can")]
    NotDatagram(QpType),
    /// Not the address of a group (`EINVAL`).
    #[error("{0} is no multicast address: those are 224.0.0.0/4 and ff00::/8")]
    NotMulticast(Gid),
    /// The port could not join (what the system said).
    #[error("cannot join the multicast group {group}: {reason}")]
    Join {
        /// Which.
        group: Gid,
        /// Why.
        reason: String,
    },
    /// The port carries RoCE and nothing else (`EOPNOTSUPP`).
    #[error(
        "this port carries no frames of other protocols, so there are no raw packet QPs: AF_XDP (--port xdp) has them"
    )]
    NoRawPackets,
    /// Only raw packet QPs take frames of other protocols (`EINVAL`).
    #[error("frames cannot be steered to a QP of type {0:?}, only to a raw packet QP")]
    NotRawPacket(QpType),
    /// The port could not steer (what the system said).
    #[error("cannot steer the flow to us: {0}")]
    Steer(String),
    /// The attributes do not make a transition (`EINVAL`).
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The device has failed (`EIO`).
    #[error(
        "the device has failed: its engine panicked (see standard error), which is a bug of roxie's; \
         nothing turns it any more, so close it and open it again"
    )]
    DeviceFatal,
    /// Remote write or atomic access needs local write (`EINVAL`, IBTA 10.6.3.1).
    #[error("access {0:?}: remote write and remote atomic need local write as well")]
    AccessNeedsLocalWrite(Access),
    /// Access flags that do not go together, or not with this memory (`EINVAL`).
    #[error("access {access:?}: {why}")]
    Access {
        /// What was asked.
        access: Access,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An object of another kind (`EINVAL`).
    #[error("{0}")]
    WrongKind(&'static str),
}

impl Nic {
    /// Carries a command out, between two bursts.
    pub fn execute(&mut self, now: Nanos, command: Command) -> Result<Answer, ControlError> {
        match command {
            Command::AllocPd => {
                let limit = self.config.limits.mrs;
                let pd =
                    self.pds.insert(0).ok_or(ControlError::Full { object: "protection domain", limit })?;
                Ok(Answer::Pd(PdId(pd)))
            }
            Command::DeallocPd(pd) => self.dealloc_pd(pd),
            Command::RegisterMemory { pd, access, start, memory } => self.register(pd, access, start, memory),
            Command::ReregisterMemory { mr, pd, access, translation } => {
                self.reregister(mr, pd, access, translation)
            }
            Command::DeregisterMemory(mr) => self.deregister(mr),
            Command::ReleaseMemory(mr) => {
                self.memory.unbind_windows(mr);
                self.deregister(mr)
            }
            Command::AllocFastMemory { pd, memory, pages } => self.alloc_fast(pd, memory, pages),
            Command::AllocWindow { pd, kind } => self.alloc_window(pd, kind),
            Command::NextWindowKey(window) => self.next_window_key(window),
            Command::FreeWindow(window) => self.free_window(window),
            Command::CreateCq { ring, notify } => self.create_cq(ring, notify),
            Command::ResizeCq { cq, ring } => self.resize_cq(cq, ring),
            Command::ModerateCq { cq, count, period } => self.moderate_cq(cq, count, period),
            Command::DestroyCq(cq) => self.destroy_cq(cq),
            Command::CreateQp { pd, send_cq, recv_cq, init, sends, receives } => {
                self.create_qp(pd, (send_cq, recv_cq), init, sends, receives)
            }
            Command::CreateRssQp(pd, rss) => self.create_rss_qp(pd, rss),
            Command::CreateXrcTarget(xrcd) => self.create_xrc_target(xrcd),
            Command::CreateSrq { pd, init, ring } => self.create_srq(pd, init, ring),
            Command::ModifySrq { srq, ring, limit } => self.modify_srq(srq, ring, limit),
            Command::QuerySrq(srq) => self.query_srq(srq),
            Command::DestroySrq(srq) => self.destroy_srq(srq),
            Command::OpenXrcd(open) => self.open_xrcd(open),
            Command::CloseXrcd(xrcd) => self.close_xrcd(xrcd),
            Command::ModifyQp(qp, attr) => self.modify_qp(now, qp, &attr),
            Command::SetQpControl(qp, settings) => {
                let entry = self.qps.get_mut(qp.0).ok_or(ControlError::NotFound("QP"))?;
                entry.own_control = settings.map(|settings| *settings);
                self.control_anew(now, qp);
                Ok(Answer::Done)
            }
            Command::SetCongestion(config) => {
                self.set_congestion(now, *config);
                Ok(Answer::Done)
            }
            Command::QueryQp(qp) => {
                let entry = self.qps.get_mut(qp.0).ok_or(ControlError::NotFound("QP"))?;
                entry.qp.evaluate_rate(now);
                let status = status(entry);
                // Its rate may have risen, and what it holds back is due earlier.
                if status.control.is_some() {
                    self.touch(qp);
                }
                Ok(Answer::QpStatus(Box::new(status)))
            }
            Command::QueryLog(qp) => {
                let entry = self.qps.get(qp.0).ok_or(ControlError::NotFound("QP"))?;
                Ok(Answer::QpLog(entry.log.records()))
            }
            Command::DestroyQp(qp) => self.destroy_qp(qp),
            Command::CreateAh(pd, av) => self.create_ah(pd, &av),
            Command::DestroyAh(ah) => {
                let pd = self.handles.destroy(ah).ok_or(ControlError::NotFound("address handle"))?;
                self.use_pd(pd, -1)?;
                Ok(Answer::Done)
            }
            Command::AttachMulticast(qp, gid) => self.attach_multicast(qp, gid),
            Command::DetachMulticast(qp, gid) => self.detach_multicast(qp, gid),
            Command::CreateFlow(qp, rule) => self.create_flow(qp, *rule),
            Command::DestroyFlow(flow) => self.destroy_flow(flow),
            Command::ListQps => Ok(Answer::Qps(self.qps.iter().map(|(_, e)| status(e)).collect())),
        }
    }

    /// How many objects there are.
    pub fn objects(&self) -> ObjectCounts {
        let (srqs, xrcds) = self.srqs.counts();
        ObjectCounts {
            pds: self.pds.len(),
            cqs: self.cqs.len(),
            qps: self.qps.len(),
            srqs,
            xrcds,
            memory: self.memory.len(),
            handles: self.handles.len(),
            flows: self.flows.len(),
        }
    }

    pub(super) fn use_pd(&mut self, pd: PdId, change: i32) -> Result<(), ControlError> {
        let users = self.pds.get_mut(pd.0).ok_or(ControlError::NotFound("protection domain"))?;
        *users = users.saturating_add_signed(change);
        Ok(())
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<Answer, ControlError> {
        match self.pds.get(pd.0) {
            None => Err(ControlError::NotFound("protection domain")),
            Some(&users) if users > 0 => Err(ControlError::Busy { object: "protection domain", users }),
            Some(_) => {
                self.pds.remove(pd.0);
                Ok(Answer::Done)
            }
        }
    }

    fn create_ah(&mut self, pd: PdId, av: &AddressVector) -> Result<Answer, ControlError> {
        if av.sl > 7 {
            return Err(ControlError::TooLarge { what: "sl", value: av.sl.into(), limit: 7 });
        }
        self.use_pd(pd, 1)?;
        let classes = &self.congestion.config.classes;
        self.arbiter.reserve(classes.priority(av), self.qps.places() as usize);
        let tag = classes.tag(av).filter(|_| self.longest_frame.is_some());
        match self.handles.create(pd, av, tag) {
            Some(ah) => Ok(Answer::Ah(ah)),
            None => {
                self.use_pd(pd, -1)?;
                Err(ControlError::Full { object: "address handle", limit: self.handles.bound() })
            }
        }
    }

    fn create_qp(
        &mut self,
        pd: PdId,
        (send_cq, recv_cq): (CqIndex, CqIndex),
        init: QpInit,
        sends: SendRing,
        receives: ReceiveSource,
    ) -> Result<Answer, ControlError> {
        if let Some((what, value, limit)) = init.caps.beyond_limit() {
            return Err(ControlError::TooLarge { what, value: value.into(), limit: limit.into() });
        }
        if init.qp_type == QpType::RawPacket && self.longest_frame.is_none() {
            return Err(ControlError::NoRawPackets);
        }
        if init.qp_type == QpType::Gsi && self.gsi.is_some() {
            return Err(ControlError::Taken("QP1"));
        }
        if self.cq(send_cq).is_none() || self.cq(recv_cq).is_none() {
            return Err(ControlError::NotFound(CQ));
        }
        let mut uses = Uses { pd: Some(pd), cqs: [Some(send_cq), Some(recv_cq)], ..Uses::default() };
        let mut config = QpConfig {
            index: QpIndex(0),
            qpn: Qpn::default(),
            pd,
            send_cq,
            recv_cq,
            init,
            rd_atomic_limit: self.config.limits.rd_atomic,
            srq_pd: None,
        };
        let receives = match (init.qp_type, receives) {
            (QpType::XrcSend, ReceiveSource::None) => Receives::None,
            (QpType::XrcSend | QpType::XrcRecv, _) | (_, ReceiveSource::None) => {
                return Err(ControlError::Receives(init.qp_type));
            }
            (_, ReceiveSource::Own(ring)) => Receives::Own(ring, 0),
            (_, ReceiveSource::Shared(srq)) => {
                let (srq_pd, max_sge) = self.srqs.for_qp(srq)?;
                config.srq_pd = Some(srq_pd);
                config.init.caps.max_recv_sge = max_sge;
                uses.srq = Some(srq);
                Receives::Shared(srq)
            }
        };
        self.insert_qp(&config, uses, sends, receives)
    }

    fn create_xrc_target(&mut self, xrcd: XrcdId) -> Result<Answer, ControlError> {
        // Its domain and its completion queue are those of the queue that each request names.
        let (pd, cq) = (PdId(u32::MAX), CqIndex(u32::MAX));
        let caps = QpCaps { max_recv_sge: MAX_SGE as u32, ..QpCaps::NONE };
        let config = QpConfig {
            index: QpIndex(0),
            qpn: Qpn::default(),
            pd,
            send_cq: cq,
            recv_cq: cq,
            init: QpInit { qp_type: QpType::XrcRecv, caps, sq_sig_all: false },
            rd_atomic_limit: self.config.limits.rd_atomic,
            srq_pd: Some(pd),
        };
        // Nobody posts to it.
        let sends = SendRing::new(1, 0, 0).map_err(|_| ControlError::NoMemory("QP"))?;
        let uses = Uses { xrcd: Some(xrcd), ..Uses::default() };
        self.insert_qp(&config, uses, sends, Receives::Named(xrcd, None))
    }

    pub(super) fn insert_qp(
        &mut self,
        config: &QpConfig,
        uses: Uses,
        sends: SendRing,
        receives: Receives,
    ) -> Result<Answer, ControlError> {
        let reserved = (config.init.qp_type == QpType::Gsi).then_some(Qpn::GSI.value());
        let (mig_req, credits) = (self.config.mig_req, self.config.end_to_end_credits);
        self.take_hold(&uses, 1)?;
        let made = self.qps.insert_with(reserved, |index, number| {
            let mut qp = Qp::new(&QpConfig { index: QpIndex(index), qpn: Qpn::new(number), ..*config });
            qp.configure(mig_req, credits);
            Box::new(QpEntry {
                qp,
                sends,
                receives,
                rss: None,
                in_tables: 0,
                uses,
                fetched: 0,
                retired: 0,
                ready: false,
                moved: false,
                urgent: false,
                priority: 0,
                capable: false,
                notification_due: false,
                last_notification: LastNotification::default(),
                own_control: None,
                release_at: Nanos::MAX,
                touched: false,
                flushing: false,
                timer_at: Nanos::MAX,
                last_ip_id: 0,
                log: QpLog::new(),
            })
        });
        let Some(index) = made else {
            self.take_hold(&uses, -1)?;
            return Err(ControlError::Full { object: "QP", limit: self.config.limits.qps });
        };
        if reserved.is_some() {
            self.gsi = Some(QpIndex(index));
        }
        let qpn = self.qps.get(index).expect("just inserted").qp.qpn;
        Ok(Answer::Qp(QpHandle { index: QpIndex(index), qpn }))
    }

    /// A QP takes hold of what it uses (1), or lets go of it (-1). Completion queues and shared receive queues are known to
    /// be there.
    fn take_hold(&mut self, uses: &Uses, change: i32) -> Result<(), ControlError> {
        if let Some(pd) = uses.pd {
            self.use_pd(pd, change)?;
        }
        if let Some(xrcd) = uses.xrcd {
            self.srqs.use_xrcd(xrcd, change)?;
        }
        if let Some(srq) = uses.srq {
            self.srqs.use_srq(srq, change);
        }
        for cq in uses.cqs.into_iter().flatten() {
            if let Some(cq) = self.cq(cq) {
                cq.users = cq.users.saturating_add_signed(change);
            }
        }
        Ok(())
    }

    fn modify_qp(&mut self, now: Nanos, index: QpIndex, attr: &QpAttr) -> Result<Answer, ControlError> {
        let largest = self.config.largest_mtu;
        let limit = self.config.limits.rd_atomic;
        let entry = self.qps.get_mut(index.0).ok_or(ControlError::NotFound("QP"))?;
        if entry.rss.is_some() {
            return Err(ControlError::WrongKind(
                "a QP that spreads frames over others has no state of its own: modify those",
            ));
        }
        let from = entry.qp.state();
        let checked = check_transition(entry.qp.qp_type, from, attr, largest, limit);
        let next = checked.inspect_err(|_| entry.log.note_refusal(now, from, attr.state.unwrap_or(from)))?;
        split!(self, now, entry => qp, ctx);
        let watch = Watch::timer(qp);
        qp.modify(&mut ctx, attr, next);
        watch.moved(qp, Mover::Command);
        entry.notification_due &= next != QpState::Reset;
        if next == QpState::Reset {
            entry.sends.reset();
            entry.receives.reset();
            entry.fetched = 0;
            entry.retired = 0;
            entry.flushing = false;
        }
        if attr.av.is_some() || attr.rate_limit.is_some() {
            self.reclassify(index);
            self.control_anew(now, index);
        }
        // What was posted before the QP took sends, or while it drained.
        self.fetch(now, index);
        self.touch(index);
        Ok(Answer::Done)
    }

    fn destroy_qp(&mut self, index: QpIndex) -> Result<Answer, ControlError> {
        let users = self.qps.get(index.0).ok_or(ControlError::NotFound("QP"))?.in_tables;
        if users > 0 {
            return Err(ControlError::Busy { object: "QP", users });
        }
        let entry = self.qps.remove(index.0).ok_or(ControlError::NotFound("QP"))?;
        for member in entry.rss.iter().flat_map(|rss| &rss.table) {
            if let Some(member) = self.qps.get_mut(member.0) {
                member.in_tables -= 1;
            }
        }
        self.flows.remove_of(index);
        self.gsi.take_if(|gsi| *gsi == index);
        self.detach_from_all(index);
        self.wheel.cancel(index.0);
        self.memory.release_windows(index);
        if entry.release_at != Nanos::MAX {
            self.releases.cancel(index.0);
        }
        if entry.ready || entry.urgent || entry.notification_due {
            self.arbiter.remove(index);
        }
        if entry.touched {
            self.touched.retain(|touched| *touched != index);
        }
        self.take_hold(&entry.uses, -1)?;
        Ok(Answer::Done)
    }
}

fn status(entry: &QpEntry) -> QpStatus {
    let qp = &entry.qp;
    let (sq_psn, rq_psn) = qp.psns();
    let mut caps = qp.caps;
    if !matches!(entry.receives, Receives::Own(..)) {
        (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
    }
    QpStatus {
        handle: QpHandle { index: qp.index, qpn: qp.qpn },
        qp_type: qp.qp_type,
        state: qp.state(),
        attributes: *qp.attributes(),
        caps,
        sq_sig_all: qp.sig_all,
        draining: qp.is_draining(),
        srq: entry.uses.srq,
        sq_psn,
        rq_psn,
        control: qp.control_state(),
    }
}
