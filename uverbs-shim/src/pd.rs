//! Protection domains, thread domains and parent domains.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use roxie::host::ProtectionDomain;

use crate::abi::{
    ibv_context, ibv_parent_domain_init_attr, ibv_parent_domain_init_attr_mask as parent_mask, ibv_pd,
    ibv_td, ibv_td_init_attr,
};
use crate::base::cancellation::Uncancelled;
use crate::base::newer;
use crate::base::object::{Errno, VerbsStruct, code, give, object_of, pointer, take_back};
use crate::base::report::{device, refuse};
use crate::device::context::context;
use crate::device::family::Place;
use crate::device::published::{Counted, Kind};

/// Number of objects that use another object, which can be destroyed only after them.
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
    /// `EBUSY` if the object has users.
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

/// The object behind a protection domain, shared by all contexts that imported it.
pub(crate) struct Pd {
    pub(crate) domain: ProtectionDomain,
    users: Users,
    /// Place for imports; a parent domain cannot be imported.
    place: Option<Place>,
    /// A parent domain is not an object of the device, so it is not counted.
    _counted: Option<Counted>,
    /// A parent domain's protection domain and thread domain.
    _parts: Option<(InDomain, Option<InThread>)>,
}

/// A reference to a protection domain, which prevents its destruction. The C structure that named the domain may be
/// destroyed earlier, if it is an imported one.
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

impl VerbsStruct for ibv_pd {
    type Extended = ibv_pd;
    type Inner = Arc<Pd>;
}

/// Allocates a protection domain.
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

/// Imports a protection domain of another context of the same family, by its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(of: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    pointer(
        unsafe { context(of) }
            .and_then(|context| Ok(give_pd(of, context.family.find("ibv_import_pd", handle)?))),
    )
}

/// Releases one context's handle of a domain. The domain is not deallocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, which the caller does not use again. Objects made with it refer to the domain,
    // not to this structure.
    if unsafe { object_of(pd) }.is_ok() {
        // SAFETY: `object_of` verified an object of this process, which the caller does not use again: it is taken back
        // once.
        drop(unsafe { take_back(pd) });
    }
}

/// Deallocates a protection domain without users.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { object_of(pd) }.and_then(|found| {
        found.users.none("ibv_dealloc_pd", "protection domain")?;
        if let Some(place) = &found.place {
            place.leave("ibv_dealloc_pd")?;
        }
        // SAFETY: no object uses the domain.
        drop(unsafe { take_back(pd) });
        Ok(())
    }))
}

/// A thread domain: the application's promise that objects made with it are used by one thread at a time. Roxie does
/// not depend on it.
impl VerbsStruct for ibv_td {
    type Extended = ibv_td;
    type Inner = Arc<Users>;
}

/// A parent domain's reference to its thread domain.
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
        // SAFETY: not null, as checked; the caller promises attributes, and the mask exists in the attributes of all
        // releases.
        if attr.is_null() || unsafe { (*attr).comp_mask } != 0 {
            return Err(libc::EINVAL);
        }
        Ok(give(ibv_td { context: of }, Arc::default()))
    }))
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { object_of(td) }.and_then(|found| {
        found.none("ibv_dealloc_td", "thread domain")?;
        // SAFETY: no parent domain uses it.
        drop(unsafe { take_back(td) });
        Ok(())
    }))
}

/// Allocates a parent domain: a protection domain with a thread domain and allocators for queue memory. A provider need
/// not call the allocators, and this one allocates its queues itself. Buffers outside of a confidential guest's
/// protected memory, which the flag allows, are not needed either: the NIC runs within the guest.
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
            let pd_object = object_of(pd)?;
            let td = if td.is_null() { None } else { Some(InThread::new(object_of(td)?)) };
            let parts = Some((InDomain::new(pd_object), td));
            let (domain, users) = (pd_object.domain.clone(), Users::default());
            Ok(give_pd(of, Arc::new(Pd { domain, users, place: None, _counted: None, _parts: parts })))
        })
    })
}
