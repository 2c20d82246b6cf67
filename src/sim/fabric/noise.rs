//! Errors of links: which frames are damaged on their way.

use super::link::LinkConfig;
use super::topology::{End, FabricConfig, Wiring};
use crate::random::splitmix;

/// The errors of one direction of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noise {
    /// Of 2^53 frames so many are damaged.
    of_2_53: u64,
    random: u64,
    pub(super) damaged: u64,
}

impl Noise {
    fn new(link: &LinkConfig, random: u64) -> Noise {
        Noise { of_2_53: (link.frame_errors * (1u64 << 53) as f64) as u64, random, damaged: 0 }
    }

    /// Decides about the next frame.
    pub(super) fn damages(&mut self) -> bool {
        let damages = self.of_2_53 > 0 && splitmix(&mut self.random) >> 11 < self.of_2_53;
        self.damaged += u64::from(damages);
        damages
    }
}

/// By switch and port, and by station: the errors of what comes there. Each has random numbers of its own, so that one more link
/// changes nothing of the others.
pub(super) fn noise(config: &FabricConfig, wiring: &Wiring) -> (Vec<Vec<Noise>>, Vec<Noise>) {
    let link_of = |end: End| match end {
        End::Station(station) => &config.stations[station].link,
        End::Switch { switch, port } => &config.switches[switch].ports[usize::from(port)].link,
    };
    let at = |place: u64, peer: Option<End>| {
        let mut random = config.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        peer.map_or_else(Noise::default, |peer| Noise::new(link_of(peer), splitmix(&mut random)))
    };
    let switch = |(number, ports): (usize, &Vec<Option<End>>)| {
        let port = |(port, peer): (usize, &Option<End>)| at((number as u64 + 1) << 16 | port as u64, *peer);
        ports.iter().enumerate().map(port).collect()
    };
    let switches = wiring.switches.iter().enumerate().map(switch).collect();
    let station = |(number, peer): (usize, &Option<End>)| at(1 << 48 | number as u64, *peer);
    (switches, wiring.stations.iter().enumerate().map(station).collect())
}
