//! The byte source of a capture, and the errors of reading one.

use std::fmt;
use std::io::{self, BufReader, Read};

/// Bytes of the longest record that is accepted. A longer one is treated as damage.
pub(super) const MAX_RECORD: usize = 16 << 20;

/// Direction of a frame, seen from the interface (bits 0-1 of `epb_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received from the link.
    In,
    /// Sent to the link.
    Out,
}

/// One frame of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Number of the frame in the file, from 1, as Wireshark counts.
    pub number: u64,
    /// Nanoseconds since the Unix epoch; `None` if the format or its resolution cannot express that.
    pub timestamp_ns: Option<u64>,
    /// Link-layer type, one of [`link_type`](super::link_type).
    pub link_type: u32,
    /// The captured bytes.
    pub data: &'a [u8],
    /// Original length in bytes; more than `data` if the capture truncated the frame.
    pub wire_len: usize,
    /// Direction of the frame, if recorded.
    pub direction: Option<Direction>,
    /// First comment of the packet.
    pub comment: Option<&'a str>,
}

/// Why a capture cannot be read, or not any further.
#[derive(Debug)]
#[non_exhaustive]
pub enum CaptureError {
    /// The source returned an error.
    Io {
        /// Bytes read before the error.
        offset: u64,
        /// Error of the source.
        source: io::Error,
    },
    /// The source has no bytes.
    Empty,
    /// The file is neither pcap nor pcapng.
    UnknownFormat {
        /// First four bytes, big-endian.
        magic: u32,
        /// Hint what to do, for a recognised format.
        hint: &'static str,
    },
    /// The file ends within a record or block.
    Truncated {
        /// The part that is incomplete: `packet header`, `block` and so on.
        what: &'static str,
        /// Length of the file in bytes.
        offset: u64,
        /// Number of the last complete frame.
        after: u64,
    },
    /// The file is inconsistent.
    Damaged {
        /// Description of the damage, with the values.
        why: String,
        /// Bytes read before the error.
        offset: u64,
        /// Number of the last complete frame.
        after: u64,
    },
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::Io { offset, source } => write!(f, "reading failed at byte {offset}: {source}"),
            CaptureError::Empty => f.write_str("the capture is empty: not even a file header"),
            CaptureError::UnknownFormat { magic, hint } => {
                write!(f, "neither pcap nor pcapng: the file begins {magic:#010x}{hint}")
            }
            CaptureError::Truncated { what, offset, after } => {
                write!(f, "the capture is cut short at byte {offset}, within {what} after frame {after}")
            }
            CaptureError::Damaged { why, offset, after } => {
                write!(f, "the capture is damaged before byte {offset}, after frame {after}: {why}")
            }
        }
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CaptureError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    pub(super) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }
}

/// The bytes of a capture, with the read position.
#[derive(Debug)]
pub(super) struct Source<R: Read> {
    inner: BufReader<R>,
    offset: u64,
    /// Number of complete frames so far.
    pub(super) frames: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(source: R) -> Source<R> {
        Source { inner: BufReader::with_capacity(1 << 16, source), offset: 0, frames: 0 }
    }

    /// Fills `out`. Returns false if the file ends before its first byte.
    pub(super) fn fill_or_end(&mut self, out: &mut [u8], what: &'static str) -> Result<bool, CaptureError> {
        let mut filled = 0;
        while filled < out.len() {
            match self.inner.read(&mut out[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => {
                    return Err(CaptureError::Truncated { what, offset: self.offset, after: self.frames });
                }
                Ok(n) => {
                    filled += n;
                    self.offset += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(CaptureError::Io { offset: self.offset, source }),
            }
        }
        Ok(true)
    }

    /// Fills `out`; the end of the file is an error.
    pub(super) fn fill(&mut self, out: &mut [u8], what: &'static str) -> Result<(), CaptureError> {
        if out.is_empty() || self.fill_or_end(out, what)? {
            return Ok(());
        }
        Err(CaptureError::Truncated { what, offset: self.offset, after: self.frames })
    }

    pub(super) fn damaged(&self, why: String) -> CaptureError {
        CaptureError::Damaged { why, offset: self.offset, after: self.frames }
    }
}
