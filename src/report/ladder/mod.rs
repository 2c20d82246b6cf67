//! Ladders: the packets between the queue pairs of a capture, as sequence diagrams.
//!
//! ```text
//! captures -> read   the RoCE packets of each capture            -> Seen
//!          -> meet   match the views of both ends                -> Passage
//!          -> pair   match the two flows of a connection         -> Connection
//!          -> trace  classify: new, retransmitted, response, error, and gaps before it
//!          -> steps  rungs; similar consecutive packets are merged
//!          -> text, svg
//! ```
//!
//! A BTH names only the destination queue pair. The reverse flow of a connection is found by its responses: their PSNs
//! are those of the requests.

use std::net::IpAddr;

use roxie::wire::{Opcode, Operation, Packet, Position, Psn, Qpn, Sack, Service, Syndrome};

mod meet;
mod pair;
mod read;
mod steps;
mod svg;
mod text;
mod trace;

pub use meet::{Unrelated, meet};
pub use pair::{Connection, pair};
pub use read::{read, read_frames};
pub use steps::{Ladder, Style};
pub use svg::draw as draw_svg;
pub use text::{draw as draw_text, draw_within as draw_text_within};

/// Fields of a packet that matter for a ladder.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    src: IpAddr,
    dst: IpAddr,
    opcode: Opcode,
    service: Service,
    operation: Operation,
    position: Position,
    dest_qp: Qpn,
    /// Source QP, if a DETH names it.
    src_qp: Option<Qpn>,
    psn: Psn,
    /// Payload bytes.
    payload: usize,
    /// Bytes that a READ requests.
    asks: Option<u32>,
    syndrome: Option<Syndrome>,
    sack: Option<Sack>,
    /// The connection manager's message in the packet, or what it does for an NVMe command, in words.
    carries: String,
    /// True if the ICRC or a length is wrong, so that a receiver drops the packet.
    damaged: bool,
}

impl Facts {
    fn of(packet: &Packet) -> Facts {
        let info = packet.info();
        Facts {
            src: packet.source_gid().to_ip(),
            dst: packet.dest_gid().to_ip(),
            opcode: packet.bth.opcode,
            service: info.service,
            operation: info.operation,
            position: info.position,
            dest_qp: packet.bth.dest_qp,
            src_qp: packet.deth().map(|deth| deth.src_qp),
            psn: packet.bth.psn,
            payload: packet.payload.len(),
            asks: packet.reth().filter(|_| info.operation == Operation::ReadRequest).map(|reth| reth.dma_len),
            syndrome: packet.aeth().map(|aeth| aeth.kind()),
            sack: packet.sack(),
            carries: String::new(),
            damaged: false,
        }
    }

    /// True for a response: its PSN is one of the peer's requests.
    fn is_answer(&self) -> bool {
        matches!(
            self.operation,
            Operation::ReadResponse
                | Operation::Acknowledge
                | Operation::AtomicAcknowledge
                | Operation::SelectiveAcknowledge
        )
    }

    /// True if PSNs are sequential, as on RC, UC and XRC.
    fn is_ordered(&self) -> bool {
        matches!(self.service, Service::Rc | Service::Uc | Service::Xrc)
    }

    /// Returns the opcode's name without its service, or the meaning of an AETH.
    fn name(&self) -> String {
        if !self.carries.is_empty() {
            return self.carries.clone();
        }
        if self.sack.is_some() {
            return "SACK".to_owned();
        }
        if self.operation == Operation::Acknowledge
            && let Some(syndrome) = self.syndrome
        {
            return syndrome.name().to_owned();
        }
        let name = self.opcode.info().map_or("?", |info| info.name);
        name.split_once('_').map_or(name, |(_, rest)| rest).to_owned()
    }
}

/// A packet's place in a capture.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    /// Frame number in the capture.
    number: u64,
    /// Nanoseconds since the Unix epoch by the capture's clock.
    at: Option<u64>,
    /// The packet's comment on one line, after the packet's defect if there is one.
    comment: String,
}

/// A packet of one capture.
#[derive(Clone, Debug)]
pub struct Seen {
    facts: Facts,
    sight: Sight,
    /// True if the capturing host sent the packet; `None` if the capture does not say.
    out: Option<bool>,
}

/// A packet on its way from one end to the other.
#[derive(Clone, Debug)]
pub struct Passage {
    facts: Facts,
    /// Sighting at the sender, or between the ends.
    departed: Option<Sight>,
    /// Sighting in the receiver's capture, if any.
    arrived: Option<Sight>,
    fate: Fate,
    /// Nanoseconds by the clock of the leading capture.
    at: Option<i64>,
}

/// Fate of a packet between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Captured at one place only.
    Unknown,
    /// In both captures.
    Delivered,
    /// Sent, but not received.
    Lost,
    /// Received, but not sent, or received more often than sent.
    Extra,
}

impl Passage {
    /// True if no receiver acts on the packet.
    fn is_void(&self) -> bool {
        let dropped = |sight: &Sight| sight.comment.starts_with("dropped");
        self.fate == Fate::Lost || self.facts.damaged || self.arrived.as_ref().is_some_and(dropped)
    }

    /// Returns the frame number in the left end's capture, or in the only one.
    fn number(&self, right: bool) -> Option<u64> {
        let here = if right { &self.departed } else { &self.arrived };
        let only = self.departed.as_ref().or(self.arrived.as_ref()).filter(|_| self.fate == Fate::Unknown);
        here.as_ref().or(only).map(|sight| sight.number)
    }
}

/// Formats a duration for people.
fn duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// Formats a time relative to the first packet, which can be negative.
fn signed_duration(ns: i64) -> String {
    format!("{}{}", if ns < 0 { "-" } else { "" }, duration(ns.unsigned_abs()))
}

fn plural(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Formats a PSN or a range of PSNs: `psn 5`, `psn 5..9`.
fn psn_range(first: Psn, last: Psn) -> String {
    if first == last { format!("psn {first}") } else { format!("psn {first}..{last}") }
}
