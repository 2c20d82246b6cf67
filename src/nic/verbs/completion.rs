//! Work completions and asynchronous events.

use serde::{Deserialize, Serialize};
use std::fmt;

use bitflags::bitflags;

use super::{CqIndex, QpIndex, Qpn, SrqIndex};
use roxie_wire::Syndrome;

/// Status of a completed work request (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// Success.
    #[default]
    Success = 0,
    /// The message does not fit the receive.
    LocLen = 1,
    /// Internal consistency error of the QP.
    LocQpOp = 2,
    /// A local scatter/gather entry has an invalid lkey, or exceeds its region.
    LocProt = 4,
    /// Flushed: the QP is in the error state.
    WrFlush = 5,
    /// A memory window could not be bound.
    MwBind = 6,
    /// The peer's response is invalid.
    BadResp = 7,
    /// Protection error on an incoming WRITE with immediate.
    LocAccess = 8,
    /// NAK: the peer considers the request invalid.
    RemInvReq = 9,
    /// NAK: rkey, bounds or access rights at the peer.
    RemAccess = 10,
    /// NAK: the peer failed to execute the request.
    RemOp = 11,
    /// Transport retry counter exceeded: the peer does not respond.
    RetryExc = 12,
    /// RNR retry counter exceeded: the peer posts no receive.
    RnrRetryExc = 13,
    /// Any other error.
    General = 21,
}

impl WcStatus {
    /// All statuses, in the order of their codes.
    pub const ALL: [WcStatus; 14] = [
        WcStatus::Success,
        WcStatus::LocLen,
        WcStatus::LocQpOp,
        WcStatus::LocProt,
        WcStatus::WrFlush,
        WcStatus::MwBind,
        WcStatus::BadResp,
        WcStatus::LocAccess,
        WcStatus::RemInvReq,
        WcStatus::RemAccess,
        WcStatus::RemOp,
        WcStatus::RetryExc,
        WcStatus::RnrRetryExc,
        WcStatus::General,
    ];

    /// Returns the status of a number in a completion slot; `General` if the number is unknown.
    pub fn from_code(code: u8) -> WcStatus {
        match code {
            0 => WcStatus::Success,
            1 => WcStatus::LocLen,
            2 => WcStatus::LocQpOp,
            4 => WcStatus::LocProt,
            5 => WcStatus::WrFlush,
            6 => WcStatus::MwBind,
            7 => WcStatus::BadResp,
            8 => WcStatus::LocAccess,
            9 => WcStatus::RemInvReq,
            10 => WcStatus::RemAccess,
            11 => WcStatus::RemOp,
            12 => WcStatus::RetryExc,
            13 => WcStatus::RnrRetryExc,
            _ => WcStatus::General,
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcStatus::Success => "success",
            WcStatus::LocLen => "local length error: the message is longer than the receive",
            WcStatus::LocQpOp => "local QP operation error",
            WcStatus::LocProt => {
                "local protection error: bad lkey, bounds or access of a scatter/gather entry"
            }
            WcStatus::WrFlush => "flushed: the QP is in the error state",
            WcStatus::MwBind => "memory window bind error: bad key, bounds, access or state",
            WcStatus::BadResp => "bad response from the peer",
            WcStatus::LocAccess => "local access error",
            WcStatus::RemInvReq => "remote invalid request error",
            WcStatus::RemAccess => "remote access error: bad rkey, bounds or access flags at the peer",
            WcStatus::RemOp => "remote operation error",
            WcStatus::RetryExc => "retries exceeded: the peer does not answer",
            WcStatus::RnrRetryExc => "RNR retries exceeded: the peer posts no receive",
            WcStatus::General => "general error",
        })
    }
}

/// Operation of a completed work request (`ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcOpcode {
    /// SEND, with or without immediate or invalidation.
    #[default]
    Send = 0,
    /// RDMA WRITE, with or without immediate.
    Write = 1,
    /// RDMA READ.
    Read = 2,
    /// Compare and swap.
    CompareSwap = 3,
    /// Fetch and add.
    FetchAdd = 4,
    /// A memory window was bound.
    BindWindow = 5,
    /// A key was invalidated.
    LocalInvalidate = 6,
    /// FLUSH.
    Flush = 8,
    /// ATOMIC WRITE.
    AtomicWrite = 9,
    /// A fast-registered region became valid (the kernel's `IB_WC_REG_MR`).
    FastRegister = 10,
    /// A receive, consumed by a SEND.
    Recv = 128,
    /// A receive, consumed by a WRITE with immediate.
    RecvWriteImm = 129,
}

impl WcOpcode {
    /// Returns the operation of a number in a completion slot.
    pub fn from_code(code: u8) -> Option<WcOpcode> {
        Some(match code {
            0 => WcOpcode::Send,
            1 => WcOpcode::Write,
            2 => WcOpcode::Read,
            3 => WcOpcode::CompareSwap,
            4 => WcOpcode::FetchAdd,
            5 => WcOpcode::BindWindow,
            6 => WcOpcode::LocalInvalidate,
            8 => WcOpcode::Flush,
            9 => WcOpcode::AtomicWrite,
            10 => WcOpcode::FastRegister,
            128 => WcOpcode::Recv,
            129 => WcOpcode::RecvWriteImm,
            _ => return None,
        })
    }

    /// True for completions of receives.
    pub fn is_receive(self) -> bool {
        matches!(self, WcOpcode::Recv | WcOpcode::RecvWriteImm)
    }
}

bitflags! {
    /// Flags of a completion (`ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WcFlags: u8 {
        /// The first 40 bytes of the receive are a GRH, or the IP header in its place.
        const GRH = 1;
        /// `imm` is valid.
        const WITH_IMM = 1 << 1;
        /// `imm` is the key that the peer invalidated.
        const WITH_INV = 1 << 3;
        /// The sender requested a solicited event. Used by Roxie to raise events; the application ignores the
        /// flag.
        const SOLICITED = 1 << 7;
    }
}

/// A work completion. After an error, only `wr_id`, `status`, `qpn` and `vendor_err` are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    /// Identifier of the work request.
    pub wr_id: u64,
    /// Status. Unless success, only `wr_id`, `qpn` and `vendor_err` are valid.
    pub status: WcStatus,
    /// Operation of the request, or how the receive was consumed.
    pub opcode: WcOpcode,
    /// Flags: which further fields are valid.
    pub flags: WcFlags,
    /// Syndrome of the response that ended the request (AETH, IBTA 9.7.5.1), or zero. See [`Wc::explain`].
    pub vendor_err: u8,
    /// Number of the local QP.
    pub qpn: Qpn,
    /// Bytes received, read or exchanged.
    pub byte_len: u32,
    /// Immediate data in host order, or the invalidated key, by `flags`.
    pub imm: u32,
    /// Number of the QP that sent the datagram.
    pub src_qp: Qpn,
    /// P_Key index of the datagram.
    pub pkey_index: u16,
    /// VLAN ID of the datagram, 0 for none.
    pub vlan: u16,
    /// Network header in front of a datagram: 0 a GRH (RoCE v1), 1 IPv6, 2 IPv4. RoCE has no service level;
    /// ConnectX reports the header here (`MLX5_CQE_ROCE_L3_HEADER_TYPE_*`, Linux
    /// drivers/infiniband/hw/mlx5/cq.c), and UCX depends on it.
    pub sl: u8,
}

/// A work request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {} of QP {}: {}", .0.wr_id, .0.qpn, .0.explain())]
pub struct WcError(Wc);

impl WcError {
    /// Returns the status of the work request.
    pub fn status(&self) -> WcStatus {
        self.0.status
    }

    /// Returns the completion. Only `wr_id`, `status`, `qpn` and `vendor_err` are valid.
    pub fn completion(&self) -> &Wc {
        &self.0
    }
}

impl Wc {
    /// Returns the completion of a work request that succeeded.
    ///
    /// ```
    /// use roxie_nic::verbs::{Wc, WcStatus};
    ///
    /// let flushed = Wc { wr_id: 7, status: WcStatus::WrFlush, ..Wc::default() };
    /// assert_eq!(flushed.ok().unwrap_err().status(), WcStatus::WrFlush);
    /// assert_eq!(Wc::default().ok().unwrap().wr_id, 0);
    /// ```
    ///
    /// # Errors
    /// If the status is not [`WcStatus::Success`].
    pub fn ok(self) -> Result<Wc, WcError> {
        if self.status == WcStatus::Success { Ok(self) } else { Err(WcError(self)) }
    }

    /// Returns the status in words, with the syndrome of the peer's response if there was one.
    pub fn explain(&self) -> String {
        match self.vendor_err {
            0 => self.status.to_string(),
            byte => format!("{}; the peer answered {}", self.status, Syndrome::from(byte)),
        }
    }
}

/// Asynchronous event of an object (`ibv_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventKind {
    /// A CQ overflowed; completions were lost.
    CqError,
    /// The QP went to the error state for a local reason.
    QpFatal,
    /// A request of the peer was invalid; the QP is in the error state.
    QpRequestError,
    /// A request of the peer violated access rights; the QP is in the error state.
    QpAccessError,
    /// The first packet of the peer arrived while the QP was in RTR.
    CommunicationEstablished,
    /// A QP with a shared receive queue went to the error state, and completes no more receives.
    LastWqeReached,
    /// Fewer receives are left in a shared receive queue than the armed limit.
    SrqLimitReached,
    /// A shared receive queue failed: no more receives are taken from it.
    SrqError,
    /// The send queue is drained (SQD).
    SqDrained,
    /// The link is up.
    PortActive,
    /// The link is down.
    PortError,
    /// The GID table changed.
    GidChange,
    /// The device failed, and processes nothing any more.
    DeviceFatal,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AsyncEvent {
    /// Event of a QP.
    Qp(QpIndex, EventKind),
    /// Event of a CQ.
    Cq(CqIndex, EventKind),
    /// Event of a shared receive queue.
    Srq(SrqIndex, EventKind),
    /// Event of the port.
    Port(EventKind),
    /// Event of the device.
    Device(EventKind),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_and_statuses_round_trip_through_codes() {
        let opcodes = (0..=u8::MAX).filter_map(|code| Some((code, WcOpcode::from_code(code)?)));
        assert_eq!(opcodes.filter(|(code, opcode)| *opcode as u8 == *code).count(), 12);
        assert!((0..=u8::MAX).all(|code| WcOpcode::from_code(code).is_none_or(|o| o as u8 == code)));
        assert!(WcStatus::ALL.into_iter().all(|status| WcStatus::from_code(status as u8) == status));
    }
}
