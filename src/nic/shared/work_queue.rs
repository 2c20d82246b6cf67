//! Send and receive queues: rings of fixed-size slots of 64-bit words.
//!
//! ```text
//! word 0       producer: work requests posted so far     (the application stores, Release)
//! word 8       consumer: work requests the NIC has done with (the NIC stores, Release)
//! word 9       receive queues: 1 = the NIC wants a doorbell for each post
//! word 16 ..   slots
//!
//! send slot:    0 wr_id | 1 opcode:8 flags:8 num_sge:8 inline_len:16 remote_srqn:24 | 2 imm:32 rkey:32 | 3 remote_addr
//!               4 compare_add | 5 swap                           of operations that have operands
//!               4 ah:32 remote_qpn:32 | 5 remote_qkey:32         of all others
//!               6.. SGEs (addr, length:32 lkey:32) or payload: with one SGE it is a cache line
//! receive slot: 0 wr_id | 1 num_sge | 2.. SGEs                    with one SGE, two are a cache line
//! ```
//!
//! Ordering: the application writes a slot with relaxed stores, then publishes it by a Release store of the producer.
//! The NIC loads the producer with Acquire, copies the slot, and only then judges the copy. The application reuses a
//! slot after an Acquire load of the consumer.

use std::io;
use std::sync::Arc;

use super::doorbell::DoorbellsId;
use super::region::{LINE, Region, Words, slots_for};
use super::sync::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use crate::verbs::{
    AhId, LKey, QpType, Qpn, RKey, RecvWr, SendFlags, SendWr, Sge, Srqn, UdAddress, WrOpcode,
};
use roxie_base::limits::{MAX_INLINE, MAX_SGE};

const PRODUCER: usize = 0;
const CONSUMER: usize = LINE;
const WANTS_DOORBELL: usize = LINE + 1;
const SLOTS: usize = 2 * LINE;
/// Attempts to advance the consumer while other takers advance it.
const TRIES: u32 = 1 << 10;
const SEND_HEADER: usize = 6;
const RECV_HEADER: usize = 2;

/// Why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue is full (`ENOMEM`).
    #[error(
        "the queue is full: {outstanding} work requests of {capacity} are outstanding; poll the completion queue"
    )]
    QueueFull {
        /// Work requests posted and not yet completed.
        outstanding: u32,
        /// Work requests that the queue holds.
        capacity: u32,
    },
    /// The list is longer than the queue allows (`EINVAL`).
    #[error("{given} scatter/gather entries, the queue was made for {max}")]
    TooManySges {
        /// Scatter/gather entries that were given.
        given: usize,
        /// Scatter/gather entries that the queue was made for.
        max: u32,
    },
    /// The inline payload is longer than the queue allows (`ENOMEM` in rdma-core's providers).
    #[error("{given} bytes of inline payload, the queue was made for {max}")]
    TooMuchInline {
        /// Inline bytes of the work request.
        given: usize,
        /// Inline bytes that the queue was made for.
        max: u32,
    },
    /// Inline payload makes no sense for a READ, an atomic, a FLUSH or a local operation (`EINVAL`).
    #[error("inline payload with {0:?}, which sends none")]
    InlineNotAllowed(WrOpcode),
    /// The QP's service has no such operation (`EINVAL`).
    #[error("a QP of type {qp_type:?} cannot {opcode:?}")]
    NotServed {
        /// The operation that was posted.
        opcode: WrOpcode,
        /// The service of the QP.
        qp_type: QpType,
    },
    /// A message is longer than 2^31 bytes (`EINVAL`).
    #[error("the message is {0} bytes long, the transport carries 2^31")]
    MessageTooLong(u64),
    /// The QP has no receive queue of its own (`EINVAL`).
    #[error("the QP has no receive queue of its own; post to the shared receive queue that it takes from")]
    NoReceiveQueue,
    /// The QP does not take work requests in this state (`EINVAL`).
    #[error("the QP is in state {0:?}, which takes no such work requests")]
    WrongState(crate::verbs::QpState),
    /// The device has failed and executes no work requests (`EIO`).
    #[error("the device has failed and carries nothing out any more; close it and open it again")]
    DeviceFatal,
}

/// A ring of slots: the common part of send and receive queues.
#[derive(Clone, Debug)]
struct Ring {
    memory: Words,
    capacity: u32,
    mask: u32,
    /// Words of a slot.
    stride: u32,
}

impl Ring {
    fn size(capacity: u32, stride: usize) -> usize {
        SLOTS + (slots_for(capacity) * stride).next_multiple_of(LINE)
    }

    fn on(region: &Arc<Region>, capacity: u32, stride: usize) -> io::Result<Ring> {
        let region = region.part(0, Ring::size(capacity, stride))?;
        let (mask, stride) = ((slots_for(capacity) - 1) as u32, stride as u32);
        Ok(Ring { memory: region.into(), capacity, mask, stride })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[index]
    }

    #[inline(always)]
    fn slot(&self, position: u32) -> &[AtomicU64] {
        let stride = self.stride as usize;
        let at = SLOTS + (position & self.mask) as usize * stride;
        &self.memory.words()[at..][..stride]
    }

    /// Loads a position. Positions are 32-bit counters; the upper half of the word, which another process may write, is
    /// ignored.
    fn load(&self, index: usize) -> u32 {
        self.word(index).load(Acquire) as u32
    }

    /// Returns the position of the next work request, behind `staged` that are written and not yet published.
    fn room(&self, staged: u32) -> Result<u32, PostError> {
        let producer = (self.word(PRODUCER).load(Relaxed) as u32).wrapping_add(staged);
        let outstanding = producer.wrapping_sub(self.load(CONSUMER));
        if outstanding >= self.capacity {
            return Err(PostError::QueueFull { outstanding, capacity: self.capacity });
        }
        Ok(producer)
    }

    fn publish(&self, count: u32) {
        let producer = self.word(PRODUCER).load(Relaxed) as u32;
        self.word(PRODUCER).store(u64::from(producer.wrapping_add(count)), Release);
    }
}

fn put_sges(words: &[AtomicU64], sges: &[Sge]) {
    for (pair, sge) in words.chunks_exact(2).zip(sges) {
        pair[0].store(sge.addr, Relaxed);
        pair[1].store(u64::from(sge.length) | u64::from(sge.lkey.0) << 32, Relaxed);
    }
}

fn take_sges(words: &[AtomicU64], sges: &mut [Sge]) {
    for (pair, sge) in words.chunks_exact(2).zip(sges) {
        let addr = pair[0].load(Relaxed);
        let rest = pair[1].load(Relaxed);
        *sge = Sge { addr, length: rest as u32, lkey: LKey((rest >> 32) as u32) };
    }
}

/// A send queue. A clone is another handle to the same memory.
#[derive(Clone, Debug)]
pub struct SendRing {
    ring: Ring,
    max_sge: u32,
    max_inline: u32,
    page: Option<DoorbellsId>,
}

/// The payload of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Scatter/gather entries, in registered memory.
    Sges(&'a [Sge]),
    /// The bytes themselves, copied into the slot.
    Inline(&'a [u8]),
}

/// Facts about a send work request that the NIC has copied. The contents are not yet judged.
#[derive(Clone, Copy, Debug)]
pub struct FetchedSend {
    /// True if the opcode is a valid one.
    pub valid: bool,
    /// Scatter/gather entries, at most as many as the queue allows.
    pub num_sge: usize,
    /// Bytes of inline payload, at most as many as the queue allows.
    pub inline_len: usize,
}

impl SendRing {
    /// Makes a queue of `capacity` work requests of up to `max_sge` entries or `max_inline` bytes.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(capacity: u32, max_sge: u32, max_inline: u32) -> io::Result<SendRing> {
        let region = Region::new(SendRing::size(capacity, max_sge, max_inline))?;
        SendRing::on(&region, capacity, max_sge, max_inline)
    }

    /// Words of a queue of this shape.
    pub fn size(capacity: u32, max_sge: u32, max_inline: u32) -> usize {
        Ring::size(capacity, SendRing::stride(max_sge, max_inline))
    }

    /// Returns a handle to the queue of this shape in `region`; other handles may exist. A zeroed region is an empty
    /// queue.
    ///
    /// # Errors
    /// If the region is too small.
    pub fn on(region: &Arc<Region>, capacity: u32, max_sge: u32, max_inline: u32) -> io::Result<SendRing> {
        let ring = Ring::on(region, capacity, SendRing::stride(max_sge, max_inline))?;
        let (max_sge, max_inline) = (max_sge.min(MAX_SGE as u32), max_inline.min(MAX_INLINE as u32));
        Ok(SendRing { ring, max_sge, max_inline, page: None })
    }

    /// The NIC's side: marks the queue as one that a client rings for, by this page alone.
    pub fn rung_by(self, page: DoorbellsId) -> SendRing {
        SendRing { page: Some(page), ..self }
    }

    /// The page by which a client rings for the QP, if it is a client's.
    pub fn page(&self) -> Option<DoorbellsId> {
        self.page
    }

    /// Words of a slot.
    fn stride(max_sge: u32, max_inline: u32) -> usize {
        let sges = 2 * (max_sge as usize).min(MAX_SGE);
        let inline = (max_inline as usize).min(MAX_INLINE).div_ceil(8);
        (SEND_HEADER + sges.max(inline)).next_multiple_of(LINE)
    }

    /// The application's side: posts one work request. Caller must serialize calls (the verbs object holds a lock).
    ///
    /// # Errors
    /// If the queue is full, or the list or payload is longer than a slot allows.
    pub fn post(&self, wr: &SendWr, payload: Payload<'_>) -> Result<(), PostError> {
        self.stage(0, wr, payload)?;
        self.ring.publish(1);
        Ok(())
    }

    /// The application's side: writes a work request behind `staged` others that are not published yet. The NIC does
    /// not see it before [`publish`](Self::publish); an unpublished one is overwritten by the next.
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    pub fn stage(&self, staged: u32, wr: &SendWr, payload: Payload<'_>) -> Result<(), PostError> {
        self.check(wr, payload)?;
        let producer = self.ring.room(staged)?;
        let (slot, list) = self.ring.slot(producer).split_at(SEND_HEADER);
        let (num_sge, inline_len, flags) = match payload {
            Payload::Sges(sges) => {
                put_sges(list, sges);
                (sges.len(), 0, wr.flags - SendFlags::INLINE)
            }
            Payload::Inline(bytes) => {
                for (word, chunk) in list.iter().zip(bytes.chunks(8)) {
                    let mut padded = [0; 8];
                    padded[..chunk.len()].copy_from_slice(chunk);
                    word.store(u64::from_le_bytes(padded), Relaxed);
                }
                (0, bytes.len(), wr.flags | SendFlags::INLINE)
            }
        };
        let head = wr.opcode as u64
            | u64::from(flags.bits()) << 8
            | (num_sge as u64) << 16
            | (inline_len as u64) << 24
            | u64::from(wr.remote_srqn.0) << 40;
        slot[0].store(wr.wr_id, Relaxed);
        slot[1].store(head, Relaxed);
        slot[2].store(u64::from(wr.imm) | u64::from(wr.rkey.0) << 32, Relaxed);
        slot[3].store(wr.remote_addr, Relaxed);
        let UdAddress { ah, remote_qpn, remote_qkey } = wr.ud;
        let (fourth, fifth) = if wr.opcode.has_operands() {
            (wr.compare_add, wr.swap)
        } else {
            (u64::from(ah.0) | u64::from(remote_qpn.value()) << 32, u64::from(remote_qkey))
        };
        slot[4].store(fourth, Relaxed);
        slot[5].store(fifth, Relaxed);
        Ok(())
    }

    /// The application's side: publishes `count` staged work requests.
    pub fn publish(&self, count: u32) {
        self.ring.publish(count);
    }

    /// Work requests that are posted and not complete.
    pub fn outstanding(&self) -> u32 {
        self.ring.load(PRODUCER).wrapping_sub(self.ring.load(CONSUMER))
    }

    fn check(&self, wr: &SendWr, payload: Payload<'_>) -> Result<(), PostError> {
        match payload {
            Payload::Sges(sges) if sges.len() > self.max_sge as usize => {
                Err(PostError::TooManySges { given: sges.len(), max: self.max_sge })
            }
            Payload::Sges(sges) => {
                let length: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
                if length > u64::from(roxie_base::limits::MAX_MESSAGE) {
                    return Err(PostError::MessageTooLong(length));
                }
                Ok(())
            }
            Payload::Inline(_) if !wr.opcode.may_be_inline() => Err(PostError::InlineNotAllowed(wr.opcode)),
            Payload::Inline(bytes) if bytes.len() > self.max_inline as usize => {
                Err(PostError::TooMuchInline { given: bytes.len(), max: self.max_inline })
            }
            Payload::Inline(_) => Ok(()),
        }
    }

    /// The NIC's side: true if there is a work request at `position`.
    pub fn has(&self, position: u32) -> bool {
        let ready = self.ring.load(PRODUCER).wrapping_sub(position);
        // A producer too far ahead has been overwritten by the application: the queue counts as empty.
        ready != 0 && ready <= self.ring.mask + 1
    }

    /// The NIC's side: number of work requests from `position` on.
    pub fn waiting(&self, position: u32) -> u32 {
        let ready = self.ring.load(PRODUCER).wrapping_sub(position);
        if ready <= self.ring.mask + 1 { ready } else { 0 }
    }

    /// The NIC's side: copies the work request at `position` to `wr`, and its entries to `sges` or its payload to
    /// `inline`. Returns `None` if there is none. If the opcode is invalid, only `wr_id` is copied.
    pub fn fetch(
        &self,
        position: u32,
        wr: &mut SendWr,
        sges: &mut [Sge],
        inline: &mut [u8],
    ) -> Option<FetchedSend> {
        self.has(position).then(|| self.copy_out(position, true, wr, sges, inline))
    }

    /// As [`fetch`](Self::fetch), for a position that [`waiting`](Self::waiting) has counted. Without `addressed`, UD's
    /// and XRC's addresses are not copied.
    #[inline(always)]
    pub fn copy_out(
        &self,
        position: u32,
        addressed: bool,
        wr: &mut SendWr,
        sges: &mut [Sge],
        inline: &mut [u8],
    ) -> FetchedSend {
        let (slot, list) = self.ring.slot(position).split_at(SEND_HEADER);
        let head = slot[1].load(Relaxed);
        let imm_rkey = slot[2].load(Relaxed);
        let (fourth, fifth) = (slot[4].load(Relaxed), slot[5].load(Relaxed));
        let opcode = WrOpcode::from_code(head & 0xff);
        wr.wr_id = slot[0].load(Relaxed);
        wr.opcode = opcode.unwrap_or(SendWr::default().opcode);
        wr.flags = SendFlags::from_bits_truncate((head >> 8) as u8);
        wr.imm = imm_rkey as u32;
        wr.remote_addr = slot[3].load(Relaxed);
        wr.rkey = RKey((imm_rkey >> 32) as u32);
        wr.remote_srqn = Srqn(if addressed { (head >> 40) as u32 } else { 0 });
        (wr.compare_add, wr.swap, wr.ud) = (0, 0, UdAddress::default());
        if wr.opcode.has_operands() {
            (wr.compare_add, wr.swap) = (fourth, fifth);
        } else if addressed {
            wr.ud = UdAddress {
                ah: AhId(fourth as u32),
                remote_qpn: Qpn::new((fourth >> 32) as u32),
                remote_qkey: fifth as u32,
            };
        }
        let (mut num_sge, mut inline_len) = (0, 0);
        if wr.flags.contains(SendFlags::INLINE) {
            inline_len = ((head >> 24) as usize & 0xffff).min(self.max_inline as usize).min(inline.len());
            for (word, chunk) in list.iter().zip(inline[..inline_len].chunks_mut(8)) {
                chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes()[..chunk.len()]);
            }
        } else {
            num_sge = ((head >> 16) as usize & 0xff).min(self.max_sge as usize).min(sges.len());
            take_sges(list, &mut sges[..num_sge]);
        }
        let valid = opcode.is_some();
        if !valid {
            *wr = SendWr { wr_id: wr.wr_id, ..SendWr::default() };
        }
        FetchedSend { valid, num_sge, inline_len }
    }

    /// The NIC's side: releases all slots before `position`.
    pub fn retire(&self, position: u32) {
        self.ring.word(CONSUMER).store(u64::from(position), Release);
    }

    /// Empties the queue. Caller must ensure that neither side uses it (a reset QP).
    pub fn reset(&self) {
        self.ring.word(PRODUCER).store(0, SeqCst);
        self.ring.word(CONSUMER).store(0, SeqCst);
    }

    /// The words of the queue. The other side may write them at any time.
    pub fn words(&self) -> &[AtomicU64] {
        self.ring.memory.words()
    }

    /// Work requests that may be outstanding.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity
    }
}

/// A receive queue. A clone is another handle to the same memory.
#[derive(Clone, Debug)]
pub struct RecvRing {
    ring: Ring,
    max_sge: u32,
}

impl RecvRing {
    /// Makes a queue of `capacity` receives of up to `max_sge` entries.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(capacity: u32, max_sge: u32) -> io::Result<RecvRing> {
        RecvRing::on(&Region::new(RecvRing::size(capacity, max_sge))?, capacity, max_sge)
    }

    /// Words of a queue of this shape.
    pub fn size(capacity: u32, max_sge: u32) -> usize {
        Ring::size(capacity, RecvRing::stride(max_sge))
    }

    /// Returns a handle to the queue of this shape in `region`; other handles may exist. A zeroed region is an empty
    /// queue.
    ///
    /// # Errors
    /// If the region is too small.
    pub fn on(region: &Arc<Region>, capacity: u32, max_sge: u32) -> io::Result<RecvRing> {
        let ring = Ring::on(region, capacity, RecvRing::stride(max_sge))?;
        Ok(RecvRing { ring, max_sge: max_sge.min(MAX_SGE as u32) })
    }

    /// Words of a slot: a power of two up to a cache line, so that no slot is in two lines that fits one.
    fn stride(max_sge: u32) -> usize {
        let words = RECV_HEADER + 2 * (max_sge as usize).min(MAX_SGE);
        if words < LINE { words.next_power_of_two() } else { words.next_multiple_of(LINE) }
    }

    /// The application's side: posts one receive. Returns true if the NIC wants a doorbell. Caller must serialize
    /// calls.
    ///
    /// # Errors
    /// If the queue is full, or the list is longer than a slot allows.
    #[inline(always)]
    pub fn post(&self, wr_id: u64, sges: &[Sge]) -> Result<bool, PostError> {
        if sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySges { given: sges.len(), max: self.max_sge });
        }
        let producer = self.ring.room(0)?;
        let (slot, list) = self.ring.slot(producer).split_at(RECV_HEADER);
        slot[0].store(wr_id, Relaxed);
        slot[1].store(sges.len() as u64, Relaxed);
        put_sges(list, sges);
        self.ring.publish(1);
        // Pairs with the fence in `want_doorbell`: either this load sees the flag, or the NIC's next look at the
        // producer sees this post.
        fence(SeqCst);
        Ok(self.ring.word(WANTS_DOORBELL).load(Relaxed) != 0)
    }

    /// The NIC's side: true if there is a receive at `position`.
    #[inline(always)]
    pub fn has(&self, position: u32) -> bool {
        let ready = self.ring.load(PRODUCER).wrapping_sub(position);
        ready != 0 && ready <= self.ring.mask + 1
    }

    /// The NIC's side: number of receives from `position` on, at most as many as there are slots.
    pub fn waiting(&self, position: u32) -> u32 {
        self.ring.load(PRODUCER).wrapping_sub(position).min(self.ring.mask + 1)
    }

    /// The NIC's side: copies the receive at `position` out. Returns `None` if there is none.
    // Inlined: each message of a QP with its own queue comes here, and a call would cost more than the copy.
    #[inline(always)]
    pub fn fetch(&self, position: u32, sges: &mut [Sge]) -> Option<RecvWr> {
        if !self.has(position) {
            return None;
        }
        let (slot, list) = self.ring.slot(position).split_at(RECV_HEADER);
        let num_sge = (slot[1].load(Relaxed) as usize).min(self.max_sge as usize).min(sges.len());
        take_sges(list, &mut sges[..num_sge]);
        Some(RecvWr { wr_id: slot[0].load(Relaxed), num_sge: num_sge as u32 })
    }

    /// The NIC's side: releases all slots before `position`, which have been copied.
    pub fn retire(&self, position: u32) {
        self.ring.word(CONSUMER).store(u64::from(position), Release);
    }

    /// As [`retire`](Self::retire), for a queue with several takers: the consumer never goes back.
    pub(super) fn retire_at_least(&self, position: u64) {
        let consumer = self.ring.word(CONSUMER);
        let mut seen = consumer.load(Relaxed);
        // An attempt fails if another taker was faster, or if a client overwrites the consumer. Such a client's queue
        // then stays full.
        for _ in 0..TRIES {
            if seen >= position {
                return;
            }
            match consumer.compare_exchange(seen, position, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// The NIC's side: true if the producer claims more receives from `position` on than the ring has slots.
    pub(super) fn overruns(&self, position: u32) -> bool {
        self.ring.load(PRODUCER).wrapping_sub(position) > self.ring.mask + 1
    }

    /// The NIC's side: requests a doorbell for each post (a QP in error flushes new receives), or cancels that.
    pub fn want_doorbell(&self, wanted: bool) {
        self.ring.word(WANTS_DOORBELL).store(u64::from(wanted), Relaxed);
        fence(SeqCst);
    }

    /// Empties the queue. Caller must ensure that neither side uses it (a reset QP).
    pub fn reset(&self) {
        self.ring.word(PRODUCER).store(0, SeqCst);
        self.ring.word(CONSUMER).store(0, SeqCst);
    }

    /// The words of the queue. The other side may write them at any time.
    pub fn words(&self) -> &[AtomicU64] {
        self.ring.memory.words()
    }

    /// Receives that may be outstanding.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity
    }

    /// Scatter/gather entries that a receive may have.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }
}
