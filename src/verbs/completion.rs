//! Work completions and asynchronous events.

use serde::{Deserialize, Serialize};
use std::fmt;

use bitflags::bitflags;

use super::{CqIndex, QpIndex, Qpn, SrqIndex};
use crate::wire::Syndrome;

/// How a work request ended (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// Done.
    #[default]
    Success = 0,
    /// A message does not fit the receive.
    LocLen = 1,
    /// Internal consistency error of the QP.
    LocQpOp = 2,
    /// A local scatter/gather entry has a bad key, or lies outside its region.
    LocProt = 4,
    /// The QP is in the error state.
    WrFlush = 5,
    /// A memory window could not be bound.
    MwBind = 6,
    /// The peer's response made no sense.
    BadResp = 7,
    /// Protection error on an incoming WRITE with immediate.
    LocAccess = 8,
    /// NAK: the peer found the request invalid.
    RemInvReq = 9,
    /// NAK: the peer's key, bounds or access flags forbid it.
    RemAccess = 10,
    /// NAK: the peer could not carry it out.
    RemOp = 11,
    /// Retries exhausted: no answer.
    RetryExc = 12,
    /// RNR retries exhausted: the peer posts no receive.
    RnrRetryExc = 13,
    /// Anything else.
    General = 21,
}

impl WcStatus {
    /// All of them.
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

    /// From the number in a completion slot; unknown numbers read as `General`.
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

/// What kind of work completed (`ibv_wc_opcode`).
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
    /// A receive, filled by a SEND.
    Recv = 128,
    /// A receive, consumed by a WRITE with immediate.
    RecvWriteImm = 129,
}

impl WcOpcode {
    /// From the number in a completion slot.
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

    /// True of what ends a receive.
    pub fn is_receive(self) -> bool {
        matches!(self, WcOpcode::Recv | WcOpcode::RecvWriteImm)
    }
}

bitflags! {
    /// What else a completion says (`ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WcFlags: u8 {
        /// The first 40 bytes of the receive are a GRH, or the IP header in its place.
        const GRH = 1;
        /// `imm` is valid.
        const WITH_IMM = 1 << 1;
        /// `imm` is the key that the peer invalidated.
        const WITH_INV = 1 << 3;
        /// The sender asked for an event. (Roxie's own: it decides about events, the application ignores it.)
        const SOLICITED = 1 << 7;
    }
}

/// A work completion. After an error only `wr_id`, `status`, `qpn` and `vendor_err` mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    /// The id that the application posted the request with.
    pub wr_id: u64,
    /// How it ended; if not with success, only `wr_id`, `qpn` and `vendor_err` mean something.
    pub status: WcStatus,
    /// What the request was, or how the receive was consumed.
    pub opcode: WcOpcode,
    /// What else is valid.
    pub flags: WcFlags,
    /// Why, for people: the syndrome byte (AETH, IBTA 9.7.5.1) of the answer that ended it, or zero. See [`Wc::explain`].
    pub vendor_err: u8,
    /// The number of the local QP.
    pub qpn: Qpn,
    /// Bytes received, read or exchanged.
    pub byte_len: u32,
    /// Immediate data in host order, or the key that was invalidated: `flags` says which.
    pub imm: u32,
    /// Who sent a datagram.
    pub src_qp: Qpn,
    /// Index of the partition key that a datagram came with.
    pub pkey_index: u16,
    /// The sender's LID: RoCE has none, so 0.
    pub slid: u16,
    /// Of a datagram, which network header stands before it: 0 a GRH (RoCE v1), 1 IPv6, 2 IPv4. RoCE has no service level, and
    /// this is what ConnectX puts here (`MLX5_CQE_ROCE_L3_HEADER_TYPE_*`, Linux drivers/infiniband/hw/mlx5/cq.c): UCX goes by it.
    pub sl: u8,
}

impl Wc {
    /// How it ended, in words, and what the peer said if it said something.
    pub fn explain(&self) -> String {
        match self.vendor_err {
            0 => self.status.to_string(),
            byte => format!("{}; the peer answered {}", self.status, Syndrome::from(byte)),
        }
    }
}

/// What happened to an object outside the order of completions (`ibv_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventKind {
    /// A CQ overflowed; completions were lost.
    CqError,
    /// The QP went to the error state for a reason of its own.
    QpFatal,
    /// A peer's request was invalid; the QP is in the error state.
    QpRequestError,
    /// A peer's request violated access rights; the QP is in the error state.
    QpAccessError,
    /// The first packet of the peer arrived while the QP was ready to receive only.
    CommunicationEstablished,
    /// A QP that takes from a shared receive queue went to the error state: it completes no more receives.
    LastWqeReached,
    /// Fewer receives are left in a shared receive queue than the limit that was armed.
    SrqLimitReached,
    /// A shared receive queue is broken: nothing is taken from it any more.
    SrqError,
    /// The send queue is drained (SQD).
    SqDrained,
    /// The link is up.
    PortActive,
    /// The link is down.
    PortError,
    /// The GID table changed.
    GidChange,
    /// The device failed: nothing turns it any more.
    DeviceFatal,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AsyncEvent {
    /// Of a QP.
    Qp(QpIndex, EventKind),
    /// Of a CQ.
    Cq(CqIndex, EventKind),
    /// Of a shared receive queue.
    Srq(SrqIndex, EventKind),
    /// Of the port.
    Port(EventKind),
    /// Of the device as a whole.
    Device(EventKind),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_and_statuses_are_found_by_their_numbers() {
        let opcodes = (0..=u8::MAX).filter_map(|code| Some((code, WcOpcode::from_code(code)?)));
        assert_eq!(opcodes.filter(|(code, opcode)| *opcode as u8 == *code).count(), 12);
        assert!((0..=u8::MAX).all(|code| WcOpcode::from_code(code).is_none_or(|o| o as u8 == code)));
        assert!(WcStatus::ALL.into_iter().all(|status| WcStatus::from_code(status as u8) == status));
    }
}
