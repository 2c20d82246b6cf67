//! `roxie decode`: prints the RoCE packets of a capture: one a line, with all fields, as JSON, or as a ladder.
//!
//! Frame numbers count every frame of the capture, as Wireshark's do. Frames that are not RoCE are skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use nix::sys::stat::{SFlag, fstat};
use roxie::capture::{CaptureError, Reader, link_type};
use roxie::wire::Qpn;
use roxie_report::decoded::layers::{Found, find};
use roxie_report::decoded::{Decoded, Protocols};
use roxie_report::{output, source};

mod draw;
mod json;

const EXAMPLES: &str = "\
Examples:
  roxie decode run.pcapng                       one line a packet
  roxie decode -v run.pcapng | less             every header
  roxie decode --ladder run.pcapng              a sequence diagram of each connection
  roxie decode --ladder --qp 0x11 near.pcapng far.pcapng      from both ends: shows losses between them
  roxie decode --ladder --svg run.svg run.pcapng      also as a picture (--svg alone works, too)
  roxie decode --json run.pcapng | jq 'select(.aeth.kind == \"NAK_PSN_SEQUENCE\")'
  tcpdump -U -i eth0 -w - udp port 4791 | roxie decode -      as it happens
  roxie pingpong rc --port memory -n 2 --capture x.pcapng     makes a capture

Exit codes: 0 each frame was decoded or is known not to be RoCE, 1 the capture cannot be read, is truncated or damaged, \
has frames that may be RoCE but are not decoded (their kinds and numbers are printed), or nothing to draw, 2 wrong usage.";

/// Print the RoCE packets of a capture (pcap or pcapng), or draw them as a sequence diagram.
#[derive(Debug, Args)]
#[command(
    long_about = "Prints the RoCE v2 and v1 packets of a capture, in the order of the file.\n\nInput is pcap (both \
        byte orders, micro- and nanoseconds) or pcapng, from a file, or from a pipe, which is followed line by line. \
        Compression by gzip is undone. Link types: Ethernet, Linux cooked (`tcpdump -i any`), raw IP, BSD loopback and ERF. Frames that are not RoCE are \
        skipped, but counted, so that frame numbers are Wireshark's.\n\nA line has: frame number, time, direction if \
        the capture has it, source > destination, opcode, destination QP, PSN, flags that are set, fields of the \
        extended headers, payload length, and the result of the ICRC check (none: the capture truncated the ICRC, or \
        the sender put IPv6 extension headers in front; gso: a super-frame, captured before the NIC split it into \
        packets). After # follows the packet's comment. In Roxie's captures it says what the NIC did with the packet, \
        and why.\n\n--json has a key for each field; extended headers are objects (reth, aeth, deth, ...). A malformed \
        RoCE frame has the key malformed with the reason instead. A frame that may carry RoCE behind a header that is \
        not decoded has the key not_decoded with its kind. inside lists the tunnels and tags around a packet, \
        outermost first.\n\nNVMe over Fabrics: commands, the READ or WRITE of their data, and responses have names, on \
        connections whose Connect is in the capture (--json: nvme). NFS over RDMA: calls with their chunks, the READ or \
        WRITE of their data, and replies have names, on connections whose REQ is in the capture (--json: nfs).\n\n--ladder draws a sequence diagram of each connection. The two vertical lines are its ends, \
        the left one sent first; time goes down. Similar consecutive packets share a rung, with the range of their \
        PSNs (-v: a rung for each).\n\n  \
        --->  a packet            ===>  a retransmission, or a repeated response\n  \
        ~~~>  a NAK, or an unusable response        ---X  lost on the way\n  \
        o-->  received more often than sent         - -   PSNs missing in this capture\n\nBeside each rung stands the \
        reason: the NIC's comments if the capture has them, else what the PSNs imply. A new request has the PSN after \
        the last one's. A lower PSN is a retransmission, a higher one means that packets are missing. An ACK's PSN \
        acknowledges every packet up to it. A sequence NAK's PSN is the one that the receiver misses: it drops all \
        packets after that, so the sender goes back to that PSN and sends everything from there again (go-back-N). An \
        RNR NAK means that no receive was posted: the sender waits and tries again. Without any response, the sender \
        goes back when its timer expires; the ladder then shows the silence before.\n\nA single capture shows the \
        packets at one end: at the sender, a lost packet looks like any other until its retransmission; at the \
        receiver, it is missing. With the captures of both ends, each packet is one rung, and lost packets end on the \
        way. Clocks need not agree, nor must the captures say at which end they were made: packets in both directions \
        show that.",
    after_help = EXAMPLES,
    group = ArgGroup::new("drawing").multiple(true)
)]
pub(crate) struct Arguments {
    /// The capture, or - for standard input; two captures (one of each end) for a ladder
    #[arg(required = true, num_args = 1..=2, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print all fields, one header a line; with --ladder, one arrow a packet
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Draw each connection as a sequence diagram, in text
    #[arg(long, conflicts_with = "json", group = "drawing")]
    ladder: bool,
    /// Draw the ladder as SVG, to this file or to standard output (-); can be combined with --ladder
    #[arg(long, value_name = "OUT", conflicts_with = "json", group = "drawing")]
    svg: Option<PathBuf>,
    /// Draw only the connections of this queue pair: a QPN such as 17 or 0x11
    #[arg(long, value_name = "N", value_parser = queue_pair, requires = "drawing")]
    qp: Option<Qpn>,
}

fn queue_pair(text: &str) -> Result<Qpn, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(n) if Qpn::new(n).value() == n => Ok(Qpn::new(n)),
        _ => Err(format!("`{text}` is no queue pair number: give one below 16777216, such as 17 or 0x11")),
    }
}

/// Decodes the capture, and reports on standard error which frames could not be read.
///
/// Exit codes: 0 every frame was decoded or is not RoCE, 1 the capture or some frames could not be read; clap exits
/// with 2 for wrong usage.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if arguments.ladder || arguments.svg.is_some() {
        return conclude(draw::run(arguments));
    }
    match &arguments.files[..] {
        [file] => {
            conclude(open_and_decode(arguments, file).map_err(|failure| draw::Trouble::of(file, failure)))
        }
        _ => {
            output::complain("decode", "two captures make a ladder: add --ladder or --svg OUT, or give one");
            ExitCode::from(2)
        }
    }
}

fn conclude(outcome: Result<(), draw::Trouble>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // A closed pipe is no error: the reader has seen enough.
        Err(trouble) if trouble.is_closed_pipe() => ExitCode::SUCCESS,
        Err(trouble) => {
            output::complain("decode", trouble);
            ExitCode::from(1)
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot open it: {0}")]
    Open(io::Error),
    #[error("{0}")]
    Capture(#[from] CaptureError),
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    #[error("frames of link type {0} were skipped: only Ethernet, Linux cooked, raw IP and ERF are decoded")]
    LinkTypes(String),
    #[error("{0}")]
    Unread(String),
}

/// Opens a file, or standard input for `-`.
fn open(file: &Path) -> Result<Box<dyn Read>, Failure> {
    source::open(file).map_err(Failure::Open)
}

fn open_and_decode(arguments: &Arguments, file: &Path) -> Result<(), Failure> {
    let source = open(file)?;
    let stdout = io::stdout();
    // Buffer output to a regular file. Flush each line to a pipe or a terminal, because its reader follows along.
    let to_file = fstat(stdout.as_fd())
        .is_ok_and(|s| SFlag::from_bits_truncate(s.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG);
    let mut out = BufWriter::with_capacity(1 << 16, stdout.lock());
    let mut summary = Summary::default();
    let style = Style { json: arguments.json, verbose: arguments.verbose };
    let read = decode(style, source, &mut out, !to_file, &mut summary);
    // Flush the decoded packets before reporting what could not be decoded.
    out.flush()?;
    summary.tell_of_malformed();
    read?;
    summary.into_result()
}

/// Counts of frames that were not decoded.
#[derive(Debug, Default)]
struct Summary {
    malformed: u64,
    link_types: BTreeSet<u32>,
    /// Number of frames by the header that may carry RoCE.
    unread: BTreeMap<&'static str, u64>,
}

impl Summary {
    /// Lists the kinds and their counts; `None` if there are none.
    fn told_of_unread(&self) -> Option<String> {
        let kinds: Vec<_> = self.unread.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let what = "frames that may hold RoCE and are not decoded";
        (!kinds.is_empty()).then(|| format!("{what}: {}", kinds.join(", ")))
    }

    fn tell_of_malformed(&self) {
        if self.malformed != 0 {
            let what = format_args!("{} frames look like RoCE and are not well formed", self.malformed);
            output::complain("decode", what);
        }
    }

    fn into_result(self) -> Result<(), Failure> {
        if self.link_types.is_empty() {
            return self.told_of_unread().map_or(Ok(()), |what| Err(Failure::Unread(what)));
        }
        let name = |t: &u32| match *t {
            link_type::INFINIBAND => format!("{t} (native InfiniBand)"),
            other => other.to_string(),
        };
        if let Some(what) = self.told_of_unread() {
            output::complain("decode", Failure::Unread(what));
        }
        Err(Failure::LinkTypes(self.link_types.iter().map(name).collect::<Vec<_>>().join(", ")))
    }
}

/// The form of decoded packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// One JSON object a line.
    pub(crate) json: bool,
    /// All fields, one header a line.
    pub(crate) verbose: bool,
}

/// Prints the packets of a capture to standard output as they come. Reports on standard error which frames could not be
/// read.
///
/// # Errors
///
/// If the capture is damaged, or standard output cannot be written.
pub(crate) fn print(source: Box<dyn Read>, style: Style) -> Result<(), roxie_report::failure::Failure> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut summary = Summary::default();
    let read = decode(style, source, &mut out, true, &mut summary);
    summary.tell_of_malformed();
    if let Some(what) = summary.told_of_unread() {
        output::complain("decode", what);
    }
    match read.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => Ok(()),
        Err(Failure::Output(error)) => Err(roxie_report::failure::Failure::Output(error)),
        Err(other) => Err(roxie_report::failure::Failure::Run(other.to_string())),
    }
}

fn decode(
    style: Style,
    source: Box<dyn Read>,
    out: &mut dyn Write,
    flush: bool,
    summary: &mut Summary,
) -> Result<(), Failure> {
    let mut reader = Reader::new(source)?;
    let mut protocols = Protocols::default();
    while let Some(record) = reader.next()? {
        match find(&record) {
            Some(Found::Packet(inside)) => {
                let decoded = Decoded::new(&record, &inside, &mut protocols);
                if style.json {
                    json::write(out, &decoded)?;
                } else {
                    decoded.write_text(out, style.verbose)?;
                }
            }
            Some(Found::Malformed(reason)) => {
                summary.malformed += 1;
                if style.json {
                    json::write_malformed(out, &record, &reason)?;
                } else {
                    writeln!(out, "{} malformed: {reason}", record.number)?;
                }
            }
            Some(Found::Unread(kind)) => {
                *summary.unread.entry(kind).or_default() += 1;
                if !style.json {
                    continue;
                }
                json::write_unread(out, &record, kind)?;
            }
            Some(Found::Other) => continue,
            None => {
                summary.link_types.insert(record.link_type);
                continue;
            }
        }
        if flush {
            out.flush()?;
        }
    }
    Ok(())
}
