//! `roxie decode --ladder` and `--svg`: draws captures as sequence diagrams.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use roxie::capture::CaptureError;
use roxie::wire::Qpn;
use roxie_report::ladder::{self, Connection, Ladder, Style, Unrelated};
use roxie_report::output;

use super::{Arguments, Failure, Summary, open};

/// Why a command failed, with the file if the failure belongs to one.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("{file}: {failure}", file = file.display())]
    File { file: PathBuf, failure: Failure },
    #[error(
        "no RoCE packet among the {frames} of {files}: nothing to draw (RoCE v2 is UDP to port 4791; a capture must be \
         made where it passes, `tcpdump` sees it only if the NIC leaves it to the kernel)"
    )]
    NoRoce { frames: Frames, files: String },
    #[error("{0}")]
    Unrelated(#[from] Unrelated),
    #[error("no packet of queue pair {qp}; there are {known}")]
    UnknownQp { qp: Qpn, known: String },
    #[error("cannot write {file}: {source}", file = file.display())]
    Picture { file: PathBuf, source: io::Error },
}

/// Formats a number of frames: "1 frame", "2 frames".
#[derive(Debug)]
pub(super) struct Frames(u64);

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} frame{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

impl Trouble {
    pub(super) fn of(file: &Path, failure: impl Into<Failure>) -> Trouble {
        Trouble::File { file: file.to_owned(), failure: failure.into() }
    }

    /// True if the reader of standard output has closed the pipe.
    pub(super) fn is_closed_pipe(&self) -> bool {
        matches!(self, Trouble::File { failure: Failure::Output(e), .. } if e.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Draws all readable packets, then fails if some frames could not be read.
pub(super) fn run(arguments: &Arguments) -> Result<(), Trouble> {
    let (mut captures, mut frames, mut unread) = (Vec::new(), 0, Ok(()));
    for file in &arguments.files {
        let failed = |failure: Failure| Trouble::of(file, failure);
        let reading = ladder::read(open(file).map_err(failed)?).map_err(|e| failed(e.into()))?;
        frames += reading.frames;
        let summary =
            Summary { malformed: reading.malformed, link_types: reading.link_types, unread: reading.unread };
        summary.tell_of_malformed();
        if reading.too_many {
            let most = reading.seen.len();
            output::complain(
                "decode",
                format_args!("{}: only the first {most} packets are drawn", file.display()),
            );
        }
        let whole = reading.broken.map_or(summary.into_result(), |e: CaptureError| Err(e.into()));
        unread = unread.and(whole.map_err(failed));
        captures.push(reading.seen);
    }
    if captures.iter().all(Vec::is_empty) {
        unread?;
        let files =
            arguments.files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" and ");
        return Err(Trouble::NoRoce { frames: Frames(frames), files });
    }
    let connections = chosen(ladder::pair(ladder::meet(captures)?), arguments.qp)?;
    let style = Style { names: None, every: arguments.verbose };
    let ladders: Vec<Ladder> = connections.iter().map(|connection| Ladder::of(connection, &style)).collect();
    write(arguments, &ladders)?;
    unread
}

/// Returns the connections of queue pair `qp`, or all connections without one.
fn chosen(connections: Vec<Connection>, qp: Option<Qpn>) -> Result<Vec<Connection>, Trouble> {
    let Some(qp) = qp else { return Ok(connections) };
    let (chosen, others): (Vec<_>, Vec<_>) =
        connections.into_iter().partition(|connection| connection.has(qp));
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    let mut known: Vec<_> = others.iter().flat_map(Connection::queue_pairs).collect();
    known.sort_unstable();
    known.dedup();
    let known: Vec<_> = known.iter().map(|(qp, at, service)| format!("{qp} ({service} at {at})")).collect();
    Err(Trouble::UnknownQp { qp, known: known.join(", ") })
}

fn write(arguments: &Arguments, ladders: &[Ladder]) -> Result<(), Trouble> {
    let to_stdout = |text: &str| {
        let mut out = io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|e| Trouble::of(Path::new("standard output"), e))
    };
    if let Some(file) = &arguments.svg {
        let picture = ladder::draw_svg(ladders);
        if file.as_os_str() == "-" {
            return to_stdout(&picture);
        }
        return fs::write(file, picture).map_err(|source| Trouble::Picture { file: file.clone(), source });
    }
    to_stdout(&ladders.iter().map(ladder::draw_text).collect::<Vec<_>>().join("\n"))
}
