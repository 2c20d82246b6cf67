//! Reads the RoCE packets of a capture.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use roxie::capture::{CaptureError, Direction, Reader, Record};
use roxie::text::acts;
use roxie::wire::Packet;

use super::{Facts, Seen, Sight};
use crate::decoded::layers::{Found, find};
use crate::decoded::{Decoded, Protocols};

/// Most packets read from a capture: each takes some hundred bytes of memory.
const MOST: usize = 1_000_000;
/// Bytes of a comment that are kept.
const LONGEST_COMMENT: usize = 300;

/// The contents of a capture.
#[derive(Debug, Default)]
pub struct Reading {
    pub seen: Vec<Seen>,
    /// Number of frames of any kind.
    pub frames: u64,
    /// Number of frames that claim to be RoCE but are malformed.
    pub malformed: u64,
    /// Link types that are not decoded.
    pub link_types: BTreeSet<u32>,
    /// Number of frames that may carry RoCE, by the header that is not decoded.
    pub unread: BTreeMap<&'static str, u64>,
    /// Why reading stopped before the capture's end.
    pub broken: Option<CaptureError>,
    /// True if the capture has more packets than a ladder takes.
    pub too_many: bool,
    protocols: Protocols,
}

/// Reads a capture to its end, or to the first error.
///
/// # Errors
///
/// If the source is no capture.
pub fn read(source: impl Read) -> Result<Reading, CaptureError> {
    read_frames(source, |_| true)
}

/// Reads the packets of the frames that `keep` accepts by their numbers.
///
/// # Errors
///
/// As [`read`].
pub fn read_frames(source: impl Read, keep: impl Fn(u64) -> bool) -> Result<Reading, CaptureError> {
    let mut reader = Reader::new(source)?;
    let mut reading = Reading::default();
    while reading.seen.len() < MOST {
        match reader.next() {
            Ok(Some(record)) if !keep(record.number) => {}
            Ok(Some(record)) => reading.take(&record),
            Ok(None) => return Ok(reading),
            Err(error) => {
                reading.broken = Some(error);
                return Ok(reading);
            }
        }
    }
    reading.too_many = true;
    Ok(reading)
}

impl Reading {
    fn take(&mut self, record: &Record<'_>) {
        self.frames += 1;
        match find(record) {
            None => {
                self.link_types.insert(record.link_type);
            }
            Some(Found::Packet(inside)) => {
                let decoded = Decoded::new(record, &inside, &mut self.protocols);
                self.take_packet(record, &decoded);
            }
            Some(Found::Malformed(_)) => self.malformed += 1,
            Some(Found::Unread(kind)) => *self.unread.entry(kind).or_default() += 1,
            Some(Found::Other) => {}
        }
    }

    fn take_packet(&mut self, record: &Record<'_>, decoded: &Decoded<'_>) {
        let Some(packet) = &decoded.packet else {
            self.malformed += 1;
            return;
        };
        let comment = one_line(record.comment.unwrap_or_default());
        let problem = decoded.problem_in_words();
        let told = match &problem {
            // A NIC's comment states the drop reason already. A made-up IPv4 identification (of sockets) is no damage.
            Some(problem) if comment.is_empty() => format!("{problem}: receivers drop it"),
            _ => comment.clone(),
        };
        let seen = |packet: &Packet| Seen {
            facts: Facts { damaged: problem.is_some() && comment.is_empty(), ..Facts::of(packet) },
            sight: Sight { number: record.number, at: record.timestamp_ns, comment: told.clone() },
            out: record.direction.map(|way| way == Direction::Out),
        };
        let first = self.seen.len();
        match &decoded.segments {
            Some(segments) => {
                self.seen.extend(segments.packets(&decoded.envelope, &decoded.frame).iter().map(seen))
            }
            None => self.seen.push(seen(packet)),
        }
        if let Some(seen) = self.seen.get_mut(first) {
            seen.facts.carries = decoded.carries().unwrap_or_default();
        }
    }
}

/// Replaces characters that act on a terminal and truncates a comment, which may contain any text.
fn one_line(comment: &str) -> String {
    let mut line = String::new();
    for c in comment.chars() {
        if line.len() >= LONGEST_COMMENT {
            line.push_str("...");
            break;
        }
        line.push(if acts(c) { ' ' } else { c });
    }
    line
}
