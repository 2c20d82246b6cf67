//! A frame in up to two pieces, as ports receive and transmit it.
//!
//! AF_XDP splits a frame that does not fit one chunk, and the UDP port keeps its synthetic Ethernet, IP and
//! UDP headers apart from the kernel's datagram. Layers above a port therefore handle a head and a tail. The
//! split carries no meaning, and may lie inside a header.

use alloc::vec::Vec;
use core::ops::Range;

/// Bytes of an Ethernet header without a VLAN tag.
pub const ETHERNET_HEADER: usize = 14;
/// The UDP destination port of RoCE v2 (IANA; IBTA annex A17.4.3).
pub const ROCE_V2_PORT: u16 = 4791;

/// A received frame, borrowed from its port: the bytes of `a`, then of `b`, without FCS.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The first piece; the whole frame if the port does not split.
    pub a: &'a [u8],
    /// The rest, often empty.
    pub b: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Creates a frame in one piece.
    pub fn whole(a: &'a [u8]) -> Frame<'a> {
        Frame { a, b: &[] }
    }

    /// Returns the length of both pieces.
    pub fn len(&self) -> usize {
        self.a.len() + self.b.len()
    }

    /// True if the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of `range` as two slices, of which either may be empty.
    ///
    /// The range is truncated to the frame. No range panics. Fast if the bytes are in the first piece.
    #[inline(always)]
    pub fn slices(&self, range: Range<usize>) -> (&'a [u8], &'a [u8]) {
        match self.a.get(range.clone()) {
            Some(bytes) => (bytes, &[]),
            None => self.split_slices(range),
        }
    }

    #[inline(never)]
    fn split_slices(&self, range: Range<usize>) -> (&'a [u8], &'a [u8]) {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        let split = self.a.len();
        let first = &self.a[start.min(split)..end.min(split)];
        let second = &self.b[start.saturating_sub(split)..end.saturating_sub(split)];
        (first, second)
    }

    /// Copies bytes from `offset` on into `out`. Returns the number of bytes copied.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let (x, y) = self.slices(offset..offset.saturating_add(out.len()));
        out[..x.len()].copy_from_slice(x);
        if !y.is_empty() {
            out[x.len()..x.len() + y.len()].copy_from_slice(y);
        }
        x.len() + y.len()
    }

    /// Returns the `N` bytes at `offset`; `None` if the frame ends before. Fast if they are in one piece.
    #[inline(always)]
    pub fn array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        if let Some(bytes) = self.a.get(offset..).and_then(|rest| rest.first_chunk()) {
            return Some(*bytes);
        }
        self.split_array(offset)
    }

    #[inline(never)]
    fn split_array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.copy_to(offset, &mut bytes) == N).then_some(bytes)
    }

    /// Copies the frame into one vector, for captures and tests.
    pub fn to_vec(&self) -> Vec<u8> {
        [self.a, self.b].concat()
    }
}

/// A frame under construction in its port's memory, in up to two pieces.
#[derive(Debug)]
pub struct FrameMut<'a> {
    /// The first piece; the whole frame if the port does not split.
    pub a: &'a mut [u8],
    /// The rest, often empty.
    pub b: &'a mut [u8],
}

impl FrameMut<'_> {
    /// Returns the length of both pieces.
    pub fn len(&self) -> usize {
        self.a.len() + self.b.len()
    }

    /// True if the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a read-only view.
    pub fn as_frame(&self) -> Frame<'_> {
        Frame { a: self.a, b: self.b }
    }

    /// Returns the bytes of `range` as two slices, of which either may be empty. The range is truncated to
    /// the frame.
    pub fn slices_mut(&mut self, range: Range<usize>) -> (&mut [u8], &mut [u8]) {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        let split = self.a.len();
        let first = &mut self.a[start.min(split)..end.min(split)];
        let second = &mut self.b[start.saturating_sub(split)..end.saturating_sub(split)];
        (first, second)
    }

    /// Writes `bytes` at `offset`. Bytes beyond the end of the frame are dropped.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(place) = self.a.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes.len())) {
            return place.copy_from_slice(bytes);
        }
        let (x, y) = self.slices_mut(offset..offset.saturating_add(bytes.len()));
        let n = x.len();
        let m = y.len();
        x.copy_from_slice(&bytes[..n]);
        if m > 0 {
            y.copy_from_slice(&bytes[n..n + m]);
        }
    }

    /// Like [`write`](Self::write), but fast if the destination is in one piece.
    #[inline(always)]
    pub fn write_array<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) {
        match self.a.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
            Some(place) => *place = bytes,
            None => self.write(offset, &bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_over_the_split_is_two_slices() {
        let f = Frame { a: &[0, 1, 2], b: &[3, 4] };
        assert_eq!(f.slices(1..4), (&[1u8, 2][..], &[3u8][..]));
        assert_eq!(f.slices(3..5), (&[][..], &[3u8, 4][..]));
        assert_eq!(f.slices(4..99), (&[][..], &[4u8][..]));
        let backwards = core::ops::Range { start: 9, end: 4 };
        assert_eq!(f.slices(backwards), (&[][..], &[][..]));
    }

    #[test]
    fn array_is_read_and_written_at_any_split() {
        for split in 0..=6 {
            let mut bytes = [0, 1, 2, 3, 4, 5];
            let (a, b) = bytes.split_at_mut(split);
            let mut f = FrameMut { a, b };
            assert_eq!(f.as_frame().array(1), Some([1, 2, 3, 4]), "split at {split}");
            assert_eq!(f.as_frame().array::<4>(3), None, "split at {split}");
            f.write_array(2, [7, 8, 9]);
            assert_eq!(bytes, [0, 1, 7, 8, 9, 5], "split at {split}");
        }
    }

    #[test]
    fn write_over_the_split_reaches_both_pieces() {
        let (mut a, mut b) = ([0u8; 3], [0u8; 2]);
        let mut f = FrameMut { a: &mut a, b: &mut b };
        f.write(2, &[7, 8, 9, 10]);
        assert_eq!((a, b), ([0, 0, 7], [8, 9]));
    }
}
