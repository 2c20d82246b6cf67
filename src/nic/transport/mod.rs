//! The transport layer of one queue pair (QP): the protocol state machines of RC, XRC, UC, UD and raw packets.
//!
//! The NIC drives a [`Qp`] by these calls only:
//!
//! ```text
//! handle_packet(ctx, packet, frame)   a packet was received          -> DMA, completions, queued replies
//! handle_timeout(ctx)                 deadline() has passed          -> retransmission, or an error
//! post_send(copy)                     a work request was fetched
//! next_packet(ctx) -> plan            plans the next packet; changes no sequence number
//! sent(ctx, plan)                     the planned packet got a slot in the port and is sent
//! ```
//!
//! After each call, check `wants_transmit` and `deadline`. Effects are appended to [`Output`]. Copies into memory must
//! run before any reply that depends on them is sent. Completions must be published after those copies.
//!
//! Read `requester`, then `responder`: the two sides of a connection, each with fields of its own. The two share no
//! state, and know of the QP only what is in `context`: numbers, attributes and state. `qp` joins them.
//!
//! * `memory`: protection keys, and the memory that each of them grants. `scatter`: lists of such memory.
//! * `check`: the checks of a request. `rules`: what fast path and slow path decide in the same way.
//! * `turns`: whether a request or a reply is sent next. `pacing`: congestion control and pacing.
//! * `xrc`: additions of the extended reliable connection.
//! * `door`: where tests observe, and plant bugs.
//!
//! Architecture invariant: no I/O, no clock, no randomness, no logging, and no allocation once a QP is connected. Every
//! packet from a peer ends in a counted drop, a NAK, or a completion with a status.

mod ack_request_policy;
mod address;
mod bitmap;
mod check;
mod context;
pub mod coverage;
pub(crate) mod memory;
mod message;
mod pacing;
mod permutation;
mod qp;
pub(crate) mod requester;
pub(crate) mod responder;
mod rules;
mod scatter;
pub mod send_queue;
mod turns;
mod verdict;
mod xrc;

mod counters;
pub mod door;

pub use ack_request_policy::AckRequestPolicy;
pub use address::AddressHandles;
pub use check::Check;
pub use context::{QpConfig, QpContext};
pub use counters::Counters;
pub use door::PlantedBug;
pub use memory::{KeyUser, MemoryTable, Refusal, RegionSpec, Span};
pub use permutation::{LongPermutation, Permutation, QuickPermutation, ShortPermutation};
pub use qp::Qp;
pub use requester::Awaits;
pub use responder::Reply;
pub use verdict::{Cause, RateChange, TxReason, Verdict};

use crate::verbs::{AhId, AsyncEvent, CqIndex, MrIndex, PdId, QpIndex, RecvWr, Sge, Srqn, Wc};
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_wire::{Bth, Ext};

/// The environment of a QP during one call.
pub struct Ctx<'a> {
    /// Time of the call. Never decreases.
    pub now: Nanos,
    /// Protection keys of the NIC.
    pub memory: &'a mut MemoryTable,
    /// True if the payload of planned packets has not been gathered yet. Its source memory must then keep its
    /// translation.
    pub gathers_pending: bool,
    /// Address handles, which datagrams name as their destination.
    pub handles: &'a AddressHandles,
    /// Source of receive work requests.
    pub receives: &'a mut dyn ReceiveQueue,
    /// Effects of the call are appended here.
    pub out: &'a mut Output,
    /// Counters, incremented during the call. Increments are never taken back.
    pub counters: &'a mut Counters,
    /// Limits on the packets and work of one QP.
    pub limits: &'a Limits,
    /// Longest frame that the port can send, in bytes.
    pub longest_frame: usize,
    /// No request precedes an acknowledgement ([`Nic::acknowledge_first`](crate::nic::Nic::acknowledge_first)).
    pub acknowledges_first: bool,
}

/// Source of receive work requests: a QP's own receive queue, or a shared one.
pub trait ReceiveQueue {
    /// Takes the next receive and copies its scatter list; `None` if there is none.
    fn take(&mut self, sges: &mut [Sge]) -> Option<RecvWr>;
    /// Number of receives posted, reported as credits in an AETH.
    fn available(&self) -> u32;
    /// XRC targets: selects the shared receive queue `srqn` for the following calls. Returns `None` if the XRC domain
    /// has no such queue.
    fn choose(&mut self, srqn: Srqn) -> Option<SharedQueue>;
}

/// Attributes of the shared receive queue that an XRC request names. The target QP uses them for this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedQueue {
    /// Protection domain of the memory that the request accesses.
    pub pd: PdId,
    /// Completion queue for receives.
    pub cq: CqIndex,
}

/// Effects of the calls so far. The caller carries them out, then clears and reuses the object.
#[derive(Debug, Default)]
pub struct Output {
    /// Memory operations (copies, atomics, flushes), in order.
    pub dma_in: Vec<DmaIn>,
    /// Completions, in order, each with its completion queue.
    pub completions: Vec<(CqIndex, Wc)>,
    /// Asynchronous events for the application.
    pub events: Vec<AsyncEvent>,
    /// Payload of the packet that `next_packet` planned last.
    pub gather: Vec<Gather>,
    /// True if an operation in `dma_in` may fail: its memory may be unmapped, or it flushes for persistence. See
    /// `memory_fault`.
    pub may_fault: bool,
    /// Input, not an effect: the time at which the port received the current packet. At most `now`.
    pub arrived: Nanos,
    /// Number of local work requests executed since [`Nic::take_local_work`](crate::nic::Nic::take_local_work).
    pub local_work: u32,
    /// QPs that have withdrawn access to a region, or to a window of it. Batches of copies that are out may still use
    /// the region.
    pub withdrawn: Vec<(QpIndex, MrIndex)>,
    /// Point to return to if the bytes of the current response cannot be stored.
    pub(crate) result: Option<send_queue::ResultPoint>,
}

impl Output {
    /// Appends a memory operation.
    fn push_dma(&mut self, operation: DmaIn) {
        self.may_fault |= operation.may_fault();
        self.dma_in.push(operation);
    }
}

/// An operation on host memory, caused by a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaIn {
    /// Copies `length` bytes at `offset` of received frame number `frame` to memory.
    Scatter {
        /// Index in the receive burst.
        frame: u16,
        /// Byte offset in the frame.
        offset: u16,
        /// Number of bytes to copy.
        length: u16,
        /// Destination of the first byte.
        to: Span,
    },
    /// Stores the 8 bytes at `offset` of a received frame by a single access.
    AtomicWrite {
        /// Index in the receive burst.
        frame: u16,
        /// Byte offset in the frame.
        offset: u16,
        /// Destination of the 8 bytes; 8-byte aligned.
        to: Span,
    },
    /// Makes all earlier writes globally visible and, if requested, persistent.
    Flush {
        /// Start of the range.
        at: Span,
        /// Length of the range in bytes.
        length: u64,
        /// True if the data must survive a power loss.
        persistent: bool,
    },
    /// Executes an atomic and reports the original value to the QP's responder.
    Atomic {
        /// The QP that received the request and sends the response.
        qp: QpIndex,
        /// The responder resource that stores the original value.
        resource: u8,
        /// The 8 bytes to operate on.
        at: Span,
        /// The operation with its operands, in host byte order.
        operation: AtomicOp,
    },
    /// Stores the result of an atomic that this side requested, in host byte order.
    Store {
        /// The value, 8 bytes. Bytes `skip..skip + length` of it are stored.
        value: u64,
        /// Number of leading bytes of `value`, in memory order, to skip.
        skip: u8,
        /// Number of bytes to store, 1 to 8.
        length: u8,
        /// Destination of the first stored byte.
        to: Span,
    },
}

impl DmaIn {
    /// Returns the index of the received frame that holds the bytes; 0 for operations without a frame.
    pub(crate) fn frame(&self) -> u16 {
        match self {
            DmaIn::Scatter { frame, .. } | DmaIn::AtomicWrite { frame, .. } => *frame,
            DmaIn::Flush { .. } | DmaIn::Atomic { .. } | DmaIn::Store { .. } => 0,
        }
    }

    /// Returns the number of bytes that the operation copies from the frame.
    fn copied(&self) -> u64 {
        match self {
            DmaIn::Scatter { length, .. } => (*length).into(),
            DmaIn::AtomicWrite { .. } => 8,
            DmaIn::Flush { .. } | DmaIn::Atomic { .. } | DmaIn::Store { .. } => 0,
        }
    }

    /// True if the memory may turn out to be unmapped.
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
    /// Stores `swap` if the current value equals `compare`.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store on equality.
        swap: u64,
    },
    /// Adds with wrap-around.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

impl AtomicOp {
    /// Returns the new value, or `None` if the value stays.
    pub fn apply(self, value: u64) -> Option<u64> {
        match self {
            //= IBTA 9.4.5: compare-and-swap-swaps-what-compares
            AtomicOp::CompareSwap { compare, swap } => (value == compare).then_some(swap),
            //= IBTA 9.4.5: fetch-and-add-adds
            AtomicOp::FetchAdd { add } => Some(value.wrapping_add(add)),
        }
    }
}

/// A contiguous part of a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// Source of the first byte.
    pub from: Span,
    /// Length in bytes.
    pub length: u16,
}

/// A planned packet, ready to be sent.
#[derive(Clone, Copy, Debug)]
pub struct TxPlan {
    /// Base transport header (BTH). The packet builder fills in the pad count.
    pub bth: Bth,
    /// Extension headers that follow the BTH.
    pub ext: Ext,
    /// Payload length in bytes, without padding.
    pub payload_len: u16,
    /// Inline payload: (send queue position, offset in its inline data). `None`: `Output::gather` lists the payload.
    pub inline: Option<(u32, u32)>,
    /// Address handle with the packet's path. `None`: the QP's own path.
    pub ah: Option<AhId>,
    /// Reason of sending: a first transmission, a retransmission with its cause, or a reply.
    pub reason: TxReason,
    /// Kind of packet: tells [`Qp::sent`] which state to advance.
    pub(crate) origin: Origin,
}

impl TxPlan {
    /// True for packets with data, which ECN-capable switches may mark: requests, and replies with payload.
    pub(crate) fn carries_data(&self) -> bool {
        self.payload_len > 0
            || matches!(
                self.origin,
                Origin::Request | Origin::Probe | Origin::PeerProbe | Origin::Unacknowledged
            )
    }

    /// True for a first transmission.
    pub(crate) fn is_first(&self) -> bool {
        matches!(self.reason, TxReason::New)
    }
}

/// The state that [`Qp::sent`] advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Request,
    /// A probe for an acknowledgement.
    Probe,
    /// A packet that asks whether the peer still has the connection, or whether it answers probes.
    PeerProbe,
    Reply,
    /// A request of a service without acknowledgements. Complete when its last packet is sent.
    Unacknowledged,
    /// A congestion notification.
    Notification,
}
