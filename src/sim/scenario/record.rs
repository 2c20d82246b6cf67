//! What a run writes down as time passes: traffic of hosts, states of congestion control, deadlocks.

use crate::fabric::{Deadlock, Fabric, Hop, Shape};
use roxie_base::time::Nanos;
use roxie_nic::congestion::State;

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

/// What is written down during a run, once in each output interval.
#[derive(Debug)]
pub(super) struct Record {
    interval: Nanos,
    next_at: Nanos,
    rates: Vec<RateSample>,
    control: Vec<ControlSample>,
    /// Byte counts of each host at the last sample.
    before: Vec<(u64, u64)>,
    /// The first deadlock, with the names of its queues.
    deadlock: Option<(Deadlock, String)>,
    /// Number of intervals at whose end a deadlock had lasted for an interval.
    deadlocked: u64,
}

impl Record {
    pub(super) fn new(hosts: usize, interval: Nanos) -> Record {
        Record {
            interval,
            next_at: interval,
            rates: Vec::new(),
            control: Vec::new(),
            before: vec![(0, 0); hosts],
            deadlock: None,
            deadlocked: 0,
        }
    }

    /// Returns when the current interval ends.
    pub(super) fn next_at(&self) -> Nanos {
        self.next_at
    }

    /// Begins the next interval.
    pub(super) fn begin_interval(&mut self) {
        self.next_at = self.next_at + self.interval;
    }

    pub(super) fn interval(&self) -> Nanos {
        self.interval
    }

    pub(super) fn rates(&self) -> &[RateSample] {
        &self.rates
    }

    pub(super) fn control(&self) -> &[ControlSample] {
        &self.control
    }

    /// Returns the first deadlock, and its queues as text.
    pub(super) fn deadlock(&self) -> Option<(&Deadlock, &str)> {
        self.deadlock.as_ref().map(|(found, text)| (found, text.as_str()))
    }

    /// Returns the duration of deadlocks, with the resolution of the interval.
    pub(super) fn deadlock_time(&self) -> Nanos {
        Nanos(self.deadlocked * self.interval.0)
    }

    /// Samples the traffic of all hosts. Hosts without a change are left out.
    pub(super) fn sample_rates(&mut self, fabric: &Fabric) {
        let at = fabric.now();
        for (host, before) in self.before.iter_mut().enumerate() {
            let stats = fabric.station(host);
            let after = (stats.sent_bytes, stats.delivered_bytes);
            if after != *before {
                self.rates.push(RateSample { at, host, sent: after.0, delivered: after.1 });
                *before = after;
            }
        }
    }

    /// Samples the congestion control state of a flow.
    pub(super) fn sample_control(&mut self, sample: ControlSample) {
        self.control.push(sample);
    }

    /// Looks for a deadlock that has lasted for an interval.
    pub(super) fn check_deadlock(&mut self, fabric: &Fabric, shape: &Shape) {
        let lasting = |deadlock: &Deadlock| fabric.now().since(deadlock.since) >= self.interval;
        let Some(deadlock) = fabric.deadlock().filter(lasting) else { return };
        self.deadlocked += 1;
        if self.deadlock.is_none() {
            let name = |hop: &Hop| format!("{}:{}", shape.switches[hop.switch].name, hop.port);
            let names: Vec<String> = deadlock.cycle.iter().chain(deadlock.cycle.first()).map(name).collect();
            let text = format!("priority {}: {}", deadlock.priority, names.join(" -> "));
            self.deadlock = Some((deadlock, text));
        }
    }
}
