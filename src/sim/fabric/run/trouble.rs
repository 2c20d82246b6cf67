//! Disturbances of a running fabric: faults of frames, unplugged cables, changed stations, injected frames.

use std::io;

use super::super::cable::Entry;
use super::super::frame_faults::{Arrival, FrameFaults};
use super::super::topology::End;
use super::Fabric;
use roxie_base::time::Nanos;
use roxie_port::LinkChange;

/// Faults that a test injects, if any.
#[derive(Debug, Default)]
pub(super) struct FaultState {
    decides: Option<Box<dyn FrameFaults>>,
    arrivals: Vec<Arrival>,
}

impl FaultState {
    pub(super) fn is_clear(&self) -> bool {
        self.decides.is_none()
    }
}

impl Fabric {
    /// Sets the faults, which are decided for each frame put on a link from now on.
    pub fn set_frame_faults(&mut self, faults: Box<dyn FrameFaults>) {
        self.faults.decides = Some(faults);
    }

    /// Schedules one copy for each arrival that the injected faults leave of a frame.
    pub(super) fn carry_through_weather(&mut self, arrives: Nanos, end: End, frame: Vec<u8>) {
        let mut arrivals = std::mem::take(&mut self.faults.arrivals);
        if let Some(decides) = &mut self.faults.decides {
            decides.judge(self.now, end, &frame, &mut arrivals);
        }
        let stats = &mut self.cables.to_mut(end).stats;
        stats.lost += u64::from(arrivals.is_empty());
        stats.doubled += (arrivals.len() as u64).saturating_sub(1);
        // The last arrival uses the frame itself; earlier ones use copies.
        let last = arrivals.pop();
        for arrival in arrivals.drain(..) {
            let mut copy = self.pool.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(&frame);
            self.carry_as(arrival, arrives, end, copy);
        }
        self.faults.arrivals = arrivals;
        match last {
            Some(arrival) => self.carry_as(arrival, arrives, end, frame),
            None => self.pool.push(frame),
        }
    }

    fn carry_as(&mut self, arrival: Arrival, arrives: Nanos, end: End, mut frame: Vec<u8>) {
        arrival.befall(&mut frame, &mut self.cables.to_mut(end).stats);
        self.carry(arrives + arrival.delay, end, frame);
    }

    /// Plugs or unplugs a station's cable. Frames on an unplugged cable are lost in both directions.
    ///
    /// # Panics
    /// If the station does not exist.
    pub fn plug(&mut self, station: usize, plugged: bool) {
        for end in [End::Station(station), self.attached[station].at] {
            self.cables.to_mut(end).unplugged = !plugged;
        }
    }

    /// Sends a foreign frame to a station along its link, regardless of injected faults.
    ///
    /// # Panics
    /// If the station does not exist.
    pub fn inject(&mut self, station: usize, frame: &[u8]) {
        let end = End::Station(station);
        if self.cables.to_mut(end).enter() == Entry::Free {
            let delay = match self.attached[station].at {
                End::Switch { switch, port } => {
                    self.switches[switch].config().ports[usize::from(port)].link.delay
                }
                End::Station(peer) => self.attached[peer].shared.get().config.link.delay,
            };
            self.carry(self.now + delay, end, frame.to_vec());
        }
    }

    /// Changes the link of a host: its port follows, and switches update its route. Returns the number of QPs that
    /// failed.
    ///
    /// # Errors
    /// If the port cannot follow; nothing has changed then.
    ///
    /// # Panics
    /// If the station has no host.
    pub fn follow(&mut self, station: usize, change: &LinkChange) -> io::Result<u32> {
        let before = self.attached[station].shared.get().config.mac;
        let failed = self.hosts[station].worker.follow(self.now, change)?;
        if let LinkChange::Mac(after) = change {
            self.switches.iter_mut().for_each(|switch| switch.move_route(&before, *after));
        }
        self.turn_at(station, self.now);
        Ok(failed)
    }

    /// Starts the frames that a host queued while it executed commands, before its next pass.
    ///
    /// # Panics
    /// If the station does not exist.
    pub fn flush(&mut self, station: usize) {
        self.begin(station);
    }

    /// Advances time without handling events. Overdue events are handled at the new time.
    pub fn jump(&mut self, time: Nanos) {
        self.now = self.now + time;
    }
}
