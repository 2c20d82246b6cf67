//! What holds for a QP between two calls. The NIC asserts it for each QP that has changed, in debug builds.

use super::Qp;
use super::requester::HALF_CIRCLE;
use crate::verbs::{QpState, QpType};

impl Qp {
    /// Asserts the QP's invariants (see the page of this folder), in debug builds.
    #[inline(always)]
    pub fn assert_invariants(&self) {
        if cfg!(debug_assertions) {
            self.assert_requester();
            let may = self.may_take_fast_path();
            invariant!(self.takes_fast_path() == may, "the fast path is taken, but packets came early");
            self.pacing.assert_invariants();
            self.responder.assert_invariants();
        }
    }

    fn assert_requester(&self) {
        let r = &self.requester;
        let tail = r.queue.tail();
        let (queued, sent) = (r.queue.head().wrapping_sub(tail), r.next.wrapping_sub(tail));
        invariant!(queued <= r.queue.capacity(), "{queued} work requests of {}", r.queue.capacity());
        invariant!(sent <= queued, "the next one to send is {sent} after the oldest of {queued}");
        invariant!(r.messages_done <= 0xff_ffff, "{} messages, modulo 2^24", r.messages_done);
        let sends = matches!(self.state(), QpState::Rts | QpState::Sqd);
        if sends && matches!(self.qp_type, QpType::Rc | QpType::XrcSend) {
            let outstanding = r.sent_end.value().wrapping_sub(r.una.value()) & 0xff_ffff;
            invariant!(outstanding <= HALF_CIRCLE, "PSNs from {} to {} are outstanding", r.una, r.sent_end);
            invariant!(r.reads_outstanding <= queued, "{} READs of {queued}", r.reads_outstanding);
        }
    }
}
