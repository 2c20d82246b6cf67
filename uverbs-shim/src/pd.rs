//! Protection domains, and the two objects that hint at how they are used.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use roxie::host::ProtectionDomain;

use crate::abi::{
    ibv_context, ibv_parent_domain_init_attr, ibv_parent_domain_init_attr_mask as parent_mask, ibv_pd,
    ibv_td, ibv_td_init_attr,
};
use crate::cancellation::Uncancelled;
use crate::context::context;
use crate::family::Place;
use crate::newer;
use crate::object::{Errno, Face, behind, code, give, pointer, take_back};
use crate::published::{Counted, Kind};
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

/// What is behind a protection domain, in all contexts that have it.
pub(crate) struct Pd {
    pub(crate) domain: ProtectionDomain,
    users: Users,
    /// Where it is imported from; a parent domain cannot be.
    place: Option<Place>,
    /// A parent domain is none of the device's.
    _counted: Option<Counted>,
    /// A parent domain's protection domain and thread domain.
    _parts: Option<(InDomain, Option<InThread>)>,
}

/// Something that uses a protection domain, which cannot be destroyed meanwhile. The C structure through which it was named may go
/// before: that of an imported domain.
pub(crate) struct InDomain(Arc<Pd>);

impl InDomain {
    pub(crate) fn new(pd: &Arc<Pd>) -> InDomain {
        pd.users.add();
        InDomain(Arc::clone(pd))
    }

    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }
}

impl Drop for InDomain {
    fn drop(&mut self) {
        self.0.users.remove();
    }
}

impl Face for ibv_pd {
    type Whole = ibv_pd;
    type Behind = Arc<Pd>;
}

/// Makes a protection domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(of: *mut ibv_context) -> *mut ibv_pd {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    pointer(unsafe { context(of) }.and_then(|context| {
        let domain = context.nic.device.alloc_pd().map_err(device("ibv_alloc_pd"))?;
        let counted = Some(context.family.published.add(Kind::Pd));
        let make = |place| Pd {
            domain,
            users: Users::default(),
            place: Some(place),
            _counted: counted,
            _parts: None,
        };
        Ok(give_pd(of, context.family.add(make)))
    }))
}

fn give_pd(context: *mut ibv_context, pd: Arc<Pd>) -> *mut ibv_pd {
    let handle = pd.place.as_ref().map_or(0, Place::handle);
    give(ibv_pd { context, handle }, pd)
}

/// The domain of another context of the same family, by its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(of: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    pointer(
        unsafe { context(of) }
            .and_then(|context| Ok(give_pd(of, context.family.find("ibv_import_pd", handle)?))),
    )
}

/// Gives back what stands for a domain in one context; the domain stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, which the caller uses no more. Objects made with it have the domain, not the structure.
    if unsafe { behind(pd) }.is_ok() {
        // SAFETY: `behind` found that it is an object of this process, and the caller uses it no more: it is taken back once.
        drop(unsafe { take_back(pd) });
    }
}

/// Removes one that nothing uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { behind(pd) }.and_then(|found| {
        found.users.none("ibv_dealloc_pd", "protection domain")?;
        if let Some(place) = &found.place {
            place.leave("ibv_dealloc_pd")?;
        }
        // SAFETY: nothing uses it any more.
        drop(unsafe { take_back(pd) });
        Ok(())
    }))
}

/// A thread domain: the promise that one thread at a time uses what is made with it. Roxie needs no such promise.
impl Face for ibv_td {
    type Whole = ibv_td;
    type Behind = Arc<Users>;
}

/// A parent domain's use of its thread domain.
struct InThread(Arc<Users>);

impl InThread {
    fn new(users: &Arc<Users>) -> InThread {
        users.add();
        InThread(Arc::clone(users))
    }
}

impl Drop for InThread {
    fn drop(&mut self) {
        self.0.remove();
    }
}

pub(crate) unsafe extern "C" fn alloc_td(of: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and attributes.
    pointer(unsafe { context(of) }.and_then(|_| {
        // SAFETY: not null, as was seen; the caller promises attributes, and the mask is in those of all releases.
        if attr.is_null() || unsafe { (*attr).comp_mask } != 0 {
            return Err(libc::EINVAL);
        }
        Ok(give(ibv_td { context: of }, Arc::default()))
    }))
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { behind(td) }.and_then(|found| {
        found.none("ibv_dealloc_td", "thread domain")?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { take_back(td) });
        Ok(())
    }))
}

/// A protection domain with a thread domain and allocators for the memory of queues. Queues of Roxie's are its own memory: the
/// allocators are a service that a provider need not call, and it does not. Nor has it a use for memory outside of a guest's protection, which
/// may be allowed for buffers: the NIC is within.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    of: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let _uncancelled = Uncancelled::new();
    const KNOWN: u32 = parent_mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | parent_mask::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | newer::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
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
            let td = if td.is_null() { None } else { Some(InThread::new(behind(td)?)) };
            let parts = Some((InDomain::new(found), td));
            let (domain, users) = (found.domain.clone(), Users::default());
            Ok(give_pd(of, Arc::new(Pd { domain, users, place: None, _counted: None, _parts: parts })))
        })
    })
}
