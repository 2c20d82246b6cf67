//! Memory regions (`ibv_mr`), and device memory (`ibv_dm`), which is ordinary memory here.

pub(crate) mod buffer;
pub(crate) mod newer_calls;
pub(crate) mod pages;
mod reregistration;
pub(crate) mod window;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use roxie::host::MemoryRegion;
use roxie::shared::HostMemory;
use roxie::verbs::Access;

use crate::abi::{
    ib_uverbs_advise_mr_advice as advice, ibv_access_flags, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr,
    ibv_pd, ibv_sge,
};
use crate::base::cancellation::Uncancelled;
use crate::base::lock::lock;
use crate::base::object::{Errno, VerbsStruct, code, give, object_of, pointer, take_back};
use crate::base::report::{device, refuse};
use crate::device::context::context;
use crate::device::family::Place;
use crate::device::published::{Counted, Kind};
use crate::memory::pages::{check_range, populate};
use crate::pd::{InDomain, Pd, Users};

/// Bytes of device memory: enough for programs that need some.
pub(crate) const DEVICE_MEMORY: u64 = 128 << 20;

/// The object behind a memory region, shared by all contexts that imported it.
pub(crate) struct Mr {
    pub(crate) region: Mutex<MemoryRegion>,
    /// Objects in use by the region until it is deregistered.
    uses: Mutex<Option<(InDomain, Option<InDm>, Counted)>>,
    place: Place,
}

impl VerbsStruct for ibv_mr {
    type Extended = ibv_mr;
    type Inner = Arc<Mr>;
}

/// Converts access flags. Huge pages are a hint, which is ignored.
pub(crate) fn access(call: &str, flags: c_uint) -> Result<Access, Errno> {
    let known = flags & !(ibv_access_flags::IBV_ACCESS_HUGETLB | Access::OPTIONAL.bits());
    Access::from_bits(known).map_or_else(
        || refuse(call, libc::EINVAL, format_args!("access flags {flags:#x}: some are unknown")),
        Ok,
    )
}

/// Converts access flags of a window. Local access is ignored, because the region determines it.
pub(crate) fn window_access(call: &str, flags: c_uint) -> Result<Access, Errno> {
    Ok(access(call, flags)? - Access::LOCAL_WRITE)
}

/// Returns true if the device may write to a region with these rights, by the kernel's rule (`ib_access_writable`).
fn writes(access: Access) -> bool {
    access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::MW_BIND)
}

/// A requested registration.
struct RegistrationRequest {
    address: *mut c_void,
    length: usize,
    /// Address of the first byte in work requests and for peers; `None`: its virtual address.
    iova: Option<u64>,
    access: Access,
}

impl RegistrationRequest {
    fn memory(&self, call: &'static str) -> Result<HostMemory, Errno> {
        // Rights are checked before memory, as in the kernel (`ib_check_mr_access`).
        let remote_writes = self.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if remote_writes && !self.access.contains(Access::LOCAL_WRITE) {
            return refuse(call, libc::EINVAL, "remote writes and atomics need IBV_ACCESS_LOCAL_WRITE");
        }
        let implicit = self.address.is_null() && self.length == usize::MAX;
        if !(implicit && self.access.contains(Access::ON_DEMAND)) {
            check_range(call, self.address, self.length, self.iova)?;
        }
        if self.access.contains(Access::ON_DEMAND) {
            // SAFETY: the contract: the NIC may access what the application registered.
            return Ok(unsafe { HostMemory::on_demand(self.address as u64, self.length) });
        }
        // A kernel pins the page of a region of 0 bytes as well.
        populate(call, self.address, self.length.max(1), writes(self.access))?;
        let base = NonNull::new(self.address.cast::<u8>()).unwrap_or(NonNull::dangling());
        let length = if self.address.is_null() { 0 } else { self.length };
        // SAFETY: the contract: the memory is the region's until it is deregistered. No memory at a null address.
        Ok(unsafe { HostMemory::borrowed(base, length) })
    }

    /// Returns the address of the first byte in work requests.
    fn start(&self) -> u64 {
        match self.iova {
            Some(iova) => iova,
            None if self.access.contains(Access::ZERO_BASED) => 0,
            None => self.address as u64,
        }
    }
}

fn register(call: &'static str, pd: *mut ibv_pd, wanted: &RegistrationRequest) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the contract: an object.
    let domain = unsafe { object_of(pd) }?;
    let memory = wanted.memory(call)?;
    let made = domain.domain.register_memory_at(memory, wanted.start(), wanted.access);
    let region = made.map_err(device(call))?;
    new_mr(pd, domain, region, (wanted.address, wanted.length), None)
}

fn new_mr(
    pd: *mut ibv_pd,
    found: &Arc<Pd>,
    region: MemoryRegion,
    memory: (*mut c_void, usize),
    dm: Option<InDm>,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the contract: an object.
    let family = unsafe { &context((*pd).context)?.family };
    let uses = Mutex::new(Some((InDomain::new(found), dm, family.published.add(Kind::Mr))));
    let mr = family.add(|place| Mr { region: Mutex::new(region), uses, place });
    Ok(give_mr(pd, mr, memory))
}

fn give_mr(pd: *mut ibv_pd, mr: Arc<Mr>, (addr, length): (*mut c_void, usize)) -> *mut ibv_mr {
    let (lkey, rkey) = {
        let region = lock(&mr.region);
        (region.lkey().0, region.rkey().0)
    };
    // SAFETY: the contract: an object; its context does not change.
    let context = unsafe { (*pd).context };
    give(ibv_mr { context, pd, addr, length, handle: mr.place.handle(), lkey, rkey }, mr)
}

/// Imports a memory region of another context of the same family, by its handle. The region's address is not reported
/// (`ibv_import_mr(3)`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    pointer(unsafe { object_of(pd).and_then(|_| context((*pd).context)) }.and_then(|context| {
        let mr = context.family.find::<Mr>("ibv_import_mr", handle)?;
        let length = lock(&mr.region).len();
        Ok(give_mr(pd, mr, (std::ptr::null_mut(), length)))
    }))
}

/// Releases one context's handle of a region. The region is not deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, which the caller uses no more.
    if unsafe { object_of(mr) }.is_ok() {
        // SAFETY: `object_of` verified an object of this process; the caller does not use it again.
        drop(unsafe { take_back(mr) });
    }
}

/// Registers memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    let _uncancelled = Uncancelled::new();
    pointer(access("ibv_reg_mr", flags as c_uint).and_then(|access| {
        register("ibv_reg_mr", pd, &RegistrationRequest { address, length, iova: None, access })
    }))
}

/// Registers memory, with `iova` as address of the first byte in work requests.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut ibv_mr {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contracts of the two calls are equal: an object, and memory that stays.
    unsafe { ibv_reg_mr_iova2(pd, address, length, iova, flags as c_uint) }
}

/// Called by the header's inline `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut ibv_mr {
    let _uncancelled = Uncancelled::new();
    pointer(access("ibv_reg_mr", flags).and_then(|access| {
        let zero_based = access.contains(Access::ZERO_BASED);
        let iova = (!zero_based).then_some(iova);
        register("ibv_reg_mr", pd, &RegistrationRequest { address, length, iova, access })
    }))
}

/// Registers a DMA buffer of another device. Not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    let _uncancelled = Uncancelled::new();
    pointer(refuse(
        "ibv_reg_dmabuf_mr",
        libc::EOPNOTSUPP,
        "DMA buffers are not supported: map the buffer and register the mapping",
    ))
}

/// Allocates a region without memory: writes are discarded, reads return zeros.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    pointer(unsafe { object_of(pd) }.and_then(|found| {
        let region = found.domain.register_null().map_err(device("ibv_alloc_null_mr"))?;
        new_mr(pd, found, region, (std::ptr::null_mut(), usize::MAX), None)
    }))
}

/// Deregisters a memory region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, with its domain and memory still valid.
    code(unsafe { object_of(mr) }.and_then(|found| {
        if lock(&found.uses).is_some() {
            lock(&found.region).deregister().map_err(device("ibv_dereg_mr"))?;
        }
        found.place.leave("ibv_dereg_mr")?;
        *lock(&found.uses) = None;
        // SAFETY: as above; the structure is not used again.
        drop(unsafe { take_back(mr) });
        Ok(())
    }))
}

/// Prefetches pages of on-demand regions.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    kind: advice::Type,
    _flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and `count` entries.
    code(unsafe { object_of(pd) }.and_then(|_| {
        let writes = match kind {
            advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => true,
            advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH
            | advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => false,
            _ => return Err(libc::EINVAL),
        };
        if kind == advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
            return Ok(());
        }
        for index in 0..count as usize {
            // SAFETY: the list has `count` entries, as the caller promises, and the index is below `count`.
            let (address, length) = unsafe { ((*list.add(index)).addr, (*list.add(index)).length) };
            populate("ibv_advise_mr", address as *mut c_void, length as usize, writes)?;
        }
        Ok(())
    }))
}

/// The object behind device memory, shared by all contexts that imported it.
pub(crate) struct Dm {
    memory: HostMemory,
    users: Users,
    place: Place,
}

/// A reference to device memory, which prevents its release.
struct InDm(Arc<Dm>);

impl Drop for InDm {
    fn drop(&mut self) {
        self.0.users.remove();
    }
}

impl VerbsStruct for ibv_dm {
    type Extended = ibv_dm;
    type Inner = Arc<Dm>;
}

pub(crate) unsafe extern "C" fn alloc_dm(of: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and attributes.
    pointer(unsafe { context(of) }.and_then(|context| {
        // SAFETY: the caller promises attributes; both fields exist in all releases.
        let (length, mask) = unsafe { ((*attr).length, (*attr).comp_mask) };
        if mask != 0 || length == 0 || length as u64 > DEVICE_MEMORY {
            return refuse(
                "ibv_alloc_dm",
                libc::EINVAL,
                format_args!("{length} bytes of {DEVICE_MEMORY}, comp_mask {mask:#x}"),
            );
        }
        let memory = context.nic.device.allocate(length).map_err(|_| libc::ENOMEM)?;
        let make = |place| Dm { memory, users: Users::default(), place };
        Ok(give_dm(of, context.family.add(make)))
    }))
}

fn give_dm(context: *mut ibv_context, dm: Arc<Dm>) -> *mut ibv_dm {
    let face = ibv_dm {
        context,
        memcpy_to_dm: Some(copy_to_dm),
        memcpy_from_dm: Some(copy_from_dm),
        handle: dm.place.handle(),
        ..ibv_dm::default()
    };
    give(face, dm)
}

/// Imports device memory of another context of the same family, by its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_dm(of: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    pointer(
        unsafe { context(of) }
            .and_then(|context| Ok(give_dm(of, context.family.find("ibv_import_dm", handle)?))),
    )
}

/// Releases one context's handle of device memory. The memory is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, which the caller uses no more.
    if unsafe { object_of(dm) }.is_ok() {
        // SAFETY: `object_of` verified an object of this process; the caller does not use it again.
        drop(unsafe { take_back(dm) });
    }
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { object_of(dm) }.and_then(|found| {
        found.users.none("ibv_free_dm", "device memory")?;
        found.place.leave("ibv_free_dm")?;
        // SAFETY: no region uses the memory.
        drop(unsafe { take_back(dm) });
        Ok(())
    }))
}

/// Checks that device memory is accessed in words of 4 bytes.
fn check_words(call: &str, offset: u64, length: usize) -> Result<(), Errno> {
    if offset.is_multiple_of(4) && length.is_multiple_of(4) {
        return Ok(());
    }
    refuse(call, libc::EINVAL, format_args!("{length} bytes at offset {offset}: both must be multiples of 4"))
}

unsafe extern "C" fn copy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and `length` bytes to read.
    code(unsafe { object_of(dm) }.and_then(|found| {
        // SAFETY: the caller promises `length` bytes to read at `from`, for the length of the call.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast(), length) };
        check_words("ibv_memcpy_to_dm", offset, length)?;
        found.memory.write(offset, bytes).or_else(|why| refuse("ibv_memcpy_to_dm", libc::EINVAL, why))
    }))
}

unsafe extern "C" fn copy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and `length` bytes to write.
    code(unsafe { object_of(dm) }.and_then(|found| {
        // SAFETY: the caller promises `length` bytes to write at `to`, for its exclusive use during the call.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to.cast(), length) };
        check_words("ibv_memcpy_from_dm", offset, length)?;
        found.memory.read(offset, bytes).or_else(|why| refuse("ibv_memcpy_from_dm", libc::EINVAL, why))
    }))
}

/// Registers a part of device memory. Its first byte has address 0 in work requests and for peers.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    flags: c_uint,
) -> *mut ibv_mr {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: objects.
    pointer(unsafe { object_of(pd) }.and_then(|found| {
        // SAFETY: `dm` is an object as `pd` is: the caller promises both.
        let of = unsafe { object_of(dm) }?;
        let access = access("ibv_reg_dm_mr", flags)?;
        if !access.contains(Access::ZERO_BASED) {
            return refuse(
                "ibv_reg_dm_mr",
                libc::EINVAL,
                "device memory has no virtual address: IBV_ACCESS_ZERO_BASED is required",
            );
        }
        let part = of.memory.part(offset, length);
        let part = part.or_else(|why| refuse("ibv_reg_dm_mr", libc::EINVAL, why))?;
        let region = found.domain.register_memory_at(part, 0, access).map_err(device("ibv_reg_dm_mr"))?;
        of.users.add();
        new_mr(pd, found, region, (std::ptr::null_mut(), length), Some(InDm(Arc::clone(of))))
    }))
}
