//! What the network says of requests that found nobody: ICMP, as whoever has the sockets hears it.

use crate::time::Nanos;
use crate::wire::Gid;
use crate::wire::cm::{CommId, Kind};
use crate::wire::mad::{MAD_HEADER_LEN, MAD_LEN, MadHeader};

use super::connection::State;
use super::manager::Manager;
use super::{Event, WhyUnreachable};

/// How long after such an answer a peer is asked again, while it may be that it is only starting. Linux says it six times in a
/// row to a host, then once a second.
const AGAIN: Nanos = Nanos::from_millis(100);

impl Manager {
    /// `remote`, or a host on the way there, says that nothing takes a datagram of ours. `quoted` is the beginning of the management
    /// datagram in it, as far as it was quoted.
    ///
    /// It ends the request that it quotes, if that still waits for its first answer, with [`Event::Unreachable`]. What quotes too little to
    /// name one, or another message, or another peer's, is counted and nothing else.
    pub fn handle_undelivered(&mut self, now: Nanos, remote: Gid, quoted: &[u8]) {
        let quoted = &quoted[..quoted.len().min(MAD_LEN)];
        let Some(id) = self.quotes(remote, quoted) else {
            self.counters.unknown_id += 1;
            return;
        };
        let Some(connection) = self.table.get_mut(id) else { return };
        let (deadline, unanswered) =
            (now + AGAIN, if connection.state == State::ReqSent { Kind::Req } else { Kind::SidrReq });
        if deadline <= connection.insists_until {
            return self.ask_again_at(id, deadline);
        }
        let orphan = connection.orphan;
        self.remove(id);
        if !orphan {
            self.emit(Event::Unreachable { id, unanswered, why: WhyUnreachable::NothingThere });
        }
    }

    /// Which request is quoted, of those that wait for `remote`.
    fn quotes(&self, remote: Gid, quoted: &[u8]) -> Option<CommId> {
        let header: &[u8; MAD_HEADER_LEN] = quoted.first_chunk()?;
        // The lower half of a transaction ID of ours names the connection.
        let id = CommId(MadHeader::read(header)?.tid as u32);
        let connection = self.table.get(id)?;
        let ours = connection.outgoing.as_ref()?.mad.starts_with(quoted);
        (connection.state.is_asking() && connection.route.remote == remote && ours).then_some(id)
    }
}
