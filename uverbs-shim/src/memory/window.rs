//! Memory windows (`ibv_mw`): parts of a region with their own rkey.

use std::ffi::{c_int, c_uint};
use std::sync::Mutex;

use roxie::host::{MemoryWindow, WindowRange};
use roxie::verbs::MwType;

use crate::abi::{ibv_mw, ibv_mw_bind, ibv_pd, ibv_qp};
use crate::base::cancellation::Uncancelled;
use crate::base::lock::lock;
use crate::base::object::{VerbsStruct, code, give, object_of, pointer, take_back};
use crate::base::report::{device, refuse};
use crate::memory::window_access;
use crate::pd::InDomain;
use crate::qp::post::send_flags;

/// The object behind a memory window.
pub(crate) struct Mw {
    pub(crate) window: Mutex<MemoryWindow>,
    _domain: InDomain,
}

impl VerbsStruct for ibv_mw {
    type Extended = ibv_mw;
    type Inner = Mw;
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    pointer(unsafe { object_of(pd) }.and_then(|found| {
        let which = match kind {
            1 => MwType::One,
            2 => MwType::Two,
            _ => {
                return refuse(
                    "ibv_alloc_mw",
                    libc::EINVAL,
                    format_args!("type {kind}: windows are of type 1 or 2"),
                );
            }
        };
        let window = found.domain.alloc_window(which).map_err(device("ibv_alloc_mw"))?;
        // SAFETY: `pd` is an object, as `object_of` verified; its context does not change.
        let context = unsafe { (*pd).context };
        let face = ibv_mw { context, pd, rkey: window.rkey().0, handle: 0, type_: kind };
        Ok(give(face, Mw { window: Mutex::new(window), _domain: InDomain::new(found) }))
    }))
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { object_of(mw) }.map(|_| {
        // SAFETY: `object_of` verified an object of this process, which the caller does not use again: it is taken back
        // once.
        drop(unsafe { take_back(mw) });
    }))
}

/// Binds a type 1 window. The device chooses its rkey.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: objects, and a structure with the same fields in all releases.
    code(unsafe {
        object_of(qp).and_then(|qp| {
            let mw_object = object_of(mw)?;
            let info = &raw const (*bind).bind_info;
            let (mr, address, length) = ((*info).mr, (*info).addr, (*info).length);
            let range_access = window_access("ibv_bind_mw", (*info).mw_access_flags)?;
            let flags = send_flags("ibv_bind_mw", (*bind).send_flags)?;
            let mut window = lock(&mw_object.window);
            if window.kind() != MwType::One {
                return refuse(
                    "ibv_bind_mw",
                    libc::EINVAL,
                    "a window of type 2 is bound by a work request (IBV_WR_BIND_MW)",
                );
            }
            if mr.is_null() && length > 0 {
                return Err(libc::EINVAL);
            }
            if mr.is_null() {
                // Even an unbind (length 0) must name a region.
                return refuse(
                    "ibv_bind_mw",
                    libc::EINVAL,
                    "a null region: name the region with length 0 to unbind",
                );
            }
            let region = lock(&object_of(mr)?.region);
            let offset = address.wrapping_sub(region.address()) as usize;
            let range =
                WindowRange { region: &region, offset, length: length as usize, access: range_access };
            qp.turn.take();
            let bound = qp.pair.bind_window((*bind).wr_id, flags, &mut window, &range);
            qp.turn.give_back();
            (*mw).rkey = bound.map_err(device("ibv_bind_mw"))?.0;
            Ok(())
        })
    })
}
