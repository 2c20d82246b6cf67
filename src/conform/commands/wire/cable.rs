//! The cable: frames from each end to the other, through the faults of their direction.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use roxie::port::fault::FaultPort;
use roxie::port::{Port, TxId};
use roxie::time::{Clock, Nanos};

use super::judge::Judge;

/// Longest sleep.
const LONGEST_SLEEP: Nanos = Nanos::from_millis(100);
/// Shortest sleep. A shorter wait is not slept, because the wake-up would be late.
const SHORTEST_SLEEP: Nanos = Nanos::from_micros(2);
/// Interval of looks at `stops` while frames arrive without a break.
const LOOKS: Nanos = Nanos::from_millis(1);
/// Sleep while a busy link takes no frame.
const BUSY_SLEEP: Nanos = Nanos::from_micros(50);

/// One end of a cable, with the faults of frames that arrive there.
pub(super) type End = FaultPort<Box<dyn Port>>;

/// Two ends.
pub(super) struct Cable {
    pub(super) ends: [End; 2],
    clock: Clock,
    /// Time from the read of a frame to its write at the other end, in ns. Frames that a fault delays do not count.
    forwarding: Histogram<u64>,
    /// Frames too long for the other end, by the end that sends.
    pub(super) too_long: [u64; 2],
    /// Sees the frames that leave, if the connections are judged.
    judge: Option<Judge>,
}

impl Cable {
    pub(super) fn new(ends: [End; 2]) -> Cable {
        Cable {
            ends,
            clock: Clock::new(),
            forwarding: Histogram::new_with_bounds(1, 10_000_000_000, 2).expect("bounds as documented"),
            too_long: [0; 2],
            judge: None,
        }
    }

    /// Shows each frame that leaves to a judge.
    pub(super) fn show_to(&mut self, judge: Judge) {
        self.judge = Some(judge);
    }

    pub(super) fn forwarding(&self) -> &Histogram<u64> {
        &self.forwarding
    }

    /// Returns the time since the cable was made.
    pub(super) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Forwards until `stops` is readable, or `until`.
    ///
    /// # Errors
    /// If an interface has disappeared.
    pub(super) fn run(&mut self, stops: BorrowedFd<'_>, until: Nanos) -> io::Result<()> {
        // By default the kernel delays each wake-up by up to 50 us to save power. The call cannot fail.
        let _ = nix::sys::prctl::set_timerslack(1);
        let mut looked = Nanos::ZERO;
        loop {
            let is_idle = [0, 1]
                .into_iter()
                .try_fold(true, |idle, from| self.carry(from).map(|carried| idle & !carried))?;
            let now = self.clock.now();
            if now >= until {
                return Ok(());
            }
            if !is_idle && now.since(looked) < LOOKS {
                continue;
            }
            looked = now;
            let wait = if is_idle { self.pause(now).min(until.since(now)) } else { Nanos::ZERO };
            if self.sleep(stops, wait)? {
                return Ok(());
            }
        }
    }

    /// Carries one burst from an end to the other. Returns true if there was a frame.
    fn carry(&mut self, from: usize) -> io::Result<bool> {
        let judge = self.judge.as_ref();
        let [a, b] = &mut self.ends;
        let (source, target) = if from == 0 { (a, b) } else { (b, a) };
        let read = self.clock.now();
        let count = source.rx_burst(read);
        for i in 0..count {
            let frame = source.rx_frame(i).frame;
            if let Some(judge) = judge {
                judge.leaves(&frame);
            }
            let Some(id): Option<TxId> = target.tx_alloc(frame.len()) else {
                self.too_long[from] += 1;
                continue;
            };
            let mut slot = target.tx_frame(&id);
            slot.write(0, frame.a);
            slot.write(frame.a.len(), frame.b);
            target.tx_commit(id);
        }
        source.rx_release();
        let written = self.clock.now();
        if count > 0 || target.tx_pending() {
            target.tx_flush(written)?;
            self.forwarding.saturating_record_n(written.since(read).0.max(1), count as u64);
        }
        Ok(count > 0)
    }

    /// Returns how long nothing is due.
    fn pause(&mut self, now: Nanos) -> Nanos {
        let mut wait = LONGEST_SLEEP;
        for end in &mut self.ends {
            if !end.prepare_sleep() {
                return Nanos::ZERO;
            }
            wait = wait.min(end.next_event().since(now));
            if end.tx_pending() {
                wait = wait.min(BUSY_SLEEP);
            }
        }
        wait
    }

    /// Sleeps until a frame arrives, for `wait` at most. Returns true if `stops` is readable.
    fn sleep(&self, stops: BorrowedFd<'_>, wait: Nanos) -> io::Result<bool> {
        let wait = if wait < SHORTEST_SLEEP { Nanos::ZERO } else { wait };
        let frames = self.ends.iter().flat_map(|end| end.event_fds());
        let mut fds: Vec<PollFd<'_>> = std::iter::once(stops.as_fd())
            .chain(frames)
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        match ppoll(&mut fds, Some(TimeSpec::from_duration(wait.as_duration())), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(fds[0].any().unwrap_or(false)),
            Err(error) => Err(error.into()),
        }
    }
}
