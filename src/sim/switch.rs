//! A switch in virtual time: any number of stations, and weather between them.
//!
//! Frames go by their destination address to one station, or to all others. Each copy of a frame is asked of a
//! [`Weather`], which may lose, double, delay or corrupt it. The switch counts every copy exactly once, so that what
//! the stations count can be held against it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::slots::{PortCounts, Slots};
use crate::flow::FlowMatch;
use crate::frame::{Frame, FrameMut};
use crate::port::{BURST, LinkChange, Port, PortInfo, Received, TxId};
use crate::time::Nanos;
use crate::wire::net::{ether_type, ipv4_checksum};

/// How long a frame takes through the switch.
pub const LATENCY: Nanos = Nanos(1_000);
/// Ethernet header and a VLAN tag: what a frame has beyond the MTU.
const L2_OVERHEAD: usize = 18;

/// One arrival of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// How much later than without trouble.
    pub delay: Nanos,
    /// Which bit is flipped.
    pub flipped_bit: Option<usize>,
    /// A queue on its way was long: it is marked, if its sender let it be.
    pub marked: bool,
}

/// What happens to frames between two stations.
pub trait Weather: Send {
    /// Decides about one frame on its way. `arrivals` is empty: what is put there arrives, so that nothing is a loss and two
    /// entries are a duplicate.
    fn judge(&mut self, now: Nanos, from: usize, to: usize, frame: &[u8], arrivals: &mut Vec<Arrival>);
}

/// Nothing ever happens.
#[derive(Clone, Copy, Debug)]
pub struct Calm;

impl Weather for Calm {
    fn judge(&mut self, _: Nanos, _: usize, _: usize, _: &[u8], arrivals: &mut Vec<Arrival>) {
        arrivals.push(Arrival::default());
    }
}

/// Marks a frame as having met a long queue (RFC 3168 5), if its sender declared it ECN-capable. False: it did not, or it is no IP
/// packet, and nothing has changed.
pub fn mark(frame: &mut [u8]) -> bool {
    const CE: u8 = 3;
    let is_capable = |ecn: u8| matches!(ecn, 1 | 2);
    let Some(tagged) = frame.get(12..14).map(|tag| *tag == ether_type::VLAN.to_be_bytes()) else {
        return false;
    };
    let l3 = if tagged { 18 } else { 14 };
    let version = frame.get(l3).map_or(0, |byte| byte >> 4);
    match (version, frame.get_mut(l3..l3 + 20)) {
        (4, Some(header)) if is_capable(header[1] & 3) => {
            let more = u64::from(CE - (header[1] & 3));
            header[1] |= CE;
            let sum = u64::from(!u16::from_be_bytes([header[10], header[11]])) + more;
            header[10..12].copy_from_slice(&ipv4_checksum(sum).to_be_bytes());
            true
        }
        (6, Some(header)) if is_capable(header[1] >> 4 & 3) => {
            header[1] |= CE << 4;
            true
        }
        _ => false,
    }
}

/// What the switch saw of one station. Copies of a frame to a group count for each receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames that the station sent.
    pub sent: u64,
    /// Bytes of the frames that were sent.
    pub sent_bytes: u64,
    /// Frames that were for it, by the sender's count.
    pub offered: u64,
    /// Those that the weather took away.
    pub dropped: u64,
    /// Arrivals more than one of the same frame.
    pub duplicated: u64,
    /// Arrivals with a flipped bit.
    pub corrupted: u64,
    /// Arrivals after their time.
    pub delayed: u64,
    /// Arrivals that were marked.
    pub marked: u64,
    /// Frames lost because the link of one of the two stations was down.
    pub link_down: u64,
    /// Frames that were too long for its link when they came.
    pub too_long: u64,
    /// Frames that it took.
    pub delivered: u64,
    /// Bytes of the frames that were delivered.
    pub delivered_bytes: u64,
    /// Frames that it sent to an address that no station has.
    pub nobody: u64,
}

impl Traffic {
    /// Frames that are on their way to it, if all were counted right.
    pub fn under_way(&self) -> u64 {
        let came = self.offered + self.duplicated;
        came - self.dropped - self.link_down - self.too_long - self.delivered
    }
}

struct Station {
    mac: [u8; 6],
    up: bool,
    max_frame: usize,
    /// Frames on their way to it, by when they arrive and in which order they were sent.
    inbox: BTreeMap<(Nanos, u64), Vec<u8>>,
    traffic: Traffic,
}

struct Fabric {
    stations: Vec<Station>,
    weather: Box<dyn Weather>,
    arrivals: Vec<Arrival>,
    /// Buffers that nobody uses.
    spare: Vec<Vec<u8>>,
    sequence: u64,
}

impl Fabric {
    /// Takes a frame from a station.
    fn forward(&mut self, now: Nanos, from: usize, frame: &[u8]) {
        let sender = &mut self.stations[from];
        sender.traffic.sent += 1;
        sender.traffic.sent_bytes += frame.len() as u64;
        let up = sender.up;
        let target: [u8; 6] = frame[..6].try_into().expect("a frame has an Ethernet header");
        if target[0] & 1 == 1 {
            for to in (0..self.stations.len()).filter(|to| *to != from) {
                self.carry(now, from, to, frame, up);
            }
            return;
        }
        match self.stations.iter().position(|station| station.mac == target) {
            Some(to) => self.carry(now, from, to, frame, up),
            None => self.stations[from].traffic.nobody += 1,
        }
    }

    /// One copy to one station.
    fn carry(&mut self, now: Nanos, from: usize, to: usize, frame: &[u8], sender_up: bool) {
        let Fabric { stations, weather, arrivals, spare, sequence } = self;
        let station = &mut stations[to];
        station.traffic.offered += 1;
        if !sender_up || !station.up {
            station.traffic.link_down += 1;
            return;
        }
        arrivals.clear();
        weather.judge(now, from, to, frame, arrivals);
        let traffic = &mut station.traffic;
        traffic.dropped += u64::from(arrivals.is_empty());
        traffic.duplicated += (arrivals.len() as u64).saturating_sub(1);
        for arrival in arrivals.iter() {
            let mut copy = spare.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(frame);
            traffic.marked += u64::from(arrival.marked && mark(&mut copy));
            if let Some(bit) = arrival.flipped_bit {
                copy[bit / 8 % frame.len()] ^= 1 << (bit % 8);
                traffic.corrupted += 1;
            }
            traffic.delayed += u64::from(arrival.delay > Nanos::ZERO);
            *sequence += 1;
            station.inbox.insert((now + LATENCY + arrival.delay, *sequence), copy);
        }
    }

    /// The next frame that has arrived at a station.
    fn take(&mut self, now: Nanos, station: usize) -> Option<Vec<u8>> {
        let Fabric { stations, spare, .. } = self;
        let station = &mut stations[station];
        loop {
            let due = station.inbox.first_entry().filter(|entry| entry.key().0 <= now)?;
            let frame = due.remove();
            let fits = frame.len() <= station.max_frame;
            if station.up && fits {
                station.traffic.delivered += 1;
                station.traffic.delivered_bytes += frame.len() as u64;
                return Some(frame);
            }
            station.traffic.link_down += u64::from(!station.up);
            station.traffic.too_long += u64::from(station.up && !fits);
            spare.push(frame);
        }
    }
}

/// The switch. Clones are handles to the same.
#[derive(Clone)]
pub struct Switch {
    fabric: Arc<Mutex<Fabric>>,
}

impl Switch {
    /// A switch without stations.
    pub fn new(weather: Box<dyn Weather>) -> Switch {
        let fabric =
            Fabric { stations: Vec::new(), weather, arrivals: Vec::new(), spare: Vec::new(), sequence: 0 };
        Switch { fabric: Arc::new(Mutex::new(fabric)) }
    }

    /// A station that panicked leaves whole frames behind, so its poison means nothing here.
    fn fabric(&self) -> MutexGuard<'_, Fabric> {
        self.fabric.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A port of the next station, or of station `again`, whose former port is gone.
    pub fn port(&self, config: &SwitchPortConfig, again: Option<usize>) -> SwitchPort {
        let max_frame = config.mtu + L2_OVERHEAD;
        let mut fabric = self.fabric();
        let number = again.unwrap_or(fabric.stations.len());
        match fabric.stations.get_mut(number) {
            Some(station) => (station.mac, station.max_frame) = (config.mac, max_frame),
            None => fabric.stations.push(Station {
                mac: config.mac,
                up: true,
                max_frame,
                inbox: BTreeMap::new(),
                traffic: Traffic::default(),
            }),
        }
        drop(fabric);
        SwitchPort {
            info: PortInfo {
                name: "switch".into(),
                interface: Some(format!("sim{}", number + 1)),
                mode: format!("virtual time, {} slots", config.slots),
                mac: config.mac,
                mtu: config.mtu,
                max_frame,
                raw_frames: true,
            },
            number,
            switch: self.clone(),
            split: config.split.unwrap_or(usize::MAX),
            slots: config.slots,
            open: Slots::default(),
            burst: Vec::new(),
            counts: PortCounts::default(),
        }
    }

    /// Plugs a station's cable in or out. What is on its way to it when it is out is lost.
    pub fn set_up(&self, station: usize, up: bool) {
        self.fabric().stations[station].up = up;
    }

    /// A frame comes to a station from outside, whatever the weather.
    pub fn inject(&self, now: Nanos, to: usize, frame: &[u8]) {
        let mut fabric = self.fabric();
        let Fabric { stations, sequence, .. } = &mut *fabric;
        let station = &mut stations[to];
        station.traffic.offered += 1;
        if !station.up {
            station.traffic.link_down += 1;
            return;
        }
        *sequence += 1;
        station.inbox.insert((now + LATENCY, *sequence), frame.to_vec());
    }

    /// What it saw of a station.
    pub fn traffic(&self, station: usize) -> Traffic {
        self.fabric().stations[station].traffic
    }
}

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Switch").field("stations", &self.fabric().stations.len()).finish_non_exhaustive()
    }
}

/// What a station's port is like.
#[derive(Clone, Debug)]
pub struct SwitchPortConfig {
    /// The station address, by which the switch finds the port.
    pub mac: [u8; 6],
    /// Link MTU in bytes.
    pub mtu: usize,
    /// Frames that one turn may send; for more the port has no room.
    pub slots: usize,
    /// Shows frames in two pieces that meet at this offset.
    pub split: Option<usize>,
}

/// A station's port.
#[derive(Debug)]
pub struct SwitchPort {
    info: PortInfo,
    number: usize,
    switch: Switch,
    split: usize,
    slots: usize,
    open: Slots,
    burst: Vec<Vec<u8>>,
    counts: PortCounts,
}

impl Port for SwitchPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        debug_assert!(self.burst.is_empty(), "rx_release comes before the next rx_burst");
        let mut fabric = self.switch.fabric();
        while self.burst.len() < BURST
            && let Some(frame) = fabric.take(now, self.number)
        {
            self.counts.received(&frame);
            self.burst.push(frame);
        }
        self.burst.len()
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        let bytes = &self.burst[i];
        let (a, b) = bytes.split_at(self.split.min(bytes.len()));
        Received { frame: Frame { a, b }, ip_id_hidden: false, arrived: None }
    }

    fn rx_release(&mut self) {
        if !self.burst.is_empty() {
            self.switch.fabric().spare.append(&mut self.burst);
        }
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        if len > self.info.max_frame {
            self.counts.tx_too_long += 1;
            return None;
        }
        if self.open.len() >= self.slots {
            self.counts.tx_stalled += 1;
            return None;
        }
        let mut frame = self.switch.fabric().spare.pop().unwrap_or_default();
        frame.resize(len, 0);
        Some(self.open.open(frame))
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        let frame = self.open.frame(id);
        let at = self.split.min(frame.len());
        let (a, b) = frame.split_at_mut(at);
        FrameMut { a, b }
    }

    fn tx_commit(&mut self, id: TxId) {
        self.open.commit(id);
    }

    fn tx_cancel(&mut self, id: TxId) {
        self.switch.fabric().spare.push(self.open.cancel(id));
    }

    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        let mut fabric = self.switch.fabric();
        for frame in self.open.drain() {
            self.counts.sent(&frame);
            fabric.forward(now, self.number, &frame);
            fabric.spare.push(frame);
        }
        Ok(())
    }

    fn next_event(&self) -> Nanos {
        let fabric = self.switch.fabric();
        fabric.stations[self.number].inbox.first_key_value().map_or(Nanos::MAX, |(key, _)| key.0)
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        self.info.follow(change);
        let mut fabric = self.switch.fabric();
        let station = &mut fabric.stations[self.number];
        (station.max_frame, station.mac) = (self.info.max_frame, self.info.mac);
        Ok(())
    }

    /// A switch brings what is for this station, and for groups: nothing has to be asked for.
    fn steer(&mut self, _flows: &[FlowMatch]) -> io::Result<()> {
        Ok(())
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        self.counts.list(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACS: [[u8; 6]; 3] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]];

    fn stations(weather: Box<dyn Weather>) -> (Switch, Vec<SwitchPort>) {
        let switch = Switch::new(weather);
        let config = |mac| SwitchPortConfig { mac, mtu: 100, slots: 2, split: Some(7) };
        let ports = MACS.iter().map(|mac| switch.port(&config(*mac), None)).collect();
        (switch, ports)
    }

    fn send(port: &mut SwitchPort, to: [u8; 6], length: usize) {
        let id = port.tx_alloc(length).expect("room");
        port.tx_frame(&id).write(0, &to);
        port.tx_frame(&id).write(6, &vec![7; length - 6]);
        port.tx_commit(id);
        port.tx_flush(Nanos::ZERO).expect("memory does not fail");
    }

    fn received(port: &mut SwitchPort, now: Nanos) -> Vec<usize> {
        let count = port.rx_burst(now);
        let lengths = (0..count).map(|i| port.rx_frame(i).frame.len()).collect();
        port.rx_release();
        lengths
    }

    #[test]
    fn a_frame_goes_to_its_station_or_to_all_others_and_takes_its_time() {
        let (switch, mut ports) = stations(Box::new(Calm));
        send(&mut ports[0], MACS[2], 20);
        send(&mut ports[0], [1, 0, 0x5e, 0, 0, 1], 30);
        send(&mut ports[0], [2; 6], 40);
        assert!(received(&mut ports[2], Nanos(LATENCY.0 - 1)).is_empty());
        assert_eq!(ports[2].next_event(), LATENCY);
        assert!(received(&mut ports[0], LATENCY).is_empty());
        assert_eq!(received(&mut ports[1], LATENCY), [30]);
        assert_eq!(received(&mut ports[2], LATENCY), [20, 30]);
        assert_eq!(switch.traffic(0), Traffic { sent: 3, sent_bytes: 90, nobody: 1, ..Traffic::default() });
    }

    #[test]
    fn what_a_station_cannot_take_is_lost_and_counted() {
        let (switch, mut ports) = stations(Box::new(Calm));
        send(&mut ports[0], MACS[1], 110);
        ports[1].follow(&LinkChange::Mtu(50)).expect("memory does not fail");
        send(&mut ports[0], MACS[1], 20);
        assert_eq!(received(&mut ports[1], LATENCY), [20]);
        send(&mut ports[0], MACS[1], 21);
        switch.set_up(1, false);
        send(&mut ports[0], MACS[1], 22);
        assert!(received(&mut ports[1], LATENCY).is_empty());
        switch.set_up(1, true);
        let traffic = switch.traffic(1);
        assert_eq!((traffic.too_long, traffic.link_down, traffic.under_way()), (1, 2, 0));
        assert!(ports[1].tx_alloc(100).is_none(), "longer than its link");
    }

    #[test]
    fn a_turn_has_no_more_room_than_its_slots() {
        let (_switch, mut ports) = stations(Box::new(Calm));
        let ids = [ports[0].tx_alloc(20), ports[0].tx_alloc(20), ports[0].tx_alloc(20)];
        assert_eq!(ids.each_ref().map(Option::is_some), [true, true, false]);
        ids.into_iter().flatten().for_each(|id| ports[0].tx_cancel(id));
        ports[0].tx_flush(Nanos::ZERO).expect("memory does not fail");
        assert!(ports[0].tx_alloc(20).is_some());
    }

    #[test]
    fn what_is_ecn_capable_is_marked_and_all_else_is_left() {
        use crate::wire::{Bth, Ext, FlowSpec, Gid, Icrc, MAX_HEADERS, Opcode, RoceVersion, Template, parse};
        let ip = |ipv6: bool, n: u8| -> std::net::IpAddr {
            if ipv6 {
                [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n].into()
            } else {
                [192, 0, 2, n].into()
            }
        };
        for (ipv6, vlan, class) in [false, true]
            .into_iter()
            .flat_map(|six| [None, Some(5)].map(|tag| (six, tag)))
            .flat_map(|(six, tag)| [0, 1, 2, 3, 48 << 2 | 2, 63 << 2].map(|class| (six, tag, class)))
        {
            let template = Template::new(&FlowSpec {
                src_mac: MACS[0],
                dst_mac: MACS[1],
                vlan,
                src: Gid::from(ip(ipv6, 1)),
                dst: Gid::from(ip(ipv6, 2)),
                traffic_class: class,
                flow_label: 0,
                hop_limit: 64,
                source_port: 0xc000,
                version: RoceVersion::V2,
            });
            let mut headers = [0; MAX_HEADERS];
            let bth = Bth { opcode: Opcode::RC_SEND_ONLY, ..Bth::default() };
            let at = template.write_headers(&mut headers, &bth, &Ext::None, 0);
            let mut frame = vec![0; template.frame_len(bth.opcode, 0)];
            frame[..at].copy_from_slice(&headers[..at]);
            template.seal(&mut FrameMut { a: &mut frame, b: &mut [] });
            let before = frame.clone();
            let capable = matches!(class & 3, 1 | 2);
            assert_eq!(mark(&mut frame), capable, "class {class}");
            assert_eq!(frame != before, capable);
            if !ipv6 {
                let header = &frame[if vlan.is_some() { 18 } else { 14 }..][..20];
                let (words, _) = header.as_chunks::<2>();
                let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
                assert_eq!((sum >> 16) + (sum & 0xffff), 0xffff, "the checksum of the header");
            }
            let packet = parse(&Frame::whole(&frame)).expect("a good packet");
            assert_eq!(packet.traffic_class(), if capable { class | 3 } else { class });
            assert_eq!(packet.check_icrc(&Frame::whole(&frame)), Icrc::Ok, "the ICRC leaves the class out");
        }
        assert!(!mark(&mut [0x45; 20]) && !mark(&mut []), "too short to be anything");
    }

    /// Doubles each frame; the copy comes late and harmed.
    struct Storm;

    impl Weather for Storm {
        fn judge(&mut self, _: Nanos, _: usize, to: usize, _: &[u8], arrivals: &mut Vec<Arrival>) {
            if to != 0 {
                arrivals.push(Arrival::default());
                arrivals.push(Arrival { delay: Nanos(50), flipped_bit: Some(8 * 6), marked: false });
            }
        }
    }

    #[test]
    fn the_weather_decides_what_arrives_and_everything_is_counted_once() {
        let (switch, mut ports) = stations(Box::new(Storm));
        send(&mut ports[1], MACS[0], 20);
        send(&mut ports[0], MACS[1], 20);
        assert_eq!(ports[1].rx_burst(LATENCY + Nanos(50)), 2);
        assert_eq!(ports[1].rx_frame(1).frame.to_vec()[6], 6);
        ports[1].rx_release();
        assert!(received(&mut ports[0], Nanos::from_millis(1)).is_empty());
        let (zero, one) = (switch.traffic(0), switch.traffic(1));
        assert_eq!((zero.dropped, zero.under_way()), (1, 0));
        assert_eq!((one.duplicated, one.corrupted, one.delayed, one.under_way()), (1, 1, 1, 0));
    }
}
