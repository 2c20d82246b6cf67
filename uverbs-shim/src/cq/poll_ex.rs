//! Polling step by step: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`, and functions that read a field of the
//! current completion.

use std::ffi::{c_int, c_uint};
use std::time::{SystemTime, UNIX_EPOCH};

use roxie::verbs::Wc;

use crate::abi::{
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask as mask,
    ibv_create_cq_attr_flags as create, ibv_create_cq_wc_flags as wants, ibv_poll_cq_attr,
};
use crate::base::cancellation::Uncancelled;
use crate::base::object::{code_of, object_of, pointer};
use crate::base::report::refuse;
use crate::cq::{self, flags, imm_or_key};
use crate::device::context::context;

/// Completion fields that this device provides.
const OFFERED: u32 = wants::IBV_WC_EX_WITH_BYTE_LEN
    | wants::IBV_WC_EX_WITH_IMM
    | wants::IBV_WC_EX_WITH_QP_NUM
    | wants::IBV_WC_EX_WITH_SRC_QP
    | wants::IBV_WC_EX_WITH_SLID
    | wants::IBV_WC_EX_WITH_SL
    | wants::IBV_WC_EX_WITH_DLID_PATH_BITS
    | wants::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | wants::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Creates a completion queue for either polling interface.
pub(crate) unsafe extern "C" fn create_cq_ex(
    of: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    const CALL: &str = "ibv_create_cq_ex";
    let _uncancelled = Uncancelled::new();
    if attr.is_null() {
        return pointer(Err(libc::EINVAL));
    }
    // SAFETY: the contract: attributes, of which those at the end are read only if `comp_mask` says that they are
    // present.
    let (fields, given) = unsafe { ((*attr).wc_flags, (*attr).comp_mask) };
    if fields & !u64::from(OFFERED) != 0 {
        return pointer(refuse(
            CALL,
            libc::EOPNOTSUPP,
            format_args!(
                "wc_flags {fields:#x}: completions here have the fields {OFFERED:#x}, and no tags or VLANs"
            ),
        ));
    }
    if given & !(mask::IBV_CQ_INIT_ATTR_MASK_FLAGS | mask::IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
        return pointer(refuse(CALL, libc::EINVAL, format_args!("comp_mask {given:#x}: 0x3 are known")));
    }
    if given & mask::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
        // SAFETY: `comp_mask` says that the flags are present.
        let how = unsafe { (*attr).flags };
        // Single-threaded use needs no special handling. IGNORE_OVERRUN is not supported: a lost completion is always
        // an error.
        if how & !create::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
            return pointer(refuse(
                CALL,
                libc::EOPNOTSUPP,
                format_args!("flags {how:#x}: only SINGLE_THREADED is supported"),
            ));
        }
    }
    // SAFETY: the caller keeps the contract: objects, a channel or null, and fields that exist in the attributes of all
    // releases.
    let made = unsafe {
        cq::create(CALL, of, (*attr).cqe, (*attr).cq_context, (*attr).channel, (*attr).comp_vector)
    };
    pointer(made.inspect(|cq| {
        // SAFETY: just created, and not shared yet.
        unsafe { offer(*cq) };
    }))
}

/// # Safety
/// `cq` is a queue that is not shared yet.
unsafe fn offer(cq: *mut ibv_cq_ex) {
    // SAFETY: the queue is not shared yet, as the caller promises, so its slots have no readers.
    unsafe {
        (*cq).start_poll = Some(start_poll);
        (*cq).next_poll = Some(next_poll);
        (*cq).end_poll = Some(end_poll);
        (*cq).read_opcode = Some(read_opcode);
        (*cq).read_vendor_err = Some(read_vendor_err);
        (*cq).read_byte_len = Some(read_byte_len);
        (*cq).read_imm_data = Some(read_imm_data);
        (*cq).read_qp_num = Some(read_qp_num);
        (*cq).read_src_qp = Some(read_src_qp);
        (*cq).read_wc_flags = Some(read_wc_flags);
        (*cq).read_slid = Some(read_slid);
        (*cq).read_sl = Some(read_sl);
        (*cq).read_dlid_path_bits = Some(read_dlid_path_bits);
        (*cq).read_completion_ts = Some(read_completion_ts);
        (*cq).read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    }
}

/// Takes the next completion. Returns `ENOENT` if there is none.
///
/// # Safety
/// The caller holds the queue's turn.
unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the contract: an object.
    let Ok(object) = (unsafe { object_of(cq) }) else { return libc::EIO };
    let Some((wc, at)) = object.queue.poll_timed() else {
        return if object.queue.has_failed() { libc::EIO } else { libc::ENOENT };
    };
    // SAFETY: the caller holds the turn.
    unsafe {
        (*cq).wr_id = wc.wr_id;
        (*cq).status = wc.status as c_uint;
        *object.poll.0.get() = (wc, at);
    }
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and attributes.
    unsafe {
        if !attr.is_null() && (*attr).comp_mask != 0 {
            return code_of(libc::EINVAL);
        }
        let object = match object_of(cq) {
            Ok(object) => object,
            Err(errno) => return code_of(errno),
        };
        object.poll_turn.take();
        let status = advance(cq);
        if status != 0 {
            // `ibv_end_poll` is not called after a poll that found nothing.
            object.poll_turn.give_back();
        }
        status
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: between start and end, so the caller holds the turn.
    unsafe { advance(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    if let Ok(object) = unsafe { object_of(cq) } {
        object.poll_turn.give_back();
    }
}

/// Returns the current completion.
///
/// # Safety
/// The contract: between start and end.
unsafe fn current_completion(cq: *mut ibv_cq_ex) -> Wc {
    // SAFETY: the caller holds the turn.
    unsafe { object_of(cq).map_or_else(|_| Wc::default(), |found| (*found.poll.0.get()).0) }
}

/// Returns the time of the current completion, in nanoseconds on the device's clock.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the contract: between start and end, so the caller holds the turn.
    unsafe { object_of(cq).map_or(0, |found| (*found.poll.0.get()).1.0) }
}

/// Returns the time of the current completion on the wall clock, in nanoseconds since 1970.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the contract: an object, between start and end.
    unsafe {
        let age = context((*cq).context)
            .map_or(0, |of| of.nic.device.now().0.saturating_sub(read_completion_ts(cq)));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).saturating_sub(age)
    }
}

/// Functions that read a field.
macro_rules! readers {
    ($($name:ident -> $type:ty: |$wc:ident| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the contract: between start and end.
            let $wc = unsafe { current_completion(cq) };
            $value
        })*
    };
}

readers! {
    read_opcode -> c_uint: |wc| wc.opcode as c_uint;
    read_vendor_err -> u32: |wc| wc.vendor_err.into();
    read_byte_len -> u32: |wc| wc.byte_len;
    read_imm_data -> u32: |wc| imm_or_key(&wc);
    read_qp_num -> u32: |wc| wc.qpn.value();
    read_src_qp -> u32: |wc| wc.src_qp.value();
    read_wc_flags -> c_uint: |wc| flags(&wc);
    read_slid -> u32: |_wc| 0;
    read_sl -> u8: |wc| wc.sl;
    read_dlid_path_bits -> u8: |_wc| 0;
}
