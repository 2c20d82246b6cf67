//! Requests of the services without acknowledgements and retransmission: UC (IBTA 9.8.2), datagrams (UD, 9.8.3) and raw packets.
//!
//! A request is complete once its last packet is sent. A send error stops the send queue only (SQE); receives continue.

use super::requester::segment;
use super::rules::{Segment, packets_for};
use super::scatter;
use super::send_queue::Wqe;
use super::{Ctx, Origin, Qp, TxPlan, TxReason};
use crate::verbs::{QpType, SendFlags, UdAddress, WcStatus, WrOpcode};
use roxie_base::limits::MAX_MESSAGE;
use roxie_wire::frame::ETHERNET_HEADER;
use roxie_wire::{Bth, Deth, Ext, Opcode, Qpn};

/// Opcode bits that distinguish UC from RC.
const UC: u8 = 0x20;
/// In a work request's Q_Key: use the QP's own Q_Key (IBTA 10.2.5).
const OWN_QKEY: u32 = 1 << 31;

impl Qp {
    /// Plans the next request packet. A request that cannot be sent fails at once and moves the QP to SQE.
    pub(super) fn next_unacknowledged(&mut self, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        if !self.may_send_requests() {
            return None;
        }
        let next = self.requester.next;
        let local = self.qp_type == QpType::Uc && self.requester.queue.at(next).wr.opcode.is_local();
        if local && !self.pass_local_work(ctx) {
            return None;
        }
        let position = self.requester.next;
        let wqe = *self.requester.queue.at(position);
        //= IBTA 9.4: operation-is-of-the-service
        //= IBTA 9.8.2: uc-has-no-reads
        let plan = if !wqe.valid || !self.qp_type.serves(wqe.wr.opcode) {
            Err(WcStatus::LocQpOp)
        } else if self.qp_type.is_datagram() {
            self.plan_datagram(ctx, position, &wqe)
        } else if self.qp_type == QpType::RawPacket {
            self.plan_raw(ctx, position, &wqe)
        } else {
            self.plan_uc_request(ctx, position, &wqe)
        };
        match plan {
            Ok(plan) => Some(plan),
            Err(status) => {
                self.fail_oldest(ctx, status, 0);
                None
            }
        }
    }

    /// Appends a packet's payload to the gather list. For inline data, returns (send queue position, offset) instead.
    pub(super) fn gather_payload(
        &self,
        ctx: &mut Ctx<'_>,
        position: u32,
        wqe: &Wqe,
        offset: u64,
        length: u16,
    ) -> Result<Option<(u32, u32)>, WcStatus> {
        ctx.out.gather.clear();
        if wqe.wr.flags.contains(SendFlags::INLINE) {
            return Ok(Some((position, offset as u32)));
        }
        if length > 0 {
            let sges = self.requester.queue.sges(position);
            scatter::gather(ctx.memory, self.pd, sges, offset, length, &mut ctx.out.gather)
                .map_err(|_| WcStatus::LocProt)?;
        }
        Ok(None)
    }

    /// Advances the state past a planned packet, which got a slot in the port. The last packet of a message completes
    /// the work request. The completion is published after the payload was copied.
    pub(super) fn unacknowledged_sent(&mut self, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        let mtu = self.attributes().path_mtu.bytes();
        let (datagram, connected) = (self.qp_type.is_datagram(), self.qp_type.is_connected());
        let r = &mut self.requester;
        let psn = r.psn;
        let wqe = r.queue.at_mut(r.next);
        if !wqe.started {
            wqe.started = true;
            //= IBTA 9.7.3: psn-counts-packets
            wqe.first_psn = psn;
            wqe.packets = if connected { packets_for(wqe.length(), mtu) } else { 1 };
            r.psn = wqe.end_psn();
        }
        if datagram && plan.bth.dest_qp == Qpn::MULTICAST {
            self.group_source = plan.ah.and_then(|way| ctx.handles.find(way)).map(|handle| handle.sgid);
        }
        let r = &mut self.requester;
        r.next_packet += 1;
        r.sent_end = plan.bth.psn + 1;
        r.una = r.sent_end;
        //= IBTA 9.8.2: uc-is-done-when-it-has-left
        if r.next_packet == r.queue.at(r.next).packets {
            r.next = r.next.wrapping_add(1);
            r.next_packet = 0;
            self.complete_oldest(ctx);
        }
    }

    /// Stops the send queue, which is flushed and accepts no work until `modify_qp` leads out of SQE. Receives continue (IBTA
    /// 10.3.1.6).
    pub(super) fn enter_send_queue_error(&mut self) {
        //= IBTA 10.3.1.6: sqe-stops-the-send-queue-alone
        self.set_send_queue_error();
        let r = &mut self.requester;
        r.abandon();
        // If a message was cut off, its unsent packets return their PSNs.
        r.psn = r.sent_end;
    }

    pub(super) fn plan_uc_request(
        &self,
        ctx: &mut Ctx<'_>,
        position: u32,
        wqe: &Wqe,
    ) -> Result<TxPlan, WcStatus> {
        if wqe.length() > u64::from(MAX_MESSAGE) {
            return Err(WcStatus::LocLen);
        }
        let r = &self.requester;
        let k = if wqe.started { r.next_packet } else { 0 };
        let mtu = self.attributes().path_mtu.bytes() as u64;
        let part = Segment::of(wqe.length(), k, mtu);
        let (opcode, ext) = segment(wqe, &part);
        let inline = self.gather_payload(ctx, position, wqe, part.offset, part.length)?;
        let bth = Bth {
            opcode: Opcode(opcode.0 | UC),
            //= IBTA 9.2: solicited-is-in-the-last-packet
            solicited: part.last && wqe.wr.flags.contains(SendFlags::SOLICITED),
            psn: r.position(),
            ..self.bth()
        };
        Ok(TxPlan {
            bth,
            ext,
            payload_len: part.length,
            inline,
            ah: None,
            reason: TxReason::New,
            origin: Origin::Unacknowledged,
        })
    }

    pub(super) fn plan_datagram(
        &self,
        ctx: &mut Ctx<'_>,
        position: u32,
        wqe: &Wqe,
    ) -> Result<TxPlan, WcStatus> {
        let UdAddress { ah, remote_qpn, remote_qkey } = self.requester.queue.operands(position).ud;
        // The handle was destroyed, or belongs to another domain.
        //= IBTA 11.2.2.1: ud-handle-is-of-the-domain
        ctx.handles.find(ah).filter(|handle| handle.pd == self.pd).ok_or(WcStatus::LocQpOp)?;
        //= IBTA 9.8.3: ud-is-no-longer-than-the-mtu
        if wqe.length() > ctx.handles.largest_payload() as u64 {
            return Err(WcStatus::LocLen);
        }
        let payload_len = wqe.length() as u16;
        let inline = self.gather_payload(ctx, position, wqe, 0, payload_len)?;
        //= IBTA 10.2.5: ud-high-qkey-is-the-qps-own
        let qkey = if remote_qkey & OWN_QKEY != 0 { self.context.qkey() } else { remote_qkey };
        //= IBTA 9.8.3: ud-names-sender-and-key
        let deth = Deth { qkey, src_qp: self.qpn };
        //= IBTA 9.8.3: ud-is-one-packet
        let (opcode, ext) = match wqe.wr.opcode {
            WrOpcode::SendImm => (Opcode::UD_SEND_ONLY_IMM, Ext::DethImm(deth, wqe.wr.imm)),
            _ => (Opcode::UD_SEND_ONLY, Ext::Deth(deth)),
        };
        let bth = Bth {
            opcode,
            //= IBTA 9.2: solicited-is-in-the-last-packet
            solicited: wqe.wr.flags.contains(SendFlags::SOLICITED),
            psn: self.requester.position(),
            dest_qp: remote_qpn,
            ..self.bth()
        };
        let (reason, origin) = (TxReason::New, Origin::Unacknowledged);
        Ok(TxPlan { bth, ext, payload_len, inline, ah: Some(ah), reason, origin })
    }

    /// Plans a frame. Fails with LOC_LEN if it is shorter than an Ethernet header or longer than the link allows.
    pub(super) fn plan_raw(&self, ctx: &mut Ctx<'_>, position: u32, wqe: &Wqe) -> Result<TxPlan, WcStatus> {
        let longest = ctx.longest_frame.min(usize::from(u16::MAX)) as u64;
        //= IBTA 9.8.4: raw-is-no-longer-than-the-link
        if wqe.length() < ETHERNET_HEADER as u64 || wqe.length() > longest {
            return Err(WcStatus::LocLen);
        }
        let payload_len = wqe.length() as u16;
        let inline = self.gather_payload(ctx, position, wqe, 0, payload_len)?;
        //= IBTA 9.8.4: raw-frame-is-sent-as-it-is
        // The BTH is not sent; its PSN only counts.
        let bth = Bth { psn: self.requester.position(), ..Bth::default() };
        let (reason, origin) = (TxReason::New, Origin::Unacknowledged);
        Ok(TxPlan { bth, ext: Ext::None, payload_len, inline, ah: None, reason, origin })
    }
}
