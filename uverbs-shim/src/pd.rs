//! Protection domains, and the two objects that hint at how they are used.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use roxie::host::ProtectionDomain;

use crate::abi::{
    ibv_context, ibv_parent_domain_init_attr, ibv_parent_domain_init_attr_mask as parent_mask, ibv_pd,
    ibv_td, ibv_td_init_attr,
};
use crate::context::context;
use crate::object::{Errno, Face, behind, code, give, pointer, take_back};
use crate::report::{device, refuse};

/// Objects that still use another, which can be destroyed only after them.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicU32);

impl Users {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    /// # Errors
    /// `EBUSY` while there are some.
    pub(crate) fn none(&self, call: &str, what: &str) -> Result<(), Errno> {
        match self.0.load(Relaxed) {
            0 => Ok(()),
            users => refuse(
                call,
                libc::EBUSY,
                format_args!("{users} objects still use the {what}: destroy them first"),
            ),
        }
    }
}

/// What is behind a protection domain.
pub(crate) struct Pd {
    pub(crate) domain: ProtectionDomain,
    pub(crate) users: Users,
    /// A parent domain's protection domain and thread domain.
    parts: Option<(*mut ibv_pd, *mut ibv_td)>,
}

impl Face for ibv_pd {
    type Whole = ibv_pd;
    type Behind = Pd;
}

/// Makes a protection domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(of: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the contract: an object.
    pointer(unsafe { context(of) }.and_then(|context| {
        let domain = context.nic.device.alloc_pd().map_err(device("ibv_alloc_pd"))?;
        Ok(give(ibv_pd { context: of, handle: 0 }, Pd { domain, users: Users::default(), parts: None }))
    }))
}

/// Removes one that nothing uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the contract: an object.
    code(unsafe { behind(pd) }.and_then(|found| {
        found.users.none("ibv_dealloc_pd", "protection domain")?;
        // SAFETY: nothing uses it any more; its parts, if it has some, still live: it counts as their user.
        unsafe {
            if let Some((of, td)) = found.parts {
                behind(of)?.users.remove();
                if !td.is_null() {
                    behind(td)?.0.remove();
                }
            }
            drop(take_back(pd));
        }
        Ok(())
    }))
}

/// A thread domain: the promise that one thread at a time uses what is made with it. Roxie needs no such promise.
pub(crate) struct Td(Users);

impl Face for ibv_td {
    type Whole = ibv_td;
    type Behind = Td;
}

pub(crate) unsafe extern "C" fn alloc_td(of: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: the contract: an object, and attributes.
    pointer(unsafe { context(of) }.and_then(|_| {
        // SAFETY: as above.
        if attr.is_null() || unsafe { (*attr).comp_mask } != 0 {
            return Err(libc::EINVAL);
        }
        Ok(give(ibv_td { context: of }, Td(Users::default())))
    }))
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the contract: an object.
    code(unsafe { behind(td) }.and_then(|found| {
        found.0.none("ibv_dealloc_td", "thread domain")?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { take_back(td) });
        Ok(())
    }))
}

/// A protection domain with a thread domain and allocators for the memory of queues. Queues of Roxie's are its own memory: the
/// allocators are a service that a provider need not call, and it does not.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    of: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = parent_mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | parent_mask::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    // SAFETY: the contract: objects, and attributes that name them.
    pointer(unsafe {
        context(of).and_then(|_| {
            if attr.is_null() {
                return Err(libc::EINVAL);
            }
            let (pd, td, mask) = ((*attr).pd, (*attr).td, (*attr).comp_mask);
            if mask & !KNOWN != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let found = behind(pd)?;
            if !td.is_null() {
                behind(td)?.0.add();
            }
            found.users.add();
            let parent = Pd { domain: found.domain.clone(), users: Users::default(), parts: Some((pd, td)) };
            Ok(give(ibv_pd { context: of, handle: 0 }, parent))
        })
    })
}
