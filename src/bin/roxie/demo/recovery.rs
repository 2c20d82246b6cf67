//! One lost packet and how it is made good: a short run with both ends captured, and its ladder drawn from the
//! captures as they were written.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roxie::capture::{Direction, Reader};
use roxie::frame::Frame;
use roxie::host::Stack;
use roxie::port::fault::FaultConfig;
use roxie::wire::{self, Opcode, Psn, Syndrome};

use super::Failure;
use super::connection::Connection;
use super::site::Link;
use super::verify::{self, Verified};
use crate::floor::Threads;

/// Packets of the message.
const PACKETS: usize = 6;
/// Which of them is lost, counted from 1.
const LOST: usize = 3;
/// Lines that a ladder has at most.
const MAX_LINES: usize = 24;
/// Columns of a ladder's rungs.
const WIDTH: usize = 46;

/// What a recovery left behind.
pub(super) struct Recovery {
    /// The captures of the near and of the far end.
    pub(super) captures: [PathBuf; 2],
    /// The drawing.
    pub(super) ladder: String,
    /// What became of the data.
    pub(super) verified: Verified,
    /// Packets that were sent again.
    pub(super) retransmitted: u64,
}

/// Loses the third packet of one WRITE between the NIC and the link, and captures both ends.
pub(super) fn recover(link: &Link, directory: &Path, seed: u64) -> Result<Recovery, Failure> {
    let path = |end: &str| directory.join(format!("roxie-demo-{}-{end}.pcapng", link.kind));
    let captures = [path("near"), path("far")];
    let fault =
        FaultConfig::parse(&format!("tx.drop=nth{LOST}")).map_err(|e| Failure::Wrong(e.to_string()))?;
    let near = Stack { fault: Some(fault), capture: Some(captures[0].clone()) };
    let far = Stack { fault: None, capture: Some(captures[1].clone()) };
    // A local ACK timeout of 67 ms: long enough for the NAK to be what starts the recovery.
    let c = Connection::open(link, [&near, &far], 14, Threads::One)?;
    let size = PACKETS * c.path_mtu();
    verify::fill(&c, seed)?;
    c.near.write(&c.far, 0, size as u32)?;
    c.wait(&c.near.sends, "WRITE with a lost packet")?;
    let verified = verify::filled(&c, seed, size)?;
    let retransmitted = c.counter("retransmitted_packets");
    // Closing the devices writes out what the captures still hold.
    drop(c);
    let events = [read(&captures[0])?, read(&captures[1])?];
    Ok(Recovery { ladder: draw(&events[0], &events[1]), captures, verified, retransmitted })
}

/// A packet in a capture.
#[derive(Clone, Debug)]
struct Event {
    at: Duration,
    out: bool,
    psn: Psn,
    opcode: Opcode,
    syndrome: Option<Syndrome>,
    comment: String,
}

fn read(path: &Path) -> Result<Vec<Event>, Failure> {
    let wrong = |e: &dyn std::fmt::Display| Failure::Capture { path: path.to_owned(), why: e.to_string() };
    let file = File::open(path).map_err(|e| wrong(&e))?;
    let mut reader = Reader::new(file).map_err(|e| wrong(&e))?;
    let mut events = Vec::new();
    while let Some(record) = reader.next().map_err(|e| wrong(&e))? {
        let Ok(packet) = wire::parse(&Frame::whole(record.data)) else { continue };
        events.push(Event {
            at: Duration::from_nanos(record.timestamp_ns.unwrap_or(0)),
            out: record.direction == Some(Direction::Out),
            psn: packet.bth.psn,
            opcode: packet.bth.opcode,
            syndrome: packet.aeth().map(|aeth| aeth.kind()),
            comment: record.comment.unwrap_or_default().to_owned(),
        });
    }
    Ok(events)
}

/// Draws the packets in the order in which the near end saw them, each with what both ends said about it.
///
/// A request is matched with its arrival at the far end by PSN. Of a PSN that left more often than it arrived,
/// the first ones are taken for lost: that is what happened here.
fn draw(near: &[Event], far: &[Event]) -> String {
    let mut arrivals: HashMap<u32, Vec<&Event>> = HashMap::new();
    for event in far.iter().filter(|e| !e.out) {
        arrivals.entry(event.psn.value()).or_default().push(event);
    }
    let mut departures: HashMap<u32, usize> = HashMap::new();
    for event in near.iter().filter(|e| e.out) {
        *departures.entry(event.psn.value()).or_default() += 1;
    }
    let start = near.first().map_or(Duration::ZERO, |e| e.at);
    let mut text = format!("{:>12}  {:<2$}far\n", "", "near", WIDTH + 1);
    for event in near.iter().take(MAX_LINES) {
        let time = format!("{:.1} us", event.at.saturating_sub(start).as_nanos() as f64 / 1e3);
        let (rung, remark) = if event.out {
            let left = departures.get_mut(&event.psn.value()).map_or(0, |n| std::mem::replace(n, *n - 1));
            let arrived = arrivals.get_mut(&event.psn.value());
            match arrived.filter(|a| a.len() >= left && !a.is_empty()) {
                Some(a) => (rung(&label(event), Shape::Right), a.remove(0).comment.clone()),
                None => (rung(&label(event), Shape::Lost), "lost on the way".to_owned()),
            }
        } else {
            (rung(&label(event), Shape::Left), String::new())
        };
        let line = format!("{time:>12}  |{rung}|  {remark}");
        let _ = writeln!(text, "{}", line.trim_end());
        if !event.out && !matches!(event.syndrome, Some(Syndrome::Ack { .. })) {
            let _ = writeln!(text, "{:>12}  {}", "", event.comment);
        }
    }
    text
}

/// What is written on a rung.
fn label(event: &Event) -> String {
    let name = event.opcode.info().map_or("?", |info| info.name);
    let name = name.strip_prefix("RC_").unwrap_or(name);
    let mut label = match &event.syndrome {
        Some(Syndrome::Ack { .. }) => format!("ACK psn {}", event.psn),
        Some(syndrome) => format!("{} psn {}", syndrome.name(), event.psn),
        None => format!("{name} psn {}", event.psn),
    };
    if event.out && event.comment.starts_with("retransmit") {
        label += " again";
    }
    label
}

enum Shape {
    Right,
    Left,
    Lost,
}

/// A line of `WIDTH` columns with an arrow head at the end that it reaches.
fn rung(label: &str, shape: Shape) -> String {
    match shape {
        Shape::Right => format!("{:-<1$}>", format!("-- {label} "), WIDTH - 1),
        Shape::Left => format!("<{:-<1$}", format!("- {label} "), WIDTH - 1),
        Shape::Lost => {
            let line = format!("{:-<1$}X", format!("-- {label} "), WIDTH * 3 / 4);
            format!("{line:WIDTH$}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie::wire::NakCode;

    fn event(out: bool, psn: u32, syndrome: Option<Syndrome>, comment: &str) -> Event {
        let opcode = if syndrome.is_some() { Opcode::RC_ACKNOWLEDGE } else { Opcode::RC_WRITE_MIDDLE };
        let at = Duration::from_micros(psn.into());
        Event { at, out, psn: Psn::new(psn), opcode, syndrome, comment: comment.into() }
    }

    #[test]
    fn the_packet_that_did_not_arrive_is_drawn_as_lost_and_its_repetition_is_not() {
        let nak = Some(Syndrome::Nak(NakCode::PsnSequence));
        let near = [
            event(true, 1, None, "request"),
            event(true, 2, None, "request"),
            event(false, 1, nak, "sequence NAK: go back and send again"),
            event(true, 1, None, "retransmit after sequence NAK, try 1 of 7"),
            event(true, 2, None, "retransmit after sequence NAK, try 1 of 7"),
        ];
        let far = [
            event(false, 2, None, "ahead"),
            event(false, 1, None, "executed"),
            event(false, 2, None, "executed"),
        ];
        let text = draw(&near, &far);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains('X') && lines[1].ends_with("lost on the way"), "{text}");
        assert!(lines[2].contains("-->|") || lines[2].contains("->|"), "{text}");
        assert!(lines[2].ends_with("ahead"), "{text}");
        assert!(lines[3].contains("|<- NAK"), "{text}");
        assert!(lines[4].contains("go back"), "{text}");
        assert!(lines[5].contains("psn 1 again") && lines[5].ends_with("executed"), "{text}");
        assert!(!lines[5].contains('X') && lines[6].ends_with("executed"), "{text}");
    }

    #[test]
    fn all_rungs_have_the_same_width() {
        for shape in [Shape::Right, Shape::Left, Shape::Lost] {
            assert_eq!(rung("WRITE_MIDDLE psn 16777215 again", shape).chars().count(), WIDTH);
        }
    }
}
