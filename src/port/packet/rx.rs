//! Receiving: filled slots of the ring, cut into frames.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::time::ClockId;

use super::merge::{Merge, Older};
use super::ring::{Filled, Ring, VNET_HEADER};
use crate::BURST;
use crate::group::{StrayInbox, Target, target};
use crate::udp::headers::{MAX_HEADERS, Outgoing, checksum, set_lengths};
use roxie_base::frame::Frame;
use roxie_base::time::Nanos;

/// Station addresses in front of the EtherType, in bytes.
const STATIONS: usize = 12;
const IP: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const MAC_CONTROL: [u8; 2] = [0x88, 0x08];
const ROCE_V1: [u8; 2] = [0x89, 0x15];
const VLAN: [u8; 2] = [0x81, 0x00];
const SERVICE_VLAN: [u8; 2] = [0x88, 0xa8];
/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// The VLAN number in a tag. 0: the tag has a priority only.
const VLAN_NUMBER: u16 = 0x0fff;

/// Offset in a datagram of the source QPN's upper 8 bits, if it goes to a group: BTH, Q_Key, a reserved byte (IBTA
/// 9.3.3).
const SOURCE_UNIT: usize = 12 + 4 + 1;
/// Indices of the rings.
pub(super) const LONE: usize = 0;
pub(super) const TRAINS: usize = 1;
const MANAGEMENT: usize = 2;
const LOOPBACK: usize = 3;
/// Frames of a burst after which management datagrams go first: data does not shut them out.
const DATA_SHARE: usize = BURST / 4 * 3;
/// Flags of a frame that is handed over: it does not show its identification; its tag precedes it.
const HIDES_ID: u8 = 1;
const TAGGED: u8 = 2;

/// Receives from rings.
pub(super) struct Receiver {
    /// The rings of the interface: of lone frames, of trains, of management datagrams. Then the ring of the loopback
    /// interface, if other processes share the port.
    pub(super) rings: Vec<Ring>,
    merge: Merge,
    /// Frames that other processes handed over, if the port is shared. Each message is a byte of flags, the tag if
    /// there is one, and a frame without it.
    strays: Option<StrayInbox>,
    /// Length of the newest message in it.
    stray: usize,
    /// Addresses of this station.
    pub(super) addresses: Vec<IpAddr>,
    /// Addresses on VLANs, with their VLAN IDs.
    pub(super) vlans: Vec<(IpAddr, u16)>,
    /// Multicast groups that it joined.
    pub(super) groups: Vec<IpAddr>,
    /// A train whose datagrams are not all shown.
    train: Option<Train>,
    burst: Vec<Shown>,
    pub(super) max_frame: usize,
    /// True if arrival times are wanted.
    pub(super) stamps: bool,
    /// Value of `counts.packets` at the last [`Receiver::clear_errors`].
    packets_before: u64,
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
    pub(super) handed_over: u64,
    pub(super) strays_dropped: u64,
}

/// Where a frame's bytes lie.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// In a slot of a ring: index of the ring, number of the slot.
    Slot(usize, usize),
    /// In the inbox of strays.
    Stray,
}

/// A train in a ring.
struct Train {
    place: Place,
    destination: IpAddr,
    /// True if all processes that share the port received it.
    is_for_all: bool,
    tag: Option<u16>,
    /// Headers of a datagram of full length, without the tag.
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

/// A frame to show: made-up headers, then bytes of its place.
struct Shown {
    headers: [u8; MAX_HEADERS + TAG],
    headers_len: usize,
    /// The tag, which is put back last.
    tag: Option<u16>,
    place: Place,
    start: usize,
    len: usize,
    /// True if the frame was part of an IPv4 train, which does not show each identification.
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
    pub(super) fn new(
        rings: Vec<Ring>,
        addresses: Vec<IpAddr>,
        max_frame: usize,
        strays: Option<StrayInbox>,
    ) -> Receiver {
        Receiver {
            rings,
            merge: Merge::default(),
            strays,
            stray: 0,
            addresses,
            vlans: Vec::new(),
            groups: Vec::new(),
            train: None,
            burst: Vec::with_capacity(BURST),
            max_frame,
            stamps: false,
            packets_before: 0,
            counts: ReceiveCounts::default(),
        }
    }

    /// Takes up to [`BURST`] frames, first the rest of a train.
    pub(super) fn poll(&mut self, now: Nanos) -> usize {
        debug_assert!(self.burst.is_empty(), "rx_release comes before the next rx_burst");
        while self.burst.len() < BURST {
            let is_managements = self.burst.len() >= DATA_SHARE && self.has_management();
            if let Some(train) = self.train.as_mut().filter(|_| !is_managements) {
                let (destination, is_for_all) = (train.destination, train.is_for_all);
                let shown = train.show();
                if train.next == train.end {
                    self.train = None;
                }
                let offset = shown.start;
                self.take_or_hand_over(shown, offset, destination, is_for_all);
            } else if let Some(place) = self.next(is_managements) {
                if let Err(refusal) = self.accept(place, now) {
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

    /// True if a management datagram waits.
    fn has_management(&self) -> bool {
        self.rings.get(MANAGEMENT).is_some_and(Ring::is_ready)
    }

    /// Takes the next filled slot, of management if it is its turn, or a stray.
    fn next(&mut self, is_managements: bool) -> Option<Place> {
        if is_managements && let Some(slot) = self.rings.get_mut(MANAGEMENT).and_then(Ring::take) {
            return Some(Place::Slot(MANAGEMENT, slot));
        }
        let data = self.merge.next(&self.rings[LONE], &self.rings[TRAINS]);
        let data = data.map(|older| if older == Older::Lone { LONE } else { TRAINS });
        for i in data.into_iter().chain([LOOPBACK, MANAGEMENT]) {
            if let Some(slot) = self.rings.get_mut(i).and_then(Ring::take) {
                return Some(Place::Slot(i, slot));
            }
        }
        // A burst has one at most: there is one buffer.
        let strays = self.strays.as_mut().filter(|_| self.burst.is_empty())?;
        self.stray = strays.poll()?;
        Some(Place::Stray)
    }

    fn read(&self, place: Place) -> Filled<'_> {
        match place {
            Place::Slot(ring, slot) => self.rings[ring].read(slot),
            Place::Stray => {
                let message = self.strays.as_ref().map_or(&[][..], StrayInbox::bytes);
                let tag = message.get(1..3).filter(|_| message[0] & TAGGED != 0);
                let bytes = message.get(1 + tag.map_or(0, <[u8]>::len)..self.stray).unwrap_or_default();
                let vnet = &[0; VNET_HEADER];
                Filled {
                    bytes,
                    len: bytes.len(),
                    vnet,
                    segment: None,
                    tag: tag.map(|tag| u16::from_be_bytes([tag[0], tag[1]])),
                    is_service_tag: false,
                    to_group: false,
                    stamp: None,
                }
            }
        }
    }

    /// Judges a frame, and puts it into the burst, or its train in front.
    fn accept(&mut self, place: Place, now: Nanos) -> Result<(), Refusal> {
        let filled = self.read(place);
        let frame = filled.bytes;
        let stamp = filled.stamp.filter(|_| self.stamps);
        let arrived = stamp.and_then(|stamp| arrival(now, stamp));
        if let Some([VLAN | SERVICE_VLAN]) =
            frame.get(STATIONS..).and_then(|rest| rest.as_chunks().0.get(..1))
        {
            return Err(Refusal::Tagged);
        }
        if frame.len() < filled.len || filled.segment.is_none() && frame.len() > self.max_frame {
            return Err(Refusal::Oversize(1));
        }
        let Some((destination, offset)) = self.judge_address(&filled)? else {
            self.burst.push(Shown::whole(place, frame.len(), None, arrived));
            return Ok(());
        };
        let datagram = frame.get(offset..).ok_or(Refusal::Malformed)?;
        if self.is_own_multicast(place, &filled, datagram) {
            return Ok(());
        }
        // The filter of each process takes these.
        let is_for_all = self.strays.is_some()
            && matches!(target(datagram), Target::Service(_) | Target::Release(_) | Target::Multicast);
        let Some(segment) = filled.segment else {
            let mut shown = Shown::whole(place, frame.len(), filled.tag, arrived);
            if place == Place::Stray {
                shown.hides_id = self.strays.as_ref().is_some_and(|s| s.bytes()[0] & HIDES_ID != 0);
                self.show(shown);
            } else {
                self.take_or_hand_over(shown, offset, destination, is_for_all);
            }
            return Ok(());
        };
        // Short datagrams to QP1 that the kernel merged: no management datagram, and not to displace a train in front.
        if self.train.is_some() {
            return Err(Refusal::Malformed);
        }
        let mut headers: [u8; MAX_HEADERS] = *frame.first_chunk().ok_or(Refusal::Malformed)?;
        let out = Outgoing::parse(&headers, frame.len()).ok_or(Refusal::Malformed)?;
        let (next, end) = (out.udp + 8, frame.len());
        if next + segment > self.max_frame {
            return Err(Refusal::Oversize((end - next).div_ceil(segment)));
        }
        set_payload(&mut headers, out.udp, segment);
        let (udp, tag) = (out.udp, filled.tag);
        self.train =
            Some(Train { place, destination, is_for_all, tag, headers, udp, segment, next, end, arrived });
        self.counts.trains += 1;
        Ok(())
    }

    /// Judges the IP header. Returns the destination and the offset of the datagram; `None` for frames of MAC control,
    /// which have neither.
    fn judge_address(&self, filled: &Filled<'_>) -> Result<Option<(IpAddr, usize)>, Refusal> {
        let frame = filled.bytes;
        let (ethertype, ip) =
            frame.get(STATIONS..).and_then(|rest| rest.split_first_chunk()).ok_or(Refusal::Malformed)?;
        let (destination, header) = match *ethertype {
            ROCE_V1 => {
                let to = ip.get(24..).and_then(|to| to.first_chunk::<16>()).ok_or(Refusal::Malformed)?;
                (IpAddr::from(*to).to_canonical(), 40)
            }
            MAC_CONTROL => return Ok(None),
            IPV4 => {
                let header =
                    ip.first().and_then(|first| ip.get(..usize::from(first & 15) * 4)).unwrap_or_default();
                if header.len() < 20 || checksum(header) != 0 {
                    return Err(Refusal::BadChecksum);
                }
                let to = header[16..].first_chunk::<4>().ok_or(Refusal::Malformed)?;
                (IpAddr::from(*to), header.len())
            }
            IPV6 => {
                let to = ip.get(24..).and_then(|to| to.first_chunk::<16>()).ok_or(Refusal::Malformed)?;
                (IpAddr::from(*to), 40)
            }
            _ => return Err(Refusal::Malformed),
        };
        let own = if destination.is_multicast() { &self.groups } else { &self.addresses };
        let vlan = filled.tag.unwrap_or(0) & VLAN_NUMBER;
        let is_own = match vlan {
            0 => own.contains(&destination),
            vlan => self.vlans.contains(&(destination, vlan)),
        };
        if !is_own || filled.is_service_tag {
            // To an address of this station, on another VLAN.
            let is_known = own.contains(&destination) || self.vlans.iter().any(|(ip, _)| *ip == destination);
            return Err(if is_known { Refusal::Tagged } else { Refusal::OtherAddress });
        }
        if destination.is_multicast() != filled.to_group {
            return Err(Refusal::OtherAddress);
        }
        let udp = if *ethertype == ROCE_V1 { 0 } else { 8 };
        Ok(Some((destination, IP + header + udp)))
    }

    /// True if this process sent the frame to a group: the loopback layer has delivered it already.
    fn is_own_multicast(&self, place: Place, filled: &Filled<'_>, datagram: &[u8]) -> bool {
        let is_looped = matches!(place, Place::Slot(LOOPBACK, _)) && filled.to_group;
        let unit = datagram.get(SOURCE_UNIT).filter(|_| is_looped);
        unit.zip(self.strays.as_ref()).is_some_and(|(unit, strays)| strays.member().units().has(*unit))
    }

    /// Puts a frame into the burst, or passes it on to the process that it is for. `offset`: of the datagram in its
    /// place. `is_for_all`: every process has the frame.
    fn take_or_hand_over(&mut self, shown: Shown, offset: usize, destination: IpAddr, is_for_all: bool) {
        let Some(strays) = &self.strays else { return self.show(shown) };
        let bytes = self.bytes(&shown);
        let datagram = &bytes[offset - shown.start..];
        if strays.member().is_ours(datagram, destination) {
            self.show(shown);
        } else if !is_for_all {
            let headers = &shown.headers[..shown.headers_len];
            let hides_id = if shown.hides_id { HIDES_ID } else { 0 };
            let message = match shown.tag.map(u16::to_be_bytes) {
                Some(tag) => [&[hides_id | TAGGED], &tag[..], headers, bytes].concat(),
                None => [&[hides_id], headers, bytes].concat(),
            };
            if strays.member().hand_over(datagram, destination, &message) {
                self.counts.handed_over += 1;
            } else {
                self.counts.strays_dropped += 1;
            }
        }
    }

    /// Puts a frame into the burst, with its tag.
    fn show(&mut self, mut shown: Shown) {
        if let Some(tag) = shown.tag {
            let stations = self.bytes(&shown).first_chunk().copied().unwrap_or([0; STATIONS]);
            shown.put_back(stations, tag);
        }
        self.burst.push(shown);
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

    /// Returns the bytes of a frame behind its made-up headers.
    fn bytes(&self, shown: &Shown) -> &[u8] {
        &self.read(shown.place).bytes[shown.start..shown.start + shown.len]
    }

    pub(super) fn frame(&self, i: usize) -> Frame<'_> {
        let shown = &self.burst[i];
        let bytes = self.bytes(shown);
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
        let held = self.train.as_ref().map(|train| train.place);
        for (i, ring) in self.rings.iter_mut().enumerate() {
            match held {
                Some(Place::Slot(of, slot)) if of == i => ring.release(slot),
                _ => ring.release_all(),
            }
        }
    }

    /// Clears the errors of the rings' sockets if no frame has come since the last call: a link that goes down leaves
    /// one, and while it is there the descriptor counts as readable.
    pub(super) fn clear_errors(&mut self) {
        if std::mem::replace(&mut self.packets_before, self.counts.packets) == self.counts.packets {
            self.rings.iter().for_each(Ring::clear_error);
        }
    }

    /// Returns descriptors that are readable when frames arrive.
    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.rings.iter().map(Ring::fd).chain(self.strays.as_ref().map(StrayInbox::fd)).collect()
    }

    /// True if frames are known to wait.
    pub(super) fn has_frames(&self) -> bool {
        self.train.is_some() || self.rings.iter().any(Ring::is_ready)
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
        let hides_id = headers[STATIONS..IP] == IPV4;
        let mut shown = Shown::whole(self.place, len, self.tag, self.arrived);
        shown.headers[..MAX_HEADERS].copy_from_slice(&headers);
        Shown { headers_len: self.udp + 8, start, hides_id, ..shown }
    }
}

impl Shown {
    /// Shows a lone frame of `len` bytes.
    fn whole(place: Place, len: usize, tag: Option<u16>, arrived: Option<Nanos>) -> Shown {
        let headers = [0; MAX_HEADERS + TAG];
        Shown { headers, headers_len: 0, tag, place, start: 0, len, hides_id: false, arrived }
    }

    /// Puts the tag back that the kernel took out of the frame. `stations`: the first bytes of a frame without made-up
    /// headers.
    fn put_back(&mut self, stations: [u8; STATIONS], tag: u16) {
        if self.headers_len == 0 {
            self.headers[..STATIONS].copy_from_slice(&stations);
            (self.headers_len, self.start) = (STATIONS, STATIONS);
            self.len = self.len.saturating_sub(STATIONS);
        }
        self.headers.copy_within(STATIONS..self.headers_len, STATIONS + TAG);
        self.headers[STATIONS..STATIONS + 2].copy_from_slice(&VLAN);
        self.headers[STATIONS + 2..STATIONS + TAG].copy_from_slice(&tag.to_be_bytes());
        self.headers_len += TAG;
    }
}

/// Sets the lengths for `payload` bytes behind the UDP header at `udp`; no UDP checksum, and over IPv4 no
/// identification: each datagram had its own.
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
