//! Stations at the edge of a fabric: a transmit ring in front of a link, and an inbox.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::classify;
use super::link::Line;
use super::pause_state::PauseState;
use super::slots::{PortCounts, Slots};
use super::topology::StationConfig;
use roxie_base::flow::FlowMatch;
use roxie_base::time::Nanos;
use roxie_port::{BURST, Carries, LinkChange, Port, PortInfo, Received, TxId};
use roxie_wire::frame::{Frame, FrameMut};
use roxie_wire::mac_control::MacControl;

/// Ethernet header and VLAN tag: bytes of a frame beyond the MTU.
const L2_OVERHEAD: usize = 18;

/// Counters of a station.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StationStats {
    /// Frames that started to leave.
    pub sent: u64,
    /// Bytes of the frames that started to leave.
    pub sent_bytes: u64,
    /// Frames received.
    pub delivered: u64,
    /// Bytes of the frames received.
    pub delivered_bytes: u64,
    /// MAC control frames consumed by the port.
    pub control: u64,
    /// Received frames longer than the link's MTU allows.
    pub too_long: u64,
    /// External frames rejected because the ring was full or the frame too long.
    pub refused: u64,
}

#[derive(Debug)]
pub(super) struct Station {
    pub(super) config: StationConfig,
    line: Line,
    ring: VecDeque<Vec<u8>>,
    pause_state: PauseState,
    /// Received frames, with the arrival time of the last bit.
    pub(super) inbox: VecDeque<(Nanos, Vec<u8>)>,
    /// True if the host failed to get a slot.
    pub(super) starved: bool,
    /// Free buffers.
    pub(super) spare: Vec<Vec<u8>>,
    pub(super) stats: StationStats,
    /// Current time, as of the last call.
    pub(super) now: Nanos,
}

impl Station {
    pub(super) fn new(config: StationConfig) -> Station {
        Station {
            line: Line::new(config.link),
            config,
            ring: VecDeque::new(),
            pause_state: PauseState::default(),
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

    /// Returns the slots in use. The frame on the line keeps its slot until its last bit has left.
    pub(super) fn in_use(&self, now: Nanos) -> usize {
        self.ring.len() + usize::from(self.line.is_busy(now))
    }

    /// Returns true if the host waits for a slot and half of the slots are free again.
    pub(super) fn has_room_again(&self, now: Nanos) -> bool {
        self.starved && self.in_use(now) <= self.config.slots / 2
    }

    /// Queues a frame for the link. Returns the frame if the ring is full or the frame too long.
    pub(super) fn push(&mut self, now: Nanos, frame: Vec<u8>) -> Result<(), Vec<u8>> {
        if self.in_use(now) >= self.config.slots || frame.len() > self.max_frame() {
            self.stats.refused += 1;
            return Err(frame);
        }
        self.ring.push_back(frame);
        Ok(())
    }

    /// Takes the next frame that may leave now, with its arrival time at the other end.
    pub(super) fn begin(&mut self, now: Nanos) -> Option<(Vec<u8>, Nanos)> {
        self.ring.front()?;
        self.pause_state.apply_due(now, self.line.link().rate);
        if self.line.is_busy(now) {
            return None;
        }
        // A paused priority blocks only its own frames.
        let next = self.ring.iter().position(|frame| self.paused_until(frame) <= now)?;
        let frame = self.ring.remove(next)?;
        self.stats.sent += 1;
        self.stats.sent_bytes += frame.len() as u64;
        let departs = self.line.begin(now, frame.len());
        Some((frame, departs + self.line.link().delay))
    }

    /// Returns when the first priority with queued frames may send.
    fn first_voice(&self) -> Nanos {
        let mut first = Nanos::MAX;
        for frame in &self.ring {
            first = first.min(self.paused_until(frame));
            // Earliest possible result.
            if first <= self.now {
                break;
            }
        }
        first
    }

    fn paused_until(&self, frame: &[u8]) -> Nanos {
        let Some(heeds) = &self.config.mac_pause else { return Nanos::ZERO };
        self.pause_state.until(classify::classify(frame).priority(&heeds.priorities))
    }

    /// Returns when [`Station::begin`] may return a frame, or the host's awaited slots become free; `Nanos::MAX`: not
    /// before a push.
    pub(super) fn wakes(&self) -> Nanos {
        if self.ring.is_empty() {
            return if self.starved { self.line.free_at() } else { Nanos::MAX };
        }
        let paused_until = match self.config.mac_pause {
            None => Nanos::ZERO,
            Some(_) => self.first_voice(),
        };
        paused_until.min(self.pause_state.changes()).max(self.line.free_at())
    }

    /// Returns when half of the slots will be free; `Nanos::MAX` if the station is paused, because the end of the pause
    /// may change.
    fn room_at(&self) -> Nanos {
        if !self.line.is_busy(self.now)
            && !self.ring.is_empty()
            && self.config.mac_pause.is_some()
            && self.first_voice() > self.now
        {
            return Nanos::MAX;
        }
        let leave = self.ring.len().saturating_sub(self.config.slots / 2);
        let link = self.line.link();
        let bytes: u64 = self.ring.iter().take(leave).map(|frame| link.wire_bytes(frame.len())).sum();
        self.line.free_at() + link.rate.nanos_for(bytes)
    }

    /// Receives a complete frame. Returns false if the frame was consumed or discarded.
    pub(super) fn deliver(&mut self, now: Nanos, frame: Vec<u8>) -> bool {
        if let Some(heeds) = &self.config.mac_pause
            && let Some(control) = MacControl::parse(&Frame::whole(&frame))
        {
            let response = heeds.response.unwrap_or(self.line.link().rate.pause_response());
            self.pause_state.request(now + response, control);
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

/// A shared handle to a station, held by the fabric and by the station's port.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Station>>);

impl Shared {
    pub(super) fn new(station: Station) -> Shared {
        Shared(Arc::new(Mutex::new(station)))
    }

    /// Locks the station. Poisoning is ignored: a host that panicked leaves only whole frames behind.
    pub(super) fn get(&self) -> MutexGuard<'_, Station> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Port of a host at the edge of a fabric. The ring has `slots` frames and drains at the link's rate.
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
            carries: Carries::AnyFrames,
            has_trains: false,
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

    /// Nothing to do: a switch delivers the station's own and group frames anyway.
    fn steer(&mut self, _flows: &[FlowMatch]) -> io::Result<()> {
        Ok(())
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        self.counts.list(out);
    }
}
