//! The send window: the send queue, and how far it is sent and acknowledged.
//!
//! ```text
//!   send queue   tail ........ next ............ head
//!                 | sent, not   | next to be      |
//!                 | complete    | sent            |
//!   PSNs         una ....... position ... sent_end
//! ```
//!
//! The position (`next`, `next_packet`) is the next packet to send. A rewind only moves it back, because every packet
//! is built from its work request: to `una`, or with selective repeat to the oldest lost packet. `sent_end` never moves
//! back: PSNs from there on were never sent, so that no valid response acknowledges them.

use crate::transport::rules::{packets_for, packets_of};
use crate::transport::send_queue::{SendQueue, Wqe};
use roxie_wire::Psn;

/// Largest distance at which the order of two PSNs is known.
pub(super) const HALF_CIRCLE: u32 = 1 << 23;

/// The send queue with the positions in it.
#[derive(Debug)]
pub(in crate::transport) struct SendWindow {
    queue: SendQueue,
    /// Send queue position of the next work request to send.
    next: u32,
    /// Index of its next packet.
    next_packet: u32,
    /// First PSN of the next work request to start.
    psn: Psn,
    /// The oldest unacknowledged PSN.
    una: Psn,
    /// The PSN after the last one ever sent.
    sent_end: Psn,
    /// Number of READs and atomics between tail and next: sent, and their response is outstanding.
    reads_outstanding: u32,
    /// Number of completed messages, modulo 2^24, as in the peer's MSN.
    messages_done: u32,
}

impl SendWindow {
    pub(super) fn new(queue: SendQueue) -> SendWindow {
        let zero = Psn::new(0);
        SendWindow {
            queue,
            next: 0,
            next_packet: 0,
            psn: zero,
            una: zero,
            sent_end: zero,
            reads_outstanding: 0,
            messages_done: 0,
        }
    }

    /// Starts at `psn` with nothing outstanding.
    pub(super) fn start(&mut self, psn: Psn) {
        (self.psn, self.una, self.sent_end) = (psn, psn, psn);
    }

    /// Gives up what was sent, and what is queued.
    pub(super) fn abandon(&mut self) {
        self.una = self.sent_end;
        self.next = self.queue.head();
        self.next_packet = 0;
    }

    /// Returns the PSNs of packets that are not sent, if a message was cut off.
    pub(super) fn return_psns(&mut self) {
        self.psn = self.sent_end;
    }

    /// Returns the send queue.
    pub(crate) fn queue(&self) -> &SendQueue {
        &self.queue
    }

    /// Returns the send queue, for new work requests.
    pub(super) fn queue_mut(&mut self) -> &mut SendQueue {
        &mut self.queue
    }

    /// Returns the first PSN of the next work request to start.
    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }

    /// Returns the oldest unacknowledged PSN.
    pub(crate) fn una(&self) -> Psn {
        self.una
    }

    /// Returns the PSN after the last one ever sent.
    pub(crate) fn sent_end(&self) -> Psn {
        self.sent_end
    }

    /// True if all that was sent is acknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.una == self.sent_end
    }

    /// Returns the number of PSNs from `una` to the last one sent.
    pub(super) fn outstanding(&self) -> u32 {
        (self.sent_end - self.una.value()).value()
    }

    /// Returns the number of READs and atomics that were sent, and have their response outstanding.
    pub(super) fn reads_outstanding(&self) -> u32 {
        self.reads_outstanding
    }

    /// True if a work request is at the position.
    pub(super) fn has_next(&self) -> bool {
        self.next != self.queue.head()
    }

    /// Returns the send queue position of the next work request to send.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Returns the next work request to send. Valid if there is one.
    pub(super) fn next_wqe(&self) -> &Wqe {
        self.queue.at(self.next)
    }

    /// Returns the index of the next packet in its message.
    pub(super) fn next_packet(&self) -> u32 {
        self.next_packet
    }

    /// True if the next work request is the oldest as well.
    pub(super) fn is_next_oldest(&self) -> bool {
        self.next == self.queue.tail()
    }

    /// Returns the oldest work request. Valid if there is one.
    pub(super) fn oldest(&self) -> &Wqe {
        self.queue.at(self.queue.tail())
    }

    /// True if the oldest work request was sent at least in part, or is a local one that has taken effect.
    pub(crate) fn has_begun_oldest(&self) -> bool {
        !self.queue.is_empty() && self.oldest().started
    }

    /// Returns the work requests that were sent at least in part, with their send queue positions, the oldest first.
    pub(super) fn started(&self) -> impl Iterator<Item = (u32, &Wqe)> + Clone {
        let (tail, head) = (self.queue.tail(), self.queue.head());
        let all = (0..head.wrapping_sub(tail)).map(move |n| tail.wrapping_add(n));
        all.map(|at| (at, self.queue.at(at))).take_while(|(_, wqe)| wqe.started)
    }

    /// Returns the number of the next message, modulo 2^24, as the peer's MSN counts.
    pub(super) fn next_message(&self) -> u32 {
        self.messages_done.wrapping_add(self.next.wrapping_sub(self.queue.tail()) + 1)
    }

    /// Returns the PSN of the next packet, a first transmission or not.
    #[inline(always)]
    pub(super) fn position(&self) -> Psn {
        if !self.has_next() {
            return self.psn;
        }
        let wqe = self.next_wqe();
        //= IBTA 9.7.1: retransmission-keeps-the-psn
        if wqe.started { wqe.first_psn + self.next_packet } else { self.psn }
    }

    /// Returns the number of packets in flight. Computed modulo 2^24: a READ of 2^31 bytes can move the position 2^23
    /// PSNs ahead, too far for a signed distance. The position is never behind `una`.
    pub(super) fn in_flight(&self) -> u32 {
        (self.position() - self.una.value()).value()
    }

    /// True if the next packet was sent before.
    pub(super) fn repeats(&self) -> bool {
        self.position().is_before(self.sent_end)
    }

    /// Moves the position to `psn`, which must be `una` or a PSN that was sent before.
    pub(super) fn rewind_to(&mut self, psn: Psn) {
        invariant!(!psn.is_before(self.una), "the position moves to {psn}, before {}", self.una);
        let ended = self.started().take_while(|(_, wqe)| !psn.is_before(wqe.end_psn()));
        let (mut count, mut reads) = (0, 0);
        for (_, wqe) in ended {
            count += 1;
            reads += u32::from(wqe.wr.opcode.takes_resource());
        }
        self.next = self.queue.tail().wrapping_add(count);
        self.next_packet = match self.next_wqe() {
            wqe if self.has_next() && wqe.started => psn.distance_from(wqe.first_psn).max(0) as u32,
            _ => 0,
        };
        self.reads_outstanding = reads;
    }

    /// Moves the position to the first packet of its message.
    pub(super) fn restart_message(&mut self) {
        self.next_packet = 0;
    }

    /// Moves `una` forward. Returns true if the position was behind.
    #[inline(always)]
    pub(super) fn acknowledge(&mut self, una: Psn) -> bool {
        let is_behind = self.position().is_before(una);
        invariant!(!una.is_before(self.una), "{una} is acknowledged, {} was", self.una);
        invariant!(!self.sent_end.is_before(una), "{una} is acknowledged, {} was not sent", self.sent_end);
        self.una = una;
        is_behind
    }

    /// Removes the oldest work request, which is complete.
    pub(super) fn retire_oldest(&mut self) {
        let position = self.queue.tail();
        let opcode = self.oldest().wr.opcode;
        if opcode.takes_resource() && position != self.next {
            invariant!(self.reads_outstanding > 0, "a {opcode:?} completes, and none is outstanding");
            self.reads_outstanding = self.reads_outstanding.saturating_sub(1);
        }
        self.queue.retire();
        self.messages_done = self.messages_done.wrapping_add(u32::from(!opcode.is_local())) & 0xff_ffff;
        // The response arrived before the retransmission, which is not needed any more.
        if self.next == position {
            self.next = self.queue.tail();
            self.next_packet = 0;
        }
    }

    /// Removes the oldest work request, a plain one that is acknowledged and lies before the position.
    #[inline(always)]
    pub(super) fn retire_plain(&mut self) {
        self.queue.retire();
        self.messages_done = (self.messages_done + 1) & 0xff_ffff;
    }

    /// Removes the oldest work request, which is not complete.
    pub(super) fn drop_oldest(&mut self) {
        self.queue.retire();
    }

    /// Advances the position past its packet with this PSN, which is sent. Returns the PSN behind it, and whether it is
    /// a request for a READ or an atomic, which asks for all that is left.
    #[inline(always)]
    pub(super) fn packet_sent(&mut self, psn: Psn, mtu: usize) -> (Psn, bool) {
        let wqe = self.queue.at_mut(self.next);
        let takes_resource = !wqe.plain && wqe.wr.opcode.takes_resource();
        if !wqe.started {
            wqe.started = true;
            //= IBTA 9.7.3: psn-counts-packets
            wqe.first_psn = self.psn;
            wqe.packets = packets_of(wqe, mtu);
            self.psn = wqe.end_psn();
        }
        invariant!(
            psn == wqe.first_psn + self.next_packet,
            "PSN {psn} is sent as packet {}",
            self.next_packet
        );
        invariant!(self.next_packet < wqe.packets, "packet {} of {}", self.next_packet, wqe.packets);
        wqe.requested_from = self.next_packet;
        let end = if takes_resource { wqe.end_psn() } else { psn.next() };
        if takes_resource {
            self.reads_outstanding += 1;
        }
        self.next_packet += 1;
        if takes_resource || self.next_packet == wqe.packets {
            self.next = self.next.wrapping_add(1);
            self.next_packet = 0;
        }
        if self.sent_end.is_before(end) {
            self.sent_end = end;
        }
        (end, takes_resource)
    }

    /// Advances the position past its packet with this PSN, which is sent and needs no acknowledgement. `mtu`: `None`
    /// if each message is one packet. Returns true for the last packet of a message.
    pub(super) fn unacknowledged_sent(&mut self, psn: Psn, mtu: Option<usize>) -> bool {
        let wqe = self.queue.at_mut(self.next);
        if !wqe.started {
            wqe.started = true;
            //= IBTA 9.7.3: psn-counts-packets
            wqe.first_psn = self.psn;
            wqe.packets = mtu.map_or(1, |mtu| packets_for(wqe.length(), mtu));
            self.psn = wqe.end_psn();
        }
        self.next_packet += 1;
        (self.una, self.sent_end) = (psn + 1, psn + 1);
        let is_last = self.next_packet == wqe.packets;
        if is_last {
            self.next = self.next.wrapping_add(1);
            self.next_packet = 0;
        }
        is_last
    }

    /// Moves the position past a local work request that has taken effect.
    pub(super) fn pass_local(&mut self) {
        let wqe = self.queue.at_mut(self.next);
        if !wqe.started {
            wqe.started = true;
            wqe.first_psn = self.psn;
            wqe.packets = 0;
        }
        self.next = self.next.wrapping_add(1);
        self.next_packet = 0;
    }

    /// Asserts the part's invariants. `is_reliable`: packets are acknowledged.
    pub(super) fn assert_invariants(&self, is_reliable: bool) {
        let (tail, capacity) = (self.queue.tail(), self.queue.capacity());
        let (queued, sent) = (self.queue.head().wrapping_sub(tail), self.next.wrapping_sub(tail));
        invariant!(queued <= capacity, "{queued} work requests of {capacity}");
        invariant!(sent <= queued, "the next one to send is {sent} after the oldest of {queued}");
        invariant!(self.messages_done <= 0xff_ffff, "{} messages, modulo 2^24", self.messages_done);
        if is_reliable {
            let (una, end, reads) = (self.una, self.sent_end, self.reads_outstanding);
            invariant!(self.outstanding() <= HALF_CIRCLE, "PSNs from {una} to {end} are outstanding");
            invariant!(reads <= queued, "{reads} READs of {queued}");
        }
    }
}
