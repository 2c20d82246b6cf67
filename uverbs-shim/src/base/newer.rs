//! Additions of releases after rdma-core 44, whichever release this library is built with.
//!
//! Layouts come from the installed headers, which may be older than the programs that use this library. Additions
//! missing in the oldest supported headers are defined here. `tests/verbs/abi.rs` compares them with newer headers.

use crate::abi::{ibv_event_type, ibv_qp_ex, ibv_wr_opcode};

pub(crate) const IBV_WR_FLUSH: ibv_wr_opcode::Type = 14;
pub(crate) const IBV_EVENT_DEVICE_SPEED_CHANGE: ibv_event_type::Type = 20;
pub(crate) const IBV_QP_EX_WITH_FLUSH: u32 = 1 << 11;
pub(crate) const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;
/// `enum ibv_odp_transport_cap_bits`.
pub(crate) const IBV_ODP_SUPPORT_FLUSH: u32 = 1 << 6;
pub(crate) const IBV_ODP_SUPPORT_ATOMIC_WRITE: u32 = 1 << 7;
/// `enum ibv_placement_type`: effect of a FLUSH.
pub(crate) const IBV_FLUSH_GLOBAL: u8 = 1;
pub(crate) const IBV_FLUSH_PERSISTENT: u8 = 2;
/// `enum ibv_selectivity_level`: scope of a FLUSH.
pub(crate) const IBV_FLUSH_RANGE: u8 = 0;
pub(crate) const IBV_FLUSH_MR: u8 = 1;

/// Bytes of `verbs_context`, including the slots of release 65.
pub(crate) const VERBS_CONTEXT: usize = 696;
/// Bytes of `ibv_qp_ex` since release 51; `wr_flush` is the last field.
pub(crate) const QP_EX: usize = 360;
/// Offset of `wr_flush`.
pub(crate) const WR_FLUSH: usize = 352;
/// `ibv_qp_ex::wr_flush`: key, address, length, placement, selectivity.
pub(crate) type WrFlush = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8);
