//! Ladders: what the queue pairs of a capture said to one another, as sequence diagrams.
//!
//! ```text
//! packets -> pair   which two flows are a connection      -> Connection
//!         -> trace  what each packet is: new, sent again, an answer, trouble, and what is missing before it
//!         -> steps  rungs; packets that follow one another are one
//!         -> text, svg
//! ```
//!
//! A BTH names only the queue pair that a packet goes to. Which flow the other way belongs to it is told by the answers:
//! their PSNs are those of the requests.

use std::net::IpAddr;

use roxie::capture::{Direction, Record};
use roxie::wire::{Opcode, Operation, Packet, Position, Psn, Qpn, Service, Syndrome};

mod pair;
mod steps;
mod svg;
mod text;
mod trace;

pub(crate) use pair::{Connection, pair};
pub(crate) use svg::draw as draw_svg;
pub(crate) use text::draw as draw_text;

/// Packets that are drawn at most: each takes some hundred bytes, and nobody reads so far.
pub(crate) const MOST: usize = 1_000_000;

/// A packet of a capture, as far as a ladder shows it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Nanoseconds since the Unix epoch.
    pub(crate) at: Option<u64>,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) opcode: Opcode,
    pub(crate) service: Service,
    pub(crate) operation: Operation,
    position: Position,
    pub(crate) dest_qp: Qpn,
    /// Where a DETH names it.
    src_qp: Option<Qpn>,
    pub(crate) psn: Psn,
    /// Packets in it: more than one if it was captured before segmentation.
    count: u32,
    payload: usize,
    /// Bytes that a READ asks for.
    asks: Option<u32>,
    syndrome: Option<Syndrome>,
    /// Sent by the host that captured it; `None` if the capture does not say.
    out: Option<bool>,
    /// What is known about it besides: the packet's comment.
    comment: String,
    /// What it carries, for packets of the connection manager.
    carries: String,
    /// Drawn as lost on the way: it left, and the other end did not see it.
    lost: bool,
}

impl Seen {
    /// A packet of a record.
    pub(crate) fn new(record: &Record<'_>, packet: &Packet) -> Seen {
        let info = packet.info();
        Seen {
            at: record.timestamp_ns,
            src: packet.source_gid().to_ip(),
            dst: packet.dest_gid().to_ip(),
            opcode: packet.bth.opcode,
            service: info.service,
            operation: info.operation,
            position: info.position,
            dest_qp: packet.bth.dest_qp,
            src_qp: packet.deth().map(|deth| deth.src_qp),
            psn: packet.bth.psn,
            count: 1,
            payload: packet.payload.len(),
            asks: packet.reth().filter(|_| info.operation == Operation::ReadRequest).map(|reth| reth.dma_len),
            syndrome: packet.aeth().map(|aeth| aeth.kind()),
            out: record.direction.map(|way| way == Direction::Out),
            comment: record.comment.unwrap_or_default().to_owned(),
            carries: String::new(),
            lost: false,
        }
    }

    /// The same with what decoding found out besides: how many packets it will be cut into and what it carries.
    pub(crate) fn with(self, count: u32, carries: Option<String>) -> Seen {
        Seen { count: count.max(1), carries: carries.unwrap_or_default(), ..self }
    }

    /// The same with something that is wrong with it.
    pub(crate) fn with_problem(mut self, problem: &str) -> Seen {
        let joint = if self.comment.is_empty() { "" } else { "; " };
        self.comment = format!("{problem}{joint}{}", self.comment);
        self
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

/// Completes what one end captured by what the other end did: what became of each packet that left, and why.
///
/// Of a PSN that left more often than it arrived, the first ones are taken for lost: what is sent again is sent because
/// an earlier one was lost.
pub(crate) fn meet(near: &mut [Seen], far: &[Seen]) {
    use std::collections::HashMap;
    let key = |seen: &Seen| (seen.dest_qp, seen.psn, seen.is_answer());
    let mut arrivals: HashMap<_, Vec<&Seen>> = HashMap::new();
    for seen in far.iter().filter(|seen| seen.out == Some(false)) {
        arrivals.entry(key(seen)).or_default().push(seen);
    }
    let mut departures: HashMap<_, usize> = HashMap::new();
    for seen in near.iter().filter(|seen| seen.out == Some(true)) {
        *departures.entry(key(seen)).or_default() += 1;
    }
    for seen in near.iter_mut().filter(|seen| seen.out == Some(true)) {
        let left = departures.get_mut(&key(seen)).map_or(0, |n| std::mem::replace(n, *n - 1));
        match arrivals.get_mut(&key(seen)).filter(|a| a.len() >= left && !a.is_empty()) {
            Some(arrived) => seen.comment.clone_from(&arrived.remove(0).comment),
            None => {
                seen.lost = true;
                seen.comment = "lost on the way".into();
            }
        }
    }
}

/// Sizes and times as people write them.
fn duration(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

fn plural(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
