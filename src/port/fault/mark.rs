//! ECN marking, as a congested switch does instead of dropping.

use roxie_base::frame::{ETHERNET_HEADER, Frame, FrameMut};

/// Offset of the network header behind an 802.1Q tag.
const TAGGED: usize = ETHERNET_HEADER + 4;

/// Returns the offset of the network header, the offset of the byte with the ECN bits, and their shift in that byte.
fn place(frame: &Frame<'_>) -> Option<(usize, usize, u32)> {
    let mut at = ETHERNET_HEADER;
    let mut kind = frame.array::<2>(12)?;
    if kind == [0x81, 0x00] {
        (at, kind) = (TAGGED, frame.array::<2>(16)?);
    }
    match kind {
        [0x08, 0x00] => Some((at, at + 1, 0)),
        [0x86, 0xdd] => Some((at, at + 1, 4)),
        _ => None,
    }
}

/// True if the frame may be marked: ECT(0), ECT(1), or CE already (RFC 3168 section 5).
pub(super) fn may_be_marked(frame: &Frame<'_>) -> bool {
    let ecn = place(frame).and_then(|(_, byte, shift)| Some(frame.array::<1>(byte)?[0] >> shift & 3));
    ecn.is_some_and(|bits| bits != 0)
}

/// Sets both ECN bits (congestion experienced, CE) and updates the IPv4 checksum.
pub(super) fn mark(frame: &mut FrameMut<'_>) {
    let Some((header, byte, shift)) = place(&frame.as_frame()) else { return };
    let Some([before]) = frame.as_frame().array::<1>(byte) else { return };
    let after = before | 3 << shift;
    frame.write(byte, &[after]);
    if shift == 0
        && let Some(sum) = frame.as_frame().array::<2>(header + 10)
    {
        // RFC 1624, equation 3, for the 16 bits of which the type of service is the lower half.
        let sum = u32::from(!u16::from_be_bytes(sum)) + u32::from(!u16::from(before)) + u32::from(after);
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        frame.write(header + 10, &(!(folded as u16)).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ones' complement sum over an IPv4 header with its checksum: all ones if it is right (RFC 791).
    fn sum(header: &[u8]) -> u16 {
        let words = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum: u32 = words.sum();
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    fn ipv4(tos: u8) -> Vec<u8> {
        let mut frame = vec![0; 14];
        frame[12] = 8;
        frame.extend([0x45, tos, 0, 48, 0, 7, 0x40, 0, 63, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        let right = !sum(&frame[14..]);
        frame[24..26].copy_from_slice(&right.to_be_bytes());
        frame
    }

    #[test]
    fn mark_sets_ce_and_keeps_checksum_valid() {
        for (tos, marked) in [(0x6a, 0x6b), (0x69, 0x6b), (0x02, 0x03), (0xff, 0xff)] {
            let mut frame = ipv4(tos);
            assert!(may_be_marked(&Frame::whole(&frame)), "{tos:#x}");
            mark(&mut FrameMut { a: &mut frame, b: &mut [] });
            assert_eq!((frame[15], sum(&frame[14..])), (marked, 0xffff), "{tos:#x}");
        }
        assert!(!may_be_marked(&Frame::whole(&ipv4(0x68))));
    }

    #[test]
    fn tagged_ipv6_frame_is_marked() {
        let mut frame = vec![0; 60];
        frame[12..18].copy_from_slice(&[0x81, 0x00, 0x60, 0x00, 0x86, 0xdd]);
        frame[18..20].copy_from_slice(&[0x66, 0xa5]);
        assert!(may_be_marked(&Frame::whole(&frame)));
        mark(&mut FrameMut { a: &mut frame, b: &mut [] });
        assert_eq!(frame[18..20], [0x66, 0xb5]);
    }
}
