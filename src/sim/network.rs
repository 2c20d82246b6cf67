//! Hosts on a switch, and one clock.

use super::{Host, PASS};
use crate::time::Nanos;

/// Any number of hosts and the time.
#[derive(Debug, Default)]
pub struct Network {
    /// The hosts, in the order of their stations.
    pub hosts: Vec<Host>,
    /// The time that all hosts are told.
    pub now: Nanos,
}

impl Network {
    /// One pass of each host that is due, then time moves on: a little while something happens, else to the next deadline, but never
    /// beyond `limit`. False: nothing happens before `limit`, which is now.
    pub fn step(&mut self, limit: Nanos) -> bool {
        let mut busy = false;
        for host in self.hosts.iter_mut().filter(|host| host.is_due(self.now)) {
            busy |= !host.poll(self.now).is_idle();
        }
        if busy {
            self.now = self.now + PASS;
            return true;
        }
        let next = self.next_deadline().max(self.now + PASS);
        let happens = next < limit;
        if happens || limit != Nanos::MAX {
            self.now = next.min(limit).max(self.now);
        }
        happens
    }

    /// When something happens by itself next; `Nanos::MAX`: never.
    pub fn next_deadline(&self) -> Nanos {
        self.hosts.iter().map(|host| host.worker.next_deadline()).min().unwrap_or(Nanos::MAX)
    }

    /// Time passes without anybody doing anything.
    pub fn jump(&mut self, time: Nanos) {
        self.now = self.now + time;
    }
}
