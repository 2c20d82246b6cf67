//! A store-and-forward switch without I/O or a clock.
//!
//! The driver, an event queue or a thread with real frames, reports each complete frame ([`Switch::arrive`]), serves
//! the ports that have become ready ([`Switch::take_ready`], [`Switch::serve`]), and serves a port again when it wakes
//! ([`Switch::wakes`]). Time must not go back.

use std::collections::VecDeque;

use super::buffer::Buffer;
use super::classify::{self, Classified};
use super::config::SwitchConfig;
use super::egress::{Egress, Next, Queued};
use super::error::{ConfigError, PRIORITIES};
use super::flow::{FlowName, flow_of};
use super::flow_stats::Verdict;
use super::outcome::{Departure, EgressOutcome, IngressOutcome};
use super::routes::Routes;
use super::stats::{DropReason, IngressStats, QueueStats};
use roxie_base::random::splitmix;
use roxie_base::time::Nanos;
use roxie_wire::frame::Frame;
use roxie_wire::mac_control::MacControl;

#[derive(Debug)]
struct Port {
    egress: Egress,
    ingress: IngressStats,
    queues: [QueueStats; PRIORITIES],
    /// For each priority that the peer is told to pause: when to repeat the XOFF, and since when the peer is paused.
    refresh: [Option<(Nanos, Nanos)>; PRIORITIES],
    /// Bit `n`: the watchdog has closed queue `n`.
    closed: u8,
    /// True if the port is in the ready list.
    ready: bool,
}

/// A switch; see the module's documentation.
#[derive(Debug)]
pub struct Switch {
    config: SwitchConfig,
    ports: Vec<Port>,
    buffer: Buffer,
    routes: Routes,
    ready: VecDeque<u16>,
    random: u64,
    ingress: IngressOutcome,
    /// Verdicts on frames of flows, not taken yet. `None`: not recorded.
    verdicts: Option<Vec<(FlowName, Verdict)>>,
    /// Free buffers.
    spare: Vec<Vec<u8>>,
}

impl Switch {
    /// Creates a switch without routes.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(config: SwitchConfig) -> Result<Switch, ConfigError> {
        config.check()?;
        let port = |port_config| Port {
            egress: Egress::new(port_config),
            ingress: IngressStats::default(),
            queues: Default::default(),
            refresh: [None; PRIORITIES],
            closed: 0,
            ready: false,
        };
        Ok(Switch {
            ports: config.ports.iter().map(port).collect(),
            buffer: Buffer::new(&config),
            routes: Routes::default(),
            ready: VecDeque::new(),
            random: config.seed,
            ingress: IngressOutcome::Flooded,
            verdicts: None,
            spare: Vec::new(),
            config,
        })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// Routes frames to this MAC address to one of these ports. All frames of a flow use the same port.
    ///
    /// # Errors
    /// If the list is empty, or names a port that the switch does not have.
    pub fn set_route(&mut self, station: [u8; 6], ports: &[u16]) -> Result<(), ConfigError> {
        if ports.is_empty() || ports.iter().any(|port| usize::from(*port) >= self.ports.len()) {
            let what = format!(
                "a route over ports {ports:?} of a switch with {}: name some that it has",
                self.ports.len()
            );
            return Err(ConfigError::Topology(what));
        }
        self.routes.set(station, ports);
        Ok(())
    }

    /// Moves the routes of a station to its new address.
    pub(super) fn move_route(&mut self, before: &[u8; 6], after: [u8; 6]) {
        self.routes.rename(before, after);
    }

    /// Receives a frame at a port, once its last bit has arrived.
    ///
    /// # Panics
    /// If the port does not exist.
    pub fn arrive(&mut self, now: Nanos, port: usize, frame: Vec<u8>) {
        let ingress = &mut self.ports[port].ingress;
        ingress.frames += 1;
        ingress.bytes += frame.len() as u64;
        if let Some(control) = MacControl::parse(&Frame::whole(&frame)) {
            ingress.control += 1;
            self.apply_due(now, port, control);
            self.ingress = IngressOutcome::Applied(control);
            self.spare.push(frame);
            return;
        }
        match self.forward(port, &frame) {
            Ok(Forward::To(to, classified)) => {
                self.ports[port].ingress.copies += 1;
                self.enqueue(now, port, to, classified, frame);
            }
            Ok(Forward::Flood(classified)) => {
                for to in (0..self.ports.len()).filter(|to| *to != port) {
                    let mut copy = self.spare.pop().unwrap_or_default();
                    copy.clear();
                    copy.extend_from_slice(&frame);
                    self.ports[port].ingress.copies += 1;
                    self.enqueue(now, port, to, classified, copy);
                }
                self.ingress = IngressOutcome::Flooded;
                self.spare.push(frame);
            }
            Err(reason) => {
                self.ingress = IngressOutcome::Dropped(reason);
                self.ports[port].ingress.drops.count(reason);
                self.judged(&frame, Verdict::Dropped);
                self.spare.push(frame);
            }
        }
    }

    /// Starts to record which flows' frames are marked and dropped, for [`Switch::take_verdicts`].
    pub(super) fn judge_by_flow(&mut self) {
        self.verdicts = Some(Vec::new());
    }

    /// Takes the recorded verdicts.
    pub(super) fn take_verdicts(&mut self) -> impl Iterator<Item = (FlowName, Verdict)> {
        self.verdicts.iter_mut().flat_map(|verdicts| verdicts.drain(..))
    }

    fn judged(&mut self, frame: &[u8], verdict: Verdict) {
        if let Some(verdicts) = &mut self.verdicts
            && let Some((flow, _)) = flow_of(frame)
        {
            verdicts.push((flow, verdict));
        }
    }

    /// Returns the outcome of the last frame received.
    pub fn ingress_outcome(&self) -> IngressOutcome {
        self.ingress
    }

    /// Returns true if a frame received at `port` may leave before it has arrived entirely: the switch cuts through,
    /// and the egress link is not faster than the ingress link.
    pub fn cuts_through(&self, port: usize, frame: &[u8]) -> bool {
        if !self.config.cut_through || MacControl::parse(&Frame::whole(frame)).is_some() {
            return false;
        }
        let rate = |port: usize| self.config.ports[port].link.rate;
        matches!(self.forward(port, frame), Ok(Forward::To(to, _)) if rate(to) <= rate(port))
    }

    /// Returns the egress of a frame.
    fn forward(&self, from: usize, frame: &[u8]) -> Result<Forward, DropReason> {
        let station: &[u8; 6] =
            frame.first_chunk().filter(|_| frame.len() >= 14).ok_or(DropReason::Malformed)?;
        if frame.len() > self.config.longest_frame as usize {
            return Err(DropReason::TooLong);
        }
        let classified = classify::classify(frame);
        if station[0] & 1 == 1 {
            return Ok(Forward::Flood(classified));
        }
        let ports = self.routes.to(station).ok_or(DropReason::NoRoute)?;
        let choice = match ports.len() {
            1 => 0,
            count => classified.flow(frame, self.config.seed) as usize % count,
        };
        let to = usize::from(ports[choice]);
        if to == from { Err(DropReason::NoRoute) } else { Ok(Forward::To(to, classified)) }
    }

    fn enqueue(&mut self, now: Nanos, from: usize, to: usize, classified: Classified, mut frame: Vec<u8>) {
        let priority = classified.priority(&self.config.priorities);
        let lossless = self.is_lossless(priority);
        let depth = self.ports[to].egress.depth(priority);
        let stats = &mut self.ports[to].queues[priority];
        stats.offered += 1;
        let closed = self.ports[to].closed & (1 << priority) != 0;
        let admitted = match closed {
            true => Err(DropReason::Watchdog),
            false => self.buffer.admit(from, priority, frame.len(), lossless, depth),
        };
        if let Err(reason) = admitted {
            self.ports[to].queues[priority].drops.count(reason);
            self.ingress = IngressOutcome::Dropped(reason);
            self.judged(&frame, Verdict::Dropped);
            self.spare.push(frame);
            return;
        }
        let marked = self.marks(to, priority, depth) && classified.can_be_marked();
        if marked {
            classified.mark(&mut frame);
            self.ports[to].queues[priority].marked += 1;
            self.judged(&frame, Verdict::Marked);
        }
        let after = depth + frame.len() as u64;
        let port = &mut self.ports[to];
        port.egress.push(priority, Queued { frame, ingress: from as u16, since: now, marked });
        port.queues[priority].enqueued += 1;
        port.queues[priority].depth.set(now, after);
        self.make_ready(to);
        let paused = lossless && self.buffer.must_pause(from, priority);
        if paused {
            self.pause(now, from, priority);
        }
        self.ingress = IngressOutcome::Queued { port: to, priority, depth, paused };
    }

    fn is_lossless(&self, priority: usize) -> bool {
        self.config.pfc.as_ref().is_some_and(|pfc| pfc.is_lossless(priority))
    }

    /// Decides whether to mark a frame that finds `depth` bytes in its queue.
    fn marks(&mut self, port: usize, priority: usize, depth: u64) -> bool {
        let Some(ecn) = &self.config.ports[port].ecn[priority] else { return false };
        match ecn.probability(depth) {
            0.0 => false,
            1.0 => true,
            // 53 bits: the precision of an `f64`.
            p => ((splitmix(&mut self.random) >> 11) as f64) < p * (1u64 << 53) as f64,
        }
    }

    fn make_ready(&mut self, port: usize) {
        if !std::mem::replace(&mut self.ports[port].ready, true) {
            self.ready.push_back(port as u16);
        }
    }

    /// Applies a PAUSE or PFC frame of a peer.
    fn apply_due(&mut self, now: Nanos, port: usize, control: MacControl) {
        let Some(pfc) = &self.config.pfc else { return };
        let holds = now + pfc.response_at(&self.config.ports[port].link);
        self.ports[port].egress.pause_requested(holds, control);
        self.make_ready(port);
    }

    fn send_pause(&mut self, port: usize, priority: usize, quanta: u16) {
        let mut all = [0; PRIORITIES];
        all[priority] = quanta;
        let frame = MacControl::Pfc { enable: 1 << priority, quanta: all }.build(self.config.mac);
        self.ports[port].egress.push_control(frame);
        self.make_ready(port);
    }

    fn pause(&mut self, now: Nanos, port: usize, priority: usize) {
        self.buffer.set_paused(port, priority, true);
        self.ports[port].refresh[priority] = Some((now, now));
        self.ports[port].queues[priority].pausing_since = Some(now);
        self.refresh(now, port);
    }

    /// Repeats XOFF for the peer once half of the pause time has passed.
    fn refresh(&mut self, now: Nanos, port: usize) {
        let Some(quanta) = self.config.pfc.as_ref().map(|pfc| pfc.quanta) else { return };
        for priority in 0..PRIORITIES {
            let Some((due, since)) = self.ports[port].refresh[priority].filter(|(due, _)| *due <= now) else {
                continue;
            };
            let half = self.config.ports[port].link.rate.pause(quanta).0 / 2;
            self.ports[port].refresh[priority] = Some((due + Nanos(half.max(1)), since));
            self.ports[port].queues[priority].xoff_sent += 1;
            self.send_pause(port, priority, quanta);
        }
    }

    fn resume(&mut self, now: Nanos, port: usize, priority: usize) {
        self.buffer.set_paused(port, priority, false);
        if let Some((_, since)) = self.ports[port].refresh[priority].take() {
            let stats = &mut self.ports[port].queues[priority];
            stats.pause_sent = stats.pause_sent + now.since(since);
            stats.pausing_since = None;
            stats.xon_sent += 1;
        }
        self.send_pause(port, priority, 0);
    }

    /// Takes the next port that has become ready to be served.
    pub fn take_ready(&mut self) -> Option<usize> {
        let port = usize::from(self.ready.pop_front()?);
        self.ports[port].ready = false;
        Some(port)
    }

    /// Returns the frame that starts to leave a port now, if the line is free. Check [`Switch::wakes`] and the ready
    /// ports afterwards.
    pub fn serve(&mut self, now: Nanos, port: usize) -> Option<Departure> {
        self.refresh(now, port);
        self.watch(now, port);
        let mut egress = EgressOutcome::Control;
        let frame = match self.ports[port].egress.next(now)? {
            Next::Control(frame) => {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.clear();
                bytes.extend_from_slice(&frame);
                bytes
            }
            Next::Data(priority, queued) => {
                let behind = self.ports[port].egress.depth(priority);
                let waited = now.since(queued.since);
                egress = EgressOutcome::Data { priority, waited, marked: queued.marked, behind };
                self.dequeued(now, port, priority, queued)
            }
        };
        let line = self.ports[port].egress.line();
        let departs = line.begin(now, frame.len());
        let arrives = departs + line.link().delay;
        Some(Departure { frame, departs, arrives, egress })
    }

    fn dequeued(&mut self, now: Nanos, port: usize, priority: usize, queued: Queued) -> Vec<u8> {
        let depth = self.ports[port].egress.depth(priority);
        let stats = &mut self.ports[port].queues[priority];
        stats.sent += 1;
        stats.sent_bytes += queued.frame.len() as u64;
        stats.depth.set(now, depth);
        self.release(now, priority, queued)
    }

    /// Releases a frame's bytes from the buffer.
    fn release(&mut self, now: Nanos, priority: usize, queued: Queued) -> Vec<u8> {
        let from = usize::from(queued.ingress);
        self.buffer.release(from, priority, queued.frame.len());
        if self.buffer.may_resume(from, priority) {
            self.resume(now, from, priority);
        }
        queued.frame
    }

    /// Empties queues that were paused for too long, and reopens queues once their pause has been over for long enough.
    fn watch(&mut self, now: Nanos, port: usize) {
        let Some(dog) = self.config.pfc.as_ref().and_then(|pfc| pfc.watchdog) else { return };
        self.ports[port].egress.apply_due(now);
        for priority in 0..PRIORITIES {
            if !self.is_lossless(priority) {
                continue;
            }
            let state = &mut self.ports[port];
            if state.closed & (1 << priority) != 0 {
                if state.egress.paused_until(priority) + dog.restore <= now {
                    state.closed &= !(1 << priority);
                }
                continue;
            }
            if state.egress.stuck_since(now, priority).is_none_or(|since| now < since + dog.detect) {
                continue;
            }
            state.closed |= 1 << priority;
            let flushed = state.egress.flush(priority);
            let stats = &mut state.queues[priority];
            stats.storms += 1;
            stats.flushed += flushed.len() as u64;
            stats.depth.set(now, 0);
            for queued in flushed {
                let frame = self.release(now, priority, queued);
                self.judged(&frame, Verdict::Dropped);
                self.spare.push(frame);
            }
        }
    }

    /// Returns when the watchdog has to check a port again.
    fn watches(&self, port: usize) -> Nanos {
        let Some(pfc) = &self.config.pfc else { return Nanos::MAX };
        let Some(dog) = pfc.watchdog else { return Nanos::MAX };
        let port = &self.ports[port];
        let next_change = |priority: usize| {
            let paused_until = port.egress.paused_until(priority);
            if port.closed & (1 << priority) != 0 {
                return paused_until + dog.restore;
            }
            // The queue is stuck only up to the end of its pause.
            let before_its_end = paused_until.0.checked_sub(1).map(Nanos);
            let since = before_its_end.and_then(|time| port.egress.stuck_since(time, priority));
            since.map(|since| since + dog.detect).filter(|bites| *bites < paused_until).unwrap_or(Nanos::MAX)
        };
        (0..PRIORITIES)
            .filter(|priority| pfc.is_lossless(*priority))
            .map(next_change)
            .min()
            .unwrap_or(Nanos::MAX)
    }

    /// Returns the ports with paused queues that hold frames from `port`: the queues that the peer at `port` waits for.
    pub fn blocked_by(&self, now: Nanos, port: usize, priority: usize) -> Vec<u16> {
        let stuck = |to: &usize| {
            let egress = &self.ports[*to].egress;
            egress.stuck_since(now, priority).is_some()
                && egress.waits_for(priority).any(|ingress| usize::from(ingress) == port)
        };
        (0..self.ports.len()).filter(stuck).map(|to| to as u16).collect()
    }

    /// Returns the time since which a port's non-empty queue has been paused continuously, or `None` if it is not.
    pub fn stuck_since(&self, now: Nanos, port: usize, priority: usize) -> Option<Nanos> {
        self.ports[port].egress.stuck_since(now, priority)
    }

    /// Returns true if the peer at this port is paused.
    pub fn pauses(&self, port: usize, priority: usize) -> bool {
        self.buffer.ingress(port, priority).paused
    }

    /// Returns the latest time at which a port has to be served again; `Nanos::MAX`: when it becomes ready.
    pub fn wakes(&self, port: usize) -> Nanos {
        let watches = self.watches(port);
        let port = &self.ports[port];
        let refresh = port.refresh.iter().flatten().map(|(due, _)| *due).min();
        port.egress.wakes().min(refresh.unwrap_or(Nanos::MAX)).min(watches)
    }

    /// Returns the free buffers, which the caller may take and add to.
    pub fn spare(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.spare
    }

    /// Returns the ingress counters of a port.
    pub fn ingress(&self, port: usize) -> IngressStats {
        self.ports[port].ingress
    }

    /// Returns the counters of a port's queue.
    pub fn queue(&self, port: usize, priority: usize) -> QueueStats {
        let state = &self.ports[port];
        QueueStats {
            pause_received: state.egress.paused_in_total(priority),
            headroom_peak: self.buffer.ingress(port, priority).headroom_peak,
            ..state.queues[priority].clone()
        }
    }

    /// Returns the bytes in all queues of a port.
    pub fn depth(&self, port: usize) -> u64 {
        (0..PRIORITIES).map(|priority| self.ports[port].egress.depth(priority)).sum()
    }

    /// Returns the buffer bytes in use, and their maximum.
    pub fn used(&self) -> (u64, u64) {
        self.buffer.used()
    }
}

/// Egress of a frame.
enum Forward {
    To(usize, Classified),
    Flood(Classified),
}
