//! Timers: missing answers (IBTA 12.9.8.4), and the end of lingering.

use roxie_base::time::Nanos;
use roxie_wire::Gid;
use roxie_wire::cm::{CommId, Kind, Stage};

use super::connection::{ConnectionState, RemoteKey};
use super::manager::Manager;
use super::transitions::Cause;
use super::{Event, HowDisconnected, WhyUnreachable};

impl Manager {
    /// Handles all timers that have expired at `now`.
    pub fn handle_timeouts(&mut self, now: Nanos) {
        let mut due = std::mem::take(&mut self.due);
        let table = &self.table;
        self.wheel.advance(now, |index| {
            let id = table.id_at(index as u16).filter(|_| index != table.limit());
            invariant!(
                id.is_some() || index == table.limit(),
                "a timer of connection {index}, which is gone"
            );
            due.push(id);
        });
        for id in due.drain(..) {
            // A request that has waited may take the place of a connection whose timer has expired as well: the timer
            // is not the new one's.
            match id {
                None => self.end_waits(now),
                Some(id) => {
                    self.handle_timer(now, id);
                    invariant!(self.ends_by_itself(id), "{id:?} waits, and no timer ends it");
                }
            }
        }
        self.due = due;
    }

    fn handle_timer(&mut self, now: Nanos, id: CommId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let orphan = connection.orphan;
        if connection.state == ConnectionState::TimeWait {
            self.remove(id, Cause::Lingered);
            if !orphan {
                self.emit(Event::TimeWaitExit { id });
            }
            return;
        }
        if connection.state == ConnectionState::Established {
            return self.examine_further(now, id);
        }
        if connection.state.is_pending() {
            self.counters.not_repeated += 1;
            return self.withdraw(id);
        }
        let Some(kind) = connection.outgoing.as_ref().map(|outgoing| outgoing.kind) else { return };
        if connection.pause > Nanos::ZERO {
            connection.repeats += 1;
            // A REP is repeated once. A peer that lacks it repeats its REQ.
            let once = connection.state == ConnectionState::RepSent;
            connection.pause = if once { Nanos::ZERO } else { connection.pause + connection.pause };
            self.send_again(id, kind);
            return self.wait_on(now, id);
        }
        let transmissions = connection.max_retries.saturating_sub(connection.retries_remaining);
        // Does not apply to SIDR_REQ: a slow host has no message to announce a delay.
        let (waits, answered) = (connection.state == ConnectionState::ReqSent, connection.is_answered);
        let remote = connection.route.remote;
        let unknown =
            waits && transmissions >= self.config.silent_retries && !answered && !self.knows(remote);
        let Some(connection) = self.table.get_mut(id) else { return };
        let silent = unknown || connection.has_last_message();
        if connection.retries_remaining > 0 && !silent {
            connection.retries_remaining -= 1;
            let deadline = now + connection.answer_timeout;
            // The wait granted by the peer's MRA is over. The peer may send another MRA.
            let state = match connection.state {
                ConnectionState::RepWait => ConnectionState::ReqSent,
                ConnectionState::MraRepRcvd => ConnectionState::RepSent,
                other => other,
            };
            self.set_state(id, Cause::Retry, state);
            self.send_again(id, kind);
            self.set_timer(id, deadline);
            return;
        }
        self.give_up(now, id, kind);
    }

    /// True if a connection is gone, established, the consumer's to answer, or has a timer.
    fn ends_by_itself(&self, id: CommId) -> bool {
        let has_timer = || self.table.index(id).is_some_and(|index| self.wheel.is_set(index.into()));
        let is_waited_for =
            |state: ConnectionState| state == ConnectionState::Established || state.is_pending();
        self.state(id).is_none_or(|state| is_waited_for(state) || has_timer())
    }

    /// Gives up on an answer after the last retry.
    fn give_up(&mut self, now: Nanos, id: CommId, unanswered: Kind) {
        let Some(connection) = self.table.get(id) else { return };
        let (state, orphan) = (connection.state, connection.orphan);
        let why = WhyUnreachable::Silent { sent: connection.transmissions() };
        let unreachable = Event::Unreachable { id, unanswered, why };
        match state {
            ConnectionState::ReqSent | ConnectionState::RepWait => {
                self.send_rej_timeout(id, Stage::Req);
                self.abandon(now, id, Cause::GiveUp);
            }
            ConnectionState::RepSent | ConnectionState::MraRepRcvd => {
                self.send_rej_timeout(id, Stage::Rep);
                self.abandon(now, id, Cause::GiveUp);
            }
            ConnectionState::SidrReqSent => self.remove(id, Cause::GiveUp),
            ConnectionState::DreqSent => {
                return self.disconnected(now, id, Cause::GiveUp, HowDisconnected::NoAnswer);
            }
            // States without an outstanding request.
            ConnectionState::ReqRcvd
            | ConnectionState::MraReqSent
            | ConnectionState::RepRcvd
            | ConnectionState::MraRepSent
            | ConnectionState::Established
            | ConnectionState::DreqRcvd
            | ConnectionState::SidrReqRcvd
            | ConnectionState::TimeWait => return,
        }
        if !orphan {
            self.emit(unreachable);
        }
    }

    /// True if a message from this host has led to a connection that still exists.
    fn knows(&self, remote: Gid) -> bool {
        let first = RemoteKey { address: remote, ca_guid: 0, comm_id: CommId(0), resolution: false };
        self.by_remote.range(first..).next().is_some_and(|(key, _)| key.address == remote)
    }
}
