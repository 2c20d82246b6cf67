//! End-to-end credits (IBTA 9.7.7.2): how many messages the peer has receives for.

use super::Qp;
use super::requester::Requester;
use super::send_queue::Wqe;
use roxie_wire::{Psn, credits};

impl Qp {
    /// Updates the credit limit from an AETH. A smaller limit than the current one is outdated, and ignored.
    pub(super) fn note_credits(&mut self, code: u8, msn: u32) {
        if !self.attributes().end_to_end_credits {
            return;
        }
        let limit = credits(code).map(|n| msn.wrapping_add(n) & 0xff_ffff);
        self.requester.credit_limit = match (self.requester.credit_limit, limit) {
            (Some(before), Some(now)) if Psn::new(now).is_before(Psn::new(before)) => Some(before),
            (_, limit) => limit,
        };
    }
}

impl Requester {
    /// True if a message that takes a receive exceeds the limit. The only
    /// outstanding message may always be sent as a probe.
    pub(super) fn lacks_credit(&self, wqe: &Wqe) -> bool {
        //= IBTA 9.7.7.2: credits-hold-sends-back
        let Some(limit) = self.credit_limit else { return false };
        //= IBTA 9.7.7.2: message-without-credit-may-probe
        if !wqe.wr.opcode.consumes_receive() || self.next == self.queue.tail() {
            return false;
        }
        let number = self.messages_done.wrapping_add(self.next.wrapping_sub(self.queue.tail()) + 1);
        Psn::new(limit).is_before(Psn::new(number))
    }
}
