//! Pause state of a sender, for PAUSE and priority flow control.

use std::collections::VecDeque;

use super::error::PRIORITIES;
use super::link::LinkRate;
use roxie_base::time::Nanos;
use roxie_wire::mac_control::MacControl;

/// Pause state of each priority.
#[derive(Debug, Default)]
pub(super) struct PauseState {
    until: [Nanos; PRIORITIES],
    /// Time since which the priority has been paused continuously.
    since: [Nanos; PRIORITIES],
    /// Requests of the peer, with the time at which each takes effect.
    requests: VecDeque<(Nanos, MacControl)>,
    /// Total requested pause time, in ns.
    total: [u64; PRIORITIES],
}

impl PauseState {
    /// Records a pause or resume request that takes effect at `holds`. Times must not decrease.
    pub(super) fn request(&mut self, holds: Nanos, control: MacControl) {
        self.requests.push_back((holds, control));
    }

    /// Applies the requests that are due at `now`. Call this before any query.
    pub(super) fn apply_due(&mut self, now: Nanos, rate: LinkRate) {
        while let Some((holds, control)) = self.requests.front().copied()
            && holds <= now
        {
            self.requests.pop_front();
            let (enable, quanta) = match control {
                MacControl::Pause { quanta } => (0xff, [quanta; PRIORITIES]),
                MacControl::Pfc { enable, quanta } => (enable, quanta),
            };
            for priority in (0..PRIORITIES).filter(|priority| enable & (1 << priority) != 0) {
                if self.until[priority] <= holds {
                    self.since[priority] = holds;
                }
                let until = holds + rate.pause(quanta[priority]);
                let more = until.since(holds).0 as i64 - self.until[priority].since(holds).0 as i64;
                self.total[priority] = self.total[priority].saturating_add_signed(more);
                self.until[priority] = until;
            }
        }
    }

    /// Returns the time until which a priority is paused.
    pub(super) fn until(&self, priority: usize) -> Nanos {
        self.until[priority]
    }

    /// Returns the time since which a paused priority has been paused continuously.
    pub(super) fn since(&self, priority: usize) -> Nanos {
        self.since[priority]
    }

    /// Returns when the next pending request takes effect.
    pub(super) fn changes(&self) -> Nanos {
        self.requests.front().map_or(Nanos::MAX, |(holds, _)| *holds)
    }

    /// Returns the total requested pause time of a priority.
    pub(super) fn total(&self, priority: usize) -> Nanos {
        Nanos(self.total[priority])
    }
}
