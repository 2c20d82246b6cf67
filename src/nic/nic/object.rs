//! Names of the objects of a NIC.

use std::fmt;

use crate::verbs::{AhId, CqIndex, FlowId, MrIndex, MwIndex, PdId, QpIndex, SrqIndex, XrcdId};

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
