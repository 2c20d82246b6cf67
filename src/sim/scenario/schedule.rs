//! The flows of a scenario: which have started and ended, and which may start next.

use std::collections::BTreeMap;

use super::application::FlowOutcome;
use super::traffic::Flow;
use roxie_base::time::Nanos;
use roxie_nic::verbs::WcStatus;

/// Progress of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowProgress {
    pub(super) began: Option<Nanos>,
    pub(super) ended: Option<Nanos>,
    pub(super) failed: Option<WcStatus>,
    /// Number of flows that must still end before this one starts.
    waits: u32,
    /// Connection that carries the flow, once it has started.
    pub(super) conn: Option<u32>,
}

/// All flows and their progress, by number.
#[derive(Debug)]
pub(super) struct Schedule {
    flows: Vec<Flow>,
    progress: Vec<FlowProgress>,
    /// For each flow: the flows that wait for it.
    next: Vec<Vec<u32>>,
    /// Flows by start time, those not started yet.
    due: BTreeMap<Nanos, Vec<u32>>,
    open: usize,
}

impl Schedule {
    pub(super) fn new(flows: Vec<Flow>) -> Schedule {
        let mut next = vec![Vec::new(); flows.len()];
        let mut progress = vec![FlowProgress::default(); flows.len()];
        let mut due: BTreeMap<Nanos, Vec<u32>> = BTreeMap::new();
        for (number, flow) in flows.iter().enumerate() {
            progress[number].waits = flow.after.len() as u32;
            flow.after.iter().for_each(|before| next[*before as usize].push(number as u32));
            if flow.after.is_empty() {
                due.entry(flow.start).or_default().push(number as u32);
            }
        }
        Schedule { open: flows.len(), flows, progress, next, due }
    }

    pub(super) fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Returns all flows with their progress, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Flow, &FlowProgress)> {
        self.flows.iter().zip(&self.progress)
    }

    /// Returns the progress of a flow.
    pub(super) fn progress(&self, flow: usize) -> FlowProgress {
        self.progress[flow]
    }

    /// Returns the number of flows that have not ended.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Returns when the next flow starts; `Nanos::MAX`: none does before another ends.
    pub(super) fn next_start(&self) -> Nanos {
        self.due.keys().next().copied().unwrap_or(Nanos::MAX)
    }

    /// Takes the flows of one start time that is over. `None`: no flow is due.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<Vec<u32>> {
        self.due.first_entry().filter(|entry| *entry.key() <= now).map(|entry| entry.remove())
    }

    /// Notes that a flow has started on a connection.
    pub(super) fn started(&mut self, flow: u32, now: Nanos, conn: u32) {
        let progress = &mut self.progress[flow as usize];
        (progress.began, progress.conn) = (Some(now), Some(conn));
    }

    /// Notes that a flow has ended. Returns true if another flow may start by that.
    pub(super) fn ended(&mut self, flow: u32, now: Nanos, outcome: FlowOutcome) -> bool {
        self.open -= 1;
        let progress = &mut self.progress[flow as usize];
        progress.ended = Some(now);
        if let FlowOutcome::Failed(status) = outcome {
            progress.failed = Some(status);
        }
        let mut more = false;
        for &waiting in &self.next[flow as usize] {
            let progress = &mut self.progress[waiting as usize];
            progress.waits -= 1;
            if progress.waits == 0 {
                self.due.entry(self.flows[waiting as usize].start.max(now)).or_default().push(waiting);
                more = true;
            }
        }
        more
    }
}
