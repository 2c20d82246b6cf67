//! Runs a scenario.

use std::io::Write;

use super::application::{Applications, ConnectionParameters};
use super::capture::{self, Capture};
use super::error::ScenarioError;
use super::file::Scenario;
use super::flow_result::FlowResult;
use super::ideal::ShortestPaths;
use super::record::{ControlSample, RateSample, Record};
use super::results::Results;
use super::schedule::{FlowProgress, Schedule};
use super::tables::Network;
use super::traffic::{Flow, TrafficStage, flows};
use crate::Host;
use crate::fabric::{Deadlock, Fabric, FlowStats, LinkRate, Shape, Step};
use roxie_base::limits::Limits;
use roxie_base::time::Nanos;
use roxie_nic::congestion::{Rate, State};
use roxie_nic::nic::{Command, CongestionConfig, EcnPolicy, NicConfig};
use roxie_nic::profile::Profile;

/// A running scenario, advanced step by step or to its end.
#[derive(Debug)]
pub struct Simulation {
    scenario: Scenario,
    shape: Shape,
    fabric: Fabric,
    schedule: Schedule,
    applications: Applications,
    record: Record,
    captures: Vec<Capture>,
    paths: ShortestPaths,
}

impl Simulation {
    /// Builds the network and its hosts, at time zero.
    ///
    /// # Errors
    /// The first invalid value. A scenario whose hosts have a profile takes [`with_profile`](Self::with_profile).
    pub fn new(scenario: &Scenario) -> Result<Simulation, ScenarioError> {
        Simulation::with_profile(scenario, None)
    }

    /// Like [`new`](Self::new), with the profile that the scenario names.
    ///
    /// # Errors
    /// The errors of `new`, or a scenario that names a profile though none is given.
    pub fn with_profile(
        scenario: &Scenario,
        profile: Option<&'static Profile>,
    ) -> Result<Simulation, ScenarioError> {
        if let (Some(name), None) = (&scenario.hosts.profile, profile) {
            return Err(ScenarioError::of_profile(format!("profile {name:?} is not given")));
        }
        let shape = scenario.shape()?;
        let config = scenario.fabric(&shape)?;
        let rates: Vec<LinkRate> = config.stations.iter().map(|station| station.link.rate).collect();
        let stage = TrafficStage { hosts: &shape.stations, rates: &rates, end: scenario.time.0 };
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
                profile,
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
        Ok(Simulation {
            applications: Applications::new(shape.stations.len(), terms),
            paths: ShortestPaths::new(&shape, scenario.hosts.mtu.into(), scenario.hosts.message.0),
            record: Record::new(shape.stations.len(), scenario.output.interval.0),
            schedule: Schedule::new(flows),
            captures: Vec::new(),
            scenario: scenario.clone(),
            shape,
            fabric,
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
        self.schedule.flows()
    }

    /// Returns the current time.
    pub fn now(&self) -> Nanos {
        self.fabric.now()
    }

    /// Returns the number of flows that have not ended.
    pub fn open(&self) -> usize {
        self.schedule.open()
    }

    /// Returns the number of queue pairs made.
    pub fn queue_pairs(&self) -> usize {
        self.applications.queue_pairs()
    }

    /// Returns the traffic samples of each output interval. Hosts without a change are left out.
    pub fn samples(&self) -> &[RateSample] {
        self.record.rates()
    }

    /// Captures a link, named by its ends: `leaf0-spine1`. Each end is an interface of the capture; comments describe
    /// the outcome in the switches.
    ///
    /// # Errors
    /// If the link does not exist, or `out` fails.
    pub fn capture(&mut self, link: &str, out: Box<dyn Write + Send>) -> Result<(), ScenarioError> {
        let ends = capture::ends(&self.shape, link)?;
        self.captures.push(Capture::new(&self.shape, ends, self.scenario.output.frames, out)?);
        ends.into_iter().for_each(|end| self.fabric.tap(end));
        Ok(())
    }

    /// Returns the congestion control state of a flow, as of its last packet. `None`: the flow has not started, has
    /// ended, or has no congestion control.
    ///
    /// # Panics
    /// If the flow does not exist.
    pub fn control_state(&self, flow: usize) -> Option<State> {
        let progress = self.schedule.progress(flow);
        let (host, qp) = self.applications.queue_pair(progress.conn.filter(|_| progress.ended.is_none())?);
        self.fabric.hosts()[host].worker.nic().qp_status(qp.handle.index)?.control
    }

    /// Returns the congestion control state of each controlled flow at each interval, if the output asks for it.
    pub fn control_samples(&self) -> &[ControlSample] {
        self.record.control()
    }

    /// Returns true if all flows have ended, or the scenario's time is over.
    pub fn is_over(&self) -> bool {
        self.open() == 0 || self.now() >= self.scenario.time.0
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
        while self.open() > 0 && self.fabric.now() < limit {
            self.begin_due()?;
            let until = limit.min(self.schedule.next_start()).min(self.record.next_at());
            self.play(until, &mut look);
            self.write_captures()?;
            if self.fabric.now() >= self.record.next_at() {
                self.sample();
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
            let mut more = false;
            for (flow, outcome) in self.applications.poll(&mut self.fabric, station, self.schedule.flows()) {
                more |= self.schedule.ended(flow, now, outcome);
            }
            if more || self.open() == 0 {
                return;
            }
        }
    }

    fn write_captures(&mut self) -> Result<(), ScenarioError> {
        if self.captures.is_empty() {
            return Ok(());
        }
        let is_over = self.is_over();
        let sights = self.fabric.take_sights();
        for capture in &mut self.captures {
            sights.iter().try_for_each(|sight| capture.take(sight))?;
            if is_over {
                capture.finish()?;
            }
        }
        Ok(())
    }

    fn begin_due(&mut self) -> Result<(), ScenarioError> {
        let now = self.fabric.now();
        while let Some(due) = self.schedule.take_due(now) {
            for number in due {
                let flow = &self.schedule.flows()[number as usize];
                let conn = self.applications.begin(&mut self.fabric, number, flow)?;
                self.schedule.started(number, now, conn);
            }
        }
        Ok(())
    }

    /// Returns the first deadlock that lasted for an output interval, and its queues as `SWITCH:PORT`. Each queue waits
    /// for the next.
    pub fn deadlock(&self) -> Option<(&Deadlock, &str)> {
        self.record.deadlock()
    }

    fn sample(&mut self) {
        self.record.sample_rates(&self.fabric);
        if self.scenario.output.control {
            for flow in 0..self.flows().len() {
                if let Some(state) = self.control_state(flow) {
                    self.record.sample_control(ControlSample { at: self.fabric.now(), flow, state });
                }
            }
        }
        if self.scenario.pfc.is_some() {
            self.record.check_deadlock(&self.fabric, &self.shape);
        }
        self.record.begin_interval();
    }

    /// Returns the results up to now.
    pub fn results(&self) -> Results {
        let mut paths = self.paths.clone();
        let flow_stats =
            |number: usize, conn, read| self.applications.flow_stats(&self.fabric, number as u32, conn, read);
        let result = |(number, (flow, progress)): (usize, (&Flow, &FlowProgress))| FlowResult {
            began: progress.began,
            ended: progress.ended,
            ideal: paths.time(flow),
            failed: progress.failed.map(|status| status.to_string()),
            flow_stats: progress
                .conn
                .map_or_else(FlowStats::default, |conn| flow_stats(number, conn, flow.read)),
        };
        let flows = self.schedule.iter().enumerate().map(result).collect();
        let network = Network { shape: &self.shape, fabric: &self.fabric };
        Results::of(&self.scenario, self.flows(), flows, network, &self.record)
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
        selective_repeat: hosts.selective_repeat,
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
