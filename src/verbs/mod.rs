//! The nouns: ids, keys, attributes, work requests, completions.
//!
//! Names and numbers are those of `<infiniband/verbs.h>`, so that a shim can pass them
//! through and a reader of ibverbs is at home.

mod attr;
mod completion;
mod flow;
mod modify;
mod srq;
mod transitions;
mod work;

pub use attr::{AddressVector, AttrMask, QpAttr, QpAttributes, QpCaps, QpInit, RateLimit};
pub use completion::{AsyncEvent, EventKind, Wc, WcFlags, WcOpcode, WcStatus};
pub use flow::{FlowId, FlowRule, Rss};
pub use modify::{ModifyError, check_transition};
pub use srq::{FileId, OpenXrcd, SrqInit, SrqKind};
pub use work::{
    FastRegistration, FlushRange, RecvWr, SendFlags, SendWr, Sge, UdAddress, WindowBind, WrOpcode,
};

pub use crate::flow::{FlowField, FlowMatch};
pub use crate::wire::{Gid, Psn, Qpn};

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

/// The place in its table that the name of an object leads to. Names of objects are 16 bits of generation and 16 bits of place: a place
/// is used again, a name is not.
pub(crate) const fn place_of(name: u32) -> u32 {
    name & 0xffff
}

/// The name of the object of this generation in a place.
pub(crate) const fn name(generation: u16, place: u32) -> u32 {
    (generation as u32) << 16 | place
}

/// Generations count to 2^16 - 2: no object has the name `u32::MAX`.
pub(crate) const fn next_generation(generation: u16) -> u16 {
    (generation + 1) % u16::MAX
}

/// A protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PdId(pub u32);

/// Names a QP of the device, from its creation to its destruction; not its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QpIndex(pub u32);

impl QpIndex {
    /// Its place in the device's table, below 2^16, by which doorbells and timers go.
    pub const fn place(self) -> u32 {
        place_of(self.0)
    }
}

/// Names a CQ of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CqIndex(pub u32);

/// Names a memory region of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MrIndex(pub u32);

impl MrIndex {
    /// Its place in the device's table, below 2^16.
    pub(crate) const fn place(self) -> usize {
        place_of(self.0) as usize
    }
}

/// Names a memory window of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MwIndex(pub u32);

/// Names a shared receive queue of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SrqIndex(pub u32);

/// The number of a shared receive queue, 24 bits: by it XRC requests name one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Srqn(pub u32);

/// An XRC domain: which shared receive queues the peers of an XRC target may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct XrcdId(pub u32);

/// The kind of a memory window (`ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MwType {
    /// Open to all QPs of its protection domain; each bind gives it a new key of the device's.
    One = 1,
    /// Open to the QP that bound it; the consumer chooses the variant byte of its key (IBTA's 2B: the QP and its
    /// protection domain are both checked).
    Two = 2,
}

/// Names an address handle. The number of one that was destroyed names nothing for a long time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AhId(pub u32);

/// A key for local use of a memory region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LKey(pub u32);

/// A key that a peer presents. The low 8 bits are the consumer's (the variant).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RKey(pub u32);

bitflags! {
    /// What may be done to a memory region, or through a QP (`ibv_access_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Access: u32 {
        /// The NIC may write it for local operations: receives, READ and atomic results.
        const LOCAL_WRITE = 1;
        /// A peer may RDMA WRITE it.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may RDMA READ it.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomics on it.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Its addresses begin at 0.
        const ZERO_BASED = 1 << 5;
        /// Its pages may come and go while it is registered.
        const ON_DEMAND = 1 << 6;
        /// A peer may ask that its WRITEs become visible to everyone.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may ask that its WRITEs become persistent.
        const FLUSH_PERSISTENT = 1 << 9;
        /// WRITEs may become visible out of order. Accepted; Roxie keeps them in order.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Flags in this range a device may ignore if it does not know them (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL: Access = Access::from_bits_retain(0x3ff0_0000);
    /// Local and remote reading and writing, and atomics.
    pub const READ_WRITE: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC);
    /// What a peer may be allowed to do.
    pub const REMOTE: Access = Access::REMOTE_WRITE
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::FLUSH_GLOBAL)
        .union(Access::FLUSH_PERSISTENT);
}

/// Which service a QP speaks (`ibv_qp_type`; QP1 is `IB_QPT_GSI` of the kernel).
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
    /// Raw packets: frames of any protocol, written and read whole.
    RawPacket = 8,
    /// Extended reliable connection, the initiator's end.
    XrcSend = 9,
    /// Extended reliable connection, the target's end.
    XrcRecv = 10,
}

impl QpType {
    /// All of them.
    pub const ALL: [QpType; 7] = [
        QpType::Gsi,
        QpType::Rc,
        QpType::Uc,
        QpType::Ud,
        QpType::RawPacket,
        QpType::XrcSend,
        QpType::XrcRecv,
    ];

    /// From the number that `ibv_create_qp` takes.
    pub fn from_code(code: u32) -> Option<QpType> {
        QpType::ALL.into_iter().find(|t| *t as u32 == code)
    }

    /// True if its send queue carries out `opcode` (IBTA table 72).
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

    /// One end of an extended reliable connection.
    pub fn is_extended(self) -> bool {
        matches!(self, QpType::XrcSend | QpType::XrcRecv)
    }

    /// Answers requests, and keeps the answers for duplicates.
    pub fn is_reliable_responder(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcRecv)
    }

    /// Sends requests that are answered.
    pub fn is_reliable_requester(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcSend)
    }

    /// Each message names its peer by an address handle: UD and QP1.
    pub fn is_datagram(self) -> bool {
        matches!(self, QpType::Ud | QpType::Gsi)
    }

    /// It has a peer, and a path to it.
    pub fn is_connected(self) -> bool {
        !self.is_datagram() && self != QpType::RawPacket
    }
}

/// The state of a QP (`ibv_qp_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QpState {
    /// As created: drops everything.
    #[default]
    Reset = 0,
    /// Receives may be posted, packets are dropped.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains: what was started finishes, nothing new starts.
    Sqd = 4,
    /// Send queue error (not RC).
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

impl QpState {
    /// From the number that `query_qp` reports.
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
    /// All of them, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];

    /// What RoCE v2 adds to a payload at most, from the IP header on: what must fit the link MTU beside
    /// the payload. IPv6 40, UDP 8, BTH 12, XRCETH 4, RETH 16, ImmDt 4, ICRC 4. (AtomicETH is longer and has no
    /// payload.) Linux reckons with 80 (`rxe_param.h`), and chooses alike on the MTUs that links have.
    pub const OVERHEAD: usize = 88;

    /// Bytes of payload.
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }

    /// From bytes: 256, 512, 1024, 2048 or 4096.
    pub fn from_bytes(bytes: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// From the code that is its number in verbs and in messages: 1 (256 bytes) to 5 (4096).
    pub fn from_code(code: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| *mtu as u32 == code)
    }

    /// The largest that fits a link MTU, nearly as rdma_rxe chooses it: 1500 gives 1024, 4096 needs 4184.
    pub fn largest_for_link(link_mtu: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().rev().find(|m| m.bytes() + Mtu::OVERHEAD <= link_mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_follows_the_link_as_rxe_does() {
        assert_eq!(Mtu::largest_for_link(1500), Some(Mtu::Mtu1024));
        assert_eq!(Mtu::largest_for_link(4183), Some(Mtu::Mtu2048));
        assert_eq!(Mtu::largest_for_link(4184), Some(Mtu::Mtu4096));
        assert_eq!(Mtu::largest_for_link(300), None);
    }
}
