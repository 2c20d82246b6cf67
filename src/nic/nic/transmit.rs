//! Sending: the arbiter picks a QP, the QP a packet, and its headers are written.

use super::gsi::names_foreign_qp;
use super::host_side::DmaOut;
use super::{Nic, QpEntry, Sent, split};
use crate::profile::CnpProfile;
use crate::transport::{AddressHandles, Gather, Origin, TxPlan, door};
use crate::verbs::{AddressVector, AhId, QpIndex, QpType};
use roxie_base::time::Nanos;
use roxie_wire::frame::FrameMut;
use roxie_wire::{self as wire, Bth, MAX_HEADERS, datagram_port, flow_port};

/// Returns the flow label of an address handle; 0: none.
fn handle_label(handles: &AddressHandles, way: Option<AhId>) -> u32 {
    way.and_then(|way| handles.find(way)).map_or(0, |handle| handle.av().flow_label)
}

impl Nic {
    /// True if a QP has something to send.
    pub fn has_ready(&self) -> bool {
        self.scheduler.has_ready()
    }

    /// True if a QP has data to send that need not wait for the application's reply.
    pub fn has_pressing(&self) -> bool {
        self.scheduler.has_pressing()
    }

    /// Decides whether acknowledgements precede all requests from now on, or one request may precede them. An adapter
    /// acknowledges before its application can reply, and a program that waits for events may take its two completions
    /// for ordered: the completion of its request before the completion of the reply to it (perftest with `-e`).
    pub fn acknowledge_first(&mut self, first: bool) {
        self.acknowledges_first = first;
    }

    /// Returns the QP that may send next, up to `tx_quantum` packets. Call [`Nic::end_turn`] afterwards.
    pub fn next_turn(&mut self) -> Option<QpIndex> {
        if self.scheduler.has_urgent()
            && let Some(index) = self.next_urgent()
        {
            return Some(index);
        }
        let index = self.scheduler.next()?;
        let is_ready = |entry: &QpEntry| entry.schedule.is_ready();
        invariant!(
            self.qps.get(index.0).is_some_and(is_ready),
            "QP {} has a turn, and is not ready",
            index.0
        );
        if self.config.serves && self.parking.has_to_wait(&mut self.qps, index) {
            return self.skip_parked(index);
        }
        Some(index)
    }

    /// Ends the turn of a QP that waits for copies, which gets its next one afterwards. Returns the next QP that does
    /// not wait.
    #[cold]
    fn skip_parked(&mut self, index: QpIndex) -> Option<QpIndex> {
        let mut next = Some(index);
        while let Some(index) = next
            && self.parking.has_to_wait(&mut self.qps, index)
        {
            if let Some(entry) = self.qps.get_mut(index.0) {
                self.scheduler.end_turn(&mut entry.schedule, false);
            }
            next = self.scheduler.next();
        }
        next
    }

    /// Begins an urgent turn of the next QP of the urgent queue whose notification or acknowledgement may leave. An
    /// acknowledgement of a paused priority stays in its priority's queue.
    #[cold]
    fn next_urgent(&mut self) -> Option<QpIndex> {
        while let Some(index) = self.scheduler.next_urgent() {
            invariant!(self.qps.holds(index.0), "QP {} is urgent, and gone", index.0);
            let Some(entry) = self.qps.get_mut(index.0) else { continue };
            // A notification of a paused priority is dropped: it would be outdated after the pause.
            if entry.parked.is_some() {
                self.scheduler.skip_urgent(&mut entry.schedule);
                continue;
            }
            entry.notification_due &= !self.scheduler.is_priority_paused(self.congestion.notification.1);
            if entry.notification_due || !self.scheduler.is_paused(&entry.schedule) {
                self.scheduler.begin_urgent(&mut entry.schedule);
                return Some(index);
            }
            self.scheduler.skip_urgent(&mut entry.schedule);
        }
        None
    }

    /// Puts a QP with an acknowledgement into the urgent queue, ahead of data.
    #[cold]
    pub(super) fn mark_urgent(&mut self, index: QpIndex) {
        let Some(entry) = self.qps.get_mut(index.0).filter(|entry| entry.parked.is_none()) else { return };
        if entry.qp.has_unpaced() && !self.scheduler.is_paused(&entry.schedule) {
            self.scheduler.make_urgent(&mut entry.schedule);
        }
    }

    /// Returns how many local work requests the current QP has executed. Each counts as a packet of the turn.
    pub fn take_local_work(&mut self) -> u32 {
        std::mem::take(&mut self.out.local_work)
    }

    /// Ends a QP's turn. `unfinished`: it stopped for lack of room or quantum, and gets another turn.
    pub fn end_turn(&mut self, index: QpIndex, unfinished: bool) {
        if self.scheduler.is_urgent_turn() {
            return self.end_urgent_turn(index, unfinished);
        }
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        self.scheduler.end_turn(&mut entry.schedule, unfinished);
        self.scheduler.mark_changed(&mut entry.schedule);
    }

    /// Ends an urgent turn. An unfinished QP gets another one, before all data.
    #[cold]
    fn end_urgent_turn(&mut self, index: QpIndex, unfinished: bool) {
        self.scheduler.end_urgent();
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        if unfinished && (entry.notification_due || entry.qp.has_unpaced()) {
            self.scheduler.make_urgent(&mut entry.schedule);
        }
        self.scheduler.mark_changed(&mut entry.schedule);
    }

    /// Sends the next packet of a QP in transmit slot `slot` in the fast path, if it is a new request that need not
    /// wait, or a READ response. `room` returns the frame for a number of bytes.
    #[inline(always)]
    pub fn send_fast<'f>(
        &mut self,
        now: Nanos,
        index: QpIndex,
        slot: u16,
        room: impl FnOnce(usize) -> Option<FrameMut<'f>>,
    ) -> Sent {
        door::send_fast(
            self,
            |nic| Some(&nic.qps.get(index.0)?.qp),
            |nic| nic.send_next(now, index, slot, room),
            |sent| matches!(sent, Sent::Done(_)),
            Sent::Other,
        )
    }

    /// Plans the next packet of an urgent turn: a notification, then acknowledgements.
    #[cold]
    fn plan_urgent(&mut self, now: Nanos, index: QpIndex) -> Option<TxPlan> {
        let entry = self.qps.get_mut(index.0)?;
        if entry.notification_due {
            return Some(entry.qp.notification());
        }
        if self.scheduler.is_paused(&entry.schedule) {
            return None;
        }
        split!(self, now, entry => qp, ctx);
        qp.next_unpaced(&mut ctx)
    }

    /// Plans the next packet of a QP. Changes nothing until [`Nic::emit`].
    pub fn plan(&mut self, now: Nanos, index: QpIndex) -> Option<TxPlan> {
        if self.scheduler.is_urgent_turn() {
            return self.plan_urgent(now, index);
        }
        let entry = self.qps.get_mut(index.0)?;
        split!(self, now, entry => qp, ctx);
        if !qp.qp_type.is_datagram() {
            return qp.next_packet(&mut ctx);
        }
        let plan = qp.next_packet(&mut ctx)?;
        match plan.ah {
            Some(way) if self.moves_to_other_priority(index, way) => None,
            _ => Some(plan),
        }
    }

    /// True if the packet's path has another priority than the queue its QP is in. Moves the QP.
    fn moves_to_other_priority(&mut self, index: QpIndex, way: AhId) -> bool {
        let Some(handle) = self.handles.find(way) else { return false };
        let priority = self.congestion.config.classes.priority(handle.av());
        let Some(entry) = self.qps.get_mut(index.0) else { return false };
        self.scheduler.move_to(&mut entry.schedule, priority)
    }

    /// Returns the frame length of a planned packet in bytes, without FCS. `None`: the address handle does not exist.
    pub fn frame_len(&self, index: QpIndex, plan: &TxPlan) -> Option<usize> {
        let template = match plan.ah {
            None => {
                let qp = &self.qps.get(index.0)?.qp;
                match qp.template() {
                    Some(template) => template,
                    // A raw packet's payload is the frame.
                    None => return (qp.qp_type == QpType::RawPacket).then_some(plan.payload_len.into()),
                }
            }
            Some(way) => &self.handles.find(way)?.template,
        };
        Some(template.frame_len(plan.bth.opcode, plan.payload_len.into()))
    }

    /// Writes a planned packet's headers to its frame, in transmit slot `slot`, and records the copies for its payload.
    pub fn emit(&mut self, now: Nanos, index: QpIndex, plan: &TxPlan, slot: u16, frame: &mut FrameMut<'_>) {
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        let altered = door::altered(&entry.qp, plan);
        let plan = altered.as_ref().unwrap_or(plan);
        entry.qp.assert_leaving(plan, &self.out.gather);
        let template = match plan.ah {
            None => entry.qp.template(),
            Some(way) => self.handles.find(way).map(|handle| &handle.template),
        };
        let mut offset = 0;
        if template.is_none() && entry.qp.qp_type != QpType::RawPacket {
            return;
        }
        if plan.origin == Origin::Notification {
            return self.emit_notification(index, plan, frame);
        }
        if let Some(template) = template {
            // Written in place if there is room: payload then overwrites bytes beyond the headers.
            let mut aside = None;
            let headers = match frame.a.first_chunk_mut() {
                Some(place) => place,
                None => aside.insert([0; MAX_HEADERS]),
            };
            offset = template.write_headers(headers, &plan.bth, &plan.ext, plan.payload_len.into());
            if plan.ah.is_some() {
                //= IBTA A17.4.3: roce-v2-source-port-tells-flows-apart
                let label = handle_label(&self.handles, plan.ah);
                let port = if label == 0 { datagram_port(entry.qp.qpn) } else { flow_port(label) };
                template.set_source_port(headers, port);
            }
            //= IBTA A17.9: ecn-capable-where-heeded
            if entry.capable && door::is_ecn_capable(plan) {
                template.set_ecn_capable(headers);
            }
            if let Some(headers) = aside {
                frame.write(0, &headers[..offset]);
            }
        }
        if let Some(bytes) = entry.qp.inline_payload(plan) {
            frame.write(offset, bytes);
        } else if plan.payload_len > 0 {
            // `out.gather` is valid until the next packet is planned.
            for &Gather { from, length } in &self.out.gather {
                self.dma.plan(DmaOut { slot, offset: offset as u16, length, from });
                offset += usize::from(length);
            }
        }
        self.scheduler.charge(&entry.schedule, frame.len());
        split!(self, now, entry => qp, ctx);
        door::sent(qp, &mut ctx, plan);
    }

    /// Writes a notification, which has a traffic class of its own, and is ECN-capable as on a ConnectX.
    #[cold]
    fn emit_notification(&mut self, index: QpIndex, plan: &TxPlan, frame: &mut FrameMut<'_>) {
        let (dscp, sl) = self.congestion.notification;
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        let Some(av) = entry.qp.attributes().av else { return };
        let own = AddressVector { traffic_class: dscp << 2 | 2, sl, ..av };
        let template = entry.qp.template_along(&own, self.congestion.tag_with(&av, sl));
        let cnp = self.config.profile.map_or_else(CnpProfile::default, |profile| profile.cnp);
        let bth = Bth { mig_req: cnp.mig_req.unwrap_or(plan.bth.mig_req), ..plan.bth };
        let mut headers = [0; MAX_HEADERS];
        let length = template.write_headers(&mut headers, &bth, &plan.ext, 0);
        if let Some(port) = cnp.source_port {
            template.set_source_port(&mut headers, port);
        }
        if let Some(first) = cnp.first_ip_id {
            template.set_identification(&mut headers, first.wrapping_add(self.counters.np_cnp_sent as u16));
        }
        frame.write(0, &headers[..length]);
        invariant!(entry.notification_due, "a notification leaves that is not due");
        entry.notification_due = false;
        self.counters.np_cnp_sent += 1;
        self.counters.sent_pkts += 1;
    }

    /// Computes the ICRC of a QP's complete frame. Returns false if the frame must not be sent.
    pub fn seal(&mut self, index: QpIndex, frame: &mut FrameMut<'_>) -> bool {
        let Some(entry) = self.qps.get(index.0) else { return true };
        match entry.qp.template() {
            Some(template) => {
                template.seal(frame);
                if self.config.rxe_flush_icrc {
                    template.seal_as_rxe(frame);
                }
            }
            // Datagrams have no common template.
            None if entry.qp.qp_type == QpType::Gsi
                && names_foreign_qp(&self.qps, entry, &frame.as_frame()) =>
            {
                self.counters.tx_foreign_qp += 1;
                return false;
            }
            None if entry.qp.qp_type.is_datagram() => wire::seal(frame),
            // Raw packets have no ICRC.
            None => {}
        }
        true
    }
}
