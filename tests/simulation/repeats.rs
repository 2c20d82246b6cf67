//! What a requester with selective repeat has sent again, as the witness sees it: an answer that overtakes another may
//! only be ignored if what it shows to be missing is asked for.

use std::collections::BTreeSet;

use roxie::wire::Psn;

/// Requests of one QP. A place is the distance of a PSN from the first one seen.
#[derive(Debug, Default)]
pub struct Repeats {
    origin: Option<Psn>,
    /// The last place of a request.
    newest: Option<i32>,
    /// The last place of an answer that overtook another, since something was acknowledged behind it.
    overtook: Option<i32>,
    /// Last places of requests that were sent again, from the last acknowledged place on.
    again: BTreeSet<i32>,
}

impl Repeats {
    fn at(&mut self, psn: Psn) -> i32 {
        psn.distance_from(*self.origin.get_or_insert(psn))
    }

    /// Notes a request that is sent, and takes `packets` PSNs.
    pub fn sent(&mut self, psn: Psn, packets: u32) {
        let first = self.at(psn);
        let last = first + packets as i32 - 1;
        if self.newest.is_some_and(|newest| first <= newest) {
            self.again.insert(last);
        }
        self.newest = self.newest.max(Some(last));
    }

    pub fn acknowledged(&mut self, psn: Psn) {
        let at = self.at(psn);
        self.overtook = self.overtook.filter(|overtook| at < *overtook);
        self.again = self.again.split_off(&at);
    }

    pub fn overtaken(&mut self, psn: Psn) {
        let at = self.at(psn);
        self.overtook = self.overtook.max(Some(at));
    }

    /// Notes an RNR NAK, behind which all that is outstanding is sent again.
    pub fn rewound(&mut self) {
        self.overtook = self.overtook.max(self.newest);
    }

    /// True if something before `psn` is asked for again.
    pub fn are_before(&mut self, psn: Psn) -> bool {
        let at = self.at(psn);
        self.overtook.is_some() || self.again.first().is_some_and(|first| *first < at)
    }
}
