//! The application's memory: regions, windows on them, and regions that work requests give pages to.

use std::io;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

use super::error::DeviceError;
use super::error::unexpected;
use super::pd::ProtectionDomain;
use super::qp::QueuePair;
use crate::nic::{Answer, Command, ControlError, MemoryCommand};
use crate::shared::{HostMemory, PageList};
use crate::verbs::{
    Access, FastRegistration, LKey, MrIndex, MwIndex, MwType, RKey, SendFlags, SendWr, Sge, WindowBind,
};

impl ProtectionDomain {
    /// Allocates `length` zeroed bytes and registers them.
    ///
    /// # Errors
    /// If the system has no such memory, or the device no room for another region.
    pub fn register(&self, length: usize, access: Access) -> Result<MemoryRegion, DeviceError> {
        self.register_memory(self.inner.device.allocate(length).map_err(no_region)?, access)
    }

    /// Registers memory of the caller's.
    ///
    /// # Errors
    /// If the rights do not go together, or the device has no room for another region.
    ///
    /// # Safety
    /// As that of [`HostMemory::borrowed`]: what is mapped of `base..base + length` is the region's until it is dropped, and no
    /// Rust reference into it is held while work requests or peers may use it. If it is unmapped all the same, requests fail.
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

    /// Registers addresses whose pages may come and go (`IBV_ACCESS_ON_DEMAND`, which is added to `access`). An access to
    /// a page that is not there fails the request, and nothing else.
    ///
    /// # Errors
    /// If the rights do not go together, or the device has no room for another region.
    ///
    /// # Safety
    /// No Rust reference to what lies there is held while work requests or peers may use it.
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
    /// As [`register_on_demand`](ProtectionDomain::register_on_demand).
    ///
    /// # Safety
    /// No Rust reference to what a work request names is held while it is under way.
    #[allow(unsafe_code)]
    pub unsafe fn register_all_addresses(&self) -> Result<MemoryRegion, DeviceError> {
        // SAFETY: the caller's promise, of which addresses it is does not matter.
        unsafe { self.register_on_demand(0, usize::MAX, Access::LOCAL_WRITE) }
    }

    /// A region without memory: whatever is written to it vanishes, what is read is zeros (`ibv_alloc_null_mr`).
    ///
    /// # Errors
    /// If the device has no room for another region.
    pub fn register_null(&self) -> Result<MemoryRegion, DeviceError> {
        self.register_memory(HostMemory::null(), Access::LOCAL_WRITE)
    }

    /// Registers memory of any kind.
    ///
    /// # Errors
    /// If the rights do not go together, or the device has no room for another region.
    pub fn register_memory(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, DeviceError> {
        let start = start_of(&memory, access);
        self.register_memory_at(memory, start, access)
    }

    /// The same, with the address by which work requests and peers call its first byte (`ibv_reg_mr_iova`).
    ///
    /// # Errors
    /// As those of [`ProtectionDomain::register_memory`]; also if the addresses would go beyond the last.
    pub fn register_memory_at(
        &self,
        memory: HostMemory,
        start: u64,
        access: Access,
    ) -> Result<MemoryRegion, DeviceError> {
        let pd = self.inner.id;
        let command = MemoryCommand::RegisterMemory { pd, access, start, memory: memory.clone() };
        match self.inner.device.call(command)? {
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

    /// Makes a memory window (`ibv_alloc_mw`). It opens nothing until it is bound.
    ///
    /// # Errors
    /// If the device has no room for another window.
    pub fn alloc_window(&self, kind: MwType) -> Result<MemoryWindow, DeviceError> {
        match self.inner.device.call(Command::AllocWindow { pd: self.inner.id, kind })? {
            Answer::Window(index, key) => Ok(MemoryWindow { pd: self.clone(), index, kind, key }),
            other => unexpected(&other),
        }
    }

    /// Makes a region whose pages work requests choose among `memory_len` bytes, `max_pages` at most (`ib_alloc_mr` and
    /// `ib_map_mr_sg` of the kernel). It opens nothing until it is registered by [`QueuePair::fast_register`].
    ///
    /// # Errors
    /// If there is no memory for it, or the device has no room for another region.
    pub fn alloc_fast(&self, memory_len: usize, max_pages: u32) -> Result<FastRegion, DeviceError> {
        let memory = self.inner.device.allocate(memory_len).map_err(no_region)?;
        let pages = self.inner.device.page_list(max_pages)?;
        let command = MemoryCommand::AllocFastMemory {
            pd: self.inner.id,
            memory: memory.clone(),
            pages: pages.clone(),
        };
        match self.inner.device.call(command)? {
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
    /// Keeps the application's threads from racing with one another; the NIC does not take it.
    copies: RwLock<()>,
}

impl Drop for MemoryRegion {
    /// Windows that are still bound to it are unbound: nothing may reach memory whose region is gone.
    fn drop(&mut self) {
        if self.registered {
            let _ = self.pd.inner.device.call(Command::ReleaseMemory(self.index));
        }
    }
}

impl MemoryRegion {
    /// The address of its first byte, as peers and work requests name it; 0 for a zero-based region.
    pub fn address(&self) -> u64 {
        self.start
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// True if it has none.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Its key for local use.
    pub fn lkey(&self) -> LKey {
        LKey(self.key)
    }

    /// Its key for peers.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// What may be done to it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Takes it out before it is dropped (`ibv_dereg_mr`): from then on its keys open nothing.
    ///
    /// # Errors
    /// If windows are bound to it (`EBUSY`); then it is as it was. (Dropping it unbinds them.)
    pub fn deregister(&mut self) -> Result<(), DeviceError> {
        self.pd.inner.device.call(Command::DeregisterMemory(self.index))?;
        self.registered = false;
        Ok(())
    }

    /// A scatter/gather entry of `length` bytes from `offset` on. Bounds are checked when it is used.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: self.address().wrapping_add(offset as u64), length, lkey: self.lkey() }
    }

    /// Copies bytes in.
    ///
    /// Other threads' copies see all of it or nothing. Work requests under way and peers do not wait for it: what they
    /// read or write of these bytes meanwhile is mixed with it, as with any NIC (see [`crate::shared::HostMemory`]).
    ///
    /// # Errors
    /// If it does not fit the region; nothing was copied. The same for the other copies.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let _alone = self.copies.write().unwrap_or_else(PoisonError::into_inner);
        Ok(self.memory.write(offset as u64, bytes)?)
    }

    /// Copies bytes out; mixed with what a peer or a work request writes meanwhile.
    ///
    /// # Errors
    /// If the region is not so long, or its memory is not there any more.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let _shared = self.copies.read().unwrap_or_else(PoisonError::into_inner);
        Ok(self.memory.read(offset as u64, bytes)?)
    }

    /// Copies `length` bytes out to a vector.
    ///
    /// # Errors
    /// As those of [`MemoryRegion::read_at`].
    pub fn to_vec(&self, offset: usize, length: usize) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; length];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Registers it again (`ibv_rereg_mr`): what is `Some` changes. With new memory the keys change too, and the old ones
    /// are dead.
    /// When it returns, nothing touches memory that it no longer has.
    ///
    /// # Errors
    /// Flags that do not go together, or windows that are bound to it (`EBUSY`). Then the region is as it was
    /// (`IBV_REREG_MR_ERR_INPUT`): none of the errors after which it would be gone can happen here.
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
            access,
            translation,
        };
        match self.pd.inner.device.call(command)? {
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

/// A memory window: a key to a part of a region, for peers. Dropped, it opens nothing any more.
#[derive(Debug)]
pub struct MemoryWindow {
    pd: ProtectionDomain,
    index: MwIndex,
    kind: MwType,
    key: u32,
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        let _ = self.pd.inner.device.call(Command::FreeWindow(self.index));
    }
}

impl MemoryWindow {
    /// The key that it has, or gets by the bind that was posted last.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// Its kind.
    pub fn kind(&self) -> MwType {
        self.kind
    }

    /// The key of the next bind: the device's for type 1, the old one with the next variant byte for type 2.
    fn next_key(&self) -> Result<u32, DeviceError> {
        match self.kind {
            MwType::Two => Ok(next_variant(self.key)),
            MwType::One => match self.pd.inner.device.call(Command::NextWindowKey(self.index))? {
                Answer::Key(key) => Ok(key),
                other => unexpected(&other),
            },
        }
    }
}

fn next_variant(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
pub struct WindowRange<'a> {
    /// The region; it needs [`Access::MW_BIND`].
    pub region: &'a MemoryRegion,
    /// Bytes from its start.
    pub offset: usize,
    /// Bytes; 0 unbinds a window of type 1.
    pub length: usize,
    /// What peers may do.
    pub access: Access,
}

/// A region that work requests register, page by page.
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
        let _ = self.pd.inner.device.call(Command::ReleaseMemory(self.index));
    }
}

impl FastRegion {
    /// The key that it has, or gets by the registration that was posted last; for both sides.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// The memory that its pages are taken from.
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }
}

impl QueuePair {
    /// Posts the bind of a window (`ibv_bind_mw`, `IBV_WR_BIND_MW`) and returns the key that it gets. Later work requests of
    /// this QP see it bound; the completion says when peers may be told. After a bind that failed, drop the window.
    ///
    /// # Errors
    /// If the work request was not posted; then the window is as it was.
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

    /// Posts the registration of a fast region (`IB_WR_REG_MR`): from `start` on, `length` bytes of 4 KiB pages at these
    /// offsets of its memory; `start` modulo 4096 is the place in the first page. Returns the key that it gets.
    /// It must be free: new, or invalidated, locally or by the peer, and that must have completed.
    ///
    /// # Errors
    /// More pages than it was made for; or the work request was not posted. Then the region is as it was.
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
        let asked = FastRegistration { key, start, length, page_shift: 12, access };
        self.post_send(&SendWr::fast_register(wr_id, flags, &asked), &[])?;
        region.key = key.0;
        Ok(key)
    }

    /// Posts the invalidation of a key of ours (`IBV_WR_LOCAL_INV`): of a bound window of type 2, or of a fast region.
    ///
    /// # Errors
    /// If the work request was not posted.
    pub fn invalidate(&self, wr_id: u64, flags: SendFlags, key: RKey) -> Result<(), DeviceError> {
        Ok(self.post_send(&SendWr::local_invalidate(wr_id, flags, key), &[])?)
    }
}
