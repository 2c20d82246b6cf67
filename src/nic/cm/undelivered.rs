//! Undeliverable requests: ICMP messages, as the owner of the sockets receives them.

use roxie_base::time::Nanos;
use roxie_wire::Gid;
use roxie_wire::cm::{CommId, Kind};
use roxie_wire::mad::{MAD_HEADER_LEN, MAD_LEN, MadHeader};

use super::connection::ConnectionState;
use super::manager::Manager;
use super::transitions::Cause;
use super::{Event, WhyUnreachable};

/// Delay before a request is repeated after such a message, while the peer may still be starting. Linux sends the
/// message six times in a row to a host, then once a second.
const AGAIN: Nanos = Nanos::from_millis(100);

impl Manager {
    /// Handles an ICMP message from `remote` or a router: a datagram of ours could not be delivered to RoCE there.
    /// `quoted` is the beginning of the quoted management datagram.
    ///
    /// Ends the quoted request with [`Event::Unreachable`], if it still waits for its first answer. Messages that quote
    /// too little, no pending request, or another peer's request are only counted.
    pub fn handle_undelivered(&mut self, now: Nanos, remote: Gid, quoted: &[u8]) {
        let quoted = &quoted[..quoted.len().min(MAD_LEN)];
        let Some(id) = self.quotes(remote, quoted) else {
            self.counters.unknown_id += 1;
            return;
        };
        let Some(connection) = self.table.get_mut(id) else { return };
        let (deadline, unanswered) = (
            now + AGAIN,
            if connection.state == ConnectionState::ReqSent { Kind::Req } else { Kind::SidrReq },
        );
        if deadline <= connection.repeat_until {
            return self.repeat_at(id, deadline);
        }
        let orphan = connection.orphan;
        self.remove(id, Cause::Undelivered);
        if !orphan {
            self.emit(Event::Unreachable { id, unanswered, why: WhyUnreachable::NothingThere });
        }
    }

    /// Returns the pending request to `remote` that is quoted.
    fn quotes(&self, remote: Gid, quoted: &[u8]) -> Option<CommId> {
        let header: &[u8; MAD_HEADER_LEN] = quoted.first_chunk()?;
        // The lower half of our transaction IDs is the connection's ID.
        let id = CommId(MadHeader::read(header)?.tid as u32);
        let connection = self.table.get(id)?;
        let ours = connection.outgoing.as_ref()?.mad.starts_with(quoted);
        (connection.state.awaits_answer() && connection.route.remote == remote && ours).then_some(id)
    }
}
