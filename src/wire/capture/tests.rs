//! Captures as other programs may write them: both byte orders, obsolete blocks, unusual clocks, damage.

use super::*;

/// Builds pcapng blocks in one byte order.
struct Blocks {
    big: bool,
    bytes: Vec<u8>,
}

impl Blocks {
    fn new(big: bool) -> Blocks {
        let mut b = Blocks { big, bytes: Vec::new() };
        b.section();
        b
    }

    fn section(&mut self) {
        let body = [self.u32(BYTE_ORDER_MAGIC), self.words(&[(1, 2), (0, 2)]), vec![0xff; 8]].concat();
        self.block(block::SECTION_HEADER, &body);
    }

    fn interface(&mut self, link_type: u64, snap_len: u64, options: &[u8]) {
        let body = [self.words(&[(link_type, 2), (0, 2), (snap_len, 4)]), options.to_vec()].concat();
        self.block(block::INTERFACE, &body);
    }

    fn enhanced(&mut self, interface: u64, ticks: u64, data: &[u8]) {
        let len = data.len() as u64;
        let head = [(interface, 4), (ticks >> 32, 4), (ticks & 0xffff_ffff, 4), (len, 4), (len, 4)];
        let mut body = [self.words(&head), data.to_vec()].concat();
        body.resize(body.len().next_multiple_of(4), 0);
        self.block(block::ENHANCED_PACKET, &body);
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let total = self.u32(body.len() as u32 + 12);
        let kind = self.u32(kind);
        self.bytes.extend([&kind[..], &total, body, &total].concat());
    }

    fn u32(&self, v: u32) -> Vec<u8> {
        self.words(&[(v.into(), 4)])
    }

    /// Encodes numbers of 2, 4 or 8 bytes, as (value, length).
    fn words(&self, words: &[(u64, usize)]) -> Vec<u8> {
        let mut out = Vec::new();
        for &(v, n) in words {
            match self.big {
                true => out.extend(&v.to_be_bytes()[8 - n..]),
                false => out.extend(&v.to_le_bytes()[..n]),
            }
        }
        out
    }
}

type Row = (u64, Option<u64>, u32, Vec<u8>, usize);

/// Reads all records up to the end or the first error.
fn read(bytes: &[u8]) -> (Vec<Row>, Option<CaptureError>) {
    let mut rows = Vec::new();
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(e) => return (rows, Some(e)),
    };
    loop {
        match reader.next() {
            Ok(Some(r)) => rows.push((r.number, r.timestamp_ns, r.link_type, r.data.to_vec(), r.wire_len)),
            Ok(None) => return (rows, None),
            Err(e) => return (rows, Some(e)),
        }
    }
}

#[test]
fn frame_numbers_continue_across_sections() {
    let mut little = Blocks::new(false);
    little.interface(1, 0, &[]);
    little.enhanced(0, 5_000_001, &[1, 2, 3]);
    let mut big = Blocks::new(true);
    big.interface(113, 0, &[]);
    big.block(0x0000_0bad, &[0; 8]);
    big.enhanced(0, 7, &[4]);
    let (rows, error) = read(&[little.bytes, big.bytes].concat());
    assert!(error.is_none(), "{error:?}");
    let want = [(1, Some(5_000_001_000), 1, vec![1, 2, 3], 3), (2, Some(7_000), 113, vec![4], 1)];
    assert_eq!(rows, want);
}

#[test]
fn interface_clock_has_resolution_and_offset() {
    for (resolution, ticks, offset, ns) in [
        (9u8, 1_700_000_000_000_000_001u64, 0u64, Some(1_700_000_000_000_000_001u64)),
        (3, 1_500, 0, Some(1_500_000_000)),
        (0x80 | 10, 1024 + 512, 0, Some(1_500_000_000)),
        (6, 1, 100, Some(100_000_001_000)),
        (6, 1, u64::MAX, None),
        (99, 1, 0, None),
    ] {
        let mut b = Blocks::new(true);
        let options =
            [b.words(&[(9, 2), (1, 2)]), vec![resolution, 0, 0, 0], b.words(&[(14, 2), (8, 2), (offset, 8)])];
        b.interface(1, 0, &options.concat());
        b.enhanced(0, ticks, &[0]);
        assert_eq!(read(&b.bytes).0[0].1, ns, "resolution {resolution:#x}, {ticks} ticks, offset {offset}");
    }
}

#[test]
fn simple_and_obsolete_packet_blocks_are_read() {
    let mut b = Blocks::new(false);
    b.interface(1, 6, &[]);
    let simple = [b.u32(100), vec![1, 2, 3, 4, 5, 6, 0, 0]].concat();
    b.block(block::SIMPLE_PACKET, &simple);
    let obsolete = [b.words(&[(0, 2), (9, 2), (0, 4), (3, 4), (2, 4), (64, 4)]), vec![7, 8, 0, 0]].concat();
    b.block(block::PACKET, &obsolete);
    let (rows, error) = read(&b.bytes);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(rows, [(1, None, 1, vec![1, 2, 3, 4, 5, 6], 100), (2, Some(3_000), 1, vec![7, 8], 64)]);
}

#[test]
fn interfaces_of_a_section_are_bounded() {
    let mut blocks = Blocks::new(false);
    (0..=1 << 16).for_each(|_| blocks.interface(1, 0, &[]));
    let (_, refused) = read(&blocks.bytes);
    let refused = refused.expect("too many").to_string();
    assert!(refused.contains("more than 65536 interfaces"), "{refused}");
}

#[test]
fn damage_is_reported_after_complete_frames() {
    let mut b = Blocks::new(false);
    b.interface(1, 0, &[]);
    b.enhanced(0, 1, &[1]);
    let good = b.bytes.len();
    b.enhanced(0, 1, &[2]);
    let spoil = |at: usize, value: u8| {
        let mut bytes = b.bytes.clone();
        bytes[at] = value;
        let (rows, error) = read(&bytes);
        (rows.len(), error.expect("damage is found").to_string())
    };
    let end = b.bytes.len();
    assert_eq!(
        spoil(good + 4, 37),
        (
            1,
            format!(
                "the capture is damaged before byte {}, after frame 1: a block claims 37 bytes",
                good + 8
            )
        )
    );
    assert_eq!(
        spoil(end - 4, 8).1,
        format!(
            "the capture is damaged before byte {end}, after frame 1: a block of 36 bytes ends with length 8"
        )
    );
    assert!(spoil(good + 8, 3).1.ends_with("a packet of interface 3 in a section with 1"));
    assert!(spoil(good + 20, 200).1.ends_with("a packet of 200 bytes in a block with 4"));
    let (rows, error) = read(&b.bytes[..end - 3]);
    assert_eq!(
        (rows.len(), error.unwrap().to_string()),
        (1, format!("the capture is cut short at byte {}, within a block after frame 1", end - 3))
    );
}

#[test]
fn truncated_and_corrupted_files_do_not_panic() {
    let mut b = Blocks::new(false);
    b.interface(1, 0, &[9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    b.enhanced(0, 1, &[1, 2, 3]);
    b.section();
    for i in 0..b.bytes.len() {
        let (_, error) = read(&b.bytes[..i]);
        assert!(error.is_some() || i >= 28, "a prefix of {i} bytes");
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = b.bytes.clone();
            bytes[i] = value;
            assert!(read(&bytes).0.len() <= 1);
        }
    }
}
