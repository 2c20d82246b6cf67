//! The hosts of a fabric, and other machines on its stations.

use std::fmt::Debug;
use std::ops::{Index, IndexMut};

use roxie_base::time::Nanos;
use roxie_engine::Progress;

use crate::Host;

/// A NIC on a station whose application is not part of the fabric, and may give the NIC work between any two steps.
pub trait Machine: Debug + Send {
    /// Runs one pass.
    fn step(&self, now: Nanos) -> Progress;

    /// Returns when the next pass is needed without a frame: zero if work is pending, `Nanos::MAX` if none is.
    fn needed_by(&self) -> Nanos;
}

/// Hosts, indexed by station number. Indexing a station without a host panics.
#[derive(Debug)]
pub struct Hosts(Vec<Option<Host>>);

impl Hosts {
    pub(super) fn none(stations: usize) -> Hosts {
        Hosts((0..stations).map(|_| None).collect())
    }

    pub(super) fn attach(&mut self, station: usize, host: Host) {
        self.0[station] = Some(host);
    }

    /// Returns true if the station has a host.
    pub fn has(&self, station: usize) -> bool {
        self.0.get(station).is_some_and(Option::is_some)
    }

    /// Iterates over all hosts, in the order of their stations.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Host)> {
        self.0.iter().enumerate().filter_map(|(station, host)| Some((station, host.as_ref()?)))
    }

    /// Iterates over all hosts mutably, in the order of their stations.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Host)> {
        self.0.iter_mut().enumerate().filter_map(|(station, host)| Some((station, host.as_mut()?)))
    }
}

impl Index<usize> for Hosts {
    type Output = Host;
    fn index(&self, station: usize) -> &Host {
        self.0[station].as_ref().expect("a station with a host")
    }
}

impl IndexMut<usize> for Hosts {
    fn index_mut(&mut self, station: usize) -> &mut Host {
        self.0[station].as_mut().expect("a station with a host")
    }
}
