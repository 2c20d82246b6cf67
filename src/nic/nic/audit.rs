//! Checks that redundant state of a NIC agrees, for tests, between two passes.
//!
//! The number of users of an object follows from the users; the entries of the arbiter's queues and of the timer wheels
//! follow from the QPs. An error in such state shows late and elsewhere, if at all: as an object that cannot be
//! destroyed, a QP that waits forever, an extra turn.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::{Nic, QpEntry};
use crate::transport::Awaits;
use crate::verbs::{QpIndex, QpType};

/// Numbers of users, by table slot.
type Counts = BTreeMap<u32, u32>;

impl Nic {
    /// Returns the first inconsistency found; `None`: there is none. To be called when no QP waits for
    /// [`update_changed`](Self::update_changed).
    #[doc(hidden)]
    pub fn inconsistency(&self) -> Option<String> {
        self.uses_disagree()
            .or_else(|| self.queues_disagree())
            .or_else(|| self.parking.disagrees(&self.qps))
            .or_else(|| {
                self.qps.iter().find_map(|(index, entry)| {
                    let wrong =
                        self.scheduler.disagrees(&entry.schedule).or_else(|| self.is_forgotten(entry))?;
                    Some(format!("QP {} at {index} in {:?}: {wrong}", entry.qp.qpn, entry.qp.state()))
                })
            })
    }

    /// Compares user counts of domains, queues and tables with their users.
    fn uses_disagree(&self) -> Option<String> {
        let [mut pds, mut cqs, mut srqs, mut xrcds, mut tables] = [(); 5].map(|()| Counts::new());
        let add = |counts: &mut Counts, place: u32| *counts.entry(place).or_default() += 1;
        for pd in self.memory.domains().chain(self.handles.domains()) {
            add(&mut pds, pd.0);
        }
        for (_, entry) in self.qps.iter() {
            let uses = &entry.uses;
            uses.pd.iter().for_each(|pd| add(&mut pds, pd.0));
            uses.cqs.iter().flatten().for_each(|cq| add(&mut cqs, cq.0));
            uses.srq.iter().for_each(|srq| add(&mut srqs, srq.0));
            uses.xrcd.iter().for_each(|xrcd| add(&mut xrcds, xrcd.0));
            entry.rss.iter().flat_map(|rss| &rss.table).for_each(|member| add(&mut tables, member.0));
        }
        for (pd, xrc) in self.srqs.uses() {
            add(&mut pds, pd.0);
            if let Some((xrcd, cq)) = xrc {
                add(&mut xrcds, xrcd.0);
                add(&mut cqs, cq.0);
            }
        }
        let some =
            |users: &mut dyn Iterator<Item = (u32, u32)>| users.filter(|(_, users)| *users > 0).collect();
        let recorded: Counts = some(&mut self.pds.users());
        differ("users of protection domains", &recorded, &pds)
            .or_else(|| {
                let recorded: Counts = some(&mut self.cqs.users());
                differ("users of completion queues", &recorded, &cqs)
            })
            .or_else(|| differ("users of shared receive queues", &some(&mut self.srqs.users()), &srqs))
            .or_else(|| differ("users of XRC domains", &some(&mut self.srqs.xrcds.users()), &xrcds))
            .or_else(|| {
                let recorded: Counts = some(&mut self.qps.iter().map(|(qp, entry)| (qp, entry.in_tables)));
                differ("tables that a QP is in", &recorded, &tables)
            })
    }

    /// Checks that lists of QPs name existing QPs, and that their flags agree.
    fn queues_disagree(&self) -> Option<String> {
        if let Some(wrong) = self.scheduler.inconsistency() {
            return Some(wrong);
        }
        let is_destroyed = |qp: &QpIndex| !self.qps.holds(qp.0);
        let is_timed = |place: &u32| self.qps.get(*place).is_none() && self.scheduler.is_timed(*place);
        let late = (0..self.qps.places()).find(is_timed);
        if let Some(qp) = late {
            return Some(format!("a timer of QP {qp} runs, which is gone"));
        }
        let lists: [(&str, Vec<QpIndex>); 4] = [
            ("the arbiter", self.scheduler.waiting().collect()),
            ("a flow", self.flows.qps().collect()),
            ("a multicast group", self.groups.all().collect()),
            ("QP1", self.gsis.all().collect()),
        ];
        let stale =
            lists.iter().find_map(|(what, qps)| Some((what, qps.iter().find(|qp| is_destroyed(qp))?)));
        if let Some((what, qp)) = stale {
            return Some(format!("{what} names QP {}, which is gone", qp.0));
        }
        let window = self.config.limits.window;
        let expected: usize = self.qps.iter().map(|(_, entry)| entry.expected_frames(window)).sum();
        if self.expected_frames != expected {
            return Some(format!(
                "{} frames are expected, and the QPs expect {expected}",
                self.expected_frames
            ));
        }
        let is_gsi = |qp: QpIndex| self.qps.get(qp.0).is_some_and(|entry| entry.qp.qp_type == QpType::Gsi);
        let wrong = self.gsis.all().find(|qp| !is_gsi(*qp))?;
        Some(format!("QP {} is not QP1, but has its place", wrong.0))
    }

    /// Returns why a QP with pending work would never be served.
    fn is_forgotten(&self, entry: &QpEntry) -> Option<String> {
        if entry.schedule.is_touched() || entry.parked.is_some() {
            return None;
        }
        // A client's QP may also wait for its page's turn.
        if !entry.schedule.is_unfetched() && entry.sends.page().is_none() && entry.qp.has_sends_to_flush() {
            return Some("it has work requests to flush, and is in no list".into());
        }
        if !entry.schedule.is_ready() && entry.qp.wants_transmit(&self.config.limits) {
            return Some("it has something to send, and is in no queue".into());
        }
        let may_send = entry.qp.pacing().holds() || entry.qp.wants_transmit(&self.config.limits);
        if entry.qp.awaits().is_none_or(|awaits| awaits == Awaits::Packet && !may_send) {
            return Some("its sends are outstanding, and neither a timer nor a packet ends the wait".into());
        }
        let deadline = entry.qp.deadline();
        let (timer_at, release_at) = entry.schedule.deadlines();
        if deadline < timer_at {
            return Some(format!("it waits until {deadline}, and its timer is set to {timer_at}"));
        }
        let until = entry.qp.pacing().held_until().filter(|_| entry.qp.pacing().holds());
        let late = until.filter(|until| *until < release_at)?;
        Some(format!("it is held until {late}, and its release is set to {release_at}"))
    }
}

fn differ<T: Debug + PartialEq>(what: &str, kept: &T, counted: &T) -> Option<String> {
    (kept != counted).then(|| format!("{what}: {kept:?}, and there should be {counted:?}"))
}
