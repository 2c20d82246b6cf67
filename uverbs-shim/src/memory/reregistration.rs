//! Changes of registrations (`ibv_rereg_mr`).

use std::ffi::{c_int, c_uint, c_void};

use roxie::shared::HostMemory;
use roxie::verbs::Access;

use super::{RegistrationRequest, access, writes};
use crate::abi::{ibv_mr, ibv_pd, ibv_rereg_mr_err_code, ibv_rereg_mr_flags as rereg};
use crate::base::cancellation::Uncancelled;
use crate::base::lock::lock;
use crate::base::object::{Errno, object_of, set_errno};
use crate::base::report::{device, refuse};
use crate::memory::pages::populate;
use crate::pd::InDomain;

/// Changes a registration. Returns 0, or a value of `enum ibv_rereg_mr_err_code`, after which it is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    new_access: c_int,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    const INPUT: c_int = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT as c_int;
    let flags = flags as c_uint;
    let wants = |flag| flags & flag != 0;
    // SAFETY: the contract: objects.
    let done = unsafe { object_of(mr) }.and_then(|found| {
        check_flags(flags)?;
        // SAFETY: the flag says that `pd` is given, and then it is a live object.
        let to = if wants(rereg::IBV_REREG_MR_CHANGE_PD) { Some(unsafe { object_of(pd) }?) } else { None };
        let change = wants(rereg::IBV_REREG_MR_CHANGE_ACCESS);
        let change = change.then(|| access("ibv_rereg_mr", new_access as c_uint)).transpose()?;
        let mut region = lock(&found.region);
        let memory = wants(rereg::IBV_REREG_MR_CHANGE_TRANSLATION)
            .then(|| new_memory(address, length, change.unwrap_or(region.access())))
            .transpose()?;
        // SAFETY: the contract: an object.
        let (held, held_length) = unsafe { ((*mr).addr, (*mr).length) };
        // A region without an address has no memory of the program: it is a null region, device memory, or imported.
        if let Some(access) = change
            && memory.is_none()
            && !held.is_null()
            && writes(access)
            && !writes(region.access())
            && !access.contains(Access::ON_DEMAND)
        {
            populate("ibv_rereg_mr", held, held_length, true)?;
        }
        let moved = memory.is_some();
        region.reregister(to.map(|pd| &pd.domain), change, memory).map_err(device("ibv_rereg_mr"))?;
        // SAFETY: as above; the library may change these fields.
        unsafe {
            (*mr).lkey = region.lkey().0;
            (*mr).rkey = region.rkey().0;
            if moved {
                (*mr).addr = address;
                (*mr).length = length;
            }
            if let Some(to) = to {
                if let Some((domain, ..)) = &mut *lock(&found.uses) {
                    *domain = InDomain::new(to);
                }
                (*mr).pd = pd;
            }
        }
        Ok(())
    });
    done.map_or_else(
        |errno| {
            set_errno(errno);
            INPUT
        },
        |()| 0,
    )
}

/// Checks that at least one change is requested, and known ones only.
fn check_flags(flags: c_uint) -> Result<(), Errno> {
    const ALL: c_uint = rereg::IBV_REREG_MR_CHANGE_TRANSLATION
        | rereg::IBV_REREG_MR_CHANGE_PD
        | rereg::IBV_REREG_MR_CHANGE_ACCESS;
    if flags == 0 || flags & !ALL != 0 {
        return refuse(
            "ibv_rereg_mr",
            libc::EINVAL,
            format_args!("flags {flags:#x}: {ALL:#x} are known, and at least one is required"),
        );
    }
    Ok(())
}

fn new_memory(address: *mut c_void, length: usize, access: Access) -> Result<HostMemory, Errno> {
    if address.is_null() || length == 0 {
        return refuse("ibv_rereg_mr", libc::EINVAL, "new memory at a null address, or of no bytes");
    }
    RegistrationRequest { address, length, iova: None, access }.memory("ibv_rereg_mr")
}
