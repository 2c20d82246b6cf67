//! Control commands: what an application asks of the device, and what it is told.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::CongestionConfig;
use super::log::QpRecord;
use super::memory_command::MemoryCommand;
use crate::addressee::listens_for;
use crate::congestion::{Settings, SharedRate, State};
use crate::time::Nanos;
use crate::transport::send_queue::SendQueue;
use crate::verbs::{
    Access, AddressVector, AhId, CqIndex, FlowId, FlowRule, Gid, ModifyError, MrIndex, MwIndex, MwType,
    OpenXrcd, PdId, Psn, QpAttr, QpAttributes, QpCaps, QpIndex, QpInit, QpState, QpType, Qpn, Rss, SrqIndex,
    SrqKind, Srqn, XrcdId,
};

/// What an application asks of the device. Those that carry memory are no messages by themselves.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// Makes a protection domain.
    AllocPd,
    /// Removes one that nothing uses.
    DeallocPd(PdId),
    /// Takes a region out. When the answer comes, nothing touches it any more.
    DeregisterMemory(MrIndex),
    /// The same for a region whose owner is gone: windows that are bound to it are unbound first.
    ReleaseMemory(MrIndex),
    /// Makes a memory window.
    AllocWindow {
        /// For users of this domain.
        pd: PdId,
        /// Type 1, which a call binds, or type 2, which a work request binds.
        kind: MwType,
    },
    /// Asks for the key that the next bind of a window of type 1 gives it.
    NextWindowKey(MwIndex),
    /// Removes a window, bound or not.
    FreeWindow(MwIndex),
    /// Holds the events of a completion queue back (`ibv_modify_cq`); completions come as ever.
    ModerateCq {
        /// The queue whose events are moderated.
        cq: CqIndex,
        /// Completions for one event; 0 or 1: an event comes at once.
        count: u32,
        /// From the first of them on, when it comes at the latest.
        period: Nanos,
    },
    /// Removes one that no QP uses.
    DestroyCq(CqIndex),
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
    /// Makes a QP that spreads what is steered to it over others.
    CreateRssQp(PdId, Box<Rss>),
    /// Changes a QP's attributes and state.
    ModifyQp(QpIndex, Box<QpAttr>),
    /// Gives a QP a reaction point that is not the device's; `None`: the device's again.
    SetQpControl(QpIndex, Option<Box<Settings>>),
    /// Draw QPNs whose upper 8 bits are these, from now on: others have those of other units. Without, all are the device's.
    AddQpnUnit(u8),
    /// Hand management datagrams that are for these to a QP1 besides the NIC's own.
    RouteGsi(QpIndex, Box<GsiRoutes>),
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
    // Messages count the variants that they have: those that are none come last.
    /// Has what a QP sends count against a rate that it has together with others, until its end.
    #[serde(skip)]
    ShareRate(QpIndex, SharedRate),
    /// One of those that carry memory.
    #[serde(skip)]
    Memory(Box<MemoryCommand>),
    /// Makes a QP with this copy of its send queue ([`prepare`](Command::prepare)).
    #[serde(skip)]
    CreatePrepared(Box<MemoryCommand>, SendQueue),
    /// How all QPs react to congestion, and what traffic classes there are, from now on.
    #[serde(skip)]
    SetCongestion(Box<CongestionConfig>),
}

impl Command {
    /// Allocates and zeroes the memory that a QP takes: up to 20 MB, some 20 ms, which are the caller's and not a pass's.
    ///
    /// # Errors
    /// If its sizes are beyond the limits, or there is no memory.
    pub fn prepare(self) -> Result<Command, ControlError> {
        let Command::Memory(command) = self else { return Ok(self) };
        let MemoryCommand::CreateQp { init, .. } = &*command else { return Ok(Command::Memory(command)) };
        let QpInit { caps, .. } = init;
        if let Some((what, value, limit)) = caps.beyond_limit() {
            return Err(ControlError::TooLarge { what, value: value.into(), limit: limit.into() });
        }
        let queue = SendQueue::new(caps.max_send_wr, caps.max_send_sge, caps.max_inline);
        let queue = queue.map_err(|_| ControlError::NoMemory("QP"))?;
        Ok(Command::CreatePrepared(command, queue))
    }
}

impl From<MemoryCommand> for Command {
    fn from(command: MemoryCommand) -> Command {
        Command::Memory(Box::new(command))
    }
}

/// What the device answers.
#[derive(Debug, Serialize, Deserialize)]
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
    /// A flow.
    Flow(FlowId),
    /// How all QPs are.
    Qps(Vec<QpStatus>),
    // As in `Command`.
    /// A completion queue moves to another ring, in steps: [`Nic::go_on_moving`](super::Nic::go_on_moving) answers in the end.
    #[serde(skip)]
    Moving(CqIndex),
    /// What happened to a QP, oldest first.
    #[serde(skip)]
    QpLog(Vec<QpRecord>),
}

/// What of the management datagrams belongs to a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GsiRoutes {
    /// What its communication IDs begin with.
    pub units: Vec<u8>,
    /// The services that it listens for: an address, one unspecified for all of its family, or none for all. They are sorted.
    services: Vec<(u64, Option<IpAddr>)>,
}

impl GsiRoutes {
    /// Routes of a process that has these units and listens for these services.
    pub fn new(units: Vec<u8>, mut services: Vec<(u64, Option<IpAddr>)>) -> GsiRoutes {
        services.sort_unstable();
        GsiRoutes { units, services }
    }

    /// True if it listens for requests for a service to an address.
    pub(super) fn serve(&self, service: u64, address: IpAddr) -> bool {
        listens_for(address).iter().any(|on| self.services.binary_search(&(service, *on)).is_ok())
    }
}

/// Names a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpHandle {
    /// The index in the table of QPs, by which doorbells name it.
    pub index: QpIndex,
    /// The number on the wire, 24 bits.
    pub qpn: Qpn,
}

/// How a QP is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpStatus {
    /// Which QP it is: index and number.
    pub handle: QpHandle,
    /// The service, which never changes.
    pub qp_type: QpType,
    /// The state at the time of the question.
    pub state: QpState,
    /// The attributes that are in force.
    pub attributes: QpAttributes,
    /// The sizes of its queues. Those of a receive queue that is not its own are 0.
    pub caps: QpCaps,
    /// Every send completes, whether or not it asks to be signalled.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SrqStatus {
    /// The index in the table of shared receive queues.
    pub index: SrqIndex,
    /// The number by which XRC requests name it.
    pub number: Srqn,
    /// The domain of the memory that its receives name.
    pub pd: PdId,
    /// What it is for.
    pub kind: SrqKind,
    /// Receives that it holds at most.
    pub max_wr: u32,
    /// Entries that a receive may have.
    pub max_sge: u32,
    /// The armed limit; 0: none, or it was reached.
    pub limit: u32,
    /// Receives that no QP has taken yet.
    pub waiting: u32,
    /// It is broken: nothing is taken from it any more.
    pub failed: bool,
}

/// How many objects a device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Protection domains that are allocated.
    pub pds: usize,
    /// Completion queues that are made.
    pub cqs: usize,
    /// Queue pairs that are made.
    pub qps: usize,
    /// Shared receive queues that are made.
    pub srqs: usize,
    /// XRC domains that are open.
    pub xrcds: usize,
    /// Memory regions and windows.
    pub memory: usize,
    /// Address handles that are made.
    pub handles: usize,
    /// Flows that are attached.
    pub flows: usize,
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
        /// The kind of object, for people.
        object: &'static str,
        /// How many objects still use it.
        users: u32,
    },
    /// The table is full (`ENOMEM`).
    #[error("the device has no room for another {object}: its limit is {limit}")]
    Full {
        /// The kind of object, for people.
        object: &'static str,
        /// How many there may be.
        limit: u32,
    },
    /// A value is beyond what the device offers (`EINVAL`).
    #[error("{what} = {value} is more than the device offers, {limit}")]
    TooLarge {
        /// The number that was too large, for people.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The largest value that there can be.
        limit: u64,
    },
    /// A smaller queue than what is in it (`EINVAL`).
    #[error(
        "the {object} holds {holds} now, which do not fit {size}; take some out first or ask for more room"
    )]
    TooSmall {
        /// The kind of object, for people.
        object: &'static str,
        /// The size that was asked for.
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
        /// The group that the port was to join.
        group: Gid,
        /// What the system said.
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
    /// The port does not take MAC control frames (what the system said).
    #[error("PAUSE and PFC frames cannot be heeded: {0}")]
    MacControl(String),
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
        /// The flags that were asked for, all of them.
        access: Access,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An object of another kind (`EINVAL`).
    #[error("{0}")]
    WrongKind(&'static str),
    /// The NIC is another process, and refuses.
    #[error("{why}")]
    Elsewhere {
        /// The errno of what it would say here.
        errno: i32,
        /// What it says.
        why: String,
    },
}

impl ControlError {
    /// What a verbs program gets for it.
    pub fn errno(&self) -> i32 {
        match self {
            ControlError::Busy { .. } | ControlError::Taken(_) => libc::EBUSY,
            ControlError::Full { .. } | ControlError::NoMemory(_) => libc::ENOMEM,
            ControlError::NoRawPackets => libc::EOPNOTSUPP,
            ControlError::DeviceFatal | ControlError::Steer(_) | ControlError::MacControl(_) => libc::EIO,
            ControlError::Elsewhere { errno, .. } => *errno,
            _ => libc::EINVAL,
        }
    }
}
