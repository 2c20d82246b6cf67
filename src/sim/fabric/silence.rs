//! Who was asked to be silent, and until when: a sender's half of PAUSE and of priority flow control.

use std::collections::VecDeque;

use super::error::PRIORITIES;
use super::link::LinkRate;
use crate::time::Nanos;
use crate::wire::mac_control::MacControl;

/// The silence of each priority of a sender.
#[derive(Debug, Default)]
pub(super) struct Silence {
    until: [Nanos; PRIORITIES],
    /// Since when it has been so without a break.
    since: [Nanos; PRIORITIES],
    /// What the peer asked for, and from when it holds.
    asked: VecDeque<(Nanos, MacControl)>,
    /// How long each was asked for in all, in ns.
    total: [u64; PRIORITIES],
}

impl Silence {
    /// The peer asks for silence, or for its end, from `holds` on. Times do not go back.
    pub(super) fn ask(&mut self, holds: Nanos, control: MacControl) {
        self.asked.push_back((holds, control));
    }

    /// Takes into account what holds at `now`: before anything is asked.
    pub(super) fn heed(&mut self, now: Nanos, rate: LinkRate) {
        while let Some((holds, control)) = self.asked.front().copied()
            && holds <= now
        {
            self.asked.pop_front();
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

    /// Until when a priority is silent.
    pub(super) fn until(&self, priority: usize) -> Nanos {
        self.until[priority]
    }

    /// Since when a priority that is silent has been so without a break.
    pub(super) fn since(&self, priority: usize) -> Nanos {
        self.since[priority]
    }

    /// When something that was asked for begins to hold.
    pub(super) fn changes(&self) -> Nanos {
        self.asked.front().map_or(Nanos::MAX, |(holds, _)| *holds)
    }

    /// How long a priority was to be silent in all.
    pub(super) fn total(&self, priority: usize) -> Nanos {
        Nanos(self.total[priority])
    }
}
