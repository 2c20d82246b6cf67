//! The NIC's completion queues: publishing completions, and raising their events.
//!
//! Moderation delays events, never completions. After the first completion that an armed queue asked for, the event
//! waits until `count` completions have come or `period` is over. A completion in error ends the wait. The queue is
//! disarmed at the first completion. An application that polls and arms again meanwhile therefore gets one more event,
//! and loses none.

use super::Nic;
use super::command::{Answer, ControlError};
use super::object::{Object, ObjectKind};
use super::table::Table;
use crate::shared::{CompletionRing, EventCounter, Move};
use crate::transport::coverage::EventEffect;
use crate::transport::door;
use crate::verbs::{AsyncEvent, CqIndex, EventKind, Wc, WcStatus};
use roxie_base::limits::MAX_CQE;
use roxie_base::time::Nanos;

#[derive(Debug)]
struct CqEntry {
    ring: CompletionRing,
    notify: Option<Box<EventCounter>>,
    /// Number of QPs and shared receive queues that complete here.
    users: u32,
    failed: bool,
    moderation: Option<Box<Moderation>>,
    /// The move to a ring of another size that is in progress.
    moving: Option<Box<Move>>,
}

/// Completions that move in one pass of a resize: 0.3 ms at most (measured in a virtual machine).
const MOVES: u64 = 4096;

/// Parameters of moderation, and the delayed event.
#[derive(Debug)]
struct Moderation {
    count: u32,
    period: Nanos,
    /// Completions counted for the delayed event; 0: none is delayed.
    held: u32,
    /// When the delayed event is due.
    due: Nanos,
}

impl Moderation {
    /// Counts a completion. Returns its effect on the event.
    fn note(&mut self, now: Nanos, ring: &CompletionRing, wc: &Wc) -> EventEffect {
        if self.held == 0 {
            if !ring.disarm_for(wc) {
                return EventEffect::Unasked;
            }
            self.due = now + self.period;
        }
        invariant!(self.held < self.count, "an event waits for {} completions of {}", self.held, self.count);
        self.held += 1;
        let effect = match self.held {
            _ if wc.status != WcStatus::Success => EventEffect::ByFailure,
            held if held >= self.count => EventEffect::ByCount,
            1 => EventEffect::HeldBack,
            _ => EventEffect::Joined,
        };
        if effect.raises() {
            self.release();
        }
        // A period without end is due at the end of time, too.
        invariant!(
            self.held > 0 || self.due == Nanos::MAX,
            "an event that waits for nothing is due at {}",
            self.due
        );
        effect
    }

    fn release(&mut self) {
        self.held = 0;
        self.due = Nanos::MAX;
    }
}

impl CqEntry {
    fn new(ring: CompletionRing, notify: Option<EventCounter>) -> CqEntry {
        CqEntry {
            ring,
            notify: notify.map(Box::new),
            users: 0,
            failed: false,
            moderation: None,
            moving: None,
        }
    }

    fn wake(&self) {
        if let Some(channel) = &self.notify {
            channel.raise();
        }
    }
}

/// True if an effect of `times` completions raises their event.
#[inline(always)]
fn raises(effect: EventEffect, times: usize) -> bool {
    door::event(effect, times);
    times > 0 && effect.raises()
}

/// Numbers of published completions, which wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// All completions.
    pub completions: u32,
    /// Completions of receives.
    pub receives: u32,
}

impl Published {
    fn note(&mut self, wc: &Wc) {
        self.completions = self.completions.wrapping_add(1);
        self.receives = self.receives.wrapping_add(u32::from(wc.opcode.is_receive()));
    }
}

/// The completion queues of a NIC.
#[derive(Debug)]
pub(super) struct CompletionQueues {
    table: Table<CqEntry>,
    limit: u32,
    /// When the next delayed event is due; `MAX`: none is.
    events_due: Nanos,
    /// Queues that have overflowed, until their QPs are failed.
    overrun: Vec<CqIndex>,
    published: Published,
}

impl CompletionQueues {
    /// Room for `limit` queues.
    pub(super) fn new(limit: u32) -> CompletionQueues {
        CompletionQueues {
            table: Table::new(limit),
            limit,
            events_due: Nanos::MAX,
            overrun: Vec::new(),
            published: Published::default(),
        }
    }

    /// When the next delayed event is due; `MAX`: none is.
    pub(super) fn events_due(&self) -> Nanos {
        self.events_due
    }

    /// Number of queues.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// True if a queue has this name.
    pub(super) fn holds(&self, cq: CqIndex) -> bool {
        self.table.holds(cq.0)
    }

    /// Returns the user counts of the queues.
    pub(super) fn users(&self) -> impl Iterator<Item = (u32, u32)> {
        self.table.iter().map(|(index, entry)| (index, entry.users))
    }

    /// Adds `change` to a queue's user count.
    ///
    /// # Errors
    /// If there is no such queue.
    pub(super) fn use_cq(&mut self, cq: CqIndex, change: i32) -> Result<(), ControlError> {
        let entry = self.get_mut(cq)?;
        invariant!(entry.users.checked_add_signed(change).is_some(), "{} users and {change}", entry.users);
        entry.users = entry.users.saturating_add_signed(change);
        Ok(())
    }

    /// # Errors
    /// If there is no such queue.
    pub(super) fn check(&self, cq: CqIndex) -> Result<(), ControlError> {
        self.table.get(cq.0).map(drop).ok_or(ControlError::NotFound(ObjectKind::CompletionQueue))
    }

    fn get_mut(&mut self, cq: CqIndex) -> Result<&mut CqEntry, ControlError> {
        self.table.get_mut(cq.0).ok_or(ControlError::NotFound(ObjectKind::CompletionQueue))
    }

    /// Writes consecutive completions of one queue. Returns how many did not fit.
    fn push_run(&mut self, now: Nanos, cq: CqIndex, run: &[(CqIndex, Wc)]) -> usize {
        let wcs = run.iter().map(|(_, wc)| wc);
        wcs.clone().for_each(|wc| self.published.note(wc));
        let Some(entry) = self.table.get_mut(cq.0) else { return 0 };
        // After an overflow no more completions are written: a gap would look like success.
        let pushed = if entry.failed { 0 } else { entry.ring.push_all(wcs.clone(), now.0) };
        if let Some(moving) = &mut entry.moving {
            moving.add(pushed);
        }
        invariant!(pushed <= run.len(), "{pushed} completions are published of {}", run.len());
        let lost = run.len() - pushed;
        if lost > 0 && !std::mem::replace(&mut entry.failed, true) {
            self.overrun.push(cq);
        }
        if entry.ring.is_mapped() {
            entry.ring.wake_pollers();
        }
        if entry.notify.is_none() {
            return lost;
        }
        let pushed = wcs.take(pushed);
        let wakes = match &mut entry.moderation {
            None => {
                let count = pushed.len();
                let wakes = usize::from(count > 0 && entry.ring.disarm_for_any(pushed));
                raises(EventEffect::AtOnce, wakes) | raises(EventEffect::Unasked, count - wakes)
            }
            Some(moderation) => {
                let mut note = |wc| raises(moderation.note(now, &entry.ring, wc), 1);
                let wakes = pushed.fold(false, |wakes, wc| note(wc) | wakes);
                self.events_due = self.events_due.min(moderation.due);
                wakes
            }
        };
        if wakes {
            entry.wake();
        }
        lost
    }

    /// Raises the delayed events that are due.
    #[cold]
    pub(super) fn release_events(&mut self, now: Nanos) {
        self.events_due = Nanos::MAX;
        for index in 0..self.table.places() {
            let Some(entry) = self.table.get_mut(index) else { continue };
            let Some(moderation) = &mut entry.moderation else { continue };
            if moderation.due > now {
                self.events_due = self.events_due.min(moderation.due);
                continue;
            }
            invariant!(moderation.held > 0, "an event is due that is not held back");
            moderation.release();
            if raises(EventEffect::ByTime, 1) {
                entry.wake();
            }
        }
    }

    pub(super) fn create(
        &mut self,
        ring: CompletionRing,
        notify: Option<EventCounter>,
    ) -> Result<Answer, ControlError> {
        check_size(&ring)?;
        let full = ControlError::Full { object: ObjectKind::CompletionQueue, limit: self.limit };
        let cq = self.table.insert(CqEntry::new(ring, notify)).ok_or(full)?;
        Ok(Answer::Cq(CqIndex(cq)))
    }

    /// Begins to move a completion queue to another ring; [`Nic::go_on_moving`] does it.
    pub(super) fn resize(&mut self, cq: CqIndex, ring: CompletionRing) -> Result<Answer, ControlError> {
        check_size(&ring)?;
        let entry = self.get_mut(cq)?;
        if entry.moving.is_some() {
            return Err(ControlError::Taken("size of the completion queue"));
        }
        let size = ring.capacity();
        let too_small = |holds| ControlError::TooSmall { object: ObjectKind::CompletionQueue, size, holds };
        entry.moving = Some(Box::new(entry.ring.begin_move(ring).map_err(too_small)?));
        Ok(Answer::Moving(Object::Cq(cq)))
    }

    /// Moves some completions of a queue that is moving. `None`: more are left. Success means that all have moved, or
    /// that the queue has overflowed.
    fn go_on_moving(&mut self, cq: CqIndex) -> Option<Result<Answer, ControlError>> {
        let entry = self.get_mut(cq).ok().and_then(|entry| entry.moving.take().map(|moving| (entry, moving)));
        let Some((entry, mut moving)) = entry else {
            return Some(Err(ControlError::NotFound(ObjectKind::CompletionQueue)));
        };
        let moved = moving.go_on(&entry.ring, MOVES);
        if moved == Ok(false) {
            entry.moving = Some(moving);
            return None;
        }
        entry.ring = moving.ring().clone();
        if moved.is_err() && !std::mem::replace(&mut entry.failed, true) {
            self.overrun.push(cq);
        }
        Some(Ok(Answer::Done))
    }

    pub(super) fn moderate(
        &mut self,
        cq: CqIndex,
        count: u32,
        period: Nanos,
    ) -> Result<Answer, ControlError> {
        if count > 1 && period == Nanos::ZERO {
            return Err(ControlError::WrongKind(
                "an event that waits for several completions needs a period, or it may wait for ever",
            ));
        }
        let entry = self.get_mut(cq)?;
        // Raise an event that was delayed under the previous parameters.
        let is_held = entry.moderation.as_ref().is_some_and(|moderation| moderation.held > 0);
        if raises(EventEffect::ByCommand, usize::from(is_held)) {
            entry.wake();
        }
        let moderation = || Box::new(Moderation { count, period, held: 0, due: Nanos::MAX });
        entry.moderation = (count > 1).then(moderation);
        Ok(Answer::Done)
    }

    /// # Errors
    /// If there is no such queue, or it is used.
    pub(super) fn check_unused(&self, cq: CqIndex) -> Result<(), ControlError> {
        let object = ObjectKind::CompletionQueue;
        match self.table.get(cq.0).ok_or(ControlError::NotFound(object))?.users {
            0 => Ok(()),
            users => Err(ControlError::Busy { object, users }),
        }
    }

    /// Destroys a queue that is not used. A resize in progress ends with the queue.
    pub(super) fn destroy(&mut self, cq: CqIndex) -> Result<Answer, ControlError> {
        self.check_unused(cq)?;
        self.table.remove(cq.0);
        Ok(Answer::Done)
    }
}

impl Nic {
    /// Returns the numbers of completions published so far.
    pub fn published(&self) -> Published {
        self.cqs.published
    }

    /// Writes completions to their queues. Fails the users of queues that overflow, which makes more completions.
    pub(super) fn push_completions(&mut self, now: Nanos) {
        let mut completions = std::mem::take(&mut self.out.completions);
        for run in completions.chunk_by(|(cq, _), (next, _)| cq == next) {
            let Some((cq, _)) = run.first() else { continue };
            self.counters.cq_overflow += self.cqs.push_run(now, *cq, run) as u64;
        }
        completions.clear();
        self.out.completions = completions;
        self.handle_overruns(now);
    }

    /// Moves QPs that complete to an overflowed queue to the error state (IBTA 11.6.3.2).
    fn handle_overruns(&mut self, now: Nanos) {
        while let Some(cq) = self.cqs.overrun.pop() {
            let has_failed = self.cqs.table.get(cq.0).is_some_and(|entry| entry.failed);
            invariant!(has_failed, "completion queue {} has overflowed, and goes on", cq.0);
            //= IBTA 11.6.3.2: cq-overflow-is-an-event
            self.out.events.push(AsyncEvent::Cq(cq, EventKind::CqError));
            self.fail_users_of_cq(now, cq);
        }
    }

    fn fail_users_of_cq(&mut self, now: Nanos, cq: CqIndex) {
        for place in 0..self.qps.places() {
            let user = self.qps.get(place).filter(|e| e.qp.send_cq == cq || e.qp.recv_cq() == cq);
            if let Some(user) = user.map(|entry| entry.qp.index) {
                self.fail_qp(now, user);
            }
        }
        self.srqs.fail_users_of(cq);
        self.report_srqs(now);
        self.update_changed(now);
    }

    /// Fails the users of a queue that has failed at another worker of the device, which raises the event.
    pub fn fail_queue(&mut self, now: Nanos, queue: Object) {
        match queue {
            Object::Cq(cq) if self.cqs.holds(cq) => self.fail_cq(now, cq),
            // QPs fail with the next `publish`.
            Object::Srq(srq) if self.srqs.holds(srq) => self.srqs.fail(srq),
            _ => {}
        }
    }

    fn fail_cq(&mut self, now: Nanos, cq: CqIndex) {
        let entry = self.cqs.table.get_mut(cq.0).filter(|entry| !entry.failed);
        if let Some(entry) = entry {
            entry.failed = true;
            self.fail_users_of_cq(now, cq);
        }
    }

    /// Wakes all threads that wait for completions: none will come.
    pub fn wake_all(&self) {
        for (_, cq) in self.cqs.table.iter() {
            cq.wake();
        }
    }

    /// Moves some entries of a queue that [is moving](Answer::Moving). `None`: more are left.
    pub fn go_on_moving(&mut self, now: Nanos, queue: Object) -> Option<Result<Answer, ControlError>> {
        let moved = match queue {
            Object::Cq(cq) => self.cqs.go_on_moving(cq),
            Object::Srq(srq) => self.srqs.go_on_moving(srq),
            other => Some(Err(ControlError::NotFound(other.kind()))),
        };
        self.counters.cq_overflow += self.cqs.overrun.len() as u64;
        self.handle_overruns(now);
        moved
    }
}

/// # Errors
/// [`ControlError::TooLarge`]: a client chooses the size of its ring.
fn check_size(ring: &CompletionRing) -> Result<(), ControlError> {
    let (value, limit) = (ring.capacity(), MAX_CQE);
    if value <= limit {
        return Ok(());
    }
    let what = "completion queue entries";
    Err(ControlError::TooLarge { what, value: value.into(), limit: limit.into() })
}

#[cfg(test)]
mod tests {
    use super::super::{Command, MemoryCommand, NicConfig};
    use super::*;

    fn moved(ring: &CompletionRing) -> Vec<u64> {
        std::iter::from_fn(|| ring.poll()).map(|wc| wc.wr_id).collect()
    }

    #[test]
    fn full_queue_moves_in_slices() {
        let mut nic = Nic::new(NicConfig::default());
        let (old, new) = [4 * MOVES, 8 * MOVES].map(|size| CompletionRing::new(size as u32).unwrap()).into();
        let run = |nic: &mut Nic, command: MemoryCommand| nic.execute(Nanos::ZERO, command.into());
        let made = run(&mut nic, MemoryCommand::CreateCq { ring: old.clone(), notify: None });
        let Ok(Answer::Cq(cq)) = made else { panic!("{made:?}") };
        let wc = |wr_id| Wc { wr_id, ..Wc::default() };
        (0..2 * MOVES).for_each(|id| old.push(&wc(id), 0).expect("room"));
        let resize = |ring: &CompletionRing| MemoryCommand::ResizeCq { cq, ring: ring.clone() };
        assert!(matches!(run(&mut nic, resize(&new)), Ok(Answer::Moving(of)) if of == Object::Cq(cq)));
        assert_eq!(
            run(&mut nic, resize(&new)).map(drop),
            Err(ControlError::Taken("size of the completion queue"))
        );
        assert!(nic.go_on_moving(Nanos::ZERO, Object::Cq(cq)).is_none());
        nic.out.completions.push((cq, wc(2 * MOVES)));
        nic.publish(Nanos::ZERO);
        assert!(nic.go_on_moving(Nanos::ZERO, Object::Cq(cq)).is_none());
        assert!(matches!(nic.go_on_moving(Nanos::ZERO, Object::Cq(cq)), Some(Ok(Answer::Done))));
        nic.out.completions.push((cq, wc(2 * MOVES + 1)));
        nic.publish(Nanos::ZERO);
        assert_eq!(moved(&new), (0..2 * MOVES + 2).collect::<Vec<_>>());

        // A queue that is destroyed while it moves.
        assert!(matches!(run(&mut nic, resize(&old)), Ok(Answer::Moving(_))));
        nic.execute(Nanos::ZERO, Command::DestroyCq(cq)).expect("unused");
        assert!(matches!(
            nic.go_on_moving(Nanos::ZERO, Object::Cq(cq)),
            Some(Err(ControlError::NotFound(_)))
        ));
    }
}
