//! Sequences of packets as text: one packet a line, which a person can read and `roxie conform --script` sends again.
//!
//! ```text
//! pair RC first=0xffffff receives=4 room=1088
//! 1: RC_SEND_ONLY ack len=16
//! 2: again 1
//! 3: RC_WRITE_ONLY ack len=16 dma=16 va=granted+4088 key=granted
//! ```

use std::fmt;
use std::str::FromStr;

use roxie_wire::{Opcode, Psn};

use super::draft::{Draft, Fault, Nature, Place};
use crate::agent::number_of;
use crate::service::Service;

/// Most lines of a script.
const MOST_LINES: usize = 1000;
/// Most bytes of a payload.
const LONGEST: usize = 4096;
/// Most receives that the target posts.
pub(crate) const MOST_RECEIVES: u32 = 16;
/// Most bytes of a receive.
pub(crate) const LARGEST_RECEIVE: u32 = 4096;

/// A line: a packet, or one that was sent before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sends a packet.
    Send(Draft),
    /// Sends the packet of an earlier line again, byte for byte. Without such a line nothing is sent.
    Again(u32),
}

/// A step with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Number, to which `again` refers, and which decides the payload. Unique, not necessarily consecutive.
    pub number: u32,
    /// The step.
    pub step: Step,
}

/// Packets for a queue pair of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Service of the queue pair.
    pub service: Service,
    /// PSN of the first packet.
    pub first: u32,
    /// Number of receives that the target posts.
    pub receives: u32,
    /// Bytes of each receive.
    pub room: u32,
    /// The packets.
    pub lines: Vec<Line>,
}

/// A packet of a sequence with its PSN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) draft: &'a Draft,
    /// Number of the line that describes the packet.
    pub(crate) line: u32,
    pub(crate) psn: Psn,
}

impl Sequence {
    /// Returns the packets with their PSNs. A packet in order moves the PSN on, with UC one ahead as well, unless the
    /// target must drop it whatever comes before.
    pub(crate) fn sent(&self) -> Vec<Sent<'_>> {
        let mut sent: Vec<Sent<'_>> = Vec::new();
        let mut next = Psn::new(self.first);
        for line in &self.lines {
            match &line.step {
                Step::Send(draft) => {
                    let psn = next + draft.psn.cast_unsigned();
                    sent.push(Sent { draft, line: line.number, psn });
                    // A gap of UC ends a message, not the sequence.
                    let is_taken = draft.psn == 0 || self.service == Service::Uc && draft.psn > 0;
                    if is_taken && draft.nature(self.service) != Nature::Void {
                        next = psn + draft.span();
                    }
                }
                Step::Again(number) => {
                    let earlier = sent.iter().find(|packet| packet.line == *number).copied();
                    sent.extend(earlier);
                }
            }
        }
        sent
    }
}

fn service_name(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        Service::Xrc => "XRC",
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = service_name(self.service);
        writeln!(f, "pair {name} first={:#08x} receives={} room={}", self.first, self.receives, self.room)?;
        for line in &self.lines {
            match &line.step {
                Step::Send(draft) => writeln!(f, "{}: {draft}", line.number)?,
                Step::Again(number) => writeln!(f, "{}: again {number}", line.number)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opcode.info() {
            Some(info) => f.write_str(info.name)?,
            None => write!(f, "{:#04x}", self.opcode.0)?,
        }
        if self.psn != 0 {
            write!(f, " psn={:+}", self.psn)?;
        }
        for (is_set, word) in [(self.ack, " ack"), (self.solicited, " solicited")] {
            f.write_str(if is_set { word } else { "" })?;
        }
        if self.length > 0 {
            write!(f, " len={}", self.length)?;
        }
        if self.has_reth() {
            write!(f, " dma={}", self.dma)?;
        }
        if self.names_memory() {
            write!(f, " va={}{:+}", self.at.0.name(), self.at.1)?;
        }
        if self.names_memory() || self.has_ieth() {
            write!(f, " key={}", self.key.0.name())?;
            if self.key.1 != 0 {
                write!(f, "^{:#x}", self.key.1)?;
            }
        }
        if self.has_operands() {
            write!(f, " operand={} compare={}", self.operands.0, self.operands.1)?;
        }
        if self.has_imm() {
            write!(f, " imm={:#x}", self.imm)?;
        }
        if self.has_qkey() {
            write!(f, " qkey={:#x}", self.qkey)?;
        }
        if self.has_aeth() {
            write!(f, " syndrome={:#04x} msn={}", self.aeth.0, self.aeth.1)?;
        }
        self.faults.iter().try_for_each(|fault| write!(f, " {fault}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::BadIcrc => f.write_str("bad-icrc"),
            Fault::PKey(key) => write!(f, "pkey={key:#06x}"),
            Fault::Version(version) => write!(f, "version={version}"),
            Fault::Stranger => f.write_str("other-qpn"),
            Fault::OtherSource => f.write_str("other-source"),
            Fault::OtherPort => f.write_str("other-port"),
            Fault::Cut(bytes) => write!(f, "cut={bytes}"),
            Fault::Pad(count) => write!(f, "pad={count}"),
            Fault::Reserved => f.write_str("reserved-bits"),
        }
    }
}

/// Why a text is no script: the line and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ScriptError {
    line: usize,
    reason: String,
}

/// Returns a number of a type, at most `most`.
fn number<T: TryFrom<u64>>(value: &str, most: u64) -> Result<T, String> {
    let read = number_of(value).filter(|n| *n <= most).and_then(|n| T::try_from(n).ok());
    read.ok_or_else(|| format!("`{value}` is no number up to {most}"))
}

fn place(name: &str) -> Result<Place, String> {
    let found = Place::ALL.iter().find(|(known, _)| *known == name);
    let names = Place::ALL.map(|(name, _)| name).join(", ");
    found.map(|(_, place)| *place).ok_or_else(|| format!("`{name}` is no region: {names}"))
}

fn signed(value: &str) -> Result<i64, String> {
    value.parse().map_err(|_| format!("`{value}` is no distance: +3 or -8"))
}

impl FromStr for Draft {
    type Err = String;

    fn from_str(text: &str) -> Result<Draft, String> {
        let mut words = text.split_whitespace();
        let name = words.next().ok_or("an opcode is missing")?;
        let known = Opcode::all().find(|row| row.name == name).map(|row| row.opcode);
        let byte = name.starts_with("0x").then(|| number::<u8>(name, 0xff).ok()).flatten().map(Opcode);
        let opcode = known.or(byte).ok_or_else(|| format!("`{name}` is no opcode: RC_SEND_ONLY or 0x04"))?;
        let mut draft = Draft::new(opcode);
        words.try_for_each(|word| draft.set(word))?;
        Ok(draft)
    }
}

impl Draft {
    fn set(&mut self, word: &str) -> Result<(), String> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "ack" => self.ack = true,
            "solicited" => self.solicited = true,
            "psn" => self.psn = signed(value).and_then(within_circle)?,
            "len" => self.length = number(value, LONGEST as u64)?,
            "dma" => self.dma = number(value, u32::MAX.into())?,
            "va" => {
                let sign = value.find(['+', '-']).unwrap_or(value.len());
                let (region, distance) = value.split_at(sign);
                let distance = if distance.is_empty() { 0 } else { signed(distance)? };
                self.at = (place(region)?, distance);
            }
            "key" => {
                let (region, bits) = value.split_once('^').unwrap_or((value, "0"));
                self.key = (place(region)?, number(bits, u32::MAX.into())?);
            }
            "operand" => self.operands.0 = number(value, u64::MAX)?,
            "compare" => self.operands.1 = number(value, u64::MAX)?,
            "imm" => self.imm = number(value, u32::MAX.into())?,
            "qkey" => self.qkey = number(value, u32::MAX.into())?,
            "syndrome" => self.aeth.0 = number(value, 0xff)?,
            "msn" => self.aeth.1 = number(value, 0x00ff_ffff)?,
            _ => self.faults.push(fault(name, value)?),
        }
        Ok(())
    }
}

fn within_circle(distance: i64) -> Result<i32, String> {
    let fits = (-(1 << 23)..1 << 23).contains(&distance);
    let distance = i32::try_from(distance).ok().filter(|_| fits);
    distance.ok_or_else(|| "a PSN is less than 2^23 from the next one".to_owned())
}

fn fault(name: &str, value: &str) -> Result<Fault, String> {
    Ok(match name {
        "bad-icrc" => Fault::BadIcrc,
        "pkey" => Fault::PKey(number(value, 0xffff)?),
        "version" => Fault::Version(number(value, 15)?),
        "other-qpn" => Fault::Stranger,
        "other-source" => Fault::OtherSource,
        "other-port" => Fault::OtherPort,
        "cut" => Fault::Cut(number(value, 0xff)?),
        "pad" => Fault::Pad(number(value, 3)?),
        "reserved-bits" => Fault::Reserved,
        _ => return Err(format!("`{name}` is no word of a packet")),
    })
}

/// Reads the line of the queue pair, without `pair`.
fn pair(text: &str) -> Result<Sequence, String> {
    let mut words = text.split_whitespace();
    let service = match words.next() {
        Some("RC") => Service::Rc,
        Some("UC") => Service::Uc,
        Some("UD") => Service::Ud,
        other => return Err(format!("`{}` is no service: RC, UC, UD", other.unwrap_or_default())),
    };
    let mut sequence = Sequence { service, first: 0, receives: 0, room: 0, lines: Vec::new() };
    for word in words {
        match word.split_once('=') {
            Some(("first", value)) => sequence.first = number(value, 0x00ff_ffff)?,
            Some(("receives", value)) => sequence.receives = number(value, MOST_RECEIVES.into())?,
            Some(("room", value)) => sequence.room = number(value, LARGEST_RECEIVE.into())?,
            _ => return Err(format!("`{word}` is no word of a pair: first=, receives=, room=")),
        }
    }
    Ok(sequence)
}

fn line(text: &str) -> Result<Line, String> {
    let (label, rest) = text.split_once(':').ok_or("a line begins with its number: `1: RC_SEND_ONLY`")?;
    let number = number(label.trim(), u32::MAX.into())?;
    let step = match rest.trim().strip_prefix("again ") {
        Some(earlier) => Step::Again(self::number(earlier.trim(), u32::MAX.into())?),
        None => Step::Send(rest.parse()?),
    };
    Ok(Line { number, step })
}

impl FromStr for Sequence {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Sequence, ScriptError> {
        let mut sequence: Option<Sequence> = None;
        for (at, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text.trim())) {
            let wrong = |reason: String| ScriptError { line: at, reason };
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            match (&mut sequence, text.strip_prefix("pair ")) {
                (None, Some(rest)) => sequence = Some(pair(rest).map_err(wrong)?),
                (None, None) => return Err(wrong("a script begins with its pair: `pair RC`".into())),
                (Some(_), Some(_)) => return Err(wrong("a script has one pair".into())),
                (Some(sequence), None) => {
                    let line = line(text).map_err(wrong)?;
                    if sequence.lines.iter().any(|known| known.number == line.number) {
                        return Err(wrong(format!("the number {} is taken", line.number)));
                    }
                    if sequence.lines.len() == MOST_LINES {
                        return Err(wrong(format!("a script has at most {MOST_LINES} packets")));
                    }
                    sequence.lines.push(line);
                }
            }
        }
        sequence.ok_or(ScriptError { line: 0, reason: "no packet: a script begins with `pair RC`".into() })
    }
}
