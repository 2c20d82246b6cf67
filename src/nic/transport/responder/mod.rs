//! The responder: executes requests as memory operations and replies (IBTA 9.7.4, 9.7.5.1, 9.9.3).
//!
//! Each method is given the QP's context. The responder changes nothing of the QP but its own state: a verdict that
//! ends the connection ([`Verdict::ends_connection`](super::Verdict)) has [`Qp`](super::Qp) enter the error state.
//!
//! * `requests`: a request is expected, ahead or a duplicate. `execution`, `placement`: the operations. `duplicates`,
//!   `early`, `early_packets`, `early_writes`: the others.
//! * `receiving`: the message in progress and its receive. `resources`: READs and atomics with their results.
//! * `replies`: pending replies. `reply_packets`: their packets.
//! * `ud`, `uc`, `unacknowledged`: requests of the services without acknowledgements.
//! * `fast_path`: in-order SENDs and WRITEs, and READ responses.

mod duplicates;
mod early;
mod early_packets;
mod early_writes;
mod execution;
pub(crate) mod fast_path;
mod placement;
mod receiving;
mod replies;
mod reply_packets;
mod requests;
mod resources;
mod uc;
mod ud;
mod unacknowledged;

pub use replies::Reply;

use super::context::Received;
use super::message::Message;
use super::{Check, Ctx, KeyUser, QpConfig, QpContext, Span, TxReason, door};
use crate::verbs::{Access, CqIndex, PdId, QpAttr, Srqn, WcStatus};
use early::Early;
use receiving::Receiving;
use replies::Replies;
use resources::{Resource, Resources};
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_wire::{Operation, Psn, Reth};

/// Reason why a request is refused.
struct RequestRefused {
    check: Check,
    /// Completion status of the receive that the request took. `None`: the receive is flushed.
    receive: Option<WcStatus>,
}

impl From<Check> for RequestRefused {
    fn from(check: Check) -> RequestRefused {
        RequestRefused { check, receive: None }
    }
}

/// Outcome of a request that passed all checks.
enum Executed {
    Done,
    /// No receive is posted.
    NotReady,
}

/// State of the responder.
#[derive(Debug)]
pub(super) struct Responder {
    /// The expected PSN.
    expected: Psn,
    /// Number of completed messages, modulo 2^24.
    msn: u32,
    receiving: Receiving,
    /// Protection domain in which keys are checked. An XRC target has the domain of the shared receive queue that the
    /// request names.
    pd: PdId,
    /// XRC: the shared receive queue of the message in progress.
    srqn: Srqn,
    /// Packets ahead of `expected` are dropped without a NAK until this time. `Nanos::MAX` after a sequence NAK: until
    /// `expected` arrives. After an RNR NAK, until its wait ends. A packet ahead that arrives after the wait belongs to
    /// the retransmission, and shows that its first packet was lost. Without a NAK, only the peer's timer would reveal
    /// the loss.
    silent_until: Nanos,
    /// Selective repeat, if agreed with the peer.
    early: Option<Box<Early>>,
    /// True if the last ACK in the queue answers duplicates only.
    answers_duplicates: bool,
    /// Number of packets executed since an acknowledgement was queued.
    unacknowledged: u32,
    replies: Replies,
    resources: Resources,
}

impl Responder {
    /// Bytes that selective repeat takes.
    pub(super) const SELECTIVE_REPEAT: usize = size_of::<Early>();

    pub(super) fn new(config: &QpConfig) -> Responder {
        Responder {
            expected: Psn::new(0),
            msn: 0,
            receiving: Receiving::new(config),
            pd: config.pd,
            srqn: Srqn::default(),
            silent_until: Nanos::ZERO,
            early: None,
            answers_duplicates: false,
            unacknowledged: 0,
            replies: Replies::new(),
            resources: Resources::default(),
        }
    }

    pub(super) fn reset(&mut self) {
        self.expected = Psn::new(0);
        self.msn = 0;
        self.receiving.reset();
        self.silent_until = Nanos::ZERO;
        self.early = None;
        self.unacknowledged = 0;
        self.replies.clear();
        self.resources.clear();
    }

    /// Applies attributes, of which `attr` are new. Stored results are kept for duplicates.
    pub(super) fn configure(&mut self, qp: &QpContext, attr: &QpAttr) {
        //= IBTA 9.7.1: psn-begins-as-agreed
        self.expected = attr.rq_psn.unwrap_or(self.expected);
        if attr.selective_repeat.is_some() {
            self.early = qp.attributes().selective_repeat.then(Box::default);
            self.end_silence();
        }
        if let Some(count) = attr.max_dest_rd_atomic {
            self.replies.make_room_for(self.resources.resize(count));
        }
    }

    /// Returns the expected PSN.
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    /// Returns the completion queue of the receives.
    pub(super) fn recv_cq(&self) -> CqIndex {
        self.receiving.cq()
    }

    /// Returns the oldest pending reply.
    pub(super) fn front(&self) -> Option<Reply> {
        self.replies.front()
    }

    /// True if a reply is pending.
    pub(super) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// True if the oldest pending reply is not paced.
    pub(super) fn has_unpaced(&self) -> bool {
        let is_data = |reply: Reply| matches!(reply, Reply::Read(_) | Reply::ReadPart(_));
        self.replies.front().is_some_and(|reply| door::is_unpaced(is_data(reply)))
    }

    /// True if packets came early that are not passed yet.
    pub(super) fn has_early(&self) -> bool {
        self.early.as_ref().is_some_and(|early| !early.is_empty())
    }

    /// Stores the original value of an atomic that the DMA stage has executed for the peer.
    pub(super) fn atomic_done(&mut self, resource: u8, before: u64) {
        if let Some(resource) = self.resources.get_mut(resource) {
            resource.result = before;
        }
    }

    /// Returns the slot of an atomic that has been executed.
    pub(super) fn slot_of_atomic(&self, psn: Psn) -> Option<u8> {
        self.resources.find(psn, Operation::AtomicAcknowledge)
    }

    /// Returns the stored result of an atomic.
    pub(super) fn result_of(&self, psn: Psn) -> Option<u64> {
        self.resources.get(self.slot_of_atomic(psn)?).map(|resource| resource.result)
    }

    /// Drops the pending replies.
    pub(super) fn forget_replies(&mut self) {
        self.replies.clear();
    }

    /// Drops the current receive without a completion, because its shared receive queue was destroyed.
    pub(super) fn forget_receive(&mut self) {
        self.receiving.end();
    }

    /// Ends the responder's work on entry to the error state: flushes the receive in progress, and drops the pending
    /// replies. A NAK that refuses a request is still sent, and so are the replies before it, which answer earlier
    /// requests. None of what came early becomes due any more.
    pub(super) fn abandon(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) {
        self.receiving.flush(qp, ctx);
        let is_refusal = |r: &Reply| matches!(r, Reply::Nak { why, .. } if *why != Check::PsnAhead);
        //= IBTA 9.7.5.1: nothing-follows-a-refusal
        self.replies.truncate_behind(is_refusal);
        if let Some(early) = &mut self.early {
            **early = Early::default();
        }
    }

    /// Flushes up to `most` waiting receives. Returns how many.
    pub(super) fn flush_receives(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, most: u32) -> u32 {
        let waiting = ctx.receives.available().min(most);
        for flushed in 0..waiting {
            if !self.receiving.take(ctx.receives) {
                return flushed;
            }
            self.receiving.flush(qp, ctx);
        }
        waiting
    }

    /// Returns the identity under which keys are checked.
    pub(super) fn user(&self, qp: &QpContext) -> KeyUser {
        KeyUser { pd: self.pd, qp: qp.index }
    }

    /// Checks a peer's key, and returns where the bytes lie.
    fn check_key(&self, qp: &QpContext, ctx: &Ctx<'_>, reth: &Reth, access: Access) -> Result<Span, Check> {
        let checked = ctx.memory.check_remote(self.user(qp), reth.rkey, reth.va, reth.dma_len.into(), access);
        checked.map_err(Check::from)
    }

    /// Returns the reason for sending the ACK at the front of the queue.
    fn reason_of_ack(&self) -> TxReason {
        let again = self.answers_duplicates && self.replies.len() == 1;
        if again { TxReason::AnswerAgain } else { TxReason::Answer }
    }

    /// Returns the PSN before the expected one.
    #[inline(always)]
    fn last_executed(&self) -> Psn {
        Psn::new(self.expected.value().wrapping_sub(1))
    }

    #[inline(always)]
    fn acknowledge(&mut self) {
        self.unacknowledged = 0;
        self.answers_duplicates = false;
        self.replies.push(Reply::Ack { psn: self.last_executed(), msn: self.msn });
    }

    /// Ends the silence after a NAK: the expected packet has arrived.
    fn end_silence(&mut self) {
        self.silent_until = Nanos::ZERO;
    }

    /// Expects the next PSN after an executed SEND or WRITE packet. Queues an ACK if the packet asks for one, or if
    /// `ack_coalesce` packets are unacknowledged.
    #[inline(always)]
    fn expect_next(&mut self, ack_req: bool, limits: &Limits) {
        self.expected = self.expected.next();
        self.unacknowledged += 1;
        //= IBTA 9.7.5.1: ack-answers-ack-request
        if ack_req || self.unacknowledged >= limits.ack_coalesce {
            self.acknowledge();
        }
    }

    /// Expects the PSN behind a READ or an atomic of `packets` PSNs. Its response acknowledges it.
    fn expect_behind(&mut self, packets: u32) {
        //= IBTA 9.7.4: responder-counts-read-responses
        self.expected = self.expected + packets;
        self.unacknowledged = 0;
    }

    fn message_done(&mut self) {
        //= IBTA 9.7.7.1: msn-counts-messages
        self.msn = (self.msn + 1) & 0xff_ffff;
        self.receiving.set(Message::None);
    }

    /// Allocates a resource and queues its reply. Fails if the peer exceeds the agreed number of READs and atomics.
    fn enqueue_resource(
        &mut self,
        operation: Operation,
        first_psn: Psn,
        packets: u32,
        reth: Reth,
    ) -> Result<u8, Check> {
        //= IBTA 9.7.4.1: responder-resources-suffice
        let (slot, in_the_way) = self.resources.next_slot().ok_or(Check::Resources)?;
        if let Some(answer) = in_the_way {
            self.replies.remove(answer);
        }
        let msn = (self.msn + 1) & 0xff_ffff;
        let (pd, next, result) = (self.pd, 0, 0);
        let resource = Resource {
            operation,
            first_psn,
            packets,
            next,
            reth,
            msn,
            pd,
            result,
            queued: false,
            again: false,
        };
        // A duplicate queues a reply that found no room.
        let queued = self.replies.push(resource.reply(slot));
        self.resources.store(Resource { queued, ..resource });
        self.message_done();
        Ok(slot)
    }

    /// Advances the state past the reply packet at the front, which is sent.
    pub(super) fn reply_sent(&mut self) {
        invariant!(self.has_replies(), "a reply is sent that was not pending");
        if let Some(Reply::Read(slot) | Reply::Atomic(slot)) = self.replies.front() {
            let resource = self.resources.get_mut(slot);
            if !resource.is_some_and(|resource| resource.packet_sent()) {
                return;
            }
        }
        self.replies.pop();
    }

    /// Asserts the part's invariants.
    pub(super) fn assert_invariants(&self) {
        if let Some(early) = &self.early {
            early.assert_invariants(self.expected);
        }
        invariant!(self.msn <= 0xff_ffff, "MSN {}, modulo 2^24", self.msn);
        self.resources.assert_invariants();
        invariant!(self.replies.is_bounded(), "{} replies", self.replies.len());
        let psns = self.replies.iter().filter_map(|reply| self.resources.psn_of(reply));
        invariant!(
            psns.clone().is_sorted_by(|a, b| !b.is_before(*a)),
            "replies to {:?}",
            psns.collect::<Vec<_>>()
        );
    }
}

/// What the door sees.
#[cfg(feature = "planted-bugs")]
impl Responder {
    pub(super) fn silent_until(&self) -> Nanos {
        self.silent_until
    }

    pub(super) fn answers_duplicates(&self) -> bool {
        self.answers_duplicates
    }

    pub(super) fn newest_result(&self) -> Option<u64> {
        Some(self.resources.newest()?.result)
    }
}
