//! Programs of other releases of Debian, with Roxie at both ends.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use interop::distro::table::Table;
use interop::distro::uses::{self, FAMILY, Use};
use interop::distro::{self, Root};
use interop::end::Ended;
use interop::error::Error;
use interop::guest::output_folder;
use interop::local::program::{is_in_group, is_listening, roce_port_is_bound, wait_until};
use interop::network::{INTERFACE, Namespace, address};
use interop::report::{Outcome, Report};
use interop::rows::{PortKind, Program, Ready};
use interop::skip::SkipReason;
use roxie::netdev::Interface;

use super::pair::{Played, last_words, remaining_time};
use super::programs::{LISTENS_WITHIN, NO_SUCH_PROGRAM, TCP_PORT, served, server_has, until_taken};

/// Timeout of a program, which may share its processors with a build.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Timeout of the Python tests.
const PYTHON_WITHIN: Duration = Duration::from_secs(180);
const PORTS: [PortKind; 2] = [PortKind::Xdp, PortKind::Udp];

/// Selection of releases and programs.
pub(crate) struct Wanted {
    /// Releases, by suite name.
    pub(crate) suites: Vec<String>,
    /// Only uses with all of these in the name.
    pub(crate) filter: Vec<String>,
    /// Release in which Roxie is built for all releases; by default each builds its own.
    pub(crate) built_in: Option<String>,
    /// Do not build: use what was built before.
    pub(crate) no_build: bool,
}

/// Runs programs in each release and prints the table, which is also written to `target/interop/distros.txt`. True if
/// the table is good.
pub(crate) fn distros(wanted: &Wanted) -> Result<bool, Error> {
    let named = |one: &Use| wanted.filter.iter().all(|part| one.to_string().contains(part.as_str()));
    let uses: Vec<Use> = uses::all().into_iter().filter(named).collect();
    if uses.is_empty() {
        return Err(Error::NoRow(wanted.filter.clone()));
    }
    let mut table = Table::new(uses.iter().map(Use::to_string).collect());
    let mut ran = 0;
    for suite in &wanted.suites {
        match release(suite, wanted, &uses, &mut table) {
            Ok(()) => ran += 1,
            // A release that this host cannot have is not a failure.
            Err(Error::Host(lack)) => println!("SKIP distro/{suite}: {lack}"),
            Err(error @ Error::Distribution(_)) => println!("SKIP distro/{suite}: {error}"),
            Err(error) => return Err(error),
        }
    }
    if ran == 0 {
        return Err(Error::Host("none of these releases of Debian can be had".into()));
    }
    let path = output_folder().join("distros.txt");
    fs::create_dir_all(output_folder()).map_err(Error::file(&path))?;
    fs::write(&path, table.to_string()).map_err(Error::file(&path))?;
    println!("\n{table}\n{}", path.display());
    Ok(table.good())
}

fn release(suite: &str, wanted: &Wanted, uses: &[Use], table: &mut Table) -> Result<(), Error> {
    let root = Root::make(suite)?;
    let (root, name) = match &wanted.built_in {
        Some(other) => {
            let other = Root::make(other)?;
            if !wanted.no_build {
                other.build()?;
            }
            let name = format!("{suite} on {}", other.suite());
            (root.with_build_of(&other), name)
        }
        None => {
            if !wanted.no_build {
                root.build()?;
            }
            (root, suite.to_owned())
        }
    };
    table.release(&name, root.releases());
    let ends = Namespace::create_pair()?;
    let site = Site { root: &root, ends };
    let rows = PORTS.iter().flat_map(|port| uses.iter().map(move |one| (*port, one)));
    let rows: Vec<(PortKind, &Use)> = rows.collect();
    let full = |port: PortKind, one: &Use| format!("{name}/{port}/{one}");
    let mut report =
        Report::new(Default::default(), rows.iter().map(|(port, one)| full(*port, one)).collect());
    for (port, one) in rows {
        let start = Instant::now();
        let (outcome, note) = site.judged(port, one);
        report.add(&full(port, one), &outcome, start.elapsed());
        table.add(&name, port, &one.to_string(), &outcome);
        if let Some(note) = note {
            table.note(format!("note {name} {port} {one}: {note}"));
        }
    }
    println!("{name}: {}", report.totals());
    Ok(())
}

/// Two ends; the first one is the server.
struct Site<'a> {
    root: &'a Root,
    ends: [Namespace; 2],
}

impl Site<'_> {
    /// Returns the outcome of a use, and a remark.
    fn judged(&self, port: PortKind, one: &Use) -> (Outcome, Option<String>) {
        let judged = match one {
            Use::Row(program) => self.row(port, *program).map(|outcome| (outcome, None)),
            Use::Line(line) if line.is_of_ucx() && !self.root.has_ucx_for_verbs() => {
                Ok((Outcome::Skip(SkipReason::ProgramHasNoVerbs), None))
            }
            Use::Line(line) if line.uses_netlink() && Path::new("/sys/class/infiniband").is_dir() => {
                Ok((Outcome::Skip(SkipReason::KernelHasRdma), None))
            }
            Use::Line(line) => match line.port {
                Some(tcp) => {
                    let words = |server| Ok(line.words(server));
                    self.pair(port, tcp, &words)
                        .map(|played| (of_pair(&played, |p| line.complaint(&p.client.output)), None))
                }
                None => self.alone(port, &line.words(None), ENDS_WITHIN).map(|ended| {
                    let complaint = line.complaint(&ended.output);
                    (of_one(&ended, complaint), None)
                }),
            },
            Use::Python => self.python(port),
        };
        judged.unwrap_or_else(|error| (Outcome::Fail(error.to_string()), None))
    }

    fn alone(&self, port: PortKind, words: &[String], within: Duration) -> Result<Ended, Error> {
        self.root.start(&self.ends[0], port, words)?.wait(within)
    }

    fn python(&self, port: PortKind) -> Result<(Outcome, Option<String>), Error> {
        if !self.root.has_python_tests() {
            return Ok((Outcome::Skip(SkipReason::ProgramMissing), None));
        }
        let ended = self.alone(port, &uses::python()?, PYTHON_WITHIN)?;
        Ok(match uses::python_results(&ended.output) {
            Ok(words) if ended.code == Some(0) => (Outcome::Pass, Some(words)),
            Ok(_) => (of_one(&ended, Some("the tests did not end".into())), None),
            Err(why) => (Outcome::Fail(why), None),
        })
    }

    fn row(&self, port: PortKind, program: Program) -> Result<Outcome, Error> {
        let played = if program.uses_cm() {
            if let Some(sign) = program.sign_of_another()
                && self
                    .alone(port, &[program.name().to_owned(), "-h".to_owned()], ENDS_WITHIN)?
                    .output
                    .contains(sign)
            {
                return Ok(Outcome::Skip(SkipReason::ProgramIsAnother));
            }
            self.run_by_cm(port, program)?
        } else {
            let words = |server| {
                let name = [program.name().to_owned()].into_iter();
                Ok(name.chain(program.words(1, server)).collect())
            };
            self.pair(port, TCP_PORT, &words)?
        };
        Ok(of_pair(&played, |Played { server, client }| program.complaint(&client.output, &server.output)))
    }

    /// Runs a server until it listens, then its client.
    fn pair(
        &self,
        port: PortKind,
        tcp: u16,
        words: &dyn Fn(Option<String>) -> Result<Vec<String>, Error>,
    ) -> Result<Played, Error> {
        let serving = self.root.start(&self.ends[0], port, &words(None)?)?;
        if !self.wait_until(|| is_listening(tcp))? {
            return Ok(Played::silent(serving.wait(Duration::ZERO)?));
        }
        let client = words(Some(address(1, FAMILY).to_string()))?;
        let client = self.root.start(&self.ends[1], port, &client)?.wait(ENDS_WITHIN)?;
        let server = serving.wait(remaining_time(&client, ENDS_WITHIN))?;
        Ok(Played { server, client })
    }

    /// Runs a program that connects by rdma_cm.
    fn run_by_cm(&self, port: PortKind, program: Program) -> Result<Played, Error> {
        let (local, remote) = (address(1, FAMILY), address(2, FAMILY));
        let line = |serves, own| {
            let (name, words) = program.over_cm(serves, local, own);
            [name].into_iter().chain(words).collect::<Vec<_>>()
        };
        let serving = self.root.start(&self.ends[0], port, &line(true, local))?;
        let ready = match program.shows_ready(local) {
            Ready::Nothing => self.wait_until(|| claimed(port))?,
            Ready::Listens(tcp) => self.wait_until(|| is_listening(tcp))?,
            Ready::Joined(group) => self.wait_until(|| is_in_group(group))?,
        };
        if !ready {
            return Ok(Played::silent(serving.wait(Duration::ZERO)?));
        }
        if let Some(tcp) = program.may_listen() {
            // Older versions do not listen, which costs one second.
            self.wait_until_within(Duration::from_secs(1), || is_listening(tcp))?;
        }
        let client =
            until_taken(|| self.root.start(&self.ends[1], port, &line(false, remote))?.wait(ENDS_WITHIN))?;
        let server = served(program, &client, serving.wait(server_has(program, &client))?);
        Ok(Played { server, client })
    }

    /// Waits until a condition holds at the first end. False after the timeout.
    fn wait_until(&self, holds: impl Fn() -> Result<bool, Error> + Sync) -> Result<bool, Error> {
        self.wait_until_within(LISTENS_WITHIN, holds)
    }

    fn wait_until_within(
        &self,
        time: Duration,
        holds: impl Fn() -> Result<bool, Error> + Sync,
    ) -> Result<bool, Error> {
        wait_until(time, || self.ends[0].within(&holds)?)
    }
}

/// True if a program has claimed the interface for its device.
fn claimed(port: PortKind) -> Result<bool, Error> {
    match port {
        PortKind::Xdp => Interface::by_name(INTERFACE)
            .map(|interface| interface.xdp_program.is_some())
            .map_err(|e| Error::Local(format!("the interface: {e}"))),
        PortKind::Packet | PortKind::Udp => roce_port_is_bound(),
    }
}

fn of_one(ended: &Ended, complaint: Option<String>) -> Outcome {
    match (ended.code, complaint) {
        (Some(0), None) => Outcome::Pass,
        (Some(NO_SUCH_PROGRAM), _) => Outcome::Skip(SkipReason::ProgramMissing),
        (_, complaint) => {
            let why = complaint.unwrap_or_else(|| "it failed".into());
            Outcome::Fail(format!("{why}; {}", last_words(ended)))
        }
    }
}

fn of_pair(played: &Played, complaint: impl FnOnce(&Played) -> Option<String>) -> Outcome {
    let Played { server, client } = played;
    if [server, client].iter().any(|end| end.code == Some(NO_SUCH_PROGRAM)) {
        return Outcome::Skip(SkipReason::ProgramMissing);
    }
    played.judged(complaint)
}

/// Removes releases.
pub(crate) fn remove(suites: &[String]) -> Result<bool, Error> {
    for suite in suites {
        distro::remove(suite)?;
    }
    Ok(true)
}
