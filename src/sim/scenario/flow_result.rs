//! The result of one flow.

use crate::fabric::FlowStats;
use roxie_base::time::Nanos;

/// Result of a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowResult {
    /// Start time. `None`: the flow did not start.
    pub began: Option<Nanos>,
    /// End time. `None`: the flow did not end during the run.
    pub ended: Option<Nanos>,
    /// Completion time in an empty network.
    pub ideal: Nanos,
    /// Cause of the failure, if the flow failed.
    pub failed: Option<String>,
    /// Statistics of its frames: data, responses, and notifications to the data's sender.
    pub flow_stats: FlowStats,
}

impl FlowResult {
    /// Returns the time from start to end, if the flow completed.
    pub fn completion_time(&self) -> Option<Nanos> {
        Some(self.ended.filter(|_| self.failed.is_none())?.since(self.began?))
    }

    /// Returns the completion time divided by [`FlowResult::ideal`].
    pub fn slowdown(&self) -> Option<f64> {
        Some(self.completion_time()?.0 as f64 / self.ideal.0.max(1) as f64)
    }
}
