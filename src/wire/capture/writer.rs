//! Writes pcapng, little-endian: one section, Ethernet interfaces with nanosecond time stamps, and enhanced
//! packet blocks with direction and optional comment.

use std::io::{self, Write};

use super::pcapng::options;
use super::source::{Direction, Order};
use super::{BYTE_ORDER_MAGIC, block, link_type, option};
use crate::frame::Frame;

/// Bytes of the longest comment. Longer ones are truncated at a character boundary.
const MAX_COMMENT: usize = 4096;

/// Writes frames to a pcapng stream. Each packet is one `write_all`, so that the reader of a pipe never waits
/// for the rest of a block. After warm-up, writing does not allocate.
#[derive(Debug)]
pub struct PcapngWriter<W: Write> {
    out: W,
    interfaces: u32,
    /// Bytes kept of each frame; 0 for all.
    snap_length: u32,
    /// Blocks not written yet.
    blocks: Vec<u8>,
}

impl<W: Write> PcapngWriter<W> {
    /// Writes a section with one Ethernet interface per name. Packets refer to interfaces by position.
    ///
    /// # Errors
    /// Errors of `out`; `InvalidInput` if a name is longer than 65,535 bytes.
    pub fn new(out: W, interfaces: &[&str]) -> io::Result<PcapngWriter<W>> {
        PcapngWriter::with_snap_length(out, interfaces, 0)
    }

    /// Like [`new`](Self::new), and keeps `snap_length` bytes of each frame at most; 0 keeps all.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_snap_length(out: W, interfaces: &[&str], snap_length: u32) -> io::Result<PcapngWriter<W>> {
        let count = u32::try_from(interfaces.len()).map_err(|_| invalid("too many interfaces"))?;
        let mut w = PcapngWriter { out, interfaces: count, snap_length, blocks: Vec::with_capacity(2048) };
        let block = w.begin(block::SECTION_HEADER);
        w.u32(BYTE_ORDER_MAGIC);
        w.u16(1);
        w.u16(0);
        w.blocks.extend_from_slice(&(-1i64).to_le_bytes()); // section length unknown
        w.option(option::SECTION_USER_APPLICATION, concat!("roxie ", env!("CARGO_PKG_VERSION")).as_bytes());
        w.option(option::END, &[]);
        w.finish(block)?;
        for name in interfaces {
            if name.len() > usize::from(u16::MAX) {
                return Err(invalid(&format!("interface name of {} bytes, at most 65535 fit", name.len())));
            }
            let block = w.begin(block::INTERFACE);
            w.u16(link_type::ETHERNET as u16);
            w.u16(0);
            w.u32(snap_length);
            w.option(option::INTERFACE_NAME, name.as_bytes());
            w.option(option::INTERFACE_TSRESOL, &[9]); // 10^-9 s
            w.option(option::END, &[]);
            w.finish(block)?;
        }
        // One write for all blocks: a failure of a background file is then always reported by a packet, not
        // by this function.
        w.write_blocks()?;
        Ok(w)
    }

    /// Returns a writer for more packets of this writer's interfaces, by way of `out`: its packets follow this writer's
    /// section.
    pub fn continued_on<O: Write>(&self, out: O) -> PcapngWriter<O> {
        let PcapngWriter { interfaces, snap_length, .. } = *self;
        PcapngWriter { out, interfaces, snap_length, blocks: Vec::with_capacity(2048) }
    }

    /// Appends one frame. `timestamp_ns` is nanoseconds since the Unix epoch.
    ///
    /// # Errors
    /// Errors of the stream; `InvalidInput` if [`new`](Self::new) was not given `interface`, or the frame
    /// exceeds a block.
    pub fn write(
        &mut self,
        interface: u32,
        timestamp_ns: u64,
        direction: Direction,
        frame: &Frame<'_>,
        comment: Option<&str>,
    ) -> io::Result<()> {
        if interface >= self.interfaces {
            return Err(invalid(&format!(
                "interface {interface} of a capture with {}: name each interface to `new`",
                self.interfaces
            )));
        }
        let len = u32::try_from(frame.len())
            .ok()
            .filter(|&n| n <= u32::MAX - 0x1_0000)
            .ok_or_else(|| invalid(&format!("frame of {} bytes does not fit a pcapng block", frame.len())))?;
        let [s0, s1, s2, s3, s4, s5, s6, s7] = timestamp_ns.to_be_bytes();
        let block = self.begin(block::ENHANCED_PACKET);
        self.u32(interface);
        self.u32(u32::from_be_bytes([s0, s1, s2, s3]));
        self.u32(u32::from_be_bytes([s4, s5, s6, s7]));
        let captured = if self.snap_length == 0 { len } else { len.min(self.snap_length) };
        self.u32(captured);
        self.u32(len);
        let of_a = frame.a.len().min(captured as usize);
        self.blocks.extend_from_slice(&frame.a[..of_a]);
        self.blocks.extend_from_slice(&frame.b[..captured as usize - of_a]);
        self.pad();
        let flags: u32 = match direction {
            Direction::In => 1,
            Direction::Out => 2,
        };
        self.option(option::PACKET_FLAGS, &flags.to_le_bytes());
        if let Some(text) = comment {
            self.option(option::COMMENT, cut(text, MAX_COMMENT).as_bytes());
        }
        self.option(option::END, &[]);
        self.finish(block)?;
        self.write_blocks()
    }

    /// Flushes the stream.
    ///
    /// # Errors
    /// Errors of the stream.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Returns the stream.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Returns the stream, to be changed in place.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Begins a block and returns its offset, for `finish`.
    fn begin(&mut self, kind: u32) -> usize {
        let start = self.blocks.len();
        self.u32(kind);
        self.u32(0); // total length, set by `finish`
        start
    }

    /// Writes both length fields of the block that begins at `start`.
    fn finish(&mut self, start: usize) -> io::Result<()> {
        let total =
            u32::try_from(self.blocks.len() - start + 4).map_err(|_| invalid("block beyond 4 GiB"))?;
        self.blocks[start + 4..start + 8].copy_from_slice(&total.to_le_bytes());
        self.u32(total);
        Ok(())
    }

    fn write_blocks(&mut self) -> io::Result<()> {
        let written = self.out.write_all(&self.blocks);
        self.blocks.clear();
        written
    }

    /// Appends an option. Callers must keep `value` within 65,535 bytes.
    fn option(&mut self, code: u16, value: &[u8]) {
        let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
        self.u16(code);
        self.u16(len);
        self.blocks.extend_from_slice(&value[..usize::from(len)]);
        self.pad();
    }

    fn pad(&mut self) {
        let len = self.blocks.len().next_multiple_of(4);
        self.blocks.resize(len, 0);
    }

    fn u16(&mut self, v: u16) {
        self.blocks.extend_from_slice(&v.to_le_bytes());
    }

    fn u32(&mut self, v: u32) {
        self.blocks.extend_from_slice(&v.to_le_bytes());
    }
}

/// Returns an interface statistics block: of the frames that interface `interface` has seen by `timestamp_ns` since the
/// Unix epoch, `dropped` are not in the capture.
pub fn statistics_block(interface: u32, timestamp_ns: u64, received: u64, dropped: u64) -> Vec<u8> {
    let mut w =
        PcapngWriter { out: io::sink(), interfaces: 1, snap_length: 0, blocks: Vec::with_capacity(64) };
    let block = w.begin(block::STATISTICS);
    w.u32(interface);
    w.u32((timestamp_ns >> 32) as u32);
    w.u32(timestamp_ns as u32);
    w.option(option::STATISTICS_RECEIVED, &received.to_le_bytes());
    w.option(option::STATISTICS_DROPPED, &dropped.to_le_bytes());
    w.option(option::END, &[]);
    w.finish(block).expect("a block of some 60 bytes");
    w.blocks
}

/// Returns the numbers of frames received and dropped from a little-endian block of interface statistics. `None`: the
/// block lacks it.
pub fn read_statistics(block: &[u8]) -> (Option<u64>, Option<u64>) {
    // Type, length, interface, and two halves of a time stamp.
    const OPTIONS: usize = 20;
    let (mut received, mut dropped) = (None, None);
    for (code, value) in options(Order::Little, block, OPTIONS) {
        let count = value.first_chunk().map(|count| u64::from_le_bytes(*count));
        match code {
            option::STATISTICS_RECEIVED => received = count,
            option::STATISTICS_DROPPED => dropped = count,
            _ => {}
        }
    }
    (received, dropped)
}

/// Returns `text` truncated to at most `max` bytes, at a character boundary.
fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the blocks of a little-endian file as (type, body). Checks that the two lengths of each agree.
    fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
        let mut out = Vec::new();
        while !bytes.is_empty() {
            let len = word(bytes, 4) as usize;
            assert_eq!(len % 4, 0);
            assert_eq!(word(bytes, len - 4) as usize, len, "the two lengths of a block differ");
            out.push((word(bytes, 0), bytes[8..len - 4].to_vec()));
            bytes = &bytes[len..];
        }
        out
    }

    /// Accepts one write, and fails the second.
    struct Once(bool);

    impl Write for Once {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                Ok(bytes.len())
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A background file on a full disk must fail for a packet, not for the writer's creation, whatever the
    /// timing.
    #[test]
    fn section_and_interfaces_are_one_write() {
        assert!(PcapngWriter::new(Once(false), &["veth0", "veth1"]).is_ok());
    }

    #[test]
    fn packet_block_carries_time_direction_and_comment() {
        let mut w = PcapngWriter::new(Vec::new(), &["veth0", "veth1"]).unwrap();
        let frame = Frame { a: &[1, 2, 3], b: &[4, 5] };
        w.write(1, 0x0000_0001_0000_0002, Direction::Out, &frame, Some("ack")).unwrap();
        let all = blocks(&w.into_inner());
        assert_eq!(all.iter().map(|b| b.0).collect::<Vec<_>>(), [0x0a0d_0d0a, 1, 1, 6]);
        assert!(all[2].1.windows(5).any(|w| w == b"veth1"));
        let want = [
            &[1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0][..],
            &[1, 2, 3, 4, 5, 0, 0, 0][..],
            &[2, 0, 4, 0, 2, 0, 0, 0][..],
            &[1, 0, 3, 0, b'a', b'c', b'k', 0][..],
            &[0, 0, 0, 0][..],
        ]
        .concat();
        assert_eq!(all[3].1, want);
    }

    #[test]
    fn snap_length_cuts_frames_and_keeps_their_length() {
        for (snap, kept) in
            [(2, &[1, 2][..]), (4, &[1, 2, 3, 4]), (5, &[1, 2, 3, 4, 5]), (9, &[1, 2, 3, 4, 5])]
        {
            let mut w = PcapngWriter::with_snap_length(Vec::new(), &["veth0"], snap).unwrap();
            let frame = Frame { a: &[1, 2, 3], b: &[4, 5] };
            w.write(0, 0, Direction::Out, &frame, None).unwrap();
            let all = blocks(&w.into_inner());
            assert_eq!(all[1].1[4..8], snap.to_le_bytes());
            let [length, original] = [12, 16].map(|at| all[2].1[at]);
            assert_eq!((usize::from(length), original), (kept.len(), 5));
            assert_eq!(&all[2].1[20..20 + kept.len()], kept);
            assert_eq!(all[2].1.len(), 20 + kept.len().next_multiple_of(4) + 8 + 4, "no byte more");
        }
    }

    #[test]
    fn statistics_block_carries_both_counts() {
        let all = blocks(&statistics_block(0, 0x0000_0001_0000_0002, 7, 3));
        let want = [
            &[0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0][..],
            &[4, 0, 8, 0, 7, 0, 0, 0, 0, 0, 0, 0][..],
            &[5, 0, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0][..],
            &[0, 0, 0, 0][..],
        ]
        .concat();
        assert_eq!(all, [(5, want)]);
    }

    #[test]
    fn packet_of_unnamed_interface_is_refused() {
        let mut w = PcapngWriter::new(Vec::new(), &["veth0"]).unwrap();
        let e = w.write(1, 0, Direction::In, &Frame::whole(&[0; 60]), None).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(blocks(&w.into_inner()).len(), 2);
    }

    #[test]
    fn long_comment_is_truncated_at_a_character() {
        let mut w = PcapngWriter::new(Vec::new(), &["veth0"]).unwrap();
        let text = format!("x{}", "é".repeat(MAX_COMMENT));
        w.write(0, 0, Direction::In, &Frame::whole(&[0; 4]), Some(&text)).unwrap();
        let body = blocks(&w.into_inner()).pop().unwrap().1;
        let at = 20 + 4 + 8;
        let len = usize::from(u16::from_le_bytes([body[at + 2], body[at + 3]]));
        assert_eq!(len, MAX_COMMENT - 1);
        assert_eq!(std::str::from_utf8(&body[at + 4..at + 4 + len]).unwrap(), &text[..len]);
    }

    #[test]
    fn block_buffer_does_not_grow_after_warm_up() {
        let mut w = PcapngWriter::new(io::sink(), &["veth0"]).unwrap();
        let frame = [0u8; 9000];
        w.write(0, 0, Direction::In, &Frame::whole(&frame), Some("first")).unwrap();
        let (at, capacity) = (w.blocks.as_ptr(), w.blocks.capacity());
        for i in 0..1000 {
            w.write(0, i, Direction::In, &Frame::whole(&frame[..9000 - i as usize]), Some("again")).unwrap();
        }
        assert_eq!((w.blocks.as_ptr(), w.blocks.capacity()), (at, capacity));
    }
}
