//! Receiving: filled slots of the ring, cut into frames.

use std::net::IpAddr;
use std::time::Duration;

use nix::time::ClockId;

use super::ring::{Filled, Ring};
use crate::BURST;
use crate::udp::headers::{MAX_HEADERS, Outgoing, checksum, set_lengths};
use roxie_base::frame::Frame;
use roxie_base::time::Nanos;

/// Station addresses in front of the EtherType, in bytes.
const STATIONS: usize = 12;
const IP: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const MAC_CONTROL: [u8; 2] = [0x88, 0x08];
const VLAN: [u8; 2] = [0x81, 0x00];
/// The VLAN number in a tag. 0: the tag has a priority only.
const VLAN_NUMBER: u16 = 0x0fff;

/// Receives from a ring.
pub(super) struct Receiver {
    pub(super) ring: Ring,
    /// Addresses of this station.
    pub(super) addresses: Vec<IpAddr>,
    /// Multicast groups that it joined.
    pub(super) groups: Vec<IpAddr>,
    /// A train whose datagrams are not all shown.
    train: Option<Train>,
    burst: Vec<Shown>,
    pub(super) max_frame: usize,
    /// True if arrival times are wanted.
    pub(super) stamps: bool,
    pub(super) counts: ReceiveCounts,
}

#[derive(Default)]
pub(super) struct ReceiveCounts {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) trains: u64,
    pub(super) tagged: u64,
    pub(super) other_address: u64,
    pub(super) bad_ip_checksum: u64,
    pub(super) oversize: u64,
    pub(super) malformed: u64,
}

/// A train in the ring.
struct Train {
    slot: usize,
    /// Headers of a datagram of full length.
    headers: [u8; MAX_HEADERS],
    /// Offset of the UDP header.
    udp: usize,
    /// Bytes of UDP payload in each datagram but the last.
    segment: usize,
    /// Offset in the slot's frame of the next datagram, and of the end.
    next: usize,
    end: usize,
    arrived: Option<Nanos>,
}

/// A frame of the current burst: made-up headers, then bytes of a slot.
struct Shown {
    headers: [u8; MAX_HEADERS],
    headers_len: usize,
    slot: usize,
    start: usize,
    len: usize,
    /// True if the frame is part of an IPv4 train, which does not show each identification.
    hides_id: bool,
    arrived: Option<Nanos>,
}

/// Why a frame is not taken.
enum Refusal {
    Tagged,
    OtherAddress,
    BadChecksum,
    Oversize(usize),
    Malformed,
}

impl Receiver {
    pub(super) fn new(ring: Ring, addresses: Vec<IpAddr>, max_frame: usize) -> Receiver {
        Receiver {
            ring,
            addresses,
            groups: Vec::new(),
            train: None,
            burst: Vec::with_capacity(BURST),
            max_frame,
            stamps: false,
            counts: ReceiveCounts::default(),
        }
    }

    /// Takes up to [`BURST`] frames, first the rest of a train.
    pub(super) fn poll(&mut self, now: Nanos) -> usize {
        debug_assert!(self.burst.is_empty(), "rx_release comes before the next rx_burst");
        while self.burst.len() < BURST {
            if let Some(train) = &mut self.train {
                self.burst.push(train.show());
                if train.next == train.end {
                    self.train = None;
                }
            } else if let Some(slot) = self.ring.take() {
                if let Err(refusal) = self.accept(slot, now) {
                    self.count(&refusal);
                }
            } else {
                break;
            }
        }
        self.counts.packets += self.burst.len() as u64;
        self.counts.bytes +=
            self.burst.iter().map(|shown| (shown.headers_len + shown.len) as u64).sum::<u64>();
        self.burst.len()
    }

    /// Judges a filled slot, and puts its frame into the burst, or its train in front.
    fn accept(&mut self, slot: usize, now: Nanos) -> Result<(), Refusal> {
        let filled = self.ring.read(slot);
        let frame = filled.bytes;
        let arrived = if self.stamps { arrival(now, filled.stamp) } else { None };
        if filled.tag.is_some_and(|tag| tag & VLAN_NUMBER != 0) {
            return Err(Refusal::Tagged);
        }
        if frame.len() < filled.len || filled.segment.is_none() && frame.len() > self.max_frame {
            return Err(Refusal::Oversize(1));
        }
        self.judge_address(&filled)?;
        let Some(segment) = filled.segment else {
            let mut shown = Shown {
                headers: [0; MAX_HEADERS],
                headers_len: 0,
                slot,
                start: 0,
                len: frame.len(),
                hides_id: false,
                arrived,
            };
            if let Some(tag) = filled.tag {
                shown.put_back(frame, tag);
            }
            self.burst.push(shown);
            return Ok(());
        };
        let mut headers: [u8; MAX_HEADERS] = *frame.first_chunk().ok_or(Refusal::Malformed)?;
        let out = Outgoing::parse(&headers, frame.len()).ok_or(Refusal::Malformed)?;
        let (start, end) = (out.udp + 8, frame.len());
        if start + segment > self.max_frame {
            return Err(Refusal::Oversize((end - start).div_ceil(segment)));
        }
        set_payload(&mut headers, out.udp, segment);
        self.train = Some(Train { slot, headers, udp: out.udp, segment, next: start, end, arrived });
        self.counts.trains += 1;
        Ok(())
    }

    /// Judges the IP header. Frames of MAC control have none.
    fn judge_address(&self, filled: &Filled<'_>) -> Result<(), Refusal> {
        let frame = filled.bytes;
        let (ethertype, ip) =
            frame.get(STATIONS..).and_then(|rest| rest.split_first_chunk()).ok_or(Refusal::Malformed)?;
        let destination = match *ethertype {
            MAC_CONTROL => return Ok(()),
            IPV4 => {
                let header =
                    ip.first().and_then(|first| ip.get(..usize::from(first & 15) * 4)).unwrap_or_default();
                if header.len() < 20 || checksum(header) != 0 {
                    return Err(Refusal::BadChecksum);
                }
                IpAddr::from(*header[16..].first_chunk::<4>().ok_or(Refusal::Malformed)?)
            }
            IPV6 => {
                IpAddr::from(*ip.get(24..).and_then(|to| to.first_chunk::<16>()).ok_or(Refusal::Malformed)?)
            }
            _ => return Err(Refusal::Malformed),
        };
        let own = if filled.to_group { &self.groups } else { &self.addresses };
        if own.contains(&destination) { Ok(()) } else { Err(Refusal::OtherAddress) }
    }

    fn count(&mut self, refusal: &Refusal) {
        match refusal {
            Refusal::Tagged => self.counts.tagged += 1,
            Refusal::OtherAddress => self.counts.other_address += 1,
            Refusal::BadChecksum => self.counts.bad_ip_checksum += 1,
            Refusal::Oversize(frames) => self.counts.oversize += *frames as u64,
            Refusal::Malformed => self.counts.malformed += 1,
        }
    }

    pub(super) fn frame(&self, i: usize) -> Frame<'_> {
        let shown = &self.burst[i];
        let bytes = &self.ring.read(shown.slot).bytes[shown.start..shown.start + shown.len];
        if shown.headers_len == 0 {
            return Frame { a: bytes, b: &[] };
        }
        Frame { a: &shown.headers[..shown.headers_len], b: bytes }
    }

    pub(super) fn hides_id(&self, i: usize) -> bool {
        self.burst[i].hides_id
    }

    pub(super) fn arrived(&self, i: usize) -> Option<Nanos> {
        self.burst[i].arrived
    }

    /// Ends the burst, and returns the slots that it used up.
    pub(super) fn release(&mut self) {
        self.burst.clear();
        match &self.train {
            Some(train) => self.ring.release(train.slot),
            None => self.ring.release_all(),
        }
    }

    /// True if frames are known to wait.
    pub(super) fn has_frames(&self) -> bool {
        self.train.is_some() || self.ring.is_ready()
    }

    /// True if the rest of a train waits, which does not make the descriptor readable.
    pub(super) fn has_rest(&self) -> bool {
        self.train.is_some()
    }
}

impl Train {
    /// Returns the next datagram.
    fn show(&mut self) -> Shown {
        let len = self.segment.min(self.end - self.next);
        let mut headers = self.headers;
        if len < self.segment {
            set_payload(&mut headers, self.udp, len);
        }
        let start = self.next;
        self.next += len;
        let headers_len = self.udp + 8;
        let hides_id = headers[STATIONS..IP] == IPV4;
        Shown { headers, headers_len, slot: self.slot, start, len, hides_id, arrived: self.arrived }
    }
}

impl Shown {
    /// Puts the tag back that the kernel took out of the frame.
    fn put_back(&mut self, frame: &[u8], tag: u16) {
        self.headers[..STATIONS].copy_from_slice(&frame[..STATIONS]);
        self.headers[STATIONS..STATIONS + 2].copy_from_slice(&VLAN);
        self.headers[STATIONS + 2..STATIONS + 4].copy_from_slice(&tag.to_be_bytes());
        (self.headers_len, self.start) = (STATIONS + 4, STATIONS);
        self.len -= STATIONS;
    }
}

/// Sets the lengths for `payload` bytes behind the UDP header at `udp`; no UDP checksum, and over IPv4 no identification: each datagram
/// had its own.
fn set_payload(headers: &mut [u8; MAX_HEADERS], udp: usize, payload: usize) {
    headers[udp + 6..udp + 8].fill(0);
    if headers[STATIONS..IP] == IPV4 {
        headers[IP + 4..IP + 6].fill(0);
    }
    set_lengths(headers, udp, payload);
}

/// Converts the kernel's wall-clock stamp: subtracts its age from `now`.
fn arrival(now: Nanos, (seconds, nanos): (u32, u32)) -> Option<Nanos> {
    let wall = Duration::from(ClockId::CLOCK_REALTIME.now().ok()?);
    let stamp = Duration::new(seconds.into(), nanos);
    Some(now - wall.saturating_sub(stamp).into())
}
