//! Rows of stock programs: a server at one end, its client at the other, and what both say.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use interop::end::{End, Ended, Local};
use interop::error::Error;
use interop::peer::Peer;
use interop::report::{Outcome, SkipReason};
use interop::rows::{Family, Program, Row, Side, Stock};

/// Where pingpongs and perftest listen.
const TCP_PORT: u16 = 18515;
/// How long a server may take until it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
/// How long a client may take.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// How long an emulated server of rdma_cm takes until it listens and is set up: riostream's is told what it may map after it listens.
const SETTLES_WITHIN: Duration = Duration::from_millis(500);
/// How long a program is waited for whose other end has failed.
const LOSER_WITHIN: Duration = Duration::from_secs(1);
/// How the peer, and `roxie run`, say that a program is not there.
const NO_SUCH_PROGRAM: i32 = 127;

/// What starts an end's program, given where the server is if it is the client.
type Start<'a, E, T> = &'a dyn Fn(&mut E, Option<String>) -> Result<T, Error>;

/// Both ends of a row.
struct Ends<'a, 'b> {
    roxie: &'a mut (dyn Local + 'b),
    peer: &'a mut Peer,
    /// Here.
    start_here: Start<'a, dyn Local + 'b, ()>,
    /// There; the job's number.
    start_there: Start<'a, Peer, usize>,
}

/// How both ended.
struct Played {
    here: Ended,
    there: Ended,
}

/// A stock pingpong on the peer, `roxie pingpong` here: 300 exchanges of 4 KiB, or of one packet where datagrams go,
/// with the programs' own data check (`-c`) where they agree on the data.
pub(super) fn pingpong(program: Stock, row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Outcome {
    let mut outcome = || {
        if !roxie.has_pingpong(program)? {
            return Ok(Err(Outcome::Skip(SkipReason::RoxieHasNoProgram)));
        }
        let options = match program {
            Stock::Ud => "-s 1024 -n 300 -c",
            // The stock program fills its buffer with other bytes than the others do: what they check would be wrong.
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
        // The stock program exits with 0 after invalid data as well, and says so.
        invalid.then(|| "invalid data".to_owned())
    })
}

/// A stock program at both ends: here under `roxie run`, there as it is.
pub(super) fn unmodified(program: Program, row: &Row, roxie: &mut dyn Local, peer: &mut Peer) -> Outcome {
    let mut outcome = || {
        if program.meets_by_cm() {
            return meet(program, row, roxie, peer);
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

/// A program whose ends meet by rdma_cm. Nothing shows from outside that a server of rdma_cm listens: a client that is refused
/// is started again.
fn meet(
    program: Program,
    row: &Row,
    roxie: &mut dyn Local,
    peer: &mut Peer,
) -> Result<Result<Played, Outcome>, Error> {
    let (here, there) = (roxie.address(row.family)?, peer.address(row.family)?);
    let until = Instant::now() + LISTENS_WITHIN;
    let refused = |client: &Ended| {
        // The last is perftest's word for the first.
        let words = ["REJECTED", "UNREACHABLE", "refused", "Unexpected CM event"];
        client.code != Some(0)
            && words.iter().any(|word| client.output.contains(word))
            && Instant::now() < until
    };
    let played = match row.requester {
        Side::Roxie => {
            let (server, options) = program.over_cm(true, there);
            let job = peer.spawn(&server, &options)?;
            thread::sleep(SETTLES_WITHIN);
            let (client, options) = program.over_cm(false, there);
            let mut start = || {
                roxie.program(&client, &options)?;
                roxie.wait(ENDS_WITHIN)
            };
            let here = loop {
                match start() {
                    Ok(ended) if refused(&ended) => {}
                    ended => break ended,
                }
            };
            // A server that nobody came to must not hold its address.
            let there = peer.wait(job, here.as_ref().map_or(Duration::ZERO, time_left));
            Played { here: here?, there: there? }
        }
        Side::Peer => {
            let (server, options) = program.over_cm(true, here);
            roxie.program(&server, &options)?;
            if !roxie.wait_for_claim(row.port, LISTENS_WITHIN)? {
                let server = roxie.wait(Duration::ZERO)?;
                return Ok(Err(Outcome::Fail(format!("roxie's server is silent: {server:?}"))));
            }
            let (client, options) = program.over_cm(false, here);
            let there = loop {
                let job = peer.spawn(&client, &options)?;
                let ended = peer.wait(job, ENDS_WITHIN)?;
                if !refused(&ended) {
                    break ended;
                }
            };
            let here = roxie.wait(time_left(&there))?;
            Played { here, there }
        }
    };
    if [&played.here, &played.there].iter().any(|end| end.code == Some(NO_SUCH_PROGRAM)) {
        return Ok(Err(Outcome::Skip(SkipReason::ProgramMissing)));
    }
    Ok(Ok(played))
}

/// The place of the peer's address in its GID table.
fn peer_gid(peer: &mut Peer, family: Family) -> Result<usize, Error> {
    let address = peer.address(family)?;
    Ok(peer.gids().iter().find(|gid| gid.address == address).map_or(0, |gid| gid.index as usize))
}

/// What a row comes to whose programs have ended so, or that could not be played.
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
            // What runs here still must not hold the interface.
            self.roxie.end_program();
        }
        played
    }

    /// Where servers of both ends listen: over IPv4, if there is any, whatever their GIDs are. Some listen on nothing else.
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
                _ => Outcome::Fail(format!("the peer's server is silent: {server:?}")),
            }));
        }
        (self.start_here)(self.roxie, Some(server.to_string()))?;
        let here = self.roxie.wait(ENDS_WITHIN)?;
        let there = self.peer.wait(job, time_left(&here))?;
        Ok(Ok(Played { here, there }))
    }

    fn play_as_server(&mut self, family: Family) -> Result<Result<Played, Outcome>, Error> {
        let (server, _) = self.hosts(family)?;
        (self.start_here)(self.roxie, None)?;
        if !self.roxie.wait_for_listener(TCP_PORT, LISTENS_WITHIN)? {
            let server = self.roxie.wait(Duration::ZERO)?;
            return Ok(Err(match server.code {
                Some(NO_SUCH_PROGRAM) => Outcome::Skip(SkipReason::ProgramMissing),
                _ => Outcome::Fail(format!("roxie's server is silent: {server:?}")),
            }));
        }
        let job = (self.start_there)(self.peer, Some(server.to_string()))?;
        let there = self.peer.wait(job, ENDS_WITHIN)?;
        if there.code == Some(NO_SUCH_PROGRAM) {
            self.roxie.wait(Duration::ZERO)?;
            return Ok(Err(Outcome::Skip(SkipReason::ProgramMissing)));
        }
        let here = self.roxie.wait(time_left(&there))?;
        Ok(Ok(Played { here, there }))
    }
}

/// How long the server may take after its client has ended.
fn time_left(client: &Ended) -> Duration {
    if client.code == Some(0) { ENDS_WITHIN } else { LOSER_WITHIN }
}
