//! Topology as data: stations, switches, links, and the wiring that follows.

use super::config::{PortConfig, PriorityMap, SwitchConfig};
use super::error::ConfigError;
use super::link::LinkConfig;
use roxie_base::time::Nanos;

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// A station, by number. A station has one link.
    Station(usize),
    /// A port of a switch.
    Switch {
        /// Number of the switch.
        switch: usize,
        /// Number of the port on that switch.
        port: u16,
    },
}

/// Pauses a station's port on PAUSE and PFC frames, without involving the NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacPause {
    /// Time from the end of a PFC frame until it takes effect. `None`: the limit of 802.3 for the link's rate.
    pub response: Option<Nanos>,
    /// Priority of each of the station's frames.
    pub priorities: PriorityMap,
}

/// A station: a host, or an external port.
#[derive(Clone, Debug, PartialEq)]
pub struct StationConfig {
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// Outgoing link.
    pub link: LinkConfig,
    /// Largest L3 packet of the link, in bytes.
    pub mtu: usize,
    /// Size of the transmit ring in frames, including the frame being sent.
    pub slots: usize,
    /// `None`: PAUSE and PFC frames are delivered like other frames.
    pub mac_pause: Option<MacPause>,
    /// Offset at which the port splits received frames in two pieces. `None`: frames are in one piece.
    pub split: Option<usize>,
}

impl StationConfig {
    /// Creates a station for packets of 4096 bytes plus headers, with a ring of 256 slots.
    pub fn new(mac: [u8; 6], link: LinkConfig) -> StationConfig {
        StationConfig { mac, link, mtu: 4200, slots: 256, mac_pause: None, split: None }
    }
}

/// Routing of the switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// All shortest paths.
    #[default]
    ShortestPath,
    /// The shortest paths that first go up, then down, and never up again (up*/down*, Autonet 1991). Such paths allow
    /// no cycle of buffers that wait for one another. Up is away from the stations; among switches equally far from
    /// them, up is towards the first of the farthest switches.
    UpDown,
}

/// Configuration of a fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricConfig {
    /// Stations, by number.
    pub stations: Vec<StationConfig>,
    /// Switches, by number.
    pub switches: Vec<SwitchConfig>,
    /// Links. The sending end's configuration has the rate and delay of each direction.
    pub links: Vec<[End; 2]>,
    /// Routing of the switches.
    pub routing: Routing,
    /// Seed of the link errors.
    pub seed: u64,
}

impl FabricConfig {
    /// Builds a star: stations on one switch, in the order of its ports.
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

    /// Returns the ports of [`FabricConfig::star`]'s switch: a copy of `like` for each station.
    pub fn ports(stations: usize, like: &PortConfig) -> Vec<PortConfig> {
        vec![like.clone(); stations]
    }

    /// Returns the other end of each station's and each switch port's link.
    pub(super) fn wiring(&self) -> Result<Wiring, ConfigError> {
        let mut wiring = Wiring {
            stations: vec![None; self.stations.len()],
            switches: self.switches.iter().map(|switch| vec![None; switch.ports.len()]).collect(),
        };
        for [a, b] in self.links.iter().copied() {
            for (end, other) in [(a, b), (b, a)] {
                let place = wiring.place(end).ok_or_else(|| {
                    ConfigError::Topology(format!(
                        "a link ends at {end:?}, which does not exist: name an existing host or port"
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

/// The other end of each link.
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

    /// Returns the ports of a switch that lead to other switches, with these switches.
    pub(super) fn ports(&self, switch: usize) -> impl Iterator<Item = (u16, usize)> {
        self.switches[switch].iter().enumerate().filter_map(|(port, end)| match end {
            Some(End::Switch { switch, .. }) => Some((port as u16, *switch)),
            _ => None,
        })
    }

    /// Returns the neighbours of a switch, with the ports by which they reach it.
    pub(super) fn neighbours(&self, switch: usize) -> impl Iterator<Item = (usize, u16)> {
        self.switches[switch].iter().flatten().filter_map(|end| match *end {
            End::Switch { switch, port } => Some((switch, port)),
            End::Station(_) => None,
        })
    }
}
