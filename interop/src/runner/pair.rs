//! A server and its client: how both ended, and what that comes to.

use std::time::Duration;

use interop::end::Ended;
use interop::report::Outcome;

/// How long a program is waited for whose other end has failed.
const LOSER_WITHIN: Duration = Duration::from_secs(1);

/// How both ends ended.
pub(super) struct Played {
    pub(super) server: Ended,
    pub(super) client: Ended,
}

impl Played {
    /// The client was not started, since its server did not get ready.
    pub(super) fn silent(server: Ended) -> Played {
        let client = Ended { code: None, output: "not started: the server is silent".into() };
        Played { server, client }
    }

    /// Passed if both ended well and `complaint` finds nothing in what they said.
    pub(super) fn judged(&self, complaint: impl FnOnce(&Played) -> Option<String>) -> Outcome {
        let Played { server, client } = self;
        let why = match (server.code, client.code) {
            (Some(0), Some(0)) => complaint(self),
            _ => Some("a program failed".to_owned()),
        };
        match why {
            None => Outcome::Pass,
            Some(why) => Outcome::Fail(format!(
                "{why}; the server: {}; the client: {}",
                last_words(server),
                last_words(client)
            )),
        }
    }
}

/// How long the server may take after its client has ended, if it has so much time after one that ended well.
pub(super) fn time_left(client: &Ended, within: Duration) -> Duration {
    if client.code == Some(0) { within } else { LOSER_WITHIN }
}

/// The end of what a program said, on one line.
pub(super) fn last_words(ended: &Ended) -> String {
    let lines: Vec<&str> = ended.output.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(4)..];
    let code = ended.code.map_or("was ended".to_owned(), |code| format!("exit code {code}"));
    format!("{code}, {}", last.join(" / "))
}
