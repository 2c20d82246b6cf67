//! The application's memory: regions, memory windows, and fast-registered regions.

use std::io;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

use super::error::DeviceError;
use super::error::unexpected;
use super::pd::ProtectionDomain;
use super::qp::QueuePair;
use roxie_nic::nic::{Answer, Command, ControlError, MemoryCommand};
use roxie_nic::shared::{HostMemory, PageList};
use roxie_nic::verbs::{
    Access, FastRegistration, LKey, MrIndex, MwIndex, MwType, RKey, SendFlags, SendWr, Sge, WindowBind,
};

impl ProtectionDomain {
    /// Allocates `length` zeroed bytes and registers them. With a NIC in another process the bytes are shared with
    /// children after a fork.
    ///
    /// # Errors
    /// If the system has no such memory, or the device has no room for another region.
    pub fn register(&self, length: usize, access: Access) -> Result<MemoryRegion, DeviceError> {
        self.register_memory(self.inner.device.allocate(length).map_err(no_region)?, access)
    }

    /// Registers memory of the caller.
    ///
    /// # Errors
    /// If the access flags contradict one another, or the device has no room for another region.
    ///
    /// # Safety
    /// The contract of [`HostMemory::borrowed`]: the mapped part of `base..base + length` is the region's until it is
    /// dropped, and no Rust reference into it is held while work requests or peers may use it. If it is unmapped
    /// nevertheless, requests fail.
    #[allow(unsafe_code)]
    pub unsafe fn register_borrowed(
        &self,
        base: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<MemoryRegion, DeviceError> {
        // SAFETY: the caller's promise, word for word.
        let memory = unsafe { HostMemory::borrowed(base, length) };
        self.register_memory(memory, access)
    }

    /// Registers addresses with pages that may come and go (`IBV_ACCESS_ON_DEMAND`, which is added to `access`). An
    /// access to an absent page fails the request, and has no other effect.
    ///
    /// # Errors
    /// If the access flags contradict one another, or the device has no room for another region.
    ///
    /// # Safety
    /// No Rust reference to these addresses is held while work requests or peers may use them.
    #[allow(unsafe_code)]
    pub unsafe fn register_on_demand(
        &self,
        address: u64,
        length: usize,
        access: Access,
    ) -> Result<MemoryRegion, DeviceError> {
        // SAFETY: the caller's promise, word for word.
        let memory = unsafe { HostMemory::on_demand(address, length) };
        self.register_memory(memory, access | Access::ON_DEMAND)
    }

    /// Registers all addresses of the process, for local use: implicit on-demand memory.
    ///
    /// # Errors
    /// The errors of [`register_on_demand`](ProtectionDomain::register_on_demand).
    ///
    /// # Safety
    /// No Rust reference to memory that a work request names is held while the request is outstanding.
    #[allow(unsafe_code)]
    pub unsafe fn register_all_addresses(&self) -> Result<MemoryRegion, DeviceError> {
        // SAFETY: the caller's promise, for all addresses.
        unsafe { self.register_on_demand(0, usize::MAX, Access::LOCAL_WRITE) }
    }

    /// Registers a region without memory: writes are discarded, reads return zeros (`ibv_alloc_null_mr`).
    ///
    /// # Errors
    /// If the device has no room for another region.
    pub fn register_null(&self) -> Result<MemoryRegion, DeviceError> {
        self.register_memory(HostMemory::null(), Access::LOCAL_WRITE)
    }

    /// Registers memory of any kind.
    ///
    /// # Errors
    /// If the access flags contradict one another, or the device has no room for another region.
    pub fn register_memory(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, DeviceError> {
        let start = start_of(&memory, access);
        self.register_memory_at(memory, start, access)
    }

    /// Like [`register_memory`](Self::register_memory), with the address that work requests and peers use for the first
    /// byte (`ibv_reg_mr_iova`).
    ///
    /// # Errors
    /// The errors of [`ProtectionDomain::register_memory`]; also if the addresses exceed 64 bits.
    pub fn register_memory_at(
        &self,
        memory: HostMemory,
        start: u64,
        access: Access,
    ) -> Result<MemoryRegion, DeviceError> {
        let pd = self.inner.id;
        let command = MemoryCommand::RegisterMemory { pd, access, start, memory: memory.clone() };
        match self.inner.device.execute(command)? {
            Answer::Memory(index, key) => Ok(MemoryRegion {
                pd: self.clone(),
                index,
                key,
                access,
                start,
                memory: memory.without_file(),
                registered: true,
                copies: RwLock::new(()),
            }),
            other => unexpected(&other),
        }
    }

    /// Makes a memory window (`ibv_alloc_mw`), which gives no access until it is bound.
    ///
    /// # Errors
    /// If the device has no room for another window.
    pub fn alloc_window(&self, kind: MwType) -> Result<MemoryWindow, DeviceError> {
        match self.inner.device.execute(Command::AllocWindow { pd: self.inner.id, kind })? {
            Answer::Window(index, key) => Ok(MemoryWindow { pd: self.clone(), index, kind, key }),
            other => unexpected(&other),
        }
    }

    /// Makes a region of up to `max_pages` pages, which work requests choose among `memory_len` bytes (`ib_alloc_mr`
    /// and `ib_map_mr_sg` of the kernel). The region gives no access until it is registered by
    /// [`QueuePair::fast_register`].
    ///
    /// # Errors
    /// If the system has no memory, or the device has no room for another region.
    pub fn alloc_fast(&self, memory_len: usize, max_pages: u32) -> Result<FastRegion, DeviceError> {
        let memory = self.inner.device.allocate(memory_len).map_err(no_region)?;
        let pages = self.inner.device.page_list(max_pages)?;
        let command = MemoryCommand::AllocFastMemory {
            pd: self.inner.id,
            memory: memory.clone(),
            pages: pages.clone(),
        };
        match self.inner.device.execute(command)? {
            Answer::Memory(index, key) => {
                Ok(FastRegion { pd: self.clone(), index, key, memory: memory.without_file(), pages })
            }
            other => unexpected(&other),
        }
    }
}

fn no_region(source: io::Error) -> DeviceError {
    DeviceError::System { what: "memory for a region", source }
}

fn start_of(memory: &HostMemory, access: Access) -> u64 {
    if access.contains(Access::ZERO_BASED) { 0 } else { memory.address() }
}

/// Registered memory.
#[derive(Debug)]
pub struct MemoryRegion {
    pd: ProtectionDomain,
    index: MrIndex,
    key: u32,
    access: Access,
    start: u64,
    memory: HostMemory,
    registered: bool,
    /// Serializes the application's threads. The NIC does not take this lock.
    copies: RwLock<()>,
}

impl Drop for MemoryRegion {
    /// Unbinds windows that are still bound to the region, so that they no longer reach its memory.
    fn drop(&mut self) {
        let _ = self.release();
    }
}

impl MemoryRegion {
    /// The address of the first byte for peers and work requests; 0 for a zero-based region.
    pub fn address(&self) -> u64 {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The key for local use.
    pub fn lkey(&self) -> LKey {
        LKey(self.key)
    }

    /// The key for peers.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// The access flags.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Deregisters the region before it is dropped (`ibv_dereg_mr`): its keys give no more access.
    ///
    /// # Errors
    /// If windows are bound to it (`EBUSY`); the region is then unchanged. (Dropping it unbinds them.)
    pub fn deregister(&mut self) -> Result<(), DeviceError> {
        self.pd.inner.device.execute(Command::DeregisterMemory(self.index))?;
        self.registered = false;
        Ok(())
    }

    /// Deregisters the region, if it still is registered, and unbinds its windows.
    ///
    /// # Errors
    /// If the device has failed.
    pub(super) fn release(&mut self) -> Result<(), DeviceError> {
        if std::mem::take(&mut self.registered) {
            self.pd.inner.device.execute(Command::ReleaseMemory(self.index))?;
        }
        Ok(())
    }

    /// Returns a scatter/gather entry of `length` bytes from `offset` on. Bounds are checked when it is used.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: self.address().wrapping_add(offset as u64), length, lkey: self.lkey() }
    }

    /// Copies bytes into the region.
    ///
    /// The copy is atomic only towards other threads' copies. Outstanding work requests and peers do not wait for it:
    /// they may read or write a mixture of old and new bytes, as with any NIC (see [`roxie_nic::shared::HostMemory`]).
    ///
    /// # Errors
    /// If the bytes exceed the region; then none is copied.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let _alone = self.copies.write().unwrap_or_else(PoisonError::into_inner);
        Ok(self.memory.write(offset as u64, bytes)?)
    }

    /// Copies bytes out of the region. Concurrent writes by peers or work requests may show in part.
    ///
    /// # Errors
    /// If the bytes exceed the region, or its memory is no longer mapped.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let _shared = self.copies.read().unwrap_or_else(PoisonError::into_inner);
        Ok(self.memory.read(offset as u64, bytes)?)
    }

    /// Copies `length` bytes into a new vector.
    ///
    /// # Errors
    /// The errors of [`MemoryRegion::read_at`].
    pub fn to_vec(&self, offset: usize, length: usize) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; length];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Changes a region (`ibv_rereg_mr`): each argument that is `Some` replaces a property. New memory also changes the
    /// keys, and the old ones are invalid. When this returns, the previous memory is no longer accessed.
    ///
    /// # Errors
    /// If the access flags contradict one another, or windows are bound (`EBUSY`). The region is then unchanged
    /// (`IBV_REREG_MR_ERR_INPUT`): errors that would invalidate it do not occur here.
    pub fn reregister(
        &mut self,
        pd: Option<&ProtectionDomain>,
        access: Option<Access>,
        memory: Option<HostMemory>,
    ) -> Result<(), DeviceError> {
        let access_now = access.unwrap_or(self.access);
        let translation = memory.clone().map(|memory| (start_of(&memory, access_now), memory));
        let command = MemoryCommand::ReregisterMemory {
            mr: self.index,
            pd: pd.map(|pd| pd.inner.id),
            access: Some(access_now),
            translation,
        };
        match self.pd.inner.device.execute(command)? {
            Answer::Memory(_, key) => self.key = key,
            other => unexpected(&other),
        }
        if let Some(memory) = memory {
            self.start = memory.address();
            self.memory = memory.without_file();
        }
        if access_now.contains(Access::ZERO_BASED) {
            self.start = 0;
        }
        self.access = access_now;
        if let Some(pd) = pd {
            self.pd = pd.clone();
        }
        Ok(())
    }
}

/// A memory window: a key for peers to a part of a region. Dropping it revokes the access.
#[derive(Debug)]
pub struct MemoryWindow {
    pd: ProtectionDomain,
    index: MwIndex,
    kind: MwType,
    key: u32,
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        let _ = self.pd.inner.device.execute(Command::FreeWindow(self.index));
    }
}

impl MemoryWindow {
    /// The key that the window has, or will have after the last posted bind.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// The window's type.
    pub fn kind(&self) -> MwType {
        self.kind
    }

    /// Returns the key of the next bind: chosen by the device for type 1, the old key with the next variant byte for
    /// type 2.
    fn next_key(&self) -> Result<u32, DeviceError> {
        match self.kind {
            MwType::Two => Ok(next_variant(self.key)),
            MwType::One => match self.pd.inner.device.execute(Command::NextWindowKey(self.index))? {
                Answer::Key(key) => Ok(key),
                other => unexpected(&other),
            },
        }
    }
}

fn next_variant(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

/// The range that a window is bound to.
#[derive(Clone, Copy, Debug)]
pub struct WindowRange<'a> {
    /// The region; it needs [`Access::MW_BIND`].
    pub region: &'a MemoryRegion,
    /// Offset in bytes from the start of the region.
    pub offset: usize,
    /// Length in bytes; 0 unbinds a window of type 1.
    pub length: usize,
    /// Access for peers.
    pub access: Access,
}

/// A region that is registered by work requests, as a list of pages.
#[derive(Debug)]
pub struct FastRegion {
    pd: ProtectionDomain,
    index: MrIndex,
    key: u32,
    memory: HostMemory,
    pages: PageList,
}

impl Drop for FastRegion {
    fn drop(&mut self) {
        let _ = self.pd.inner.device.execute(Command::ReleaseMemory(self.index));
    }
}

impl FastRegion {
    /// The key, for local and remote use, that the region has, or will have after the last posted registration.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// The memory that pages are chosen from.
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }
}

impl QueuePair {
    /// Posts the bind of a window (`ibv_bind_mw`, `IBV_WR_BIND_MW`) and returns its new key. Later work requests of
    /// this QP may use it; peers may after the completion. After a failed bind, drop the window.
    ///
    /// # Errors
    /// If the work request was not posted; the window is then unchanged.
    pub fn bind_window(
        &self,
        wr_id: u64,
        flags: SendFlags,
        window: &mut MemoryWindow,
        range: &WindowRange<'_>,
    ) -> Result<RKey, DeviceError> {
        let new_key = window.next_key()?;
        let bind = WindowBind {
            window: window.rkey(),
            new_key: RKey(new_key),
            region: range.region.lkey(),
            address: range.region.address().wrapping_add(range.offset as u64),
            length: range.length as u64,
            access: range.access,
        };
        self.post_send(&SendWr::bind_window(wr_id, flags, &bind), &[])?;
        window.key = new_key;
        Ok(window.rkey())
    }

    /// Posts the registration of a fast region (`IB_WR_REG_MR`) and returns its new key. The region covers `length`
    /// bytes from address `start` on, in the 4 KiB pages at offsets `pages` of its memory; `start` modulo 4096 is the
    /// offset in the first page. The region must be new, or its invalidation, local or by the peer, must have
    /// completed.
    ///
    /// # Errors
    /// If there are more pages than the region was made for, or the work request was not posted. The region is then
    /// unchanged.
    pub fn fast_register(
        &self,
        wr_id: u64,
        flags: SendFlags,
        region: &mut FastRegion,
        pages: &[u64],
        (start, length, access): (u64, u64, Access),
    ) -> Result<RKey, DeviceError> {
        let limit = region.pages.capacity().into();
        if pages.len() as u64 > limit {
            return Err(ControlError::TooLarge { what: "pages", value: pages.len() as u64, limit }.into());
        }
        for (index, page) in pages.iter().enumerate() {
            region.pages.set(index as u32, *page);
        }
        let key = RKey(next_variant(region.key));
        let registration = FastRegistration { key, start, length, page_shift: 12, access };
        self.post_send(&SendWr::fast_register(wr_id, flags, &registration), &[])?;
        region.key = key.0;
        Ok(key)
    }

    /// Posts a local invalidation (`IBV_WR_LOCAL_INV`) of a key: of a bound type 2 window, or of a fast region.
    ///
    /// # Errors
    /// If the work request was not posted.
    pub fn invalidate(&self, wr_id: u64, flags: SendFlags, key: RKey) -> Result<(), DeviceError> {
        Ok(self.post_send(&SendWr::local_invalidate(wr_id, flags, key), &[])?)
    }
}
