//! The objects of a NIC, and those that a command names, makes and removes.
//!
//! The NIC uses this to check that the objects exist. A NIC that serves other processes also checks that they belong to the
//! client.

use std::fmt;

use super::command::{Answer, Command};
use super::memory_command::{Form, MemoryCommand, ReceiveSource};
use crate::verbs::{
    AhId, CqIndex, FlowId, MrIndex, MwIndex, PdId, QpIndex, SrqIndex, SrqInit, SrqKind, XrcdId,
};

/// The name of an object of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// A protection domain.
    Pd(PdId),
    /// A memory region.
    Mr(MrIndex),
    /// A memory window.
    Window(MwIndex),
    /// A completion queue.
    Cq(CqIndex),
    /// A shared receive queue.
    Srq(SrqIndex),
    /// An XRC domain.
    Xrcd(XrcdId),
    /// A QP.
    Qp(QpIndex),
    /// An address handle.
    Ah(AhId),
    /// A flow.
    Flow(FlowId),
}

/// A kind of object, in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ObjectKind {
    /// A protection domain.
    ProtectionDomain,
    /// A memory region.
    MemoryRegion,
    /// A memory window.
    MemoryWindow,
    /// A completion queue.
    CompletionQueue,
    /// A shared receive queue.
    SharedReceiveQueue,
    /// An XRC domain.
    XrcDomain,
    /// An XRC domain that belongs to the file of the command.
    XrcDomainOfFile,
    /// A QP.
    QueuePair,
    /// An address handle.
    AddressHandle,
    /// A flow.
    Flow,
    /// A multicast group.
    MulticastGroup,
    /// A QP's membership in a multicast group.
    GroupMember,
    /// Memory for a client's queues.
    Arena,
    /// An address of the interface that packets may come from.
    SourceAddress,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectKind::ProtectionDomain => "protection domain",
            ObjectKind::MemoryRegion => "memory region",
            ObjectKind::MemoryWindow => "memory window",
            ObjectKind::CompletionQueue => "completion queue",
            ObjectKind::SharedReceiveQueue => "shared receive queue",
            ObjectKind::XrcDomain => "XRC domain",
            ObjectKind::XrcDomainOfFile => "XRC domain of this file",
            ObjectKind::QueuePair => "QP",
            ObjectKind::AddressHandle => "address handle",
            ObjectKind::Flow => "flow",
            ObjectKind::MulticastGroup => "multicast group",
            ObjectKind::GroupMember => "group member",
            ObjectKind::Arena => "arena",
            ObjectKind::SourceAddress => "address of this interface to send from",
        })
    }
}

impl Object {
    /// Returns the kind of object.
    pub fn kind(&self) -> ObjectKind {
        match self {
            Object::Pd(_) => ObjectKind::ProtectionDomain,
            Object::Mr(_) => ObjectKind::MemoryRegion,
            Object::Window(_) => ObjectKind::MemoryWindow,
            Object::Cq(_) => ObjectKind::CompletionQueue,
            Object::Srq(_) => ObjectKind::SharedReceiveQueue,
            Object::Xrcd(_) => ObjectKind::XrcDomain,
            Object::Qp(_) => ObjectKind::QueuePair,
            Object::Ah(_) => ObjectKind::AddressHandle,
            Object::Flow(_) => ObjectKind::Flow,
        }
    }
}

impl Command {
    /// Calls `judge` for each object that the command names.
    ///
    /// # Errors
    /// The first error of `judge`.
    pub fn each_object<E>(&self, mut judge: impl FnMut(Object) -> Result<(), E>) -> Result<(), E> {
        match self {
            Command::DeallocPd(pd) | Command::AllocWindow { pd, .. } | Command::CreateAh(pd, _) => {
                judge(Object::Pd(*pd))
            }
            Command::DeregisterMemory(mr) | Command::ReleaseMemory(mr) => judge(Object::Mr(*mr)),
            Command::NextWindowKey(window) | Command::FreeWindow(window) => judge(Object::Window(*window)),
            Command::ModerateCq { cq, .. } | Command::DestroyCq(cq) => judge(Object::Cq(*cq)),
            Command::QuerySrq(srq) | Command::DestroySrq(srq) => judge(Object::Srq(*srq)),
            Command::CloseXrcd(xrcd) | Command::CreateXrcTarget(xrcd) => judge(Object::Xrcd(*xrcd)),
            Command::CreateRssQp(pd, rss) => {
                judge(Object::Pd(*pd))?;
                rss.table.iter().try_for_each(|qp| judge(Object::Qp(*qp)))
            }
            Command::ModifyQp(qp, _)
            | Command::SetQpControl(qp, _)
            | Command::ShareRate(qp, _)
            | Command::RouteGsi(qp, _)
            | Command::QueryQp(qp)
            | Command::QueryLog(qp)
            | Command::DestroyQp(qp)
            | Command::AttachMulticast(qp, _)
            | Command::DetachMulticast(qp, _)
            | Command::CreateFlow(qp, _) => judge(Object::Qp(*qp)),
            Command::DestroyAh(ah) => judge(Object::Ah(*ah)),
            Command::DestroyFlow(flow) => judge(Object::Flow(*flow)),
            Command::Memory(command) | Command::CreatePrepared(command, _) => command.each_object(judge),
            Command::AllocPd
            | Command::OpenXrcd(_)
            | Command::AddQpnUnit(_)
            | Command::ListQps
            | Command::SetCongestion(_) => Ok(()),
        }
    }

    /// Returns the object that the command removes. An XRC domain is removed when it was closed as often as opened.
    pub fn takes_away(&self) -> Option<Object> {
        match self {
            Command::DeallocPd(pd) => Some(Object::Pd(*pd)),
            Command::DeregisterMemory(mr) | Command::ReleaseMemory(mr) => Some(Object::Mr(*mr)),
            Command::FreeWindow(window) => Some(Object::Window(*window)),
            Command::DestroyCq(cq) => Some(Object::Cq(*cq)),
            Command::DestroySrq(srq) => Some(Object::Srq(*srq)),
            Command::CloseXrcd(xrcd) => Some(Object::Xrcd(*xrcd)),
            Command::DestroyQp(qp) => Some(Object::Qp(*qp)),
            Command::DestroyAh(ah) => Some(Object::Ah(*ah)),
            Command::DestroyFlow(flow) => Some(Object::Flow(*flow)),
            _ => None,
        }
    }

    /// True for a command that affects the whole device, which only the NIC's owner may issue.
    pub fn is_for_the_device(&self) -> bool {
        matches!(
            self,
            Command::SetCongestion(_)
                | Command::ShareRate(..)
                | Command::AddQpnUnit(_)
                | Command::RouteGsi(..)
        )
    }
}

impl<F: Form> MemoryCommand<F> {
    /// Calls `judge` for each object that the command names.
    ///
    /// # Errors
    /// The first error of `judge`.
    pub fn each_object<E>(&self, mut judge: impl FnMut(Object) -> Result<(), E>) -> Result<(), E> {
        match self {
            MemoryCommand::RegisterMemory { pd, .. } | MemoryCommand::AllocFastMemory { pd, .. } => {
                judge(Object::Pd(*pd))
            }
            MemoryCommand::ReregisterMemory { mr, pd, .. } => {
                judge(Object::Mr(*mr))?;
                pd.map_or(Ok(()), |pd| judge(Object::Pd(pd)))
            }
            MemoryCommand::CreateCq { .. } => Ok(()),
            MemoryCommand::ResizeCq { cq, .. } => judge(Object::Cq(*cq)),
            MemoryCommand::ModifySrq { srq, .. } => judge(Object::Srq(*srq)),
            MemoryCommand::CreateSrq { pd, init: SrqInit { kind, .. }, .. } => {
                if let SrqKind::Xrc { xrcd, cq } = kind {
                    judge(Object::Cq(*cq))?;
                    judge(Object::Xrcd(*xrcd))?;
                }
                judge(Object::Pd(*pd))
            }
            MemoryCommand::CreateQp { pd, send_cq, recv_cq, receives, .. } => {
                judge(Object::Pd(*pd))?;
                judge(Object::Cq(*send_cq))?;
                judge(Object::Cq(*recv_cq))?;
                match receives {
                    ReceiveSource::Shared(srq) => judge(Object::Srq(*srq)),
                    ReceiveSource::Own(_) | ReceiveSource::None => Ok(()),
                }
            }
        }
    }

    /// Returns the object that gets another size or memory by the command.
    pub fn changes(&self) -> Option<Object> {
        match self {
            MemoryCommand::ReregisterMemory { mr, .. } => Some(Object::Mr(*mr)),
            MemoryCommand::ResizeCq { cq, .. } => Some(Object::Cq(*cq)),
            MemoryCommand::ModifySrq { srq, .. } => Some(Object::Srq(*srq)),
            _ => None,
        }
    }
}

impl Answer {
    /// Returns the object that the command has made.
    pub fn made(&self) -> Option<Object> {
        match self {
            Answer::Pd(pd) => Some(Object::Pd(*pd)),
            Answer::Memory(mr, _) => Some(Object::Mr(*mr)),
            Answer::Window(window, _) => Some(Object::Window(*window)),
            Answer::Cq(cq) => Some(Object::Cq(*cq)),
            Answer::Qp(handle) => Some(Object::Qp(handle.index)),
            Answer::Ah(ah) => Some(Object::Ah(*ah)),
            Answer::Srq(srq, _) => Some(Object::Srq(*srq)),
            Answer::Xrcd(xrcd) => Some(Object::Xrcd(*xrcd)),
            Answer::Flow(flow) => Some(Object::Flow(*flow)),
            Answer::Done
            | Answer::Moving(_)
            | Answer::Key(_)
            | Answer::SrqStatus(_)
            | Answer::QpStatus(_)
            | Answer::QpLog(_)
            | Answer::Qps(_) => None,
        }
    }
}
