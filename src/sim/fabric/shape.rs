//! Network shapes: topologies described by a few numbers.

use super::config::{PortConfig, SwitchConfig};
use super::error::ConfigError;
use super::link::LinkConfig;
use super::topology::{End, FabricConfig, Routing, StationConfig};
use crate::Host;
use roxie_base::random::splitmix;

/// A switch of a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeSwitch {
    /// Name.
    pub name: String,
    /// Number of ports.
    pub ports: u16,
}

/// A link of a shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShapeLink {
    /// The two ends.
    pub ends: [End; 2],
    /// Configuration of both directions.
    pub link: LinkConfig,
}

/// A topology of stations and switches, before their configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// Names of the stations, by number.
    pub stations: Vec<String>,
    /// Switches, by number.
    pub switches: Vec<ShapeSwitch>,
    /// Links between them.
    pub links: Vec<ShapeLink>,
}

impl Shape {
    /// Builds a star: `hosts` on one switch.
    pub fn star(hosts: usize, edge: LinkConfig) -> Shape {
        let mut shape = Shape::default();
        let switch = shape.switch("switch0");
        shape.hosts_at(switch, hosts, edge);
        shape
    }

    /// Builds a dumbbell: `pairs` of hosts on two linked switches, the first host of each pair on one, the second on
    /// the other.
    pub fn dumbbell(pairs: usize, edge: LinkConfig, trunk: LinkConfig) -> Shape {
        let mut shape = Shape::default();
        let [left, right] = ["left", "right"].map(|name| shape.switch(name));
        shape.join(left, right, trunk);
        shape.hosts_at(left, pairs, edge);
        shape.hosts_at(right, pairs, edge);
        shape
    }

    /// Builds a leaf-spine network: `leaves` with `hosts` each, and every leaf linked to each of `spines`.
    pub fn leaf_spine(
        leaves: usize,
        spines: usize,
        hosts: usize,
        edge: LinkConfig,
        trunk: LinkConfig,
    ) -> Shape {
        let mut shape = Shape::default();
        let leaves: Vec<_> = (0..leaves).map(|n| shape.switch(&format!("leaf{n}"))).collect();
        let spines: Vec<_> = (0..spines).map(|n| shape.switch(&format!("spine{n}"))).collect();
        for &leaf in &leaves {
            shape.hosts_at(leaf, hosts, edge);
            spines.iter().for_each(|spine| shape.join(leaf, *spine, trunk));
        }
        shape
    }

    /// Builds a fat tree of switches with `k` ports (Al-Fares, Loukissas and Vahdat 2008): `k` pods, `k^3 / 4` hosts.
    ///
    /// # Errors
    /// If `k` is odd, below 2 or above 64.
    pub fn fat_tree(k: usize, edge: LinkConfig, trunk: LinkConfig) -> Result<Shape, ConfigError> {
        if k < 2 || k % 2 == 1 || k > 64 {
            let what = format!("a fat tree of switches with {k} ports: give an even number, 2 to 64");
            return Err(ConfigError::Topology(what));
        }
        let half = k / 2;
        let mut shape = Shape::default();
        let pods: Vec<_> = (0..k)
            .map(|pod| {
                let edges: Vec<_> = (0..half).map(|n| shape.switch(&format!("edge{pod}.{n}"))).collect();
                let upper: Vec<_> = (0..half).map(|n| shape.switch(&format!("agg{pod}.{n}"))).collect();
                (edges, upper)
            })
            .collect();
        let cores: Vec<_> = (0..half * half).map(|n| shape.switch(&format!("core{n}"))).collect();
        for (edges, upper) in &pods {
            for &below in edges {
                shape.hosts_at(below, half, edge);
                upper.iter().for_each(|above| shape.join(below, *above, trunk));
            }
            for (n, &below) in upper.iter().enumerate() {
                cores[n * half..][..half].iter().for_each(|core| shape.join(below, *core, trunk));
            }
        }
        Ok(shape)
    }

    /// Builds a ring of `switches` with `hosts` each.
    pub fn ring(switches: usize, hosts: usize, edge: LinkConfig, trunk: LinkConfig) -> Shape {
        let mut shape = Shape::default();
        let around: Vec<_> = (0..switches).map(|n| shape.switch(&format!("switch{n}"))).collect();
        for &switch in &around {
            shape.hosts_at(switch, hosts, edge);
        }
        // Two switches share one link.
        let links = if switches == 2 { 1 } else { switches };
        for n in 0..links.min(switches) {
            if switches > 1 {
                shape.join(around[n], around[(n + 1) % switches], trunk);
            }
        }
        shape
    }

    /// Adds a switch without ports.
    pub fn switch(&mut self, name: &str) -> usize {
        self.switches.push(ShapeSwitch { name: name.to_owned(), ports: 0 });
        self.switches.len() - 1
    }

    /// Adds a station without a link.
    pub fn station(&mut self, name: &str) -> usize {
        self.stations.push(name.to_owned());
        self.stations.len() - 1
    }

    /// Adds a port to a switch.
    pub fn port(&mut self, switch: usize) -> End {
        let port = self.switches[switch].ports;
        self.switches[switch].ports += 1;
        End::Switch { switch, port }
    }

    /// Links two switches.
    pub fn join(&mut self, a: usize, b: usize, link: LinkConfig) {
        let ends = [self.port(a), self.port(b)];
        self.links.push(ShapeLink { ends, link });
    }

    /// Links a station to a switch.
    pub fn attach(&mut self, station: usize, switch: usize, link: LinkConfig) {
        let ends = [End::Station(station), self.port(switch)];
        self.links.push(ShapeLink { ends, link });
    }

    fn hosts_at(&mut self, switch: usize, hosts: usize, link: LinkConfig) {
        for _ in 0..hosts {
            let name = format!("host{}", self.stations.len());
            let station = self.station(&name);
            self.attach(station, switch, link);
        }
    }

    /// Returns the name of an end: `host3`, or `leaf0` for a port of that switch.
    pub fn name(&self, end: End) -> &str {
        match end {
            End::Station(station) => &self.stations[station],
            End::Switch { switch, .. } => &self.switches[switch].name,
        }
    }

    /// Returns the other end of the link at a switch's port.
    pub fn peer(&self, switch: usize, port: u16) -> Option<End> {
        let here = End::Switch { switch, port };
        self.links.iter().find_map(|link| match link.ends {
            [a, b] if a == here => Some(b),
            [a, b] if b == here => Some(a),
            _ => None,
        })
    }

    /// Returns a fabric configuration of this shape. `station` creates each station from its number and link. Ports are
    /// copies of `port` except for the link; switches are copies of `switch` except for ports, MAC address and seed.
    pub fn fabric(
        &self,
        routing: Routing,
        switch: &SwitchConfig,
        port: &PortConfig,
        station: impl Fn(usize, LinkConfig) -> StationConfig,
    ) -> FabricConfig {
        let nothing = PortConfig { link: port.link, ..port.clone() };
        let mut seed = switch.seed;
        let mut switches: Vec<SwitchConfig> = (0..self.switches.len())
            .map(|n| {
                let [high, low] = (n as u16).to_be_bytes();
                SwitchConfig {
                    ports: vec![nothing.clone(); self.switches[n].ports.into()],
                    mac: [2, 0xff, 0, 0, high, low],
                    seed: splitmix(&mut seed),
                    ..switch.clone()
                }
            })
            .collect();
        let mut links_of = vec![port.link; self.stations.len()];
        for ShapeLink { ends, link } in &self.links {
            for end in ends {
                match *end {
                    End::Station(station) => links_of[station] = *link,
                    End::Switch { switch, port } => switches[switch].ports[usize::from(port)].link = *link,
                }
            }
        }
        FabricConfig {
            stations: links_of.iter().enumerate().map(|(n, link)| station(n, *link)).collect(),
            switches,
            links: self.links.iter().map(|link| link.ends).collect(),
            routing,
            seed: switch.seed,
        }
    }

    /// Returns the MAC address of host `station`.
    pub fn mac(station: usize) -> [u8; 6] {
        Host::mac(station as u16 + 1)
    }
}
