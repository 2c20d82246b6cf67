//! Which frames a fault hits: rules, their random draws, and the frames held back.

use super::mark::may_be_marked;
use super::{Action, Direction, Fault, When};
use roxie_base::frame::Frame;
use roxie_base::random::splitmix;
use roxie_base::time::Nanos;

/// True if a rule applies to the frame.
pub(super) type Predicate = Box<dyn FnMut(&Frame<'_>) -> bool + Send>;

/// The faults that hit one frame.
#[derive(Default)]
pub(super) struct Verdict {
    pub(super) drop: bool,
    pub(super) duplicate: bool,
    /// Random number that chooses the bit to flip.
    pub(super) corrupt: Option<u64>,
    pub(super) mark: bool,
    pub(super) hold: Option<Hold>,
    reorder: bool,
}

impl Verdict {
    pub(super) fn is_nothing(&self) -> bool {
        !self.drop && !self.duplicate && !self.alters()
    }

    /// True if a changed or delayed copy replaces the frame.
    pub(super) fn alters(&self) -> bool {
        self.corrupt.is_some() || self.mark || self.hold.is_some()
    }
}

/// How long a frame is held: until `due`, or, if `passes` is not 0, until that many later frames have passed.
#[derive(Clone, Copy)]
pub(super) struct Hold {
    pub(super) due: Nanos,
    pub(super) passes: u32,
}

/// One direction: its rules and the frames that they hold back.
pub(super) struct Side {
    direction: Direction,
    rules: Vec<Rule>,
    waiting: Vec<(Held, Hold)>,
    next_due: Nanos,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    dropped: u64,
    duplicated: u64,
    corrupted: u64,
    marked: u64,
    delayed: u64,
    reordered: u64,
    /// Faults that were skipped because every buffer was in use.
    unharmed: u64,
}

struct Rule {
    fault: Fault,
    matches: Option<Predicate>,
    seen: u64,
    draws: Draws,
}

impl Side {
    pub(super) fn new(direction: Direction, held: usize) -> Side {
        Side {
            direction,
            rules: Vec::new(),
            waiting: Vec::with_capacity(held),
            next_due: Nanos::MAX,
            counts: Counts::default(),
        }
    }

    /// Adds a rule. Its draws depend on the seed, the direction and its place among the rules.
    pub(super) fn add(&mut self, seed: u64, fault: Fault, matches: Option<Predicate>) {
        let stream = 2 * self.rules.len() as u64 + u64::from(self.direction == Direction::Tx);
        self.rules.push(Rule { fault, matches, seen: 0, draws: Draws::new(seed, stream) });
    }

    /// Returns the faults that hit `frame`, from all rules.
    pub(super) fn judge(&mut self, frame: &Frame<'_>, now: Nanos) -> Verdict {
        let mut verdict = Verdict::default();
        for rule in &mut self.rules {
            if !rule.strikes(frame) {
                continue;
            }
            match rule.fault.action {
                Action::Drop => verdict.drop = true,
                Action::Duplicate => verdict.duplicate = true,
                Action::Corrupt => verdict.corrupt = Some(rule.draws.next()),
                // A frame without ECT or CE passes unmarked.
                Action::Mark => verdict.mark = may_be_marked(frame),
                Action::Delay(time) => {
                    verdict.hold.get_or_insert(Hold { due: now + time, passes: 0 });
                }
                Action::Reorder { after, within } => {
                    verdict.reorder |= verdict.hold.is_none();
                    verdict.hold.get_or_insert(Hold { due: now + within, passes: after });
                }
            }
        }
        self.counts.dropped += u64::from(verdict.drop);
        verdict
    }

    /// Counts what happened to a frame that was not dropped.
    pub(super) fn tally(&mut self, verdict: &Verdict, altered: bool, duplicated: bool) {
        let c = &mut self.counts;
        c.duplicated += u64::from(verdict.duplicate && duplicated);
        c.unharmed += u64::from(verdict.duplicate && !duplicated) + u64::from(verdict.alters() && !altered);
        if altered {
            c.corrupted += u64::from(verdict.corrupt.is_some());
            c.marked += u64::from(verdict.mark);
            c.reordered += u64::from(verdict.reorder);
            c.delayed += u64::from(verdict.hold.is_some() && !verdict.reorder);
        }
    }

    pub(super) fn hold(&mut self, held: Held, hold: Hold) {
        self.next_due = self.next_due.min(hold.due);
        self.waiting.push((held, hold));
    }

    /// Counts a passing frame for all frames that wait to be overtaken.
    pub(super) fn frame_passed(&mut self) {
        for (_, hold) in &mut self.waiting {
            if hold.passes > 0 {
                hold.passes -= 1;
                if hold.passes == 0 {
                    hold.due = Nanos::ZERO;
                    self.next_due = Nanos::ZERO;
                }
            }
        }
    }

    /// Returns when the first held frame is due; `Nanos::MAX` if none is held.
    pub(super) fn next_due(&self) -> Nanos {
        self.next_due
    }

    /// Removes the held frame that was due first; of equals, the one held longest.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<Held> {
        if self.next_due > now {
            return None;
        }
        let first = (0..self.waiting.len()).min_by_key(|&i| self.waiting[i].1.due)?;
        let (held, _) = self.waiting.remove(first);
        self.next_due = self.waiting.iter().map(|(_, hold)| hold.due).min().unwrap_or(Nanos::MAX);
        Some(held)
    }

    pub(super) fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        let names = match self.direction {
            Direction::Rx => [
                "fault_rx_dropped",
                "fault_rx_duplicated",
                "fault_rx_corrupted",
                "fault_rx_marked",
                "fault_rx_delayed",
                "fault_rx_reordered",
                "fault_rx_unharmed",
            ],
            Direction::Tx => [
                "fault_tx_dropped",
                "fault_tx_duplicated",
                "fault_tx_corrupted",
                "fault_tx_marked",
                "fault_tx_delayed",
                "fault_tx_reordered",
                "fault_tx_unharmed",
            ],
        };
        let c = &self.counts;
        let values = [c.dropped, c.duplicated, c.corrupted, c.marked, c.delayed, c.reordered, c.unharmed];
        out.extend(names.into_iter().zip(values));
    }
}

impl Rule {
    fn strikes(&mut self, frame: &Frame<'_>) -> bool {
        if let Some(matches) = &mut self.matches
            && !matches(frame)
        {
            return false;
        }
        self.seen += 1;
        match self.fault.when {
            When::Rate(rate) => self.draws.unit() < rate,
            When::Nth(n) => self.seen == n,
            When::Every(n) => n > 0 && self.seen.is_multiple_of(n),
            When::First(n) => self.seen <= n,
        }
    }
}

/// Random numbers of one rule.
struct Draws {
    state: u64,
}

impl Draws {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    fn new(seed: u64, stream: u64) -> Draws {
        let mut draws = Draws { state: seed };
        draws.state = draws.next() ^ stream.wrapping_mul(Draws::STEP);
        draws.state = draws.next();
        draws
    }

    fn next(&mut self) -> u64 {
        splitmix(&mut self.state)
    }

    /// Returns a uniform random number from 0 (included) to 1 (excluded).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A fixed number of buffers for copies of frames.
pub(super) struct Pool {
    bytes: Box<[u8]>,
    buffer_len: usize,
    free: Vec<usize>,
}

/// A frame in the pool. The owner returns it by [`Pool::free`].
pub(super) struct Held {
    buffer: usize,
    len: usize,
    hidden: bool,
}

impl Held {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn ip_id_hidden(&self) -> bool {
        self.hidden
    }
}

impl Pool {
    pub(super) fn new(buffers: usize, buffer_len: usize) -> Pool {
        Pool {
            bytes: vec![0; buffers * buffer_len].into_boxed_slice(),
            buffer_len,
            free: (0..buffers).rev().collect(),
        }
    }

    /// Enlarges the buffers for frames of `len` bytes; held frames stay.
    pub(super) fn fit(&mut self, len: usize) {
        if len <= self.buffer_len {
            return;
        }
        let buffers = self.bytes.len() / self.buffer_len.max(1);
        let mut bytes = vec![0; buffers * len].into_boxed_slice();
        for (new, old) in bytes.chunks_exact_mut(len).zip(self.bytes.chunks_exact(self.buffer_len.max(1))) {
            new[..old.len()].copy_from_slice(old);
        }
        self.bytes = bytes;
        self.buffer_len = len;
    }

    /// Copies `frame` into a buffer. `None` if no buffer is free or the frame does not fit.
    pub(super) fn copy(&mut self, frame: &Frame<'_>, ip_id_hidden: bool) -> Option<Held> {
        if frame.len() > self.buffer_len {
            return None;
        }
        let held = Held { buffer: self.free.pop()?, len: frame.len(), hidden: ip_id_hidden };
        frame.copy_to(0, self.bytes_mut(&held));
        Some(held)
    }

    pub(super) fn bytes(&self, held: &Held) -> &[u8] {
        &self.bytes[held.buffer * self.buffer_len..][..held.len]
    }

    pub(super) fn bytes_mut(&mut self, held: &Held) -> &mut [u8] {
        &mut self.bytes[held.buffer * self.buffer_len..][..held.len]
    }

    pub(super) fn free(&mut self, held: Held) {
        self.free.push(held.buffer);
    }
}
