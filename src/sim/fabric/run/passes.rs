//! Passes of the NICs on a fabric's stations.

use super::{Event, Fabric, KEPT, Step};
use crate::PASS;
use crate::fabric::hosts::Machine;
use roxie_base::time::Nanos;

impl Fabric {
    /// Attaches a machine to a station without a host. The machine's port must be [`Fabric::port`] of the station.
    ///
    /// # Panics
    /// If the station does not exist, or has a host.
    pub fn attach_machine(&mut self, station: usize, machine: Box<dyn Machine>) {
        assert!(station < self.attached.len() && !self.hosts.has(station), "station {station} is not free");
        self.machines.insert(station, machine);
        self.turn_at(station, self.now);
    }

    pub(super) fn has_nic(&self, station: usize) -> bool {
        self.hosts.has(station) || self.machines.contains_key(&station)
    }

    /// Schedules a pass of a host at `time`, or after its current pass, unless an earlier one is scheduled.
    pub(super) fn turn_at(&mut self, station: usize, time: Nanos) {
        let has_nic = self.has_nic(station);
        let slot = &mut self.attached[station];
        let time = time.max(slot.not_before);
        if !has_nic || time == Nanos::MAX || slot.turn.is_some_and(|(set, _)| set <= time) {
            return;
        }
        Fabric::set(&mut self.events, &mut slot.turn, self.now, time, Event::Turn(station));
    }

    /// Schedules passes of the machines whose applications have given them work since the last step.
    pub(super) fn wake_machines(&mut self) {
        let now = self.now;
        let due = self.machines.iter().filter(|(_, machine)| machine.needed_by() <= now);
        let due: Vec<usize> = due.map(|(station, _)| *station).collect();
        due.into_iter().for_each(|station| self.turn_at(station, now));
    }

    pub(super) fn turn(&mut self, station: usize) -> Step {
        let now = self.now;
        let slot = &mut self.attached[station];
        slot.turn = None;
        slot.not_before = now + PASS;
        let (progress, deadline) = match self.machines.get(&station) {
            Some(machine) => (machine.step(now), machine.needed_by()),
            None => {
                let host = &mut self.hosts[station];
                (host.poll(now), host.worker.next_deadline())
            }
        };
        let next = if progress.is_idle() { deadline } else { now };
        self.even_out(station);
        self.begin(station);
        self.turn_at(station, next);
        Step::Turned { station, progress }
    }

    /// Balances free buffers between the pool and a station: mostly receiving stations give buffers up, mostly sending
    /// ones take them.
    fn even_out(&mut self, station: usize) {
        let mut state = self.attached[station].shared.get();
        let spare = &mut state.spare;
        if spare.len() > KEPT {
            self.pool.extend(spare.drain(KEPT / 2..));
        } else if spare.len() < KEPT / 4 {
            let more = self.pool.len().min(KEPT / 4);
            spare.extend(self.pool.drain(self.pool.len() - more..));
        }
    }
}
