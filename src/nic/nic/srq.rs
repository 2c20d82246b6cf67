//! The NIC's shared receive queues and XRC domains: their tables and commands, and the source of each QP's receives.

use super::Nic;
use super::command::{Answer, ControlError, SrqStatus};
use super::object::{Object, ObjectKind};
use super::table::{NumberedTable, Table};
use crate::shared::{ReceivesMove, RecvRing, SharedReceives};
use crate::transport::{ReceiveQueue, SharedQueue};
use crate::verbs::{
    AsyncEvent, CqIndex, EventKind, FileId, OpenXrcd, PdId, RecvWr, Sge, SrqIndex, SrqInit, SrqKind, Srqn,
    XrcdId,
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
    receives: SharedReceives,
    /// Number of QPs that use this queue.
    users: u32,
    failed: bool,
    /// The move to a ring of another size that is in progress.
    moving: Option<ReceivesMove>,
}

/// Receives that move in one pass of a resize. With lists of 32 entries each: 0.6 ms at most (measured in a virtual machine).
const MOVES: u32 = 512;

#[derive(Debug)]
struct Xrcd {
    file: Option<FileId>,
    opens: u32,
    /// Number of queues and targets in the domain.
    users: u32,
}

/// The shared receive queues of a NIC, and the XRC domains.
#[derive(Debug)]
pub(super) struct Srqs {
    table: NumberedTable<Srq>,
    xrcds: Table<Xrcd>,
    /// Events to be reported.
    reports: Vec<(SrqIndex, EventKind)>,
}

impl Srqs {
    pub(super) fn new(srqs: u32, xrcds: u32, seed: u64) -> Srqs {
        // At most two events per queue between two reports: limit reached, and error.
        let reports = Vec::with_capacity(2 * srqs as usize);
        Srqs { table: NumberedTable::new(srqs, seed), xrcds: Table::new(xrcds), reports }
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
            self.reports.push((index, EventKind::SrqLimitReached));
        }
        Some(taken.wr)
    }

    fn fail(&mut self, index: SrqIndex) {
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

    /// Returns the user counts of the domains.
    pub(super) fn xrcd_users(&self) -> impl Iterator<Item = (u32, u32)> {
        self.xrcds.iter().map(|(index, xrcd)| (index, xrcd.users))
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

    /// Returns the protection domain and maximum list length of a queue, for a QP that is to use it.
    pub(super) fn for_qp(&self, index: SrqIndex) -> Result<(PdId, u32), ControlError> {
        let srq = self.get(index)?;
        if srq.kind != SrqKind::Basic {
            return Err(ControlError::WrongKind(
                "an XRC shared receive queue is named by requests; QPs are made for a basic one",
            ));
        }
        Ok((srq.pd, srq.receives.max_sge()))
    }

    /// True if a queue has this name.
    pub(super) fn holds(&self, srq: SrqIndex) -> bool {
        self.table.holds(srq.0)
    }

    /// True if a domain has this name.
    pub(super) fn holds_xrcd(&self, xrcd: XrcdId) -> bool {
        self.xrcds.holds(xrcd.0)
    }

    /// Adds `change` to a queue's user count.
    pub(super) fn use_srq(&mut self, index: SrqIndex, change: i32) {
        if let Some(srq) = self.table.get_mut(index.0) {
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
            srq.receives.end_move(moving);
            return Some(Ok(Answer::Done));
        }
        srq.moving = Some(moving);
        None
    }

    pub(super) fn use_xrcd(&mut self, xrcd: XrcdId, change: i32) -> Result<(), ControlError> {
        let entry = self.xrcds.get_mut(xrcd.0).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
        entry.users = entry.users.saturating_add_signed(change);
        Ok(())
    }
}

impl Nic {
    pub(super) fn create_srq(
        &mut self,
        pd: PdId,
        init: SrqInit,
        ring: RecvRing,
    ) -> Result<Answer, ControlError> {
        check_sizes(&ring)?;
        check_limit(init.limit, ring.capacity())?;
        if let SrqKind::Xrc { xrcd, cq } = init.kind {
            self.cqs.check(cq)?;
            self.srqs.xrcds.get(xrcd.0).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
        }
        self.pds.use_pd(pd, 1)?;
        let kind = init.kind;
        let made = self.srqs.table.insert_with(None, |_, number| Srq {
            number: Srqn(number),
            pd,
            kind,
            receives: SharedReceives::new(ring),
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
            self.srqs.use_xrcd(xrcd, 1)?;
            self.cqs.use_cq(cq, 1)?;
        }
        self.arm_srq(index, init.limit)?;
        Ok(Answer::Srq(index, self.srqs.get(index)?.number))
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
            check_sizes(&ring)?;
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

    /// Arms the limit. If fewer receives are left already, the event is raised at once.
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
        let users = self.srqs.get(index)?.users;
        if users > 0 {
            return Err(ControlError::Busy { object: ObjectKind::SharedReceiveQueue, users });
        }
        let srq =
            self.srqs.table.remove(index.0).ok_or(ControlError::NotFound(ObjectKind::SharedReceiveQueue))?;
        self.srqs.reports.retain(|(reported, _)| *reported != index);
        self.pds.use_pd(srq.pd, -1)?;
        if let SrqKind::Xrc { xrcd, cq } = srq.kind {
            self.srqs.use_xrcd(xrcd, -1)?;
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

    pub(super) fn open_xrcd(&mut self, open: OpenXrcd) -> Result<Answer, ControlError> {
        let there = open.file.and_then(|file| {
            let mut open = self.srqs.xrcds.iter();
            open.find(|(_, xrcd)| xrcd.file == Some(file)).map(|(index, _)| index)
        });
        match there {
            Some(_) if open.exclusive => Err(ControlError::Taken("XRC domain of this file")),
            Some(index) => {
                let xrcd =
                    self.srqs.xrcds.get_mut(index).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
                xrcd.opens += 1;
                Ok(Answer::Xrcd(XrcdId(index)))
            }
            None if open.file.is_some() && !open.create => {
                Err(ControlError::NotFound(ObjectKind::XrcDomainOfFile))
            }
            None => {
                let limit = self.config.limits.xrcds;
                let made = self.srqs.xrcds.insert(Xrcd { file: open.file, opens: 1, users: 0 });
                made.map(|index| Answer::Xrcd(XrcdId(index)))
                    .ok_or(ControlError::Full { object: ObjectKind::XrcDomain, limit })
            }
        }
    }

    pub(super) fn close_xrcd(&mut self, xrcd: XrcdId) -> Result<Answer, ControlError> {
        let entry = self.srqs.xrcds.get_mut(xrcd.0).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
        match (entry.opens, entry.users) {
            (1, 0) => {
                self.srqs.xrcds.remove(xrcd.0);
            }
            (1, users) => return Err(ControlError::Busy { object: ObjectKind::XrcDomain, users }),
            _ => entry.opens -= 1,
        }
        Ok(Answer::Done)
    }

    /// Raises the events of shared receive queues. Fails the QPs that use a queue in error.
    pub(super) fn report_srqs(&mut self, now: Nanos) {
        while let Some((index, kind)) = self.srqs.reports.pop() {
            self.out.events.push(AsyncEvent::Srq(index, kind));
            if kind == EventKind::SrqError {
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
pub(super) fn check_sizes(ring: &RecvRing) -> Result<(), ControlError> {
    let sizes = [("max_wr", ring.capacity(), MAX_WR), ("max_sge", ring.max_sge(), MAX_SGE as u32)];
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
