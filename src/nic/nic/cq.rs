//! The NIC's completion queues: publishing completions, and raising their events.
//!
//! Moderation delays events, never completions. After the first completion that an armed queue asked for, the event waits until
//! `count` completions have come or `period` is over. A completion in error ends the wait. The queue is disarmed at the first
//! completion. An application that polls and arms again meanwhile therefore gets one more event, and loses none.

use super::Nic;
use super::command::{Answer, ControlError};
use super::object::ObjectKind;
use crate::shared::{CompletionRing, EventCounter, Move};
use crate::transport::coverage::{EventEffect, Watch};
use crate::verbs::{AsyncEvent, CqIndex, EventKind, QpIndex, Wc, WcStatus};
use roxie_base::limits::MAX_CQE;
use roxie_base::time::Nanos;

#[derive(Debug)]
pub(super) struct CqEntry {
    ring: CompletionRing,
    notify: Option<EventCounter>,
    /// Number of QPs and shared receive queues that complete here.
    pub(super) users: u32,
    failed: bool,
    moderation: Option<Moderation>,
    /// The move to a ring of another size that is in progress.
    moving: Option<Move>,
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
    /// Counts a completion. True: raise the event now.
    fn note(&mut self, now: Nanos, ring: &CompletionRing, wc: &Wc) -> bool {
        if self.held == 0 {
            if !ring.disarm_for(wc) {
                Watch::notice(EventEffect::Unasked);
                return false;
            }
            self.due = now + self.period;
        }
        self.held += 1;
        let failed = wc.status != WcStatus::Success;
        let leaves = self.held >= self.count || failed;
        Watch::notice(match (leaves, failed, self.held) {
            (true, true, _) => EventEffect::ByFailure,
            (true, false, _) => EventEffect::ByCount,
            (false, _, 1) => EventEffect::HeldBack,
            (false, ..) => EventEffect::Joined,
        });
        if leaves {
            self.release();
        }
        leaves
    }

    fn release(&mut self) {
        self.held = 0;
        self.due = Nanos::MAX;
    }
}

impl CqEntry {
    pub(super) fn new(ring: CompletionRing, notify: Option<EventCounter>) -> CqEntry {
        CqEntry { ring, notify, users: 0, failed: false, moderation: None, moving: None }
    }

    fn wake(&self) {
        if let Some(channel) = &self.notify {
            channel.raise();
        }
    }
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

impl Nic {
    /// Returns the numbers of completions published so far.
    pub fn published(&self) -> Published {
        self.published
    }

    /// Writes completions to their queues, and records queues that overflow.
    pub(super) fn push_completions(&mut self, now: Nanos) {
        let mut completions = std::mem::take(&mut self.out.completions);
        for run in completions.chunk_by(|(cq, _), (next, _)| cq == next) {
            let Some((cq, _)) = run.first() else { continue };
            self.push_run(now, *cq, run);
        }
        completions.clear();
        self.out.completions = completions;
    }

    /// Writes consecutive completions of one queue.
    fn push_run(&mut self, now: Nanos, cq: CqIndex, run: &[(CqIndex, Wc)]) {
        let wcs = run.iter().map(|(_, wc)| wc);
        wcs.clone().for_each(|wc| self.published.note(wc));
        let Some(entry) = self.cqs.get_mut(cq.0) else { return };
        // After an overflow no more completions are written: a gap would look like success.
        let pushed = if entry.failed { 0 } else { entry.ring.push_all(wcs.clone(), now.0) };
        if let Some(moving) = &mut entry.moving {
            moving.add(pushed);
        }
        if pushed < run.len() {
            //= IBTA 11.6.3.2: cq-overflow-is-an-event
            self.counters.cq_overflow += (run.len() - pushed) as u64;
            if !std::mem::replace(&mut entry.failed, true) {
                self.out.events.push(AsyncEvent::Cq(cq, EventKind::CqError));
                self.overrun.push(cq);
            }
        }
        if entry.ring.is_mapped() {
            entry.ring.wake_pollers();
        }
        if entry.notify.is_none() {
            return;
        }
        let pushed = wcs.take(pushed);
        let wakes = match &mut entry.moderation {
            None => {
                let count = pushed.len();
                let wakes = count > 0 && entry.ring.disarm_for_any(pushed);
                Watch::notices(EventEffect::AtOnce, usize::from(wakes));
                Watch::notices(EventEffect::Unasked, count - usize::from(wakes));
                wakes
            }
            Some(moderation) => {
                let wakes = pushed.fold(false, |wakes, wc| moderation.note(now, &entry.ring, wc) | wakes);
                self.events_due = self.events_due.min(moderation.due);
                wakes
            }
        };
        if wakes {
            entry.wake();
        }
    }

    /// Raises the delayed events that are due.
    #[cold]
    pub(super) fn release_events(&mut self, now: Nanos) {
        self.events_due = Nanos::MAX;
        for index in 0..self.cqs.places() {
            let Some(entry) = self.cqs.get_mut(index) else { continue };
            let Some(moderation) = &mut entry.moderation else { continue };
            if moderation.due <= now {
                moderation.release();
                Watch::notice(EventEffect::ByTime);
                entry.wake();
            } else {
                self.events_due = self.events_due.min(moderation.due);
            }
        }
    }

    /// Moves QPs that complete to an overflowed queue to the error state (IBTA 11.6.3.2).
    pub(super) fn fail_users_of(&mut self, now: Nanos, cq: CqIndex) {
        let users: Vec<_> =
            self.qps.iter().filter(|(_, e)| e.qp.send_cq == cq || e.qp.recv_cq == cq).collect();
        let users: Vec<_> = users.into_iter().map(|(index, _)| QpIndex(index)).collect();
        for index in users {
            self.fail_qp(now, index);
        }
        self.srqs.fail_users_of(cq);
        self.report_srqs(now);
        self.look_after(now);
    }

    /// Wakes all threads that wait for completions: none will come.
    pub fn wake_all(&self) {
        for (_, cq) in self.cqs.iter() {
            cq.wake();
        }
    }

    pub(super) fn create_cq(
        &mut self,
        ring: CompletionRing,
        notify: Option<EventCounter>,
    ) -> Result<Answer, ControlError> {
        check_size(&ring)?;
        let limit = self.config.limits.cqs;
        let cq = self.cqs.insert(CqEntry::new(ring, notify));
        cq.map(|cq| Answer::Cq(CqIndex(cq)))
            .ok_or(ControlError::Full { object: ObjectKind::CompletionQueue, limit })
    }

    /// Begins to move a completion queue to another ring; [`Nic::go_on_moving`] does it.
    pub(super) fn resize_cq(&mut self, cq: CqIndex, ring: CompletionRing) -> Result<Answer, ControlError> {
        check_size(&ring)?;
        let entry = self.cq(cq).ok_or(ControlError::NotFound(ObjectKind::CompletionQueue))?;
        if entry.moving.is_some() {
            return Err(ControlError::Taken("size of the completion queue"));
        }
        let size = ring.capacity();
        let too_small = |holds| ControlError::TooSmall { object: ObjectKind::CompletionQueue, size, holds };
        entry.moving = Some(entry.ring.begin_move(ring).map_err(too_small)?);
        Ok(Answer::Moving(cq))
    }

    /// Moves some completions of a queue that [is moving](Answer::Moving). `None`: more are left.
    pub fn go_on_moving(&mut self, now: Nanos, cq: CqIndex) -> Option<Result<Answer, ControlError>> {
        let entry = self.cqs.get_mut(cq.0).filter(|entry| entry.moving.is_some());
        let Some(entry) = entry else {
            return Some(Err(ControlError::NotFound(ObjectKind::CompletionQueue)));
        };
        let mut moving = entry.moving.take().expect("looked at above");
        let moved = moving.go_on(&entry.ring, MOVES);
        if moved == Ok(false) {
            entry.moving = Some(moving);
            return None;
        }
        entry.ring = moving.ring().clone();
        if moved.is_err() && !std::mem::replace(&mut entry.failed, true) {
            self.counters.cq_overflow += 1;
            self.out.events.push(AsyncEvent::Cq(cq, EventKind::CqError));
            self.fail_users_of(now, cq);
        }
        Some(Ok(Answer::Done))
    }

    pub(super) fn moderate_cq(
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
        let entry = self.cq(cq).ok_or(ControlError::NotFound(ObjectKind::CompletionQueue))?;
        // Raise an event that was delayed under the previous parameters.
        if entry.moderation.as_ref().is_some_and(|moderation| moderation.held > 0) {
            Watch::notice(EventEffect::ByCommand);
            entry.wake();
        }
        entry.moderation = (count > 1).then_some(Moderation { count, period, held: 0, due: Nanos::MAX });
        Ok(Answer::Done)
    }

    pub(super) fn destroy_cq(&mut self, cq: CqIndex) -> Result<Answer, ControlError> {
        match self.cqs.get(cq.0) {
            None => Err(ControlError::NotFound(ObjectKind::CompletionQueue)),
            Some(entry) if entry.users > 0 => {
                Err(ControlError::Busy { object: ObjectKind::CompletionQueue, users: entry.users })
            }
            Some(_) => {
                // A resize in progress ends with the queue.
                self.cqs.remove(cq.0);
                Ok(Answer::Done)
            }
        }
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
        assert!(matches!(run(&mut nic, resize(&new)), Ok(Answer::Moving(of)) if of == cq));
        assert_eq!(
            run(&mut nic, resize(&new)).map(drop),
            Err(ControlError::Taken("size of the completion queue"))
        );
        assert!(nic.go_on_moving(Nanos::ZERO, cq).is_none());
        nic.out.completions.push((cq, wc(2 * MOVES)));
        nic.publish(Nanos::ZERO);
        assert!(nic.go_on_moving(Nanos::ZERO, cq).is_none());
        assert!(matches!(nic.go_on_moving(Nanos::ZERO, cq), Some(Ok(Answer::Done))));
        nic.out.completions.push((cq, wc(2 * MOVES + 1)));
        nic.publish(Nanos::ZERO);
        assert_eq!(moved(&new), (0..2 * MOVES + 2).collect::<Vec<_>>());

        // A queue that is destroyed while it moves.
        assert!(matches!(run(&mut nic, resize(&old)), Ok(Answer::Moving(_))));
        nic.execute(Nanos::ZERO, Command::DestroyCq(cq)).expect("unused");
        assert!(matches!(nic.go_on_moving(Nanos::ZERO, cq), Some(Err(ControlError::NotFound(_)))));
    }
}
