//! Requests on the responder's memory other than READ, WRITE and 64-bit atomics: SEND with invalidate (IBTA 9.4.1.1.3),
//! ATOMIC WRITE and FLUSH (annex A19, memory placement extensions).
//!
//! ATOMIC WRITE and FLUSH count as READs and atomics of a QP. Their response is a READ response without payload.

use super::{Check, Executed, Received, RequestRefused, Responder};
use crate::transport::scatter::FramePayload;
use crate::transport::{Ctx, DmaIn, QpContext, Span};
use crate::verbs::{Access, WcStatus};
use roxie_wire::{Feth, Operation, Packet, Reth};

/// FETH selectivity: the range of the RETH.
const SELECT_RANGE: u8 = 0;
/// FETH selectivity: all memory of the key.
const SELECT_REGION: u8 = 1;

impl Responder {
    /// Executes the invalidation of a SEND with invalidate. If the key must not be invalidated, the peer gets an access
    /// error. The receive completes as in rdma_rxe (class J in `rxe_resp.c`, which still acknowledges the SEND).
    pub(super) fn invalidate(
        &self,
        qp: &QpContext,
        ctx: &mut Ctx<'_>,
        key: u32,
    ) -> Result<(), RequestRefused> {
        let before = ctx.memory.region_of(key);
        ctx.memory
            .invalidate(self.user(qp), key, true)
            .map_err(|why| RequestRefused { check: why.into(), receive: Some(WcStatus::RemInvReq) })?;
        ctx.out.withdrawn.extend(before.map(|region| (qp.index, region)));
        Ok(())
    }

    /// Checks the 8 bytes of an atomic or an ATOMIC WRITE. The peer's address and ours must be 8-byte aligned.
    pub(super) fn check_aligned(
        &self,
        qp: &QpContext,
        ctx: &Ctx<'_>,
        reth: &Reth,
        access: Access,
    ) -> Result<Span, Check> {
        //= IBTA 9.7.4.1: atomic-is-aligned
        if !reth.va.is_multiple_of(8) {
            return Err(Check::Alignment);
        }
        let at = self.check_key(qp, ctx, reth, access)?;
        if ctx.memory.misalignment(at) == 0 { Ok(at) } else { Err(Check::Alignment) }
    }

    pub(super) fn execute_atomic_write(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: Received<'_>,
    ) -> Result<Executed, RequestRefused> {
        let Received { qp, packet, frame } = request;
        let reth = packet.reth().ok_or(Check::Opcode)?;
        if !qp.attributes().access.contains(Access::REMOTE_WRITE) {
            return Err(Check::NotEnabled.into());
        }
        //= IBTA A19: atomic-write-is-8-aligned-bytes
        if reth.dma_len != 8 {
            return Err(Check::MessageLength.into());
        }
        let to = self.check_aligned(qp, ctx, &reth, Access::REMOTE_WRITE)?;
        self.enqueue_empty_answer(packet, Operation::AtomicWrite)?;
        let FramePayload { offset, .. } = FramePayload::of(packet, frame);
        //= IBTA A19: atomic-write-stores-8-bytes-in-one
        ctx.out.push_dma(DmaIn::AtomicWrite { frame, offset, to });
        ctx.counters.rx_write_requests += 1;
        Ok(Executed::Done)
    }

    pub(super) fn execute_flush(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: Received<'_>,
    ) -> Result<Executed, RequestRefused> {
        let Received { qp, packet, .. } = request;
        let (reth, feth) = packet.reth().zip(packet.feth()).ok_or(Check::Opcode)?;
        //= IBTA A19: flush-asks-for-what-there-is
        let needed = flush_access(feth).ok_or(Check::Placement)?;
        qp.check_allowed(needed, &reth)?;
        let persistent = needed.contains(Access::FLUSH_PERSISTENT);
        let flush = match feth.selectivity() {
            SELECT_RANGE if reth.dma_len == 0 => None,
            SELECT_RANGE => {
                let length = reth.dma_len.into();
                let at = self.check_key(qp, ctx, &reth, needed)?;
                Some(DmaIn::Flush { at, length, persistent })
            }
            SELECT_REGION => {
                let whole = ctx.memory.check_whole(self.user(qp), reth.rkey, needed);
                let (at, length) = whole.map_err(Check::from)?;
                Some(DmaIn::Flush { at, length, persistent })
            }
            _ => return Err(Check::Placement.into()),
        };
        self.enqueue_empty_answer(packet, Operation::Flush)?;
        //= IBTA A19: flush-follows-what-is-before-it
        if let Some(flush) = flush {
            ctx.out.push_dma(flush);
        }
        ctx.counters.rx_flush_requests += 1;
        Ok(Executed::Done)
    }

    fn enqueue_empty_answer(&mut self, packet: &Packet, operation: Operation) -> Result<u8, Check> {
        let nothing = Reth { va: 0, rkey: 0, dma_len: 0 };
        //= IBTA A19: atomic-write-and-flush-count-among-reads
        self.enqueue_resource(operation, packet.bth.psn, 1, nothing)
    }
}

/// Returns the rights that a FLUSH needs, or `None` for an unknown or empty placement type.
fn flush_access(feth: Feth) -> Option<Access> {
    let placement = feth.placement();
    let mut access = Access::empty();
    access.set(Access::FLUSH_GLOBAL, placement & Feth::GLOBAL_VISIBILITY != 0);
    access.set(Access::FLUSH_PERSISTENT, placement & Feth::PERSISTENCE != 0);
    let known = placement & !(Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE) == 0;
    (known && !access.is_empty()).then_some(access)
}
