//! Runs a scenario.

use std::collections::BTreeMap;
use std::io::Write;

use super::application::{Applications, ConnectionParameters, FlowOutcome};
use super::capture::{self, Capture};
use super::error::ScenarioError;
use super::file::Scenario;
use super::ideal::ShortestPaths;
use super::traffic::{Flow, Stage, flows};
use crate::Host;
use crate::fabric::{Deadlock, Fabric, Hop, LinkRate, Shape, Step};
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_nic::congestion::{Rate, State};
use roxie_nic::nic::{Command, CongestionConfig, EcnPolicy, NicConfig};
use roxie_nic::verbs::WcStatus;

/// Progress of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowProgress {
    pub(super) began: Option<Nanos>,
    pub(super) ended: Option<Nanos>,
    pub(super) failed: Option<WcStatus>,
    /// Number of flows that must still end before this one starts.
    waits: u32,
    pub(super) conn: Option<u32>,
}

/// Traffic counts of a host at a sample time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// Sample time.
    pub at: Nanos,
    /// Number of the host.
    pub host: usize,
    /// Bytes of frames that had started to leave.
    pub sent: u64,
    /// Bytes of frames received.
    pub delivered: u64,
}

/// Congestion control state of a flow at a sample time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlSample {
    /// Sample time.
    pub at: Nanos,
    /// Number of the flow.
    pub flow: usize,
    /// Rate, target and alpha, as of the flow's last packet.
    pub state: State,
}

/// Deadlocks found.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlocks {
    /// The first deadlock, with the names of its queues.
    pub(super) first: Option<(Deadlock, String)>,
    /// Number of checks that found a deadlock at least as old as the check interval.
    pub(super) looks: u64,
}

/// A running scenario, advanced step by step or to its end.
#[derive(Debug)]
pub struct Simulation {
    pub(super) scenario: Scenario,
    pub(super) shape: Shape,
    pub(super) fabric: Fabric,
    pub(super) flows: Vec<Flow>,
    pub(super) flow_progress: Vec<FlowProgress>,
    pub(super) paths: ShortestPaths,
    pub(super) samples: Vec<RateSample>,
    pub(super) applications: Applications,
    /// For each flow: the flows that wait for it.
    next: Vec<Vec<u32>>,
    /// Flows by start time, those not started yet.
    due: BTreeMap<Nanos, Vec<u32>>,
    open: usize,
    sample_at: Nanos,
    captures: Vec<Capture>,
    pub(super) deadlocks: Deadlocks,
    pub(super) control_samples: Vec<ControlSample>,
    /// Byte counts of each host at the last sample.
    before: Vec<(u64, u64)>,
}

impl Simulation {
    /// Builds the network and its hosts, at time zero.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn new(scenario: &Scenario) -> Result<Simulation, ScenarioError> {
        let shape = scenario.shape()?;
        let config = scenario.fabric(&shape)?;
        let rates: Vec<LinkRate> = config.stations.iter().map(|station| station.link.rate).collect();
        let stage = Stage { hosts: &shape.stations, rates: &rates, end: scenario.time.0 };
        let terms = terms(scenario)?;
        scenario.output.capture.iter().try_for_each(|link| capture::ends(&shape, link).map(drop))?;
        let flows = flows(&scenario.traffic, &stage, scenario.seed)?;
        let control = scenario.control()?;
        let mut fabric = Fabric::new(config)?;
        fabric.count_by_flow();
        // Flows that start or end at each host: the maximum number of queue pairs there.
        let mut ends = vec![0; shape.stations.len()];
        flows.iter().flat_map(|flow| [flow.from, flow.to]).for_each(|host| ends[host] += 1);
        for (n, rate) in rates.iter().enumerate() {
            let nic = NicConfig {
                limits: limits(ends[n]),
                seed: scenario.seed.wrapping_mul(0x1_0001).wrapping_add(n as u64),
                largest_mtu: terms.path_mtu,
                ..NicConfig::default()
            };
            let mut host = Host::new(n as u16 + 1, nic, Box::new(fabric.port(n)));
            let rules = CongestionConfig {
                control: control.clone(),
                ecn: scenario.ecn.as_ref().map(|_| EcnPolicy::On),
                classes: "trust=dscp".parse().expect("it is documented"),
                line_rate: Some(Rate(rate.0 as f64)),
            };
            host.call(Nanos::ZERO, Command::SetCongestion(Box::new(rules)))
                .map_err(|error| ScenarioError::Nic { host: n, error })?;
            fabric.attach(n, host);
        }
        let mut next = vec![Vec::new(); flows.len()];
        let mut flow_progress = vec![FlowProgress::default(); flows.len()];
        let mut due: BTreeMap<Nanos, Vec<u32>> = BTreeMap::new();
        for (number, flow) in flows.iter().enumerate() {
            flow_progress[number].waits = flow.after.len() as u32;
            flow.after.iter().for_each(|before| next[*before as usize].push(number as u32));
            if flow.after.is_empty() {
                due.entry(flow.start).or_default().push(number as u32);
            }
        }
        let message = scenario.hosts.message.0;
        Ok(Simulation {
            applications: Applications::new(shape.stations.len(), terms),
            paths: ShortestPaths::new(&shape, scenario.hosts.mtu.into(), message),
            open: flows.len(),
            before: vec![(0, 0); shape.stations.len()],
            sample_at: scenario.output.interval.0,
            scenario: scenario.clone(),
            samples: Vec::new(),
            captures: Vec::new(),
            deadlocks: Deadlocks::default(),
            control_samples: Vec::new(),
            shape,
            fabric,
            flows,
            flow_progress,
            next,
            due,
        })
    }

    /// Returns the network.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Returns the topology, with the names of the nodes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns all flows, including those not started yet.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Returns the current time.
    pub fn now(&self) -> Nanos {
        self.fabric.now()
    }

    /// Returns the number of flows that have not ended.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Returns the number of queue pairs made.
    pub fn queue_pairs(&self) -> usize {
        self.applications.queue_pairs()
    }

    /// Returns the traffic samples of each output interval. Hosts without a change are left out.
    pub fn samples(&self) -> &[RateSample] {
        &self.samples
    }

    /// Captures a link, named by its ends: `leaf0-spine1`. Each end is an interface of the capture; comments describe the outcome in the
    /// switches.
    ///
    /// # Errors
    /// If the link does not exist, or `out` fails.
    pub fn capture(&mut self, link: &str, out: Box<dyn Write + Send>) -> Result<(), ScenarioError> {
        let ends = capture::ends(&self.shape, link)?;
        self.captures.push(Capture::new(&self.shape, ends, self.scenario.output.frames, out)?);
        ends.into_iter().for_each(|end| self.fabric.tap(end));
        Ok(())
    }

    /// Returns the congestion control state of a flow, as of its last packet. `None`: the flow has not started, has ended, or has no
    /// congestion control.
    ///
    /// # Panics
    /// If the flow does not exist.
    pub fn control_state(&self, flow: usize) -> Option<State> {
        let progress = self.flow_progress[flow];
        let (host, qp) = self.applications.queue_pair(progress.conn.filter(|_| progress.ended.is_none())?);
        self.fabric.hosts()[host].worker.nic().qp_status(qp.handle.index)?.control
    }

    /// Returns the congestion control state of each controlled flow at each interval, if the output asks for it.
    pub fn control_samples(&self) -> &[ControlSample] {
        &self.control_samples
    }

    /// Returns true if all flows have ended, or the scenario's time is over.
    pub fn is_over(&self) -> bool {
        self.open == 0 || self.now() >= self.scenario.time.0
    }

    /// Runs until `limit`, or to the end of the scenario.
    ///
    /// # Errors
    /// If a connection cannot be made.
    pub fn advance(&mut self, limit: Nanos) -> Result<(), ScenarioError> {
        self.watch(limit, |_| ())
    }

    /// Runs until `limit` as [`Simulation::advance`] does, and calls `look` after each event.
    ///
    /// # Errors
    /// If a connection cannot be made.
    pub fn watch(&mut self, limit: Nanos, mut look: impl FnMut(&Fabric)) -> Result<(), ScenarioError> {
        let limit = limit.min(self.scenario.time.0);
        while self.open > 0 && self.fabric.now() < limit {
            self.begin_due()?;
            let next = self.due.keys().next().copied().unwrap_or(Nanos::MAX);
            let until = limit.min(next).min(self.sample_at);
            self.play(until, &mut look);
            self.write_captures()?;
            if self.fabric.now() >= self.sample_at {
                self.sample();
                self.look_for_deadlock();
                self.sample_at = self.sample_at + self.scenario.output.interval.0;
            }
        }
        Ok(())
    }

    /// Runs to the end of the scenario.
    ///
    /// # Errors
    /// If a connection cannot be made.
    pub fn run(&mut self) -> Result<(), ScenarioError> {
        self.advance(Nanos::MAX)
    }

    /// Advances time to `until`, or until a flow ends that another waits for.
    fn play(&mut self, until: Nanos, look: &mut impl FnMut(&Fabric)) {
        while let Some(step) = self.fabric.step(until) {
            look(&self.fabric);
            let Step::Turned { station, progress } = step else { continue };
            if progress.completions == 0 {
                continue;
            }
            let now = self.fabric.now();
            let Simulation { applications, fabric, flows, flow_progress, next, due, open, .. } = self;
            let mut more = false;
            applications.look(fabric, station, flows, |flow, how| {
                *open -= 1;
                let progress = &mut flow_progress[flow as usize];
                progress.ended = Some(now);
                if let FlowOutcome::Failed(status) = how {
                    progress.failed = Some(status);
                }
                for &waiting in &next[flow as usize] {
                    let progress = &mut flow_progress[waiting as usize];
                    progress.waits -= 1;
                    if progress.waits == 0 {
                        due.entry(flows[waiting as usize].start.max(now)).or_default().push(waiting);
                        more = true;
                    }
                }
            });
            if more || self.open == 0 {
                return;
            }
        }
    }

    fn write_captures(&mut self) -> Result<(), ScenarioError> {
        if self.captures.is_empty() {
            return Ok(());
        }
        let sights = self.fabric.take_sights();
        for capture in &mut self.captures {
            sights.iter().try_for_each(|sight| capture.take(sight))?;
            if self.open == 0 || self.fabric.now() >= self.scenario.time.0 {
                capture.finish()?;
            }
        }
        Ok(())
    }

    fn begin_due(&mut self) -> Result<(), ScenarioError> {
        let now = self.fabric.now();
        while let Some(entry) = self.due.first_entry()
            && *entry.key() <= now
        {
            for number in entry.remove() {
                let flow = &self.flows[number as usize];
                let progress = &mut self.flow_progress[number as usize];
                progress.began = Some(now);
                progress.conn = Some(self.applications.begin(&mut self.fabric, number, flow)?);
            }
        }
        Ok(())
    }

    fn look_for_deadlock(&mut self) {
        if self.scenario.pfc.is_none() {
            return;
        }
        let lasting =
            |found: &Deadlock| self.fabric.now().since(found.since).0 >= self.scenario.output.interval.0.0;
        let Some(found) = self.fabric.deadlock().filter(lasting) else { return };
        self.deadlocks.looks += 1;
        if self.deadlocks.first.is_none() {
            let name = |hop: &Hop| format!("{}:{}", self.shape.switches[hop.switch].name, hop.port);
            let names: Vec<String> = found.cycle.iter().chain(found.cycle.first()).map(name).collect();
            let text = format!("priority {}: {}", found.priority, names.join(" -> "));
            self.deadlocks.first = Some((found, text));
        }
    }

    /// Returns the first deadlock that lasted for an output interval, and its queues as `SWITCH:PORT`. Each queue waits for the next.
    pub fn deadlock(&self) -> Option<(&Deadlock, &str)> {
        self.deadlocks.first.as_ref().map(|(found, text)| (found, text.as_str()))
    }

    fn sample(&mut self) {
        let at = self.fabric.now();
        for (host, before) in self.before.iter_mut().enumerate() {
            let stats = self.fabric.station(host);
            let after = (stats.sent_bytes, stats.delivered_bytes);
            if after != *before {
                self.samples.push(RateSample { at, host, sent: after.0, delivered: after.1 });
                *before = after;
            }
        }
        if self.scenario.output.control {
            for flow in 0..self.flows.len() {
                if let Some(state) = self.control_state(flow) {
                    self.control_samples.push(ControlSample { at, flow, state });
                }
            }
        }
    }
}

fn terms(scenario: &Scenario) -> Result<ConnectionParameters, ScenarioError> {
    let hosts = &scenario.hosts;
    if scenario.time.0 == Nanos::ZERO {
        return Err(ScenarioError::wrong(("", "time"), "a time of 0: say when the run ends, \"20 ms\""));
    }
    let wrong = |table, key, what: String| Err(ScenarioError::wrong((table, key), what));
    if !(1..=1 << 24).contains(&hosts.message.0) {
        return wrong(
            "hosts",
            "message",
            format!("a message of {} bytes: give 1 B to 16 MiB", hosts.message.0),
        );
    }
    if !(1..=1024).contains(&hosts.depth) {
        return wrong("hosts", "depth", format!("a depth of {}: give 1 to 1024", hosts.depth));
    }
    if !(2..=65_536).contains(&hosts.slots) {
        return wrong("hosts", "slots", format!("{} slots: give 2 to 65536", hosts.slots));
    }
    if hosts.timeout > 31 {
        return wrong("hosts", "timeout", format!("a timeout of {}: it is a code, 0 to 31", hosts.timeout));
    }
    if scenario.output.interval.0 == Nanos::ZERO {
        return wrong("output", "interval", "an interval of 0: give a time, \"100 us\"".into());
    }
    Ok(ConnectionParameters {
        path_mtu: scenario.path_mtu()?,
        message: hosts.message.0 as u32,
        depth: hosts.depth,
        timeout: hosts.timeout,
    })
}

/// Returns the limits of a NIC with this number of queue pairs, and the minimum of other objects.
fn limits(qps: u32) -> Limits {
    Limits {
        qps: qps.clamp(1, 1 << 16),
        cqs: 4,
        mrs: 4,
        ahs: 1,
        srqs: 1,
        xrcds: 1,
        groups: 1,
        ..Limits::default()
    }
}
