//! Work requests as the application posts them.

use bitflags::bitflags;

use super::{Access, AhId, LKey, Qpn, RKey, Srqn};

/// Operation of a send work request (`ibv_wr_opcode`; [`FastRegister`](WrOpcode::FastRegister) is
/// `IB_WR_REG_MR` of the kernel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WrOpcode {
    /// RDMA WRITE.
    Write = 0,
    /// RDMA WRITE with immediate data; consumes a receive.
    WriteImm = 1,
    /// SEND.
    Send = 2,
    /// SEND with immediate data.
    SendImm = 3,
    /// RDMA READ.
    Read = 4,
    /// 64-bit compare and swap.
    CompareSwap = 5,
    /// 64-bit fetch and add.
    FetchAdd = 6,
    /// Invalidates a local key, of a type 2 window or of a fast-registered region.
    LocalInvalidate = 7,
    /// Binds a memory window to a range of a region.
    BindWindow = 8,
    /// SEND that invalidates a key of the peer.
    SendInvalidate = 9,
    /// Makes earlier WRITEs visible or persistent at the peer.
    Flush = 14,
    /// An 8-byte WRITE that is not torn, ordered behind all earlier operations.
    AtomicWrite = 15,
    /// Makes a fast-registered region valid, with its pages and key.
    FastRegister = 32,
}

impl WrOpcode {
    /// All operations, in the order of their codes.
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

    /// Returns the operation of a number in a send queue slot.
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

    /// True for compare-and-swap and fetch-and-add.
    pub fn is_atomic(self) -> bool {
        matches!(self, WrOpcode::CompareSwap | WrOpcode::FetchAdd)
    }

    /// True for READ and atomics, which return data.
    pub fn returns_data(self) -> bool {
        self.is_atomic() || self == WrOpcode::Read
    }

    /// True for operations that use a responder resource of the peer (`max_rd_atomic`) and are completed by a
    /// response.
    pub fn takes_resource(self) -> bool {
        self.returns_data() || matches!(self, WrOpcode::AtomicWrite | WrOpcode::Flush)
    }

    /// True for operations on keys that complete locally, without a packet.
    pub fn is_local(self) -> bool {
        matches!(self, WrOpcode::LocalInvalidate | WrOpcode::BindWindow | WrOpcode::FastRegister)
    }

    /// True for operations that consume a receive of the peer.
    pub fn consumes_receive(self) -> bool {
        let send = matches!(self, WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInvalidate);
        send || self == WrOpcode::WriteImm
    }

    /// True for operations with a payload that may be inline.
    pub fn may_be_inline(self) -> bool {
        !self.returns_data() && !self.is_local() && self != WrOpcode::Flush
    }

    /// True for operations that use `compare_add` and `swap`.
    pub fn has_operands(self) -> bool {
        self.is_atomic() || self.is_local() || self == WrOpcode::Flush
    }
}

bitflags! {
    /// Modifiers of a send work request (`ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Wait until all earlier READs and atomics are complete.
        const FENCE = 1;
        /// Generate a completion on success.
        const SIGNALED = 1 << 1;
        /// Request a solicited event at the peer.
        const SOLICITED = 1 << 2;
        /// Copy the payload into the work request when it is posted.
        const INLINE = 1 << 3;
    }
}

/// A scatter/gather entry: a range of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address of the first byte.
    pub addr: u64,
    /// Length in bytes. 0 means 0, not 2^31.
    pub length: u32,
    /// The lkey of the region.
    pub lkey: LKey,
}

/// Destination of a datagram (`ibv_send_wr.wr.ud`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdAddress {
    /// Address handle of the path.
    pub ah: AhId,
    /// Destination QPN; 0xffffff for a multicast group.
    pub remote_qpn: Qpn,
    /// Q_Key of the destination. If the highest bit is set, the sending QP's own Q_Key is sent instead (IBTA
    /// 10.2.5).
    pub remote_qkey: u32,
}

/// A send work request, without its scatter/gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Identifier, returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub opcode: WrOpcode,
    /// Signaled, fenced, solicited, inline.
    pub flags: SendFlags,
    /// Immediate data in host order, for operations that carry it.
    pub imm: u32,
    /// Remote address, for WRITE, READ, FLUSH and atomics.
    pub remote_addr: u64,
    /// Remote key; for SEND with invalidate, the key to invalidate; for LOCAL_INV, a local key.
    pub rkey: RKey,
    /// Compare or add operand.
    pub compare_add: u64,
    /// Swap operand of compare-and-swap.
    pub swap: u64,
    /// Destination, of a UD QP.
    pub ud: UdAddress,
    /// Number of the destination SRQ, of an XRC QP.
    pub remote_srqn: Srqn,
}

/// Arguments of binding a memory window (`ibv_mw_bind_info` and `ibv_wr_bind_mw`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBind {
    /// Current key of the window.
    pub window: RKey,
    /// New key of the window. Type 2: the current key with another variant byte; type 1: a key allocated by
    /// the device.
    pub new_key: RKey,
    /// The lkey of the region to bind to.
    pub region: LKey,
    /// First address, in the region's addresses.
    pub address: u64,
    /// Length in bytes. Zero unbinds a type 1 window.
    pub length: u64,
    /// Access rights of peers.
    pub access: Access,
}

/// Arguments of validating a fast-registered region (`IB_WR_REG_MR`). The pages are in the region's page
/// list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegistration {
    /// The region's key, with its new variant byte.
    pub key: RKey,
    /// Address of the first byte, for work requests and peers. The low bits are the offset in the first page.
    pub start: u64,
    /// Length of the region in bytes.
    pub length: u64,
    /// Page size as a power of two, 12 to 30.
    pub page_shift: u8,
    /// Access rights.
    pub access: Access,
}

/// Arguments of a FLUSH (IBTA annex A19: FETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRange {
    /// The rkey of the range to flush.
    pub rkey: RKey,
    /// First address of the range at the peer.
    pub address: u64,
    /// Length in bytes, at most 2^31.
    pub length: u32,
    /// Global visibility: visible to the peer's whole host.
    pub global: bool,
    /// Persistence: the peer responds only when the bytes survive a power loss.
    pub persistent: bool,
    /// Flush the whole region of the key instead of the range.
    pub whole_region: bool,
}

/// A request starts unsignaled and without payload. Further methods set what it needs:
///
/// ```
/// use roxie_nic::verbs::{RKey, SendFlags, SendWr, WrOpcode};
///
/// let wr = SendWr::write(0x1000, RKey(7)).id(3).imm(42).signaled();
/// assert_eq!((wr.opcode, wr.wr_id, wr.imm, wr.flags), (WrOpcode::WriteImm, 3, 42, SendFlags::SIGNALED));
/// ```
impl SendWr {
    /// Returns a SEND.
    pub fn send() -> SendWr {
        SendWr { flags: SendFlags::empty(), ..SendWr::default() }
    }

    /// Returns an RDMA WRITE to `address` of the peer, in the region with key `rkey`.
    pub fn write(address: u64, rkey: RKey) -> SendWr {
        SendWr { opcode: WrOpcode::Write, remote_addr: address, rkey, ..SendWr::send() }
    }

    /// Returns an RDMA READ from `address` of the peer, in the region with key `rkey`.
    pub fn read(address: u64, rkey: RKey) -> SendWr {
        SendWr { opcode: WrOpcode::Read, ..SendWr::write(address, rkey) }
    }

    /// Returns an atomic compare-and-swap of the 8 bytes at `address` of the peer: they become `swap` if they are
    /// `compare`. The old value is returned to the 8 bytes of the scatter/gather list.
    pub fn compare_swap(address: u64, rkey: RKey, compare: u64, swap: u64) -> SendWr {
        SendWr { opcode: WrOpcode::CompareSwap, compare_add: compare, swap, ..SendWr::write(address, rkey) }
    }

    /// Returns an atomic addition to the 8 bytes at `address` of the peer. The old value is returned to the 8 bytes of
    /// the scatter/gather list.
    pub fn fetch_add(address: u64, rkey: RKey, add: u64) -> SendWr {
        SendWr { opcode: WrOpcode::FetchAdd, compare_add: add, ..SendWr::write(address, rkey) }
    }

    /// Sets the identifier that the completion returns.
    #[must_use]
    pub fn id(self, wr_id: u64) -> SendWr {
        SendWr { wr_id, ..self }
    }

    /// Requests a completion also on success.
    #[must_use]
    pub fn signaled(self) -> SendWr {
        SendWr { flags: self.flags | SendFlags::SIGNALED, ..self }
    }

    /// Requests a solicited event at the peer.
    #[must_use]
    pub fn solicited(self) -> SendWr {
        SendWr { flags: self.flags | SendFlags::SOLICITED, ..self }
    }

    /// Starts the request only when all earlier READs and atomics of the queue pair are complete.
    #[must_use]
    pub fn fenced(self) -> SendWr {
        SendWr { flags: self.flags | SendFlags::FENCE, ..self }
    }

    /// Adds immediate data to a SEND or a WRITE. The WRITE then consumes a receive of the peer. Other operations carry
    /// none, and stay as they are.
    #[must_use]
    pub fn imm(self, imm: u32) -> SendWr {
        let opcode = match self.opcode {
            WrOpcode::Send => WrOpcode::SendImm,
            WrOpcode::Write => WrOpcode::WriteImm,
            WrOpcode::SendImm | WrOpcode::WriteImm => self.opcode,
            _ => return self,
        };
        SendWr { opcode, imm, ..self }
    }

    /// Returns a request that binds a window. `imm` holds the access bits, `rkey` the current key,
    /// `remote_addr` and `compare_add` the range, `swap` the region's key in the low and the new key in the
    /// high half.
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

    /// Returns the arguments given to [`bind_window`](SendWr::bind_window).
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

    /// Returns a request that makes a fast-registered region valid. `imm` holds the access bits,
    /// `remote_addr` and `compare_add` the range, `swap` the page shift.
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

    /// Returns the arguments given to [`fast_register`](SendWr::fast_register).
    pub fn fast_registration(&self) -> FastRegistration {
        FastRegistration {
            key: self.rkey,
            start: self.remote_addr,
            length: self.compare_add,
            page_shift: self.swap.min(u8::MAX.into()) as u8,
            access: Access::from_bits_retain(self.imm),
        }
    }

    /// Returns a request that invalidates a local key.
    pub fn local_invalidate(wr_id: u64, flags: SendFlags, key: RKey) -> SendWr {
        SendWr { wr_id, opcode: WrOpcode::LocalInvalidate, flags, rkey: key, ..SendWr::default() }
    }

    /// Returns a request that flushes remote memory. `imm` holds the FETH, `compare_add` the length.
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
    /// Returns a signaled SEND.
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

/// A receive work request, without its scatter list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvWr {
    /// Identifier, returned in the completion.
    pub wr_id: u64,
    /// Number of scatter entries.
    pub num_sge: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_round_trip_through_codes() {
        let opcodes: Vec<_> = (0..300).filter_map(WrOpcode::from_code).collect();
        assert_eq!(opcodes, WrOpcode::ALL);
        assert!(WrOpcode::ALL.into_iter().all(|op| WrOpcode::from_code(op as u64) == Some(op)));
    }

    #[test]
    fn packed_work_requests_round_trip() {
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
