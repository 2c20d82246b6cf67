//! End-to-end credits (IBTA 9.7.7.2): how many messages the peer has receives for.

use super::window::SendWindow;
use roxie_wire::{Psn, credits};

/// Number of the last message for which the peer has a receive (AETH's MSN plus credits). `None`: credits are not in
/// use.
#[derive(Debug, Default)]
pub(super) struct Credits(Option<u32>);

impl Credits {
    /// True if credits limit what is sent.
    pub(super) fn are_in_use(&self) -> bool {
        self.0.is_some()
    }

    /// Updates the limit from an AETH. A smaller limit than the current one is outdated, and ignored.
    pub(super) fn note(&mut self, code: u8, msn: u32) {
        let limit = credits(code).map(|n| msn.wrapping_add(n) & 0xff_ffff);
        self.0 = match (self.0, limit) {
            (Some(before), Some(now)) if Psn::new(now).is_before(Psn::new(before)) => Some(before),
            (_, limit) => limit,
        };
    }

    /// True if the next message takes a receive, and exceeds the limit. The only outstanding message may always be sent
    /// as a probe.
    pub(super) fn hold(&self, window: &SendWindow) -> bool {
        //= IBTA 9.7.7.2: credits-hold-sends-back
        let Some(limit) = self.0 else { return false };
        //= IBTA 9.7.7.2: message-without-credit-may-probe
        let needs_credit = window.next_wqe().wr.opcode.consumes_receive() && !window.is_next_oldest();
        needs_credit && Psn::new(limit).is_before(Psn::new(window.next_message()))
    }
}
