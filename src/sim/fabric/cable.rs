//! Cables: which frames arrive, and counts of those that do not.

use super::link::LinkConfig;
use super::topology::{End, FabricConfig, Wiring};
use roxie_base::random::splitmix;

/// Counts of frames on one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Frames put on the link.
    pub entered: u64,
    /// Frames damaged by link errors.
    pub damaged: u64,
    /// Frames of which injected faults let no copy arrive.
    pub lost: u64,
    /// Duplicates: copies beyond the first of a frame.
    pub doubled: u64,
    /// Copies with a flipped bit.
    pub flipped: u64,
    /// Copies that arrive late.
    pub delayed: u64,
    /// Copies that injected faults marked (CE).
    pub marked: u64,
    /// Frames lost because the cable was unplugged, at either end of their way.
    pub unplugged: u64,
    /// Copies that arrived.
    pub arrived: u64,
}

impl LinkStats {
    /// Returns the copies in flight, if all counts are right.
    pub fn under_way(&self) -> u64 {
        self.entered + self.doubled - self.damaged - self.lost - self.unplugged - self.arrived
    }
}

/// Outcome at the near end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Free,
    Damaged,
    Unplugged,
}

/// One direction of a link.
#[derive(Clone, Debug, Default)]
pub(super) struct Cable {
    /// Frames damaged of every 2^53.
    of_2_53: u64,
    random: u64,
    pub(super) unplugged: bool,
    pub(super) stats: LinkStats,
}

impl Cable {
    fn new(link: &LinkConfig, random: u64) -> Cable {
        Cable { of_2_53: (link.frame_errors * (1u64 << 53) as f64) as u64, random, ..Cable::default() }
    }

    /// Puts a frame on the cable.
    pub(super) fn enter(&mut self) -> Entry {
        self.stats.entered += 1;
        if self.unplugged {
            self.stats.unplugged += 1;
            return Entry::Unplugged;
        }
        let damages = self.of_2_53 > 0 && splitmix(&mut self.random) >> 11 < self.of_2_53;
        self.stats.damaged += u64::from(damages);
        if damages { Entry::Damaged } else { Entry::Free }
    }

    /// Takes a frame off at the far end. Returns false if the frame was lost.
    pub(super) fn leave(&mut self) -> bool {
        let stats = &mut self.stats;
        let count = if self.unplugged { &mut stats.unplugged } else { &mut stats.arrived };
        *count += 1;
        !self.unplugged
    }
}

/// All cables, indexed by the end that receives.
#[derive(Debug)]
pub(super) struct Cables {
    switches: Vec<Vec<Cable>>,
    stations: Vec<Cable>,
}

impl Cables {
    /// Creates the cables. Each has its own random sequence, so that an added link leaves the others unchanged.
    pub(super) fn new(config: &FabricConfig, wiring: &Wiring) -> Cables {
        let link_of = |end: End| match end {
            End::Station(station) => &config.stations[station].link,
            End::Switch { switch, port } => &config.switches[switch].ports[usize::from(port)].link,
        };
        let at = |place: u64, peer: Option<End>| {
            let mut random = config.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            peer.map_or_else(Cable::default, |peer| Cable::new(link_of(peer), splitmix(&mut random)))
        };
        let switch = |(number, ports): (usize, &Vec<Option<End>>)| {
            let port =
                |(port, peer): (usize, &Option<End>)| at((number as u64 + 1) << 16 | port as u64, *peer);
            ports.iter().enumerate().map(port).collect()
        };
        let station = |(number, peer): (usize, &Option<End>)| at(1 << 48 | number as u64, *peer);
        Cables {
            switches: wiring.switches.iter().enumerate().map(switch).collect(),
            stations: wiring.stations.iter().enumerate().map(station).collect(),
        }
    }

    pub(super) fn to(&self, end: End) -> &Cable {
        match end {
            End::Station(station) => &self.stations[station],
            End::Switch { switch, port } => &self.switches[switch][usize::from(port)],
        }
    }

    pub(super) fn to_mut(&mut self, end: End) -> &mut Cable {
        match end {
            End::Station(station) => &mut self.stations[station],
            End::Switch { switch, port } => &mut self.switches[switch][usize::from(port)],
        }
    }

    /// Returns the frames in flight on all cables.
    pub(super) fn under_way(&self) -> u64 {
        let all = self.switches.iter().flatten().chain(&self.stations);
        all.map(|cable| cable.stats.under_way()).sum()
    }
}
