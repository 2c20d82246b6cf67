//! What holds for a QP between two calls. The NIC asserts it for each QP that has changed, in debug builds.

use super::Qp;
use super::requester::HALF_CIRCLE;
use super::responder::Responder;
use crate::verbs::{QpState, QpType};

impl Qp {
    /// Asserts the QP's invariants (see the page of this folder), in debug builds.
    #[inline(always)]
    pub fn assert_invariants(&self) {
        if cfg!(debug_assertions) {
            self.assert_requester();
            self.responder.assert_invariants();
        }
    }

    fn assert_requester(&self) {
        let r = &self.requester;
        let tail = r.queue.tail();
        let (queued, sent) = (r.queue.head().wrapping_sub(tail), r.next.wrapping_sub(tail));
        assert!(queued <= r.queue.capacity(), "{queued} work requests of {}", r.queue.capacity());
        assert!(sent <= queued, "the next one to send is {sent} after the oldest of {queued}");
        assert!(r.messages_done <= 0xff_ffff, "{} messages, modulo 2^24", r.messages_done);
        let sends = matches!(self.state(), QpState::Rts | QpState::Sqd);
        if sends && matches!(self.qp_type, QpType::Rc | QpType::XrcSend) {
            let outstanding = r.sent_end.value().wrapping_sub(r.una.value()) & 0xff_ffff;
            assert!(outstanding <= HALF_CIRCLE, "PSNs from {} to {} are outstanding", r.una, r.sent_end);
            assert!(r.reads_outstanding <= queued, "{} READs of {queued}", r.reads_outstanding);
        }
    }
}

impl Responder {
    fn assert_invariants(&self) {
        assert!(self.msn <= 0xff_ffff, "MSN {}, modulo 2^24", self.msn);
        let (next, count) = (self.next_resource, self.resources.len());
        assert!(next < count.max(1), "the next resource is {next} of {count}");
        assert!(self.replies.is_bounded(), "{} replies", self.replies.len());
    }
}
