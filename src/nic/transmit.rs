//! What leaves: the arbiter picks a QP, the QP a packet, and its headers are written.

use super::dma::DmaOut;
use super::{Nic, split};
use crate::frame::FrameMut;
use crate::time::Nanos;
use crate::transport::coverage::{Mover, Watch};
use crate::transport::{PlantedBug, TxPlan};
use crate::verbs::{QpIndex, QpType};
use crate::wire::{self, MAX_HEADERS, datagram_port};

impl Nic {
    /// The QP whose turn it is. It sends up to `tx_quantum` packets; then call [`Nic::end_turn`].
    pub fn next_turn(&mut self) -> Option<QpIndex> {
        self.ready.pop_front()
    }

    /// A QP's turn is over. `unfinished`: it stopped for lack of room or time, so it comes again.
    pub fn end_turn(&mut self, index: QpIndex, unfinished: bool) {
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        entry.ready = unfinished;
        if unfinished && PlantedBug::UnfinishedGoesFirst.is() {
            self.ready.push_front(index);
        } else if unfinished {
            self.ready.push_back(index);
        } else {
            self.touch(index);
        }
    }

    /// The next packet of a QP; nothing has changed until [`Nic::emit`].
    pub fn plan(&mut self, now: Nanos, index: QpIndex) -> Option<TxPlan> {
        let entry = self.qps.get_mut(index.0)?;
        split!(self, now, entry => qp, ctx);
        let plan = qp.next_packet(&mut ctx);
        self.touch(index);
        plan
    }

    /// Bytes of a planned packet's frame, without FCS; `None`: there is no way to where it goes.
    pub fn frame_len(&self, index: QpIndex, plan: &TxPlan) -> Option<usize> {
        let template = match plan.way {
            None => {
                let qp = &self.qps.get(index.0)?.qp;
                match qp.template() {
                    Some(template) => template,
                    // The payload is the frame.
                    None => return (qp.qp_type == QpType::RawPacket).then_some(plan.payload_len.into()),
                }
            }
            Some(way) => &self.handles.find(way)?.template,
        };
        Some(template.frame_len(plan.bth.opcode, plan.payload_len.into()))
    }

    /// Writes a planned packet's headers to its frame, in transmit slot `slot`, and notes which copies it needs.
    pub fn emit(&mut self, now: Nanos, index: QpIndex, plan: &TxPlan, slot: u16, frame: &mut FrameMut<'_>) {
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        let template = match plan.way {
            None => entry.qp.template(),
            Some(way) => self.handles.find(way).map(|handle| &handle.template),
        };
        let mut offset = 0;
        if template.is_none() && entry.qp.qp_type != QpType::RawPacket {
            return;
        }
        if let Some(template) = template {
            let mut headers = [0; MAX_HEADERS];
            offset = template.write_headers(&mut headers, &plan.bth, &plan.ext, plan.payload_len.into());
            if plan.way.is_some() {
                template.set_source_port(&mut headers, datagram_port(entry.qp.qpn));
            }
            frame.write(0, &headers[..offset]);
        }
        if let Some(bytes) = entry.qp.inline_payload(plan) {
            frame.write(offset, bytes);
        } else if plan.payload_len > 0 {
            for piece in self.out.gather.drain(..) {
                let (from, length) = (piece.from, piece.length);
                self.dma_out.push_back(DmaOut { slot, offset: offset as u16, length, from });
                offset += usize::from(length);
            }
        }
        split!(self, now, entry => qp, ctx);
        let watch = Watch::timer(qp);
        qp.sent(&mut ctx, plan);
        watch.moved(qp, Mover::Sent);
    }

    /// Computes the ICRC of a finished frame of this QP.
    pub fn seal(&self, index: QpIndex, frame: &mut FrameMut<'_>) {
        let Some(entry) = self.qps.get(index.0) else { return };
        match entry.qp.template() {
            Some(template) => {
                template.seal(frame);
                if self.config.rxe_flush_icrc {
                    template.seal_as_rxe(frame);
                }
            }
            // Datagrams go many ways.
            None if entry.qp.qp_type.is_datagram() => wire::seal(frame),
            // Raw packets are the application's.
            None => {}
        }
    }
}
