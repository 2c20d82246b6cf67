//! The stream of a live capture: whole blocks, counted on their way.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use roxie::capture::{BYTE_ORDER_MAGIC, block, read_statistics};
use roxie::host::inspect::Attached;
use roxie::threads::lock;

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;
/// Maximum length of a block in bytes, which is also the memory that a capture takes. A process that claims a longer
/// one is not believed.
const LONGEST_BLOCK: usize = 2 << 20;
/// Bytes of a block without a body.
const SHORTEST_BLOCK: usize = 12;
/// Maximum number of interfaces. A device has one.
const MOST_INTERFACES: u32 = 256;
/// Maximum number of blocks in a row without a packet. A device reports statistics after it has left out packets, and
/// at the end.
const MOST_WITHOUT_PACKET: u32 = 4096;

/// What a capture has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Packets passed on.
    pub(super) captured: u64,
    /// Frames that the device has seen, as it last reported.
    pub(super) seen: u64,
    /// Frames that it left out because the reader was slow, as it last reported.
    pub(super) dropped: u64,
    /// True if the device has reported these numbers at the end.
    pub(super) is_whole: bool,
}

/// Reads the blocks of a capture. Packets beyond the limit are left out, and end the capture.
#[derive(Debug)]
pub(super) struct Frames {
    source: Attached,
    /// Bytes read, of which those from `start` to `end` are to be looked at.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    limit: u64,
    has_begun: bool,
    interfaces: u32,
    /// Blocks since the last packet.
    without_packet: u32,
    counts: Arc<Mutex<Counts>>,
    /// Bytes of `buffer` that a call of `read` has still to return.
    passing: Range<usize>,
}

impl Frames {
    pub(super) fn new(source: Attached) -> Frames {
        Frames {
            source,
            buffer: vec![0; PIECE],
            start: 0,
            end: 0,
            limit: u64::MAX,
            has_begun: false,
            interfaces: 0,
            without_packet: 0,
            counts: Arc::default(),
            passing: 0..0,
        }
    }

    /// Ends the capture after so many packets.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Returns the counts, which are up to date while the stream is read.
    pub(super) fn counts(&self) -> Arc<Mutex<Counts>> {
        Arc::clone(&self.counts)
    }

    /// Returns another handle to the stream, to end the capture.
    pub(super) fn stopper(&self) -> io::Result<Attached> {
        self.source.try_clone()
    }

    /// Returns the next blocks to pass on. `None`: the capture has ended. An incomplete block at the end, of a process
    /// that was killed, is left out.
    ///
    /// # Errors
    /// If the stream is no capture.
    pub(super) fn next_blocks(&mut self) -> io::Result<Option<&[u8]>> {
        Ok(self.next_range()?.map(|range| &self.buffer[range]))
    }

    fn next_range(&mut self) -> io::Result<Option<Range<usize>>> {
        let mut passed = self.start..self.start;
        loop {
            let length = block_length(&self.buffer[self.start..self.end])?;
            let Some(length) = length.filter(|length| *length <= self.end - self.start) else {
                if !passed.is_empty() {
                    return Ok(Some(passed));
                }
                if !self.fill(length.unwrap_or(SHORTEST_BLOCK))? {
                    return Ok(None);
                }
                passed = self.start..self.start;
                continue;
            };
            let block = self.start..self.start + length;
            self.start = block.end;
            if self.takes(block.clone())? {
                passed.end = block.end;
            } else if passed.is_empty() {
                passed = block.end..block.end;
            } else {
                return Ok(Some(passed));
            }
        }
    }

    /// Counts a block. Returns false if it is a packet beyond the limit.
    ///
    /// # Errors
    /// If a device's capture has no such block there: one section of a few interfaces, packets and statistics.
    fn takes(&mut self, block: Range<usize>) -> io::Result<bool> {
        let bytes = &self.buffer[block];
        let kind = word(bytes, 0);
        if word(bytes, bytes.len() - 4) as usize != bytes.len() {
            return Err(damaged(&format!("a block of {} bytes ends with another length", bytes.len())));
        }
        let begins = (kind, word(bytes, 8)) == (block::SECTION_HEADER, BYTE_ORDER_MAGIC);
        if begins == self.has_begun {
            let what =
                if begins { "it has a second section" } else { "it does not begin with a section header" };
            return Err(damaged(what));
        }
        self.has_begun = true;
        self.interfaces += u32::from(kind == block::INTERFACE);
        self.without_packet = if kind == block::ENHANCED_PACKET { 0 } else { self.without_packet + 1 };
        if self.interfaces > MOST_INTERFACES || self.without_packet > MOST_WITHOUT_PACKET {
            return Err(damaged("it adds interfaces or statistics without end, and no packets"));
        }
        let mut counts = lock(&self.counts);
        counts.is_whole = kind == block::STATISTICS;
        match kind {
            block::ENHANCED_PACKET if counts.captured >= self.limit => return Ok(false),
            block::ENHANCED_PACKET => {
                counts.captured += 1;
                if counts.captured == self.limit {
                    // The stream ends by itself if the process is gone.
                    let _ = self.source.stop();
                }
            }
            block::STATISTICS => {
                let (received, dropped) = read_statistics(bytes);
                counts.seen = received.unwrap_or(counts.seen);
                counts.dropped = dropped.unwrap_or(counts.dropped);
            }
            block::SECTION_HEADER | block::INTERFACE => {}
            other => return Err(damaged(&format!("a block of type {other:#x}"))),
        }
        Ok(true)
    }

    /// Reads more, with room for a block of `needed` bytes. Returns false at the end of the stream.
    fn fill(&mut self, needed: usize) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.passing.is_empty() {
            self.passing = self.next_range()?.unwrap_or(0..0);
        }
        let count = self.passing.len().min(out.len());
        out[..count].copy_from_slice(&self.buffer[self.passing.start..self.passing.start + count]);
        self.passing.start += count;
        Ok(count)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

/// Returns the length of the block that begins `bytes`. `None`: too few bytes are there.
fn block_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    if bytes.len() < 8 {
        return Ok(None);
    }
    match word(bytes, 4) as usize {
        length if (SHORTEST_BLOCK..=LONGEST_BLOCK).contains(&length) && length.is_multiple_of(4) => {
            Ok(Some(length))
        }
        length => Err(damaged(&format!("a block claims {length} bytes"))),
    }
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the process sends no capture: {why}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use roxie::capture::{Direction, PcapngWriter, Reader, statistics_block};
    use roxie::frame::Frame;

    use super::*;

    /// A capture of packets with these lengths, which reports that it has seen `seen` and lost `dropped`.
    fn capture(lengths: &[usize], seen: u64, dropped: u64) -> Vec<u8> {
        let mut writer = PcapngWriter::new(Vec::new(), &["left"]).unwrap();
        for length in lengths {
            writer.write(0, 1, Direction::In, &Frame::whole(&vec![7; *length]), Some("a reason")).unwrap();
        }
        let mut bytes = writer.into_inner();
        bytes.extend(statistics_block(0, 1, seen, dropped));
        bytes
    }

    fn frames(bytes: Vec<u8>) -> Frames {
        let (mut there, here) = UnixStream::pair().unwrap();
        std::thread::spawn(move || there.write_all(&bytes));
        Frames::new(Attached::from(here))
    }

    fn read(mut frames: Frames) -> (io::Result<Vec<u8>>, Counts) {
        let mut all = Vec::new();
        let done = loop {
            match frames.next_blocks() {
                Ok(Some(blocks)) => all.extend_from_slice(blocks),
                Ok(None) => break Ok(all),
                Err(error) => break Err(error),
            }
        };
        (done, *lock(&frames.counts()))
    }

    #[test]
    fn whole_capture_passes_and_is_counted() {
        let bytes = capture(&[60, 4096, 1_000_000, 61], 9, 5);
        let (passed, counts) = read(frames(bytes.clone()));
        assert_eq!(passed.unwrap(), bytes);
        assert_eq!(counts, Counts { captured: 4, seen: 9, dropped: 5, is_whole: true });
    }

    #[test]
    fn packets_beyond_the_limit_are_left_out() {
        let mut frames = frames(capture(&[60; 100], 100, 0));
        frames.set_limit(3);
        let (passed, counts) = read(frames);
        let passed = passed.unwrap();
        let mut reader = Reader::new(&passed[..]).unwrap();
        let mut count = 0;
        while reader.next().unwrap().is_some() {
            count += 1;
        }
        assert_eq!((count, counts.captured, counts.seen, counts.is_whole), (3, 3, 100, true));
    }

    #[test]
    fn incomplete_last_block_is_left_out() {
        let bytes = capture(&[60; 4], 4, 0);
        let whole = capture(&[60; 3], 4, 0);
        let of_three = whole.len() - statistics_block(0, 1, 4, 0).len();
        let (passed, counts) = read(frames(bytes[..of_three + 50].to_vec()));
        assert_eq!(passed.unwrap(), bytes[..of_three]);
        assert_eq!((counts.captured, counts.is_whole), (3, false));
    }

    #[test]
    fn bytes_that_are_no_capture_are_refused() {
        for bytes in [vec![0; 64], b"\n\r\r\n\x02\0\0\0 and so on".to_vec(), b"\n\r\r\n\x20\0\0\0".repeat(9)]
        {
            let (refused, counts) = read(frames(bytes));
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidData);
            assert_eq!(counts.captured, 0);
        }
    }

    /// Returns the error of a capture that goes on with this block again and again.
    fn error_of_endless(block: &[u8]) -> String {
        let header = capture(&[60], 1, 0);
        let (refused, _) = read(frames([header, block.repeat(MOST_WITHOUT_PACKET as usize + 1)].concat()));
        refused.expect_err("no end").to_string()
    }

    #[test]
    fn data_without_packets_is_refused() {
        let block = |kind: u32, body: &[u8]| {
            let length = (body.len() as u32 + 12).to_le_bytes();
            [&kind.to_le_bytes()[..], &length, body, &length].concat()
        };
        for (block, why) in [
            (statistics_block(0, 1, 1, 0), "without end"),
            (block(block::INTERFACE, &[1, 0, 0, 0, 0, 0, 0, 0]), "without end"),
            (block(4, &[0; 4]), "a block of type 0x4"),
            (block(block::SIMPLE_PACKET, &[0; 4]), "a block of type 0x3"),
            (capture(&[], 1, 0), "a second section"),
            ([&block(block::STATISTICS, &[0; 12])[..20], &[0; 4]].concat(), "ends with another length"),
        ] {
            let said = error_of_endless(&block);
            assert!(said.contains(why), "{said} instead of {why}");
        }
    }

    #[test]
    fn claimed_lengths_take_no_memory() {
        let mut frames = frames([capture(&[60], 1, 0), vec![6, 0, 0, 0, 0, 0, 0x20, 0x40]].concat());
        let error = loop {
            match frames.next_blocks() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("no error"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("a block claims 1075838976 bytes"), "{error}");
        assert_eq!(frames.buffer.len(), PIECE);
    }

    #[test]
    fn read_returns_the_same_bytes() {
        let bytes = capture(&[60, 5000, 60], 3, 0);
        let mut all = Vec::new();
        frames(bytes.clone()).read_to_end(&mut all).unwrap();
        assert_eq!(all, bytes);
    }
}
