//! Requests that arrive shortly before their listener exists. A peer's request waits for a moment before it is refused.
//! Our request is repeated for a moment if the peer has no listener.
//!
//! A program that creates a listener for each connection (`perftest` with `-R`) races with its client, which knows
//! about the listener by other means. To both ends, the wait looks like a slow link.

use roxie_base::time::Nanos;
use roxie_wire::cm::{Ari, CmMessage, CommId, Kind, RejReason, SidrRep, SidrStatus};

use super::Route;
use super::connection::ConnectionState;
use super::early::Early;
use super::manager::Manager;
use super::transitions::Cause;

/// Delay before a refused request is repeated.
const AGAIN: Nanos = Nanos::from_millis(20);
/// Delay before a request is repeated that was refused as stale: the peer ends the old connection first. The delay
/// doubles with each further repetition until an answer arrives.
const AFTER_STALE: Nanos = Nanos::from_millis(100);
/// Number of times that a request may be refused as stale before the consumer is told. Each refusal has the peer repeat
/// its message for the old connection, which may be lost.
const STALE_REFUSALS: u8 = 3;

impl Manager {
    /// Lets a request without a listener wait, or refuses it.
    pub(super) fn hold_early(&mut self, now: Nanos, tid: u64, request: CmMessage, route: Route) {
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

    /// Makes the next `handle_timeouts` check the waiting requests, because a listener was added.
    pub(super) fn recheck_early(&mut self) {
        if !self.early.is_empty() {
            self.wheel.set(self.table.limit(), Nanos::ZERO);
        }
    }

    /// Handles waiting requests that have a listener now, and refuses expired ones.
    pub(super) fn end_waits(&mut self, now: Nanos) {
        for early in std::mem::take(&mut self.early) {
            if early
                .requested_service()
                .is_some_and(|service| self.listeners.serves(service, early.route.local))
            {
                self.handle(now, early.tid, early.request, early.route);
            } else if early.until <= now {
                self.refuse(early.tid, &early.request, early.route);
            } else {
                self.early.push_back(early);
            }
        }
        self.set_early_timer();
    }

    /// Repeats a request soon, because the peer has no listener. Returns false if the time for repetitions is over.
    pub(super) fn repeat_request(&mut self, now: Nanos, id: CommId) -> bool {
        let deadline = now + AGAIN;
        let insists = self.table.get(id).is_some_and(|connection| deadline <= connection.repeat_until);
        if insists {
            self.repeat_at(id, deadline);
        }
        insists
    }

    /// Repeats a request that was refused because the peer has an old connection of our QP, which it is about to end.
    /// Returns false if the request was refused too often.
    pub(super) fn repeat_stale(&mut self, now: Nanos, id: CommId) -> bool {
        let insists = self.config.insistence > Nanos::ZERO;
        let Some(connection) =
            self.table.get_mut(id).filter(|c| insists && c.stale_refusals < STALE_REFUSALS)
        else {
            return false;
        };
        connection.stale_refusals += 1;
        connection.pause = AFTER_STALE;
        connection.answer_due = now + AFTER_STALE + connection.answer_timeout;
        // The time that an MRA granted is over. Another MRA may answer the next copy of the request.
        self.set_state(id, Cause::Got(Kind::Rej), ConnectionState::ReqSent);
        self.wait_on(now, id);
        true
    }

    fn set_early_timer(&mut self) {
        // All requests wait equally long, so the first one expires first.
        let times = || self.early.iter().map(|early| early.until);
        invariant!(times().is_sorted(), "the first request to wait is not the first whose wait ends");
        if let Some(first) = self.early.front() {
            self.wheel.set(self.table.limit(), first.until);
        }
    }

    /// Refuses a request because there is no listener.
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
