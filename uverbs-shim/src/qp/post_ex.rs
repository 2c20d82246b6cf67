//! Work requests step by step: `ibv_wr_start`, an operation, its data, the next operation, `ibv_wr_complete`.
//!
//! An operation is written to the ring when the next one begins, or when the batch completes. The NIC then sees all of
//! them together; after an abort, none. Between start and complete or abort, the caller holds the QP's turn.

use std::ffi::{c_int, c_void};

use roxie::shared::work_queue::Payload;
use roxie::verbs::{FlushRange, QpType, Qpn, RKey, SendWr, Srqn, UdAddress, WrOpcode};

use crate::abi::{
    ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_create_send_ops_flags as ops, ibv_qp_ex, ibv_sge,
};
use crate::base::cancellation::Uncancelled;
use crate::base::lists::{entries, gather};
use crate::base::newer;
use crate::base::object::{Errno, code_of, object_of};
use crate::base::report::refuse;
use crate::qp::Qp;
use crate::qp::batch::{Batch, Carried};
use crate::qp::post::{bind_window, send_flags, staged_as};

impl Batch {
    /// Starts the next operation. The previous one is complete with its data.
    fn begin(&mut self, qp: &Qp, next: Result<SendWr, Errno>) {
        self.finish_current(qp);
        match next {
            Ok(wr) => self.current = Some(wr),
            Err(errno) => self.fail(errno),
        }
        self.carried = Carried::Sges(0);
    }

    fn finish_current(&mut self, qp: &Qp) {
        let Some(wr) = self.current.take() else { return };
        let payload = match self.carried {
            Carried::Sges(count) => Payload::Sges(&self.sges[..count]),
            Carried::Inline(length) => Payload::Inline(&self.inline[..length]),
        };
        match staged_as(qp, self.staged, &wr, payload) {
            Ok(()) => self.staged += 1,
            Err(errno) => self.fail(errno),
        }
    }

    fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }
}

/// Calls `work` with the batch of a QP.
///
/// # Safety
/// The contract: an object, between start and complete or abort.
unsafe fn with(qp: *mut ibv_qp_ex, work: impl FnOnce(&Qp, &mut Batch)) {
    // SAFETY: the caller holds the turn, so it has exclusive access to the batch.
    unsafe {
        if let Ok(object) = object_of(qp) {
            work(object, &mut *object.builder.0.get());
        }
    }
}

/// Starts an operation, with the ID and flags that the application has set in the QP.
///
/// # Safety
/// As for [`with`].
unsafe fn operation(qp: *mut ibv_qp_ex, opcode: WrOpcode, fill: impl FnOnce(&mut SendWr)) {
    // SAFETY: the caller is between start and complete, so the QP lives, and no other thread accesses `wr_id` and
    // `wr_flags`.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        let next = send_flags("ibv_wr_start", flags).map(|flags| {
            let mut wr = SendWr { wr_id, opcode, flags, ..SendWr::default() };
            fill(&mut wr);
            wr
        });
        with(qp, |found, batch| batch.begin(found, next));
    }
}

/// Flags of the operations that `ibv_wr_*` supports.
const OPERATIONS: [(u32, WrOpcode); 12] = [
    (ops::IBV_QP_EX_WITH_RDMA_WRITE, WrOpcode::Write),
    (ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, WrOpcode::WriteImm),
    (ops::IBV_QP_EX_WITH_SEND, WrOpcode::Send),
    (ops::IBV_QP_EX_WITH_SEND_WITH_IMM, WrOpcode::SendImm),
    (ops::IBV_QP_EX_WITH_RDMA_READ, WrOpcode::Read),
    (ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, WrOpcode::CompareSwap),
    (ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, WrOpcode::FetchAdd),
    (ops::IBV_QP_EX_WITH_LOCAL_INV, WrOpcode::LocalInvalidate),
    (ops::IBV_QP_EX_WITH_BIND_MW, WrOpcode::BindWindow),
    (ops::IBV_QP_EX_WITH_SEND_WITH_INV, WrOpcode::SendInvalidate),
    (ops::IBV_QP_EX_WITH_ATOMIC_WRITE, WrOpcode::AtomicWrite),
    (newer::IBV_QP_EX_WITH_FLUSH, WrOpcode::Flush),
];

/// Returns the flags of the operations that a QP of this type supports.
pub(crate) fn operations(kind: QpType) -> u64 {
    let served = OPERATIONS.into_iter().filter(|(_, opcode)| kind.serves(*opcode));
    served.fold(0, |flags, (flag, _)| flags | u64::from(flag))
}

/// Sets a QP's functions for the requested operations.
pub(crate) fn offer(qp: &mut ibv_qp_ex, operations: u64) {
    let wanted = |bit: u32| operations & u64::from(bit) != 0;
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_xrc_srqn = Some(set_xrc_srqn);
    qp.wr_send = wanted(ops::IBV_QP_EX_WITH_SEND).then_some(send);
    qp.wr_send_imm = wanted(ops::IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(send_imm);
    qp.wr_send_inv = wanted(ops::IBV_QP_EX_WITH_SEND_WITH_INV).then_some(send_inv);
    qp.wr_rdma_write = wanted(ops::IBV_QP_EX_WITH_RDMA_WRITE).then_some(rdma_write);
    qp.wr_rdma_write_imm = wanted(ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(rdma_write_imm);
    qp.wr_rdma_read = wanted(ops::IBV_QP_EX_WITH_RDMA_READ).then_some(rdma_read);
    qp.wr_atomic_cmp_swp = wanted(ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add = wanted(ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(atomic_fetch_add);
    qp.wr_atomic_write = wanted(ops::IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(atomic_write);
    qp.wr_local_inv = wanted(ops::IBV_QP_EX_WITH_LOCAL_INV).then_some(local_inv);
    qp.wr_bind_mw = wanted(ops::IBV_QP_EX_WITH_BIND_MW).then_some(bind_mw);
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract: an object. The turn is taken before the batch is accessed.
    unsafe {
        if let Ok(object) = object_of(qp) {
            object.turn.take();
            let batch = &mut *object.builder.0.get();
            (batch.staged, batch.current, batch.error) = (0, None, None);
        }
    }
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    let _uncancelled = Uncancelled::new();
    let mut result = libc::EIO;
    // SAFETY: the contract: after start.
    unsafe {
        with(qp, |found, batch| {
            batch.finish_current(found);
            result = batch.error.unwrap_or(0);
            if result == 0 && batch.staged > 0 {
                found.pair.publish(batch.staged);
            }
            found.turn.give_back();
        });
    }
    code_of(result)
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract: after start. Staged requests that are not published are discarded.
    unsafe { with(qp, |found, _| found.turn.give_back()) };
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract: after start.
    unsafe { operation(qp, WrOpcode::Send, |_| {}) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: the contract: after start.
    unsafe { operation(qp, WrOpcode::SendImm, |wr| wr.imm = u32::from_be(imm)) };
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the contract: after start.
    unsafe { operation(qp, WrOpcode::SendInvalidate, |wr| wr.rkey = RKey(rkey)) };
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: the contract: after start.
    unsafe { operation(qp, WrOpcode::Write, |wr| (wr.rkey, wr.remote_addr) = (RKey(rkey), address)) };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, address: u64, imm: u32) {
    // SAFETY: the contract: after start.
    unsafe {
        operation(qp, WrOpcode::WriteImm, |wr| {
            (wr.rkey, wr.remote_addr, wr.imm) = (RKey(rkey), address, u32::from_be(imm));
        });
    }
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: the contract: after start.
    unsafe { operation(qp, WrOpcode::Read, |wr| (wr.rkey, wr.remote_addr) = (RKey(rkey), address)) };
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, address: u64, compare: u64, swap: u64) {
    // SAFETY: the contract: after start.
    unsafe {
        operation(qp, WrOpcode::CompareSwap, |wr| {
            (wr.rkey, wr.remote_addr, wr.compare_add, wr.swap) = (RKey(rkey), address, compare, swap);
        });
    }
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, address: u64, add: u64) {
    // SAFETY: the contract: after start.
    unsafe {
        operation(qp, WrOpcode::FetchAdd, |wr| {
            (wr.rkey, wr.remote_addr, wr.compare_add) = (RKey(rkey), address, add);
        });
    }
}

unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, rkey: u32, address: u64, bytes: *const c_void) {
    // SAFETY: the contract: after start, and 8 bytes to write.
    unsafe {
        operation(qp, WrOpcode::AtomicWrite, |wr| (wr.rkey, wr.remote_addr) = (RKey(rkey), address));
        set_inline(qp, [(bytes.cast(), 8)].into_iter());
    }
}

/// Posts a FLUSH: makes written data visible or persistent at the peer, for a range or for a whole region.
pub(crate) unsafe extern "C" fn flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    length: usize,
    placement: u8,
    selectivity: u8,
) {
    let next = |id, flags| {
        let range = flush_range(rkey, address, length, placement, selectivity)?;
        Ok(SendWr::flush(id, flags, &range))
    };
    // SAFETY: the contract: after start.
    unsafe {
        let (id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        let next = send_flags("ibv_wr_flush", flags).and_then(|flags| next(id, flags));
        with(qp, |found, batch| batch.begin(found, next));
    }
}

fn flush_range(
    rkey: u32,
    address: u64,
    length: usize,
    placement: u8,
    selectivity: u8,
) -> Result<FlushRange, Errno> {
    const CALL: &str = "ibv_wr_flush";
    const BOTH: u8 = newer::IBV_FLUSH_GLOBAL | newer::IBV_FLUSH_PERSISTENT;
    if placement == 0 || placement & !BOTH != 0 {
        return refuse(
            CALL,
            libc::EINVAL,
            format_args!("type {placement:#x}: IBV_FLUSH_GLOBAL (1), IBV_FLUSH_PERSISTENT (2) or both"),
        );
    }
    let whole_region = match selectivity {
        newer::IBV_FLUSH_RANGE => false,
        newer::IBV_FLUSH_MR => true,
        _ => {
            return refuse(
                CALL,
                libc::EINVAL,
                format_args!("level {selectivity}: IBV_FLUSH_RANGE (0) or IBV_FLUSH_MR (1)"),
            );
        }
    };
    // The length is ignored for a whole region.
    let Some(length) = u32::try_from(length).ok().filter(|length| *length <= 1 << 31 || whole_region) else {
        return refuse(CALL, libc::EINVAL, format_args!("{length} bytes: 2147483648 at most"));
    };
    Ok(FlushRange {
        rkey: RKey(rkey),
        address,
        length,
        global: placement & newer::IBV_FLUSH_GLOBAL != 0,
        persistent: placement & newer::IBV_FLUSH_PERSISTENT != 0,
        whole_region,
    })
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the contract: after start.
    unsafe { operation(qp, WrOpcode::LocalInvalidate, |wr| wr.rkey = RKey(rkey)) };
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: the contract: after start, with objects.
    unsafe {
        let (id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        let next =
            send_flags("ibv_wr_bind_mw", flags).and_then(|flags| bind_window(id, flags, mw, rkey, info));
        with(qp, |found, batch| batch.begin(found, next));
    }
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the contract: after an operation, with an object.
    unsafe {
        with(qp, |_, batch| match (object_of(ah), &mut batch.current) {
            (Ok(ah), Some(wr)) => {
                wr.ud = UdAddress { ah: ah.handle.id(), remote_qpn: Qpn::new(remote_qpn), remote_qkey };
            }
            (Err(errno), _) => batch.fail(errno),
            (_, None) => batch.fail(libc::EINVAL),
        });
    }
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, number: u32) {
    // SAFETY: the contract: after an operation.
    unsafe {
        with(qp, |_, batch| match &mut batch.current {
            Some(wr) => wr.remote_srqn = Srqn(number),
            None => batch.fail(libc::EINVAL),
        });
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let entry = ibv_sge { addr, length, lkey };
    // SAFETY: the contract: after an operation; one entry, which lives for the call.
    unsafe { set_sge_list(qp, 1, &raw const entry) };
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the contract: after an operation, with `count` entries.
    unsafe {
        let list = entries("ibv_wr_set_sge_list", list, c_int::try_from(count).unwrap_or(c_int::MAX));
        with(qp, |_, batch| match list {
            Ok(list) => batch.carried = Carried::Sges(list.copy(&mut batch.sges).len()),
            Err(errno) => batch.fail(errno),
        });
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    // SAFETY: the contract: after an operation, with bytes to read.
    unsafe { set_inline(qp, [(address.cast_const().cast(), length)].into_iter()) };
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: the contract: after an operation, with `count` pieces of bytes to read.
    unsafe {
        let piece = |index: usize| ((*list.add(index)).addr.cast_const().cast(), (*list.add(index)).length);
        set_inline(qp, (0..count).map(piece));
    }
}

/// # Safety
/// The contract: after an operation, with bytes to read.
unsafe fn set_inline(qp: *mut ibv_qp_ex, pieces: impl Iterator<Item = (*const u8, usize)>) {
    // SAFETY: the caller has started an operation and holds the turn, so it has exclusive access to the batch; the
    // pieces may be read, as it promises.
    unsafe {
        with(qp, |_, batch| {
            if batch.current.is_some_and(|wr| !wr.opcode.may_be_inline()) {
                let refused =
                    refuse::<()>("ibv_wr_set_inline_data", libc::EINVAL, "the operation sends no payload");
                batch.fail(refused.unwrap_err());
                return;
            }
            match gather(pieces, &mut batch.inline) {
                Ok(length) => batch.carried = Carried::Inline(length),
                Err(errno) => batch.fail(errno),
            }
        });
    }
}
