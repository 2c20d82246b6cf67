//! A server and its client: how both ended, and the outcome.

use std::time::Duration;

use interop::end::Ended;
use interop::report::Outcome;

/// How long to wait for a program after its other end has failed.
const LOSER_WITHIN: Duration = Duration::from_secs(1);

/// How both ends ended.
pub(super) struct Played {
    pub(super) server: Ended,
    pub(super) client: Ended,
}

impl Played {
    /// Makes the result if the client was not started because its server did not get ready.
    pub(super) fn silent(server: Ended) -> Played {
        let client = Ended { code: None, output: "not started: the server does not listen".into() };
        Played { server, client }
    }

    /// Returns the outcome: passed if both exited with 0 and `complaint` finds nothing wrong in their output.
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

/// Returns how long the server may run after its client: `within` if the client exited with 0.
pub(super) fn remaining_time(client: &Ended, within: Duration) -> Duration {
    if client.code == Some(0) { within } else { LOSER_WITHIN }
}

/// Returns the last lines of a program's output, on one line.
pub(super) fn last_words(ended: &Ended) -> String {
    let lines: Vec<&str> = ended.output.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(4)..];
    let code = ended.code.map_or("was ended".to_owned(), |code| format!("exit code {code}"));
    format!("{code}, {}", last.join(" / "))
}
