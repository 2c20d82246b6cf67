//! The extended reliable connection (XRC, IBTA annex A14), as far as it differs from RC.
//!
//! ```text
//! initiator (XRC_INI)  requests only    each has an XRCETH, which names a shared receive queue of the peer
//! target (XRC_TGT)     responses only   as RC's
//! ```
//!
//! A target has no protection domain and no queues of its own. Each request names a shared receive queue, even if it
//! takes no receive. The target uses this queue's protection domain for keys, its receives, and its completion queue.
//! If the target's XRC domain has no such queue, the request is invalid.

use super::{Origin, TxPlan};
use crate::verbs::Srqn;
use roxie_wire::{Bth, Ext, Opcode, XrcEth};

/// Opcode bits that distinguish XRC from RC.
const XRC: u8 = 0xa0;

/// Returns a packet of RC as one of XRC. Requests get an XRCETH with shared receive queue `srqn`.
pub(super) fn extended(plan: TxPlan, srqn: Srqn) -> TxPlan {
    let bth = Bth { opcode: Opcode(plan.bth.opcode.0 | XRC), ..plan.bth };
    //= IBTA A14: xrc-request-names-its-queue
    let ext = if plan.origin == Origin::Request { addressed(plan.ext, srqn) } else { plan.ext };
    TxPlan { bth, ext, ..plan }
}

/// Adds an XRCETH with queue `srqn` to the headers of an RC request.
fn addressed(ext: Ext, srqn: Srqn) -> Ext {
    let xrc = XrcEth { srqn: srqn.0 };
    match ext {
        Ext::Reth(reth) => Ext::XrcReth(xrc, reth),
        Ext::RethImm(reth, imm) => Ext::XrcRethImm(xrc, reth, imm),
        Ext::Imm(imm) => Ext::XrcImm(xrc, imm),
        Ext::Ieth(key) => Ext::XrcIeth(xrc, key),
        Ext::Atomic(atomic) => Ext::XrcAtomic(xrc, atomic),
        Ext::FlushReth(feth, reth) => Ext::XrcFlushReth(xrc, feth, reth),
        // Requests have no other headers.
        _ => Ext::Xrc(xrc),
    }
}
