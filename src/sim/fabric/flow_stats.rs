//! Per-flow statistics: what switches and links did to a flow's frames, counted where it is decided.

use std::collections::HashMap;

use super::flow::{FlowName, FlowPart, flow_of};
use roxie_wire::{Operation, Psn};

/// Statistics of a flow's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Frames marked by switches.
    pub marked: u64,
    /// Frames dropped by switches, or flushed from a queue, for any reason.
    pub dropped: u64,
    /// Frames damaged by link errors.
    pub damaged: u64,
    /// Data packets retransmitted: their PSN, or a later one, had left the host before.
    pub again: u64,
    /// Notifications (CNPs) received by the host.
    pub notified: u64,
}

impl std::ops::Add for FlowStats {
    type Output = FlowStats;
    fn add(self, other: FlowStats) -> FlowStats {
        FlowStats {
            marked: self.marked + other.marked,
            dropped: self.dropped + other.dropped,
            damaged: self.damaged + other.damaged,
            again: self.again + other.again,
            notified: self.notified + other.notified,
        }
    }
}

impl std::ops::Sub for FlowStats {
    type Output = FlowStats;
    /// Returns the counts since `earlier`.
    fn sub(self, earlier: FlowStats) -> FlowStats {
        FlowStats {
            marked: self.marked - earlier.marked,
            dropped: self.dropped - earlier.dropped,
            damaged: self.damaged - earlier.damaged,
            again: self.again - earlier.again,
            notified: self.notified - earlier.notified,
        }
    }
}

/// Verdict of a switch on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Marked,
    Dropped,
}

#[derive(Debug, Default)]
struct Account {
    flow_stats: FlowStats,
    /// PSN after the latest sent.
    sent_end: Option<Psn>,
}

/// Statistics of all flows. `None`: not counted.
#[derive(Debug, Default)]
pub(super) struct FlowStatsTable(Option<HashMap<FlowName, Account>>);

impl FlowStatsTable {
    /// Starts counting.
    pub(super) fn begin(&mut self) {
        self.0.get_or_insert_default();
    }

    pub(super) fn of(&self, flow: &FlowName) -> FlowStats {
        let account = self.0.as_ref().and_then(|accounts| accounts.get(flow));
        account.map_or_else(FlowStats::default, |account| account.flow_stats)
    }

    /// Counts a switch's verdict.
    pub(super) fn judged(&mut self, flow: FlowName, verdict: Verdict) {
        let Some(accounts) = &mut self.0 else { return };
        let flow_stats = &mut accounts.entry(flow).or_default().flow_stats;
        match verdict {
            Verdict::Marked => flow_stats.marked += 1,
            Verdict::Dropped => flow_stats.dropped += 1,
        }
    }

    /// Counts a frame damaged by a link.
    pub(super) fn damaged(&mut self, frame: &[u8]) {
        if let Some(accounts) = &mut self.0
            && let Some((flow, _)) = flow_of(frame)
        {
            accounts.entry(flow).or_default().flow_stats.damaged += 1;
        }
    }

    /// Counts a frame that left its host.
    pub(super) fn frame_sent(&mut self, frame: &[u8]) {
        let Some(accounts) = &mut self.0 else { return };
        let Some((flow, bth)) = flow_of(frame) else { return };
        let repeats = match flow.part {
            // A repeated READ request names the responses to repeat. Only these are counted.
            FlowPart::Request => bth.operation != Operation::ReadRequest,
            FlowPart::Response => bth.operation == Operation::ReadResponse,
            FlowPart::Notification => false,
        };
        if !repeats {
            return;
        }
        let account = accounts.entry(flow).or_default();
        match account.sent_end {
            Some(end) if bth.psn.is_before(end) => account.flow_stats.again += 1,
            _ => account.sent_end = Some(bth.psn.next()),
        }
    }

    /// Counts a frame received by its host.
    pub(super) fn frame_received(&mut self, frame: &[u8]) {
        if let Some(accounts) = &mut self.0
            && let Some((flow, _)) = flow_of(frame)
            && flow.part == FlowPart::Notification
        {
            accounts.entry(flow).or_default().flow_stats.notified += 1;
        }
    }
}
