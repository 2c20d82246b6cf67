//! Super-frames: several packets that a host hands to its stack, or gets from it, as one datagram
//! (UDP segmentation and its reverse). A capture on that host shows them before the cut; each packet
//! in it has its own BTH and ICRC.

use roxie::frame::Frame;
use roxie::wire::parse::ICRC_LEN;
use roxie::wire::{Bth, Envelope, Icrc, NetHeader, Psn};

/// The packets of a super-frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    /// How many packets the datagram held.
    pub(crate) count: usize,
    /// Bytes from BTH to ICRC of all but the last, which may be shorter.
    pub(crate) len: usize,
    /// PSN of the last.
    pub(crate) last_psn: Psn,
    /// `Ok` if all are, else the first that is bad.
    pub(crate) icrc: Icrc,
}

/// Smaller than any packet.
const MIN_LEN: usize = Bth::LEN + ICRC_LEN;

impl Segments {
    /// Finds where the packets of `frame` begin; `None` if it is one (bad) packet.
    pub(crate) fn find(e: &Envelope, frame: &Frame<'_>) -> Option<Segments> {
        e.udp?;
        let l3 = frame.to_vec().split_off(e.l3_offset);
        let (at, end) = (e.bth_offset - e.l3_offset, e.icrc_offset + ICRC_LEN - e.l3_offset);
        let datagram = l3.get(at..end)?;
        // A second packet: same QP, next PSN, and the first one's ICRC right before it.
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
}

fn bth_at(bytes: &[u8], at: usize) -> Option<Bth> {
    bytes.get(at..)?.first_chunk().map(Bth::read)
}

/// The ICRC of the `index`-th segment under the headers it will have: its own lengths, and the IPv4
/// identification counted up.
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
