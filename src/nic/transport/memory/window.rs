//! Memory windows: work requests give and withdraw access to parts of a region (IBTA 10.6.6, 10.6.7).

use super::{
    ANY_QP, Entry, KeyKind, KeyUser, LOCAL_USE, MemoryTable, Refusal, Span, allowed, needs_local_write,
};
use crate::verbs::{Access, MrIndex, MwIndex, MwType, PdId, QpIndex, WindowBind, place_of};

/// State of a type 1 window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct One {
    region: Option<u16>,
    /// The newest generation with a key issued for a future bind.
    reserved: u16,
}

impl MemoryTable {
    /// Allocates a window. Returns its index and its key, which grants nothing yet. Returns `None` if the table is
    /// full.
    pub fn alloc_window(&mut self, pd: PdId, kind: MwType) -> Option<(MwIndex, u32)> {
        let index = self.insert(pd, KeyKind::Window2 { region: None })?;
        let reserved = self.generations[usize::from(index)];
        let entry = self.entries[usize::from(index)].as_mut()?;
        if kind == MwType::One {
            entry.kind = KeyKind::Window1(One { region: None, reserved });
        }
        let key = entry.key;
        Some((MwIndex(self.name_at(index)), key))
    }

    /// Removes a window, bound or not. Its key becomes invalid. Returns its protection domain, or `None` if it does not
    /// exist.
    pub fn free_window(&mut self, window: MwIndex) -> Option<PdId> {
        let index = place_of(window.0) as u16;
        let entry = self.entries.get(usize::from(index))?.as_ref()?;
        let pd = entry.pd;
        match entry.kind {
            KeyKind::Region { .. } | KeyKind::Fast { .. } => return None,
            // Skip the keys that were issued for a bind, too.
            KeyKind::Window1(one) => self.generations[usize::from(index)] = one.reserved,
            KeyKind::Window2 { .. } => {}
        }
        self.unbind(index);
        self.remove(index);
        Some(pd)
    }

    /// Returns the region that a window is bound to.
    pub fn region_of_window(&self, window: MwIndex) -> Option<MrIndex> {
        self.named(window.0).filter(|entry| entry.grants != 0).map(|entry| entry.base.mr)
    }

    /// Returns a key for the next bind of a type 1 window. Every call returns a new one.
    ///
    /// # Errors
    /// If the window does not exist, or is of type 2: its keys are chosen by the consumer.
    pub fn next_window_key(&mut self, window: MwIndex) -> Result<u32, Refusal> {
        let entry = self.entries.get_mut(place_of(window.0) as usize).and_then(Option::as_mut);
        let entry = entry.ok_or(Refusal::UnknownKey)?;
        let KeyKind::Window1(one) = &mut entry.kind else { return Err(Refusal::WrongKind) };
        one.reserved = one.reserved.wrapping_add(1);
        let generation = one.reserved;
        Ok(self.key_of(place_of(window.0) as u16, generation))
    }

    /// Binds a window for a work request of the QP of `user` (IBTA C10-71 to C10-76, o10-36 and o10-37).
    ///
    /// # Errors
    /// The reason of the refusal. Nothing has changed then.
    pub fn bind(&mut self, user: KeyUser, bind: &WindowBind) -> Result<(), Refusal> {
        let window = *self.find(bind.window.0).ok_or(Refusal::UnknownKey)?;
        let index = self.index_of(bind.window.0);
        //= IBTA 10.6.7 C10-72: window-is-of-the-domain
        if window.pd != user.pd {
            return Err(Refusal::OtherPd);
        }
        let generation = self.check_new_key(index, &window, bind)?;
        let region = if bind.length == 0 { None } else { Some(self.check_region(user, bind)?) };
        self.unbind(index);
        if let Some(generation) = generation {
            self.generations[usize::from(index)] = generation;
        }
        let kind = match window.kind {
            KeyKind::Window1(one) => KeyKind::Window1(One { region: region.map(|r| r.0), ..one }),
            _ => KeyKind::Window2 { region: region.map(|r| r.0) },
        };
        let of_type_2 = generation.is_none();
        let zero_based = bind.access.contains(Access::ZERO_BASED);
        let Some(entry) = &mut self.entries[usize::from(index)] else { return Err(Refusal::UnknownKey) };
        *entry = Entry { key: bind.new_key.0, kind, ..*entry };
        let Some((region, base)) = region else { return Ok(()) };
        *entry = Entry {
            //= IBTA 10.6.7: window-opens-a-part-to-peers
            grants: bind.access.bits() & !LOCAL_USE,
            qp: if of_type_2 { user.qp.0 } else { ANY_QP },
            //= IBTA 10.6.4: zero-based-region-counts-from-zero
            start: if zero_based { 0 } else { bind.address },
            length: bind.length,
            base,
            ..*entry
        };
        self.bound_to_qps += u32::from(of_type_2);
        self.count_window(region, 1);
        Ok(())
    }

    /// Unbinds all type 2 windows of a QP, which is about to be destroyed.
    pub fn release_windows(&mut self, qp: QpIndex) {
        if self.bound_to_qps == 0 {
            return;
        }
        for index in 0..self.entries.len() {
            if self.entries[index].is_some_and(|e| e.qp == qp.0) {
                self.unbind(index as u16);
            }
        }
    }

    /// Unbinds all windows of a region after its owner has ended.
    pub fn unbind_windows(&mut self, mr: MrIndex) {
        let bound = |e: &Entry| matches!(e.kind, KeyKind::Region { windows } | KeyKind::Fast { windows } if windows > 0);
        if !self.entry(mr).is_some_and(bound) {
            return;
        }
        for index in 0..self.entries.len() {
            let to_this = self.entries[index].is_some_and(|e| match e.kind {
                KeyKind::Window1(One { region, .. }) | KeyKind::Window2 { region } => {
                    region == Some(mr.place() as u16)
                }
                KeyKind::Region { .. } | KeyKind::Fast { .. } => false,
            });
            if to_this {
                self.unbind(index as u16);
            }
        }
    }

    /// Checks the window's state and its new key. Returns the generation of that key for a type 1 window.
    fn check_new_key(&self, index: u16, window: &Entry, bind: &WindowBind) -> Result<Option<u16>, Refusal> {
        match window.kind {
            KeyKind::Window1(one) => {
                //= IBTA 10.6.7 o10-36.2.2: window-1-is-not-zero-based
                if bind.access.contains(Access::ZERO_BASED) {
                    return Err(Refusal::WrongKind);
                }
                let generation = self.generation_of(index, bind.new_key.0).ok_or(Refusal::UnknownKey)?;
                let now = self.generations[usize::from(index)];
                let ahead = generation.wrapping_sub(now);
                //= IBTA 10.6.7: window-1-has-a-new-key-each-time
                let given_out = (1..=one.reserved.wrapping_sub(now)).contains(&ahead);
                if given_out { Ok(Some(generation)) } else { Err(Refusal::UnknownKey) }
            }
            KeyKind::Window2 { region } => {
                //= IBTA 10.6.7 o10-37.2.30: window-2-is-bound-when-free
                //= IBTA 10.6.7 o10-37.2.40: window-2-is-not-bound-to-nothing
                // A bind of length 0 does not invalidate a type 2 window (o10-37.2.40).
                if region.is_some() || bind.length == 0 {
                    return Err(Refusal::WrongState);
                }
                let same = (window.key ^ bind.new_key.0) >> 8 == 0;
                if same { Ok(None) } else { Err(Refusal::UnknownKey) }
            }
            KeyKind::Region { .. } | KeyKind::Fast { .. } => Err(Refusal::WrongKind),
        }
    }

    /// Checks the region of a bind. Returns its index and the place where the window begins.
    fn check_region(&self, user: KeyUser, bind: &WindowBind) -> Result<(u16, Span), Refusal> {
        let region = self.find(bind.region.0).ok_or(Refusal::UnknownKey)?;
        if !matches!(region.kind, KeyKind::Region { .. } | KeyKind::Fast { .. }) {
            return Err(Refusal::WrongKind);
        }
        if region.pd != user.pd {
            return Err(Refusal::OtherPd);
        }
        let grants = Access::from_bits_retain(region.grants);
        //= IBTA 10.6.7 C10-73: window-needs-the-bind-right
        // Windows on zero-based regions are refused, as in `rxe_mw.c`.
        if !grants.contains(Access::MW_BIND) || grants.contains(Access::ZERO_BASED) {
            return Err(Refusal::AccessDenied);
        }
        //= IBTA 10.6.7 C10-74: window-that-writes-needs-local-writing
        if needs_local_write(bind.access) && !grants.contains(Access::LOCAL_WRITE) {
            return Err(Refusal::AccessDenied);
        }
        // A window grants no more FLUSH rights than its region.
        let flush = bind.access & (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
        if !allowed(bind.access, Access::REMOTE | Access::ZERO_BASED) || !grants.contains(flush) {
            return Err(Refusal::AccessDenied);
        }
        //= IBTA 10.6.7 C10-75: window-lies-in-its-region
        let base = region.place(bind.address, bind.length, LOCAL_USE)?;
        Ok((self.index_of(bind.region.0), base))
    }

    /// Withdraws all rights of a window.
    pub(super) fn unbind(&mut self, index: u16) {
        let Some(entry) = &mut self.entries[usize::from(index)] else { return };
        let region = match &mut entry.kind {
            KeyKind::Window1(one) => one.region.take(),
            KeyKind::Window2 { region } => region.take(),
            KeyKind::Region { .. } | KeyKind::Fast { .. } => return,
        };
        self.bound_to_qps -= u32::from(entry.qp != ANY_QP);
        self.close(index);
        if let Some(region) = region {
            self.count_window(region, -1);
        }
    }
}
