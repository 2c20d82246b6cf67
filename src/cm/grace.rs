//! Requests that come a moment before somebody listens. Ours is asked again for a moment if the peer says that nobody listens; a
//! peer's waits for a moment before it is refused.
//!
//! A program that listens anew for each connection (`perftest` with `-R`) races with its client, which knows by other means that it
//! is about to. To either end it is as if the link had been slow.

use crate::time::Nanos;
use crate::wire::cm::{Ari, CmMessage, CommId, RejReason, SidrRep, SidrStatus};

use super::Route;
use super::early::Early;
use super::manager::Manager;

/// How long after a refusal it is asked again.
const AGAIN: Nanos = Nanos::from_millis(20);

impl Manager {
    /// Nobody listens: the request waits, if it may, or is refused.
    pub(super) fn is_early(&mut self, now: Nanos, tid: u64, request: CmMessage, route: Route) {
        let grace = self.config.grace;
        if grace == Nanos::ZERO || self.early.len() >= self.config.limits.early {
            return self.refuse(tid, &request, route);
        }
        let is_same = |early: &Early| early.request == request && early.route == route;
        if !self.early.iter().any(is_same) {
            self.early.push_back(Early { until: now + grace, tid, request, route });
            self.set_early_timer();
        }
    }

    /// Somebody listens now: what waits for that is looked at at once.
    pub(super) fn look_at_early(&mut self) {
        if !self.early.is_empty() {
            self.wheel.set(self.table.limit(), Nanos::ZERO);
        }
    }

    /// Those that somebody listens for now are taken in, and those that waited long enough refused.
    pub(super) fn end_waits(&mut self, now: Nanos) {
        for early in std::mem::take(&mut self.early) {
            if early.asked().is_some_and(|service| self.listeners.serves(service, early.route.local)) {
                self.handle(now, early.tid, early.request, early.route);
            } else if early.until <= now {
                self.refuse(early.tid, &early.request, early.route);
            } else {
                self.early.push_back(early);
            }
        }
        self.set_early_timer();
    }

    /// The peer says that nobody listens: it is asked again in a moment. False: it was asked for long enough.
    pub(super) fn asks_again(&mut self, now: Nanos, id: CommId) -> bool {
        let deadline = now + AGAIN;
        let insists = self.table.get(id).is_some_and(|connection| deadline <= connection.insists_until);
        if insists {
            self.ask_again_at(id, deadline);
        }
        insists
    }

    fn set_early_timer(&mut self) {
        // All wait equally long.
        if let Some(first) = self.early.front() {
            self.wheel.set(self.table.limit(), first.until);
        }
    }

    /// Says that nobody listens.
    fn refuse(&mut self, tid: u64, request: &CmMessage, route: Route) {
        match request {
            CmMessage::Req(req) => {
                self.refuse_req(tid, req, route, RejReason::INVALID_SERVICE_ID, Ari::NONE);
            }
            CmMessage::SidrReq(question) => {
                let rep = SidrRep {
                    request_id: question.request_id,
                    status: SidrStatus::UNSUPPORTED,
                    service_id: question.service_id,
                    ..SidrRep::default()
                };
                self.send(route, tid, &CmMessage::SidrRep(rep));
            }
            _ => {}
        }
    }
}
