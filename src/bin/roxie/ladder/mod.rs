//! Ladders: what the queue pairs of a capture said to one another, as sequence diagrams.
//!
//! ```text
//! captures -> read   the RoCE packets of each                    -> Seen
//!          -> meet   each once, though both ends have seen it    -> Passage
//!          -> pair   which two flows are a connection            -> Connection
//!          -> trace  what each packet is: new, sent again, an answer, trouble, and what is missing before it
//!          -> steps  rungs; packets that follow one another are one
//!          -> text, svg
//! ```
//!
//! A BTH names only the queue pair that a packet goes to. Which flow the other way belongs to it is told by the answers:
//! their PSNs are those of the requests.

use std::net::IpAddr;

use roxie::wire::{Opcode, Operation, Packet, Position, Psn, Qpn, Service, Syndrome};

mod meet;
mod pair;
mod read;
mod steps;
mod svg;
mod text;
mod trace;

pub(crate) use meet::{Strangers, meet};
pub(crate) use pair::{Connection, pair};
pub(crate) use read::read;
pub(crate) use steps::{Ladder, Style};
pub(crate) use svg::draw as draw_svg;
pub(crate) use text::{draw as draw_text, draw_within as draw_text_within};

/// What a packet says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    src: IpAddr,
    dst: IpAddr,
    opcode: Opcode,
    service: Service,
    operation: Operation,
    position: Position,
    dest_qp: Qpn,
    /// Where a DETH names it.
    src_qp: Option<Qpn>,
    psn: Psn,
    /// Bytes of payload.
    payload: usize,
    /// Bytes that a READ asks for.
    asks: Option<u32>,
    syndrome: Option<Syndrome>,
    /// What it carries, for packets of the connection manager.
    carries: String,
    /// Its ICRC or a length is wrong: whoever gets it drops it.
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
            carries: String::new(),
            damaged: false,
        }
    }

    /// True if it answers a request: then its PSN is one of the peer's.
    fn is_answer(&self) -> bool {
        matches!(
            self.operation,
            Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge
        )
    }

    /// True if its PSNs count what the peer must get, in order.
    fn is_ordered(&self) -> bool {
        matches!(self.service, Service::Rc | Service::Uc | Service::Xrc)
    }

    /// The opcode's name without its service, or what an AETH says.
    fn name(&self) -> String {
        if !self.carries.is_empty() {
            return self.carries.clone();
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

/// Where and when a capture has a packet.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    /// The frame's number in its capture.
    number: u64,
    /// Nanoseconds since the Unix epoch, by the clock of the capture.
    at: Option<u64>,
    /// The packet's comment, on one line; what is wrong with the packet before it.
    comment: String,
}

/// A packet of one capture.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    facts: Facts,
    sight: Sight,
    /// Sent by the host that captured it; `None` if the capture does not say.
    out: Option<bool>,
}

/// A packet on its way from one end to the other.
#[derive(Clone, Debug)]
pub(crate) struct Passage {
    facts: Facts,
    /// At the sender, or somewhere on the way.
    departed: Option<Sight>,
    /// Where the receiver's capture shows it; `None`: it does not.
    arrived: Option<Sight>,
    fate: Fate,
    /// Nanoseconds by the clock of the capture that leads.
    at: Option<i64>,
}

/// What became of a packet between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Seen at one place only.
    Unknown,
    /// Both ends have it.
    Delivered,
    /// It left, and did not arrive.
    Lost,
    /// It arrived, and did not leave, or not as often.
    Extra,
}

impl Passage {
    /// True if nobody acts on it.
    fn is_void(&self) -> bool {
        let dropped = |sight: &Sight| sight.comment.starts_with("dropped");
        self.fate == Fate::Lost || self.facts.damaged || self.arrived.as_ref().is_some_and(dropped)
    }

    /// The frame's number in the capture of the left end, or in the only one.
    fn number(&self, right: bool) -> Option<u64> {
        let here = if right { &self.departed } else { &self.arrived };
        let only = self.departed.as_ref().or(self.arrived.as_ref()).filter(|_| self.fate == Fate::Unknown);
        here.as_ref().or(only).map(|sight| sight.number)
    }
}

/// Times as people write them.
fn duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// As [`duration`], of what may lie before the first packet.
fn signed_duration(ns: i64) -> String {
    format!("{}{}", if ns < 0 { "-" } else { "" }, duration(ns.unsigned_abs()))
}

fn service_name(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Rd => "RD",
        Service::Ud => "UD",
        Service::Xrc => "XRC",
        Service::Cnp => "CNP",
    }
}

fn plural(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// `psn 5`, or `psn 5..9`.
fn psn_range(first: Psn, last: Psn) -> String {
    if first == last { format!("psn {first}") } else { format!("psn {first}..{last}") }
}
