//! Super-frames: several packets in one datagram, as a host hands them to its stack (UDP segmentation offload) or gets
//! them from it (receive offload). A capture on that host shows the datagram unsplit. Each packet in it has its own BTH
//! and ICRC.

use roxie::frame::Frame;
use roxie::wire::parse::ICRC_LEN;
use roxie::wire::{Bth, Envelope, Icrc, NetHeader, Packet, Psn};

/// The packets of a super-frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Number of packets in the datagram.
    pub count: usize,
    /// Number of bytes from BTH to ICRC of each packet but the last, which may be shorter.
    pub len: usize,
    /// PSN of the last packet.
    pub last_psn: Psn,
    /// `Ok` if every packet's ICRC is correct, else the first bad one.
    pub icrc: Icrc,
}

/// Smallest packet: a BTH and an ICRC.
const MIN_LEN: usize = Bth::LEN + ICRC_LEN;

impl Segments {
    /// Splits `frame` into its packets; `None` if it is a single packet with a bad ICRC.
    pub fn find(e: &Envelope, frame: &Frame<'_>) -> Option<Segments> {
        e.udp?;
        let l3 = frame.to_vec().split_off(e.l3_offset);
        let (at, end) = (e.bth_offset - e.l3_offset, e.icrc_offset + ICRC_LEN - e.l3_offset);
        let datagram = l3.get(at..end)?;
        // A second packet has the same QP and the next PSN, and the first packet's ICRC ends right before it.
        let len = (MIN_LEN..=datagram.len().saturating_sub(MIN_LEN)).step_by(4).find(|&len| {
            bth_at(datagram, len).is_some_and(|b| b.dest_qp == e.bth.dest_qp && b.psn == e.bth.psn.next())
                && check(e, &l3[..at], &datagram[..len], 0) == Icrc::Ok
        })?;
        let (mut icrc, mut last_psn, mut count) = (Icrc::Ok, e.bth.psn, 0);
        for segment in datagram.chunks(len) {
            last_psn = bth_at(segment, 0)?.psn;
            if icrc == Icrc::Ok {
                icrc = check(e, &l3[..at], segment, count);
            }
            count += 1;
        }
        Some(Segments { count, len, last_psn, icrc })
    }

    /// Returns the packets of the super-frame `frame` with the headers `whole`.
    pub fn packets(&self, whole: &Envelope, frame: &Frame<'_>) -> Vec<Packet> {
        let end = whole.icrc_offset + ICRC_LEN;
        let packets = (0..self.count).filter_map(|i| {
            let start = whole.bth_offset + i * self.len;
            let mut bth = [0; Bth::LEN];
            if frame.copy_to(start, &mut bth) < Bth::LEN {
                return None;
            }
            let envelope = Envelope {
                bth: Bth::read(&bth),
                bth_offset: start,
                icrc_offset: (start + self.len).min(end) - ICRC_LEN,
                ..*whole
            };
            Packet::from_envelope(frame, envelope).ok()
        });
        packets.collect()
    }
}

fn bth_at(bytes: &[u8], at: usize) -> Option<Bth> {
    bytes.get(at..)?.first_chunk().map(Bth::read)
}

/// Checks a segment's ICRC under the headers that it gets after the split: its own lengths, and the IPv4 identification
/// plus `index`.
fn check(e: &Envelope, headers: &[u8], segment: &[u8], index: usize) -> Icrc {
    if segment.len() < MIN_LEN {
        return Icrc::Bad { computed: 0, stored: 0 };
    }
    let mut packet = [headers, segment].concat();
    let total_len = packet.len() as u16;
    let udp_len = (segment.len() + 8) as u16;
    match e.net {
        NetHeader::Ipv4(h) => {
            packet[2..4].copy_from_slice(&total_len.to_be_bytes());
            packet[4..6].copy_from_slice(&h.id.wrapping_add(index as u16).to_be_bytes());
        }
        NetHeader::Ipv6(_) | NetHeader::Grh(_) => packet[4..6].copy_from_slice(&udp_len.to_be_bytes()),
    }
    packet[headers.len() - 4..headers.len() - 2].copy_from_slice(&udp_len.to_be_bytes());
    let moved =
        Envelope { l3_offset: 0, bth_offset: headers.len(), icrc_offset: packet.len() - ICRC_LEN, ..*e };
    moved.check_icrc(&Frame::whole(&packet))
}
