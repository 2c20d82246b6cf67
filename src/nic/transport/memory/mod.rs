//! Memory protection: memory regions, memory windows and their keys (IBTA 10.6).
//!
//! The table knows keys, bounds and rights, but not the bytes. A successful check returns a [`Span`], a place in a
//! region that the DMA stage resolves.
//!
//! Regions and windows share one table, and a key leads to its entry by arithmetic and one index. Granted rights are a
//! set of bits: [`Access`], and one for local use, which windows never have. An unbound window or an invalid
//! fast-registered region grants nothing, so its set is empty. A key check therefore is the same few comparisons for
//! all kinds.
//!
//! ```text
//!            alloc             bind / FastRegister           invalidate (local, remote)
//! window 1   grants nothing ──▶ valid, new key each time      (bind of length 0)
//! window 2   free           ──▶ valid, for one QP          ──▶ free
//! fast       free           ──▶ valid                      ──▶ free
//! region     valid; new key when re-registered elsewhere
//! ```
//!
//! [`window`] and [`fast`] implement these transitions.

mod fast;
mod status;
mod window;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::door;
use super::permutation::QuickPermutation;
use crate::verbs::{Access, MrIndex, MwIndex, PdId, QpIndex, name, next_generation, place_of};
use fast::Translation;
pub(crate) use status::MemoryName;
pub use status::RegionStatus;

/// A place in a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the region.
    pub mr: MrIndex,
    /// True for application memory, whose pages may be missing at the copy.
    pub may_fault: bool,
    /// Offset in the region, in bytes.
    pub offset: u64,
}

/// Reason why an access, or a change to a key, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No object has this key.
    UnknownKey,
    /// The key belongs to another protection domain.
    OtherPd,
    /// The key is valid for another QP only.
    OtherQp,
    /// Some of the bytes are outside of the granted range.
    OutOfBounds,
    /// The key does not grant this access.
    AccessDenied,
    /// The object is in the wrong state: for example, the window is bound, or the region is valid already.
    WrongState,
    /// The object is of the wrong kind: for example, a region cannot be bound, a type 1 window cannot be invalidated.
    WrongKind,
    /// Windows are bound to the region, as many as given.
    WindowsBound(u32),
}

/// The user of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUser {
    /// Protection domain of the QP.
    pub pd: PdId,
    /// The QP that received the request.
    pub qp: QpIndex,
}

/// Parameters of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Protection domain.
    pub pd: PdId,
    /// Access rights.
    pub access: Access,
    /// Address of the first byte, as users give it.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address of the first byte in host memory, modulo 8. Atomics depend on it.
    pub misalignment: u8,
    /// True for application memory, whose pages may be missing at the copy.
    pub may_fault: bool,
}

/// Right bit for local use: the key is valid in this host's work requests.
const LOCAL_USE: u32 = 1 << 31;
/// No particular QP.
const ANY_QP: u32 = u32::MAX;

/// Kind of an entry, with the state of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyKind {
    Region { windows: u32 },
    Fast { windows: u32 },
    Window1(window::One),
    Window2 { region: Option<u16> },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u32,
    /// Granted rights: bits of [`Access`], and [`LOCAL_USE`].
    grants: u32,
    pd: PdId,
    /// The only QP that may use the key, or [`ANY_QP`].
    qp: u32,
    start: u64,
    length: u64,
    /// Place of the first byte.
    base: Span,
    misalignment: u8,
    kind: KeyKind,
}

/// All regions and windows of a NIC.
#[derive(Debug)]
pub struct MemoryTable {
    permutation: QuickPermutation,
    entries: Vec<Option<Entry>>,
    generations: Vec<u16>,
    /// Generations of names. An object keeps its name for life, whatever keys it gets.
    lives: Vec<u16>,
    free: VecDeque<u16>,
    translations: Vec<Option<Box<Translation>>>,
    /// Number of bound windows of type 2.
    bound_to_qps: u32,
}

impl MemoryTable {
    /// Returns a table for `capacity` regions and windows, at most 2^16. `seed` determines the keys.
    pub fn new(capacity: u32, seed: u64) -> MemoryTable {
        let capacity = capacity.min(1 << 16) as usize;
        MemoryTable {
            permutation: QuickPermutation::new(seed),
            entries: vec![None; capacity],
            generations: vec![0; capacity],
            lives: vec![0; capacity],
            // First in, first out: a free place is reused as late as possible.
            free: (0..capacity).map(|i| i as u16).collect(),
            translations: (0..capacity).map(|_| None).collect(),
            bound_to_qps: 0,
        }
    }

    /// Registers memory. Returns its index and its key, which is both lkey and rkey; `access` decides whether peers may
    /// use it. Returns `None` if the table is full.
    pub fn register(&mut self, spec: &RegionSpec) -> Option<(MrIndex, u32)> {
        let index = self.insert(spec.pd, KeyKind::Region { windows: 0 })?;
        let key = self.open(index, spec);
        Some((MrIndex(self.name_at(index)), key))
    }

    /// Changes a registration. If the region has `moved`, it gets a new key and the old one becomes invalid. Otherwise
    /// the key stays, as in Linux (IBTA 11.2.8.5 leaves this open).
    ///
    /// # Errors
    /// If the region is not an ordinary one, or windows are bound to it. Nothing has changed then.
    pub fn reregister(&mut self, mr: MrIndex, spec: &RegionSpec, moved: bool) -> Result<u32, Refusal> {
        match self.entry(mr).ok_or(Refusal::UnknownKey)?.kind {
            KeyKind::Region { windows: 0 } => {
                let generation = &mut self.generations[mr.place()];
                //= IBTA 10.6.5: key-dies-with-its-region
                *generation = generation.wrapping_add(moved.into());
                Ok(self.open(mr.place() as u16, spec))
            }
            KeyKind::Region { windows } => Err(Refusal::WindowsBound(windows)),
            _ => Err(Refusal::WrongKind),
        }
    }

    /// Returns the registration of a region. `None`: the region does not exist or is not an ordinary one.
    pub fn registered(&self, mr: MrIndex) -> Option<RegionSpec> {
        let entry = self.entry(mr).filter(|e| matches!(e.kind, KeyKind::Region { .. }))?;
        let access = Access::from_bits_retain(entry.grants & !LOCAL_USE);
        let Entry { pd, start, length, misalignment, base: Span { may_fault, .. }, .. } = *entry;
        Some(RegionSpec { pd, access, start, length, misalignment, may_fault })
    }

    /// Removes a region. Its key becomes invalid.
    ///
    /// # Errors
    /// If the region does not exist, or windows are bound to it. Nothing has changed then.
    pub fn deregister(&mut self, mr: MrIndex) -> Result<(), Refusal> {
        match self.entry(mr).ok_or(Refusal::UnknownKey)?.kind {
            KeyKind::Region { windows: 0 } | KeyKind::Fast { windows: 0 } => {
                self.remove(mr.place() as u16);
                Ok(())
            }
            //= IBTA 10.6.7: region-with-windows-is-busy
            KeyKind::Region { windows } | KeyKind::Fast { windows } => Err(Refusal::WindowsBound(windows)),
            KeyKind::Window1(_) | KeyKind::Window2 { .. } => Err(Refusal::WrongKind),
        }
    }

    /// Returns the protection domain of every entry.
    pub fn domains(&self) -> impl Iterator<Item = PdId> {
        self.entries.iter().flatten().map(|entry| entry.pd)
    }

    /// Returns the number of regions and windows.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks `length` bytes at `address` under an lkey, for a work request in domain `pd` that needs `access`.
    ///
    /// # Errors
    /// The reason of the refusal.
    // Two callers, one on the fast path: a call costs a SEND some 20 instructions.
    #[inline(always)]
    pub fn check_local(
        &self,
        pd: PdId,
        lkey: u32,
        address: u64,
        length: u64,
        access: Access,
    ) -> Result<Span, Refusal> {
        let entry = self.find(lkey).ok_or(Refusal::UnknownKey)?;
        if entry.pd != pd {
            return Err(Refusal::OtherPd);
        }
        entry.place(address, length, access.bits() | LOCAL_USE)
    }

    /// Checks `length` bytes at `address` under an rkey that a peer has sent to the QP of `user`.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn check_remote(
        &self,
        user: KeyUser,
        rkey: u32,
        address: u64,
        length: u64,
        access: Access,
    ) -> Result<Span, Refusal> {
        //= IBTA 9.7.4.1.5: rkey-is-good
        let entry = self.find(rkey).ok_or(Refusal::UnknownKey)?;
        //= IBTA 9.7.4.1.5: rkey-is-of-the-domain
        if entry.pd != user.pd {
            return Err(Refusal::OtherPd);
        }
        //= IBTA 10.6.7: window-2-is-for-one-qp
        if !door::opens(entry.qp == ANY_QP || entry.qp == user.qp.0) {
            return Err(Refusal::OtherQp);
        }
        entry.place(address, length, access.bits())
    }

    /// Checks access to all memory of an rkey, for a FLUSH of the whole region. Returns the place and the length.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn check_whole(&self, user: KeyUser, rkey: u32, access: Access) -> Result<(Span, u64), Refusal> {
        let (start, length) = self.find(rkey).map(|e| (e.start, e.length)).ok_or(Refusal::UnknownKey)?;
        Ok((self.check_remote(user, rkey, start, length, access)?, length))
    }

    /// Returns the address of a span in host memory, modulo 8.
    pub fn misalignment(&self, span: Span) -> u8 {
        let region = self.entries.get(span.mr.place()).and_then(Option::as_ref);
        let base = region.map_or(0, |e| e.misalignment);
        let translation = self.translation(span.mr);
        let place = translation.map_or(span.offset, |t| span.offset.wrapping_add(t.first().into()));
        (place.wrapping_add(base.into()) % 8) as u8
    }

    /// Invalidates a key. `remote`: requested by a peer, by SEND with invalidate (IBTA 9.4.1.1.3, 10.6.5).
    ///
    /// A window must be of type 2 and bound to this QP. A region must be fast-registered and without windows.
    /// Invalidating a free one succeeds.
    ///
    /// # Errors
    /// The reason of the refusal. Nothing has changed then.
    pub fn invalidate(&mut self, user: KeyUser, key: u32, remote: bool) -> Result<(), Refusal> {
        let entry = self.find(key).ok_or(Refusal::UnknownKey)?;
        if entry.pd != user.pd {
            return Err(Refusal::OtherPd);
        }
        if entry.qp != ANY_QP && entry.qp != user.qp.0 {
            return Err(Refusal::OtherQp);
        }
        //= IBTA 9.4.1.1.3: invalidate-is-checked
        // A peer must not invalidate a key that grants peers nothing.
        if remote && entry.grants != 0 && entry.grants & Access::REMOTE.bits() == 0 {
            return Err(Refusal::AccessDenied);
        }
        let index = self.index_of(key);
        match entry.kind {
            KeyKind::Fast { windows: 0 } => {
                self.close(index);
                Ok(())
            }
            KeyKind::Window2 { .. } => {
                self.unbind(index);
                Ok(())
            }
            KeyKind::Fast { windows } => Err(Refusal::WindowsBound(windows)),
            //= IBTA 10.6.7 o10-37.2.26: window-1-is-not-invalidated
            KeyKind::Region { .. } | KeyKind::Window1(_) => Err(Refusal::WrongKind),
        }
    }

    /// Returns the region that a key grants access to, its own or its window's. `None`: the key grants nothing.
    pub(super) fn region_of(&self, key: u32) -> Option<MrIndex> {
        self.find(key).filter(|entry| entry.grants != 0).map(|entry| entry.base.mr)
    }

    fn index_of(&self, key: u32) -> u16 {
        self.permutation.index_of(key >> 8)
    }

    #[inline(always)]
    fn find(&self, key: u32) -> Option<&Entry> {
        let entry = self.entries.get(usize::from(self.index_of(key))).and_then(Option::as_ref);
        entry.filter(|e| e.key == key)
    }

    fn entry(&self, mr: MrIndex) -> Option<&Entry> {
        self.entries.get(mr.place())?.as_ref()
    }

    /// Returns the name of the object at this index.
    fn name_at(&self, index: u16) -> u32 {
        name(self.lives[usize::from(index)], index.into())
    }

    fn named(&self, name: u32) -> Option<&Entry> {
        let index = place_of(name) as u16;
        self.entries.get(usize::from(index))?.as_ref().filter(|_| self.name_at(index) == name)
    }

    /// True if a region has this name.
    pub fn has_region(&self, mr: MrIndex) -> bool {
        self.named(mr.0).is_some_and(|e| matches!(e.kind, KeyKind::Region { .. } | KeyKind::Fast { .. }))
    }

    /// True if a window has this name.
    pub fn has_window(&self, window: MwIndex) -> bool {
        self.named(window.0).is_some_and(|e| matches!(e.kind, KeyKind::Window1(_) | KeyKind::Window2 { .. }))
    }

    /// Returns the key of a generation. The generation is spread over the 24 permuted bits and the variant byte, so
    /// that a key is not reused for 2^16 generations.
    fn key_of(&self, index: u16, generation: u16) -> u32 {
        let variant = (generation >> 8) as u8 ^ index as u8;
        self.permutation.encode(index, generation & 0xff) << 8 | u32::from(variant)
    }

    /// Returns the generation of a key; `None` if the key does not belong to this index.
    fn generation_of(&self, index: u16, key: u32) -> Option<u16> {
        let (decoded, low) = self.permutation.decode(key >> 8);
        let high = key as u8 ^ index as u8;
        (decoded == index).then(|| u16::from(high) << 8 | low)
    }

    /// Allocates an entry that grants nothing. Returns `None` if the table is full.
    fn insert(&mut self, pd: PdId, kind: KeyKind) -> Option<u16> {
        let index = self.free.pop_front()?;
        self.entries[usize::from(index)] = Some(Entry {
            key: self.key_of(index, self.generations[usize::from(index)]),
            grants: 0,
            pd,
            qp: ANY_QP,
            start: 0,
            length: 0,
            base: Span { mr: MrIndex(index.into()), may_fault: false, offset: 0 },
            misalignment: 0,
            kind,
        });
        Some(index)
    }

    /// Grants the rights of a registration under the key of the current generation. Returns the key.
    fn open(&mut self, index: u16, spec: &RegionSpec) -> u32 {
        let key = self.key_of(index, self.generations[usize::from(index)]);
        if let Some(entry) = &mut self.entries[usize::from(index)] {
            entry.key = key;
            entry.pd = spec.pd;
            entry.grants = spec.access.bits() | LOCAL_USE;
            entry.start = spec.start;
            entry.length = spec.length;
            entry.misalignment = spec.misalignment;
            entry.base.may_fault = spec.may_fault;
        }
        key
    }

    /// Withdraws all rights.
    fn close(&mut self, index: u16) {
        if let Some(entry) = &mut self.entries[usize::from(index)] {
            entry.grants = 0;
            entry.qp = ANY_QP;
            entry.length = 0;
        }
    }

    fn remove(&mut self, index: u16) {
        let slot = usize::from(index);
        self.entries[slot] = None;
        self.translations[slot] = None;
        //= IBTA 10.6.5: key-dies-with-its-region
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        self.lives[slot] = next_generation(self.lives[slot]);
        self.free.push_back(index);
    }

    /// Adds `change` to the number of windows bound to a region.
    fn count_window(&mut self, region: u16, change: i32) {
        if let Some(Entry { kind: KeyKind::Region { windows } | KeyKind::Fast { windows }, .. }) =
            &mut self.entries[usize::from(region)]
        {
            *windows = windows.saturating_add_signed(change);
        }
    }
}

impl Entry {
    /// Returns the place of `length` bytes at `address`, if all `needed` rights are granted.
    fn place(&self, address: u64, length: u64, needed: u32) -> Result<Span, Refusal> {
        debug_assert!(needed != 0, "an entry that opens nothing would pass");
        //= IBTA 9.7.4.1.5: rkey-grants-the-operation
        if self.grants & needed != needed {
            return Err(Refusal::AccessDenied);
        }
        //= IBTA 9.7.4.1.5: rkey-has-bounds
        let offset = address.checked_sub(self.start).ok_or(Refusal::OutOfBounds)?;
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(Span { offset: self.base.offset + offset, ..self.base }),
            _ => Err(Refusal::OutOfBounds),
        }
    }
}

/// True if `access` contains only rights of `of` and optional ones.
fn allowed(access: Access, of: Access) -> bool {
    (of | Access::OPTIONAL).contains(access)
}

/// True if `access` requires local write as well: remote WRITE and atomics do (IBTA 10.6.3.1).
pub(crate) fn needs_local_write(access: Access) -> bool {
    access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}
