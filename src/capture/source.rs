//! The bytes of a capture, in order, and what can be wrong with them.

use std::io::{self, BufReader, Read};

use thiserror::Error;

use super::Direction;

/// A record longer than this is taken for damage, in bytes.
pub(super) const MAX_RECORD: usize = 16 << 20;

/// One frame of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Counted from 1 over the whole file, as Wireshark does.
    pub number: u64,
    /// Since the Unix epoch; `None` if the format or its resolution does not tell.
    pub timestamp_ns: Option<u64>,
    /// One of [`link_type`](super::link_type).
    pub link_type: u32,
    /// The bytes that were kept.
    pub data: &'a [u8],
    /// Bytes the frame had on the wire: more than `data` if the capture cut it.
    pub wire_len: usize,
    /// Which way it went, if noted.
    pub direction: Option<Direction>,
    /// The first comment on the packet.
    pub comment: Option<&'a str>,
}

/// Why a capture cannot be read, or not further.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The source failed.
    #[error("reading failed at byte {offset}: {source}")]
    Io {
        /// Bytes that had been read.
        offset: u64,
        /// What the source said.
        source: io::Error,
    },
    /// Nothing there.
    #[error("the capture is empty: not even a file header")]
    Empty,
    /// Another format.
    #[error("neither pcap nor pcapng: the file begins {magic:#010x}{hint}")]
    UnknownFormat {
        /// The first four bytes, big-endian.
        magic: u32,
        /// What to do, if the format is known.
        hint: &'static str,
    },
    /// The file ends within something.
    #[error("the capture is cut short at byte {offset}, within {what} after frame {after}")]
    Truncated {
        /// In what the reader was: `packet header`, `block` and so on.
        what: &'static str,
        /// Bytes of the file.
        offset: u64,
        /// Number of the last whole frame.
        after: u64,
    },
    /// The file contradicts itself.
    #[error("the capture is damaged before byte {offset}, after frame {after}: {why}")]
    Damaged {
        /// What is wrong with it, with the numbers.
        why: String,
        /// Bytes that had been read.
        offset: u64,
        /// Number of the last whole frame.
        after: u64,
    },
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

/// The bytes of a capture, with the place where reading stands.
#[derive(Debug)]
pub(super) struct Source<R: Read> {
    inner: BufReader<R>,
    offset: u64,
    /// Whole frames so far.
    pub(super) frames: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(source: R) -> Source<R> {
        Source { inner: BufReader::with_capacity(1 << 16, source), offset: 0, frames: 0 }
    }

    /// Fills `out`, or returns false if the file ends before its first byte.
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

    /// Fills `out`; the file must not end here.
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
