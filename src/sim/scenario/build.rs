//! Builds the network of a scenario: shape, switches, stations.

use super::error::ScenarioError;
use super::file::{NetworkTable, NodesTable, PfcTable, Scenario, Service, ShapeName, SwitchTable};
use crate::fabric::{
    EcnConfig, FabricConfig, LinkConfig, LinkRate, MacPause, PRIORITIES, PfcConfig, PortConfig, PriorityMap,
    Schedule, Shape, StationConfig, SwitchConfig, Threshold, WatchdogConfig,
};
use roxie_base::text::check_file_name;
use roxie_nic::verbs::Mtu;

/// The table and key of custom nodes and links.
const NODES: (&str, &str) = ("network", "nodes");
/// Slowest valid link. A lower number probably lacks its unit.
const SLOWEST: LinkRate = LinkRate::from_mbps(1);
/// Room for all RoCE headers of a packet, in addition to its payload.
const HEADERS: usize = 128;

impl Scenario {
    /// Returns the topology.
    ///
    /// # Errors
    /// If a parameter of the shape is missing or out of range.
    pub fn shape(&self) -> Result<Shape, ScenarioError> {
        let table = &self.network;
        let (edge, trunk) = links(table)?;
        let shape = match table.shape {
            ShapeName::Star => Shape::star(need(table, "hosts")?, edge),
            ShapeName::Dumbbell => Shape::dumbbell(need(table, "pairs")?, edge, trunk),
            ShapeName::LeafSpine => {
                let [leaves, spines] = [need(table, "leaves")?, need(table, "spines")?];
                Shape::leaf_spine(leaves, spines, need(table, "hosts")?, edge, trunk)
            }
            ShapeName::FatTree => Shape::fat_tree(need(table, "k")?, edge, trunk)?,
            ShapeName::Ring => Shape::ring(need(table, "switches")?, need(table, "hosts")?, edge, trunk),
            ShapeName::Custom => {
                let nodes = table.nodes.as_ref().ok_or_else(|| {
                    wrong(
                        ("network", "shape"),
                        "a custom shape has `nodes` with hosts, switches and links, or a `file` of them",
                    )
                })?;
                custom(nodes, edge, trunk)?
            }
        };
        check_numbers(table)?;
        if shape.stations.is_empty() || shape.stations.len() > 60_000 {
            return Err(wrong(
                ("network", "hosts"),
                format!("{} hosts: give 1 to 60000", shape.stations.len()),
            ));
        }
        Ok(shape)
    }

    /// Returns the configuration of the network.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn fabric(&self, shape: &Shape) -> Result<FabricConfig, ScenarioError> {
        let mtu = self.path_mtu()?.bytes() + HEADERS;
        let (edge, _) = links(&self.network)?;
        let port =
            PortConfig { ecn: self.marking()?, schedule: schedule(&self.switch)?, ..PortConfig::new(edge) };
        let pfc = self.pfc.as_ref().map(|table| table.config(mtu)).transpose()?;
        let SwitchTable { buffer, cell, reserved, alpha, limit, cut_through, .. } = self.switch;
        let lossless = self.pfc.as_ref().map_or(Threshold::Dynamic(1.0), |table| {
            table.xoff.map_or(Threshold::Dynamic(table.alpha), |xoff| Threshold::Static(xoff.0))
        });
        let switch = SwitchConfig {
            buffer: buffer.0,
            cell: u32::try_from(cell.0)
                .map_err(|_| wrong(("switch", "cell"), "a cell is smaller than that: give 1 B to 4 GB"))?,
            reserved: reserved.0,
            lossy: limit.map_or(Threshold::Dynamic(alpha), |limit| Threshold::Static(limit.0)),
            lossless,
            pfc,
            cut_through,
            longest_frame: mtu as u32 + 18,
            seed: self.seed ^ 0x5717_c4e5,
            ..SwitchConfig::new(Vec::new())
        };
        let heeds = self.pfc.as_ref().map(|table| MacPause {
            response: table.response.map(|time| time.0),
            priorities: PriorityMap::default(),
        });
        let mut config = shape.fabric(self.network.routing.into(), &switch, &port, |n, link| StationConfig {
            mtu,
            slots: self.hosts.slots,
            mac_pause: heeds.clone(),
            ..StationConfig::new(Shape::mac(n), link)
        });
        config.seed = self.seed;
        Ok(config)
    }

    /// Returns the payload of a full packet.
    ///
    /// # Errors
    /// If `mtu` is not a path MTU.
    pub fn path_mtu(&self) -> Result<Mtu, ScenarioError> {
        match self.hosts.mtu {
            256 => Ok(Mtu::Mtu256),
            512 => Ok(Mtu::Mtu512),
            1024 => Ok(Mtu::Mtu1024),
            2048 => Ok(Mtu::Mtu2048),
            4096 => Ok(Mtu::Mtu4096),
            other => Err(wrong(
                ("hosts", "mtu"),
                format!("an mtu of {other}: a path has 256, 512, 1024, 2048 or 4096"),
            )),
        }
    }

    fn marking(&self) -> Result<[Option<EcnConfig>; PRIORITIES], ScenarioError> {
        let mut marks = [None; PRIORITIES];
        if let Some(table) = &self.ecn {
            for priority in &table.priorities {
                let queue = marks.get_mut(usize::from(*priority));
                let queue = queue.ok_or_else(|| {
                    wrong(("ecn", "priorities"), format!("there is no priority {priority}: 0 to 7"))
                })?;
                *queue = Some(EcnConfig { kmin: table.kmin.0, kmax: table.kmax.0, pmax: table.pmax });
            }
        }
        Ok(marks)
    }
}

impl PfcTable {
    fn config(&self, mtu: usize) -> Result<PfcConfig, ScenarioError> {
        let watchdog = self
            .watchdog
            .map(|detect| WatchdogConfig { detect: detect.0, restore: self.restore.unwrap_or(detect).0 });
        if !(self.alpha > 0.0 && self.alpha.is_finite()) {
            let what = format!("an alpha of {}: give a number above 0 (1 is common)", self.alpha);
            return Err(wrong(("pfc", "alpha"), what));
        }
        Ok(PfcConfig {
            xon_offset: self.xon_offset.map_or(2 * mtu as u64, |bytes| bytes.0),
            quanta: self.quanta,
            headroom: self.headroom.map(|bytes| bytes.0),
            response: self.response.map(|time| time.0),
            watchdog,
            ..PfcConfig::new(&self.lossless)?
        })
    }
}

fn wrong(at: (&'static str, &'static str), what: impl Into<String>) -> ScenarioError {
    ScenarioError::wrong(at, what)
}

/// Returns the configuration of the hosts' links, and of the links between switches.
fn links(table: &NetworkTable) -> Result<(LinkConfig, LinkConfig), ScenarioError> {
    let errors = table.frame_errors;
    check_errors(errors)?;
    let link = |rate, delay| LinkConfig { frame_errors: errors, ..LinkConfig::new(rate, delay) };
    check_rate("rate", table.rate.0)?;
    let edge = link(table.rate.0, table.delay.0);
    let rate = table.trunk_rate.unwrap_or(table.rate);
    check_rate("trunk_rate", rate.0)?;
    let delay = table.trunk_delay.unwrap_or(table.delay);
    Ok((edge, link(rate.0, delay.0)))
}

fn check_rate(key: &'static str, rate: LinkRate) -> Result<(), ScenarioError> {
    if rate >= SLOWEST {
        return Ok(());
    }
    let what =
        format!("a {key} of {} bits per second: give 1 Mb/s or more, with a unit: \"100 Gb/s\"", rate.0);
    Err(wrong(("network", key), what))
}

fn check_errors(errors: f64) -> Result<(), ScenarioError> {
    if (0.0..=1.0).contains(&errors) {
        return Ok(());
    }
    let what = format!("frame_errors {errors} is not a share of frames: give 0 to 1 (0.1 % is 0.001)");
    Err(wrong(("network", "frame_errors"), what))
}

/// Returns the names of a shape's parameters.
fn numbers(shape: ShapeName) -> &'static [&'static str] {
    match shape {
        ShapeName::Star => &["hosts"],
        ShapeName::Dumbbell => &["pairs"],
        ShapeName::LeafSpine => &["leaves", "spines", "hosts"],
        ShapeName::FatTree => &["k"],
        ShapeName::Ring => &["switches", "hosts"],
        ShapeName::Custom => &[],
    }
}

fn given(table: &NetworkTable) -> [(&'static str, Option<usize>); 6] {
    [
        ("hosts", table.hosts),
        ("pairs", table.pairs),
        ("leaves", table.leaves),
        ("spines", table.spines),
        ("switches", table.switches),
        ("k", table.k),
    ]
}

fn need(table: &NetworkTable, name: &'static str) -> Result<usize, ScenarioError> {
    let number = given(table).into_iter().find(|(of, _)| *of == name).and_then(|(_, number)| number);
    number.filter(|number| (1..=10_000).contains(number)).ok_or_else(|| {
        let needs = numbers(table.shape).join(", ");
        wrong(("network", name), format!("give `{name}`, 1 to 10000: a shape of {} has {needs}", table.shape))
    })
}

/// Rejects parameters that the shape does not use.
fn check_numbers(table: &NetworkTable) -> Result<(), ScenarioError> {
    let needs = numbers(table.shape);
    match given(table).into_iter().find(|(name, number)| number.is_some() && !needs.contains(name)) {
        Some((name, _)) => {
            let needs = if needs.is_empty() { "nodes or file".into() } else { needs.join(", ") };
            Err(wrong(
                ("network", name),
                format!("a shape of {} has no `{name}`: it has {needs}", table.shape),
            ))
        }
        None => Ok(()),
    }
}

fn custom(nodes: &NodesTable, edge: LinkConfig, trunk: LinkConfig) -> Result<Shape, ScenarioError> {
    let mut shape = Shape::default();
    let mut names: Vec<&String> = nodes.hosts.iter().chain(&nodes.switches).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let what = format!("two nodes are called `{}`: give each a name of its own", twice[0]);
        return Err(wrong(NODES, what));
    }
    // Captures of links are files with the names of both ends.
    let named = nodes.hosts.iter().chain(&nodes.switches);
    let checked = named.map(|name| check_file_name(name));
    checked.collect::<Result<(), _>>().map_err(|error| wrong(NODES, error.to_string()))?;
    for name in &nodes.hosts {
        shape.station(name);
    }
    for name in &nodes.switches {
        shape.switch(name);
    }
    for link in &nodes.links {
        let find = |name: &String| {
            let station = nodes.hosts.iter().position(|host| host == name);
            let switch = nodes.switches.iter().position(|switch| switch == name);
            match (station, switch) {
                (None, None) => {
                    let what = format!("a link ends at `{name}`, which is neither a host nor a switch");
                    Err(wrong(NODES, what))
                }
                found => Ok(found),
            }
        };
        let like = |of: LinkConfig| LinkConfig {
            rate: link.rate.map_or(of.rate, |rate| rate.0),
            delay: link.delay.map_or(of.delay, |delay| delay.0),
            frame_errors: link.frame_errors.unwrap_or(of.frame_errors),
            ..of
        };
        check_errors(like(edge).frame_errors)?;
        match (find(&link.ends[0])?, find(&link.ends[1])?) {
            ((_, Some(a)), (_, Some(b))) => shape.join(a, b, like(trunk)),
            ((Some(station), _), (_, Some(switch))) | ((_, Some(switch)), (Some(station), _)) => {
                shape.attach(station, switch, like(edge));
            }
            _ => {
                let [a, b] = &link.ends;
                return Err(wrong(NODES, format!("`{a}` and `{b}` are hosts: join each to a switch")));
            }
        }
    }
    Ok(shape)
}

fn schedule(table: &SwitchTable) -> Result<[Schedule; PRIORITIES], ScenarioError> {
    let mut schedule = [Schedule::Strict; PRIORITIES];
    if table.schedule.len() > PRIORITIES {
        return Err(wrong(("switch", "schedule"), "`schedule` has one entry for each priority: 8 at most"));
    }
    for (queue, service) in schedule.iter_mut().zip(&table.schedule) {
        *queue = match service {
            Service::Weight(weight) => Schedule::Ets(*weight),
            Service::Strict(text) if text == "strict" => Schedule::Strict,
            Service::Strict(text) => {
                let what = format!("`{text}` in `schedule`: give \"strict\", or a weight from 1 to 100");
                return Err(wrong(("switch", "schedule"), what));
            }
        };
    }
    Ok(schedule)
}
