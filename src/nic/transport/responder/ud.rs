//! Received datagrams (UD, IBTA 9.8.3): messages of one packet to any QP, addressed by address handle, QPN and Q_Key.
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

use super::{Check, Received, Responder};
use crate::transport::scatter::{FramePayload, ListError};
use crate::transport::{Ctx, Verdict};
use crate::verbs::{Wc, WcFlags, WcOpcode};
use roxie_wire::{Gid, NetHeader, Packet, Qpn};

/// Bytes reserved for the network header at the start of a datagram's receive.
const GRH_LEN: u32 = 40;
/// Length of an IPv4 header without options.
const IPV4_LEN: u32 = 20;

impl Responder {
    /// Handles a received datagram. `sent_from`: the local GID of the last datagram that this QP sent to a multicast
    /// group.
    pub(crate) fn on_datagram(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: Received<'_>,
        sent_from: Option<Gid>,
    ) -> Verdict {
        let Received { qp, packet, frame } = request;
        //= IBTA 9.8.3: ud-psn-is-not-checked
        let Some(deth) = packet.deth() else {
            ctx.counters.rx_wrong_service += 1;
            return Verdict::WrongService;
        };
        //= IBTA 9.6.1: ud-qkey-matches
        if deth.qkey != qp.qkey() {
            ctx.counters.qkey_viol_cntr += 1;
            return Verdict::BadQkey(deth.qkey);
        }
        // A QP does not receive its own datagrams to a multicast group.
        //= IBTA 10.5: multicast-does-not-come-back
        let own = packet.bth.dest_qp == Qpn::MULTICAST && deth.src_qp == qp.qpn;
        if own && sent_from == Some(packet.source_gid()) {
            return Verdict::OwnMulticast;
        }
        if packet.payload.len() > ctx.handles.largest_payload() {
            ctx.counters.resp_invalid_requests += 1;
            ctx.counters.rx_dropped_unacknowledged += 1;
            return Verdict::Unsuitable(Check::PacketLength);
        }
        if !self.receive_for_one(ctx) {
            return Verdict::NoReceive;
        }
        let before = ctx.out.dma_in.len();
        if let Err(error) = self.scatter_datagram(ctx, packet, frame) {
            ctx.out.dma_in.truncate(before);
            return self.not_received(qp, ctx, error);
        }
        ctx.counters.rdma_recvs += 1;
        ctx.counters.rcvd_bytes += packet.payload.len() as u64;
        //= IBTA 11.4.2.1: ud-completion-tells-the-sender
        let mut flags = WcFlags::GRH;
        flags.set(WcFlags::WITH_IMM, packet.imm().is_some());
        flags.set(WcFlags::SOLICITED, packet.bth.solicited);
        let wc = Wc {
            opcode: WcOpcode::Recv,
            flags,
            qpn: qp.qpn,
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
        self.receiving.finish(ctx, wc);
        Verdict::Executed
    }

    /// Scatters the network header, then the payload.
    fn scatter_datagram(&self, ctx: &mut Ctx<'_>, packet: &Packet, frame: u16) -> Result<(), ListError> {
        let header_len = match packet.net {
            NetHeader::Ipv4(_) => IPV4_LEN,
            //= IBTA A16: ud-receive-over-v1-begins-with-the-grh
            NetHeader::Ipv6(_) | NetHeader::Grh(_) => GRH_LEN,
        };
        //= IBTA A17.9.1: ud-receive-begins-with-40-bytes
        let zeros = u64::from(GRH_LEN - header_len);
        self.receiving.zero(ctx, zeros)?;
        let header = FramePayload { frame, offset: packet.l3_offset as u16, length: header_len as u16 };
        self.receiving.scatter(ctx, zeros, header)?;
        self.receiving.scatter(ctx, GRH_LEN.into(), FramePayload::of(packet, frame))
    }
}
