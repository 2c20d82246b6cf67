//! Fast registration: work requests give a region its pages and its key (IBTA 10.6.4, base memory management).

use super::{KeyKind, KeyUser, LOCAL_USE, MemoryTable, Refusal, allowed, needs_local_write};
use crate::shared::PageList;
use crate::verbs::{Access, FastRegistration, MrIndex, PdId};

/// Supported page sizes, as powers of two.
const PAGE_SHIFTS: std::ops::RangeInclusive<u8> = 12..=30;

/// The pages of a fast-registered region.
#[derive(Debug)]
pub struct Translation {
    /// Page list, written by the application.
    list: PageList,
    /// Length in bytes of the memory from which pages are taken.
    memory_len: u64,
    /// Address of that memory in host memory, modulo 8.
    misalignment: u8,
    /// The current pages, as offsets in that memory.
    pages: Box<[u64]>,
    shift: u8,
    first: u32,
}

/// A contiguous piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the memory from which pages are taken.
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
}

impl Translation {
    /// Returns the offset of the region's first byte in its first page.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Returns the contiguous piece at `offset` of the region, at most `length` bytes. `None`: `offset` is beyond the
    /// pages.
    pub fn piece(&self, offset: u64, length: usize) -> Option<Piece> {
        //= IBTA 10.6.4: fast-registered-region-is-its-pages
        let place = offset.checked_add(self.first.into())?;
        let page = *self.pages.get(usize::try_from(place >> self.shift).ok()?)?;
        let within = place & ((1 << self.shift) - 1);
        let remaining = (1u64 << self.shift) - within;
        Some(Piece { offset: page + within, length: length.min(remaining.try_into().unwrap_or(usize::MAX)) })
    }
}

impl MemoryTable {
    /// Allocates a fast-registered region. Returns its index and its key, which grants nothing until a work request
    /// registers it, with the pages that `list` has then. The pages lie in `memory_len` bytes of memory, at an address
    /// that is `misalignment` modulo 8. Returns `None` if the table is full.
    pub fn alloc_fast(
        &mut self,
        pd: PdId,
        list: PageList,
        memory_len: u64,
        misalignment: u8,
    ) -> Option<(MrIndex, u32)> {
        let index = self.insert(pd, KeyKind::Fast { windows: 0 })?;
        let pages = vec![0; list.capacity() as usize].into();
        let translation = Translation { list, memory_len, misalignment, pages, shift: 12, first: 0 };
        self.translations[usize::from(index)] = Some(Box::new(translation));
        let key = self.entries[usize::from(index)].as_ref()?.key;
        Some((MrIndex(self.name_at(index)), key))
    }

    /// Marks the region's memory as application memory: pages may be missing at the copy.
    pub fn pages_may_be_missing(&mut self, mr: MrIndex) {
        if let Some(entry) = &mut self.entries[mr.place()] {
            entry.base.may_fault = true;
        }
    }

    /// Returns the pages of a fast-registered region.
    pub fn translation(&self, mr: MrIndex) -> Option<&Translation> {
        self.translations.get(mr.place())?.as_deref()
    }

    /// Makes a fast-registered region valid: reads its page list once, and sets its key.
    ///
    /// # Errors
    /// The reason of the refusal. The region grants nothing then, as before.
    pub fn fast_register(&mut self, user: KeyUser, asked: &FastRegistration) -> Result<(), Refusal> {
        // The new key may differ from the old one in the variant byte only.
        let index = usize::from(self.index_of(asked.key.0));
        let entry = self.entries.get_mut(index).and_then(Option::as_mut).ok_or(Refusal::UnknownKey)?;
        if (entry.key ^ asked.key.0) >> 8 != 0 {
            return Err(Refusal::UnknownKey);
        }
        if !matches!(entry.kind, KeyKind::Fast { .. }) {
            return Err(Refusal::WrongKind);
        }
        if entry.pd != user.pd {
            return Err(Refusal::OtherPd);
        }
        //= IBTA 10.6.4: fast-registration-needs-a-free-region
        if entry.grants != 0 {
            return Err(Refusal::WrongState);
        }
        let grantable = Access::READ_WRITE | Access::REMOTE | Access::MW_BIND;
        let missing = needs_local_write(asked.access) && !asked.access.contains(Access::LOCAL_WRITE);
        if missing || !allowed(asked.access, grantable) {
            return Err(Refusal::AccessDenied);
        }
        let translation = self.translations[index].as_mut().ok_or(Refusal::WrongKind)?;
        translation.load(asked)?;
        entry.key = asked.key.0;
        entry.grants = asked.access.bits() | LOCAL_USE;
        entry.start = asked.start;
        entry.length = asked.length;
        entry.misalignment = translation.misalignment;
        Ok(())
    }
}

impl Translation {
    /// Reads and checks the page list.
    fn load(&mut self, asked: &FastRegistration) -> Result<(), Refusal> {
        if !PAGE_SHIFTS.contains(&asked.page_shift) {
            return Err(Refusal::OutOfBounds);
        }
        let page = 1u64 << asked.page_shift;
        let first = asked.start & (page - 1);
        let end = asked.length.checked_add(first).ok_or(Refusal::OutOfBounds)?;
        let count = end.div_ceil(page);
        if asked.start.checked_add(asked.length).is_none() || count > self.pages.len() as u64 {
            return Err(Refusal::OutOfBounds);
        }
        for (index, place) in self.pages.iter_mut().take(count as usize).enumerate() {
            let at = self.list.page(index as u32).ok_or(Refusal::OutOfBounds)?;
            // Only the used part of the last page must exist.
            let used = (end - index as u64 * page).min(page);
            let inside = at.checked_add(used).is_some_and(|end| end <= self.memory_len);
            if !inside || at % (1 << PAGE_SHIFTS.start()) != 0 {
                return Err(Refusal::OutOfBounds);
            }
            *place = at;
        }
        self.shift = asked.page_shift;
        self.first = first as u32;
        Ok(())
    }
}
