//! Reads pcap and pcapng as a stream, one record at a time, and nothing from the source before it is needed.
//! Parsers from crates keep a buffer of their own: the glue to follow a pipe, and to report where a damaged
//! file breaks, would be larger than this reader.

use std::io::Read;

use super::block;
use super::pcapng::Section;
use super::source::{CaptureError, MAX_RECORD, Order, Record, Source};

/// Reads the frames of a capture one after the other.
#[derive(Debug)]
pub struct Reader<R: Read> {
    source: Source<R>,
    format: Format,
    /// The current record or block.
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Format {
    Pcap { order: Order, link_type: u32, ns_per_tick: u64 },
    Pcapng(Section),
}

impl<R: Read> Reader<R> {
    /// Reads the file header, which determines the format.
    ///
    /// # Errors
    /// If the source fails, is empty, or is not a capture.
    pub fn new(source: R) -> Result<Reader<R>, CaptureError> {
        let mut source = Source::new(source);
        let mut magic = [0; 4];
        if !source.fill_or_end(&mut magic, "the file header")? {
            return Err(CaptureError::Empty);
        }
        let format = match u32::from_be_bytes(magic) {
            0xa1b2_c3d4 => pcap_header(&mut source, Order::Big, 1_000)?,
            0xa1b2_3c4d => pcap_header(&mut source, Order::Big, 1)?,
            0xd4c3_b2a1 => pcap_header(&mut source, Order::Little, 1_000)?,
            0x4d3c_b2a1 => pcap_header(&mut source, Order::Little, 1)?,
            block::SECTION_HEADER => Format::Pcapng(Section::read(&mut source)?),
            magic => return Err(CaptureError::UnknownFormat { magic, hint: hint(magic) }),
        };
        Ok(Reader { source, format, buffer: Vec::new() })
    }

    /// Returns the next frame; `None` at the end of the file.
    ///
    /// # Errors
    /// If the source fails, or the file is truncated or inconsistent. All frames before the error have been
    /// returned.
    #[expect(clippy::should_implement_trait, reason = "a record borrows the reader's buffer")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        let (source, buffer) = (&mut self.source, &mut self.buffer);
        match &mut self.format {
            Format::Pcap { order, link_type, ns_per_tick } => {
                pcap_record(source, buffer, *order, *link_type, *ns_per_tick)
            }
            Format::Pcapng(section) => section.next(source, buffer),
        }
    }
}

/// Returns what to do about a recognised format that is not supported.
fn hint(magic: u32) -> &'static str {
    match magic >> 16 {
        0x28b5 => " (zstd: decompress it first, `zstdcat FILE | roxie decode -`)",
        _ if magic == 0xa1b2_cd34 || magic == 0x34cd_b2a1 => {
            " (modified pcap: convert it with `editcap -F pcapng`)"
        }
        _ => "",
    }
}

fn pcap_header<R: Read>(
    source: &mut Source<R>,
    order: Order,
    ns_per_tick: u64,
) -> Result<Format, CaptureError> {
    let mut rest = [0; 20];
    source.fill(&mut rest, "the file header")?;
    let [.., a, b, c, d] = rest;
    // The upper bits give the length of an FCS, which the parser ignores as a trailer.
    let link_type = order.u32([a, b, c, d]) & 0x03ff_ffff;
    Ok(Format::Pcap { order, link_type, ns_per_tick })
}

fn pcap_record<'a, R: Read>(
    source: &mut Source<R>,
    buffer: &'a mut Vec<u8>,
    order: Order,
    link_type: u32,
    ns_per_tick: u64,
) -> Result<Option<Record<'a>>, CaptureError> {
    let mut header = [0; 16];
    if !source.fill_or_end(&mut header, "a record header")? {
        return Ok(None);
    }
    let (words, _) = header.as_chunks::<4>();
    let word = |i: usize| order.u32(words[i]);
    let captured = word(2) as usize;
    if captured > MAX_RECORD {
        return Err(source.damaged(format!("a record claims {captured} bytes")));
    }
    buffer.resize(captured, 0);
    source.fill(buffer, "a frame")?;
    source.frames += 1;
    Ok(Some(Record {
        number: source.frames,
        timestamp_ns: Some(u64::from(word(0)) * 1_000_000_000 + u64::from(word(1)) * ns_per_tick),
        link_type,
        data: buffer,
        wire_len: (word(3) as usize).max(captured),
        direction: None,
        comment: None,
    }))
}
