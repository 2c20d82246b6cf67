//! Fast registration: regions whose pages and key are given by work requests (IBTA 10.6.4, base memory management).

use super::{Kind, LOCAL_USE, MemoryTable, Refusal, User, allowed, needs_local_write};
use crate::shared::PageList;
use crate::verbs::{Access, FastRegistration, MrIndex, PdId};

/// Sizes of a page, as powers of two.
const PAGE_SHIFTS: std::ops::RangeInclusive<u8> = 12..=30;

/// Which pages a region is made of.
#[derive(Debug)]
pub struct Translation {
    /// Where the application writes them.
    list: PageList,
    /// Bytes of the memory that they lie in.
    memory_len: u64,
    /// Where that begins in the memory of the host, modulo 8.
    misalignment: u8,
    /// The pages in force: their places in that memory.
    pages: Box<[u64]>,
    shift: u8,
    first: u32,
}

/// A stretch of memory without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the memory that pages are taken from.
    pub offset: u64,
    /// Bytes of the piece.
    pub length: usize,
}

impl Translation {
    /// Where the region's first byte lies in its first page.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The stretch that begins at `offset` of the region, `length` bytes at most; `None`: beyond the pages.
    pub fn piece(&self, offset: u64, length: usize) -> Option<Piece> {
        //= IBTA 10.6.4: fast-registered-region-is-its-pages
        let place = offset.checked_add(self.first.into())?;
        let page = *self.pages.get(usize::try_from(place >> self.shift).ok()?)?;
        let within = place & ((1 << self.shift) - 1);
        let left = (1u64 << self.shift) - within;
        Some(Piece { offset: page + within, length: length.min(left.try_into().unwrap_or(usize::MAX)) })
    }
}

impl MemoryTable {
    /// Makes a region that opens nothing until a work request registers it, and its key. Its pages will be those that
    /// `list` names then, in `memory_len` bytes of memory that begin at `misalignment` modulo 8. `None`: the table is full.
    pub fn alloc_fast(
        &mut self,
        pd: PdId,
        list: PageList,
        memory_len: u64,
        misalignment: u8,
    ) -> Option<(MrIndex, u32)> {
        let index = self.insert(pd, Kind::Fast { windows: 0 })?;
        let pages = vec![0; list.capacity() as usize].into();
        let translation = Translation { list, memory_len, misalignment, pages, shift: 12, first: 0 };
        self.translations[usize::from(index)] = Some(Box::new(translation));
        let key = self.entries[usize::from(index)].as_ref()?.key;
        Some((MrIndex(self.name_at(index)), key))
    }

    /// The memory that a region's pages are taken from is the application's: a copy may find none.
    pub fn pages_may_be_missing(&mut self, mr: MrIndex) {
        if let Some(entry) = &mut self.entries[mr.place()] {
            entry.base.may_fault = true;
        }
    }

    /// The pages of a fast-registered region.
    pub fn translation(&self, mr: MrIndex) -> Option<&Translation> {
        self.translations.get(mr.place())?.as_deref()
    }

    /// Makes a fast-registered region valid: reads its page list once, and gives it its key.
    ///
    /// # Errors
    /// Why not; then it opens nothing, as before.
    pub fn fast_register(&mut self, user: User, asked: &FastRegistration) -> Result<(), Refusal> {
        // The work request names the new key: only the variant byte may differ from the old.
        let index = usize::from(self.index_of(asked.key.0));
        let entry = self.entries.get_mut(index).and_then(Option::as_mut).ok_or(Refusal::UnknownKey)?;
        if (entry.key ^ asked.key.0) >> 8 != 0 {
            return Err(Refusal::UnknownKey);
        }
        if !matches!(entry.kind, Kind::Fast { .. }) {
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
    /// Takes the page list in.
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
            // Of the last page only what is used must be there.
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
