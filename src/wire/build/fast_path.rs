//! Fast path of header writing: IPv4 without a tag, UDP, a BTH and at most one extended header, at fixed
//! offsets.

use super::{ICRC_LEN, Kind, Template};
use crate::frame::FrameMut;
use crate::{Bth, Reth, net};

/// Bytes below the BTH: Ethernet, IPv4, UDP.
const BELOW: usize = 14 + 20 + 8;
/// Offsets of the IPv4 header, its length and its checksum, and of the UDP length.
const IP: usize = 14;
const IP_LENGTH: usize = IP + 2;
const IP_CHECKSUM: usize = IP + 10;
const UDP_LENGTH: usize = IP + 20 + 4;
/// Bytes of the longest header chain.
const ALL: usize = BELOW + Bth::LEN + Reth::LEN;

impl Template {
    /// Returns the frame length without FCS; `None` if this flow has other headers than IPv4 and UDP without
    /// a tag.
    #[inline(always)]
    pub fn fast_len(&self, ext: usize, payload_len: u16) -> Option<usize> {
        let is_eligible = self.prefix_len == BELOW && matches!(self.kind, Kind::Ipv4 { .. });
        is_eligible
            .then_some(BELOW + Bth::LEN + ext + usize::from(payload_len).next_multiple_of(4) + ICRC_LEN)
    }

    /// Writes the headers of a frame of [`fast_len`](Self::fast_len) bytes, as
    /// [`write_headers`](Self::write_headers) does, and returns the offset of the payload. `capable` sets
    /// ECT(0) (RFC 3168 5).
    #[inline(always)]
    pub fn write_fast<const EXT: usize>(
        &self,
        frame: &mut FrameMut<'_>,
        capable: bool,
        bth: &Bth,
        ext: Option<&[u8; EXT]>,
    ) -> usize {
        let length = frame.len();
        let payload = BELOW + Bth::LEN + if ext.is_some() { EXT } else { 0 };
        // The UDP port splits the frame at the BTH.
        let (first, behind) = match frame.a.split_first_chunk_mut() {
            Some((below, [])) => (Some(below), &mut *frame.b),
            Some((below, behind)) => (Some(below), behind),
            None => (None, &mut [][..]),
        };
        if let (Some(below), Some((place, behind))) = (first, behind.split_first_chunk_mut())
            && self.write_fast_to(below, place, behind.first_chunk_mut(), (length, capable, bth, ext))
        {
            return payload;
        }
        self.write_fast_aside(frame, payload, (length, capable, bth, ext));
        payload
    }

    /// Writes the headers by way of a buffer, for a frame with any other split.
    #[cold]
    #[inline(never)]
    fn write_fast_aside<const EXT: usize>(
        &self,
        frame: &mut FrameMut<'_>,
        payload: usize,
        contents: Contents<'_, EXT>,
    ) {
        let mut headers = [0; ALL];
        if let Some((below, behind)) = headers.split_first_chunk_mut()
            && let Some((place, behind)) = behind.split_first_chunk_mut()
        {
            self.write_fast_to(below, place, behind.first_chunk_mut(), contents);
        }
        frame.write(0, &headers[..payload]);
    }

    /// Writes the headers into their places. Returns false if the extended header has no contiguous place.
    #[inline(always)]
    fn write_fast_to<const EXT: usize>(
        &self,
        below: &mut [u8; BELOW],
        place: &mut [u8; Bth::LEN],
        place_of_ext: Option<&mut [u8; EXT]>,
        (length, capable, bth, ext): Contents<'_, EXT>,
    ) -> bool {
        if let Some(ext) = ext {
            let Some(place) = place_of_ext else { return false };
            *place = *ext;
        }
        *place = bth.to_bytes();
        let (prefix, Kind::Ipv4 { header_sum }) = (self.prefix.first_chunk(), self.kind) else {
            return false;
        };
        *below = *prefix.unwrap_or(&[0; BELOW]);
        // A frame fits its port, so the length is below 2^16.
        let total = (length - IP) as u16;
        let ecn = u8::from(capable) << 1;
        below[IP + 1] |= ecn;
        below[IP_LENGTH..IP_LENGTH + 2].copy_from_slice(&total.to_be_bytes());
        let checksum = net::ipv4_checksum(header_sum + u64::from(total) + u64::from(ecn));
        below[IP_CHECKSUM..IP_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        below[UDP_LENGTH..UDP_LENGTH + 2].copy_from_slice(&(total - 20).to_be_bytes());
        true
    }
}

/// Frame length, whether to set ECT(0), BTH and extended header.
type Contents<'a, const EXT: usize> = (usize, bool, &'a Bth, Option<&'a [u8; EXT]>);
