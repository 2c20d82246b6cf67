//! The NIC's control commands for memory: regions, fast-registered regions, windows.

use super::host_side::Registered;
use super::object::ObjectKind;
use super::{ControlError, Nic};
use crate::nic::Answer;
use crate::shared::{HostMemory, PageList};
use crate::transport::memory::needs_local_write;
use crate::transport::{Refusal, RegionSpec};
use crate::verbs::{Access, MrIndex, MwIndex, MwType, PdId};
use roxie_base::limits::MAX_PAGE_LIST;

impl Nic {
    pub(super) fn register(
        &mut self,
        pd: PdId,
        access: Access,
        start: u64,
        memory: HostMemory,
    ) -> Result<Answer, ControlError> {
        if access.contains(Access::ZERO_BASED) && start != 0 {
            return Err(ControlError::Access {
                access,
                why: "the first address of a zero-based region is 0",
            });
        }
        let spec = region_spec(pd, access, start, &memory)?;
        self.pds.use_pd(pd, 1)?;
        let Some((mr, key)) = self.memory.register(&spec) else {
            self.pds.use_pd(pd, -1)?;
            return Err(self.full(ObjectKind::MemoryRegion));
        };
        self.dma.add(mr, Registered { memory, pd, paged: false });
        Ok(Answer::Memory(mr, key))
    }

    /// Changes a region. All arguments are checked before anything changes.
    pub(super) fn reregister(
        &mut self,
        mr: MrIndex,
        pd: Option<PdId>,
        access: Option<Access>,
        translation: Option<(u64, HostMemory)>,
    ) -> Result<Answer, ControlError> {
        let now = self.memory.registered(mr).ok_or(ControlError::NotFound(ObjectKind::MemoryRegion))?;
        let region = self.dma.region(mr).ok_or(ControlError::NotFound(ObjectKind::MemoryRegion))?;
        let moved = translation.is_some();
        let (start, memory) = translation.unwrap_or_else(|| (now.start, region.memory.clone()));
        let pd = pd.unwrap_or(now.pd);
        let spec = region_spec(pd, access.unwrap_or(now.access), start, &memory)?;
        self.pds.use_pd(pd, 1)?;
        let key = match self.memory.reregister(mr, &spec, moved) {
            Ok(key) => key,
            Err(refusal) => {
                self.pds.use_pd(pd, -1)?;
                return Err(control_error(refusal, ObjectKind::MemoryRegion));
            }
        };
        self.pds.use_pd(now.pd, -1)?;
        self.parking.await_region(self.dma.region(mr));
        self.dma.add(mr, Registered { memory, pd, paged: false });
        Ok(Answer::Memory(mr, key))
    }

    pub(super) fn deregister(&mut self, mr: MrIndex) -> Result<Answer, ControlError> {
        self.memory.deregister(mr).map_err(|refusal| control_error(refusal, ObjectKind::MemoryRegion))?;
        self.parking.await_region(self.dma.region(mr));
        if let Some(region) = self.dma.remove(mr) {
            self.pds.use_pd(region.pd, -1)?;
        }
        Ok(Answer::Done)
    }

    pub(super) fn alloc_fast(
        &mut self,
        pd: PdId,
        memory: HostMemory,
        pages: PageList,
    ) -> Result<Answer, ControlError> {
        let (value, limit) = (pages.capacity().into(), MAX_PAGE_LIST.into());
        if value > limit {
            return Err(ControlError::TooLarge { what: "pages of a fast-registered region", value, limit });
        }
        self.pds.use_pd(pd, 1)?;
        let length = memory.len() as u64;
        let Some((mr, key)) = self.memory.alloc_fast(pd, pages, length, misalignment(&memory)) else {
            self.pds.use_pd(pd, -1)?;
            return Err(self.full(ObjectKind::MemoryRegion));
        };
        if memory.may_be_missing() {
            self.memory.pages_may_be_missing(mr);
        }
        self.dma.add(mr, Registered { memory, pd, paged: true });
        Ok(Answer::Memory(mr, key))
    }

    pub(super) fn alloc_window(&mut self, pd: PdId, kind: MwType) -> Result<Answer, ControlError> {
        self.pds.use_pd(pd, 1)?;
        let Some((window, key)) = self.memory.alloc_window(pd, kind) else {
            self.pds.use_pd(pd, -1)?;
            return Err(self.full(ObjectKind::MemoryWindow));
        };
        Ok(Answer::Window(window, key))
    }

    pub(super) fn next_window_key(&mut self, window: MwIndex) -> Result<Answer, ControlError> {
        let key = self.memory.next_window_key(window);
        key.map(Answer::Key).map_err(|refusal| control_error(refusal, ObjectKind::MemoryWindow))
    }

    pub(super) fn free_window(&mut self, window: MwIndex) -> Result<Answer, ControlError> {
        let region = self.memory.region_of_window(window);
        let pd = self.memory.free_window(window).ok_or(ControlError::NotFound(ObjectKind::MemoryWindow))?;
        if let Some(region) = region {
            self.parking.await_region(self.dma.region(region));
        }
        self.pds.use_pd(pd, -1)?;
        Ok(Answer::Done)
    }

    fn full(&self, object: ObjectKind) -> ControlError {
        ControlError::Full { object, limit: self.config.limits.mrs }
    }
}

/// Checks the access flags of a region, against one another and its memory.
fn region_spec(
    pd: PdId,
    access: Access,
    start: u64,
    memory: &HostMemory,
) -> Result<RegionSpec, ControlError> {
    let refused = |why| Err(ControlError::Access { access, why });
    // Unknown flags in the optional range are ignored (`ibv_reg_mr`).
    if access.bits() & !(Access::all().bits() | Access::OPTIONAL.bits()) != 0 {
        return refused("these are not all known access flags");
    }
    let access = Access::from_bits_truncate(access.bits());
    //= IBTA 10.6.3.1: remote-writing-needs-local-writing
    if needs_local_write(access) && !access.contains(Access::LOCAL_WRITE) {
        return Err(ControlError::AccessNeedsLocalWrite(access));
    }
    if access.contains(Access::ON_DEMAND) != memory.is_on_demand() {
        return refused("ON_DEMAND goes with memory that is reached on demand, and only with such");
    }
    let everything = memory.len() == usize::MAX;
    if everything && access.intersects(Access::REMOTE | Access::MW_BIND) {
        return refused("a region of all addresses, or of none, is not for peers");
    }
    let start = if access.contains(Access::ZERO_BASED) { 0 } else { start };
    let (length, misalignment) = (memory.len() as u64, misalignment(memory));
    let may_fault = memory.may_be_missing();
    Ok(RegionSpec { pd, access, start, length, misalignment, may_fault })
}

/// Returns the address of memory modulo 8.
fn misalignment(memory: &HostMemory) -> u8 {
    (memory.address() % 8) as u8
}

fn control_error(refusal: Refusal, object: ObjectKind) -> ControlError {
    match refusal {
        Refusal::WindowsBound(users) => ControlError::Busy { object, users },
        Refusal::WrongKind => ControlError::WrongKind(
            "not for an object of this kind: windows are freed, regions deregistered; only ordinary regions are \
             registered again, and only windows of type 1 get their keys from the device",
        ),
        _ => ControlError::NotFound(object),
    }
}
