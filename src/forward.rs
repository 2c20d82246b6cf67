//! A fabric in real time: frames of real interfaces through simulated links and switches.
//!
//! Each station of a [`Fabric`] without a host is a tap. What its interface sends comes into the station's ring when it is read, and
//! takes its time from there on as in virtual time: links, queues, marks and losses are computed at exact times. What comes to a
//! station goes to its interface when the clock says so, or a little later: [`Forwarder::lateness`] knows how much.

use std::io;
use std::os::fd::AsFd;

use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::netdev::Tap;
use crate::sim::fabric::{Fabric, Step};
use crate::threads;
use crate::time::{Clock, Nanos};

/// Frames read from one tap before the others have their turn.
const BATCH: usize = 32;
/// The longest frame.
const LONGEST: usize = 65_536;
/// The longest sleep: whoever calls wants to look now and then.
const LONGEST_SLEEP: Nanos = Nanos::from_millis(10);
/// With less to wait than this a sleep comes too late.
const SHORTEST_SLEEP: Nanos = Nanos(2_000);

/// A fabric, and the taps that are its stations.
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
    /// Begins now. Tap `n` is station `n`.
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

    /// The fabric, whose time is the clock's.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// How long after their time frames were at their interface, in ns.
    pub fn lateness(&self) -> &Histogram<u64> {
        &self.lateness
    }

    /// Frames that an interface did not take.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Forwards until `look`, which is called after every turn, says that it is enough.
    ///
    /// # Errors
    /// If an interface is gone.
    pub fn run(&mut self, mut look: impl FnMut(&Fabric) -> bool) -> io::Result<()> {
        // The kernel may else be 50 us late for each sleep, to save wake-ups. It does not refuse.
        let _ = nix::sys::prctl::set_timerslack(1);
        if threads::ask_to_go_first().is_err() {
            let _ = threads::ask_for_short_turns();
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

    /// Delivers what is due, then takes in what there is. True: there may be more at once.
    ///
    /// # Errors
    /// If an interface is gone.
    pub fn turn(&mut self) -> io::Result<bool> {
        self.deliver(self.clock.now());
        let mut more = false;
        for station in 0..self.taps.len() {
            for n in 1..=BATCH {
                let Some(length) = self.taps[station].read(&mut self.buffer)? else { break };
                let now = self.clock.now();
                // What has become due meanwhile comes before it.
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

    /// Sleeps until a frame comes or something is due.
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
