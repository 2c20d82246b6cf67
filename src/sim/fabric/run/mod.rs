//! The fabric: the event loop that runs stations, switches and hosts.

mod passes;
mod trouble;

use std::collections::BTreeMap;

use self::trouble::FaultState;
use super::cable::{Cables, Entry, LinkStats};
use super::error::ConfigError;
use super::flow::FlowName;
use super::flow_stats::{FlowStats, FlowStatsTable};
use super::hosts::{Hosts, Machine};
use super::link::SHORTEST_FRAME;
use super::routing::Router;
use super::station::{Shared, Station, StationPort, StationStats};
use super::switch::Switch;
use super::tap::{TappedFrame, Taps};
use super::topology::{End, FabricConfig, Wiring};
use crate::Host;
use crate::events::{EventId, EventQueue};
use roxie_base::time::Nanos;
use roxie_engine::Progress;

/// Buffers that a station or a switch keeps; excess buffers go to the common pool.
const KEPT: usize = 64;

#[derive(Debug)]
enum Event {
    /// A frame has arrived entirely at the end of a link.
    Arrive(End, Vec<u8>),
    /// The header of a frame has arrived at a cut-through switch; the rest arrives at `tail`.
    Head { switch: u32, port: u16, frame: Vec<u8>, tail: Nanos },
    /// A switch's port may have something to send.
    Serve { switch: u32, port: u16 },
    /// A station's link may be free for the next frame.
    Line(usize),
    /// A host is due for a pass.
    Turn(usize),
}

/// Result of [`Fabric::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A host ran a pass; its application may have completions.
    Turned {
        /// Station of the host.
        station: usize,
        /// Progress of the pass.
        progress: Progress,
    },
    /// A frame arrived at a station without a host. [`Fabric::take`] returns it.
    Arrived {
        /// Destination station of the frame.
        station: usize,
    },
    /// An event inside the network.
    Inside,
}

#[derive(Debug)]
struct Attached {
    shared: Shared,
    at: End,
    /// Time of the host's next pass.
    turn: Option<(Nanos, EventId)>,
    /// Earliest time of the next pass, because a pass takes time.
    not_before: Nanos,
    /// Time at which the line is served next.
    line: Option<(Nanos, EventId)>,
}

/// Stations, switches, links and one clock.
#[derive(Debug)]
pub struct Fabric {
    events: EventQueue<Event>,
    attached: Vec<Attached>,
    hosts: Hosts,
    /// Machines, by station.
    machines: BTreeMap<usize, Box<dyn Machine>>,
    switches: Vec<Switch>,
    wiring: Wiring,
    /// For each switch and port: when it is served next.
    serves: Vec<Vec<Option<(Nanos, EventId)>>>,
    now: Nanos,
    handled: u64,
    pool: Vec<Vec<u8>>,
    cables: Cables,
    faults: FaultState,
    taps: Taps,
    all_flow_stats: FlowStatsTable,
}

impl Fabric {
    /// Creates a fabric at time zero, without hosts. Switches know the routes to all stations.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(config: FabricConfig) -> Result<Fabric, ConfigError> {
        let wiring = config.wiring()?;
        let cables = Cables::new(&config, &wiring);
        let mut switches = config.switches.into_iter().map(Switch::new).collect::<Result<Vec<_>, _>>()?;
        let router = Router::new(&wiring, config.routing);
        for (number, station) in config.stations.iter().enumerate() {
            station.link.check()?;
            for (switch, ports) in
                router.next_hops_to(number).iter().enumerate().filter(|(_, ports)| !ports.is_empty())
            {
                switches[switch].set_route(station.mac, ports)?;
            }
        }
        let slot = |(config, at): (_, &Option<End>)| Attached {
            shared: Shared::new(Station::new(config)),
            at: at.expect("the wiring has an end for each"),
            turn: None,
            not_before: Nanos::ZERO,
            line: None,
        };
        Ok(Fabric {
            events: EventQueue::new(),
            hosts: Hosts::none(config.stations.len()),
            machines: BTreeMap::new(),
            attached: config.stations.into_iter().zip(&wiring.stations).map(slot).collect(),
            serves: wiring.switches.iter().map(|ports| vec![None; ports.len()]).collect(),
            switches,
            wiring,
            now: Nanos::ZERO,
            handled: 0,
            pool: Vec::new(),
            cables,
            faults: FaultState::default(),
            taps: Taps::default(),
            all_flow_stats: FlowStatsTable::default(),
        })
    }

    /// Returns the current time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Returns the number of events handled.
    pub fn events(&self) -> u64 {
        self.handled
    }

    /// Returns the number of frames on links, including those still being sent.
    pub fn on_links(&self) -> u64 {
        self.cables.under_way()
    }

    /// Returns a port for the host of a station, or for another user of the station.
    ///
    /// # Panics
    /// If the station does not exist.
    pub fn port(&self, station: usize) -> StationPort {
        StationPort::new(station, self.attached[station].shared.clone())
    }

    /// Attaches a host to a station. The host's port must be [`Fabric::port`] of the station.
    ///
    /// # Panics
    /// If the station does not exist.
    pub fn attach(&mut self, station: usize, host: Host) {
        self.hosts.attach(station, host);
        self.turn_at(station, self.now);
    }

    /// Returns a host, for its application to use. Schedules a pass of the host.
    ///
    /// # Panics
    /// If the station has no host.
    pub fn host(&mut self, station: usize) -> &mut Host {
        self.turn_at(station, self.now);
        &mut self.hosts[station]
    }

    /// Returns all hosts, read-only.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Returns all hosts. Call [`Fabric::host`] afterwards for hosts with new work, which schedules their passes.
    pub fn hosts_mut(&mut self) -> &mut Hosts {
        &mut self.hosts
    }

    /// Returns a switch.
    ///
    /// # Panics
    /// If the switch does not exist.
    pub fn switch(&self, switch: usize) -> &Switch {
        &self.switches[switch]
    }

    /// Returns the number of switches.
    pub fn switches(&self) -> usize {
        self.switches.len()
    }

    /// Returns the other end of the link at a switch's port.
    ///
    /// # Panics
    /// If the port does not exist.
    pub fn peer(&self, switch: usize, port: usize) -> Option<End> {
        self.wiring.switches[switch][port]
    }

    /// Returns the counters of a station.
    ///
    /// # Panics
    /// If the station does not exist.
    pub fn station(&self, station: usize) -> StationStats {
        self.attached[station].shared.get().stats
    }

    /// Queues a frame in a station's ring at `now`. `now` must not be before the fabric's time, nor after a pending
    /// event. Returns false, and counts the frame as refused, if the ring is full or the frame too long.
    ///
    /// # Panics
    /// If the station does not exist.
    pub fn send(&mut self, now: Nanos, station: usize, frame: &[u8]) -> bool {
        self.now = self.now.max(now);
        let mut buffer = self.pool.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        let pushed = self.attached[station].shared.get().push(self.now, buffer);
        match pushed {
            Ok(()) => {
                self.begin(station);
                true
            }
            Err(buffer) => {
                self.pool.push(buffer);
                false
            }
        }
    }

    /// Returns the counts of frames on the link towards an end.
    ///
    /// # Panics
    /// If the end does not exist.
    pub fn link(&self, to: End) -> LinkStats {
        self.cables.to(to).stats
    }

    /// Starts counting by flow what switches and links do to frames. [`Fabric::flow_stats`] returns the counts.
    pub fn count_by_flow(&mut self) {
        self.all_flow_stats.begin();
        self.switches.iter_mut().for_each(Switch::judge_by_flow);
    }

    /// Returns the statistics of a flow since counting started.
    pub fn flow_stats(&self, flow: &FlowName) -> FlowStats {
        self.all_flow_stats.of(flow)
    }

    /// Records all frames that arrive at or leave this end of a link. [`Fabric::take_sights`] returns them.
    pub fn tap(&mut self, end: End) {
        self.taps.watch(end);
    }

    /// Takes the frames recorded at the tapped ends.
    pub fn take_sights(&mut self) -> Vec<TappedFrame> {
        self.taps.take()
    }

    /// Takes a frame received by a station without a host, and its arrival time. Return the buffer by
    /// [`Fabric::recycle`].
    ///
    /// # Panics
    /// If the station does not exist.
    pub fn take(&mut self, station: usize) -> Option<(Nanos, Vec<u8>)> {
        self.attached[station].shared.get().inbox.pop_front()
    }

    /// Returns a buffer to the pool.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.pool.push(buffer);
    }

    /// Returns the time of the next event; `Nanos::MAX`: none is pending.
    pub fn next_event(&self) -> Nanos {
        self.events.next_time()
    }

    /// Handles the next event if it is due at `limit` or before. Otherwise returns `None` and advances time to `limit`
    /// (not for `Nanos::MAX`).
    pub fn step(&mut self, limit: Nanos) -> Option<Step> {
        self.wake_machines();
        let Some((time, event)) = self.events.pop(limit) else {
            if limit != Nanos::MAX {
                self.now = self.now.max(limit);
            }
            return None;
        };
        self.now = self.now.max(time);
        self.handled += 1;
        Some(match event {
            Event::Arrive(end, frame) => self.arrive(end, frame),
            Event::Head { switch, port, frame, tail } => {
                let end = End::Switch { switch: switch as usize, port };
                if self.switches[switch as usize].cuts_through(port.into(), &frame) {
                    self.arrive(end, frame)
                } else {
                    self.events.schedule(tail, Event::Arrive(end, frame));
                    Step::Inside
                }
            }
            Event::Serve { switch, port } => {
                self.serves[switch as usize][usize::from(port)] = None;
                self.serve(switch as usize, usize::from(port));
                self.serve_ready(switch as usize);
                Step::Inside
            }
            Event::Line(station) => {
                self.attached[station].line = None;
                self.begin(station);
                Step::Inside
            }
            Event::Turn(station) => self.turn(station),
        })
    }

    /// Advances time to `limit`, without applications. Returns true if no event is pending.
    pub fn run(&mut self, limit: Nanos) -> bool {
        while self.step(limit).is_some() {}
        self.events.is_empty()
    }

    fn arrive(&mut self, end: End, frame: Vec<u8>) -> Step {
        if !self.cables.to_mut(end).leave() {
            self.pool.push(frame);
            return Step::Inside;
        }
        match end {
            End::Switch { switch, port } => {
                if self.taps.watches(end) {
                    let seen = frame.clone();
                    self.switches[switch].arrive(self.now, port.into(), frame);
                    self.taps.record_arrival(
                        self.now,
                        end,
                        seen,
                        Some(self.switches[switch].ingress_outcome()),
                    );
                } else {
                    self.switches[switch].arrive(self.now, port.into(), frame);
                }
                self.serve_ready(switch);
                Step::Inside
            }
            End::Station(station) => {
                if self.taps.watches(end) {
                    self.taps.record_arrival(self.now, end, frame.clone(), None);
                }
                self.all_flow_stats.frame_received(&frame);
                let for_somebody = self.attached[station].shared.get().deliver(self.now, frame);
                if !for_somebody {
                    self.begin(station);
                    return Step::Inside;
                }
                if self.has_nic(station) {
                    self.turn_at(station, self.now);
                    return Step::Inside;
                }
                Step::Arrived { station }
            }
        }
    }

    fn serve_ready(&mut self, switch: usize) {
        while let Some(port) = self.switches[switch].take_ready() {
            self.serve(switch, port);
        }
        let verdicts = self.switches[switch].take_verdicts();
        verdicts.for_each(|(flow, verdict)| self.all_flow_stats.judged(flow, verdict));
        let spare = self.switches[switch].spare();
        if spare.len() > KEPT {
            self.pool.extend(spare.drain(KEPT / 2..));
        }
    }

    fn serve(&mut self, switch: usize, port: usize) {
        while let Some(departure) = self.switches[switch].serve(self.now, port) {
            match self.wiring.switches[switch][port] {
                Some(end) => {
                    let from = End::Switch { switch, port: port as u16 };
                    if self.taps.watches(from) {
                        self.taps.record_departure(
                            self.now,
                            from,
                            departure.frame.clone(),
                            Some(departure.egress),
                        );
                    }
                    self.put_on_link(departure.arrives, end, departure.frame);
                }
                None => self.pool.push(departure.frame),
            }
        }
        let wakes = self.switches[switch].wakes(port);
        let event = Event::Serve { switch: switch as u32, port: port as u16 };
        Fabric::set(&mut self.events, &mut self.serves[switch][port], self.now, wakes, event);
    }

    fn put_on_link(&mut self, arrives: Nanos, end: End, frame: Vec<u8>) {
        match self.cables.to_mut(end).enter() {
            Entry::Free if self.faults.is_clear() => self.carry(arrives, end, frame),
            Entry::Free => self.carry_through_weather(arrives, end, frame),
            Entry::Unplugged => self.pool.push(frame),
            Entry::Damaged => {
                self.all_flow_stats.damaged(&frame);
                self.pool.push(frame);
            }
        }
    }

    fn carry(&mut self, arrives: Nanos, end: End, frame: Vec<u8>) {
        if let End::Switch { switch, port } = end
            && self.switches[switch].config().cut_through
        {
            // By then, the bytes that are classified have arrived, and the bytes before them on the wire.
            let link = &self.switches[switch].config().ports[usize::from(port)].link;
            let rest = link.rate.nanos_for(frame.len().saturating_sub(SHORTEST_FRAME) as u64);
            let head = Nanos(arrives.0.saturating_sub(rest.0)).max(self.now);
            self.events.schedule(head, Event::Head { switch: switch as u32, port, frame, tail: arrives });
            return;
        }
        self.events.schedule(arrives, Event::Arrive(end, frame));
    }

    /// Schedules an event at `time`, in place of the event already scheduled.
    fn set(
        events: &mut EventQueue<Event>,
        place: &mut Option<(Nanos, EventId)>,
        now: Nanos,
        time: Nanos,
        event: Event,
    ) {
        let time = if time == Nanos::MAX { time } else { time.max(now) };
        if place.is_some_and(|(set, _)| set == time) {
            return;
        }
        if let Some((_, id)) = place.take() {
            events.cancel(id);
        }
        if time != Nanos::MAX {
            *place = Some((time, events.schedule(time, event)));
        }
    }

    /// Starts the frames of a station's ring that may leave now.
    fn begin(&mut self, station: usize) {
        let (at, from) = (self.attached[station].at, End::Station(station));
        let (room, wakes) = loop {
            let mut state = self.attached[station].shared.get();
            let Some((frame, arrives)) = state.begin(self.now) else {
                let room = state.has_room_again(self.now);
                state.starved &= !room;
                break (room, state.wakes());
            };
            drop(state);
            self.all_flow_stats.frame_sent(&frame);
            if self.taps.watches(from) {
                self.taps.record_departure(self.now, from, frame.clone(), None);
            }
            self.put_on_link(arrives, at, frame);
        };
        if room {
            self.turn_at(station, self.now);
        }
        Fabric::set(
            &mut self.events,
            &mut self.attached[station].line,
            self.now,
            wakes,
            Event::Line(station),
        );
    }
}
