//! The transport's protection of memory: which key opens which memory to whom (IBTA 10.6).
//!
//! Knows keys, bounds and rights, and nothing of the bytes themselves: an answer is a [`Span`], a place in a
//! region that the dma stage resolves.
//!
//! Regions and windows stand in one table, and a key leads to its entry by arithmetic and one index. What an entry opens
//! is a set of bits ([`Access`], and one for local use, which windows never have); an entry that opens nothing at the
//! moment (an unbound window, a fast-registered region that is not valid) has none, so that the check of a key is the
//! same few comparisons for all kinds.
//!
//! ```text
//!            alloc            bind / FastRegister            invalidate (local, remote)
//! window 1   opens nothing ──▶ valid, new key each time      (bind of length 0)
//! window 2   free          ──▶ valid, for one QP         ──▶ free
//! fast       free          ──▶ valid                     ──▶ free
//! region     valid; new key when registered again
//! ```
//!
//! [`window`] and [`fast`] are those transitions.

mod fast;
mod window;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;

use super::permutation::QuickPermutation;
use crate::verbs::{Access, MrIndex, MwIndex, PdId, QpIndex, name, next_generation, place_of};
use fast::Translation;

/// A place in a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The index of the region that it is in.
    pub mr: MrIndex,
    /// Its pages are the application's: a copy may find none, and fail.
    pub may_fault: bool,
    /// Bytes from its start.
    pub offset: u64,
}

/// Why an access, or a change of what a key opens, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing has this key, or not any more.
    UnknownKey,
    /// It belongs to another protection domain.
    OtherPd,
    /// It is open to another QP only.
    OtherQp,
    /// The bytes are not all inside.
    OutOfBounds,
    /// It does not grant this.
    AccessDenied,
    /// Not in this state: a bound window is not bound again, a valid region not registered, and so on.
    WrongState,
    /// Not with this kind: regions are not bound, windows of type 1 not invalidated, and so on.
    WrongKind,
    /// Windows are bound to the region.
    WindowsBound(u32),
}

/// Who presents a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The protection domain of the QP.
    pub pd: PdId,
    /// The QP that the request came to.
    pub qp: QpIndex,
}

/// What a region is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// For users of this domain.
    pub pd: PdId,
    /// What may be done to it.
    pub access: Access,
    /// The address by which users call its first byte.
    pub start: u64,
    /// Bytes of the region.
    pub length: u64,
    /// The address of its first byte in the memory of the host, modulo 8: atomics ask for it.
    pub misalignment: u8,
    /// Its pages are the application's: a copy may find none.
    pub may_fault: bool,
}

/// How a region or a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionStatus {
    /// `region`, `fast`, `window1` or `window2`.
    pub kind: &'static str,
    /// Its lkey and rkey, which are one number; 0 while it opens nothing.
    pub key: u32,
    /// Its protection domain.
    pub pd: PdId,
    /// The address of its first byte; 0 while it opens nothing.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// What it lets a peer, or receives, do.
    pub access: Access,
}

/// The bit of an entry that work requests of ours may name.
const LOCAL_USE: u32 = 1 << 31;
/// No QP in particular.
const ANY_QP: u32 = u32::MAX;

/// What an entry is, and what only its kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Region { windows: u32 },
    Fast { windows: u32 },
    Window1(window::One),
    Window2 { region: Option<u16> },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u32,
    /// What it opens: bits of [`Access`], and [`LOCAL_USE`].
    grants: u32,
    pd: PdId,
    /// The only QP that it opens for, or [`ANY_QP`].
    qp: u32,
    start: u64,
    length: u64,
    /// Where its first byte lies.
    base: Span,
    misalignment: u8,
    kind: Kind,
}

/// All memory regions and windows of a NIC.
#[derive(Debug)]
pub struct MemoryTable {
    permutation: QuickPermutation,
    entries: Vec<Option<Entry>>,
    generations: Vec<u16>,
    /// Generations of names: one for each object, whatever keys it had.
    lives: Vec<u16>,
    free: VecDeque<u16>,
    translations: Vec<Option<Box<Translation>>>,
    /// Windows of type 2 that are bound.
    bound_to_qps: u32,
}

impl MemoryTable {
    /// A table of `capacity` regions and windows, at most 2^16, whose keys depend on `seed`.
    pub fn new(capacity: u32, seed: u64) -> MemoryTable {
        let capacity = capacity.min(1 << 16) as usize;
        MemoryTable {
            permutation: QuickPermutation::new(seed),
            entries: vec![None; capacity],
            generations: vec![0; capacity],
            lives: vec![0; capacity],
            // Taken from the front, given back at the end: a place does not come back soon.
            free: (0..capacity).map(|i| i as u16).collect(),
            translations: (0..capacity).map(|_| None).collect(),
            bound_to_qps: 0,
        }
    }

    /// Registers memory and returns its place and its key (lkey and rkey are one number; whether a peer may use it
    /// depends on `access`). `None`: the table is full.
    pub fn register(&mut self, spec: &RegionSpec) -> Option<(MrIndex, u32)> {
        let index = self.insert(spec.pd, Kind::Region { windows: 0 })?;
        let key = self.open(index, spec);
        Some((MrIndex(self.name_at(index)), key))
    }

    /// Registers a region again, as something else. If it moved, its old key opens nothing from now on; if not, it keeps its key, as
    /// in Linux (IBTA 11.2.8.5 leaves that open).
    ///
    /// # Errors
    /// It is no ordinary region, or windows are bound to it; then it stays as it was.
    pub fn reregister(&mut self, mr: MrIndex, spec: &RegionSpec, moved: bool) -> Result<u32, Refusal> {
        match self.entry(mr).ok_or(Refusal::UnknownKey)?.kind {
            Kind::Region { windows: 0 } => {
                let generation = &mut self.generations[mr.place()];
                //= IBTA 10.6.5: key-dies-with-its-region
                *generation = generation.wrapping_add(moved.into());
                Ok(self.open(mr.place() as u16, spec))
            }
            Kind::Region { windows } => Err(Refusal::WindowsBound(windows)),
            _ => Err(Refusal::WrongKind),
        }
    }

    /// How a region is registered; `None`: there is none, or it is no ordinary one.
    pub fn registered(&self, mr: MrIndex) -> Option<RegionSpec> {
        let entry = self.entry(mr).filter(|e| matches!(e.kind, Kind::Region { .. }))?;
        let access = Access::from_bits_retain(entry.grants & !LOCAL_USE);
        let Entry { pd, start, length, misalignment, base: Span { may_fault, .. }, .. } = *entry;
        Some(RegionSpec { pd, access, start, length, misalignment, may_fault })
    }

    /// Takes a region out: its key opens nothing from now on.
    ///
    /// # Errors
    /// There is none, or windows are bound to it; then it stays as it was.
    pub fn deregister(&mut self, mr: MrIndex) -> Result<(), Refusal> {
        match self.entry(mr).ok_or(Refusal::UnknownKey)?.kind {
            Kind::Region { windows: 0 } | Kind::Fast { windows: 0 } => {
                self.remove(mr.place() as u16);
                Ok(())
            }
            //= IBTA 10.6.7: region-with-windows-is-busy
            Kind::Region { windows } | Kind::Fast { windows } => Err(Refusal::WindowsBound(windows)),
            Kind::Window1(_) | Kind::Window2 { .. } => Err(Refusal::WrongKind),
        }
    }

    /// The protection domain of each.
    pub fn domains(&self) -> impl Iterator<Item = PdId> {
        self.entries.iter().flatten().map(|entry| entry.pd)
    }

    /// How the regions and windows in a stretch of places are. `None`: all places lie below.
    pub fn statuses(&self, places: Range<usize>) -> Option<impl Iterator<Item = RegionStatus> + '_> {
        let entries = self.entries.get(places.start..places.end.min(self.entries.len()))?;
        let statuses = entries.iter().flatten().map(|entry| {
            let kind = match entry.kind {
                Kind::Region { .. } => "region",
                Kind::Fast { .. } => "fast",
                Kind::Window1(_) => "window1",
                Kind::Window2 { .. } => "window2",
            };
            let (key, start, length) =
                if entry.grants == 0 { (0, 0, 0) } else { (entry.key, entry.start, entry.length) };
            RegionStatus {
                kind,
                key,
                pd: entry.pd,
                start,
                length,
                access: Access::from_bits_truncate(entry.grants),
            }
        });
        (!entries.is_empty()).then_some(statuses)
    }

    /// Regions and windows in the table.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks `length` bytes at `address` under an lkey, for a work request of `pd` that needs `access`.
    ///
    /// # Errors
    /// Why not.
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

    /// Checks `length` bytes at `address` under an rkey that a peer presented to the QP of `user`.
    ///
    /// # Errors
    /// Why not.
    pub fn check_remote(
        &self,
        user: User,
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
        if entry.qp != ANY_QP && entry.qp != user.qp.0 {
            return Err(Refusal::OtherQp);
        }
        entry.place(address, length, access.bits())
    }

    /// All that an rkey opens, for a FLUSH of the whole region.
    ///
    /// # Errors
    /// Why not.
    pub fn check_whole(&self, user: User, rkey: u32, access: Access) -> Result<(Span, u64), Refusal> {
        let (start, length) = self.find(rkey).map(|e| (e.start, e.length)).ok_or(Refusal::UnknownKey)?;
        Ok((self.check_remote(user, rkey, start, length, access)?, length))
    }

    /// Where a span lies in the memory of the host, modulo 8.
    pub fn misalignment(&self, span: Span) -> u8 {
        let region = self.entries.get(span.mr.place()).and_then(Option::as_ref);
        let base = region.map_or(0, |e| e.misalignment);
        let translation = self.translation(span.mr);
        let place = translation.map_or(span.offset, |t| span.offset.wrapping_add(t.first().into()));
        (place.wrapping_add(base.into()) % 8) as u8
    }

    /// Makes a key open nothing. `remote`: a peer asks for it, by SEND with invalidate (IBTA 9.4.1.1.3, 10.6.5).
    ///
    /// A window must be of type 2 and bound to this QP; a region must be fast-registered and without windows. What is
    /// free already stays so.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn invalidate(&mut self, user: User, key: u32, remote: bool) -> Result<(), Refusal> {
        let entry = self.find(key).ok_or(Refusal::UnknownKey)?;
        if entry.pd != user.pd {
            return Err(Refusal::OtherPd);
        }
        if entry.qp != ANY_QP && entry.qp != user.qp.0 {
            return Err(Refusal::OtherQp);
        }
        //= IBTA 9.4.1.1.3: invalidate-is-checked
        // A key that no peer may use is not for a peer to invalidate.
        if remote && entry.grants != 0 && entry.grants & Access::REMOTE.bits() == 0 {
            return Err(Refusal::AccessDenied);
        }
        let index = self.index_of(key);
        match entry.kind {
            Kind::Fast { windows: 0 } => {
                self.close(index);
                Ok(())
            }
            Kind::Window2 { .. } => {
                self.unbind(index);
                Ok(())
            }
            Kind::Fast { windows } => Err(Refusal::WindowsBound(windows)),
            //= IBTA 10.6.7 o10-37.2.26: window-1-is-not-invalidated
            Kind::Region { .. } | Kind::Window1(_) => Err(Refusal::WrongKind),
        }
    }

    fn index_of(&self, key: u32) -> u16 {
        self.permutation.index_of(key >> 8)
    }

    fn find(&self, key: u32) -> Option<&Entry> {
        let entry = self.entries.get(usize::from(self.index_of(key))).and_then(Option::as_ref);
        entry.filter(|e| e.key == key)
    }

    fn entry(&self, mr: MrIndex) -> Option<&Entry> {
        self.entries.get(mr.place())?.as_ref()
    }

    /// The name of the object in a place.
    fn name_at(&self, index: u16) -> u32 {
        name(self.lives[usize::from(index)], index.into())
    }

    fn named(&self, name: u32) -> Option<&Entry> {
        let index = place_of(name) as u16;
        self.entries.get(usize::from(index))?.as_ref().filter(|_| self.name_at(index) == name)
    }

    /// True if a region has this name now.
    pub fn has_region(&self, mr: MrIndex) -> bool {
        self.named(mr.0).is_some_and(|e| matches!(e.kind, Kind::Region { .. } | Kind::Fast { .. }))
    }

    /// True if a window has this name now.
    pub fn has_window(&self, window: MwIndex) -> bool {
        self.named(window.0).is_some_and(|e| matches!(e.kind, Kind::Window1(_) | Kind::Window2 { .. }))
    }

    /// The key of a generation: it is in the 24 bits that cannot be guessed and in the variant byte, so that a key does not
    /// come back for 2^16 generations.
    fn key_of(&self, index: u16, generation: u16) -> u32 {
        let variant = (generation >> 8) as u8 ^ index as u8;
        self.permutation.encode(index, generation & 0xff) << 8 | u32::from(variant)
    }

    /// The generation of a key that `key_of` made for this index.
    fn generation_of(&self, index: u16, key: u32) -> Option<u16> {
        let (found, low) = self.permutation.decode(key >> 8);
        let high = key as u8 ^ index as u8;
        (found == index).then(|| u16::from(high) << 8 | low)
    }

    /// A new entry that opens nothing.
    fn insert(&mut self, pd: PdId, kind: Kind) -> Option<u16> {
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

    /// Lets an ordinary region open what it is registered for, under the key of its generation.
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

    /// Lets an entry open nothing.
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

    /// Counts windows at a region.
    fn count_window(&mut self, region: u16, change: i32) {
        if let Some(Entry { kind: Kind::Region { windows } | Kind::Fast { windows }, .. }) =
            &mut self.entries[usize::from(region)]
        {
            *windows = windows.saturating_add_signed(change);
        }
    }
}

impl Entry {
    /// Where `length` bytes at `address` lie, if all that is needed is granted.
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

/// Flags that a work request may give a key; others are refused.
fn allowed(access: Access, of: Access) -> bool {
    (of | Access::OPTIONAL).contains(access)
}

/// Remote writing needs local writing as well (IBTA 10.6.3.1).
pub(crate) fn needs_local_write(access: Access) -> bool {
    access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}
