//! What leaves a port: eight queues, who of them is next, and who of them is told to be silent.

use std::collections::VecDeque;

use super::config::{PortConfig, Schedule};
use super::error::PRIORITIES;
use super::link::Line;
use super::silence::Silence;
use crate::time::Nanos;
use crate::wire::mac_control::{FRAME_LEN, MacControl};

/// Bytes that a round gives a queue for each unit of its weight.
const QUANTUM: i64 = 256;

/// A frame that waits.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) frame: Vec<u8>,
    /// Where it came in, and is charged.
    pub(super) ingress: u16,
    /// When it came.
    pub(super) since: Nanos,
    pub(super) marked: bool,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Queued>,
    bytes: u64,
    /// Since when it has had frames.
    filled_since: Nanos,
    /// Bytes that it may still send in this round.
    credit: i64,
}

/// What leaves next.
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
    /// Bit `n`: queue `n` has frames.
    filled: u8,
    /// The queue with a weight whose round it is.
    turn: usize,
    control: VecDeque<[u8; FRAME_LEN]>,
    line: Line,
    silence: Silence,
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
            silence: Silence::default(),
        }
    }

    pub(super) fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    /// Bytes that wait in a queue.
    pub(super) fn depth(&self, priority: usize) -> u64 {
        self.queues[priority].bytes
    }

    pub(super) fn silence(&self, priority: usize) -> Nanos {
        self.silence.total(priority)
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

    /// Takes what has been asked for into account.
    pub(super) fn heed(&mut self, now: Nanos) {
        self.silence.heed(now, self.line.link().rate);
    }

    /// Since when a queue with frames has been silent without a break. `None`: it is not.
    pub(super) fn stuck_since(&self, now: Nanos, priority: usize) -> Option<Nanos> {
        let stuck = self.filled & (1 << priority) != 0 && self.silence.until(priority) > now;
        stuck.then(|| self.silence.since(priority).max(self.queues[priority].filled_since))
    }

    /// Until when a queue is to be silent.
    pub(super) fn silent_until(&self, priority: usize) -> Nanos {
        self.silence.until(priority)
    }

    /// The ports by which the frames of a queue came.
    pub(super) fn waits_for(&self, priority: usize) -> impl Iterator<Item = u16> {
        self.queues[priority].frames.iter().map(|queued| queued.ingress)
    }

    /// Takes everything out of a queue.
    pub(super) fn flush(&mut self, priority: usize) -> VecDeque<Queued> {
        self.filled &= !(1 << priority);
        let queue = &mut self.queues[priority];
        (queue.bytes, queue.credit) = (0, 0);
        std::mem::take(&mut queue.frames)
    }

    /// A MAC control frame: it leaves ahead of all others.
    pub(super) fn push_control(&mut self, frame: [u8; FRAME_LEN]) {
        self.control.push_back(frame);
    }

    /// The peer asks for silence, or for its end, from `holds` on. Times do not go back.
    pub(super) fn asked(&mut self, holds: Nanos, control: MacControl) {
        self.silence.ask(holds, control);
    }

    /// Takes what leaves next, if the line is free and something may.
    pub(super) fn next(&mut self, now: Nanos) -> Option<Next> {
        self.heed(now);
        if self.line.is_busy(now) {
            return None;
        }
        if let Some(frame) = self.control.pop_front() {
            return Some(Next::Control(frame));
        }
        let ready = (0..PRIORITIES)
            .filter(|priority| self.filled & (1 << priority) != 0 && self.silence.until(*priority) <= now)
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

    /// The next of the queues with a weight: deficit round robin (Shreedhar and Varghese 1995).
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

    /// When [`Egress::next`] may have something again; `Nanos::MAX`: when something was pushed.
    pub(super) fn wakes(&self) -> Nanos {
        if self.filled == 0 && self.control.is_empty() {
            return Nanos::MAX;
        }
        let silent = || {
            let queues = (0..PRIORITIES).filter(|priority| self.filled & (1 << priority) != 0);
            let ends = queues.map(|priority| self.silence.until(priority)).min();
            ends.unwrap_or(Nanos::MAX).min(self.silence.changes())
        };
        let may_begin = if self.control.is_empty() { silent() } else { Nanos::ZERO };
        may_begin.max(self.line.free_at())
    }
}
