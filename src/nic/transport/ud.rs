//! Datagrams (UD, IBTA 9.8.3): messages of one packet to any QP, addressed by address handle, QPN and Q_Key.
//!
//! Every receive begins with 40 bytes for the network header. An IPv6 header fills them; an IPv4 header takes the last
//! 20, after zeros (IBTA annex A17.9.1; `rxe_resp.c`, `build_rdma_network_hdr`). The 40 bytes count in the receive's
//! length, whether the application reads them or not.
//!
//! Errors, where devices differ:
//!
//! * Sent datagram longer than the port's MTU: completes with LOC_LEN, as on ConnectX. (IBTA C10-93.1.1 drops it and
//!   reports success; so does rxe.)
//! * Received datagram longer than the port's MTU or than its receive: dropped and counted, and the receive stays
//!   posted. rdma_rxe of Linux 6.12 does the same (`rxe_resp_check_length`, class D of IBTA 9.9.3); earlier versions
//!   end the QP with LOC_QP_OP. ConnectX fails the receive with LOC_LEN and ends the QP. Any host may send a datagram,
//!   and must not be able to end a QP by it, least of all QP1 or all members of a group.

use super::check::Check;
use super::planted::PlantedBug;
use super::responder::{Responder, payload_of};
use super::scatter::{self, FramePayload, ListError};
use super::send_queue::Wqe;
use super::{Ctx, Origin, Qp, TxPlan, TxReason, Verdict};
use crate::verbs::{QpType, SendFlags, UdAddress, Wc, WcFlags, WcOpcode, WcStatus, WrOpcode};
pub(super) use roxie_wire::mad::GSI_QKEY;
use roxie_wire::{Bth, Deth, Ext, NetHeader, Opcode, Packet, Qpn};

/// Bytes reserved for the network header at the start of a datagram's receive.
pub(super) const GRH_LEN: u32 = 40;
/// Length of an IPv4 header without options.
const IPV4_LEN: u32 = 20;
/// In a work request's Q_Key: use the QP's own Q_Key (IBTA 10.2.5).
const OWN_QKEY: u32 = 1 << 31;

impl Qp {
    /// Returns the Q_Key that datagrams to this QP must have.
    fn qkey(&self) -> u32 {
        //= IBTA 10.2.4: gsi-has-its-number-and-key
        if self.qp_type == QpType::Gsi { GSI_QKEY } else { self.attributes().qkey }
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
        let qkey = if remote_qkey & OWN_QKEY != 0 { self.qkey() } else { remote_qkey };
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

    /// Handles a received datagram.
    pub(super) fn handle_datagram(&mut self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Verdict {
        //= IBTA 9.8.3: ud-psn-is-not-checked
        let Some(deth) = packet.deth() else {
            ctx.counters.rx_wrong_service += 1;
            return Verdict::WrongService;
        };
        //= IBTA 9.6.1: ud-qkey-matches
        if deth.qkey != self.qkey() && !PlantedBug::UdIgnoresQkey.is() {
            ctx.counters.qkey_viol_cntr += 1;
            return Verdict::BadQkey(deth.qkey);
        }
        // A QP does not receive its own datagrams to a multicast group.
        //= IBTA 10.5: multicast-does-not-come-back
        let own = packet.bth.dest_qp == Qpn::MULTICAST && deth.src_qp == self.qpn;
        if own && self.group_source == Some(packet.source_gid()) {
            return Verdict::OwnMulticast;
        }
        if packet.payload.len() > ctx.handles.largest_payload() && !PlantedBug::LongDatagramEnds.is() {
            ctx.counters.resp_invalid_requests += 1;
            ctx.counters.rx_dropped_unacknowledged += 1;
            return Verdict::Unsuitable(Check::PacketLength);
        }
        let Some(receive) = self.responder.receive_for_one(ctx) else { return Verdict::NoReceive };
        let before = ctx.out.dma_in.len();
        if let Err(error) = self.responder.scatter_datagram(ctx, packet, frame) {
            ctx.out.dma_in.truncate(before);
            return self.not_received(ctx, error);
        }
        self.responder.receive = None;
        ctx.counters.rdma_recvs += 1;
        ctx.counters.rcvd_bytes += packet.payload.len() as u64;
        //= IBTA 11.4.2.1: ud-completion-tells-the-sender
        let mut flags = WcFlags::GRH;
        flags.set(WcFlags::WITH_IMM, packet.imm().is_some());
        flags.set(WcFlags::SOLICITED, packet.bth.solicited);
        let wc = Wc {
            wr_id: receive.wr_id,
            opcode: WcOpcode::Recv,
            flags,
            qpn: self.qpn,
            byte_len: GRH_LEN + packet.payload.len() as u32,
            imm: packet.imm().unwrap_or(0),
            src_qp: deth.src_qp,
            vlan: packet.encapsulation().vlan,
            sl: match packet.net {
                NetHeader::Grh(_) => 0,
                NetHeader::Ipv6(_) => 1,
                NetHeader::Ipv4(_) => 2,
            },
            ..Wc::default()
        };
        ctx.out.completions.push((self.recv_cq, wc));
        Verdict::Executed
    }
}

impl Responder {
    /// Scatters the network header, then the payload.
    fn scatter_datagram(&self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Result<(), ListError> {
        let sges = &self.sges[..self.receive.map_or(0, |w| w.num_sge as usize)];
        let header_len = match packet.net {
            NetHeader::Ipv4(_) => IPV4_LEN,
            //= IBTA A16: ud-receive-over-v1-begins-with-the-grh
            NetHeader::Ipv6(_) | NetHeader::Grh(_) => GRH_LEN,
        };
        //= IBTA A17.9.1: ud-receive-begins-with-40-bytes
        let zeros = if PlantedBug::Ipv4HeaderComesFirst.is() { 0 } else { u64::from(GRH_LEN - header_len) };
        scatter::zero(ctx.memory, self.receive_pd, sges, zeros, ctx.out)?;
        let header = FramePayload { frame, offset: packet.l3_offset as u16, length: header_len as u16 };
        scatter::plan(ctx.memory, self.receive_pd, sges, zeros, header, ctx.out)?;
        scatter::plan(ctx.memory, self.receive_pd, sges, GRH_LEN.into(), payload_of(packet, frame), ctx.out)
    }
}
