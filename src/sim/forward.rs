//! A simulated fabric in real time: forwards frames between real interfaces.
//!
//! Each station of a [`Fabric`] without a host is a tap interface. A frame read from a tap enters the
//! station's ring, and from there on takes the time of the simulation: links, queues, marks and losses are
//! computed at exact times. A frame that arrives at a station is written to its tap when the clock reaches
//! its time, or slightly later: see [`Forwarder::lateness`].

use std::io;
use std::os::fd::AsFd;

use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::fabric::{Fabric, Step};
use roxie_base::threads;
use roxie_base::time::{Clock, Nanos};
use roxie_port::netdev::Tap;

/// Maximum number of frames read from one tap before the next tap.
const BATCH: usize = 32;
/// Bytes of the longest frame.
const LONGEST: usize = 65_536;
/// Longest sleep, so that the caller's `look` runs regularly.
const LONGEST_SLEEP: Nanos = Nanos::from_millis(10);
/// Shortest sleep. A shorter wait is not slept, because the wake-up would be late.
const SHORTEST_SLEEP: Nanos = Nanos(2_000);

/// A fabric, with the taps that are its stations.
#[derive(Debug)]
pub struct Forwarder {
    fabric: Fabric,
    taps: Vec<Tap>,
    clock: Clock,
    buffer: Vec<u8>,
    lateness: Histogram<u64>,
    refused: u64,
}

impl Forwarder {
    /// Creates a forwarder. The clock starts now. Tap `n` is station `n`.
    pub fn new(fabric: Fabric, taps: Vec<Tap>) -> Forwarder {
        Forwarder {
            fabric,
            taps,
            clock: Clock::new(),
            buffer: vec![0; LONGEST],
            lateness: Histogram::new_with_bounds(1, 10_000_000_000, 2).expect("bounds as documented"),
            refused: 0,
        }
    }

    /// Returns the fabric, which runs by the clock.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Returns the distribution of the delay, in ns, from a frame's simulated arrival to its write to the
    /// interface.
    pub fn lateness(&self) -> &Histogram<u64> {
        &self.lateness
    }

    /// Returns the number of frames that an interface rejected.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Forwards until `look` returns true. `look` is called after every turn.
    ///
    /// # Errors
    /// If an interface has disappeared.
    pub fn run(&mut self, mut look: impl FnMut(&Fabric) -> bool) -> io::Result<()> {
        // By default the kernel delays each wake-up by up to 50 us to save power. The call cannot fail.
        let _ = nix::sys::prctl::set_timerslack(1);
        if threads::request_real_time().is_err() {
            let _ = threads::request_short_slices();
        }
        loop {
            let busy = self.turn()?;
            if look(&self.fabric) {
                return Ok(());
            }
            if !busy {
                self.sleep()?;
            }
        }
    }

    /// Delivers all frames that are due, then reads from the taps. Returns true if a tap may have more
    /// frames.
    ///
    /// # Errors
    /// If an interface has disappeared.
    pub fn turn(&mut self) -> io::Result<bool> {
        self.deliver(self.clock.now());
        let mut more = false;
        for station in 0..self.taps.len() {
            for n in 1..=BATCH {
                let Some(length) = self.taps[station].read(&mut self.buffer)? else { break };
                let now = self.clock.now();
                // Frames that have become due meanwhile are delivered first.
                self.deliver(now);
                self.fabric.send(now, station, &self.buffer[..length]);
                more |= n == BATCH;
            }
        }
        Ok(more)
    }

    fn deliver(&mut self, now: Nanos) {
        while let Some(step) = self.fabric.step(now) {
            let Step::Arrived { station } = step else { continue };
            while let Some((due, frame)) = self.fabric.take(station) {
                if self.taps[station].write(&frame).is_err() {
                    self.refused += 1;
                }
                self.lateness.saturating_record(self.clock.now().since(due).0);
                self.fabric.recycle(frame);
            }
        }
    }

    /// Sleeps until a frame arrives or an event is due.
    fn sleep(&self) -> io::Result<()> {
        let wait = self.fabric.next_event().since(self.clock.now()).min(LONGEST_SLEEP);
        if wait < SHORTEST_SLEEP {
            return Ok(());
        }
        let mut fds: Vec<_> =
            self.taps.iter().map(|tap| PollFd::new(tap.as_fd(), PollFlags::POLLIN)).collect();
        match ppoll(&mut fds, Some(TimeSpec::from_duration(wait.as_duration())), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
