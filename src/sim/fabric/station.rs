//! The edge of a fabric: a ring of frames that wait for a link, and those that have come.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::classify;
use super::link::Line;
use super::silence::Silence;
use super::slots::{PortCounts, Slots};
use super::topology::StationConfig;
use crate::flow::FlowMatch;
use crate::frame::{Frame, FrameMut};
use crate::port::{BURST, LinkChange, Port, PortInfo, Received, TxId};
use crate::time::Nanos;
use crate::wire::mac_control::MacControl;

/// Ethernet header and a VLAN tag: what a frame has beyond the MTU.
const L2_OVERHEAD: usize = 18;

/// What a station counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StationStats {
    /// Frames that have begun to leave.
    pub sent: u64,
    /// Bytes of the frames that have begun to leave.
    pub sent_bytes: u64,
    /// Frames that came to it.
    pub delivered: u64,
    /// Bytes of the frames that came to it.
    pub delivered_bytes: u64,
    /// MAC control frames that its port heeded and kept.
    pub control: u64,
    /// Frames that came and were longer than its link carries.
    pub too_long: u64,
    /// Frames from outside for which its ring had no room.
    pub refused: u64,
}

#[derive(Debug)]
pub(super) struct Station {
    pub(super) config: StationConfig,
    line: Line,
    ring: VecDeque<Vec<u8>>,
    silence: Silence,
    /// What has come, and when its last bit did.
    pub(super) inbox: VecDeque<(Nanos, Vec<u8>)>,
    /// Its host wanted a slot and got none.
    pub(super) starved: bool,
    /// Buffers that nobody uses.
    pub(super) spare: Vec<Vec<u8>>,
    pub(super) stats: StationStats,
    /// The time, as far as the station knows.
    pub(super) now: Nanos,
}

impl Station {
    pub(super) fn new(config: StationConfig) -> Station {
        Station {
            line: Line::new(config.link),
            config,
            ring: VecDeque::new(),
            silence: Silence::default(),
            inbox: VecDeque::new(),
            starved: false,
            spare: Vec::new(),
            stats: StationStats::default(),
            now: Nanos::ZERO,
        }
    }

    fn max_frame(&self) -> usize {
        self.config.mtu + L2_OVERHEAD
    }

    /// Slots in use: the frame on the line has its own until it has left.
    pub(super) fn in_use(&self, now: Nanos) -> usize {
        self.ring.len() + usize::from(self.line.is_busy(now))
    }

    /// Its host waited for a slot, and half of them are free again.
    pub(super) fn has_room_again(&self, now: Nanos) -> bool {
        self.starved && self.in_use(now) <= self.config.slots / 2
    }

    /// A frame for the link. False: no room.
    pub(super) fn push(&mut self, now: Nanos, frame: Vec<u8>) -> Result<(), Vec<u8>> {
        if self.in_use(now) >= self.config.slots || frame.len() > self.max_frame() {
            self.stats.refused += 1;
            return Err(frame);
        }
        self.ring.push_back(frame);
        Ok(())
    }

    /// The next frame, if it may leave now, and when it is at the other end.
    pub(super) fn begin(&mut self, now: Nanos) -> Option<(Vec<u8>, Nanos)> {
        self.ring.front()?;
        self.silence.heed(now, self.line.link().rate);
        if self.line.is_busy(now) {
            return None;
        }
        // A priority that is silent holds up itself alone.
        let next = self.ring.iter().position(|frame| self.silent_until(frame) <= now)?;
        let frame = self.ring.remove(next)?;
        self.stats.sent += 1;
        self.stats.sent_bytes += frame.len() as u64;
        let left = self.line.begin(now, frame.len());
        Some((frame, left + self.line.link().delay))
    }

    /// When the first of the priorities that have frames may speak.
    fn first_voice(&self) -> Nanos {
        let mut first = Nanos::MAX;
        for frame in &self.ring {
            first = first.min(self.silent_until(frame));
            // Nothing speaks before what may speak now.
            if first <= self.now {
                break;
            }
        }
        first
    }

    fn silent_until(&self, frame: &[u8]) -> Nanos {
        let Some(heeds) = &self.config.heeds_pauses else { return Nanos::ZERO };
        self.silence.until(classify::look(frame).priority(&heeds.priorities))
    }

    /// When [`Station::begin`] may have something, or a slot is free that its host waits for; `Nanos::MAX`: when a frame is pushed.
    pub(super) fn wakes(&self) -> Nanos {
        if self.ring.is_empty() {
            return if self.starved { self.line.free_at() } else { Nanos::MAX };
        }
        let silent_until = match self.config.heeds_pauses {
            None => Nanos::ZERO,
            Some(_) => self.first_voice(),
        };
        silent_until.min(self.silence.changes()).max(self.line.free_at())
    }

    /// When half of the slots are free. `Nanos::MAX`: it is silent, and nobody knows.
    fn room_at(&self) -> Nanos {
        if !self.line.is_busy(self.now)
            && !self.ring.is_empty()
            && self.config.heeds_pauses.is_some()
            && self.first_voice() > self.now
        {
            return Nanos::MAX;
        }
        let leave = self.ring.len().saturating_sub(self.config.slots / 2);
        let link = self.line.link();
        let bytes: u64 = self.ring.iter().take(leave).map(|frame| link.wire_bytes(frame.len())).sum();
        self.line.free_at() + link.rate.nanos_for(bytes)
    }

    /// A frame has come entirely. False: nobody is to look at it.
    pub(super) fn deliver(&mut self, now: Nanos, frame: Vec<u8>) -> bool {
        if let Some(heeds) = &self.config.heeds_pauses
            && let Some(control) = MacControl::parse(&Frame::whole(&frame))
        {
            let response = heeds.response.unwrap_or(self.line.link().rate.pause_response());
            self.silence.ask(now + response, control);
            self.stats.control += 1;
            self.spare.push(frame);
            return false;
        }
        if frame.len() > self.max_frame() {
            self.stats.too_long += 1;
            self.spare.push(frame);
            return false;
        }
        self.stats.delivered += 1;
        self.stats.delivered_bytes += frame.len() as u64;
        self.inbox.push_back((now, frame));
        true
    }
}

/// A handle to a station: the fabric's, and its port's.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Station>>);

impl Shared {
    pub(super) fn new(station: Station) -> Shared {
        Shared(Arc::new(Mutex::new(station)))
    }

    /// A host that panicked leaves whole frames behind, so its poison means nothing here.
    pub(super) fn get(&self) -> MutexGuard<'_, Station> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A host's port at the edge of a fabric. Its ring has so many slots, and drains at the rate of its link.
#[derive(Debug)]
pub struct StationPort {
    info: PortInfo,
    station: Shared,
    split: usize,
    open: Slots,
    burst: Vec<(Nanos, Vec<u8>)>,
    counts: PortCounts,
}

impl StationPort {
    pub(super) fn new(number: usize, station: Shared) -> StationPort {
        let config = station.get().config.clone();
        let info = PortInfo {
            name: "fabric".into(),
            interface: Some(format!("sim{}", number + 1)),
            mode: format!("virtual time, {} of {} slots", config.link.rate, config.slots),
            mac: config.mac,
            mtu: config.mtu,
            max_frame: config.mtu + L2_OVERHEAD,
            raw_frames: true,
        };
        StationPort {
            info,
            station,
            split: config.split.unwrap_or(usize::MAX),
            open: Slots::default(),
            burst: Vec::new(),
            counts: PortCounts::default(),
        }
    }
}

impl Port for StationPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        debug_assert!(self.burst.is_empty(), "rx_release comes before the next rx_burst");
        let mut station = self.station.get();
        station.now = now;
        while self.burst.len() < BURST
            && station.inbox.front().is_some_and(|(arrived, _)| *arrived <= now)
            && let Some((arrived, frame)) = station.inbox.pop_front()
        {
            self.counts.received(&frame);
            self.burst.push((arrived, frame));
        }
        self.burst.len()
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        let (arrived, frame) = &self.burst[i];
        let (a, b) = frame.split_at(self.split.min(frame.len()));
        Received { frame: Frame { a, b }, ip_id_hidden: false, arrived: Some(*arrived) }
    }

    fn rx_release(&mut self) {
        if !self.burst.is_empty() {
            self.station.get().spare.extend(self.burst.drain(..).map(|(_, frame)| frame));
        }
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        if len > self.info.max_frame {
            self.counts.tx_too_long += 1;
            return None;
        }
        let mut station = self.station.get();
        if station.in_use(station.now) + self.open.len() >= station.config.slots {
            self.counts.tx_stalled += 1;
            station.starved = true;
            return None;
        }
        let mut frame = station.spare.pop().unwrap_or_default();
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
        self.station.get().spare.push(self.open.cancel(id));
    }

    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        let mut station = self.station.get();
        station.now = now;
        for frame in self.open.drain() {
            self.counts.sent(&frame);
            station.push(now, frame).expect("its slot was given out");
        }
        Ok(())
    }

    fn tx_pending(&self) -> bool {
        let station = self.station.get();
        station.in_use(station.now) >= station.config.slots
    }

    fn next_event(&self) -> Nanos {
        let station = self.station.get();
        let arrival = station.inbox.front().map_or(Nanos::MAX, |(arrived, _)| *arrived);
        let room = if station.starved { station.room_at() } else { Nanos::MAX };
        arrival.min(room)
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        self.info.follow(change);
        let config = &mut self.station.get().config;
        (config.mtu, config.mac) = (self.info.mtu, self.info.mac);
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
