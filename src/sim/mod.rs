//! NICs in virtual time: the same [`crate::engine::Worker`] that drives hardware, turned by hand.
//!
//! A [`Host`] is a NIC, its port and the application's side of its queues, without threads or clocks. [`Pair`] joins two of
//! them by any two ports, [`fabric::Fabric`] any number by links and switches; both move time to whatever is due next. What happens is
//! a function of the seeds alone.

mod address;
mod connection;
pub mod events;
pub mod fabric;
mod host;
pub mod scenario;

// What calls of this layer take and return of those below.
pub use crate::nic::{
    Answer, Command, ControlError, MemoryCommand, NicConfig, QpStatus, ReceiveSource, SrqStatus,
};
pub use crate::shared::work_queue::Payload;
pub use crate::shared::{CompletionRing, HostMemory, PostError};

pub use connection::Connected;
pub use host::{Host, HostQp, HostRegion, HostSrq};

use crate::port::Port;
use crate::time::Nanos;

/// The time that a pass takes in virtual time: how far apart things can be that happen at once.
const PASS: Nanos = Nanos(500);

/// Two hosts and one clock.
#[derive(Debug)]
pub struct Pair {
    /// The end that is turned first in each step.
    pub a: Host,
    /// The end that is turned second.
    pub b: Host,
    /// The time that both ends are told.
    pub now: Nanos,
    quiet_passes: u32,
}

impl Pair {
    /// Joins two hosts whose ports are already joined.
    pub fn new(a: Host, b: Host) -> Pair {
        Pair { a, b, now: Nanos::ZERO, quiet_passes: 0 }
    }

    /// One pass of each host, then time moves on: a little while something happens, else to the next deadline.
    /// False: nothing will ever happen again unless the applications do something.
    pub fn step(&mut self) -> bool {
        let progress = [self.a.worker.poll(self.now), self.b.worker.poll(self.now)];
        if progress.iter().any(|p| !p.is_idle()) {
            self.quiet_passes = 0;
            self.now = self.now + PASS;
            return true;
        }
        // A frame that one host sent in its pass is seen by the other in the next.
        self.quiet_passes += 1;
        if self.quiet_passes < 2 {
            return true;
        }
        let next = self.a.worker.next_deadline().min(self.b.worker.next_deadline());
        if next == Nanos::MAX {
            return false;
        }
        self.now = next.max(self.now + PASS);
        true
    }

    /// Steps until nothing is left to do, or until `limit`. True: all is quiet.
    pub fn run(&mut self, limit: Nanos) -> bool {
        while self.now < limit {
            if !self.step() {
                return true;
            }
        }
        false
    }
}

/// Two ports joined by memory, with the addresses that [`Host::address`] gives them.
pub fn joined_ports(mtu: usize, split: Option<usize>) -> (Box<dyn Port>, Box<dyn Port>) {
    use crate::port::memory::{MemoryConfig, pair};
    let end = |n: u16| MemoryConfig {
        mac: Host::mac(n),
        mtu,
        split,
        name: format!("sim{n}"),
        ..Default::default()
    };
    let (a, b) = pair(end(1), end(2));
    (Box::new(a), Box::new(b))
}
