//! A frame of a capture, and all that can be told about it.

use std::io::{self, Write};

use roxie::capture::{Direction, Record, link_type};
use roxie::frame::Frame;
use roxie::wire::net::{UdpChecksum, ether_type};
use roxie::wire::{Bth, Drop, Envelope, Icrc, Packet};

use mad::Mad;
use segments::Segments;

pub(crate) mod mad;
pub(crate) mod segments;

/// True if the frame claims to be RoCE; false if it is something else.
pub(crate) fn is_malformed(reason: &Drop) -> bool {
    match reason {
        Drop::NotRoce | Drop::MacControl | Drop::Fragment { .. } | Drop::Ipv6Extension(_) => false,
        // Too short even to tell what it is.
        Drop::Truncated { what, .. } => matches!(*what, "BTH" | "BTH and ICRC" | "IP packet"),
        Drop::BadIpHeader { .. } => false,
        _ => true,
    }
}

/// Finds the packet in a frame; `None` if frames of this link type are not known here.
pub(crate) fn envelope(record: &Record<'_>, frame: &Frame<'_>) -> Option<Result<Envelope, Drop>> {
    let network = |ether_type: u16, at: usize| Envelope::from_network(frame, ether_type, at, record.wire_len);
    let protocol_at = |at: usize| record.data.get(at..).and_then(|b| b.first_chunk()).copied();
    // For a frame that is too short for its type field: EtherType 0 is nobody's.
    let cooked = |at: usize| u16::from_be_bytes(protocol_at(at).unwrap_or([0; 2]));
    let ip_at = |at: usize| match record.data.get(at).map(|b| b >> 4) {
        Some(4) => network(ether_type::IPV4, at),
        Some(6) => network(ether_type::IPV6, at),
        _ => Err(Drop::NotRoce),
    };
    Some(match record.link_type {
        link_type::ETHERNET => Envelope::from_ethernet(frame, record.wire_len),
        link_type::LINUX_SLL => network(cooked(14), 16),
        link_type::LINUX_SLL2 => network(cooked(0), 20),
        link_type::RAW | link_type::RAW_BSD | link_type::IPV4 | link_type::IPV6 => ip_at(0),
        link_type::NULL | link_type::LOOP => ip_at(4),
        _ => return None,
    })
}

/// A frame with all that can be told about it.
pub(crate) struct Decoded<'a> {
    pub(super) record: &'a Record<'a>,
    pub(crate) frame: Frame<'a>,
    pub(super) envelope: Envelope,
    /// `None` if its headers behind the BTH cannot be read.
    pub(crate) packet: Option<Packet>,
    /// What is wrong with it.
    pub(super) problem: Option<Drop>,
    pub(super) icrc: Verdict,
    pub(crate) segments: Option<Segments>,
}

/// The ICRC as far as the capture lets it be seen.
pub(super) enum Verdict {
    Checked(Icrc),
    /// The capture cut it off.
    None,
}

impl<'a> Decoded<'a> {
    pub(crate) fn new(record: &'a Record<'a>, frame: &Frame<'a>, envelope: Envelope) -> Decoded<'a> {
        let mut packet = Packet::from_envelope(frame, envelope);
        let problem = packet.as_ref().err().copied();
        if let Some(Drop::BadPad { .. } | Drop::BadTransportVersion(_)) = problem {
            // The headers do not depend on these: show them nevertheless.
            let bth = Bth { pad: 0, tver: 0, ..envelope.bth };
            packet = Packet::from_envelope(frame, Envelope { bth, ..envelope });
        }
        let (mut icrc, mut segments) = (Verdict::None, None);
        if envelope.is_complete(frame) {
            let mut checked = envelope.check_icrc(frame);
            if checked != Icrc::Ok {
                segments = Segments::find(&envelope, frame);
            }
            if let Some(s) = &segments {
                checked = s.icrc;
            }
            icrc = Verdict::Checked(checked);
        }
        Decoded { record, frame: *frame, envelope, packet: packet.ok(), problem, icrc, segments }
    }

    /// Why whoever gets it will drop it.
    pub(crate) fn problem_in_words(&self) -> Option<String> {
        match (&self.problem, &self.icrc) {
            (Some(problem), _) => Some(problem.to_string()),
            (None, Verdict::Checked(Icrc::Bad { .. })) => Some("bad ICRC".into()),
            _ => None,
        }
    }

    /// The management datagram in it, in words.
    pub(crate) fn carries(&self) -> Option<String> {
        self.mad().map(|mad| mad.to_string())
    }

    pub(super) fn mad(&self) -> Option<Mad> {
        Mad::read(self.packet.as_ref()?, &self.frame)
    }

    pub(super) fn write_text(&self, out: &mut dyn Write, verbose: bool) -> io::Result<()> {
        write!(out, "{}", self.record.number)?;
        if let Some(ns) = self.record.timestamp_ns {
            write!(out, " {}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)?;
        }
        match self.record.direction {
            Some(Direction::In) => out.write_all(b" in")?,
            Some(Direction::Out) => out.write_all(b" out")?,
            None => {}
        }
        match &self.packet {
            Some(packet) => write!(out, " {packet}")?,
            None => write!(out, " {}", self.envelope)?,
        }
        if let Some(reason) = &self.problem {
            write!(out, " problem: {reason}")?;
        }
        match &self.icrc {
            Verdict::Checked(icrc) => write!(out, " icrc {icrc}")?,
            Verdict::None => out.write_all(b" icrc none")?,
        }
        if let Some(s) = &self.segments {
            write!(out, " gso {} segments of {} bytes, psn to {}", s.count, s.len, s.last_psn)?;
        }
        if let Some(mad) = self.carries() {
            write!(out, " {mad}")?;
        }
        if let Some(comment) = self.record.comment {
            write!(out, " # {}", comment.escape_debug())?;
        }
        writeln!(out)?;
        if verbose {
            self.write_full(out)?;
        }
        Ok(())
    }

    fn write_full(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.packet {
            Some(packet) => writeln!(out, "{}", packet.full())?,
            None => writeln!(out, "{}", self.envelope.full())?,
        }
        if let Some(message) = self.mad().as_ref().and_then(Mad::message) {
            writeln!(out, "  CM {message:#}")?;
        }
        writeln!(out, "  frame {} bytes, {} captured", self.record.wire_len, self.record.data.len())?;
        if let Some(verdict) = self.envelope.udp_checksum(&self.frame) {
            writeln!(out, "  UDP checksum {}", udp_checksum_name(verdict))?;
        }
        Ok(())
    }
}

/// As it is called in both forms of output.
pub(super) fn udp_checksum_name(verdict: UdpChecksum) -> &'static str {
    match verdict {
        UdpChecksum::Zero => "zero",
        UdpChecksum::Valid => "valid",
        UdpChecksum::Partial => "partial",
        UdpChecksum::Bad { .. } => "bad",
    }
}
