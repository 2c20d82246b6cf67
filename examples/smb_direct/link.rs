//! One end of an SMB Direct connection after its negotiation, without I/O: credits, fragments, keep-alive (MS-SMBD
//! 3.1).
//!
//! Inputs are [`Link::queue`], [`Link::received`] and [`Link::receives_are_posted`]. After each, the caller sends what
//! [`Link::next_message`] returns until it returns `None`.

use std::collections::VecDeque;

use super::messages::{DATA_OFFSET, DataTransfer, NegotiateRequest, NegotiateResponse, Refused, Sizes};

/// State of one end.
#[derive(Debug)]
pub(crate) struct Link {
    /// Messages that this end may send.
    send_credits: u16,
    /// Messages that the peer may send, each with a posted receive.
    receive_credits: u16,
    /// Posted receives that the peer does not know of.
    ungranted: u16,
    /// Credits that the peer would like to have.
    peer_wants: u16,
    /// Credits that this end would like to have.
    wants: u16,
    /// Bytes of a message that this end sends.
    max_send: usize,
    /// Bytes of a message that the peer assembles, and of one that this end does.
    fragmented: (u32, u32),
    /// Messages to send, the first with the bytes of it that were sent.
    queue: VecDeque<Vec<u8>>,
    sent: usize,
    assembly: Vec<u8>,
    /// Bytes that the message in `assembly` lacks.
    missing: u32,
    /// The peer waits for a message.
    response_due: bool,
    /// The next message asks for one of the peer's.
    requests_message: bool,
}

impl Link {
    /// Returns the connecting end: `own` are its sizes, `receives` its posted receives, and `wants` the credits that it
    /// asks for.
    pub(crate) fn connected(own: &Sizes, response: &NegotiateResponse, receives: u16, wants: u16) -> Link {
        let mut link = Link::new(own, &response.sizes, receives, wants);
        link.send_credits = response.credits_granted;
        link.peer_wants = response.credits_requested;
        link
    }

    /// Returns the accepting end. Its response to the request granted all its receives.
    pub(crate) fn accepted(own: &Sizes, request: &NegotiateRequest, receives: u16, wants: u16) -> Link {
        let mut link = Link::new(own, &request.sizes, 0, wants);
        link.receive_credits = receives;
        link.peer_wants = request.credits_requested;
        link
    }

    fn new(own: &Sizes, peer: &Sizes, ungranted: u16, wants: u16) -> Link {
        Link {
            send_credits: 0,
            receive_credits: 0,
            ungranted,
            peer_wants: 1,
            wants,
            max_send: own.preferred_send.min(peer.receive) as usize,
            fragmented: (peer.fragmented, own.fragmented),
            queue: VecDeque::new(),
            sent: 0,
            assembly: Vec::new(),
            missing: 0,
            response_due: false,
            requests_message: false,
        }
    }

    /// Takes a message of the upper layer. False: it is empty, or longer than the peer assembles.
    #[must_use]
    pub(crate) fn queue(&mut self, message: Vec<u8>) -> bool {
        let fits = !message.is_empty() && message.len() <= self.fragmented.0 as usize;
        if fits {
            self.queue.push_back(message);
        }
        fits
    }

    /// Asks the peer for a message with the next one of this end.
    pub(crate) fn request_message(&mut self) {
        self.requests_message = true;
    }

    /// Records receives that were posted again.
    pub(crate) fn receives_are_posted(&mut self, count: u16) {
        self.ungranted = self.ungranted.saturating_add(count);
    }

    /// True if all messages of the upper layer were sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes a received message. Returns the upper layer's, when it is complete.
    ///
    /// # Errors
    /// If the message breaks the protocol: the connection must end.
    pub(crate) fn received(&mut self, message: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        let transfer = DataTransfer::parse(message, self.fragmented.1)?;
        self.receive_credits = self.receive_credits.checked_sub(1).ok_or(Refused::NoCredit)?;
        let granted = transfer.credits_granted;
        let too_many = Refused::Field { field: "CreditsGranted", value: granted.into() };
        self.send_credits = self.send_credits.checked_add(granted).ok_or(too_many)?;
        self.peer_wants = transfer.credits_requested;
        self.response_due |= transfer.wants_response;
        if transfer.data.is_empty() {
            return Ok(None);
        }
        let covers = transfer.data.len() as u64 + u64::from(transfer.remaining);
        if !self.assembly.is_empty() && covers != u64::from(self.missing) {
            return Err(Refused::Sequence { is: covers, due: self.missing });
        }
        self.assembly.extend(transfer.data);
        self.missing = transfer.remaining;
        Ok((self.missing == 0).then(|| std::mem::take(&mut self.assembly)))
    }

    /// Returns the next message to send, if there is one that credits allow.
    pub(crate) fn next_message(&mut self) -> Option<Vec<u8>> {
        let grant = self.ungranted.min(self.peer_wants.saturating_sub(self.receive_credits));
        // The last credit brings others, or neither end could send (MS-SMBD 3.1.5.1).
        if self.send_credits == 0 || (self.send_credits == 1 && grant == 0) {
            return None;
        }
        // Grants travel with data. Alone they are sent when half of the credits are used, so that two ends do not
        // answer grants for ever.
        let grants_alone = grant > 0 && self.receive_credits <= self.peer_wants / 2;
        let message = self.queue.front();
        if message.is_none() && !grants_alone && !self.response_due && !self.requests_message {
            return None;
        }
        let rest = message.map_or(&[][..], |message| &message[self.sent..]);
        let data = &rest[..rest.len().min(self.max_send - DATA_OFFSET)];
        let remaining = (rest.len() - data.len()) as u32;
        let transfer = DataTransfer {
            credits_requested: self.wants,
            credits_granted: grant,
            wants_response: self.requests_message,
            remaining,
            data,
        };
        let bytes = transfer.to_bytes();
        self.sent += data.len();
        if remaining == 0 {
            self.queue.pop_front();
            self.sent = 0;
        }
        self.send_credits -= 1;
        self.ungranted -= grant;
        self.receive_credits += grant;
        (self.response_due, self.requests_message) = (false, false);
        Some(bytes)
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
