//! The scheduler: which QP has a turn, which has an expired timer, and which has changed.
//!
//! Each QP has a [`Schedule`], whose flags mirror the scheduler's lists: a QP stands in a list at most once. Only this
//! module changes either, so that both agree between two calls.
//!
//! ```text
//! mark_changed -> take_changed -> clear_changed  changed since the last `Nic::update_changed`
//! fetch_later -> take_unfetched -> fetched       has work requests to fetch or to flush
//! set_timer, hold -> expired                     retransmission timer; release of paced data
//! make_ready, make_urgent -> next -> end_turn    has packets to send
//! ```

mod arbiter;

pub use arbiter::{PRIORITIES, Service};

use crate::timer::TimerWheel;
use crate::transport::door;
use crate::verbs::QpIndex;
use arbiter::Arbiter;
use roxie_base::time::Nanos;

/// Tick of the wheel of paced QPs: 2^7 = 128 ns, less than the time of a packet on a fast link.
const RELEASE_TICK_BITS: u32 = 7;

/// The scheduler's state of one QP.
#[derive(Debug)]
pub(super) struct Schedule {
    index: QpIndex,
    /// The QP is in the arbiter's queue of its priority.
    ready: bool,
    /// The QP is in the arbiter's urgent queue.
    urgent: bool,
    /// The next packet has another priority: the QP moves to its queue at the end of the turn.
    moved: bool,
    /// The priority of the QP's packets, 0 to 7.
    priority: u8,
    changed: bool,
    unfetched: bool,
    /// Expiry of the entry in the timer wheel; `MAX`: there is none.
    timer_at: Nanos,
    /// Expiry of the entry in the wheel of paced QPs; `MAX`: there is none.
    release_at: Nanos,
}

impl Schedule {
    /// The state of a new QP, of priority 0.
    pub(super) fn new(index: QpIndex) -> Schedule {
        Schedule {
            index,
            ready: false,
            urgent: false,
            moved: false,
            priority: 0,
            changed: false,
            unfetched: false,
            timer_at: Nanos::MAX,
            release_at: Nanos::MAX,
        }
    }

    /// True if the QP is in the arbiter's queue of its priority.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// True if the QP has changed since the NIC last looked after it.
    pub(super) fn is_touched(&self) -> bool {
        self.changed
    }

    /// True if the QP is in the list of QPs to fetch from or to flush.
    pub(super) fn is_unfetched(&self) -> bool {
        self.unfetched
    }

    /// Expiry of the timer, and of the release of paced data; `MAX`: not set.
    pub(super) fn deadlines(&self) -> (Nanos, Nanos) {
        (self.timer_at, self.release_at)
    }

    /// Records that the NIC looks after the QP now.
    #[inline]
    pub(super) fn clear_changed(&mut self) {
        debug_assert!(self.changed, "it was in the list");
        self.changed = false;
    }

    /// Records that the QP's work requests are fetched now.
    #[inline]
    pub(super) fn fetched(&mut self) {
        debug_assert!(self.unfetched, "it was in the list");
        self.unfetched = false;
    }

    /// Records that the timer has expired.
    pub(super) fn timer_expired(&mut self) {
        debug_assert_ne!(self.timer_at, Nanos::MAX, "it was in the wheel");
        self.timer_at = Nanos::MAX;
    }

    /// Records that the release of paced data was due.
    pub(super) fn released(&mut self) {
        debug_assert_ne!(self.release_at, Nanos::MAX, "it was in the wheel");
        self.release_at = Nanos::MAX;
    }
}

/// Lists of QPs by what they wait for.
#[derive(Debug)]
pub(super) struct Scheduler {
    /// QPs that have something to send.
    arbiter: Arbiter,
    /// The current turn is for an urgent packet only.
    urgent_turn: bool,
    /// More than acknowledgements may be ready to send.
    presses: bool,
    /// Deadlines of retransmission and RNR timers.
    timers: TimerWheel,
    /// Release times of paced QPs. Has room for QPs once one of them is paced.
    releases: TimerWheel,
    /// The memory of the list of expired timers.
    due: Vec<QpIndex>,
    changed: Vec<QpIndex>,
    unfetched: Vec<QpIndex>,
}

impl Scheduler {
    /// A scheduler of up to `qps` QPs.
    pub(super) fn new(qps: u32) -> Scheduler {
        let list = || Vec::with_capacity(qps as usize);
        Scheduler {
            arbiter: Arbiter::new(qps as usize),
            urgent_turn: false,
            presses: false,
            timers: TimerWheel::new(qps),
            releases: TimerWheel::with_tick(0, RELEASE_TICK_BITS),
            due: list(),
            changed: list(),
            unfetched: list(),
        }
    }

    /// Removes a QP that is destroyed from all lists: the next QP in its slot would be taken for it.
    pub(super) fn remove(&mut self, qp: &Schedule) {
        self.timers.cancel(qp.index.place());
        if qp.release_at != Nanos::MAX {
            self.releases.cancel(qp.index.place());
        }
        if qp.ready || qp.urgent {
            self.arbiter.remove(qp.index);
        }
        if qp.changed {
            self.changed.retain(|changed| *changed != qp.index);
        }
        if qp.unfetched {
            self.unfetched.retain(|unfetched| *unfetched != qp.index);
        }
        invariant!(!self.is_timed(qp.index.place()), "a timer runs for QP {}, which is gone", qp.index.0);
    }
}

/// Changes, and work requests to fetch.
impl Scheduler {
    /// Marks a QP that has changed.
    #[inline(always)]
    pub(super) fn mark_changed(&mut self, qp: &mut Schedule) {
        if !qp.changed {
            invariant!(self.changed.len() < self.changed.capacity(), "more QPs have changed than there are");
            qp.changed = true;
            self.changed.push(qp.index);
        }
    }

    /// Takes a QP that has changed. Caller must call [`Schedule::clear_changed`].
    #[inline]
    pub(super) fn take_changed(&mut self) -> Option<QpIndex> {
        self.changed.pop()
    }

    /// Marks a QP that is to be fetched from, or flushed, although it rings no doorbell.
    pub(super) fn fetch_later(&mut self, qp: &mut Schedule) {
        if !std::mem::replace(&mut qp.unfetched, true) {
            let has_room = self.unfetched.len() < self.unfetched.capacity();
            invariant!(has_room, "more QPs are to be fetched from than there are");
            self.unfetched.push(qp.index);
        }
    }

    /// Takes a QP to fetch from or to flush. Caller must call [`Schedule::fetched`].
    #[inline]
    pub(super) fn take_unfetched(&mut self) -> Option<QpIndex> {
        self.unfetched.pop()
    }

    /// True if work requests can be fetched without a doorbell.
    #[inline]
    pub(super) fn has_unfetched(&self) -> bool {
        !self.unfetched.is_empty()
    }
}

/// Timers.
impl Scheduler {
    /// Has a QP's timer expire at `deadline`, unless it expires earlier.
    #[inline]
    pub(super) fn set_timer(&mut self, qp: &mut Schedule, deadline: Nanos) {
        if deadline < qp.timer_at {
            qp.timer_at = deadline;
            self.timers.set(qp.index.place(), deadline);
            invariant!(self.is_timed(qp.index.place()), "QP {} has no timer", qp.index.0);
        }
    }

    /// Has a paced QP's data released at `until`, unless it is released earlier.
    pub(super) fn hold(&mut self, qp: &mut Schedule, until: Nanos) {
        if until < qp.release_at {
            qp.release_at = until;
            self.releases.set(qp.index.place(), until);
            invariant!(self.holds_back(), "held data is not released");
        }
    }

    /// Prepares for a QP that is paced.
    pub(super) fn expect_holds(&mut self, qp: &Schedule) {
        self.releases.grow(qp.index.place() + 1);
    }

    /// Returns the QPs whose timers have expired, in order of time; `name` returns the QP of a table slot. Caller must
    /// call [`Schedule::timer_expired`] for each, and then [`return_list`](Self::return_list).
    #[inline]
    pub(super) fn expired(&mut self, now: Nanos, name: impl Fn(u32) -> QpIndex) -> Vec<QpIndex> {
        let mut due = std::mem::take(&mut self.due);
        self.timers.advance(now, |place| due.push(name(place)));
        due
    }

    /// Ends pauses that are over, and returns the QPs whose paced data is due, in order of time. Caller must call
    /// [`Schedule::released`] for each, and then [`return_list`](Self::return_list).
    pub(super) fn releases(&mut self, now: Nanos, name: impl Fn(u32) -> QpIndex) -> Vec<QpIndex> {
        self.arbiter.resume(now);
        let mut due = std::mem::take(&mut self.due);
        self.releases.advance(now, |place| due.push(name(place)));
        due
    }

    /// Takes the memory of a list back.
    #[inline]
    pub(super) fn return_list(&mut self, mut due: Vec<QpIndex>) {
        invariant!(self.due.capacity() == 0, "a list of expired timers is returned twice");
        due.clear();
        self.due = due;
    }

    /// Returns when the next timer expires, or a little earlier; `MAX`: none is set.
    #[inline]
    pub(super) fn next_timer(&self) -> Nanos {
        self.timers.next_deadline()
    }

    /// True if paced data or a priority is held back.
    #[inline]
    pub(super) fn holds_back(&self) -> bool {
        !self.releases.is_empty() || self.arbiter.has_paused()
    }

    /// Returns when held data may be sent; `MAX`: none is held.
    pub(super) fn next_release(&self) -> Nanos {
        self.releases.next_deadline().min(self.arbiter.next_resume())
    }
}

/// Turns.
impl Scheduler {
    /// True if a QP has something to send.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        self.arbiter.has_ready()
    }

    /// True if a QP may have more than acknowledgements to send.
    #[inline]
    pub(super) fn has_pressing(&self) -> bool {
        self.presses && self.has_ready()
    }

    /// True if acknowledgements should overtake data, since more than one priority is in use.
    #[inline]
    pub(super) fn has_priorities(&self) -> bool {
        self.arbiter.has_priorities()
    }

    /// Puts a QP into the queue of its priority. `presses`: it may have more than acknowledgements to send.
    #[inline]
    pub(super) fn make_ready(&mut self, qp: &mut Schedule, presses: bool) {
        debug_assert!(!qp.ready, "a QP is in its queue once");
        qp.ready = true;
        self.presses |= presses;
        self.arbiter.push(qp.priority, qp.index);
    }

    /// Puts a QP into the urgent queue, ahead of data.
    pub(super) fn make_urgent(&mut self, qp: &mut Schedule) {
        if !std::mem::replace(&mut qp.urgent, true) {
            self.arbiter.push_urgent(qp.index);
        }
    }

    /// True if the QP's priority is paused.
    pub(super) fn is_paused(&self, qp: &Schedule) -> bool {
        self.arbiter.is_paused(qp.priority)
    }

    /// Takes the QP whose turn it is, for any of its packets.
    #[inline]
    pub(super) fn next(&mut self) -> Option<QpIndex> {
        invariant!(!self.urgent_turn, "a turn begins in an urgent one");
        let next = self.arbiter.pop();
        self.presses &= next.is_some();
        next
    }

    /// True if a QP is in the urgent queue.
    #[inline]
    pub(super) fn has_urgent(&self) -> bool {
        self.arbiter.has_urgent()
    }

    /// Takes the next QP of the urgent queue. Caller must call [`begin_urgent`](Self::begin_urgent) or
    /// [`skip_urgent`](Self::skip_urgent).
    pub(super) fn next_urgent(&mut self) -> Option<QpIndex> {
        self.arbiter.pop_urgent()
    }

    /// Skips a QP of the urgent queue, which has nothing urgent that may be sent.
    pub(super) fn skip_urgent(&mut self, qp: &mut Schedule) {
        debug_assert!(qp.urgent, "it was in the queue");
        qp.urgent = false;
    }

    /// Begins a turn for urgent packets only.
    pub(super) fn begin_urgent(&mut self, qp: &mut Schedule) {
        debug_assert!(qp.urgent, "it was in the queue");
        invariant!(!self.urgent_turn, "an urgent turn begins in another");
        qp.urgent = false;
        self.urgent_turn = true;
    }

    /// True if the current turn is for urgent packets only.
    #[inline]
    pub(super) fn is_urgent_turn(&self) -> bool {
        self.urgent_turn
    }

    /// Ends a turn for urgent packets; a QP with more of them is to [`hurry`](Self::hurry).
    pub(super) fn end_urgent(&mut self) {
        invariant!(self.urgent_turn, "an urgent turn ends that has not begun");
        self.urgent_turn = false;
    }

    /// Ends a QP's turn. `unfinished`: it gets another one.
    #[inline]
    pub(super) fn end_turn(&mut self, qp: &mut Schedule, unfinished: bool) {
        debug_assert!(qp.ready, "a QP that has a turn is marked until it ends");
        let unfinished = unfinished || (qp.moved && std::mem::take(&mut qp.moved));
        qp.ready = unfinished;
        self.presses |= unfinished;
        if unfinished && door::precedes_others() {
            self.arbiter.push_front(qp.priority, qp.index);
        } else if unfinished {
            self.arbiter.push(qp.priority, qp.index);
        }
        let is_last = !unfinished || self.arbiter.is_last(qp.priority, qp.index);
        invariant!(is_last, "an unfinished QP gets its next turn before others");
    }

    /// Charges a QP's priority for a frame of `bytes`.
    #[inline]
    pub(super) fn charge(&mut self, qp: &Schedule, bytes: usize) {
        self.arbiter.charge(qp.priority, bytes);
    }
}

/// Priorities.
impl Scheduler {
    /// Gives a QP another priority. `qps`: the size of the QP table.
    pub(super) fn set_priority(&mut self, qp: &mut Schedule, priority: u8, qps: u32) {
        let before = std::mem::replace(&mut qp.priority, priority);
        if before == priority {
            return;
        }
        self.arbiter.prepare(priority, qps as usize);
        if qp.ready {
            self.arbiter.remove_waiting(before, qp.index);
            self.arbiter.push(priority, qp.index);
        }
    }

    /// Gives a QP another priority during its turn, after which it waits in that queue. True: it had another.
    pub(super) fn move_to(&mut self, qp: &mut Schedule, priority: u8) -> bool {
        let differs = priority != qp.priority;
        if differs {
            (qp.priority, qp.moved) = (priority, true);
            self.arbiter.note_use(priority);
        }
        differs
    }

    /// Reserves room for all QPs, `qps` of them, in the queue of a priority.
    pub(super) fn reserve(&mut self, priority: u8, qps: u32) {
        self.arbiter.reserve(priority, qps as usize);
    }

    /// Sets how each priority is served.
    pub(super) fn set_services(&mut self, services: [Service; PRIORITIES]) {
        self.arbiter.set_services(services);
    }

    /// Pauses a priority until `until`. A time that is not after `now` ends the pause.
    pub(super) fn pause(&mut self, now: Nanos, priority: u8, until: Nanos) {
        self.arbiter.pause(now, priority, until);
    }

    /// True if this priority is paused.
    pub(super) fn is_priority_paused(&self, priority: u8) -> bool {
        self.arbiter.is_paused(priority)
    }
}

/// Checks, for tests.
impl Scheduler {
    /// Returns what is wrong with the arbiter's queues, if anything is.
    pub(super) fn inconsistency(&self) -> Option<String> {
        self.arbiter.inconsistency()
    }

    /// The QPs in the arbiter's queues.
    pub(super) fn waiting(&self) -> impl Iterator<Item = QpIndex> {
        self.arbiter.all().map(|(_, qp)| qp).chain(self.arbiter.urgent())
    }

    /// True if the QP in this slot of the table has a timer.
    pub(super) fn is_timed(&self, place: u32) -> bool {
        self.timers.is_set(place) || self.releases.is_set(place)
    }

    /// Returns how the flags of a QP and the lists disagree, if they do.
    pub(super) fn disagrees(&self, qp: &Schedule) -> Option<String> {
        let is_it = |other: &QpIndex| *other == qp.index;
        let places: Vec<u8> = self.arbiter.all().filter(|(_, other)| is_it(other)).map(|(p, _)| p).collect();
        let due: &[u8] = if qp.ready { &[qp.priority] } else { &[] };
        let urgent = self.arbiter.urgent().filter(is_it).count();
        let changed = self.changed.iter().filter(|other| is_it(other)).count();
        let unfetched = self.unfetched.iter().filter(|other| is_it(other)).count();
        let place = qp.index.place();
        let checks = [
            ("places in the arbiter's queues", places == due),
            ("places among the urgent", urgent == usize::from(qp.urgent)),
            ("places among those that have changed", changed == usize::from(qp.changed)),
            ("places among those to fetch from", unfetched == usize::from(qp.unfetched)),
            ("entry in the timer wheel", self.timers.is_set(place) == (qp.timer_at != Nanos::MAX)),
            ("entry in the wheel of paced QPs", self.releases.is_set(place) == (qp.release_at != Nanos::MAX)),
        ];
        let (what, _) = checks.into_iter().find(|(_, agrees)| !agrees)?;
        Some(format!("its {what} and its flags disagree: {qp:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_qp_is_in_no_list() {
        let mut scheduler = Scheduler::new(1);
        let mut qp = Schedule::new(QpIndex(0));
        scheduler.mark_changed(&mut qp);
        scheduler.fetch_later(&mut qp);
        scheduler.make_urgent(&mut qp);
        assert!(scheduler.has_unfetched());
        scheduler.remove(&qp);
        assert_eq!((scheduler.take_changed(), scheduler.take_unfetched()), (None, None));
        assert_eq!(scheduler.disagrees(&Schedule::new(QpIndex(0))), None);
    }
}
