//! The transport: one QP, and nothing but the QP.
//!
//! A [`Qp`] is driven by these calls and no others:
//!
//! ```text
//! handle_packet(ctx, packet, frame)   a packet arrived          -> dma, completions, replies queued
//! handle_timeout(ctx)                 deadline() has passed      -> retransmission, or an error
//! post_send(ctx, fetched, ..)         a work request was fetched
//! next_packet(ctx) -> plan            what would leave next; changes no sequence
//! sent(ctx, plan)                     it has a slot: it leaves
//! ```
//!
//! After each of them ask `wants_transmit` and `deadline`. Effects are appended to [`Output`]: copies into
//! memory, which run before anything that was sent because of them leaves, and completions, which are
//! published after those copies.
//!
//! Read `requester`, `completer`, `retry` and `responder` in this order. The first three are one side of a
//! connection, the last is the other, with `duplicates`; they share no state. `local` is the work requests that send nothing, and
//! `memory` which key opens what to whom. `unacknowledged` is what services without acknowledgements share: a request
//! is done when it has left. `uc` and `ud` are two of them; `raw` is frames of other protocols. `xrc` is what the extended reliable connection adds, and `pace` what
//! congestion control does.
//!
//! Architecture invariant: no I/O, no clock, no randomness, no logging, and no allocation after a QP is made.
//! Whatever a peer sends ends in a counted drop, a NAK, or a completion with a status.

mod address;
mod check;
mod completer;
pub mod coverage;
mod duplicates;
mod flush;
mod local;
pub(crate) mod memory;
mod memory_fault;
mod message;
mod pace;
mod permutation;
mod placement;
mod qp;
mod raw;
mod replies;
mod reply_packets;
mod requester;
mod responder;
mod retry;
mod scatter;
pub mod send_queue;
mod uc;
mod ud;
mod unacknowledged;
pub(crate) mod usual;
pub(crate) mod usual_reads;
mod verdict;
mod xrc;

mod counters;
mod planted;

pub use address::AddressHandles;
pub use check::Check;
pub use counters::Counters;
pub use memory::{MemoryTable, Refusal, RegionSpec, Span, User};
pub use permutation::{LongPermutation, Permutation, QuickPermutation, ShortPermutation};
pub use planted::PlantedBug;
pub use qp::{Qp, QpConfig};
pub use replies::Reply;
pub use verdict::{Cause, RateChange, TxReason, Verdict};

use crate::limits::Limits;
use crate::time::Nanos;
use crate::verbs::{AhId, AsyncEvent, CqIndex, PdId, QpIndex, RecvWr, Sge, Srqn, Wc};
use crate::wire::{Bth, Ext};

/// What a QP needs of its surroundings for one call.
pub struct Ctx<'a> {
    /// The time of the call, which never goes back.
    pub now: Nanos,
    /// Which keys open what.
    pub memory: &'a mut MemoryTable,
    /// Payload of packets that were planned has not been gathered yet: what it is made of must stay.
    pub gathers_pending: bool,
    /// The ways of datagrams.
    pub handles: &'a AddressHandles,
    /// Where receives are taken from.
    pub receives: &'a mut dyn ReceiveQueue,
    /// Where the effects of the call are appended.
    pub out: &'a mut Output,
    /// Counted as the call goes, not taken back.
    pub counters: &'a mut Counters,
    /// How much one QP may have under way.
    pub limits: &'a Limits,
    /// The longest frame that the port carries, in bytes.
    pub longest_frame: usize,
}

/// Where receives come from: a QP's own queue, or one shared by many.
pub trait ReceiveQueue {
    /// Takes the next receive and copies its scatter list; `None` if there is none.
    fn take(&mut self, sges: &mut [Sge]) -> Option<RecvWr>;
    /// Receives that are waiting, for the credits in an AETH.
    fn available(&self) -> u32;
    /// Of an XRC target: takes from the queue of this number from now on. `None`: its domain has none.
    fn choose(&mut self, srqn: Srqn) -> Option<SharedQueue>;
}

/// What a shared receive queue that a request names lends to the QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedQueue {
    /// The domain of the memory that the request touches.
    pub pd: PdId,
    /// The completion queue of its receives.
    pub cq: CqIndex,
}

/// Effects of the calls so far. Reused; cleared by whoever carries them out.
#[derive(Debug, Default)]
pub struct Output {
    /// Copies into memory and atomics, in order.
    pub dma_in: Vec<DmaIn>,
    /// Completions, in order, with their queue.
    pub completions: Vec<(CqIndex, Wc)>,
    /// Asynchronous events for the application.
    pub events: Vec<AsyncEvent>,
    /// The payload of the packet that `next_packet` planned last.
    pub gather: Vec<Gather>,
    /// Some of `dma_in` may fail: it is for memory that may be gone, or makes it persistent. See `memory_fault`.
    pub may_fault: bool,
    /// When the port saw the packet that is handled, as an input beside the effects: `now` or a little before.
    pub arrived: Nanos,
    /// Local work requests that were carried out since [`Nic::take_local_work`](crate::nic::Nic::take_local_work).
    pub local_work: u32,
    /// A response whose bytes may not find their place.
    pub(crate) result: Option<memory_fault::ResultPoint>,
}

impl Output {
    /// Adds an operation on memory.
    fn push_dma(&mut self, operation: DmaIn) {
        self.may_fault |= operation.may_fault();
        self.dma_in.push(operation);
    }
}

/// An operation on host memory because of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaIn {
    /// Copy `length` bytes at `offset` of received frame number `frame` to memory.
    Scatter {
        /// Index in the receive burst.
        frame: u16,
        /// Byte offset in the frame.
        offset: u16,
        /// Bytes to copy.
        length: u16,
        /// Where the first byte goes.
        to: Span,
    },
    /// Store the 8 bytes at `offset` of a received frame, in one piece.
    AtomicWrite {
        /// Index in the receive burst.
        frame: u16,
        /// Byte offset in the frame.
        offset: u16,
        /// Where the 8 bytes go; 8-aligned.
        to: Span,
    },
    /// Make what was written before visible to everyone, and if asked persistent.
    Flush {
        /// Where the range begins.
        at: Span,
        /// Bytes of the range.
        length: u64,
        /// Until it survives a power loss.
        persistent: bool,
    },
    /// Run an atomic and tell the QP's responder what was there.
    Atomic {
        /// The QP that was asked, and answers with the result.
        qp: QpIndex,
        /// Which of its responder resources waits for the result.
        resource: u8,
        /// The 8 bytes that it works on.
        at: Span,
        /// The operation and its operands, in host order.
        operation: AtomicOp,
    },
    /// Store the result of an atomic that we requested, in host order.
    Store {
        /// The 8 bytes, or the first `length` of them.
        value: u64,
        /// Bytes of `value`, in memory order, to skip.
        skip: u8,
        /// Bytes to store, 1 to 8.
        length: u8,
        /// Where the first byte goes.
        to: Span,
    },
}

impl DmaIn {
    /// The received frame that its bytes are in; 0 if they are in none.
    pub(crate) fn frame(&self) -> u16 {
        match self {
            DmaIn::Scatter { frame, .. } | DmaIn::AtomicWrite { frame, .. } => *frame,
            DmaIn::Flush { .. } | DmaIn::Atomic { .. } | DmaIn::Store { .. } => 0,
        }
    }

    /// True if it may turn out that memory is not there.
    fn may_fault(&self) -> bool {
        match self {
            DmaIn::Scatter { to, .. } | DmaIn::AtomicWrite { to, .. } | DmaIn::Store { to, .. } => {
                to.may_fault
            }
            DmaIn::Atomic { at, .. } => at.may_fault,
            DmaIn::Flush { persistent, .. } => *persistent,
        }
    }
}

/// A 64-bit atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Store `swap` if it is `compare`.
    CompareSwap {
        /// What it must be.
        compare: u64,
        /// What is stored if they are equal.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// The addend; the sum wraps.
        add: u64,
    },
}

impl AtomicOp {
    /// The new value, or `None` if it stays.
    pub fn apply(self, value: u64) -> Option<u64> {
        match self {
            //= IBTA 9.4.5: compare-and-swap-swaps-what-compares
            AtomicOp::CompareSwap { compare, swap } => (value == compare).then_some(swap),
            //= IBTA 9.4.5: fetch-and-add-adds
            AtomicOp::FetchAdd { add } => Some(value.wrapping_add(add)),
        }
    }
}

/// A piece of a packet's payload, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// Where the first byte lies.
    pub from: Span,
    /// Bytes of the piece.
    pub length: u16,
}

/// A packet that could leave now.
#[derive(Clone, Copy, Debug)]
pub struct TxPlan {
    /// Its base transport header; the pad count is filled in by the builder.
    pub bth: Bth,
    /// What follows the BTH.
    pub ext: Ext,
    /// Bytes of payload, without padding.
    pub payload_len: u16,
    /// The payload is inline data of this send queue position from this byte on, instead of `Output::gather`.
    pub inline: Option<(u32, u32)>,
    /// The way it takes, if not the QP's own.
    pub way: Option<AhId>,
    /// Why it leaves: new, or again and on whose account.
    pub reason: TxReason,
    /// Request or reply, and which.
    pub(crate) origin: Origin,
}

impl TxPlan {
    /// True if it is more than an acknowledgement: what a switch may mark.
    pub(crate) fn carries_data(&self) -> bool {
        self.payload_len > 0 || matches!(self.origin, Origin::Request | Origin::Unacknowledged)
    }

    /// True if it never left before.
    pub(crate) fn is_first(&self) -> bool {
        matches!(self.reason, TxReason::New)
    }
}

/// What `sent` has to advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Request,
    Reply,
    /// A request that is done when its last packet has left.
    Unacknowledged,
    /// A congestion notification.
    Notification,
}
