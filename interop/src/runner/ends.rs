//! Stock programs in guests, on Roxie or on rdma_rxe, and on Roxie outside.

use std::net::IpAddr;
use std::time::Duration;

use interop::end::Ended;
use interop::error::Error;
use interop::local::program::{Program as Running, becomes_so, roxie, somebody_listens};
use interop::network::{INTERFACE, Namespace, address};
use interop::peer::Peer;
use interop::rows::Family;

use super::pair::{Played, time_left};
use super::programs::{LISTENS_WITHIN, TCP_PORT, peer_gid};

/// Both guests are emulated, and share two processors with this host's end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// This host's number at the site; guests have 2 and up.
const OUTSIDE: u8 = 1;
/// Roxie's first IPv4 address in its GID table.
pub(super) const GID: usize = 1;

/// What a program in a guest runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// Roxie, with these options of `roxie run`.
    Roxie(&'static [&'static str]),
    /// The guest's rdma_rxe.
    Rxe,
}

/// Where a program runs.
pub(super) enum End<'a> {
    /// On this host, on Roxie over sockets.
    Host(&'a Namespace),
    /// In the guest of this number.
    Guest(u8, &'a mut Peer, On),
}

/// What runs there.
pub(super) enum Job {
    Here(Running),
    There(usize),
}

impl End<'_> {
    pub(super) fn address(&self) -> IpAddr {
        let host = match self {
            End::Host(_) => OUTSIDE,
            End::Guest(number, ..) => *number,
        };
        address(host, Family::V4)
    }

    /// The place of its address in its GID table.
    fn gid(&mut self) -> Result<usize, Error> {
        match self {
            End::Guest(_, peer, On::Rxe) => peer_gid(peer, Family::V4),
            _ => Ok(GID),
        }
    }

    pub(super) fn start(&mut self, name: &str, words: &[String]) -> Result<Job, Error> {
        let run = |dev: &str, options: &[&str]| -> Vec<String> {
            let before = ["run", "--quiet", "--dev", dev].into_iter().chain(options.iter().copied());
            let before = before.chain(["--", name]).map(str::to_owned);
            before.chain(words.iter().cloned()).collect()
        };
        match self {
            End::Host(namespace) => {
                Running::start(Some(namespace), &roxie()?, &run(INTERFACE, &["--port", "udp"])).map(Job::Here)
            }
            End::Guest(_, peer, On::Roxie(options)) => {
                let program = roxie()?.display().to_string();
                let inside = ["/host".to_owned(), program].into_iter().chain(run("eth0", options));
                peer.spawn("chroot", &inside.collect::<Vec<_>>()).map(Job::There)
            }
            End::Guest(_, peer, On::Rxe) => peer.spawn(name, words).map(Job::There),
        }
    }

    pub(super) fn wait(&mut self, job: Job, within: Duration) -> Result<Ended, Error> {
        match (self, job) {
            (_, Job::Here(program)) => program.wait(within),
            (End::Guest(_, peer, _), Job::There(job)) => peer.wait(job, within),
            (End::Host(_), Job::There(_)) => Err(Error::Local("a job of a guest's, at the host".into())),
        }
    }

    pub(super) fn listens(&mut self) -> Result<bool, Error> {
        match self {
            End::Guest(_, peer, _) => peer.wait_for_listener(TCP_PORT, LISTENS_WITHIN),
            End::Host(namespace) => {
                becomes_so(LISTENS_WITHIN, || namespace.within(|| somebody_listens(TCP_PORT))?)
            }
        }
    }
}

/// A server, then its client. `words`: of an end with this place in its GID table, given where the server is if it is the client.
pub(super) fn play(
    server: &mut End<'_>,
    client: &mut End<'_>,
    name: &str,
    words: &dyn Fn(usize, Option<String>) -> Vec<String>,
) -> Result<Played, Error> {
    let line = words(server.gid()?, None);
    let serving = server.start(name, &line)?;
    if !server.listens()? {
        return Ok(Played::silent(server.wait(serving, Duration::ZERO)?));
    }
    let line = words(client.gid()?, Some(server.address().to_string()));
    let asking = client.start(name, &line)?;
    let client = client.wait(asking, ENDS_WITHIN)?;
    let server = server.wait(serving, time_left(&client, ENDS_WITHIN))?;
    Ok(Played { server, client })
}

/// What perftest measures.
pub(super) struct Figure {
    /// What it is, with its unit.
    pub(super) what: &'static str,
    line: &'static str,
    /// Its column of perftest's table.
    column: usize,
    is_time: bool,
}

impl Figure {
    /// The average bandwidth of this command, in MB/s.
    pub(super) const fn bandwidth(what: &'static str, line: &'static str) -> Figure {
        Figure { what, line, column: 3, is_time: false }
    }

    /// Its messages, in millions a second.
    pub(super) const fn rate(what: &'static str, line: &'static str) -> Figure {
        Figure { what, line, column: 4, is_time: false }
    }

    /// Its typical latency, in us.
    pub(super) const fn latency(what: &'static str, line: &'static str) -> Figure {
        Figure { what, line, column: 4, is_time: true }
    }

    /// How many times better than another.
    pub(super) fn ratio(&self, other: f64, own: f64) -> f64 {
        if self.is_time { other / own } else { own / other }
    }

    /// What it comes to between these ends.
    pub(super) fn measure(&self, server: &mut End<'_>, client: &mut End<'_>) -> Result<f64, Error> {
        let mut words = self.line.split(' ').map(str::to_owned);
        let name = words.next().unwrap_or_default();
        let options: Vec<String> = words.collect();
        let all = |gid: usize, server: Option<String>| -> Vec<String> {
            let gid = ["-x".to_owned(), gid.to_string(), "-F".to_owned()];
            options.iter().cloned().chain(gid).chain(server).collect()
        };
        let played = play(server, client, &name, &all)?;
        let numbers =
            |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
        let row =
            played.client.output.lines().filter_map(numbers).rfind(|numbers| numbers.len() > self.column);
        row.map(|numbers| numbers[self.column]).ok_or_else(|| {
            Error::Local(format!("no figure of {}: {:?} {:?}", self.line, played.client, played.server))
        })
    }
}
