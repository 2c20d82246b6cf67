//! Decodes a frame of a capture: headers, ICRC, segments, layers, management datagrams.

use std::io::{self, Write};

use roxie::capture::{Direction, Record};
use roxie::frame::Frame;
use roxie::wire::net::UdpChecksum;
use roxie::wire::{Bth, Drop, Envelope, Icrc, Packet};

use layers::{Inside, Layer};
use mad::Mad;
use nfs::Files;
use nvme::Storage;
use segments::Segments;

pub mod layers;
pub mod mad;
pub mod nfs;
pub mod nvme;
pub mod segments;

/// Characters of a comment that are printed: a NIC writes 4,096 bytes at most.
const LONGEST_COMMENT: usize = 4096;

/// Protocols above RDMA, as far as a capture has shown them.
#[derive(Debug, Default)]
pub struct Protocols {
    storage: Storage,
    files: Files,
}

/// A decoded frame.
pub struct Decoded<'a> {
    /// The frame's record in the capture.
    pub record: &'a Record<'a>,
    /// The frame without the extension headers in front of the packet.
    pub frame: Frame<'a>,
    /// Headers up to the BTH, and where they end.
    pub envelope: Envelope,
    /// `None` if the headers after the BTH cannot be parsed.
    pub packet: Option<Packet>,
    /// Why a receiver drops the packet, if it does.
    pub problem: Option<Drop>,
    /// Result of the ICRC check.
    pub icrc: Verdict,
    /// Packets of a super-frame; `None` for a single packet.
    pub segments: Option<Segments>,
    /// Layers around the packet, outermost first.
    pub layers: &'a [Layer],
    /// Number of bytes in front of the BTH that are in the captured frame but not in `frame`.
    pub removed: usize,
    /// What the packet does for an NVMe command.
    pub nvme: Option<nvme::Role>,
    /// What the packet does for a call of NFS.
    pub nfs: Option<nfs::Role>,
}

/// The ICRC check, as far as the capture allows one.
pub enum Verdict {
    /// The ICRC was compared.
    Checked(Icrc),
    /// The capture truncated the ICRC, or some of the bytes that it covers are unknown.
    None,
}

impl<'a> Decoded<'a> {
    /// Decodes a packet, the next one of the capture that `protocols` has followed so far.
    pub fn new(record: &'a Record<'a>, inside: &'a Inside<'_>, protocols: &mut Protocols) -> Decoded<'a> {
        let Inside { bytes, envelope, layers, removed } = inside;
        let (frame, envelope) = (&Frame::whole(bytes), *envelope);
        let mut packet = Packet::from_envelope(frame, envelope);
        let problem = packet.as_ref().err().copied();
        if let Some(Drop::BadPad { .. } | Drop::BadTransportVersion(_)) = problem {
            // The extended headers do not depend on the pad count and the version: parse them in spite of a bad value.
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
            // No specification says how the ICRC covers IPv6 extension headers that the sender itself added.
            let is_unknown = *removed != 0 && checked != Icrc::Ok;
            icrc = if is_unknown { Verdict::None } else { Verdict::Checked(checked) };
        }
        let (packet, removed) = (packet.ok(), *removed);
        let nvme = packet.as_ref().and_then(|packet| protocols.storage.follow(packet, frame));
        let nfs = packet.as_ref().and_then(|packet| protocols.files.follow(packet, frame));
        Decoded {
            record,
            frame: *frame,
            envelope,
            packet,
            problem,
            icrc,
            segments,
            layers,
            removed,
            nvme,
            nfs,
        }
    }

    /// Returns why a receiver drops the packet, in words.
    pub fn problem_in_words(&self) -> Option<String> {
        match (&self.problem, &self.icrc) {
            (Some(problem), _) => Some(problem.to_string()),
            (None, Verdict::Checked(Icrc::Bad { .. })) => Some("bad ICRC".into()),
            _ => None,
        }
    }

    /// Returns the management datagram in the packet, or what it does for an NVMe command or for a call of NFS, in
    /// words.
    pub fn carries(&self) -> Option<String> {
        let mad = self.mad().map(|mad| mad.to_string());
        let above = || self.nvme.as_ref().map(ToString::to_string);
        mad.or_else(above).or_else(|| self.nfs.as_ref().map(ToString::to_string))
    }

    /// Returns the management datagram in the packet.
    pub fn mad(&self) -> Option<Mad> {
        Mad::read(self.packet.as_ref()?, &self.frame)
    }

    /// Writes the packet as one line, and all its fields below that if `verbose`.
    ///
    /// # Errors
    ///
    /// If `out` cannot be written.
    pub fn write_text(&self, out: &mut dyn Write, verbose: bool) -> io::Result<()> {
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
        if let Some(carried) = self.carries() {
            write!(out, " {carried}")?;
        }
        for (i, layer) in self.layers.iter().enumerate() {
            write!(out, "{} {layer}", if i == 0 { " inside" } else { "," })?;
        }
        if let Some(comment) = self.record.comment {
            let kept: String = comment.chars().take(LONGEST_COMMENT).collect();
            write!(out, " # {}", kept.escape_debug())?;
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
        if let Some(nvme) = &self.nvme {
            nvme.write_full(out)?;
        }
        if let Some(nfs) = &self.nfs {
            nfs.write_full(out)?;
        }
        for layer in self.layers {
            writeln!(out, "  inside {layer:#}")?;
        }
        writeln!(out, "  frame {} bytes, {} captured", self.record.wire_len, self.record.data.len())?;
        if let Some(verdict) = self.envelope.udp_checksum(&self.frame) {
            writeln!(out, "  UDP checksum {}", udp_checksum_name(verdict))?;
        }
        Ok(())
    }
}

/// The name of a verdict in text and in JSON.
pub fn udp_checksum_name(verdict: UdpChecksum) -> &'static str {
    match verdict {
        UdpChecksum::Zero => "zero",
        UdpChecksum::Valid => "valid",
        UdpChecksum::Partial => "partial",
        UdpChecksum::Bad { .. } => "bad",
    }
}
