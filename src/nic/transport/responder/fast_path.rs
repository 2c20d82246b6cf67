//! Fast path of the responder: SENDs and WRITEs that are in order, without immediate, invalidation or special
//! conditions, and READ responses that are sent for the first time.
//!
//! The fast path decides nothing that the slow path does not decide in the same way. A result of `None` means: take the
//! slow path. Nothing has changed in this case.

use super::reply_packets::NO_CREDITS;
use super::{Reply, Responder};
use crate::transport::message::Message;
use crate::transport::rules::{length_fits, read_response_opcode, write_fits};
use crate::transport::{KeyUser, MemoryTable, QpContext, Span};
use crate::verbs::{Access, CqIndex, RecvWr, Sge, Wc, WcFlags, WcOpcode};
use roxie_base::limits::Limits;
use roxie_wire::{Aeth, Bth, FastPacket, Opcode, Operation, Syndrome};

/// A received request, in order.
pub(crate) struct Due {
    bth: Bth,
    /// Payload length in bytes; not 0.
    length: u64,
    begins: bool,
    ends: bool,
    is_write: bool,
}

/// Destination of a request's payload.
pub(crate) struct Destination {
    pub(crate) to: Span,
    /// State of the message after this packet.
    message: Message,
}

/// A planned READ response packet, a first transmission.
pub(crate) struct ReadResponse {
    pub(crate) bth: Bth,
    /// AETH of the first, last or only packet.
    pub(crate) aeth: Option<Aeth>,
    /// Payload length in bytes; not 0.
    pub(crate) length: u16,
    pub(crate) from: Span,
}

impl Due {
    /// Returns the request of a SEND or WRITE packet with payload, without immediate or invalidation.
    #[inline(always)]
    pub(crate) fn of(packet: &FastPacket<'_>) -> Option<Due> {
        let (bth, length) = (packet.bth(), packet.payload().len() as u64);
        let (is_write, begins, ends) = match bth.opcode {
            Opcode::RC_SEND_ONLY => (false, true, true),
            Opcode::RC_SEND_FIRST => (false, true, false),
            Opcode::RC_SEND_MIDDLE => (false, false, false),
            Opcode::RC_SEND_LAST => (false, false, true),
            Opcode::RC_WRITE_ONLY => (true, true, true),
            Opcode::RC_WRITE_FIRST => (true, true, false),
            Opcode::RC_WRITE_MIDDLE => (true, false, false),
            Opcode::RC_WRITE_LAST => (true, false, true),
            _ => return None,
        };
        (length > 0).then_some(Due { bth, length, begins, ends, is_write })
    }

    /// Returns the request's BTH.
    pub(crate) fn bth(&self) -> &Bth {
        &self.bth
    }

    /// True for the last packet of a message.
    pub(crate) fn ends(&self) -> bool {
        self.ends
    }

    /// True for a packet of a WRITE.
    pub(crate) fn is_write(&self) -> bool {
        self.is_write
    }

    /// True if the request takes a new receive.
    pub(crate) fn takes_receive(&self) -> bool {
        !self.is_write && self.begins
    }
}

impl Responder {
    /// True if the request has the expected PSN, continues the message in progress, and has the length that its
    /// position asks for.
    //= IBTA 9.5: requests-are-executed-in-psn-order
    #[inline(always)]
    pub(crate) fn expects(&self, qp: &QpContext, due: &Due) -> bool {
        let operation = if due.is_write { Operation::Write } else { Operation::Send };
        due.bth.psn == self.expected
            && self.receiving.message().admits(operation, due.begins)
            && length_fits(due.length as usize, qp.mtu(), due.ends)
    }

    /// Returns the buffer for the scatter list of the next receive.
    pub(crate) fn receive_list(&mut self) -> &mut [Sge] {
        self.receiving.list_mut()
    }

    /// Returns the destination of the payload, or `None` for the slow path. `receive` is the receive that the request
    /// takes, with its scatter list in `receive_list`.
    #[inline(always)]
    pub(crate) fn place_of(
        &self,
        qp: &QpContext,
        memory: &MemoryTable,
        due: &Due,
        packet: &FastPacket<'_>,
        receive: Option<RecvWr>,
    ) -> Option<Destination> {
        if due.is_write {
            return self.place_of_write(qp, memory, due, packet);
        }
        let received = match self.receiving.message() {
            Message::Send { received } => received,
            _ => 0,
        };
        let to = self.receiving.place(memory, receive, received, due.length)?;
        Some(Destination { to, message: Message::Send { received: received + due.length } })
    }

    #[inline(always)]
    fn place_of_write(
        &self,
        qp: &QpContext,
        memory: &MemoryTable,
        due: &Due,
        packet: &FastPacket<'_>,
    ) -> Option<Destination> {
        let (reth, received) = match self.receiving.message() {
            Message::Write { reth, received } => (reth, received),
            _ => (packet.reth()?, 0),
        };
        let total = u64::from(reth.dma_len);
        let after = received + due.length;
        if !write_fits(after, total, due.ends) || qp.check_allowed(Access::REMOTE_WRITE, &reth).is_err() {
            return None;
        }
        //= IBTA 9.7.4.1.5: write-is-checked-as-a-whole, key-is-checked-with-each-packet
        let checked = if due.begins { total } else { due.length };
        let va = reth.va.wrapping_add(received);
        let to = memory.check_remote(self.user(qp), reth.rkey, va, checked, Access::REMOTE_WRITE).ok()?;
        Some(Destination { to, message: Message::Write { reth, received: after } })
    }

    /// Advances the state past a request, after its payload was stored. `receive` is the receive that it took. Returns
    /// its completion, if any.
    #[inline(always)]
    pub(crate) fn executed(
        &mut self,
        qp: &QpContext,
        limits: &Limits,
        due: &Due,
        Destination { message, .. }: Destination,
        receive: Option<RecvWr>,
    ) -> Option<(CqIndex, Wc)> {
        let (qpn, cq) = (qp.qpn, self.receiving.cq());
        self.receiving.hold(receive);
        let completion = match message {
            _ if !due.ends => None,
            Message::Send { received } => self.receiving.end().map(|receive| {
                let mut flags = WcFlags::empty();
                flags.set(WcFlags::SOLICITED, due.bth.solicited);
                let (wr_id, opcode, byte_len) = (receive.wr_id, WcOpcode::Recv, received as u32);
                (cq, Wc { wr_id, opcode, flags, qpn, byte_len, ..Wc::default() })
            }),
            _ => None,
        };
        if due.ends {
            self.message_done();
        } else {
            self.receiving.set(message);
        }
        self.end_silence();
        self.expect_next(due.bth.ack_req, limits);
        completion
    }

    /// Plans the READ response packet at the front of the queue, if it suits the fast path. The state is advanced by
    /// [`reply_sent`](Self::reply_sent).
    #[inline(always)]
    pub(crate) fn next_read_response(&self, qp: &QpContext, memory: &MemoryTable) -> Option<ReadResponse> {
        let Some(Reply::Read(slot)) = self.replies.front() else { return None };
        let resource = self.resources.get(slot)?;
        if resource.operation != Operation::ReadRequest || resource.again {
            return None;
        }
        let mtu = qp.mtu() as u64;
        let (k, reth) = (resource.next, &resource.reth);
        let offset = u64::from(k) * mtu;
        let length = u64::from(reth.dma_len).checked_sub(offset).filter(|left| *left > 0)?.min(mtu);
        let user = KeyUser { pd: resource.pd, qp: qp.index };
        let va = reth.va.wrapping_add(offset);
        //= IBTA 9.7.4.1.5: key-is-checked-with-each-packet
        let from = memory.check_remote(user, reth.rkey, va, length, Access::REMOTE_READ).ok()?;
        let opcode = read_response_opcode(k, resource.packets);
        let has_aeth = opcode != Opcode::RC_READ_RESPONSE_MIDDLE;
        let syndrome = Syndrome::Ack { credits: NO_CREDITS };
        let aeth = has_aeth.then_some(Aeth { syndrome: syndrome.into(), msn: resource.msn });
        //= IBTA 9.2: pad-makes-whole-words
        let pad = (length as u8).wrapping_neg() & 3;
        //= IBTA 9.7.5.1: response-has-the-requests-psn
        let bth = Bth { opcode, pad, psn: resource.first_psn + k, ..qp.bth() };
        Some(ReadResponse { bth, aeth, length: length as u16, from })
    }
}
