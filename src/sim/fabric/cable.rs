//! Cables: which frames come through, and what became of the others.

use super::link::LinkConfig;
use super::topology::{End, FabricConfig, Wiring};
use crate::random::splitmix;

/// What became of the frames that were put on one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Frames that were put on it.
    pub entered: u64,
    /// Those that its errors damaged.
    pub damaged: u64,
    /// Those of which the weather let no copy arrive.
    pub lost: u64,
    /// Copies more than one of the same frame.
    pub doubled: u64,
    /// Copies with a flipped bit.
    pub flipped: u64,
    /// Copies that come after their time.
    pub delayed: u64,
    /// Copies that the weather marked.
    pub marked: u64,
    /// Frames lost because it was out: when they were put on it, or when they should have arrived.
    pub unplugged: u64,
    /// Copies that arrived.
    pub arrived: u64,
}

impl LinkStats {
    /// Copies that are on their way, if all were counted right.
    pub fn under_way(&self) -> u64 {
        self.entered + self.doubled - self.damaged - self.lost - self.unplugged - self.arrived
    }
}

/// What happens to a frame at the near end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Free,
    Damaged,
    Unplugged,
}

/// One direction of a link.
#[derive(Clone, Debug, Default)]
pub(super) struct Cable {
    /// Of 2^53 frames so many are damaged.
    of_2_53: u64,
    random: u64,
    pub(super) unplugged: bool,
    pub(super) stats: LinkStats,
}

impl Cable {
    fn new(link: &LinkConfig, random: u64) -> Cable {
        Cable { of_2_53: (link.frame_errors * (1u64 << 53) as f64) as u64, random, ..Cable::default() }
    }

    /// A frame is put on it.
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

    /// A frame is at the far end. False: it was lost.
    pub(super) fn leave(&mut self) -> bool {
        let stats = &mut self.stats;
        let count = if self.unplugged { &mut stats.unplugged } else { &mut stats.arrived };
        *count += 1;
        !self.unplugged
    }
}

/// All of them, by the end that frames come to.
#[derive(Debug)]
pub(super) struct Cables {
    switches: Vec<Vec<Cable>>,
    stations: Vec<Cable>,
}

impl Cables {
    /// Each has random numbers of its own, so that one more link changes nothing of the others.
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

    /// Frames that are on their way along any of them.
    pub(super) fn under_way(&self) -> u64 {
        let all = self.switches.iter().flatten().chain(&self.stations);
        all.map(|cable| cable.stats.under_way()).sum()
    }
}
