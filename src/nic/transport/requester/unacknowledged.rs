//! Requests of the services without acknowledgements and retransmission: UC (IBTA 9.8.2), datagrams (UD, 9.8.3) and raw
//! packets.
//!
//! A request is complete once its last packet is sent. A send error stops the send queue only (SQE); receives continue.

use super::Requester;
use super::requests::segment;
use crate::transport::rules::Segment;
use crate::transport::scatter;
use crate::transport::send_queue::Wqe;
use crate::transport::{Ctx, Origin, QpContext, TxPlan, TxReason};
use crate::verbs::{QpType, SendFlags, UdAddress, WcStatus, WrOpcode};
use roxie_base::limits::MAX_MESSAGE;
use roxie_wire::frame::ETHERNET_HEADER;
use roxie_wire::{Bth, Deth, Ext, Opcode, Qpn};

/// Opcode bits that distinguish UC from RC.
const UC: u8 = 0x20;
/// In a work request's Q_Key: use the QP's own Q_Key (IBTA 10.2.5).
const OWN_QKEY: u32 = 1 << 31;

impl Requester {
    /// Plans the next request packet. A request that cannot be sent fails immediately and moves the QP to SQE.
    pub(crate) fn next_unacknowledged(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>) -> Option<TxPlan> {
        if !self.may_send_requests(qp) {
            return None;
        }
        let next = self.window.next();
        let local = qp.qp_type == QpType::Uc && self.window.queue().at(next).wr.opcode.is_local();
        if local && !self.pass_local_work(qp, ctx) {
            return None;
        }
        let position = self.window.next();
        let wqe = *self.window.queue().at(position);
        //= IBTA 9.4: operation-is-of-the-service
        //= IBTA 9.8.2: uc-has-no-reads
        let plan = if !wqe.valid || !qp.qp_type.serves(wqe.wr.opcode) {
            Err(WcStatus::LocQpOp)
        } else if qp.qp_type.is_datagram() {
            self.plan_datagram(qp, ctx, position, &wqe)
        } else if qp.qp_type == QpType::RawPacket {
            self.plan_raw(qp, ctx, position, &wqe)
        } else {
            self.plan_uc_request(qp, ctx, position, &wqe)
        };
        match plan {
            Ok(plan) => Some(plan),
            Err(status) => {
                self.fail_oldest(qp, ctx, status, 0);
                None
            }
        }
    }

    /// Appends a packet's payload to the gather list. For inline data, returns (send queue position, offset) instead.
    fn gather_payload(
        &self,
        qp: &QpContext,
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
            let sges = self.window.queue().sges(position);
            scatter::gather(ctx.memory, qp.pd, sges, offset, length, &mut ctx.out.gather)
                .map_err(|_| WcStatus::LocProt)?;
        }
        Ok(None)
    }

    /// Advances the state past a planned packet, which got a slot in the port. The last packet of a message completes
    /// the work request. The completion is published after the payload was copied.
    pub(crate) fn unacknowledged_sent(&mut self, qp: &QpContext, ctx: &mut Ctx<'_>, plan: &TxPlan) {
        if qp.qp_type.is_datagram() && plan.bth.dest_qp == Qpn::MULTICAST {
            self.group_source = plan.ah.and_then(|way| ctx.handles.find(way)).map(|handle| handle.sgid);
        }
        let mtu = qp.qp_type.is_connected().then_some(qp.mtu());
        //= IBTA 9.8.2: uc-is-done-when-it-has-left
        if self.window.unacknowledged_sent(plan.bth.psn, mtu) {
            self.complete_oldest(qp, ctx);
        }
    }

    fn plan_uc_request(
        &self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        position: u32,
        wqe: &Wqe,
    ) -> Result<TxPlan, WcStatus> {
        if wqe.length() > u64::from(MAX_MESSAGE) {
            return Err(WcStatus::LocLen);
        }
        let k = if wqe.started { self.window.next_packet() } else { 0 };
        let mtu = qp.mtu() as u64;
        let part = Segment::of(wqe.length(), k, mtu);
        let (opcode, ext) = segment(wqe, &part);
        let inline = self.gather_payload(qp, ctx, position, wqe, part.offset, part.length)?;
        let bth = Bth {
            opcode: Opcode(opcode.0 | UC),
            //= IBTA 9.2: solicited-is-in-the-last-packet
            solicited: part.last && wqe.wr.flags.contains(SendFlags::SOLICITED),
            psn: self.window.position(),
            ..qp.bth()
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

    fn plan_datagram(
        &self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        position: u32,
        wqe: &Wqe,
    ) -> Result<TxPlan, WcStatus> {
        let UdAddress { ah, remote_qpn, remote_qkey } = self.window.queue().operands(position).ud;
        // The handle was destroyed, or belongs to another domain.
        //= IBTA 11.2.2.1: ud-handle-is-of-the-domain
        ctx.handles.find(ah).filter(|handle| handle.pd == qp.pd).ok_or(WcStatus::LocQpOp)?;
        //= IBTA 9.8.3: ud-is-no-longer-than-the-mtu
        if wqe.length() > ctx.handles.largest_payload() as u64 {
            return Err(WcStatus::LocLen);
        }
        let payload_len = wqe.length() as u16;
        let inline = self.gather_payload(qp, ctx, position, wqe, 0, payload_len)?;
        //= IBTA 10.2.5: ud-high-qkey-is-the-qps-own
        let qkey = if remote_qkey & OWN_QKEY != 0 { qp.qkey() } else { remote_qkey };
        //= IBTA 9.8.3: ud-names-sender-and-key
        let deth = Deth { qkey, src_qp: qp.qpn };
        //= IBTA 9.8.3: ud-is-one-packet
        let (opcode, ext) = match wqe.wr.opcode {
            WrOpcode::SendImm => (Opcode::UD_SEND_ONLY_IMM, Ext::DethImm(deth, wqe.wr.imm)),
            _ => (Opcode::UD_SEND_ONLY, Ext::Deth(deth)),
        };
        let bth = Bth {
            opcode,
            //= IBTA 9.2: solicited-is-in-the-last-packet
            solicited: wqe.wr.flags.contains(SendFlags::SOLICITED),
            psn: self.window.position(),
            dest_qp: remote_qpn,
            ..qp.bth()
        };
        let (reason, origin) = (TxReason::New, Origin::Unacknowledged);
        Ok(TxPlan { bth, ext, payload_len, inline, ah: Some(ah), reason, origin })
    }

    /// Plans a frame. Fails with LOC_LEN if it is shorter than an Ethernet header or longer than the link allows.
    fn plan_raw(
        &self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        position: u32,
        wqe: &Wqe,
    ) -> Result<TxPlan, WcStatus> {
        let longest = ctx.longest_frame.min(usize::from(u16::MAX)) as u64;
        //= IBTA 9.8.4: raw-is-no-longer-than-the-link
        if wqe.length() < ETHERNET_HEADER as u64 || wqe.length() > longest {
            return Err(WcStatus::LocLen);
        }
        let payload_len = wqe.length() as u16;
        let inline = self.gather_payload(qp, ctx, position, wqe, 0, payload_len)?;
        //= IBTA 9.8.4: raw-frame-is-sent-as-it-is
        // The BTH is not sent; its PSN only counts.
        let bth = Bth { psn: self.window.position(), ..Bth::default() };
        let (reason, origin) = (TxReason::New, Origin::Unacknowledged);
        Ok(TxPlan { bth, ext: Ext::None, payload_len, inline, ah: None, reason, origin })
    }
}
