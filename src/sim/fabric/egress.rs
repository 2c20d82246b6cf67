//! Egress of a port: eight queues, their scheduling and their pause state.

use std::collections::VecDeque;

use super::config::{PortConfig, Schedule};
use super::error::PRIORITIES;
use super::link::Line;
use super::pause_state::PauseState;
use roxie_base::time::Nanos;
use roxie_wire::mac_control::{FRAME_LEN, MacControl};

/// Credit in bytes that a round gives a queue per unit of weight.
const QUANTUM: i64 = 256;

/// A frame in a queue.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) frame: Vec<u8>,
    /// Ingress port, to which the frame is charged.
    pub(super) ingress: u16,
    /// Arrival time.
    pub(super) since: Nanos,
    pub(super) marked: bool,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Queued>,
    bytes: u64,
    /// Time since which the queue has been non-empty.
    filled_since: Nanos,
    /// Bytes that the queue may still send in this round.
    credit: i64,
}

/// The next frame to leave.
#[derive(Debug)]
pub(super) enum Next {
    Control([u8; FRAME_LEN]),
    Data(usize, Queued),
}

/// The outgoing half of a port.
#[derive(Debug)]
pub(super) struct Egress {
    queues: [Queue; PRIORITIES],
    schedule: [Schedule; PRIORITIES],
    /// Bit `n`: queue `n` is non-empty.
    filled: u8,
    /// The weighted queue that is served in this round.
    turn: usize,
    control: VecDeque<[u8; FRAME_LEN]>,
    line: Line,
    pause_state: PauseState,
}

impl Egress {
    pub(super) fn new(config: &PortConfig) -> Egress {
        Egress {
            queues: Default::default(),
            schedule: config.schedule,
            filled: 0,
            turn: 0,
            control: VecDeque::new(),
            line: Line::new(config.link),
            pause_state: PauseState::default(),
        }
    }

    pub(super) fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    /// Returns the bytes in a queue.
    pub(super) fn depth(&self, priority: usize) -> u64 {
        self.queues[priority].bytes
    }

    pub(super) fn paused_in_total(&self, priority: usize) -> Nanos {
        self.pause_state.total(priority)
    }

    pub(super) fn push(&mut self, priority: usize, queued: Queued) {
        let queue = &mut self.queues[priority];
        if queue.frames.is_empty() {
            queue.filled_since = queued.since;
        }
        queue.bytes += queued.frame.len() as u64;
        queue.frames.push_back(queued);
        self.filled |= 1 << priority;
    }

    /// Applies the pause requests that are due.
    pub(super) fn apply_due(&mut self, now: Nanos) {
        self.pause_state.apply_due(now, self.line.link().rate);
    }

    /// Returns the time since which a non-empty queue has been paused continuously, or `None` if it is not.
    pub(super) fn stuck_since(&self, now: Nanos, priority: usize) -> Option<Nanos> {
        let stuck = self.filled & (1 << priority) != 0 && self.pause_state.until(priority) > now;
        stuck.then(|| self.pause_state.since(priority).max(self.queues[priority].filled_since))
    }

    /// Returns the time until which a queue is paused.
    pub(super) fn paused_until(&self, priority: usize) -> Nanos {
        self.pause_state.until(priority)
    }

    /// Returns the ingress ports of the frames in a queue.
    pub(super) fn waits_for(&self, priority: usize) -> impl Iterator<Item = u16> {
        self.queues[priority].frames.iter().map(|queued| queued.ingress)
    }

    /// Removes all frames from a queue.
    pub(super) fn flush(&mut self, priority: usize) -> VecDeque<Queued> {
        self.filled &= !(1 << priority);
        let queue = &mut self.queues[priority];
        (queue.bytes, queue.credit) = (0, 0);
        std::mem::take(&mut queue.frames)
    }

    /// Queues a MAC control frame, which leaves before all others.
    pub(super) fn push_control(&mut self, frame: [u8; FRAME_LEN]) {
        self.control.push_back(frame);
    }

    /// Records a pause or resume request of the peer that takes effect at `holds`. Times must not decrease.
    pub(super) fn pause_requested(&mut self, holds: Nanos, control: MacControl) {
        self.pause_state.request(holds, control);
    }

    /// Takes the next frame to leave, if the line is free and a queue may send.
    pub(super) fn next(&mut self, now: Nanos) -> Option<Next> {
        self.apply_due(now);
        if self.line.is_busy(now) {
            return None;
        }
        if let Some(frame) = self.control.pop_front() {
            return Some(Next::Control(frame));
        }
        let ready = (0..PRIORITIES)
            .filter(|priority| self.filled & (1 << priority) != 0 && self.pause_state.until(*priority) <= now)
            .fold(0u8, |ready, priority| ready | 1 << priority);
        let strict = (0..PRIORITIES)
            .rev()
            .find(|priority| ready & (1 << priority) != 0 && self.schedule[*priority] == Schedule::Strict);
        let priority = match strict {
            Some(priority) => priority,
            None => self.weighted(ready)?,
        };
        let queue = &mut self.queues[priority];
        let queued = queue.frames.pop_front().expect("it is marked as filled");
        queue.bytes -= queued.frame.len() as u64;
        if queue.frames.is_empty() {
            self.filled &= !(1 << priority);
        }
        Some(Next::Data(priority, queued))
    }

    /// Selects the next weighted queue by deficit round robin (Shreedhar and Varghese 1995).
    fn weighted(&mut self, ready: u8) -> Option<usize> {
        if ready == 0 {
            return None;
        }
        loop {
            let queue = &mut self.queues[self.turn];
            if ready & (1 << self.turn) != 0 {
                let length = queue.frames.front().expect("it is ready").frame.len() as i64;
                if queue.credit >= length {
                    queue.credit -= length;
                    return Some(self.turn);
                }
            } else if queue.frames.is_empty() {
                queue.credit = 0;
            }
            self.turn = (self.turn + 1) % PRIORITIES;
            if ready & (1 << self.turn) != 0
                && let Schedule::Ets(weight) = self.schedule[self.turn]
            {
                self.queues[self.turn].credit += i64::from(weight) * QUANTUM;
            }
        }
    }

    /// Returns when [`Egress::next`] may return a frame again; `Nanos::MAX`: not before a push.
    pub(super) fn wakes(&self) -> Nanos {
        if self.filled == 0 && self.control.is_empty() {
            return Nanos::MAX;
        }
        let silent = || {
            let queues = (0..PRIORITIES).filter(|priority| self.filled & (1 << priority) != 0);
            let ends = queues.map(|priority| self.pause_state.until(priority)).min();
            ends.unwrap_or(Nanos::MAX).min(self.pause_state.changes())
        };
        let may_begin = if self.control.is_empty() { silent() } else { Nanos::ZERO };
        may_begin.max(self.line.free_at())
    }
}
