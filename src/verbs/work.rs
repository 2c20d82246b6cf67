//! Work requests, as an application posts them.

use bitflags::bitflags;

use super::{LKey, RKey};

/// What a send work request does (`ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WrOpcode {
    /// RDMA WRITE.
    Write = 0,
    /// RDMA WRITE that also consumes a receive and delivers 4 bytes.
    WriteImm = 1,
    /// SEND.
    Send = 2,
    /// SEND that also delivers 4 bytes.
    SendImm = 3,
    /// RDMA READ.
    Read = 4,
    /// 64-bit compare and swap.
    CompareSwap = 5,
    /// 64-bit fetch and add.
    FetchAdd = 6,
}

impl WrOpcode {
    /// All that this device executes.
    pub const ALL: [WrOpcode; 7] = [
        WrOpcode::Write,
        WrOpcode::WriteImm,
        WrOpcode::Send,
        WrOpcode::SendImm,
        WrOpcode::Read,
        WrOpcode::CompareSwap,
        WrOpcode::FetchAdd,
    ];

    /// From the number in a work queue slot.
    pub fn from_code(code: u64) -> Option<WrOpcode> {
        WrOpcode::ALL.into_iter().find(|op| *op as u64 == code)
    }

    /// Compare-and-swap or fetch-and-add.
    pub fn is_atomic(self) -> bool {
        matches!(self, WrOpcode::CompareSwap | WrOpcode::FetchAdd)
    }

    /// Takes one of the peer's responder resources (`max_rd_atomic`).
    pub fn is_read_or_atomic(self) -> bool {
        self.is_atomic() || self == WrOpcode::Read
    }

    /// Consumes a receive at the peer.
    pub fn consumes_receive(self) -> bool {
        matches!(self, WrOpcode::Send | WrOpcode::SendImm | WrOpcode::WriteImm)
    }
}

bitflags! {
    /// Modifiers of a send work request (`ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Wait until all READs and atomics before it are complete.
        const FENCE = 1;
        /// Generate a completion on success.
        const SIGNALED = 1 << 1;
        /// Ask for an event at the peer.
        const SOLICITED = 1 << 2;
        /// The payload is copied into the work request when it is posted.
        const INLINE = 1 << 3;
    }
}

/// A piece of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address.
    pub addr: u64,
    /// Bytes. (0 means 0: Roxie does not read it as 2^31.)
    pub length: u32,
    /// The region's key.
    pub lkey: LKey,
}

/// A send work request without its scatter/gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub opcode: WrOpcode,
    /// How.
    pub flags: SendFlags,
    /// Immediate data in host order, for the operations that carry it.
    pub imm: u32,
    /// The peer's address, for WRITE, READ and atomics.
    pub remote_addr: u64,
    /// The peer's key.
    pub rkey: RKey,
    /// Compare operand, or what to add.
    pub compare_add: u64,
    /// Swap operand.
    pub swap: u64,
}

impl Default for SendWr {
    /// A signaled, empty SEND.
    fn default() -> SendWr {
        SendWr {
            wr_id: 0,
            opcode: WrOpcode::Send,
            flags: SendFlags::SIGNALED,
            imm: 0,
            remote_addr: 0,
            rkey: RKey(0),
            compare_add: 0,
            swap: 0,
        }
    }
}

/// A receive work request without its scatter list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Entries of the scatter list.
    pub num_sge: u32,
}
