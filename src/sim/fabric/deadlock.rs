//! Deadlocks: cycles of paused queues.
//!
//! A queue is paused because its peer's buffer is full of the queue's frames. The buffer drains when the peer's egress
//! queues that hold these frames send, but those may be paused as well. If this chain leads back to the first queue,
//! none of them ever sends again.

use std::collections::{BTreeSet, HashMap};

use super::error::PRIORITIES;
use super::routing::{Hop, find_cycle};
use super::run::Fabric;
use super::topology::End;
use roxie_base::time::Nanos;

/// A cycle of paused queues: each waits for the next, and the last for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Priority of the queues.
    pub priority: usize,
    /// Ports of the queues.
    pub cycle: Vec<Hop>,
    /// Time since which all of them have been paused continuously.
    pub since: Nanos,
}

impl Fabric {
    /// Returns a cycle of paused queues, if there is one now. A cycle may still dissolve, so only one that persists is
    /// a deadlock.
    pub fn deadlock(&self) -> Option<Deadlock> {
        (0..PRIORITIES).find_map(|priority| {
            let cycle = find_cycle(&self.waits(priority))?;
            let since =
                |hop: &Hop| self.switch(hop.switch).stuck_since(self.now(), hop.port.into(), priority);
            let since = cycle.iter().filter_map(since).max().unwrap_or(self.now());
            Some(Deadlock { priority, cycle, since })
        })
    }

    /// Maps each paused queue with frames to the paused queues that its peer's full buffer waits for.
    fn waits(&self, priority: usize) -> HashMap<Hop, BTreeSet<Hop>> {
        let mut waits = HashMap::new();
        for switch in 0..self.switches() {
            for port in 0..self.switch(switch).config().ports.len() {
                if self.switch(switch).stuck_since(self.now(), port, priority).is_none() {
                    continue;
                }
                let Some(End::Switch { switch: peer, port: at }) = self.peer(switch, port) else { continue };
                let behind = self.switch(peer);
                if !behind.pauses(at.into(), priority) {
                    continue;
                }
                let blocked = behind.blocked_by(self.now(), at.into(), priority);
                let hops = blocked.into_iter().map(|port| Hop { switch: peer, port }).collect();
                waits.insert(Hop { switch, port: port as u16 }, hops);
            }
        }
        waits
    }
}
