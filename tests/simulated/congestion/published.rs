//! A reference implementation of DCQCN, event by event, written from the paper's pseudo-code of the reaction point
//! (SIGCOMM 2015) and from the description of the adapter's parameters.
//!
//! Only the names of knobs are shared with the code under test. Timers are entries of a queue that expire one by one,
//! each update and each increase is one step of plain arithmetic, and bytes are deducted one counter reset at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Alpha,
    Increase,
}

/// Parameters: rates in bits per second, times in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// True to decrease, update alpha and restart timers at each notification; false to update alpha by its own clock.
    pub(crate) paper: bool,
    pub(crate) line: f64,
    pub(crate) max: f64,
    pub(crate) min: f64,
    pub(crate) ai: f64,
    pub(crate) hai: f64,
    pub(crate) f: u64,
    pub(crate) timer: u64,
    pub(crate) bytes: u64,
    /// Numerator, out of 1024, of the part of alpha that remains.
    pub(crate) g: f64,
    pub(crate) alpha_timer: u64,
    /// Numerator, out of 1024.
    pub(crate) alpha: f64,
    pub(crate) gd: i32,
    /// In percent.
    pub(crate) min_dec_fac: f64,
    pub(crate) monitor: u64,
    pub(crate) first: f64,
    pub(crate) clamp: bool,
    pub(crate) clamp_ati: bool,
}

impl Table {
    pub(crate) fn connectx(line: f64) -> Table {
        Table {
            paper: false,
            line,
            max: 0.0,
            min: 1e6,
            ai: 5e6,
            hai: 50e6,
            f: 1,
            timer: 300_000,
            bytes: 32_767,
            g: 1019.0,
            alpha_timer: 1_000,
            alpha: 1023.0,
            gd: 11,
            min_dec_fac: 50.0,
            monitor: 4_000,
            first: 0.0,
            clamp: false,
            clamp_ati: true,
        }
    }

    pub(crate) fn paper(line: f64) -> Table {
        Table {
            paper: true,
            ai: 40e6,
            hai: 400e6,
            f: 5,
            timer: 55_000,
            bytes: 10_000_000,
            g: 1020.0,
            alpha_timer: 55_000,
            alpha: 1024.0,
            min_dec_fac: 0.0,
            monitor: 0,
            clamp: true,
            ..Table::connectx(line)
        }
    }
}

pub(crate) struct Published {
    p: Table,
    pub(crate) rc: f64,
    pub(crate) rt: f64,
    pub(crate) alpha: f64,
    pub(crate) t: u64,
    pub(crate) bc: u64,
    counted: u64,
    is_notified: bool,
    /// Causes of the increases since the last decrease.
    by_timer: bool,
    by_bytes: bool,
    cut_at: Option<u64>,
    queue: BinaryHeap<Reverse<(u64, Timer, u64)>>,
    /// A restarted timer leaves its old entry in the queue, with an old number.
    numbers: [u64; 2],
}

impl Published {
    pub(crate) fn new(p: Table) -> Published {
        let top = if p.max > 0.0 && p.max < p.line { p.max } else { p.line };
        let alpha = p.alpha / 1024.0;
        let p = Table { line: top, ..p };
        Published {
            p,
            rc: top,
            rt: top,
            alpha,
            t: 0,
            bc: 0,
            counted: 0,
            is_notified: false,
            by_timer: false,
            by_bytes: false,
            cut_at: None,
            queue: BinaryHeap::new(),
            numbers: [0; 2],
        }
    }

    fn start(&mut self, timer: Timer, at: u64) {
        let number = &mut self.numbers[timer as usize];
        *number += 1;
        self.queue.push(Reverse((at, timer, *number)));
    }

    /// Returns the next timer's expiry.
    pub(crate) fn next(&mut self) -> Option<u64> {
        while let Some(Reverse((at, timer, number))) = self.queue.peek().copied() {
            if self.numbers[timer as usize] == number {
                return Some(at);
            }
            self.queue.pop();
        }
        None
    }

    /// Runs timers that are due up to and at `now`.
    pub(crate) fn run_to(&mut self, now: u64) {
        while self.next().is_some_and(|at| at <= now) {
            let Reverse((at, timer, _)) = self.queue.pop().unwrap();
            match timer {
                Timer::Alpha => {
                    let g = 1.0 - self.p.g / 1024.0;
                    let one = if !self.p.paper && self.is_notified { 1.0 } else { 0.0 };
                    self.alpha = (1.0 - g) * self.alpha + g * one;
                    self.is_notified = false;
                    self.start(Timer::Alpha, at + self.p.alpha_timer);
                }
                Timer::Increase => {
                    self.increase();
                    self.t += 1;
                    self.by_timer = true;
                    self.start(Timer::Increase, at + self.p.timer);
                }
            }
        }
    }

    fn increase(&mut self) {
        let rise = if self.t.max(self.bc) < self.p.f {
            0.0
        } else if self.t.min(self.bc) > self.p.f {
            self.p.hai
        } else {
            self.p.ai
        };
        self.rt = (self.rt + rise).min(self.p.line);
        self.rc = (self.rt + self.rc) / 2.0;
    }

    pub(crate) fn sent(&mut self, now: u64, bytes: u64) {
        self.run_to(now);
        if self.cut_at.is_none() || self.p.bytes == 0 {
            return;
        }
        self.counted += bytes;
        while self.counted >= self.p.bytes {
            self.counted -= self.p.bytes;
            self.increase();
            self.bc += 1;
            self.by_bytes = true;
        }
    }

    pub(crate) fn notified(&mut self, now: u64) {
        self.run_to(now);
        let first = self.cut_at.is_none();
        if self.cut_at.is_none_or(|at| now >= at + self.p.monitor) {
            self.cut(first);
            self.cut_at = Some(now);
            self.t = 0;
            self.bc = 0;
            self.counted = 0;
            self.by_timer = false;
            self.by_bytes = false;
            self.start(Timer::Increase, now + self.p.timer);
        }
        if self.p.paper {
            let g = 1.0 - self.p.g / 1024.0;
            self.alpha = (1.0 - g) * self.alpha + g;
            self.start(Timer::Alpha, now + self.p.alpha_timer);
        } else {
            self.is_notified = true;
            if first {
                self.start(Timer::Alpha, now + self.p.alpha_timer);
            }
        }
    }

    fn cut(&mut self, first: bool) {
        let lowest = self.p.min.min(self.p.line);
        if first && self.p.first > 0.0 {
            self.rc = self.p.first.max(lowest).min(self.p.line);
            self.rt = self.rc;
            return;
        }
        if self.p.clamp || self.by_bytes || self.p.clamp_ati && self.by_timer {
            self.rt = self.rc;
        }
        let in_1024ths = self.alpha * 1024.0;
        let mut after = self.rc * (1.0 - in_1024ths / 2f64.powi(self.p.gd));
        let bound = self.rc * self.p.min_dec_fac / 100.0;
        if after < bound {
            after = bound;
        }
        if after < lowest {
            after = lowest;
        }
        self.rc = after;
    }
}
