//! Stock programs in guests, on Roxie or on rdma_rxe, and on this host, on Roxie.

use std::net::IpAddr;
use std::time::Duration;

use interop::end::Ended;
use interop::error::Error;
use interop::local::program::{Program as Running, is_listening, roxie, wait_until};
use interop::network::{INTERFACE, Namespace, address};
use interop::peer::Peer;
use interop::rows::Family;

use super::pair::{Played, remaining_time};
use super::programs::{LISTENS_WITHIN, TCP_PORT, peer_gid};

/// Timeout of a program. The guests are emulated, and share two processors with this host's end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Number of this host at the site; guests have 2 and up.
const OUTSIDE: u8 = 1;
/// Index of Roxie's first IPv4 address in its GID table.
pub(super) const GID: usize = 1;

/// RDMA device of a program in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// Roxie, with these options of `roxie run`.
    Roxie(&'static [&'static str]),
    /// The guest's rdma_rxe.
    Rxe,
}

/// A place where a program runs.
pub(super) enum End<'a> {
    /// On this host, on Roxie over sockets.
    Host(&'a Namespace),
    /// In the guest of this number, on this device.
    Guest(u8, &'a mut Peer, On),
}

/// A running program.
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

    /// Returns the index of its address in its GID table.
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
                wait_until(LISTENS_WITHIN, || namespace.within(|| is_listening(TCP_PORT))?)
            }
        }
    }
}

/// Runs a server, then its client. `words` returns the arguments for a GID index; a client's get the server's address.
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
    let client_run = client.start(name, &line)?;
    let client = client.wait(client_run, ENDS_WITHIN)?;
    let server = server.wait(serving, remaining_time(&client, ENDS_WITHIN))?;
    Ok(Played { server, client })
}

/// A figure that perftest measures.
pub(super) struct Figure {
    /// Its name, with the unit.
    pub(super) what: &'static str,
    line: &'static str,
    /// Column of perftest's table.
    column: usize,
    is_time: bool,
}

impl Figure {
    /// Average bandwidth of this command, in MB/s.
    pub(super) const fn bandwidth(what: &'static str, line: &'static str) -> Figure {
        Figure { what, line, column: 3, is_time: false }
    }

    /// Message rate of this command, in millions per second.
    pub(super) const fn rate(what: &'static str, line: &'static str) -> Figure {
        Figure { what, line, column: 4, is_time: false }
    }

    /// Typical latency of this command, in us.
    pub(super) const fn latency(what: &'static str, line: &'static str) -> Figure {
        Figure { what, line, column: 4, is_time: true }
    }

    /// Returns how many times better `own` is than `other`.
    pub(super) fn ratio(&self, other: f64, own: f64) -> f64 {
        if self.is_time { other / own } else { own / other }
    }

    /// Measures the figure between these ends.
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
            Error::Local(format!("no result of {}: {:?} {:?}", self.line, played.client, played.server))
        })
    }
}
