//! The NIC's shared receive queues: their table and commands, and the source of each QP's receives.

use std::sync::Arc;

use super::Nic;
use super::command::{Answer, ControlError, SrqStatus};
use super::object::{Object, ObjectKind};
use super::table::NumberedTable;
use super::xrcd::Xrcds;
use crate::shared::{ReceivesMove, RecvRing, SharedReceives};
use crate::transport::{ReceiveQueue, SharedQueue};
use crate::verbs::{
    AsyncEvent, CqIndex, EventKind, PdId, RecvWr, Sge, SrqIndex, SrqInit, SrqKind, Srqn, XrcdId,
};
use roxie_base::limits::{MAX_SGE, MAX_WR};
use roxie_base::time::Nanos;

/// The source of a QP's receives.
#[derive(Debug)]
pub(super) enum Receives {
    /// The QP's own queue, and the position in it.
    Own(RecvRing, u32),
    /// A shared receive queue.
    Shared(SrqIndex),
    /// The queues in this domain that requests name; with the one named last.
    Named(XrcdId, Option<SrqIndex>),
    /// None.
    None,
}

impl Receives {
    /// Empties the QP's own queue.
    pub(super) fn reset(&mut self) {
        if let Receives::Own(ring, position) = self {
            ring.reset();
            ring.want_doorbell(false);
            *position = 0;
        }
    }

    /// Returns the number of waiting receives.
    pub(super) fn available(&self, srqs: &Srqs) -> u32 {
        match self {
            // The application has overwritten the producer index: no receive can be taken.
            Receives::Own(ring, position) if !ring.has(*position) => 0,
            Receives::Own(ring, position) => ring.waiting(*position),
            Receives::Shared(srq) | Receives::Named(_, Some(srq)) => {
                srqs.table.get(srq.0).map_or(0, |srq| srq.receives.waiting())
            }
            Receives::Named(_, None) | Receives::None => 0,
        }
    }

    /// Makes receives posted to the QP's own queue ring the doorbell, so that they are flushed in the error state.
    pub(super) fn want_doorbell(&self) {
        if let Receives::Own(ring, _) = self {
            ring.want_doorbell(true);
        }
    }
}

/// The receives of one QP, for one call.
pub(super) struct ReceiveSide<'a> {
    pub(super) own: &'a mut Receives,
    pub(super) srqs: &'a mut Srqs,
}

impl ReceiveQueue for ReceiveSide<'_> {
    fn take(&mut self, sges: &mut [Sge]) -> Option<RecvWr> {
        match self.own {
            Receives::Own(ring, position) => {
                //= IBTA 10.8.3: receives-complete-in-order
                let wr = ring.fetch(*position, sges)?;
                *position = position.wrapping_add(1);
                ring.retire(*position);
                Some(wr)
            }
            Receives::Shared(srq) | Receives::Named(_, Some(srq)) => self.srqs.take(*srq, sges),
            Receives::Named(_, None) | Receives::None => None,
        }
    }

    fn available(&self) -> u32 {
        self.own.available(self.srqs)
    }

    fn choose(&mut self, srqn: Srqn) -> Option<SharedQueue> {
        let Receives::Named(domain, chosen) = self.own else { return None };
        let index = SrqIndex(self.srqs.table.name_of(srqn.0)?);
        let srq = self.srqs.table.get(index.0)?;
        match srq.kind {
            SrqKind::Xrc { xrcd, cq } if xrcd == *domain && !srq.failed => {
                *chosen = Some(index);
                Some(SharedQueue { pd: srq.pd, cq })
            }
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Srq {
    number: Srqn,
    pd: PdId,
    kind: SrqKind,
    /// Shared with the other workers of the device.
    receives: Arc<SharedReceives>,
    /// Number of QPs of this worker that use the queue.
    users: u32,
    failed: bool,
    /// The move to a ring of another size that is in progress.
    moving: Option<ReceivesMove>,
}

/// Why a queue of several workers keeps its size: none of them may take a receive when the move ends.
const MOVES_ALONE: &str = "a shared receive queue of a device with several workers cannot change its size";
/// Receives that move in one pass of a resize. With lists of 32 entries each: 0.6 ms at most (measured in a virtual
/// machine).
const MOVES: u32 = 512;

/// The shared receive queues of a NIC, and the XRC domains.
#[derive(Debug)]
pub(super) struct Srqs {
    table: NumberedTable<Srq>,
    pub(super) xrcds: Xrcds,
    /// Events to be reported.
    reports: Vec<(SrqIndex, EventKind)>,
}

impl Srqs {
    pub(super) fn new(srqs: u32, xrcds: u32, seed: u64) -> Srqs {
        // At most two events per queue between two reports: limit reached, and error.
        let reports = Vec::with_capacity(2 * srqs as usize);
        Srqs { table: NumberedTable::new(srqs, seed), xrcds: Xrcds::new(xrcds), reports }
    }

    // Not inlined, to keep the path of a QP's own queue short.
    #[inline(never)]
    fn take(&mut self, index: SrqIndex, sges: &mut [Sge]) -> Option<RecvWr> {
        let srq = self.table.get_mut(index.0)?;
        if srq.failed {
            return None;
        }
        let Some(taken) = srq.receives.take(sges) else {
            if srq.receives.is_broken() {
                self.fail(index);
            }
            return None;
        };
        //= IBTA 10.2.9: srq-limit-is-told-once
        if taken.limit_reached {
            invariant!(self.reports.len() < self.reports.capacity(), "an event more than two for each queue");
            self.reports.push((index, EventKind::SrqLimitReached));
        }
        Some(taken.wr)
    }

    pub(super) fn fail(&mut self, index: SrqIndex) {
        if let Some(srq) = self.table.get_mut(index.0)
            && !std::mem::replace(&mut srq.failed, true)
        {
            self.reports.push((index, EventKind::SrqError));
        }
    }

    /// Fails the queues that complete to an overflowed completion queue.
    pub(super) fn fail_users_of(&mut self, cq: CqIndex) {
        for place in 0..self.table.places() {
            let uses = |srq: &Srq| matches!(srq.kind, SrqKind::Xrc { cq: its, .. } if its == cq);
            if self.table.get(place).is_some_and(uses) {
                self.fail(SrqIndex(self.table.name_at(place)));
            }
        }
    }

    /// Returns the numbers of queues and domains.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.table.len(), self.xrcds.len())
    }

    /// Returns the objects that each queue uses.
    pub(super) fn uses(&self) -> impl Iterator<Item = (PdId, Option<(XrcdId, CqIndex)>)> {
        self.table.iter().map(|(_, srq)| match srq.kind {
            SrqKind::Basic => (srq.pd, None),
            SrqKind::Xrc { xrcd, cq } => (srq.pd, Some((xrcd, cq))),
        })
    }

    /// Returns the user counts of the queues.
    pub(super) fn users(&self) -> impl Iterator<Item = (u32, u32)> {
        self.table.iter().map(|(index, srq)| (index, srq.users))
    }

    pub(super) fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    fn get(&self, index: SrqIndex) -> Result<&Srq, ControlError> {
        self.table.get(index.0).ok_or(ControlError::NotFound(ObjectKind::SharedReceiveQueue))
    }

    fn get_mut(&mut self, index: SrqIndex) -> Result<&mut Srq, ControlError> {
        self.table.get_mut(index.0).ok_or(ControlError::NotFound(ObjectKind::SharedReceiveQueue))
    }

    /// Returns the protection domain, capacity and maximum list length of a queue, for a QP that is to use it.
    pub(super) fn for_qp(&self, index: SrqIndex) -> Result<(PdId, u32, u32), ControlError> {
        let srq = self.get(index)?;
        if srq.kind != SrqKind::Basic {
            return Err(ControlError::WrongKind(
                "an XRC shared receive queue is named by requests; QPs are made for a basic one",
            ));
        }
        Ok((srq.pd, srq.receives.capacity(), srq.receives.max_sge()))
    }

    /// # Errors
    /// If QPs use the queue.
    pub(super) fn check_unused(&self, index: SrqIndex) -> Result<(), ControlError> {
        match self.get(index)?.users {
            0 => Ok(()),
            users => Err(ControlError::Busy { object: ObjectKind::SharedReceiveQueue, users }),
        }
    }

    /// True if a queue has this name.
    pub(super) fn holds(&self, srq: SrqIndex) -> bool {
        self.table.holds(srq.0)
    }

    /// Adds `change` to a queue's user count.
    pub(super) fn use_srq(&mut self, index: SrqIndex, change: i32) {
        if let Some(srq) = self.table.get_mut(index.0) {
            invariant!(srq.users.checked_add_signed(change).is_some(), "{} users and {change}", srq.users);
            srq.users = srq.users.saturating_add_signed(change);
        }
    }

    /// Moves some receives of a queue that is moving. `None`: more are left.
    pub(super) fn go_on_moving(&mut self, index: SrqIndex) -> Option<Result<Answer, ControlError>> {
        let srq = self.table.get_mut(index.0);
        let Some((srq, mut moving)) = srq.and_then(|srq| srq.moving.take().map(|moving| (srq, moving)))
        else {
            return Some(Err(ControlError::NotFound(ObjectKind::SharedReceiveQueue)));
        };
        if moving.go_on(&srq.receives, MOVES) {
            return Some(match Arc::get_mut(&mut srq.receives) {
                Some(receives) => {
                    receives.end_move(moving);
                    Ok(Answer::Done)
                }
                None => Err(ControlError::WrongKind(MOVES_ALONE)),
            });
        }
        srq.moving = Some(moving);
        None
    }
}

impl Nic {
    /// Makes a shared receive queue, or adds the queue of another worker of the device, which has armed the limit.
    pub(super) fn create_srq(
        &mut self,
        pd: PdId,
        init: SrqInit,
        receives: Arc<SharedReceives>,
    ) -> Result<Answer, ControlError> {
        check_sizes(receives.capacity(), receives.max_sge())?;
        check_limit(init.limit, receives.capacity())?;
        let kind = init.kind;
        if let SrqKind::Xrc { xrcd, cq } = kind {
            self.cqs.check(cq)?;
            self.srqs.xrcds.check(xrcd)?;
        }
        self.pds.use_pd(pd, 1)?;
        let made = self.srqs.table.insert_with(None, |_, number| Srq {
            number: Srqn(number),
            pd,
            kind,
            receives,
            users: 0,
            failed: false,
            moving: None,
        });
        let Some(index) = made.map(SrqIndex) else {
            self.pds.use_pd(pd, -1)?;
            return Err(ControlError::Full {
                object: ObjectKind::SharedReceiveQueue,
                limit: self.config.limits.srqs,
            });
        };
        if let SrqKind::Xrc { xrcd, cq } = kind {
            self.srqs.xrcds.use_xrcd(xrcd, 1)?;
            self.cqs.use_cq(cq, 1)?;
        }
        if init.limit > 0 {
            self.arm_srq(index, init.limit)?;
        }
        Ok(Answer::Srq(index, self.srqs.get(index)?.number))
    }

    /// Returns the receives of a queue, for another worker of the device.
    pub fn shared_receives(&self, index: SrqIndex) -> Option<Arc<SharedReceives>> {
        self.srqs.table.get(index.0).map(|srq| Arc::clone(&srq.receives))
    }

    /// Changes a queue. All arguments are checked before anything changes. A queue of another size begins to move;
    /// [`Nic::go_on_moving`] does it.
    pub(super) fn modify_srq(
        &mut self,
        index: SrqIndex,
        ring: Option<RecvRing>,
        limit: Option<u32>,
    ) -> Result<Answer, ControlError> {
        let srq = self.srqs.get_mut(index)?;
        let size = ring.as_ref().map_or(srq.receives.capacity(), RecvRing::capacity);
        if let Some(limit) = limit {
            check_limit(limit, size)?;
        }
        let answer = if let Some(ring) = ring {
            check_sizes(ring.capacity(), ring.max_sge())?;
            if Arc::strong_count(&srq.receives) > 1 {
                return Err(ControlError::WrongKind(MOVES_ALONE));
            }
            if srq.moving.is_some() {
                return Err(ControlError::Taken("size of the shared receive queue"));
            }
            let too_small =
                |holds| ControlError::TooSmall { object: ObjectKind::SharedReceiveQueue, size, holds };
            srq.moving = Some(srq.receives.begin_move(ring).map_err(too_small)?);
            Answer::Moving(Object::Srq(index))
        } else {
            Answer::Done
        };
        if let Some(limit) = limit {
            self.arm_srq(index, limit)?;
        }
        Ok(answer)
    }

    /// Arms the limit. If fewer receives are left already, the event is raised immediately.
    fn arm_srq(&mut self, index: SrqIndex, limit: u32) -> Result<(), ControlError> {
        if self.srqs.get(index)?.receives.arm(limit) {
            self.srqs.reports.push((index, EventKind::SrqLimitReached));
        }
        Ok(())
    }

    pub(super) fn query_srq(&self, index: SrqIndex) -> Result<Answer, ControlError> {
        self.srq_status(index).map(Answer::SrqStatus)
    }

    /// Returns the SRQ's status.
    ///
    /// # Errors
    /// If there is no such SRQ.
    pub fn srq_status(&self, index: SrqIndex) -> Result<SrqStatus, ControlError> {
        let srq = self.srqs.get(index)?;
        if !self.srqs.holds(index) {
            return Err(ControlError::NotFound(ObjectKind::SharedReceiveQueue));
        }
        Ok(SrqStatus {
            index,
            number: srq.number,
            pd: srq.pd,
            kind: srq.kind,
            max_wr: srq.receives.capacity(),
            max_sge: srq.receives.max_sge(),
            limit: srq.receives.limit(),
            waiting: srq.receives.waiting(),
            failed: srq.failed,
        })
    }

    pub(super) fn destroy_srq(&mut self, index: SrqIndex) -> Result<Answer, ControlError> {
        self.srqs.check_unused(index)?;
        let srq =
            self.srqs.table.remove(index.0).ok_or(ControlError::NotFound(ObjectKind::SharedReceiveQueue))?;
        self.srqs.reports.retain(|(reported, _)| *reported != index);
        self.pds.use_pd(srq.pd, -1)?;
        if let SrqKind::Xrc { xrcd, cq } = srq.kind {
            self.srqs.xrcds.use_xrcd(xrcd, -1)?;
            self.cqs.use_cq(cq, -1)?;
            self.forget_receives_of(index);
        }
        Ok(Answer::Done)
    }

    /// Discards receives that targets have taken from a destroyed queue: their completions would have no destination.
    fn forget_receives_of(&mut self, index: SrqIndex) {
        for at in 0..self.qps.places() {
            let Some(entry) = self.qps.get_mut(at) else { continue };
            if let Receives::Named(_, chosen) = &mut entry.receives
                && chosen.take_if(|chosen| *chosen == index).is_some()
            {
                entry.qp.forget_receive();
            }
        }
    }

    /// Raises the events of shared receive queues. Fails the QPs that use a queue in error.
    pub(super) fn report_srqs(&mut self, now: Nanos) {
        while let Some((index, kind)) = self.srqs.reports.pop() {
            let is_error = kind == EventKind::SrqError;
            // Another worker may have told of the error.
            if !is_error || self.srqs.get(index).is_ok_and(|srq| srq.receives.fail()) {
                self.out.events.push(AsyncEvent::Srq(index, kind));
            }
            if is_error {
                for at in 0..self.qps.places() {
                    let takes = |r: &Receives| matches!(r, Receives::Shared(srq) if *srq == index);
                    let taker = self.qps.get(at).filter(|entry| takes(&entry.receives));
                    if let Some(taker) = taker.map(|entry| entry.qp.index) {
                        self.fail_qp(now, taker);
                    }
                }
                self.update_changed(now);
            }
        }
    }
}

/// # Errors
/// [`ControlError::TooLarge`]: a client chooses the sizes of its ring.
pub(super) fn check_sizes(max_wr: u32, max_sge: u32) -> Result<(), ControlError> {
    let sizes = [("max_wr", max_wr, MAX_WR), ("max_sge", max_sge, MAX_SGE as u32)];
    match sizes.into_iter().find(|(_, value, limit)| value > limit) {
        Some((what, value, limit)) => {
            Err(ControlError::TooLarge { what, value: value.into(), limit: limit.into() })
        }
        None => Ok(()),
    }
}

fn check_limit(limit: u32, capacity: u32) -> Result<(), ControlError> {
    if limit > capacity {
        return Err(ControlError::TooLarge {
            what: "srq_limit",
            value: limit.into(),
            limit: capacity.into(),
        });
    }
    Ok(())
}

#[cfg(test)]
#[path = "srq_tests.rs"]
mod tests;
