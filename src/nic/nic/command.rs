//! Control commands, and the device's answers.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::CongestionConfig;
use super::log::QpRecord;
use super::memory_command::MemoryCommand;
use super::object::{Object, ObjectKind};
use crate::congestion::{Settings, SharedRate, State};
use crate::shared::SharedReceives;
use crate::shared::remote_memory::RemoteMemory;
use crate::transport::send_queue::SendQueue;
use crate::verbs::{
    Access, AddressVector, AhId, CqIndex, FlowId, FlowRule, Gid, LocalGid, ModifyError, MrIndex, MwIndex,
    MwType, OpenXrcd, PdId, Psn, QpAttr, QpAttributes, QpCaps, QpIndex, QpState, QpType, Qpn, Rss, SrqIndex,
    SrqKind, Srqn, XrcdId,
};
use roxie_base::text::Plain;
use roxie_base::time::Nanos;
use roxie_wire::addressee::listens_for;

/// A control command. Commands that carry memory cannot be sent as messages.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// Makes a protection domain.
    AllocPd,
    /// Removes an unused protection domain.
    DeallocPd(PdId),
    /// Deregisters a region. The NIC does not access it after the answer.
    DeregisterMemory(MrIndex),
    /// Deregisters a region, and unbinds windows that are bound to it first.
    ReleaseMemory(MrIndex),
    /// Makes a memory window.
    AllocWindow {
        /// The window's protection domain.
        pd: PdId,
        /// Type 1 is bound by a call, type 2 by a work request.
        kind: MwType,
    },
    /// Returns the key of a type 1 window's next bind.
    NextWindowKey(MwIndex),
    /// Removes a window, bound or not.
    FreeWindow(MwIndex),
    /// Moderates the events of a completion queue (`ibv_modify_cq`); completions are not delayed.
    ModerateCq {
        /// The completion queue.
        cq: CqIndex,
        /// Completions per event; 0 or 1: no moderation.
        count: u32,
        /// Maximum delay of the event, from the first completion on.
        period: Nanos,
    },
    /// Removes an unused completion queue.
    DestroyCq(CqIndex),
    /// Returns the SRQ's status.
    QuerySrq(SrqIndex),
    /// Removes an SRQ without QPs. Pending receives are discarded.
    DestroySrq(SrqIndex),
    /// Opens an XRC domain.
    OpenXrcd(OpenXrcd),
    /// Closes an XRC domain once. The last close removes it, and fails while the domain is in use.
    CloseXrcd(XrcdId),
    /// Makes the target of an XRC connection, which has no queues and no protection domain of its own.
    CreateXrcTarget(XrcdId),
    /// Makes a QP that distributes frames steered to it over other QPs (receive side scaling).
    CreateRssQp(PdId, Box<Rss>),
    /// Changes a QP's attributes and state.
    ModifyQp(QpIndex, Box<QpAttr>),
    /// Gives a QP congestion control settings of its own; `None`: the device's.
    SetQpControl(QpIndex, Option<Box<Settings>>),
    /// Allocate QPNs from this unit (the upper 8 bits) as well. Without any unit, QPNs are allocated from all of them.
    AddQpnUnit(u8),
    /// Routes management datagrams that match to this QP1, which is not the NIC's own.
    RouteGsi(QpIndex, Box<GsiRoutes>),
    /// Returns the QP's status.
    QueryQp(QpIndex),
    /// Returns the QP's log of exceptional events.
    QueryLog(QpIndex),
    /// Destroys a QP in any state.
    DestroyQp(QpIndex),
    /// Makes an address handle.
    CreateAh(PdId, Box<AddressVector>),
    /// Removes an address handle. Work requests that still name it fail.
    DestroyAh(AhId),
    /// Attaches a datagram QP to a multicast group.
    AttachMulticast(QpIndex, Gid),
    /// Detaches a datagram QP from a multicast group.
    DetachMulticast(QpIndex, Gid),
    /// Steers frames of other protocols to a raw packet QP.
    CreateFlow(QpIndex, Box<FlowRule>),
    /// Removes a flow.
    DestroyFlow(FlowId),
    /// Lists the QPs.
    ListQps,
    /// Returns true if a packet of a connected QP's peer has arrived since the last such command. If none has and the
    /// flag is set, an RC QP repeats a packet that the peer must acknowledge again.
    ExamineQp(QpIndex, bool),
    // Messages encode variants by their number: variants that are no messages come last.
    /// Makes a QP share a rate with others, until it is destroyed.
    #[serde(skip)]
    ShareRate(QpIndex, SharedRate),
    /// Names the memory of the process that a QP belongs to. It is charged for copies that are under way.
    #[serde(skip)]
    SetClient(QpIndex, Arc<RemoteMemory>),
    /// A command that carries memory.
    #[serde(skip)]
    Memory(Box<MemoryCommand>),
    /// Makes a QP with this copy of its send queue ([`prepare`](Command::prepare)).
    #[serde(skip)]
    CreatePrepared(Box<MemoryCommand>, Option<SendQueue>),
    /// Adds the shared receive queue of another worker of the device, under the same name.
    #[serde(skip)]
    JoinSrq(PdId, SrqKind, Arc<SharedReceives>),
    /// Sets congestion control of all QPs, and the traffic classes.
    #[serde(skip)]
    SetCongestion(Box<CongestionConfig>),
    /// Replaces the GIDs, which only a device with GIDs of a VLAN or of RoCE v1 needs.
    #[serde(skip)]
    SetGids(Vec<LocalGid>),
}

impl Command {
    /// True if the command makes or changes an object, which takes an interface. False if it removes one, ends a QP's
    /// work, or reports.
    pub fn needs_interface(&self) -> bool {
        match self {
            Command::ModifyQp(_, attr) => !matches!(attr.state, Some(QpState::Err | QpState::Reset)),
            Command::DeallocPd(_)
            | Command::DeregisterMemory(_)
            | Command::ReleaseMemory(_)
            | Command::FreeWindow(_)
            | Command::DestroyCq(_)
            | Command::QuerySrq(_)
            | Command::DestroySrq(_)
            | Command::CloseXrcd(_)
            | Command::QueryQp(_)
            | Command::QueryLog(_)
            | Command::ExamineQp(..)
            | Command::DestroyQp(_)
            | Command::DestroyAh(_)
            | Command::DetachMulticast(..)
            | Command::DestroyFlow(_)
            | Command::ListQps => false,
            _ => true,
        }
    }

    /// Allocates and zeroes the memory that a QP takes: up to 20 MB, some 20 ms, which are the caller's and not a
    /// pass's.
    ///
    /// # Errors
    /// If its sizes are beyond the limits, or there is no memory.
    pub fn prepare(self) -> Result<Command, ControlError> {
        let Command::Memory(command) = self else { return Ok(self) };
        let MemoryCommand::CreateQp { init, .. } = &*command else { return Ok(Command::Memory(command)) };
        let queue = send_queue_of(&init.caps)?;
        Ok(Command::CreatePrepared(command, Some(queue)))
    }
}

impl From<MemoryCommand> for Command {
    fn from(command: MemoryCommand) -> Command {
        Command::Memory(Box::new(command))
    }
}

/// Allocates the NIC's copy of a send queue.
///
/// # Errors
/// The errors of [`Command::prepare`].
pub(super) fn send_queue_of(caps: &QpCaps) -> Result<SendQueue, ControlError> {
    if let Some((what, value, limit)) = caps.beyond_limit() {
        return Err(ControlError::TooLarge { what, value: value.into(), limit: limit.into() });
    }
    let queue = SendQueue::new(caps.max_send_wr, caps.max_send_sge, caps.max_inline);
    queue.map_err(|_| ControlError::NoMemory("QP"))
}

/// The device's answer to a command.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The command was executed.
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
    /// The status of a shared receive queue.
    SrqStatus(SrqStatus),
    /// An XRC domain.
    Xrcd(XrcdId),
    /// The status of a QP.
    QpStatus(Box<QpStatus>),
    /// A flow.
    Flow(FlowId),
    /// The statuses of all QPs.
    Qps(Vec<QpStatus>),
    /// True if the QP has heard from its peer.
    Heard(bool),
    // Last, as in `Command`.
    /// A completion or shared receive queue moves to another ring in steps. The last
    /// [`Nic::go_on_moving`](super::Nic::go_on_moving) answers.
    #[serde(skip)]
    Moving(Object),
    /// A QP's log, oldest first.
    #[serde(skip)]
    QpLog(Vec<QpRecord>),
}

/// The management datagrams that belong to a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GsiRoutes {
    /// Units of the client's communication IDs (their upper 8 bits).
    pub units: Vec<u8>,
    /// Service IDs that the client listens for, sorted. The address is one of the host, unspecified for all of its
    /// family, or `None` for all.
    services: Vec<(u64, Option<IpAddr>)>,
}

impl GsiRoutes {
    /// Returns the routes of a client with these units and services.
    pub fn new(units: Vec<u8>, mut services: Vec<(u64, Option<IpAddr>)>) -> GsiRoutes {
        services.sort_unstable();
        GsiRoutes { units, services }
    }

    /// True if the client listens for a service at an address.
    pub(super) fn serve(&self, service: u64, address: IpAddr) -> bool {
        listens_for(address).iter().any(|on| self.services.binary_search(&(service, *on)).is_ok())
    }
}

/// The names of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpHandle {
    /// The index in the QP table, used by doorbells.
    pub index: QpIndex,
    /// The QPN on the wire, 24 bits.
    pub qpn: Qpn,
}

/// The status of a QP.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpStatus {
    /// The QP's index and QPN.
    pub handle: QpHandle,
    /// The QP's type, which never changes.
    pub qp_type: QpType,
    /// The state when queried.
    pub state: QpState,
    /// The current attributes.
    pub attributes: QpAttributes,
    /// The sizes of the queues; 0 for a receive queue that is not the QP's own.
    pub caps: QpCaps,
    /// True if all sends generate a completion, signaled or not.
    pub sq_sig_all: bool,
    /// In SQD: true while a started work request is incomplete.
    pub draining: bool,
    /// The QP's shared receive queue, if any.
    pub srq: Option<SrqIndex>,
    /// The next PSN to send.
    pub sq_psn: Psn,
    /// The expected PSN.
    pub rq_psn: Psn,
    /// State of congestion control, if the rate is limited: current for a single QP's query, else as of the last
    /// packet.
    pub control: Option<State>,
}

/// The status of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SrqStatus {
    /// The index in the table of shared receive queues.
    pub index: SrqIndex,
    /// The SRQ number, used by XRC requests.
    pub number: Srqn,
    /// The protection domain of its receives.
    pub pd: PdId,
    /// The kind of queue.
    pub kind: SrqKind,
    /// Maximum number of receives.
    pub max_wr: u32,
    /// Maximum number of entries of a receive.
    pub max_sge: u32,
    /// The armed limit; 0: none, or already reached.
    pub limit: u32,
    /// Number of pending receives.
    pub waiting: u32,
    /// True if the queue is in error: no more receives are taken.
    pub failed: bool,
}

/// Numbers of a device's objects.
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
    /// Open XRC domains.
    pub xrcds: usize,
    /// Memory regions and windows.
    pub memory: usize,
    /// Address handles.
    pub handles: usize,
    /// Flows.
    pub flows: usize,
}

/// Why a command failed. A failed command changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The object does not exist (`EINVAL`).
    #[error("there is no such {0}")]
    NotFound(ObjectKind),
    /// Other objects use the object (`EBUSY`).
    #[error("the {object} is still used by {users} others; destroy those first")]
    Busy {
        /// The kind of object.
        object: ObjectKind,
        /// Number of users.
        users: u32,
    },
    /// The table is full (`ENOMEM`).
    #[error("the device has no room for another {object}: its limit is {limit}")]
    Full {
        /// The kind of object.
        object: ObjectKind,
        /// Maximum number of objects.
        limit: u32,
    },
    /// A value exceeds the device's limit (`EINVAL`).
    #[error("{what} = {value} is more than the device offers, {limit}")]
    TooLarge {
        /// The name of the value, as text.
        what: &'static str,
        /// The requested value.
        value: u64,
        /// The largest allowed value.
        limit: u64,
    },
    /// A queue would be smaller than its content (`EINVAL`).
    #[error(
        "the {object} holds {holds} now, which do not fit {size}; take some out first or ask for more room"
    )]
    TooSmall {
        /// The kind of object.
        object: ObjectKind,
        /// The requested size.
        size: u32,
        /// Number of entries in the queue.
        holds: u32,
    },
    /// The source of receives does not match the QP's type (`EINVAL`).
    #[error(
        "a QP of type {0:?} does not go with this place for receives: XRC initiators have none, XRC targets are made by a \
         command of their own, all others have a queue or share one"
    )]
    Receives(QpType),
    /// The system is out of memory (`ENOMEM`).
    #[error("no memory for a {0}")]
    NoMemory(&'static str),
    /// The object already exists, and can exist only once (`EBUSY`).
    #[error("the device has its {0} already; destroy that first")]
    Taken(&'static str),
    /// Only datagram QPs can join a multicast group (`EINVAL`).
    #[error("a QP of type {0:?} cannot be in a multicast group, only a datagram QP can")]
    NotDatagram(QpType),
    /// The address is no multicast address (`EINVAL`).
    #[error("{0} is no multicast address: those are 224.0.0.0/4 and ff00::/8")]
    NotMulticast(Gid),
    /// The port could not join the group.
    #[error("cannot join the multicast group {group}: {reason}")]
    Join {
        /// The multicast group.
        group: Gid,
        /// The system's error.
        reason: String,
    },
    /// The port carries only RoCE (`EOPNOTSUPP`).
    #[error(
        "this port carries no frames of other protocols, so there are no raw packet QPs: AF_XDP (--port xdp) has them"
    )]
    NoRawPackets,
    /// Frames of other protocols can only be steered to raw packet QPs (`EINVAL`).
    #[error("frames cannot be steered to a QP of type {0:?}, only to a raw packet QP")]
    NotRawPacket(QpType),
    /// The port could not steer the flow; with the system's error.
    #[error("cannot steer the flow to us: {0}")]
    Steer(String),
    /// The port cannot take frames of a VLAN; with its reason.
    #[error("frames of the VLAN cannot be received: {0}")]
    Vlan(String),
    /// The port cannot receive MAC control frames; with the system's error.
    #[error("PAUSE and PFC frames cannot be heeded: {0}")]
    MacControl(String),
    /// The attributes are not valid for the transition (`EINVAL`).
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The device has failed (`EIO`).
    #[error(
        "the device has failed: its engine panicked (see standard error), which is a bug of roxie's; \
         no thread runs it any more, so close it and open it again"
    )]
    DeviceFatal,
    /// Remote write or atomic access needs local write (`EINVAL`, IBTA 10.6.3.1).
    #[error("access {0:?}: remote write and remote atomic need local write as well")]
    AccessNeedsLocalWrite(Access),
    /// Access flags contradict one another, or the memory (`EINVAL`).
    #[error("access {access:?}: {why}")]
    Access {
        /// All requested flags.
        access: Access,
        /// The contradiction.
        why: &'static str,
    },
    /// The command has taken effect, but a copy from or to the memory has not ended in time (`EBUSY`).
    #[error(
        "a copy from or to this memory has not ended within 0.5 s and may still touch it: its program is no longer served;          leave the memory mapped until that program has ended"
    )]
    CopyOverdue,
    /// The object is of another kind (`EINVAL`).
    #[error("{0}")]
    WrongKind(&'static str),
    /// The NIC is another process, and refused the command.
    #[error("{}", Plain(.why))]
    Refused {
        /// The errno of the refusal.
        errno: i32,
        /// The text of the refusal.
        why: String,
    },
}

impl ControlError {
    /// Returns the errno for verbs programs.
    pub fn errno(&self) -> i32 {
        match self {
            ControlError::Busy { .. } | ControlError::Taken(_) | ControlError::CopyOverdue => libc::EBUSY,
            ControlError::Full { .. } | ControlError::NoMemory(_) => libc::ENOMEM,
            ControlError::NoRawPackets | ControlError::Vlan(_) => libc::EOPNOTSUPP,
            ControlError::DeviceFatal | ControlError::Steer(_) | ControlError::MacControl(_) => libc::EIO,
            ControlError::Refused { errno, .. } => *errno,
            _ => libc::EINVAL,
        }
    }
}
