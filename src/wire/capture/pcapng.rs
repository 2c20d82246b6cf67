//! Reading pcapng: sections, their interfaces, and the three kinds of packet block.

use std::io::Read;

use super::source::{CaptureError, Direction, MAX_RECORD, Order, Record, Source};
use super::{BYTE_ORDER_MAGIC, block, option};

/// Maximum number of interfaces of a section: a stream that only adds interfaces must not fill its reader's memory.
const MOST_INTERFACES: usize = 1 << 16;

/// The current section. Interfaces are numbered within it.
#[derive(Debug)]
pub(super) struct Section {
    order: Order,
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: u32,
    snap_len: u32,
    clock: Clock,
}

/// Unit and origin of an interface's time stamps.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// `None` if the resolution is finer than 64 bits express.
    ticks_per_s: Option<u64>,
    offset_s: i64,
}

impl Clock {
    /// Microseconds since the epoch, unless options say otherwise.
    const DEFAULT: Clock = Clock { ticks_per_s: Some(1_000_000), offset_s: 0 };

    fn to_ns(self, ticks: u64) -> Option<u64> {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.ticks_per_s?);
        let offset = i128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(i128::try_from(ns).ok()? + offset).ok()
    }
}

/// Offsets of the parts of a packet block in its body.
struct Packet {
    interface: Interface,
    ticks: Option<u64>,
    data_at: usize,
    captured: usize,
    wire_len: usize,
}

impl Section {
    /// Reads a section header, after its block type.
    pub(super) fn read<R: Read>(source: &mut Source<R>) -> Result<Section, CaptureError> {
        let mut start = [0; 8];
        source.fill(&mut start, "a section header")?;
        let [l0, l1, l2, l3, magic @ ..] = start;
        let order = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
            (BYTE_ORDER_MAGIC, _) => Order::Little,
            (_, BYTE_ORDER_MAGIC) => Order::Big,
            (_, other) => {
                return Err(source.damaged(format!("a section header with byte-order magic {other:#010x}")));
            }
        };
        let total = order.u32([l0, l1, l2, l3]) as usize;
        if !(28..=MAX_RECORD).contains(&total) || !total.is_multiple_of(4) {
            return Err(source.damaged(format!("a section header of {total} bytes")));
        }
        let mut rest = vec![0; total - 12];
        source.fill(&mut rest, "a section header")?;
        let section = Section { order, interfaces: Vec::new() };
        section.check_end(source, &rest, total)?;
        Ok(section)
    }

    /// Reads blocks up to the next one that holds a frame.
    pub(super) fn next<'a, R: Read>(
        &mut self,
        source: &mut Source<R>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Option<Record<'a>>, CaptureError> {
        let packet = loop {
            let mut kind = [0; 4];
            if !source.fill_or_end(&mut kind, "a block header")? {
                return Ok(None);
            }
            let kind = self.order.u32(kind);
            if kind == block::SECTION_HEADER {
                *self = Section::read(source)?;
                continue;
            }
            self.read_body(source, buffer)?;
            match kind {
                block::INTERFACE => self.add_interface(source, buffer)?,
                block::ENHANCED_PACKET => break self.enhanced(source, buffer)?,
                block::SIMPLE_PACKET => break self.simple(source, buffer)?,
                block::PACKET => break self.obsolete(source, buffer)?,
                _ => {}
            }
        };
        source.frames += 1;
        let body = &buffer[..];
        let options_at = packet.data_at + packet.captured.next_multiple_of(4);
        let (mut direction, mut comment) = (None, None);
        for (code, value) in options(self.order, body, options_at) {
            match code {
                option::COMMENT if comment.is_none() => comment = std::str::from_utf8(value).ok(),
                option::PACKET_FLAGS => direction = self.direction(value),
                _ => {}
            }
        }
        Ok(Some(Record {
            number: source.frames,
            timestamp_ns: packet.ticks.and_then(|t| packet.interface.clock.to_ns(t)),
            link_type: packet.interface.link_type,
            data: &body[packet.data_at..packet.data_at + packet.captured],
            wire_len: packet.wire_len.max(packet.captured),
            direction,
            comment,
        }))
    }

    /// Reads the rest of a block. `buffer` receives the body, without type and lengths.
    fn read_body<R: Read>(&self, source: &mut Source<R>, buffer: &mut Vec<u8>) -> Result<(), CaptureError> {
        let mut total = [0; 4];
        source.fill(&mut total, "a block header")?;
        let total = self.order.u32(total) as usize;
        if !(12..=MAX_RECORD).contains(&total) || !total.is_multiple_of(4) {
            return Err(source.damaged(format!("a block claims {total} bytes")));
        }
        buffer.resize(total - 8, 0);
        source.fill(buffer, "a block")?;
        self.check_end(source, buffer, total)?;
        buffer.truncate(total - 12);
        Ok(())
    }

    /// Checks that the length at the end of a block equals the one at its beginning.
    fn check_end<R: Read>(&self, source: &Source<R>, bytes: &[u8], total: usize) -> Result<(), CaptureError> {
        let last = bytes.last_chunk().map_or(0, |b| self.order.u32(*b) as usize);
        if last != total {
            return Err(source.damaged(format!("a block of {total} bytes ends with length {last}")));
        }
        Ok(())
    }

    fn add_interface<R: Read>(&mut self, source: &Source<R>, body: &[u8]) -> Result<(), CaptureError> {
        let (Some(link_type), Some(snap_len)) = (self.u16(body, 0), self.u32(body, 4)) else {
            return Err(source.damaged(format!("an interface block with {} bytes of body", body.len())));
        };
        if self.interfaces.len() >= MOST_INTERFACES {
            return Err(source.damaged(format!("a section has more than {MOST_INTERFACES} interfaces")));
        }
        let mut clock = Clock::DEFAULT;
        for (code, value) in options(self.order, body, 8) {
            match (code, value) {
                (option::INTERFACE_TSRESOL, &[r, ..]) => {
                    let base: u64 = if r & 0x80 == 0 { 10 } else { 2 };
                    clock.ticks_per_s = base.checked_pow(u32::from(r & 0x7f));
                }
                (option::INTERFACE_TSOFFSET, value) => {
                    clock.offset_s = value.first_chunk().map_or(0, |b: &[u8; 8]| match self.order {
                        Order::Little => i64::from_le_bytes(*b),
                        Order::Big => i64::from_be_bytes(*b),
                    });
                }
                _ => {}
            }
        }
        self.interfaces.push(Interface { link_type: u32::from(link_type), snap_len, clock });
        Ok(())
    }

    fn enhanced<R: Read>(&self, source: &Source<R>, body: &[u8]) -> Result<Packet, CaptureError> {
        let interface = self.u32(body, 0);
        self.timed(source, body, interface)
    }

    fn obsolete<R: Read>(&self, source: &Source<R>, body: &[u8]) -> Result<Packet, CaptureError> {
        let interface = self.u16(body, 0).map(u32::from);
        self.timed(source, body, interface)
    }

    /// Reads an enhanced or obsolete packet block, which are alike from byte 4 on.
    fn timed<R: Read>(
        &self,
        source: &Source<R>,
        body: &[u8],
        interface: Option<u32>,
    ) -> Result<Packet, CaptureError> {
        let words = (interface, self.u32(body, 4), self.u32(body, 8), self.u32(body, 12), self.u32(body, 16));
        let (Some(interface), Some(high), Some(low), Some(captured), Some(wire)) = words else {
            return Err(source.damaged(format!("a packet block with {} bytes of body", body.len())));
        };
        let packet = Packet {
            interface: self.interface(source, interface)?,
            ticks: Some(u64::from(high) << 32 | u64::from(low)),
            data_at: 20,
            captured: captured as usize,
            wire_len: wire as usize,
        };
        fits(source, body, packet)
    }

    fn simple<R: Read>(&self, source: &Source<R>, body: &[u8]) -> Result<Packet, CaptureError> {
        let interface = self.interface(source, 0)?;
        let Some(wire) = self.u32(body, 0) else {
            return Err(source.damaged("a simple packet block without a body".into()));
        };
        let captured = if interface.snap_len == 0 { wire } else { wire.min(interface.snap_len) };
        // A simple packet block has no captured length: it ends with the block at the latest.
        let captured = (captured as usize).min(body.len() - 4);
        fits(source, body, Packet { interface, ticks: None, data_at: 4, captured, wire_len: wire as usize })
    }

    fn interface<R: Read>(&self, source: &Source<R>, number: u32) -> Result<Interface, CaptureError> {
        let interface = usize::try_from(number).ok().and_then(|i| self.interfaces.get(i));
        interface.copied().ok_or_else(|| {
            let known = self.interfaces.len();
            source.damaged(format!("a packet of interface {number} in a section with {known}"))
        })
    }

    fn direction(&self, flags: &[u8]) -> Option<Direction> {
        match self.u32(flags, 0)? & 3 {
            1 => Some(Direction::In),
            2 => Some(Direction::Out),
            _ => None,
        }
    }

    fn u16(&self, bytes: &[u8], at: usize) -> Option<u16> {
        bytes.get(at..)?.first_chunk().map(|b| self.order.u16(*b))
    }

    fn u32(&self, bytes: &[u8], at: usize) -> Option<u32> {
        bytes.get(at..)?.first_chunk().map(|b| self.order.u32(*b))
    }
}

/// Returns `packet` if its captured bytes lie within the body.
fn fits<R: Read>(source: &Source<R>, body: &[u8], packet: Packet) -> Result<Packet, CaptureError> {
    let room = body.len().saturating_sub(packet.data_at);
    if packet.captured > room {
        return Err(source.damaged(format!("a packet of {} bytes in a block with {room}", packet.captured)));
    }
    Ok(packet)
}

/// Returns the options from `at` on as (code, value), up to the end option or the first that is
/// truncated.
pub(super) fn options(order: Order, body: &[u8], at: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(at..).unwrap_or(&[]);
    std::iter::from_fn(move || {
        let (&[c0, c1, l0, l1], tail) = rest.split_first_chunk()?;
        let (code, len) = (order.u16([c0, c1]), usize::from(order.u16([l0, l1])));
        let value = tail.get(..len).filter(|_| code != option::END)?;
        rest = tail.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((code, value))
    })
}
