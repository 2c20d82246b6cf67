//! The types of verbs: IDs, keys, attributes, work requests, completions.
//!
//! Names and numbers are as in `<infiniband/verbs.h>`, so that the C library passes them through
//! unchanged.

mod attr;
mod completion;
mod flow;
mod local_gid;
mod modify;
mod srq;
mod transitions;
mod work;

pub use attr::{AddressVector, AttrMask, QpAttr, QpAttributes, QpCaps, QpInit, RateLimit};
pub use completion::{AsyncEvent, EventKind, Wc, WcError, WcFlags, WcOpcode, WcStatus};
pub use flow::{FlowId, FlowRule, Rss};
pub use local_gid::LocalGid;
pub use modify::{ModifyError, check_transition};
pub use srq::{FileId, OpenXrcd, SrqInit, SrqKind};
pub use work::{
    FastRegistration, FlushRange, RecvWr, SendFlags, SendWr, Sge, UdAddress, WindowBind, WrOpcode,
};

pub use roxie_base::flow::{FlowField, FlowMatch};
pub use roxie_wire::{Gid, Psn, Qpn};

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

/// Returns the table index of an object ID. The ID is 16 bits of generation and 16 bits of index: an index is
/// reused, an ID is not.
pub(crate) const fn place_of(name: u32) -> u32 {
    name & 0xffff
}

/// Returns the object ID of a generation and a table index.
pub(crate) const fn name(generation: u16, place: u32) -> u32 {
    (generation as u32) << 16 | place
}

/// Returns the next generation, modulo 2^16 - 1, so that no object has the ID `u32::MAX`.
pub(crate) const fn next_generation(generation: u16) -> u16 {
    (generation + 1) % u16::MAX
}

/// Identifies a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PdId(pub u32);

/// Identifies a QP of the device for its whole life. Not the QPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QpIndex(pub u32);

impl QpIndex {
    /// Returns the index in the device's table, below 2^16. Doorbells and timers use it.
    pub const fn place(self) -> u32 {
        place_of(self.0)
    }
}

/// Identifies a CQ of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CqIndex(pub u32);

/// Identifies a memory region of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MrIndex(pub u32);

impl MrIndex {
    /// Returns the index in the device's table, below 2^16.
    pub(crate) const fn place(self) -> usize {
        place_of(self.0) as usize
    }
}

/// Identifies a memory window of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MwIndex(pub u32);

/// Identifies a shared receive queue of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SrqIndex(pub u32);

/// SRQ number, 24 bits, by which XRC requests select their queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Srqn(pub u32);

/// Identifies an XRC domain: the shared receive queues that peers of an XRC target may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct XrcdId(pub u32);

/// Type of a memory window (`ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MwType {
    /// Accessible through all QPs of the protection domain. Each bind gives a new key, allocated by the
    /// device.
    One = 1,
    /// Accessible through the QP that bound it. The consumer chooses the variant byte of the key (type 2B of
    /// IBTA: QP and protection domain are both checked).
    Two = 2,
}

/// Identifies an address handle. The number of a destroyed one is not reused for a long time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AhId(pub u32);

/// Key for local access to a memory region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LKey(pub u32);

/// Key for remote access. The low 8 bits are the variant, chosen by the consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RKey(pub u32);

bitflags! {
    /// Access rights to a memory region, or through a QP (`ibv_access_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Access: u32 {
        /// The NIC may write the region for local operations: receives, READ and atomic results.
        const LOCAL_WRITE = 1;
        /// A peer may RDMA WRITE the region.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may RDMA READ the region.
        const REMOTE_READ = 1 << 2;
        /// A peer may execute atomics on the region.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// The region's addresses begin at 0.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging: pages of the region may be absent.
        const ON_DEMAND = 1 << 6;
        /// A peer may request global visibility of its WRITEs (FLUSH).
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may request persistence of its WRITEs (FLUSH).
        const FLUSH_PERSISTENT = 1 << 9;
        /// WRITEs may become visible out of order. Accepted, without effect: Roxie keeps the order.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Flags that a device may ignore if it does not support them (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL: Access = Access::from_bits_retain(0x3ff0_0000);
    /// Local write, and remote write, read and atomics.
    pub const READ_WRITE: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC);
    /// All rights of peers.
    pub const REMOTE: Access = Access::REMOTE_WRITE
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::FLUSH_GLOBAL)
        .union(Access::FLUSH_PERSISTENT);
}

/// Transport service of a QP (`ibv_qp_type`; QP1 is the kernel's `IB_QPT_GSI`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QpType {
    /// General services: QP1, a datagram QP that carries management datagrams.
    Gsi = 1,
    /// Reliable connection.
    #[default]
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Raw packets: whole frames of any protocol.
    RawPacket = 8,
    /// Extended reliable connection, the initiator's end.
    XrcSend = 9,
    /// Extended reliable connection, the target's end.
    XrcRecv = 10,
}

impl QpType {
    /// All types.
    pub const ALL: [QpType; 7] = [
        QpType::Gsi,
        QpType::Rc,
        QpType::Uc,
        QpType::Ud,
        QpType::RawPacket,
        QpType::XrcSend,
        QpType::XrcRecv,
    ];

    /// Returns the type of a number that `ibv_create_qp` takes.
    pub fn from_code(code: u32) -> Option<QpType> {
        QpType::ALL.into_iter().find(|t| *t as u32 == code)
    }

    /// True if the type supports `opcode` on its send queue (IBTA table 72).
    pub fn serves(self, opcode: WrOpcode) -> bool {
        match self {
            QpType::Rc | QpType::XrcSend => true,
            QpType::Uc => {
                use WrOpcode::{Send, SendImm, Write, WriteImm};
                opcode.is_local() || matches!(opcode, Send | SendImm | Write | WriteImm)
            }
            QpType::Ud | QpType::Gsi => matches!(opcode, WrOpcode::Send | WrOpcode::SendImm),
            QpType::RawPacket => opcode == WrOpcode::Send,
            QpType::XrcRecv => false,
        }
    }

    /// True for the two ends of an XRC connection.
    pub fn is_extended(self) -> bool {
        matches!(self, QpType::XrcSend | QpType::XrcRecv)
    }

    /// True for types that acknowledge requests, and keep responses for duplicates.
    pub fn is_reliable_responder(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcRecv)
    }

    /// True for types with acknowledged requests.
    pub fn is_reliable_requester(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcSend)
    }

    /// True for types that address each message by an address handle: UD and QP1.
    pub fn is_datagram(self) -> bool {
        matches!(self, QpType::Ud | QpType::Gsi)
    }

    /// True for types that have one peer and a path to it.
    pub fn is_connected(self) -> bool {
        !self.is_datagram() && self != QpType::RawPacket
    }
}

/// The state of a QP (`ibv_qp_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QpState {
    /// As created; packets are dropped.
    #[default]
    Reset = 0,
    /// Receives may be posted; packets are dropped.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: started work requests are completed, no others are started.
    Sqd = 4,
    /// Send queue error (not RC).
    Sqe = 5,
    /// Error: all work requests are flushed.
    Err = 6,
}

impl QpState {
    /// Returns the state of a number that `query_qp` reports.
    pub fn from_code(code: u32) -> Option<QpState> {
        use QpState::*;
        [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].into_iter().find(|s| *s as u32 == code)
    }
}

/// A path MTU: payload bytes of a full packet (`ibv_mtu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// All path MTUs, in ascending order.
    pub const ALL: [Mtu; 5] = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];

    /// Maximum bytes that RoCE v2 adds to a payload, from the IP header on: IPv6 40, UDP 8, BTH 12, XRCETH 4,
    /// RETH 16, ImmDt 4, ICRC 4. (AtomicETH is longer, but without payload.) Linux uses 80 (`rxe_param.h`),
    /// with the same result for all common link MTUs.
    pub const OVERHEAD: usize = 88;

    /// Returns the payload in bytes.
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }

    /// Returns the path MTU of 256, 512, 1024, 2048 or 4096 bytes.
    pub fn from_bytes(bytes: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// Returns the path MTU of its code in verbs and messages: 1 (256 bytes) to 5 (4096).
    pub fn from_code(code: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| *mtu as u32 == code)
    }

    /// Returns the largest path MTU that fits a link MTU: 1024 for 1500; 4096 needs 4184. rdma_rxe chooses
    /// almost alike.
    pub fn largest_for_link(link_mtu: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().rev().find(|m| m.bytes() + Mtu::OVERHEAD <= link_mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtu_follows_link_mtu() {
        assert_eq!(Mtu::largest_for_link(1500), Some(Mtu::Mtu1024));
        assert_eq!(Mtu::largest_for_link(4183), Some(Mtu::Mtu2048));
        assert_eq!(Mtu::largest_for_link(4184), Some(Mtu::Mtu4096));
        assert_eq!(Mtu::largest_for_link(300), None);
    }
}
