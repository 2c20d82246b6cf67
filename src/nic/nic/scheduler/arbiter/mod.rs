//! The arbiter: eight transmit queues, one for each priority, and an urgent queue before them.
//!
//! A queue is either *strict*, and served before queues of lower priority, or *weighted*: it shares with other weighted
//! queues what strict queues leave (enhanced transmission selection, 802.1Qaz). Priority flow control pauses queues
//! individually. Congestion notifications are sent before everything else, through the urgent queue; so are
//! acknowledgements, if more than one priority is in use.

use std::collections::VecDeque;

use crate::transport::door;
use crate::verbs::QpIndex;
use roxie_base::time::Nanos;

/// Number of priorities (802.1Q).
pub const PRIORITIES: usize = 8;
/// Bytes per round for a queue of weight 1.
const UNIT: i64 = 512;
/// Maximum debt in bytes of a queue that had the link to itself: more than a QP sends in a turn.
const DEEPEST: i64 = 1 << 18;

/// How a queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Served before all queues of lower priority.
    Strict,
    /// Served by weight, 1 to 100, while no strict queue can send.
    Weighted(u8),
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<QpIndex>,
    service: Service,
    /// Bytes left to send in this round; negative: debt.
    credit: i64,
    /// End of the pause; zero: not paused.
    paused_until: Nanos,
}

/// The transmit queues.
#[derive(Debug)]
pub(super) struct Arbiter {
    /// QPs with an urgent notification or acknowledgement.
    urgent: VecDeque<QpIndex>,
    queues: [Queue; PRIORITIES],
    /// Bit p: queue p is not empty.
    filled: u8,
    /// Bit p: queue p is paused.
    paused: u8,
    /// Bit p: a QP has used this priority.
    used: u8,
    /// The weighted queue that is being served.
    round: usize,
}

impl Arbiter {
    /// Makes queues with room for `qps` QPs, all of which have priority 0 at first.
    pub(super) fn new(qps: usize) -> Arbiter {
        let queue = |priority| Queue {
            waiting: VecDeque::with_capacity(if priority == 0 { qps } else { 0 }),
            service: Service::Weighted(1),
            credit: 0,
            paused_until: Nanos::ZERO,
        };
        Arbiter {
            urgent: VecDeque::with_capacity(qps),
            queues: std::array::from_fn(queue),
            filled: 0,
            paused: 0,
            used: 1,
            round: 0,
        }
    }

    /// Sets how each priority is served.
    pub(super) fn set_services(&mut self, services: [Service; PRIORITIES]) {
        for (queue, service) in self.queues.iter_mut().zip(services) {
            queue.service = service;
        }
    }

    /// Prepares a priority for use by up to `qps` QPs.
    pub(super) fn prepare(&mut self, priority: u8, qps: usize) {
        self.used |= 1 << priority;
        self.reserve(priority, qps);
    }

    /// Marks a priority as used. Its queue has room.
    pub(super) fn note_use(&mut self, priority: u8) {
        self.used |= 1 << priority;
    }

    /// Reserves room in a queue for `qps` QPs.
    pub(super) fn reserve(&mut self, priority: u8, qps: usize) {
        let waiting = &mut self.queues[usize::from(priority)].waiting;
        waiting.reserve(qps.saturating_sub(waiting.len()));
    }

    /// Returns all entries of the queues, with their priorities.
    pub(super) fn all(&self) -> impl Iterator<Item = (u8, QpIndex)> {
        self.queues
            .iter()
            .zip(0..)
            .flat_map(|(queue, priority)| queue.waiting.iter().map(move |qp| (priority, *qp)))
    }

    /// Returns the entries of the urgent queue.
    pub(super) fn urgent(&self) -> impl Iterator<Item = QpIndex> {
        self.urgent.iter().copied()
    }

    /// Returns the first queue with a wrong bit in `filled`, for tests.
    pub(super) fn inconsistency(&self) -> Option<String> {
        let bit = |p: &usize| self.filled & 1 << p != 0;
        let wrong = (0..PRIORITIES).find(|p| bit(p) == self.queues[*p].waiting.is_empty())?;
        Some(format!(
            "queue {wrong} of the arbiter is taken to be {}",
            if bit(&wrong) { "filled" } else { "empty" }
        ))
    }

    /// True if acknowledgements should overtake data, since more than one priority is in use.
    pub(super) fn has_priorities(&self) -> bool {
        self.used != 1
    }

    /// True if an open queue, or the urgent queue, is not empty.
    pub(super) fn has_ready(&self) -> bool {
        self.filled & !self.paused != 0 || !self.urgent.is_empty()
    }

    pub(super) fn push(&mut self, priority: u8, qp: QpIndex) {
        let waiting = &mut self.queues[usize::from(priority)].waiting;
        invariant!(waiting.len() < waiting.capacity(), "queue {priority} has no room for another QP");
        waiting.push_back(qp);
        self.filled |= 1 << priority;
    }

    pub(super) fn push_front(&mut self, priority: u8, qp: QpIndex) {
        self.queues[usize::from(priority)].waiting.push_front(qp);
        self.filled |= 1 << priority;
    }

    /// True if this QP is the last one of the queue of this priority.
    pub(super) fn is_last(&self, priority: u8, qp: QpIndex) -> bool {
        self.queues[usize::from(priority)].waiting.back() == Some(&qp)
    }

    pub(super) fn push_urgent(&mut self, qp: QpIndex) {
        invariant!(self.urgent.len() < self.urgent.capacity(), "the urgent queue has no room for another QP");
        self.urgent.push_back(qp);
    }

    pub(super) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    pub(super) fn pop_urgent(&mut self) -> Option<QpIndex> {
        self.urgent.pop_front()
    }

    /// Removes and returns the next QP of the queue to serve.
    pub(super) fn pop(&mut self) -> Option<QpIndex> {
        let open = self.filled & !self.paused;
        if open == 0 {
            return None;
        }
        let priority =
            if open.is_power_of_two() { open.trailing_zeros() as usize } else { self.choose(open) };
        let waiting = &mut self.queues[priority].waiting;
        let qp = waiting.pop_front();
        invariant!(qp.is_some(), "queue {priority} is empty, and is taken to be filled");
        if waiting.is_empty() {
            self.filled &= !(1 << priority);
        }
        qp
    }

    /// Chooses one of several open queues.
    #[cold]
    fn choose(&mut self, open: u8) -> usize {
        let is_open = |p: &usize| open & 1 << p != 0;
        let strict = |p: &usize| self.queues[*p].service == Service::Strict;
        if let Some(priority) = (0..PRIORITIES).rev().filter(is_open).find(strict) {
            return priority;
        }
        // Deficit round robin: a queue that has used its share waits for the others.
        let share = |queue: &Queue| match queue.service {
            Service::Weighted(weight) => UNIT * i64::from(weight.max(1)),
            Service::Strict => UNIT,
        };
        if (0..PRIORITIES).filter(is_open).all(|p| self.queues[p].credit <= 0) {
            let missing = |p: usize| -self.queues[p].credit / share(&self.queues[p]) + 1;
            let rounds = (0..PRIORITIES).filter(is_open).map(missing).min().unwrap_or(1);
            for p in (0..PRIORITIES).filter(is_open) {
                self.queues[p].credit += rounds * share(&self.queues[p]);
            }
        }
        let may_send = |p: &usize| is_open(p) && self.queues[*p].credit > 0;
        let turn = (self.round..self.round + PRIORITIES).map(|p| p % PRIORITIES).find(may_send);
        self.round = turn.unwrap_or(self.round);
        invariant!(is_open(&self.round), "queue {} has a turn, and is not open", self.round);
        self.round
    }

    /// Charges a queue for a frame of `bytes`.
    #[inline]
    pub(super) fn charge(&mut self, priority: u8, bytes: usize) {
        if self.used != 1 {
            let credit = &mut self.queues[usize::from(priority)].credit;
            *credit = (*credit - bytes as i64).max(-DEEPEST);
        }
    }

    /// Removes all entries of a QP.
    pub(super) fn remove(&mut self, qp: QpIndex) {
        self.urgent.retain(|waiting| *waiting != qp);
        for priority in 0..PRIORITIES as u8 {
            self.remove_waiting(priority, qp);
        }
    }

    /// Removes a QP from the queue of this priority, but not from the urgent queue.
    pub(super) fn remove_waiting(&mut self, priority: u8, qp: QpIndex) {
        let waiting = &mut self.queues[usize::from(priority)].waiting;
        waiting.retain(|other| *other != qp);
        if waiting.is_empty() {
            self.filled &= !(1 << priority);
        }
    }

    /// True if a priority is paused.
    pub(super) fn has_paused(&self) -> bool {
        self.paused != 0
    }

    /// True if this priority is paused.
    pub(super) fn is_paused(&self, priority: u8) -> bool {
        self.paused & 1 << priority != 0
    }

    /// Pauses a priority until `until`. A time that is not after `now` ends the pause.
    pub(super) fn pause(&mut self, now: Nanos, priority: u8, until: Nanos) {
        let until = door::pause_end(now, until);
        invariant!(until != Nanos::MAX, "priority {priority} is paused for ever");
        self.queues[usize::from(priority)].paused_until = until;
        if now < until {
            self.paused |= 1 << priority;
        } else {
            self.paused &= !(1 << priority);
        }
    }

    /// Ends the pauses that are over.
    pub(super) fn resume(&mut self, now: Nanos) {
        for (priority, queue) in self.queues.iter().enumerate() {
            let has_end = self.paused & 1 << priority == 0 || queue.paused_until > Nanos::ZERO;
            invariant!(has_end, "priority {priority} is paused, and was never");
            let is_over = queue.paused_until <= now;
            if self.paused & 1 << priority != 0 && is_over {
                self.paused &= !(1 << priority);
            }
        }
    }

    /// Returns the end of the first pause of a queue that is not empty; `MAX`: there is none.
    pub(super) fn next_resume(&self) -> Nanos {
        let waits = |p: &usize| self.paused & self.filled & 1 << p != 0;
        (0..PRIORITIES).filter(waits).map(|p| self.queues[p].paused_until).min().unwrap_or(Nanos::MAX)
    }
}

#[cfg(test)]
mod tests;
