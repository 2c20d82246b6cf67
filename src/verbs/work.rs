//! Work requests, as an application posts them.

use bitflags::bitflags;

use super::{Access, AhId, LKey, Qpn, RKey, Srqn};

/// What a send work request does (`ibv_wr_opcode`; [`FastRegister`](WrOpcode::FastRegister) is the kernel's `IB_WR_REG_MR`).
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
    /// Makes a key of ours open nothing: of a type 2 window or of a fast-registered region.
    LocalInvalidate = 7,
    /// Binds a memory window to a part of a region.
    BindWindow = 8,
    /// SEND that also invalidates a key of the peer's.
    SendInvalidate = 9,
    /// Makes earlier WRITEs visible or persistent at the peer.
    Flush = 14,
    /// An 8-byte WRITE that does not tear and is ordered behind all before it.
    AtomicWrite = 15,
    /// Gives a fast-registered region its pages and a key.
    FastRegister = 32,
}

impl WrOpcode {
    /// All that this device executes.
    pub const ALL: [WrOpcode; 13] = [
        WrOpcode::Write,
        WrOpcode::WriteImm,
        WrOpcode::Send,
        WrOpcode::SendImm,
        WrOpcode::Read,
        WrOpcode::CompareSwap,
        WrOpcode::FetchAdd,
        WrOpcode::LocalInvalidate,
        WrOpcode::BindWindow,
        WrOpcode::SendInvalidate,
        WrOpcode::Flush,
        WrOpcode::AtomicWrite,
        WrOpcode::FastRegister,
    ];

    /// From the number in a work queue slot.
    pub fn from_code(code: u64) -> Option<WrOpcode> {
        Some(match code {
            0 => WrOpcode::Write,
            1 => WrOpcode::WriteImm,
            2 => WrOpcode::Send,
            3 => WrOpcode::SendImm,
            4 => WrOpcode::Read,
            5 => WrOpcode::CompareSwap,
            6 => WrOpcode::FetchAdd,
            7 => WrOpcode::LocalInvalidate,
            8 => WrOpcode::BindWindow,
            9 => WrOpcode::SendInvalidate,
            14 => WrOpcode::Flush,
            15 => WrOpcode::AtomicWrite,
            32 => WrOpcode::FastRegister,
            _ => return None,
        })
    }

    /// Compare-and-swap or fetch-and-add.
    pub fn is_atomic(self) -> bool {
        matches!(self, WrOpcode::CompareSwap | WrOpcode::FetchAdd)
    }

    /// Brings bytes back: a READ or an atomic.
    pub fn returns_data(self) -> bool {
        self.is_atomic() || self == WrOpcode::Read
    }

    /// Takes one of the peer's responder resources (`max_rd_atomic`) and completes by a response of its own.
    pub fn takes_resource(self) -> bool {
        self.returns_data() || matches!(self, WrOpcode::AtomicWrite | WrOpcode::Flush)
    }

    /// Is done here, without a packet: changes what a key opens.
    pub fn is_local(self) -> bool {
        matches!(self, WrOpcode::LocalInvalidate | WrOpcode::BindWindow | WrOpcode::FastRegister)
    }

    /// Consumes a receive at the peer.
    pub fn consumes_receive(self) -> bool {
        let send = matches!(self, WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInvalidate);
        send || self == WrOpcode::WriteImm
    }

    /// Has a payload that may be inline.
    pub fn may_be_inline(self) -> bool {
        !self.returns_data() && !self.is_local() && self != WrOpcode::Flush
    }

    /// Uses the words `compare_add` and `swap`.
    pub fn has_operands(self) -> bool {
        self.is_atomic() || self.is_local() || self == WrOpcode::Flush
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
    /// Virtual address of the first byte.
    pub addr: u64,
    /// Bytes. (0 means 0: Roxie does not read it as 2^31.)
    pub length: u32,
    /// The key of the region that the bytes are in.
    pub lkey: LKey,
}

/// Whom a datagram is for (`ibv_send_wr.wr.ud`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdAddress {
    /// The address handle of the way.
    pub ah: AhId,
    /// The number of the QP that it goes to; 0xffffff: the group's.
    pub remote_qpn: Qpn,
    /// Its Q_Key. With the highest bit set: the sending QP's own is used instead (IBTA 10.2.5).
    pub remote_qkey: u32,
}

/// A send work request without its scatter/gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub opcode: WrOpcode,
    /// Signalled, fenced, solicited, inline.
    pub flags: SendFlags,
    /// Immediate data in host order, for the operations that carry it.
    pub imm: u32,
    /// The peer's address, for WRITE, READ, FLUSH and atomics.
    pub remote_addr: u64,
    /// The peer's key; for SEND with invalidate the one to invalidate; for LOCAL_INV our own.
    pub rkey: RKey,
    /// Compare operand, or what to add.
    pub compare_add: u64,
    /// What compare-and-swap stores if the values are equal.
    pub swap: u64,
    /// Whom it is for, from a UD QP.
    pub ud: UdAddress,
    /// The shared receive queue that it is for, from an XRC QP.
    pub remote_srqn: Srqn,
}

/// How a memory window is bound (`ibv_mw_bind_info` and `ibv_wr_bind_mw`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBind {
    /// The key that the window has now.
    pub window: RKey,
    /// The key that it gets. Type 2: the old one with another variant byte; type 1: one that the device gave for it.
    pub new_key: RKey,
    /// The lkey of the region that is mapped anew.
    pub region: LKey,
    /// The first address, as the region counts.
    pub address: u64,
    /// Bytes. Zero unbinds a window of type 1.
    pub length: u64,
    /// What peers may do.
    pub access: Access,
}

/// How a fast-registered region is made valid (`IB_WR_REG_MR`). The pages are those of the region's page list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegistration {
    /// The region's key with the variant byte that it gets.
    pub key: RKey,
    /// The address by which work requests and peers call its first byte; its low bits are the place in the first page.
    pub start: u64,
    /// Bytes that the window opens.
    pub length: u64,
    /// Bytes of a page, as a power of two: 12 to 30.
    pub page_shift: u8,
    /// What may be done to it.
    pub access: Access,
}

/// What a FLUSH asks for (IBTA annex A19: FETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRange {
    /// The rkey of the range to flush.
    pub rkey: RKey,
    /// Where the range begins, as the peer calls it.
    pub address: u64,
    /// Bytes, at most 2^31.
    pub length: u32,
    /// Visible to everyone there.
    pub global: bool,
    /// The peer answers only when the bytes would survive a power loss.
    pub persistent: bool,
    /// The whole region of the key instead of the range.
    pub whole_region: bool,
}

impl SendWr {
    /// Binds a window. `imm` carries the access bits, `rkey` the present key, `remote_addr` and `compare_add` the range,
    /// `swap` the region's key below the new one.
    pub fn bind_window(wr_id: u64, flags: SendFlags, bind: &WindowBind) -> SendWr {
        SendWr {
            wr_id,
            opcode: WrOpcode::BindWindow,
            flags,
            imm: bind.access.bits(),
            remote_addr: bind.address,
            rkey: bind.window,
            compare_add: bind.length,
            swap: u64::from(bind.region.0) | u64::from(bind.new_key.0) << 32,
            ..SendWr::default()
        }
    }

    /// What [`bind_window`](SendWr::bind_window) put in.
    pub fn window_bind(&self) -> WindowBind {
        WindowBind {
            window: self.rkey,
            new_key: RKey((self.swap >> 32) as u32),
            region: LKey(self.swap as u32),
            address: self.remote_addr,
            length: self.compare_add,
            access: Access::from_bits_retain(self.imm),
        }
    }

    /// Makes a fast-registered region valid. `imm` carries the access bits, `remote_addr` and `compare_add` the range,
    /// `swap` the page shift.
    pub fn fast_register(wr_id: u64, flags: SendFlags, region: &FastRegistration) -> SendWr {
        SendWr {
            wr_id,
            opcode: WrOpcode::FastRegister,
            flags,
            imm: region.access.bits(),
            remote_addr: region.start,
            rkey: region.key,
            compare_add: region.length,
            swap: region.page_shift.into(),
            ..SendWr::default()
        }
    }

    /// What [`fast_register`](SendWr::fast_register) put in.
    pub fn fast_registration(&self) -> FastRegistration {
        FastRegistration {
            key: self.rkey,
            start: self.remote_addr,
            length: self.compare_add,
            page_shift: self.swap.min(u8::MAX.into()) as u8,
            access: Access::from_bits_retain(self.imm),
        }
    }

    /// Invalidates a key of ours.
    pub fn local_invalidate(wr_id: u64, flags: SendFlags, key: RKey) -> SendWr {
        SendWr { wr_id, opcode: WrOpcode::LocalInvalidate, flags, rkey: key, ..SendWr::default() }
    }

    /// Flushes memory of the peer's. `imm` carries the FETH, `compare_add` the length.
    pub fn flush(wr_id: u64, flags: SendFlags, range: &FlushRange) -> SendWr {
        let feth =
            u32::from(range.global) | u32::from(range.persistent) << 1 | u32::from(range.whole_region) << 4;
        SendWr {
            wr_id,
            opcode: WrOpcode::Flush,
            flags,
            imm: feth,
            remote_addr: range.address,
            rkey: range.rkey,
            compare_add: range.length.into(),
            ..SendWr::default()
        }
    }
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
            ud: UdAddress::default(),
            remote_srqn: Srqn::default(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_is_found_by_its_number_and_nothing_else_is() {
        let found: Vec<_> = (0..300).filter_map(WrOpcode::from_code).collect();
        assert_eq!(found, WrOpcode::ALL);
        assert!(WrOpcode::ALL.into_iter().all(|op| WrOpcode::from_code(op as u64) == Some(op)));
    }

    #[test]
    fn what_is_packed_into_a_work_request_comes_out_again() {
        let bind = WindowBind {
            window: RKey(0x1122_3344),
            new_key: RKey(0x5566_7788),
            region: LKey(0x99aa_bbcc),
            address: u64::MAX - 5,
            length: u64::MAX - 7,
            access: Access::REMOTE_READ | Access::ZERO_BASED,
        };
        assert_eq!(SendWr::bind_window(7, SendFlags::FENCE, &bind).window_bind(), bind);
        let registration = FastRegistration {
            key: RKey(0xdead_beef),
            start: 1 << 60 | 5,
            length: 1 << 40,
            page_shift: 21,
            access: Access::READ_WRITE,
        };
        let wr = SendWr::fast_register(8, SendFlags::SIGNALED, &registration);
        assert_eq!(wr.fast_registration(), registration);
    }
}
