//! The fast path of the NIC for the packets of the QP's `fast_path`: one look-up, one copy, no plans.

use super::host_side::DmaOut;
use super::receive::{Received, solve_id};
use super::srq::Receives;
use super::{Nic, QpEntry, RxFrame, TxReason, split};
use crate::transport::requester::fast_path::{Payload, PlannedSend};
use crate::transport::responder::fast_path::ReadResponse;
use crate::verbs::QpIndex;
use roxie_base::time::Nanos;
use roxie_wire::frame::FrameMut;
use roxie_wire::{Aeth, FastPacket, Icrc, Reth};

impl Nic {
    /// Receives an in-order request in the fast path. `None`: the packet needs the slow path, and nothing has changed.
    ///
    /// The payload is copied before anything else: if memory is missing, the packet takes the slow path.
    #[inline(always)]
    pub(super) fn receive_fast(
        &mut self,
        now: Nanos,
        packet: &FastPacket<'_>,
        received: &RxFrame<'_>,
    ) -> Option<Received> {
        let (index, entry) = self.qps.find_mut(packet.bth().dest_qp.value())?;
        if entry.holds_too_much() {
            return None;
        }
        let Some(due) = entry.qp.due(packet) else {
            return if packet.answers_a_read() {
                self.receive_read_response(now, packet, received)
            } else {
                None
            };
        };
        let hidden_id = entry.accept_icrc_fast(packet, received)?;
        let receive = match &entry.receives {
            _ if !due.takes_receive() => None,
            Receives::Own(ring, position) => Some(ring.fetch(*position, entry.qp.receive_list())?),
            _ => return None,
        };
        let placed = entry.qp.place_of(&self.memory, &due, packet, receive)?;
        let bytes = received.frame.slices(packet.payload());
        self.dma.write(&self.memory, QpIndex(index), placed.to, bytes).ok()?;
        if let (Some(_), Receives::Own(ring, position)) = (receive, &mut entry.receives) {
            //= IBTA 10.8.3: receives-complete-in-order
            *position = position.wrapping_add(1);
            ring.retire(*position);
        }
        entry.last_ip_id = hidden_id.unwrap_or(entry.last_ip_id);
        entry.has_received = true;
        let completion = entry.qp.executed(&self.config.limits, &due, placed, receive);
        self.counters.rcvd_pkts += 1;
        self.counters.rcvd_bytes += packet.payload().len() as u64;
        let is_last = due.ends();
        self.counters.rx_write_requests += u64::from(due.is_write() && is_last);
        self.counters.rdma_recvs += u64::from(!due.is_write() && is_last);
        if let Some(completion) = completion {
            self.out.completions.push(completion);
        }
        self.scheduler.mark_changed(&mut entry.schedule);
        Some(Received { qp: QpIndex(index), is_response: false, hidden_id })
    }

    /// Receives the next packet of a READ response in the fast path.
    #[inline(never)]
    fn receive_read_response(
        &mut self,
        now: Nanos,
        packet: &FastPacket<'_>,
        received: &RxFrame<'_>,
    ) -> Option<Received> {
        let (index, entry) = self.qps.find_mut(packet.bth().dest_qp.value())?;
        let awaited = entry.qp.awaited(&self.memory, packet)?;
        let hidden_id = entry.accept_icrc_fast(packet, received)?;
        let bytes = received.frame.slices(packet.payload());
        self.dma.write(&self.memory, QpIndex(index), awaited.to, bytes).ok()?;
        entry.last_ip_id = hidden_id.unwrap_or(entry.last_ip_id);
        entry.has_received = true;
        self.scheduler.mark_changed(&mut entry.schedule);
        self.counters.rcvd_pkts += 1;
        self.counters.rcvd_bytes += packet.payload().len() as u64;
        split!(self, now, entry => qp, ctx);
        qp.answered(&mut ctx, &awaited);
        Some(Received { qp: QpIndex(index), is_response: true, hidden_id })
    }

    /// Sends the next packet of a QP for [`send_fast`](Self::send_fast).
    #[inline(always)]
    pub(super) fn send_next<'f>(
        &mut self,
        now: Nanos,
        index: QpIndex,
        slot: u16,
        room: impl FnOnce(usize) -> Option<FrameMut<'f>>,
    ) -> Sent {
        let Some(entry) = self.qps.get_mut(index.0).filter(|_| !self.scheduler.is_urgent_turn()) else {
            return Sent::Other;
        };
        let Some(leaving) = entry.qp.leaving(&self.config.limits, &self.memory, self.acknowledges_first)
        else {
            return if entry.qp.answers_a_read() { self.send_answer(index, slot, room) } else { Sent::Other };
        };
        let PlannedSend { bth, reth, length, payload } = leaving;
        let reth = reth.as_ref().map(Reth::to_bytes);
        let with_length = entry.qp.template().and_then(|template| {
            Some((template, template.fast_len(if reth.is_some() { Reth::LEN } else { 0 }, length)?))
        });
        let Some((template, frame_len)) = with_length else { return Sent::Other };
        let Some(mut frame) = room(frame_len) else { return Sent::NoRoom(frame_len) };
        //= IBTA A17.9: ecn-capable-where-heeded
        let offset = template.write_fast(&mut frame, entry.capable, &bth, reth.as_ref());
        match payload {
            Payload::Memory(from) => {
                self.dma.plan(DmaOut { slot, offset: offset as u16, length, from });
            }
            Payload::Inline(position, from) => {
                frame.write(offset, entry.qp.inline_bytes(position, from, length));
            }
        }
        self.scheduler.charge(&entry.schedule, frame_len);
        self.counters.sent_pkts += 1;
        self.counters.sent_bytes += u64::from(length);
        entry.qp.sent_fast(now, &bth);
        Sent::Done(TxReason::New)
    }

    /// Sends the next packet of a READ response in the fast path.
    #[inline(never)]
    fn send_answer<'f>(
        &mut self,
        index: QpIndex,
        slot: u16,
        room: impl FnOnce(usize) -> Option<FrameMut<'f>>,
    ) -> Sent {
        let Some(entry) = self.qps.get_mut(index.0) else { return Sent::Other };
        let Some(answer) = entry.qp.next_read_response(&self.memory) else { return Sent::Other };
        let ReadResponse { bth, aeth, length, from } = answer;
        let aeth = aeth.as_ref().map(Aeth::to_bytes);
        let ext = if aeth.is_some() { Aeth::LEN } else { 0 };
        let with_length =
            entry.qp.template().and_then(|template| Some((template, template.fast_len(ext, length)?)));
        let Some((template, frame_len)) = with_length else { return Sent::Other };
        let Some(mut frame) = room(frame_len) else { return Sent::NoRoom(frame_len) };
        //= IBTA A17.9: ecn-capable-where-heeded
        let offset = template.write_fast(&mut frame, entry.capable, &bth, aeth.as_ref());
        self.dma.plan(DmaOut { slot, offset: offset as u16, length, from });
        self.scheduler.charge(&entry.schedule, frame_len);
        self.counters.sent_pkts += 1;
        self.counters.sent_bytes += u64::from(length);
        entry.qp.read_response_sent();
        Sent::Done(TxReason::Answer)
    }
}

impl QpEntry {
    /// Checks the ICRC. Returns the hidden identification that it matches, if any. `None`: the ICRC matches no
    /// plausible one.
    #[inline(always)]
    fn accept_icrc_fast(&self, packet: &FastPacket<'_>, received: &RxFrame<'_>) -> Option<Option<u16>> {
        match packet.check_icrc(&received.frame) {
            Icrc::Ok => Some(None),
            Icrc::Bad { computed, stored } => {
                let id = solve_id(received, computed, stored, packet.after_id());
                Some(Some(id.filter(|id| self.is_plausible(*id))?))
            }
        }
    }
}

/// Outcome of sending in the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The packet has its slot, and needs its payload; with the reason for sending it.
    Done(TxReason),
    /// The port has no room for a frame of this many bytes.
    NoRoom(usize),
    /// The packet needs the slow path ([`Nic::plan`]), or there is none.
    Other,
}
