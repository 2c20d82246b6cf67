//! Stock programs over zero-copy AF_XDP: Roxie in a guest with an adapter that writes into Roxie's memory.

use std::time::{Duration, Instant};

use interop::end::End as _;
use interop::error::Error;
use interop::guest::{Adapter, Files, Guest, Image, Kernel, output_folder};
use interop::network::Namespace;
use interop::peer::Peer;
use interop::report::{Outcome, Report};
use interop::rows::{self, Program};
use interop::skip::SkipReason;

use super::ends::{End, Figure, GID, On, play};
use super::pair::Played;

/// The guest with the zero-copy adapter, and the one with rdma_rxe.
const GUEST: u8 = 2;
const RXE: u8 = 3;
/// The row of programs that are killed, and how long each runs before.
const KILLED: &str = "zero-copy/roxie/asks/killed";
const KILLED_AFTER: Duration = Duration::from_secs(4);
/// The measured figures.
const FIGURES: [Figure; 4] = [
    Figure::bandwidth("WRITE 64 KiB, MB/s", "ib_write_bw -s 65536 -D 3"),
    Figure::bandwidth("READ 64 KiB, MB/s", "ib_read_bw -s 65536 -o 16 -D 3"),
    Figure::bandwidth("SEND 64 bytes, MB/s", "ib_send_bw -s 64 -D 3"),
    Figure::latency("SEND 64 bytes, round trip / 2, us", "ib_send_lat -s 64 -n 500"),
];

/// AF_XDP mode in the guest, and injected faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    ZeroCopy,
    /// Zero-copy; two of a hundred frames are lost.
    Lossy,
    /// Copy mode.
    Copy,
}

impl Mode {
    fn on(self) -> On {
        On::Roxie(match self {
            Mode::ZeroCopy => &["--mode", "zero-copy"],
            Mode::Lossy => &["--mode", "zero-copy", "--fault", "drop=0.02,seed=7"],
            Mode::Copy => &["--mode", "native"],
        })
    }
}

/// A row: the program, its peer, the server's side, and the mode.
#[derive(Clone, Copy, Debug)]
struct Row {
    program: Program,
    against_rxe: bool,
    guest_serves: bool,
    mode: Mode,
}

impl Row {
    /// Returns the name: `zero-copy/rxe/serves/ib_send_bw/rc`.
    fn name(&self) -> String {
        let remote = if self.against_rxe { "rxe" } else { "roxie" };
        let role = if self.guest_serves { "serves" } else { "asks" };
        let loss = if self.mode == Mode::Lossy { "loss/" } else { "" };
        let program = self.program.to_string();
        format!("zero-copy/{remote}/{role}/{loss}{}", program.trim_start_matches("program/"))
    }
}

/// Returns the rows: stock programs without rdma_cm, in each role; those that measure RC bandwidth again with losses,
/// against Roxie.
fn rows() -> Vec<Row> {
    let programs = || rows::uses().into_iter().map(|(program, _)| program).filter(|p| !p.uses_cm());
    let mut all = Vec::new();
    for against_rxe in [false, true] {
        for guest_serves in [false, true] {
            all.extend(programs().map(|program| Row {
                program,
                against_rxe,
                guest_serves,
                mode: Mode::ZeroCopy,
            }));
        }
    }
    // Excluded: `/all`, with sizes up to 8 MiB, for which an emulated guest retransmits for more than a minute. And
    // pingpongs: their ends do not wait for each other, so one may exit while the other still needs an acknowledgement
    // that was lost.
    let repaired = |program: &Program| {
        let name = program.to_string();
        ["bw/rc", "atomic_bw"].iter().any(|part| name.contains(part)) && !name.ends_with("/all")
    };
    for guest_serves in [false, true] {
        let lossy = programs().filter(repaired);
        all.extend(lossy.map(|program| Row { program, against_rxe: false, guest_serves, mode: Mode::Lossy }));
    }
    all
}

/// Kills a program in the guest while frames are in flight both ways, three times. The adapter's queues must return to
/// the kernel, so that the next program can use them.
fn killed(peer: &mut Peer, namespace: &Namespace) -> Result<Outcome, Error> {
    let words = |line: &str, gid: usize, server: Option<String>| -> Vec<String> {
        let all = format!("{line} {gid}");
        all.split(' ').map(str::to_owned).chain(server).collect()
    };
    for time in 1..=3 {
        let (mut local, mut remote) = (End::Guest(GUEST, peer, Mode::ZeroCopy.on()), End::Host(namespace));
        let line = "-b -F -D 30 -s 65536 -x";
        let serving = remote.start("ib_write_bw", &words(line, GID, None))?;
        if !remote.listens()? {
            return Ok(Outcome::Fail("the server does not listen".into()));
        }
        let client_run = local.start("ib_write_bw", &words(line, GID, Some(remote.address().to_string())))?;
        let ended = local.wait(client_run, KILLED_AFTER)?;
        if ended.code.is_some() {
            return Ok(Outcome::Fail(format!("it ended before it was killed: {ended:?}")));
        }
        drop(serving);
        let line = "-m 1024 -s 5000 -n 100 -c -g";
        let next = |gid, server| words(line, gid, server);
        let played = play(&mut remote, &mut local, "ibv_rc_pingpong", &next)?;
        let outcome = played.judged(|Played { server, client }| {
            let invalid = [server, client].iter().any(|end| end.output.contains("invalid data"));
            invalid.then(|| format!("after kill {time}: invalid data"))
        });
        if outcome != Outcome::Pass {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Pass)
}

/// Runs the rows with all parts of `filter` in the name, or only the figures. True if all passed.
pub(crate) fn zero_copy(filter: &[String], figures: bool) -> Result<bool, Error> {
    let wanted = |row: &Row| filter.iter().all(|part| row.name().contains(part.as_str()));
    let rows: Vec<Row> = if figures { Vec::new() } else { rows().into_iter().filter(wanted).collect() };
    let kills = !figures && filter.iter().all(|part| KILLED.contains(part.as_str()));
    if rows.is_empty() && !figures && !kills {
        return Err(Error::NoRow(filter.to_vec()));
    }
    let image = Image::build(Kernel::Newest, false)?;
    let namespace = Namespace::create()?;
    let log = |name: &str| output_folder().join(name);
    let guest =
        Guest::start_with(&image, &namespace, GUEST, &log("zero-copy.log"), Files::Host, Adapter::ZeroCopy)?;
    let mut peer = guest.peer(&namespace)?;
    let rxe = match rows.iter().any(|row| row.against_rxe) {
        true => Some(Guest::start(&image, &namespace, RXE, &log("zero-copy-rxe.log"))?),
        false => None,
    };
    let mut rxe = rxe.as_ref().map(|guest| guest.peer(&namespace)).transpose()?;
    println!("Roxie in a guest of kernel {}, on virtio-net with zero-copy", peer.about().kernel);
    let names = rows.iter().map(Row::name).chain(kills.then(|| KILLED.to_owned()));
    let mut report = Report::new(peer.about().clone(), names.collect());
    for row in &rows {
        let start = Instant::now();
        if rxe.as_ref().is_some_and(|rxe| row.against_rxe && row.program.is_xrc() && rxe.quirks().has_no_xrc)
        {
            report.add(&row.name(), &Outcome::Skip(SkipReason::PeerHasNoXrc), start.elapsed());
            continue;
        }
        let mut local = End::Guest(GUEST, &mut peer, row.mode.on());
        let mut remote = match &mut rxe {
            Some(rxe) if row.against_rxe => End::Guest(RXE, rxe, On::Rxe),
            _ => End::Host(&namespace),
        };
        let (server, client) =
            if row.guest_serves { (&mut local, &mut remote) } else { (&mut remote, &mut local) };
        let words = |gid, server| row.program.words(gid, server);
        let complaint = |played: &Played| row.program.complaint(&played.client.output, &played.server.output);
        let outcome = match play(server, client, row.program.name(), &words) {
            Ok(played) => played.judged(complaint),
            Err(error) => Outcome::Fail(error.to_string()),
        };
        report.add(&row.name(), &outcome, start.elapsed());
    }
    if kills {
        let start = Instant::now();
        let outcome = killed(&mut peer, &namespace).unwrap_or_else(|error| Outcome::Fail(error.to_string()));
        report.add(KILLED, &outcome, start.elapsed());
    }
    if filter.is_empty() {
        figures_of(&mut peer, &namespace)?;
    }
    if figures {
        return Ok(true);
    }
    let path = output_folder().join("zero-copy.json");
    report.write(&path)?;
    println!("{}; {}", report.totals(), path.display());
    Ok(report.totals().good())
}

/// Measures the cost of copies: the same programs in the guest, in copy and in zero-copy mode.
fn figures_of(peer: &mut Peer, namespace: &Namespace) -> Result<(), Error> {
    println!("{:<36}{:>10}{:>12}{:>8}", "client in the guest, server outside", "copy", "zero-copy", "ratio");
    for figure in FIGURES {
        let mut measured =
            |mode: Mode| figure.measure(&mut End::Host(namespace), &mut End::Guest(GUEST, peer, mode.on()));
        let (copy, zero_copy) = (measured(Mode::Copy)?, measured(Mode::ZeroCopy)?);
        println!("{:<36}{copy:>10.2}{zero_copy:>12.2}{:>8.2}", figure.what, figure.ratio(copy, zero_copy));
    }
    Ok(())
}
