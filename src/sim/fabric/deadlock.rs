//! Deadlocks: paused queues that wait for one another in a circle.
//!
//! A queue is paused because its peer's buffer is full of what came from it. That empties when the queues there send in which those
//! frames wait, which may be paused themselves. Where this leads back to where it began, nobody ever sends again.

use std::collections::{BTreeSet, HashMap};

use super::error::PRIORITIES;
use super::routing::{Hop, find_cycle};
use super::run::Fabric;
use super::topology::End;
use crate::time::Nanos;

/// Paused queues each of which waits for the next, and the last for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Of the queues.
    pub priority: usize,
    /// The ports whose queues wait.
    pub cycle: Vec<Hop>,
    /// Since when all of them have been paused without a break.
    pub since: Nanos,
}

impl Fabric {
    /// Paused queues that wait for one another now. Whether they will for ever, time tells: buffers may empty otherwise for a moment.
    pub fn deadlock(&self) -> Option<Deadlock> {
        (0..PRIORITIES).find_map(|priority| {
            let cycle = find_cycle(&self.waits(priority))?;
            let since =
                |hop: &Hop| self.switch(hop.switch).stuck_since(self.now(), hop.port.into(), priority);
            let since = cycle.iter().filter_map(since).max().unwrap_or(self.now());
            Some(Deadlock { priority, cycle, since })
        })
    }

    /// By paused queue with frames: the paused queues behind its peer's full buffer.
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
