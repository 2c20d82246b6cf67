//! Frames as a wire carries them, of what packet sockets show: the kernel leaves checksums unfinished and datagrams or
//! TCP segments merged for as long as no link needs them otherwise (`linux/virtio_net.h`,
//! Documentation/networking/segmentation-offloads.rst).

use crate::udp::headers::{checksum, fold, sum};

/// Station addresses in front of the EtherType, in bytes.
const STATIONS: usize = 12;
const IP: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const VLAN: [u8; 2] = [0x81, 0x00];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// TCP flags of the last segment only (FIN, PSH), and of the first only (CWR).
const LAST_ONLY: u8 = 0x01 | 0x08;
const FIRST_ONLY: u8 = 0x80;

/// `struct virtio_net_hdr`: what the kernel has put off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offload {
    flags: u8,
    gso_type: u8,
    /// Bytes of payload in each segment but the last.
    segment: usize,
    /// Where the sum begins, and where it is stored from there on.
    checksum_start: usize,
    checksum_offset: usize,
}

impl Offload {
    /// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
    const NEEDS_CHECKSUM: u8 = 1;
    /// `VIRTIO_NET_HDR_GSO_ECN`, combined with a type.
    const ECN: u8 = 0x80;

    pub(super) fn parse(header: &[u8; super::ring::VNET_HEADER]) -> Offload {
        let half = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        Offload {
            flags: header[0],
            gso_type: header[1] & !Offload::ECN,
            segment: half(4),
            checksum_start: half(6),
            checksum_offset: half(8),
        }
    }

    fn needs_checksum(&self) -> bool {
        self.flags & Offload::NEEDS_CHECKSUM != 0
    }
}

/// Offsets of the headers of a merged frame.
struct Layout {
    is_v4: bool,
    /// The TCP or UDP header.
    transport: usize,
    protocol: u8,
    payload: usize,
}

impl Layout {
    /// `None`: not TCP or UDP directly in IPv4 or IPv6.
    fn of(frame: &[u8]) -> Option<Layout> {
        let ethertype: [u8; 2] = *frame.get(STATIONS..)?.first_chunk()?;
        let ip = frame.get(IP..)?;
        let (is_v4, length, protocol) = match ethertype {
            IPV4 => (true, usize::from(ip.first()? & 15) * 4, *ip.get(9)?),
            IPV6 => (false, 40, *ip.get(6)?),
            _ => return None,
        };
        let transport = IP + length;
        let header = match protocol {
            TCP => usize::from(frame.get(transport + 12)? >> 4) * 4,
            UDP => 8,
            _ => return None,
        };
        let payload = transport + header;
        let shortest = if protocol == TCP { 20 } else { 8 };
        let is_whole = length >= 20 && header >= shortest && payload <= frame.len();
        is_whole.then_some(Layout { is_v4, transport, protocol, payload })
    }
}

/// Cuts a frame of a packet socket into the frames of a wire, and passes each to `put` as pieces. `tag`: the 802.1Q tag
/// that the kernel has taken out. Returns false if the frame is merged of something else than TCP segments or UDP
/// datagrams, or not whole.
pub(super) fn cut(frame: &[u8], offload: &Offload, tag: Option<u16>, mut put: impl FnMut(&[&[u8]])) -> bool {
    let mut tagged = |frame: &[u8], payload: &[u8]| match tag {
        Some(tag) if frame.len() >= STATIONS => {
            let (stations, rest) = frame.split_at(STATIONS);
            put(&[stations, &VLAN, &tag.to_be_bytes(), rest, payload]);
        }
        _ => put(&[frame, payload]),
    };
    if offload.gso_type == 0 {
        if !offload.needs_checksum() {
            tagged(frame, &[]);
            return true;
        }
        let mut finished = frame.to_vec();
        let stored = offload.checksum_start + offload.checksum_offset;
        let Some(rest) = frame.get(offload.checksum_start..) else { return false };
        // The field has the sum of the pseudo header.
        let sum = checksum(rest);
        let Some(field) = finished.get_mut(stored..stored + 2) else { return false };
        field.copy_from_slice(&sum.to_be_bytes());
        tagged(&finished, &[]);
        return true;
    }
    let Some(layout) = Layout::of(frame) else { return false };
    if offload.segment == 0 {
        return false;
    }
    let (headers, payload) = frame.split_at(layout.payload);
    let udp_sum = layout.transport + 6;
    let sums = layout.protocol == TCP || offload.needs_checksum() || headers[udp_sum..udp_sum + 2] != [0, 0];
    let mut own = headers.to_vec();
    for (number, part) in payload.chunks(offload.segment).enumerate() {
        own.copy_from_slice(headers);
        let is_last = (number + 1) * offload.segment >= payload.len();
        set_segment(&mut own, &layout, number, offload.segment, part, is_last);
        if sums {
            set_checksum(&mut own, &layout, part);
        }
        tagged(&own, part);
    }
    true
}

/// Sets lengths, identification, sequence number and flags of segment `number`.
fn set_segment(
    headers: &mut [u8],
    layout: &Layout,
    number: usize,
    segment: usize,
    part: &[u8],
    is_last: bool,
) {
    let transport_length = layout.payload - layout.transport + part.len();
    if layout.is_v4 {
        let total = (layout.transport - IP + transport_length) as u16;
        headers[IP + 2..IP + 4].copy_from_slice(&total.to_be_bytes());
        let first = u16::from_be_bytes([headers[IP + 4], headers[IP + 5]]);
        headers[IP + 4..IP + 6].copy_from_slice(&first.wrapping_add(number as u16).to_be_bytes());
        headers[IP + 10..IP + 12].fill(0);
        let sum = checksum(&headers[IP..layout.transport]);
        headers[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        headers[IP + 4..IP + 6].copy_from_slice(&(transport_length as u16).to_be_bytes());
    }
    let own = &mut headers[layout.transport..];
    if layout.protocol == UDP {
        own[4..6].copy_from_slice(&(transport_length as u16).to_be_bytes());
        own[6..8].fill(0);
        return;
    }
    let first = u32::from_be_bytes([own[4], own[5], own[6], own[7]]);
    own[4..8].copy_from_slice(&first.wrapping_add((number * segment) as u32).to_be_bytes());
    if !is_last {
        own[13] &= !LAST_ONLY;
    }
    if number > 0 {
        own[13] &= !FIRST_ONLY;
    }
    own[16..18].fill(0);
}

/// Sets the checksum of TCP or UDP (RFC 9293 3.1, RFC 768, RFC 8200 8.1). Its field is 0 before.
fn set_checksum(headers: &mut [u8], layout: &Layout, part: &[u8]) {
    let addresses = if layout.is_v4 { IP + 12..IP + 20 } else { IP + 8..IP + 40 };
    let length = (layout.payload - layout.transport + part.len()) as u32;
    let pseudo = u32::from(layout.protocol) + length + sum(&headers[addresses]);
    // A header has whole words, so that the payload begins one.
    let sum = !fold(pseudo + sum(&headers[layout.transport..]) + sum(part));
    let (at, sum) = match layout.protocol {
        // 0 says that there is no checksum.
        UDP => (layout.transport + 6, if sum == 0 { 0xffff } else { sum }),
        _ => (layout.transport + 16, sum),
    };
    headers[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns frames, and checks that each has valid checksums.
    fn cut_all(frame: &[u8], offload: Offload, tag: Option<u16>) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        assert!(cut(frame, &offload, tag, |pieces| frames.push(pieces.concat())));
        frames
    }

    fn assert_sums(frame: &[u8]) {
        let layout = Layout::of(frame).expect("whole");
        if layout.is_v4 {
            assert_eq!(checksum(&frame[IP..layout.transport]), 0, "of the IPv4 header");
        }
        let addresses = if layout.is_v4 { IP + 12..IP + 20 } else { IP + 8..IP + 40 };
        let length = (frame.len() - layout.transport) as u32;
        let pseudo = u32::from(layout.protocol) + length + sum(&frame[addresses]);
        assert_eq!(
            fold(pseudo + sum(&frame[layout.transport..])),
            0xffff,
            "of the transport header and payload"
        );
    }

    fn v4(protocol: u8, transport: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x02; 12];
        frame.extend(IPV4);
        let total = (20 + transport.len() + payload.len()) as u16;
        frame.extend([0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        frame.extend(transport);
        frame.extend(payload);
        frame
    }

    fn v6(protocol: u8, transport: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x02; 12];
        frame.extend(IPV6);
        frame.extend([0x60, 0, 0, 0]);
        frame.extend(((transport.len() + payload.len()) as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0xfd; 16]);
        frame.extend([0xfe; 16]);
        frame.extend(transport);
        frame.extend(payload);
        frame
    }

    const PAYLOAD: [u8; 25] = *b"abcdefghijklmnopqrstuvwxy";
    const UDP_HEADER: [u8; 8] = [0xc0, 0, 0x12, 0xb7, 0, 33, 0, 0];

    fn merged(gso_type: u8, needs_checksum: bool) -> Offload {
        Offload { flags: u8::from(needs_checksum), gso_type, segment: 10, ..Offload::default() }
    }

    #[test]
    fn udp_trains_become_datagrams() {
        for (frame, id) in [(v4(UDP, &UDP_HEADER, &PAYLOAD), true), (v6(UDP, &UDP_HEADER, &PAYLOAD), false)] {
            let frames = cut_all(&frame, merged(5, true), None);
            assert_eq!(frames.len(), 3);
            let start = Layout::of(&frame).expect("whole").payload;
            let parts: Vec<u8> = frames.iter().flat_map(|frame| frame[start..].to_vec()).collect();
            assert_eq!((parts.as_slice(), frames[2].len() - start), (&PAYLOAD[..], 5));
            frames.iter().for_each(|frame| assert_sums(frame));
            if id {
                let ids: Vec<_> = frames.iter().map(|f| u16::from_be_bytes([f[18], f[19]])).collect();
                assert_eq!(ids, [0xfffe, 0xffff, 0]);
            }
        }
        let without = cut_all(&v4(UDP, &UDP_HEADER, &PAYLOAD), merged(5, false), None);
        assert!(without.iter().all(|frame| frame[40..42] == [0, 0]), "no checksum stays none");
    }

    #[test]
    fn tcp_segments_count_on() {
        // Sequence number 0xffff_fffb; CWR, PSH, FIN and ACK; an option of 4 bytes.
        let mut header = vec![0; 24];
        header[4..8].copy_from_slice(&0xffff_fffb_u32.to_be_bytes());
        (header[12], header[13]) = (6 << 4, 0x99);
        for frame in [v4(TCP, &header, &PAYLOAD), v6(TCP, &header, &PAYLOAD)] {
            let at = Layout::of(&frame).expect("whole").transport;
            let frames = cut_all(&frame, merged(1, true), None);
            let seen: Vec<_> = frames
                .iter()
                .map(|f| (u32::from_be_bytes(*f[at + 4..].first_chunk().expect("bytes")), f[at + 13]))
                .collect();
            assert_eq!(seen, [(0xffff_fffb, 0x90), (5, 0x10), (15, 0x19)]);
            frames.iter().for_each(|frame| assert_sums(frame));
        }
    }

    #[test]
    fn unfinished_checksum_is_finished() {
        let mut frame = v6(UDP, &UDP_HEADER, &PAYLOAD);
        let pseudo = fold(u32::from(UDP) + 33 + sum(&frame[IP + 8..IP + 40]));
        frame[60..62].copy_from_slice(&pseudo.to_be_bytes());
        let offload = Offload { flags: 1, checksum_start: 54, checksum_offset: 6, ..Offload::default() };
        assert_sums(&cut_all(&frame, offload, None)[0]);
    }

    #[test]
    fn tag_is_put_back_in_each_frame() {
        let frames = cut_all(&v4(UDP, &UDP_HEADER, &PAYLOAD), merged(5, true), Some(0x6005));
        assert!(frames.iter().all(|f| f[12..18] == [0x81, 0x00, 0x60, 0x05, 0x08, 0x00]));
        let whole = cut_all(&[7; 20], Offload::default(), Some(5));
        assert_eq!(whole[0].len(), 24);
    }

    #[test]
    fn broken_frames_are_refused() {
        let whole = v4(UDP, &UDP_HEADER, &PAYLOAD);
        for length in 0..42 {
            assert!(!cut(&whole[..length], &merged(5, true), None, |_| panic!("{length} bytes")));
        }
        let refused = |frame: &[u8], offload| assert!(!cut(frame, &offload, None, |_| panic!("a frame")));
        refused(&v4(50, &UDP_HEADER, &PAYLOAD), merged(5, true));
        refused(&whole, Offload { segment: 0, ..merged(5, true) });
        refused(&whole, Offload { flags: 1, checksum_start: 60, checksum_offset: 6, ..Offload::default() });
        refused(&whole, Offload { flags: 1, checksum_start: 100, ..Offload::default() });
        let mut header = vec![0; 20];
        header[12] = 4 << 4;
        refused(&v4(TCP, &header, &PAYLOAD), merged(1, true));
    }
}
