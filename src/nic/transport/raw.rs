//! Raw packets (`IBV_QPT_RAW_PACKET`): the application reads and writes whole frames.
//!
//! A message is a frame that begins with its Ethernet header and has no FCS. Contents are neither changed nor checked.
//! A request is complete once its frame is sent. Flows ([`roxie_base::flow`]) define which frames the NIC steers to the QP.
//!
//! A frame longer than its receive is dropped and counted, and the receive stays posted, as for datagrams.

use super::scatter::{self, FramePayload, ListError};
use super::send_queue::Wqe;
use super::{Ctx, Origin, Qp, TxPlan, TxReason, Verdict};
use crate::verbs::{QpState, RecvWr, Wc, WcOpcode, WcStatus};
use roxie_wire::frame::ETHERNET_HEADER;
use roxie_wire::{Bth, Ext};

impl Qp {
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

    /// Handles a frame of `length` bytes, steered to this QP. `frame` is its index in the receive burst.
    pub fn handle_frame(&mut self, ctx: &mut Ctx<'_>, length: usize, frame: u16) -> Verdict {
        if matches!(self.state(), QpState::Reset | QpState::Init | QpState::Err) {
            ctx.counters.rx_wrong_state += 1;
            return Verdict::WrongState(self.state());
        }
        ctx.counters.rcvd_pkts += 1;
        let Some(receive) = self.responder.receive_for_one(ctx) else { return Verdict::NoReceive };
        let Ok(length) = u16::try_from(length) else { return self.not_received(ctx, ListError::TooShort) };
        let payload = FramePayload { frame, offset: 0, length };
        let r = &mut self.responder;
        let sges = &r.sges[..receive.num_sge as usize];
        if let Err(error) = scatter::plan(ctx.memory, r.receive_pd, sges, 0, payload, ctx.out) {
            return self.not_received(ctx, error);
        }
        r.receive = None;
        ctx.counters.rdma_recvs += 1;
        ctx.counters.rcvd_bytes += u64::from(length);
        let wc = Wc {
            wr_id: receive.wr_id,
            opcode: WcOpcode::Recv,
            qpn: self.qpn,
            byte_len: length.into(),
            ..Wc::default()
        };
        ctx.out.completions.push((self.recv_cq, wc));
        Verdict::Executed
    }

    /// Fails the receive of the frame that was handled last, because its memory is missing. `completions` is the number
    /// of pending completions before the frame.
    pub(crate) fn frame_fault(&mut self, ctx: &mut Ctx<'_>, completions: usize) -> Verdict {
        if let Some((_, wc)) = ctx.out.completions.drain(completions..).next() {
            self.responder.receive = Some(RecvWr { wr_id: wc.wr_id, num_sge: 0 });
        }
        self.fail_receive(ctx, WcStatus::LocProt)
    }
}
