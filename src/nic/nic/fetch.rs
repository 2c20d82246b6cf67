//! Fetches work requests from the application's memory: a bounded number for each QP in a pass, however many the
//! application posts meanwhile.

use super::{Nic, QpEntry, split};
use crate::shared::{ClientDoorbells, Doorbells};
use crate::verbs::QpIndex;
use roxie_base::time::Nanos;

impl Nic {
    /// Fetches the work requests of the QPs that rang their doorbells. True if some have more.
    pub fn fetch_posted(&mut self, now: Nanos, bells: &Doorbells, guests: &ClientDoorbells) -> bool {
        let mut more = false;
        // Fetching adds no entries to this list.
        while let Some(index) = self.scheduler.take_unfetched() {
            let Some(entry) = self.qps.get_mut(index.0) else { continue };
            entry.schedule.fetched();
            match entry.sends.page() {
                // Fetched in the order of its client's doorbell page, within the page's budget.
                Some(page) => guests.ring(page, index),
                None => more |= self.fetch_in_turn(now, index, bells),
            }
        }
        bells.take(|place| more |= self.fetch_in_turn(now, place, bells));
        let budget = self.config.limits.tx_burst as usize;
        more | guests.take(budget, |page, place| match self.qps.get(place.0) {
            Some(entry) if entry.sends.page() == Some(page) => self.fetch(now, place),
            _ => (1, false),
        })
    }

    fn fetch_in_turn(&mut self, now: Nanos, index: QpIndex, bells: &Doorbells) -> bool {
        let (_, more) = self.fetch(now, index);
        if more {
            bells.ring(index);
        }
        more
    }

    /// True if work requests can be fetched without a doorbell.
    pub fn has_unfetched(&self) -> bool {
        self.scheduler.has_unfetched()
    }

    /// Fetches up to `fetch_burst` work requests of a QP, and flushes as many in an error state. Returns the larger of
    /// both counts, and true if there are more to fetch.
    pub(super) fn fetch(&mut self, now: Nanos, index: QpIndex) -> (usize, bool) {
        let burst = self.config.limits.fetch_burst;
        let Some(entry) = self.qps.get_mut(index.0) else { return (0, false) };
        let (index, before) = (entry.qp.index, entry.fetched);
        if !entry.qp.takes_sends() {
            return (0, false);
        }
        for _ in 0..entry.sends.waiting(entry.fetched).min(burst) {
            let QpEntry { qp, sends, fetched, .. } = &mut *entry;
            if !qp.has_send_place() {
                break;
            }
            let addressed = qp.has_addresses();
            qp.post_send(|wr, sges, inline| sends.copy_out(*fetched, addressed, wr, sges, inline));
            *fetched = fetched.wrapping_add(1);
        }
        let mut flushed = 0;
        if entry.parked.is_none() && entry.needs_flush(&self.srqs) {
            split!(self, now, entry => qp, ctx);
            // `update_changed` sees to what is left.
            flushed = qp.flush(&mut ctx, burst);
        }
        let more = entry.sends.has(entry.fetched) && entry.qp.has_send_place();
        let fetched = entry.fetched.wrapping_sub(before) as usize;
        self.mark_changed(index);
        (fetched.max(flushed as usize), more)
    }
}
