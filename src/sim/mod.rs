//! NICs in virtual time: the [`crate::engine::Worker`] that drives hardware, run step by step.
//!
//! A [`Host`] is a NIC, its port and the application's side of its queues, without threads or clocks. [`Pair`] joins two hosts by any two
//! ports, [`fabric::Fabric`] any number of hosts by links and switches. `Pair` and `Fabric` advance time to the next due event. Results are
//! a function of the seeds alone.

mod address;
mod connection;
pub mod events;
pub mod fabric;
mod host;
pub mod scenario;

// Types of the layers below that this API takes and returns.
pub use crate::nic::{
    Answer, Command, ControlError, MemoryCommand, NicConfig, QpStatus, ReceiveSource, SrqStatus,
};
pub use crate::shared::work_queue::Payload;
pub use crate::shared::{CompletionRing, HostMemory, PostError};

pub use connection::Connected;
pub use host::{Host, HostQp, HostRegion, HostSrq};

use crate::port::Port;
use crate::time::Nanos;

/// Virtual duration of a pass. Simultaneous events may be this far apart.
const PASS: Nanos = Nanos(500);

/// Two hosts and one clock.
#[derive(Debug)]
pub struct Pair {
    /// The end that runs first in each step.
    pub a: Host,
    /// The end that runs second.
    pub b: Host,
    /// The current time of both ends.
    pub now: Nanos,
    quiet_passes: u32,
}

impl Pair {
    /// Joins two hosts. Their ports must already be connected to each other.
    pub fn new(a: Host, b: Host) -> Pair {
        Pair { a, b, now: Nanos::ZERO, quiet_passes: 0 }
    }

    /// Runs one pass of each host, then advances time: by one pass if a host did something, else to the next deadline. Returns false if
    /// nothing is pending and only the applications can continue.
    pub fn step(&mut self) -> bool {
        let progress = [self.a.worker.poll(self.now), self.b.worker.poll(self.now)];
        if progress.iter().any(|p| !p.is_idle()) {
            self.quiet_passes = 0;
            self.now = self.now + PASS;
            return true;
        }
        // A frame sent by one host in its pass is received by the other host in the next.
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

    /// Steps until nothing is pending or `limit` is reached. Returns true if nothing is pending.
    pub fn run(&mut self, limit: Nanos) -> bool {
        while self.now < limit {
            if !self.step() {
                return true;
            }
        }
        false
    }
}

/// Creates two ports joined by memory, with the addresses of hosts 1 and 2 ([`Host::address`]).
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
