//! The transitions of a connection (IBTA 12.9.6, 12.9.7). Each change of state must be a row of the table, and
//! [`README.md`](../cm/README.md) shows the diagram that follows from it.

use super::connection::ConnectionState::{
    self, DreqRcvd, DreqSent, Established, MraRepRcvd, MraRepSent, MraReqSent, RepRcvd, RepSent, RepWait,
    ReqRcvd, ReqSent, SidrReqRcvd, SidrReqSent, TimeWait,
};
use roxie_wire::cm::Kind;

/// Reason for a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A message from the peer.
    Got(Kind),
    /// `accept`: the consumer accepts a request.
    Accept,
    /// `ready`: the consumer's QP is ready.
    Ready,
    /// `established`: data has arrived.
    Data,
    /// `delay`: the consumer needs more time.
    Delay,
    /// `reject`: the consumer refuses a request or a reply.
    Reject,
    /// `disconnect`: the consumer ends the connection.
    Disconnect,
    /// `destroy`: the consumer gives the connection up.
    Destroy,
    /// `answer_resolution`: the consumer answers a resolution.
    Answer,
    /// The time that an MRA has granted is over.
    Retry,
    /// No answer after the last retry.
    GiveUp,
    /// The network has returned the request.
    Undelivered,
    /// The peer's QP connects again.
    Stale,
    /// Another request needs the place in the table or in the backlog.
    Evicted,
    /// A pending request is no longer repeated, or another one needs its place.
    Withdrawn,
    /// The time to linger is over.
    Lingered,
}

use Cause::{
    Accept, Answer, Data, Delay, Destroy, Disconnect, Evicted, GiveUp, Got, Lingered, Ready, Reject, Retry,
    Stale, Undelivered, Withdrawn,
};

/// Transitions from several states to one; `None`: the connection is removed.
pub(super) struct Transition {
    from: &'static [ConnectionState],
    cause: Cause,
    to: Option<ConnectionState>,
}

const fn row(from: &'static [ConnectionState], cause: Cause, to: ConnectionState) -> Transition {
    Transition { from, cause, to: Some(to) }
}

const fn end(from: &'static [ConnectionState], cause: Cause) -> Transition {
    Transition { from, cause, to: None }
}

/// States between the first message from the peer and the end of the setup.
const SETUP: &[ConnectionState] = &[ReqRcvd, MraReqSent, RepSent, MraRepRcvd, RepRcvd, MraRepSent];

/// All transitions. At most 64, one for each bit of [`bit`].
pub(super) const TRANSITIONS: &[Transition] = &[
    // Active side.
    row(&[ReqSent], Got(Kind::Mra), RepWait),
    row(&[RepWait], Retry, ReqSent),
    // Refused as stale: the peer ends the old connection first.
    row(&[RepWait], Got(Kind::Rej), ReqSent),
    row(&[ReqSent, RepWait], Got(Kind::Rep), RepRcvd),
    row(&[RepRcvd], Got(Kind::Rep), MraRepSent),
    row(&[RepRcvd], Delay, MraRepSent),
    row(&[RepRcvd, MraRepSent], Ready, Established),
    end(&[ReqSent, RepWait], Got(Kind::Rej)),
    end(&[ReqSent], Undelivered),
    // An inconsistent REP.
    row(&[ReqSent, RepWait], Got(Kind::Rep), TimeWait),
    row(&[ReqSent, RepWait], GiveUp, TimeWait),
    row(&[ReqSent, RepWait], Destroy, TimeWait),
    // Passive side.
    row(&[ReqRcvd], Got(Kind::Req), MraReqSent),
    row(&[ReqRcvd], Delay, MraReqSent),
    row(&[ReqRcvd, MraReqSent], Accept, RepSent),
    row(&[RepSent], Got(Kind::Mra), MraRepRcvd),
    row(&[MraRepRcvd], Retry, RepSent),
    row(&[RepSent, MraRepRcvd], Got(Kind::Rtu), Established),
    row(&[RepSent, MraRepRcvd], Data, Established),
    row(&[RepSent, MraRepRcvd], GiveUp, TimeWait),
    end(&[RepSent, MraRepRcvd], Evicted),
    end(&[ReqRcvd, MraReqSent], Withdrawn),
    // The end of a setup.
    row(SETUP, Reject, TimeWait),
    row(SETUP, Destroy, TimeWait),
    row(SETUP, Got(Kind::Rej), TimeWait),
    // The end of a connection.
    row(&[RepSent, MraRepRcvd, RepRcvd, MraRepSent, Established], Got(Kind::Dreq), DreqRcvd),
    row(&[Established], Disconnect, DreqSent),
    row(&[Established], Destroy, DreqSent),
    row(&[Established], Stale, DreqSent),
    row(&[Established, DreqSent], Got(Kind::Rej), TimeWait),
    row(&[DreqSent], Got(Kind::Drep), TimeWait),
    row(&[DreqSent], Got(Kind::Dreq), TimeWait),
    row(&[DreqSent], GiveUp, TimeWait),
    row(&[DreqRcvd], Disconnect, TimeWait),
    row(&[DreqRcvd], Destroy, TimeWait),
    end(&[TimeWait], Lingered),
    end(&[TimeWait], Evicted),
    // Resolutions.
    end(&[SidrReqSent], Got(Kind::SidrRep)),
    end(&[SidrReqSent], Undelivered),
    end(&[SidrReqSent], GiveUp),
    end(&[SidrReqSent], Destroy),
    row(&[SidrReqRcvd], Answer, TimeWait),
    row(&[SidrReqRcvd], Destroy, TimeWait),
    end(&[SidrReqRcvd], Withdrawn),
];

/// Returns the bit of a transition's row. `None`: there is no such transition.
pub(super) fn bit(from: ConnectionState, cause: Cause, to: Option<ConnectionState>) -> Option<u64> {
    let is_it = |row: &Transition| row.to == to && row.cause == cause && row.from.contains(&from);
    TRANSITIONS.iter().position(is_it).map(|row| 1 << row)
}

/// Returns the transitions without a bit in `seen`, for tests of coverage.
#[doc(hidden)]
pub fn unseen(seen: u64) -> Vec<String> {
    let rows = TRANSITIONS.iter().enumerate().filter(|(row, _)| seen & 1 << row == 0);
    rows.map(|(_, Transition { from, cause, to })| format!("{from:?} {cause:?} {to:?}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States in which connections begin, with the reason.
    const BEGINNINGS: [(ConnectionState, &str); 4] =
        [(ReqSent, "connect"), (ReqRcvd, "REQ"), (SidrReqSent, "resolve"), (SidrReqRcvd, "SIDR_REQ")];

    fn label(cause: Cause) -> String {
        match cause {
            Got(Kind::SidrRep) => "SIDR_REP".to_owned(),
            Got(kind) => format!("{kind:?}").to_uppercase(),
            Data => "established".to_owned(),
            Answer => "answer_resolution".to_owned(),
            Retry => "granted time is over".to_owned(),
            GiveUp => "no answer".to_owned(),
            Stale => "QP connects anew".to_owned(),
            Lingered => "lingered".to_owned(),
            call => format!("{call:?}").to_lowercase(),
        }
    }

    /// Returns the diagram in Mermaid's language: an arrow for each pair of states, with all reasons.
    fn diagram() -> String {
        let mut arrows: Vec<(String, String, Vec<String>)> = Vec::new();
        let mut add = |from: String, to: String, label: String| match arrows
            .iter_mut()
            .find(|(f, t, _)| (f, t) == (&from, &to))
        {
            Some((.., labels)) => labels.push(label),
            None => arrows.push((from, to, vec![label])),
        };
        for (state, reason) in BEGINNINGS {
            add("[*]".to_owned(), format!("{state:?}"), reason.to_owned());
        }
        for Transition { from, cause, to } in TRANSITIONS {
            for state in *from {
                let to = to.map_or("[*]".to_owned(), |to| format!("{to:?}"));
                add(format!("{state:?}"), to, label(*cause));
            }
        }
        let line = |(from, to, labels): &(String, String, Vec<String>)| {
            format!("    {from} --> {to}: {}\n", labels.join(", "))
        };
        format!("```mermaid\nstateDiagram-v2\n{}```\n", arrows.iter().map(line).collect::<String>())
    }

    #[test]
    fn page_shows_the_diagram_of_all_transitions() {
        let page = include_str!("README.md");
        let shown = page.find("```mermaid").map(|at| &page[at..]).unwrap_or_default();
        let drawn = diagram();
        assert!(shown.starts_with(&drawn), "the diagram in src/nic/cm/README.md is to be:\n{drawn}");
    }

    #[test]
    fn transitions_are_listed_once() {
        assert!(TRANSITIONS.len() <= 64);
        for (row, Transition { from, cause, to }) in TRANSITIONS.iter().enumerate() {
            for state in *from {
                assert_eq!(bit(*state, *cause, *to), Some(1 << row), "{state:?} {cause:?} {to:?}");
                assert_ne!(Some(*state), *to);
            }
        }
    }

    #[test]
    fn every_state_is_reached_and_left() {
        for state in [
            ReqSent,
            RepWait,
            ReqRcvd,
            MraReqSent,
            RepSent,
            MraRepRcvd,
            RepRcvd,
            MraRepSent,
            Established,
            DreqSent,
            DreqRcvd,
            TimeWait,
            SidrReqSent,
            SidrReqRcvd,
        ] {
            let begins = BEGINNINGS.iter().any(|(first, _)| *first == state);
            assert!(begins || TRANSITIONS.iter().any(|row| row.to == Some(state)), "{state:?} is reached");
            assert!(TRANSITIONS.iter().any(|row| row.from.contains(&state)), "{state:?} is left");
        }
    }
}
