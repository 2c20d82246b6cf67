//! Checks that redundant state of a NIC agrees, for tests, between two passes.
//!
//! The number of users of an object follows from the users; the entries of the arbiter's queues and of the timer wheels follow
//! from the QPs. An error in such state shows late and elsewhere, if at all: as an object that cannot be destroyed, a QP that
//! waits for ever, an extra turn.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::{Nic, QpEntry};
use crate::verbs::{QpIndex, QpType};
use roxie_base::time::Nanos;

/// Numbers of users, by table slot.
type Counts = BTreeMap<u32, u32>;

impl Nic {
    /// Returns the first inconsistency found; `None`: there is none. To be called when no QP waits for
    /// [`look_after`](Self::look_after).
    #[doc(hidden)]
    pub fn inconsistency(&self) -> Option<String> {
        self.uses_disagree().or_else(|| self.queues_disagree()).or_else(|| {
            self.qps.iter().find_map(|(index, entry)| {
                let wrong = self.entry_disagrees(index, entry)?;
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
        let kept: Counts = some(&mut self.pds.iter().map(|(pd, users)| (pd, *users)));
        differ("users of protection domains", &kept, &pds)
            .or_else(|| {
                let kept: Counts = some(&mut self.cqs.iter().map(|(cq, entry)| (cq, entry.users)));
                differ("users of completion queues", &kept, &cqs)
            })
            .or_else(|| differ("users of shared receive queues", &some(&mut self.srqs.users()), &srqs))
            .or_else(|| differ("users of XRC domains", &some(&mut self.srqs.xrcd_users()), &xrcds))
            .or_else(|| {
                let kept: Counts = some(&mut self.qps.iter().map(|(qp, entry)| (qp, entry.in_tables)));
                differ("tables that a QP is in", &kept, &tables)
            })
    }

    /// Checks that lists of QPs name existing QPs, and that their flags agree.
    fn queues_disagree(&self) -> Option<String> {
        if let Some(wrong) = self.arbiter.inconsistency() {
            return Some(wrong);
        }
        let gone = |qp: &QpIndex| !self.qps.holds(qp.0);
        let is_timed = |qp: u32| self.wheel.is_set(qp) || self.releases.is_set(qp);
        let late = (0..self.qps.places()).find(|place| self.qps.get(*place).is_none() && is_timed(*place));
        if let Some(qp) = late {
            return Some(format!("a timer of QP {qp} runs, which is gone"));
        }
        let lists: [(&str, Vec<QpIndex>); 4] = [
            ("the arbiter", self.arbiter.all().map(|(_, qp)| qp).collect()),
            ("a flow", self.flows.qps().collect()),
            ("a multicast group", self.groups.all().collect()),
            ("QP1", self.gsis.all().collect()),
        ];
        let stale = lists.iter().find_map(|(what, qps)| Some((what, qps.iter().find(|qp| gone(qp))?)));
        if let Some((what, qp)) = stale {
            return Some(format!("{what} names QP {}, which is gone", qp.0));
        }
        let is_gsi = |qp: QpIndex| self.qps.get(qp.0).is_some_and(|entry| entry.qp.qp_type == QpType::Gsi);
        let wrong = self.gsis.all().find(|qp| !is_gsi(*qp))?;
        Some(format!("QP {} is not QP1, but has its place", wrong.0))
    }

    fn entry_disagrees(&self, index: u32, entry: &QpEntry) -> Option<String> {
        let places: Vec<u8> =
            self.arbiter.all().filter(|(_, qp)| qp.0 == index).map(|(priority, _)| priority).collect();
        let due: &[u8] = if entry.ready { &[entry.priority] } else { &[] };
        let urgent = self.arbiter.urgent().filter(|qp| qp.0 == index).count();
        let place = entry.qp.index.place();
        differ("its places in the arbiter's queues", &&places[..], &due)
            .or_else(|| differ("its places among the urgent", &urgent, &usize::from(entry.urgent)))
            .or_else(|| differ("its timer", &self.wheel.is_set(place), &(entry.timer_at != Nanos::MAX)))
            .or_else(|| {
                let held = entry.release_at != Nanos::MAX;
                differ("its release", &self.releases.is_set(place), &held)
            })
            .or_else(|| self.is_forgotten(entry))
    }

    /// Returns why a QP with pending work would never be served.
    fn is_forgotten(&self, entry: &QpEntry) -> Option<String> {
        if entry.touched {
            return None;
        }
        // A client's QP may also wait for its page's turn.
        if !entry.unfetched && entry.sends.page().is_none() && entry.qp.owes_sends() {
            return Some("it has work requests to flush, and is in no list".into());
        }
        if !entry.ready && entry.qp.wants_transmit(&self.config.limits) {
            return Some("it has something to send, and is in no queue".into());
        }
        let deadline = entry.qp.deadline();
        if deadline < entry.timer_at {
            return Some(format!("it waits until {deadline}, and its timer is set to {}", entry.timer_at));
        }
        let until = entry.qp.held_until().filter(|_| entry.qp.is_held());
        let late = until.filter(|until| *until < entry.release_at)?;
        Some(format!("it is held until {late}, and its release is set to {}", entry.release_at))
    }
}

fn differ<T: Debug + PartialEq>(what: &str, kept: &T, counted: &T) -> Option<String> {
    (kept != counted).then(|| format!("{what}: {kept:?}, and there should be {counted:?}"))
}
