//! Work requests by the original interface: lists of structures.
//!
//! No allocation and no system call: entries are copied to the stack, and from there to the ring that the NIC reads. A
//! whole list is published to the NIC by one store and one doorbell.

use std::ffi::{c_int, c_uint};

use roxie::limits::{MAX_INLINE, MAX_SGE};
use roxie::shared::work_queue::Payload;
use roxie::verbs::{Qpn, RKey, SendFlags, SendWr, Sge, Srqn, UdAddress, WindowBind, WrOpcode};

use crate::abi::{ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_recv_wr, ibv_send_wr};
use crate::base::cancellation::Uncancelled;
use crate::base::lists::{entries, gather, post_receives};
use crate::base::lock::lock;
use crate::base::object::{Errno, code_of, object_of, put};
use crate::base::report::{self, refuse};
use crate::memory::window_access;
use crate::qp::Qp;

/// Posts a list of sends. On an error, the requests before the failed one are posted, and `bad` points to the failed
/// one.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    let object = match unsafe { object_of(qp) } {
        Ok(object) => object,
        Err(errno) => {
            // SAFETY: the contract: a place for a pointer, or null.
            unsafe { put(bad, first) };
            return code_of(errno);
        }
    };
    object.turn.take();
    let (mut wr, mut staged, mut result) = (first, 0, 0);
    while !wr.is_null() {
        // SAFETY: the contract: a work request of a release that knows its opcode, in a null-terminated list.
        unsafe {
            if let Err(errno) = stage(object, wr, staged) {
                put(bad, wr);
                result = errno;
                break;
            }
            wr = (*wr).next;
        }
        staged += 1;
    }
    if staged > 0 {
        object.pair.publish(staged);
    }
    object.turn.give_back();
    code_of(result)
}

/// # Safety
/// The contract: a work request with the fields of its opcode.
unsafe fn stage(qp: &Qp, wr: *const ibv_send_wr, staged: u32) -> Result<(), Errno> {
    // SAFETY: the caller promises a work request with the fields of its opcode, and with as many entries as it says.
    unsafe {
        let send = request(qp, wr)?;
        let entries = entries("ibv_post_send", (*wr).sg_list, (*wr).num_sge)?;
        if send.opcode.is_local() {
            // Local operations have no scatter/gather list.
            return staged_as(qp, staged, &send, Payload::Sges(&[]));
        }
        if send.flags.contains(SendFlags::INLINE) {
            let mut bytes = [0; MAX_INLINE];
            let length = gather(entries.pieces(), &mut bytes)?;
            return staged_as(qp, staged, &send, Payload::Inline(&bytes[..length]));
        }
        let mut sges = [Sge::default(); MAX_SGE];
        let sges = entries.copy(&mut sges);
        staged_as(qp, staged, &send, Payload::Sges(sges))
    }
}

pub(crate) fn staged_as(qp: &Qp, staged: u32, wr: &SendWr, payload: Payload<'_>) -> Result<(), Errno> {
    qp.pair.stage(staged, wr, payload).map_err(report::post("ibv_post_send"))
}

/// Converts a work request, without its list.
///
/// # Safety
/// The contract: the fields of its opcode.
unsafe fn request(qp: &Qp, wr: *const ibv_send_wr) -> Result<SendWr, Errno> {
    const CALL: &str = "ibv_post_send";
    // SAFETY: the caller's promise; fields after the first are read only if the opcode, or the service, has them.
    unsafe {
        let (code, flags) = ((*wr).opcode, (*wr).send_flags);
        let opcode = WrOpcode::from_code(code.into()).filter(|opcode| *opcode != WrOpcode::FastRegister);
        let Some(opcode) = opcode else {
            return refuse(CALL, libc::EINVAL, format_args!("opcode {code}: not a supported operation"));
        };
        let flags = send_flags(CALL, flags)?;
        let id = (*wr).wr_id;
        if opcode == WrOpcode::BindWindow {
            let bind = &raw const (*wr).__bindgen_anon_2.bind_mw;
            return bind_window(id, flags, (*bind).mw, (*bind).rkey, &raw const (*bind).bind_info);
        }
        let mut send = SendWr { wr_id: id, opcode, flags, ..SendWr::default() };
        match opcode {
            WrOpcode::SendImm | WrOpcode::WriteImm => {
                send.imm = u32::from_be((*wr).__bindgen_anon_1.imm_data);
            }
            WrOpcode::SendInvalidate | WrOpcode::LocalInvalidate => {
                send.rkey = RKey((*wr).__bindgen_anon_1.invalidate_rkey);
            }
            _ => {}
        }
        match opcode {
            WrOpcode::Write | WrOpcode::WriteImm | WrOpcode::Read | WrOpcode::AtomicWrite => {
                send.remote_addr = (*wr).wr.rdma.remote_addr;
                send.rkey = RKey((*wr).wr.rdma.rkey);
            }
            WrOpcode::CompareSwap | WrOpcode::FetchAdd => {
                send.remote_addr = (*wr).wr.atomic.remote_addr;
                send.rkey = RKey((*wr).wr.atomic.rkey);
                send.compare_add = (*wr).wr.atomic.compare_add;
                send.swap = (*wr).wr.atomic.swap;
            }
            _ => {}
        }
        if qp.pair.qp_type().is_datagram() {
            let ud = &raw const (*wr).wr.ud;
            let ah = object_of((*ud).ah).or_else(|_| refuse(CALL, libc::EINVAL, "wr.ud.ah is null"))?;
            send.ud = UdAddress {
                ah: ah.handle.id(),
                remote_qpn: Qpn::new((*ud).remote_qpn),
                remote_qkey: (*ud).remote_qkey,
            };
        } else if qp.pair.qp_type().is_extended() {
            send.remote_srqn = Srqn((*wr).qp_type.xrc.remote_srqn);
        }
        Ok(send)
    }
}

pub(crate) fn send_flags(call: &str, flags: c_uint) -> Result<SendFlags, Errno> {
    match u8::try_from(flags).ok().and_then(SendFlags::from_bits) {
        Some(flags) => Ok(flags),
        None => refuse(
            call,
            libc::EINVAL,
            format_args!("send_flags {flags:#x}: 0xf are known (checksums are not offloaded)"),
        ),
    }
}

/// Converts the bind of a type 2 window.
///
/// # Safety
/// The contract: objects, and a complete bind structure.
pub(crate) unsafe fn bind_window(
    id: u64,
    flags: SendFlags,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) -> Result<SendWr, Errno> {
    // SAFETY: the caller promises objects that live for the call, and a complete bind structure.
    unsafe {
        let window = lock(&object_of(mw)?.window).rkey();
        let region = object_of((*info).mr)?;
        let bind = WindowBind {
            window,
            new_key: RKey(rkey),
            region: lock(&region.region).lkey(),
            address: (*info).addr,
            length: (*info).length,
            access: window_access("IBV_WR_BIND_MW", (*info).mw_access_flags)?,
        };
        Ok(SendWr::bind_window(id, flags, &bind))
    }
}

/// Posts a list of receives, with errors as in [`post_send`].
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object; the other arguments are passed on.
    unsafe {
        match object_of(qp) {
            Ok(found) => post_receives(first, bad, |id, sges| found.pair.post_recv(id, sges)),
            Err(errno) => {
                put(bad, first);
                code_of(errno)
            }
        }
    }
}
