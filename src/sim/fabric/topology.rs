//! Stations, switches and links as data, and the ways that follow from them.

use super::config::{PortConfig, PriorityMap, SwitchConfig};
use super::error::ConfigError;
use super::link::LinkConfig;
use crate::time::Nanos;

/// What a link ends at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// A station, by its number. It has one link.
    Station(usize),
    /// A port of a switch.
    Switch {
        /// The number of the switch.
        switch: usize,
        /// The number of the port on that switch.
        port: u16,
    },
}

/// A station that is silent when it is told to: its port does it, without the NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeedsPauses {
    /// From the end of a PFC frame until it holds. `None`: what 802.3 allows at the link's rate.
    pub response: Option<Nanos>,
    /// Which of its frames has which priority.
    pub priorities: PriorityMap,
}

/// A station: a host, or whatever is outside.
#[derive(Clone, Debug, PartialEq)]
pub struct StationConfig {
    /// The station address of the port.
    pub mac: [u8; 6],
    /// What it sends goes along this.
    pub link: LinkConfig,
    /// The largest L3 packet of its link, bytes.
    pub mtu: usize,
    /// Frames that may wait for its link, the one that is leaving included.
    pub slots: usize,
    /// `None`: PAUSE and PFC frames come to it as frames.
    pub heeds_pauses: Option<HeedsPauses>,
    /// Its port shows frames in two pieces that meet at this offset. `None`: in one.
    pub split: Option<usize>,
}

impl StationConfig {
    /// A station that takes packets of 4096 bytes with their headers, and has a ring of 256 slots.
    pub fn new(mac: [u8; 6], link: LinkConfig) -> StationConfig {
        StationConfig { mac, link, mtu: 4200, slots: 256, heeds_pauses: None, split: None }
    }
}

/// How switches find their ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// By all shortest ways.
    #[default]
    ShortestPath,
    /// By the shortest of the ways that go up first and then down, and never up again (up*/down*, Autonet 1991). No cycle of buffers
    /// that wait for one another can come of it. Up is away from the stations; among switches equally far from them, it is towards
    /// the first switch that is farthest.
    UpDown,
}

/// A fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricConfig {
    /// Stations, by number.
    pub stations: Vec<StationConfig>,
    /// Switches, by number.
    pub switches: Vec<SwitchConfig>,
    /// What is joined to what. How fast and long each direction is, its sender says.
    pub links: Vec<[End; 2]>,
    /// How the switches find their ways.
    pub routing: Routing,
    /// What the errors of links follow from.
    pub seed: u64,
}

impl FabricConfig {
    /// Stations on one switch, in the order of its ports.
    pub fn star(stations: Vec<StationConfig>, switch: SwitchConfig) -> FabricConfig {
        let link = |n: usize| [End::Station(n), End::Switch { switch: 0, port: n as u16 }];
        FabricConfig {
            links: (0..stations.len()).map(link).collect(),
            stations,
            switches: vec![switch],
            routing: Routing::ShortestPath,
            seed: 0,
        }
    }

    /// The switch of [`FabricConfig::star`] with a port like `like` for each of `stations`.
    pub fn ports(stations: usize, like: &PortConfig) -> Vec<PortConfig> {
        vec![like.clone(); stations]
    }

    /// By station, and by switch and port: what is at the other end.
    pub(super) fn wiring(&self) -> Result<Wiring, ConfigError> {
        let mut wiring = Wiring {
            stations: vec![None; self.stations.len()],
            switches: self.switches.iter().map(|switch| vec![None; switch.ports.len()]).collect(),
        };
        for [a, b] in self.links.iter().copied() {
            for (end, other) in [(a, b), (b, a)] {
                let place = wiring.place(end).ok_or_else(|| {
                    ConfigError::Topology(format!(
                        "a link ends at {end:?}, which is not there: name one that is"
                    ))
                })?;
                if place.replace(other).is_some() {
                    let what = format!("two links end at {end:?}: give each a port of its own");
                    return Err(ConfigError::Topology(what));
                }
            }
        }
        match wiring.stations.iter().position(Option::is_none) {
            Some(lonely) => Err(ConfigError::Topology(format!("station {lonely} has no link: give it one"))),
            None => Ok(wiring),
        }
    }
}

/// What is at the other end of each link.
#[derive(Debug)]
pub(super) struct Wiring {
    pub(super) stations: Vec<Option<End>>,
    pub(super) switches: Vec<Vec<Option<End>>>,
}

impl Wiring {
    fn place(&mut self, end: End) -> Option<&mut Option<End>> {
        match end {
            End::Station(station) => self.stations.get_mut(station),
            End::Switch { switch, port } => self.switches.get_mut(switch)?.get_mut(usize::from(port)),
        }
    }

    /// What is at the ports of a switch that lead to others.
    pub(super) fn ports(&self, switch: usize) -> impl Iterator<Item = (u16, usize)> {
        self.switches[switch].iter().enumerate().filter_map(|(port, end)| match end {
            Some(End::Switch { switch, .. }) => Some((port as u16, *switch)),
            _ => None,
        })
    }

    /// The switches beside one, and the ports by which they reach it.
    pub(super) fn neighbours(&self, switch: usize) -> impl Iterator<Item = (usize, u16)> {
        self.switches[switch].iter().flatten().filter_map(|end| match *end {
            End::Switch { switch, port } => Some((switch, port)),
            End::Station(_) => None,
        })
    }
}
