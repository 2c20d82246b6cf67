//! Rows of stock programs: a server at one end, its client at the other, and a check of their output.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use interop::end::{End, Ended, Local};
use interop::error::Error;
use interop::peer::Peer;
use interop::report::Outcome;
use interop::rows::{Family, Program, Ready, Row, Side, Stock};
use interop::skip::SkipReason;

use super::pair::remaining_time;

/// TCP port of pingpongs and perftest.
pub(super) const TCP_PORT: u16 = 18515;
/// How long a server may take until it listens.
pub(super) const LISTENS_WITHIN: Duration = Duration::from_secs(10);
/// How long a client may take.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// Time until an emulated rdma_cm server accepts: riostream's sets up its mappings after it listens.
const SETTLES_WITHIN: Duration = Duration::from_millis(500);
/// Exit code of the peer, and of `roxie run`, if a program does not exist.
pub(super) const NO_SUCH_PROGRAM: i32 = 127;

/// Starts an end's program; a client gets the server's address.
type Start<'a, E, T> = &'a dyn Fn(&mut E, Option<String>) -> Result<T, Error>;

/// The ends of a row.
struct Ends<'a, 'b> {
    roxie: &'a mut (dyn Local + 'b),
    peer: &'a mut Peer,
    /// Starts the program on this host.
    start_here: Start<'a, dyn Local + 'b, ()>,
    /// Starts the program at the peer, and returns the job's number.
    start_there: Start<'a, Peer, usize>,
}

/// How both programs ended.
struct Played {
    here: Ended,
    there: Ended,
}

/// Runs a stock pingpong at the peer and `roxie pingpong` here: 300 exchanges of 4 KiB (UD: of one packet), with the
/// programs' own data check (`-c`) if they fill buffers alike.
pub(super) fn pingpong(program: Stock, row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Outcome {
    let mut outcome = || {
        if !roxie.has_pingpong(program)? {
            return Ok(Err(Outcome::Skip(SkipReason::RoxieHasNoProgram)));
        }
        let options = match program {
            Stock::Ud => "-s 1024 -n 300 -c",
            // The stock SRQ program fills its buffer differently, so its data check would fail.
            Stock::Srq => "-m 1024 -s 4096 -n 300",
            _ => "-m 1024 -s 4096 -n 300 -c",
        };
        let words = |head: String, server: Option<String>| -> Vec<String> {
            let line = format!("{head} -p {TCP_PORT} {options}");
            line.split_whitespace().map(str::to_owned).chain(server).collect()
        };
        let there = peer_gid(peer, row.family)?;
        let stock = format!("ibv_{program}_pingpong");
        let ends = Ends {
            roxie,
            peer,
            start_here: &|roxie, server| roxie.pingpong(program, row.family, &words(String::new(), server)),
            start_there: &|peer, server| peer.spawn(&stock, &words(format!("-g {there}"), server)),
        };
        ends.play(row)
    };
    judged(outcome(), |played| {
        let invalid = [&played.here, &played.there].iter().any(|end| end.output.contains("invalid data"));
        // The stock program exits with 0 after invalid data, but reports it.
        invalid.then(|| "invalid data".to_owned())
    })
}

/// Runs a stock program at both ends: here under `roxie run`, at the peer as it is.
pub(super) fn unmodified(program: Program, row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Outcome {
    let mut outcome = || {
        if program.uses_cm() {
            return run_by_cm(program, row, roxie, peer);
        }
        let (here, there) = (roxie.gid_index(row.family)?, peer_gid(peer, row.family)?);
        let ends = Ends {
            roxie,
            peer,
            start_here: &|roxie, server| roxie.program(program.name(), &program.words(here, server)),
            start_there: &|peer, server| peer.spawn(program.name(), &program.words(there, server)),
        };
        ends.play(row)
    };
    judged(outcome(), |Played { here, there }| {
        let (client, server) = match row.requester {
            Side::Roxie => (here, there),
            Side::Peer => (there, here),
        };
        program.complaint(&client.output, &server.output)
    })
}

/// Runs a program that connects by rdma_cm. Most do not show from outside that the server listens, so a client that is
/// refused is started again.
fn run_by_cm(
    program: Program,
    row: &Row,
    roxie: &mut dyn Local,
    peer: &mut Peer,
) -> Result<Result<Played, Outcome>, Error> {
    if is_another(program, roxie, peer)? {
        return Ok(Err(Outcome::Skip(SkipReason::ProgramIsAnother)));
    }
    let met = match row.requester {
        Side::Roxie => serve_at_peer(program, row, roxie, peer),
        Side::Peer => serve_here(program, row, roxie, peer),
    };
    let played = match met? {
        Ok(played) => played,
        Err(outcome) => return Ok(Err(outcome)),
    };
    if [&played.here, &played.there].iter().any(|end| end.code == Some(NO_SUCH_PROGRAM)) {
        return Ok(Err(Outcome::Skip(SkipReason::ProgramMissing)));
    }
    Ok(Ok(played))
}

/// True if the usage of either end's program shows that it is another program of the same name.
fn is_another(program: Program, roxie: &mut dyn Local, peer: &mut Peer) -> Result<bool, Error> {
    let Some(sign) = program.sign_of_another() else { return Ok(false) };
    let help = ["-h".to_owned()];
    let job = peer.spawn(program.name(), &help)?;
    let there = peer.wait(job, ENDS_WITHIN)?;
    roxie.program(program.name(), &help)?;
    let here = roxie.wait(ENDS_WITHIN)?;
    Ok([here, there].iter().any(|end| end.output.contains(sign)))
}

/// Runs the server at the peer, the client here.
fn serve_at_peer(
    program: Program,
    row: &Row,
    roxie: &mut dyn Local,
    peer: &mut Peer,
) -> Result<Result<Played, Outcome>, Error> {
    let (here, there) = (roxie.address(row.family)?, peer.address(row.family)?);
    let (server, options) = program.over_cm(true, there, there);
    let job = peer.spawn(&server, &options)?;
    let ready = match program.shows_ready(there) {
        Ready::Nothing => {
            thread::sleep(SETTLES_WITHIN);
            true
        }
        Ready::Listens(port) => peer.wait_for_listener(port, LISTENS_WITHIN)?,
        Ready::Joined(group) => joins(peer, group)?,
    };
    if !ready {
        return Ok(Err(silent("the peer", &peer.wait(job, Duration::ZERO)?)));
    }
    let (client, options) = program.over_cm(false, there, here);
    let here = until_taken(|| {
        roxie.program(&client, &options)?;
        roxie.wait(ENDS_WITHIN)
    });
    // A server without a client must not keep its address.
    let there = peer.wait(job, here.as_ref().map_or(Duration::ZERO, |here| server_has(program, here)));
    let here = here?;
    let there = served(program, &here, there?);
    Ok(Ok(Played { here, there }))
}

/// Runs the server here, the client at the peer.
fn serve_here(
    program: Program,
    row: &Row,
    roxie: &mut dyn Local,
    peer: &mut Peer,
) -> Result<Result<Played, Outcome>, Error> {
    let (here, there) = (roxie.address(row.family)?, peer.address(row.family)?);
    let (server, options) = program.over_cm(true, here, here);
    roxie.program(&server, &options)?;
    let ready = match program.shows_ready(here) {
        Ready::Nothing => roxie.wait_for_claim(row.port, LISTENS_WITHIN)?,
        Ready::Listens(port) => roxie.wait_for_listener(port, LISTENS_WITHIN)?,
        Ready::Joined(group) => joins(roxie, group)?,
    };
    if !ready {
        return Ok(Err(silent("roxie", &roxie.wait(Duration::ZERO)?)));
    }
    let (client, options) = program.over_cm(false, here, there);
    let there = until_taken(|| {
        let job = peer.spawn(&client, &options)?;
        peer.wait(job, ENDS_WITHIN)
    })?;
    let here = roxie.wait(server_has(program, &there))?;
    let here = served(program, &there, here);
    Ok(Ok(Played { here, there }))
}

/// Returns the outcome of a row if the server did not get ready.
fn silent(side: &str, server: &Ended) -> Outcome {
    match server.code {
        Some(NO_SUCH_PROGRAM) => Outcome::Skip(SkipReason::ProgramMissing),
        _ => Outcome::Fail(format!("{side}'s server does not listen: {server:?}")),
    }
}

/// Waits until this end's kernel has joined the group.
fn joins<E: End + ?Sized>(end: &mut E, group: IpAddr) -> Result<bool, Error> {
    let until = Instant::now() + LISTENS_WITHIN;
    loop {
        let joined = end.is_member(group)?;
        if joined || Instant::now() >= until {
            return Ok(joined);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Starts a client again while its server refuses it, for as long as a server may take to listen.
pub(super) fn until_taken(mut client: impl FnMut() -> Result<Ended, Error>) -> Result<Ended, Error> {
    let until = Instant::now() + LISTENS_WITHIN;
    loop {
        let ended = client()?;
        let reports = |words: &[&str]| words.iter().any(|word| ended.output.contains(word));
        // cmtime always exits with 0. "Unexpected" is perftest's word for a rejection.
        let refused = reports(&["EVENT_REJECTED", "EVENT_UNREACHABLE"])
            || ended.code != Some(0)
                && reports(&["REJECTED", "UNREACHABLE", "refused", "Unexpected CM event"]);
        if !refused || Instant::now() >= until {
            return Ok(without_own_race(ended));
        }
    }
}

/// Returns how a client ended. Once rping's has disconnected, it closes the channel on which its other thread waits for
/// events, and exits with 255 instead of 0 if that thread notices before the process ends (`rping.c` of rdma-core).
fn without_own_race(client: Ended) -> Ended {
    let reports = |words: &str| client.output.contains(words);
    let has_failed = reports("failed") || reports("mismatch");
    let is_race =
        client.code == Some(255) && reports("rdma_get_cm_event: Bad file descriptor") && !has_failed;
    if is_race { Ended { code: Some(0), ..client } } else { client }
}

/// Returns how long the server may run after its client has ended.
pub(super) fn server_has(program: Program, client: &Ended) -> Duration {
    if program.never_ends() { Duration::ZERO } else { remaining_time(client, ENDS_WITHIN) }
}

/// Returns how the server ended. A server that never ends by itself was killed; this counts as success if its client
/// succeeded.
pub(super) fn served(program: Program, client: &Ended, server: Ended) -> Ended {
    match server.code {
        None if program.never_ends() && client.code == Some(0) => Ended { code: Some(0), ..server },
        _ => server,
    }
}

/// Returns the index of the peer's address in its GID table.
pub(super) fn peer_gid(peer: &mut Peer, family: Family) -> Result<usize, Error> {
    let address = peer.address(family)?;
    Ok(peer.gids().iter().find(|gid| gid.address == address).map_or(0, |gid| gid.index as usize))
}

/// Returns the outcome of a row from how its programs ended.
fn judged(
    played: Result<Result<Played, Outcome>, Error>,
    complaint: impl FnOnce(&Played) -> Option<String>,
) -> Outcome {
    let played = match played {
        Ok(Ok(played)) => played,
        Ok(Err(outcome)) => return outcome,
        Err(error) => return Outcome::Fail(error.to_string()),
    };
    let Played { here, there } = &played;
    let why = if here.code == Some(0) && there.code == Some(0) {
        match complaint(&played) {
            Some(why) => why,
            None => return Outcome::Pass,
        }
    } else {
        "a program failed".to_owned()
    };
    Outcome::Fail(format!("{why}; roxie's side: {here:?}; the peer's: {there:?}"))
}

impl Ends<'_, '_> {
    /// Starts the server, then the client at the requester's end, and waits for both.
    fn play(mut self, row: &Row) -> Result<Result<Played, Outcome>, Error> {
        let played = match row.requester {
            Side::Roxie => self.play_as_client(row.family),
            Side::Peer => self.play_as_server(row.family),
        };
        if played.is_err() {
            // A program still running here must not keep the interface.
            self.roxie.end_program();
        }
        played
    }

    /// Returns the addresses on which servers of both ends listen: IPv4, if there is any, whatever the GIDs. Some
    /// programs listen on nothing else.
    fn hosts(&mut self, family: Family) -> Result<(IpAddr, IpAddr), Error> {
        match (self.roxie.address(Family::V4), self.peer.address(Family::V4)) {
            (Ok(here), Ok(there)) => Ok((here, there)),
            _ => Ok((self.roxie.address(family)?, self.peer.address(family)?)),
        }
    }

    fn play_as_client(&mut self, family: Family) -> Result<Result<Played, Outcome>, Error> {
        let (_, server) = self.hosts(family)?;
        let job = (self.start_there)(self.peer, None)?;
        if !self.peer.wait_for_listener(TCP_PORT, LISTENS_WITHIN)? {
            let server = self.peer.wait(job, Duration::ZERO)?;
            return Ok(Err(match server.code {
                Some(NO_SUCH_PROGRAM) => Outcome::Skip(SkipReason::ProgramMissing),
                _ => Outcome::Fail(format!("the peer's server does not listen: {server:?}")),
            }));
        }
        (self.start_here)(self.roxie, Some(server.to_string()))?;
        let here = self.roxie.wait(ENDS_WITHIN)?;
        let there = self.peer.wait(job, remaining_time(&here, ENDS_WITHIN))?;
        Ok(Ok(Played { here, there }))
    }

    fn play_as_server(&mut self, family: Family) -> Result<Result<Played, Outcome>, Error> {
        let (server, _) = self.hosts(family)?;
        (self.start_here)(self.roxie, None)?;
        if !self.roxie.wait_for_listener(TCP_PORT, LISTENS_WITHIN)? {
            let server = self.roxie.wait(Duration::ZERO)?;
            return Ok(Err(match server.code {
                Some(NO_SUCH_PROGRAM) => Outcome::Skip(SkipReason::ProgramMissing),
                _ => Outcome::Fail(format!("roxie's server does not listen: {server:?}")),
            }));
        }
        let job = (self.start_there)(self.peer, Some(server.to_string()))?;
        let there = self.peer.wait(job, ENDS_WITHIN)?;
        if there.code == Some(NO_SUCH_PROGRAM) {
            self.roxie.wait(Duration::ZERO)?;
            return Ok(Err(Outcome::Skip(SkipReason::ProgramMissing)));
        }
        let here = self.roxie.wait(remaining_time(&there, ENDS_WITHIN))?;
        Ok(Ok(Played { here, there }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_clients_own_race_is_success() {
        let ended = |code, output: &str| Ended { code: Some(code), output: output.to_owned() };
        let raced = "ping data: rdma-ping-19: T\nclient DISCONNECT EVENT...\nrdma_get_cm_event: Bad file descriptor\n";
        assert_eq!(without_own_race(ended(255, raced)).code, Some(0));
        assert_eq!(without_own_race(ended(255, "rdma_get_cm_event: No such device")).code, Some(255));
        assert_eq!(without_own_race(ended(1, raced)).code, Some(1));
        let failed = format!("data mismatch!\n{raced}");
        assert_eq!(without_own_race(ended(255, &failed)).code, Some(255));
    }
}
