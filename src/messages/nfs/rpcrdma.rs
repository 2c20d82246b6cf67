//! Headers of RPC-over-RDMA version 1 (RFC 8166 4): credits, and chunks, which name memory of the sender's.
//!
//! ```text
//!  XID | version | credits | type | read list | write list | reply chunk | RPC message
//! ```
//!
//! A read chunk has data of a call that the server reads. A write chunk takes a data item of the reply, a reply chunk
//! all of a reply.

use std::fmt;

use crate::nfs::xdr::{Malformed, Reader, Writer};

/// The version.
pub const VERSION: u32 = 1;
/// Segments of one list at most. A longest inline message of Linux, 4096 bytes, has room for fewer.
pub const MOST_SEGMENTS: usize = 256;
/// Bytes of the shortest header: the fixed fields and three empty lists.
pub const SHORTEST: usize = 28;
/// Bytes of a segment.
const SEGMENT: usize = 16;

/// Message types.
const MESSAGE: u32 = 0;
const NO_MESSAGE: u32 = 1;
const ERROR: u32 = 4;

/// Memory of the sender's, behind a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// R_Key.
    pub handle: u32,
    /// Number of bytes.
    pub length: u32,
    /// Address.
    pub offset: u64,
}

impl Segment {
    fn parse(reader: &mut Reader<'_>) -> Result<Segment, Malformed> {
        Ok(Segment { handle: reader.u32()?, length: reader.u32()?, offset: reader.u64()? })
    }

    fn write(&self, out: &mut Writer) {
        out.u32(self.handle).u32(self.length).u64(self.offset);
    }
}

/// Memory that takes data, in order.
pub type Chunk = Vec<Segment>;

/// Number of bytes in the segments of a chunk.
pub fn length(chunk: &[Segment]) -> u64 {
    chunk.iter().map(|segment| u64::from(segment.length)).sum()
}

/// A segment of a read chunk. Those with the same position are one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSegment {
    /// Offset in the RPC message at which the data belongs. 0: the message itself.
    pub position: u32,
    /// The memory.
    pub segment: Segment,
}

/// The lists of a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    /// Data of a call.
    pub reads: Vec<ReadSegment>,
    /// Where data items of the reply go.
    pub writes: Vec<Chunk>,
    /// Where a long reply goes.
    pub reply: Option<Chunk>,
}

impl Chunks {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.reply.is_none()
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Chunks, Malformed> {
        let mut chunks = Chunks::default();
        let mut segments = 0;
        while reader.bool()? {
            count(reader, &mut segments, 1)?;
            let (position, segment) = (reader.u32()?, Segment::parse(reader)?);
            chunks.reads.push(ReadSegment { position, segment });
        }
        while reader.bool()? {
            chunks.writes.push(chunk(reader, &mut segments)?);
        }
        if reader.bool()? {
            chunks.reply = Some(chunk(reader, &mut segments)?);
        }
        Ok(chunks)
    }

    fn write(&self, out: &mut Writer) {
        for read in &self.reads {
            out.bool(true).u32(read.position);
            read.segment.write(out);
        }
        out.bool(false);
        let put = |out: &mut Writer, chunk: &Chunk| {
            out.bool(true).u32(chunk.len() as u32);
            chunk.iter().for_each(|segment| segment.write(out));
        };
        self.writes.iter().for_each(|chunk| put(out, chunk));
        out.bool(false);
        match &self.reply {
            Some(chunk) => put(out, chunk),
            None => drop(out.bool(false)),
        }
    }

    /// Number of bytes of a header with these lists.
    pub fn header_length(&self) -> usize {
        let chunk = |chunk: &Chunk| 4 + SEGMENT * chunk.len();
        SHORTEST
            + self.reads.len() * (8 + SEGMENT)
            + self.writes.iter().map(|write| 4 + chunk(write)).sum::<usize>()
            + self.reply.as_ref().map_or(0, chunk)
    }
}

/// Adds to the number of segments, which is limited, and which counts an empty chunk too.
fn count(reader: &Reader<'_>, segments: &mut usize, more: usize) -> Result<(), Malformed> {
    *segments = segments.saturating_add(more);
    if *segments > MOST_SEGMENTS { Err(reader.wrong("more than 256 segments")) } else { Ok(()) }
}

fn chunk(reader: &mut Reader<'_>, segments: &mut usize) -> Result<Chunk, Malformed> {
    let length = reader.u32()? as usize;
    count(reader, segments, length.max(1))?;
    if reader.rest().len() < length * SEGMENT {
        return Err(reader.wrong("end of the message"));
    }
    (0..length).map(|_| Segment::parse(reader)).collect()
}

/// The type of a message, with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// An RPC message follows (RDMA_MSG).
    Message(Chunks),
    /// The RPC message is in a chunk (RDMA_NOMSG).
    NoMessage(Chunks),
    /// The receiver has no such version (ERR_VERS).
    WrongVersion {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// The receiver cannot use the message or its chunks (ERR_CHUNK).
    WrongChunk,
}

/// A header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Transaction identifier, as in the RPC message.
    pub xid: u32,
    /// In a call, the number of requested credits; in a reply, of granted ones.
    pub credits: u32,
    /// The rest.
    pub body: Body,
}

/// Why a header cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too short to be answered.
    Short,
    /// Of another version.
    Version {
        /// Transaction identifier.
        xid: u32,
    },
    /// Of an unknown type, or with lists that cannot be parsed.
    Chunk {
        /// Transaction identifier.
        xid: u32,
        /// The reason.
        why: Malformed,
    },
}

impl Refusal {
    /// Returns the header that tells the sender, if there is one.
    pub fn answer(&self, credits: u32) -> Option<Header> {
        match *self {
            Refusal::Short => None,
            Refusal::Version { xid } => {
                Some(Header { xid, credits, body: Body::WrongVersion { low: VERSION, high: VERSION } })
            }
            Refusal::Chunk { xid, .. } => Some(Header { xid, credits, body: Body::WrongChunk }),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Short => f.write_str("a message that is shorter than the fixed fields of a header"),
            Refusal::Version { .. } => f.write_str("another version of RPC-over-RDMA than 1"),
            Refusal::Chunk { why, .. } => write!(f, "a malformed header: {why}"),
        }
    }
}

impl Header {
    /// Parses a header. Returns it, and the bytes behind it.
    ///
    /// # Errors
    /// If the message is too short, of another version or type, or its lists are malformed.
    pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8]), Refusal> {
        let mut reader = Reader::new(bytes);
        let mut fixed = || reader.u32().map_err(|_| Refusal::Short);
        let (xid, version, credits, kind) = (fixed()?, fixed()?, fixed()?, fixed()?);
        if version != VERSION {
            return Err(Refusal::Version { xid });
        }
        let body = match kind {
            MESSAGE => Chunks::parse(&mut reader).map(Body::Message),
            NO_MESSAGE => Chunks::parse(&mut reader).map(Body::NoMessage),
            ERROR => error(&mut reader),
            _ => Err(Malformed { at: 12, what: "unknown message type" }),
        };
        let body = body.map_err(|why| Refusal::Chunk { xid, why })?;
        Ok((Header { xid, credits, body }, reader.rest()))
    }

    /// Encodes the header.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u32(self.xid).u32(VERSION).u32(self.credits);
        match &self.body {
            Body::Message(chunks) => {
                out.u32(MESSAGE);
                chunks.write(&mut out);
            }
            Body::NoMessage(chunks) => {
                out.u32(NO_MESSAGE);
                chunks.write(&mut out);
            }
            Body::WrongVersion { low, high } => drop(out.u32(ERROR).u32(1).u32(*low).u32(*high)),
            Body::WrongChunk => drop(out.u32(ERROR).u32(2)),
        }
        out.finish()
    }

    /// The lists, if the header has any.
    pub fn chunks(&self) -> Option<&Chunks> {
        match &self.body {
            Body::Message(chunks) | Body::NoMessage(chunks) => Some(chunks),
            _ => None,
        }
    }
}

fn error(reader: &mut Reader<'_>) -> Result<Body, Malformed> {
    match reader.u32()? {
        1 => Ok(Body::WrongVersion { low: reader.u32()?, high: reader.u32()? }),
        2 => Ok(Body::WrongChunk),
        _ => Err(reader.wrong("unknown error")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(n: u32) -> Segment {
        Segment { handle: n, length: 100 * n, offset: u64::from(n) << 33 }
    }

    #[test]
    fn headers_parse_to_what_was_encoded() {
        let chunks = Chunks {
            reads: vec![ReadSegment { position: 120, segment: segment(1) }; 2],
            writes: vec![vec![segment(2), segment(3)], vec![]],
            reply: Some(vec![segment(4)]),
        };
        let bodies = [
            Body::Message(Chunks::default()),
            Body::Message(chunks.clone()),
            Body::NoMessage(chunks.clone()),
            Body::WrongVersion { low: 1, high: 1 },
            Body::WrongChunk,
        ];
        for body in bodies {
            let header = Header { xid: 7, credits: 32, body };
            let bytes = [&header.to_bytes()[..], b"rest"].concat();
            assert_eq!(Header::parse(&bytes), Ok((header.clone(), &b"rest"[..])));
            if let Some(chunks) = header.chunks() {
                assert_eq!(chunks.header_length(), bytes.len() - 4);
            }
        }
        assert_eq!(length(&chunks.writes[0]), 500);
    }

    #[test]
    fn first_words_are_as_specified() {
        let bytes =
            Header { xid: 0x0102_0304, credits: 5, body: Body::Message(Chunks::default()) }.to_bytes();
        let words: Vec<u32> = bytes.chunks(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect();
        assert_eq!((words, bytes.len()), (vec![0x0102_0304, 1, 5, 0, 0, 0, 0], SHORTEST));
    }

    #[test]
    fn refused_headers_are_answered_with_their_error() {
        let is = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            Header::parse(&bytes).expect_err("refused").answer(3).map(|header| header.body)
        };
        assert_eq!(is(&[7, 1, 1]), None);
        assert_eq!(is(&[7, 2, 1, 0]), Some(Body::WrongVersion { low: 1, high: 1 }));
        // A truncated list, an unknown type, a chunk that is longer than the message, and one of too many segments.
        for words in [
            &[7, 1, 1, 0, 1][..],
            &[7, 1, 1, 2, 0, 0, 0],
            &[7, 1, 1, 0, 0, 1, 9],
            &[7, 1, 1, 0, 0, 1, u32::MAX],
        ] {
            assert_eq!(is(words), Some(Body::WrongChunk), "{words:?}");
        }
    }

    #[test]
    fn endless_empty_chunks_are_refused() {
        let words = [7, 1, 1, 0, 0].into_iter().chain([1, 0].repeat(MOST_SEGMENTS + 1));
        let bytes: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
        assert!(
            matches!(Header::parse(&bytes), Err(Refusal::Chunk { why, .. }) if why.what.starts_with("more"))
        );
    }
}
