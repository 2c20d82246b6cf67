//! The scenario file (TOML). Each field's documentation ends with its default.

use serde::{Deserialize, Serialize};

use super::error::{ScenarioError, load};
use super::quantity::{Bytes, Speed, Time};
use super::sizes::Sizes;
use crate::fabric::{LinkRate, Routing};
use roxie_base::time::Nanos;
use roxie_nic::congestion::Settings;

/// A network, its traffic, and the output of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name of the scenario; has no effect on the run.
    #[serde(default)]
    pub name: String,
    /// Seed of all random choices. 0.
    #[serde(default)]
    pub seed: u64,
    /// Maximum duration. The run ends earlier if all flows have ended.
    pub time: Time,
    /// The topology.
    pub network: NetworkTable,
    /// The switches.
    #[serde(default)]
    pub switch: SwitchTable,
    /// Priority flow control; without it, no priority is lossless.
    pub pfc: Option<PfcTable>,
    /// ECN marking; without it, no frame is marked.
    pub ecn: Option<EcnTable>,
    /// The hosts.
    #[serde(default)]
    pub hosts: HostTable,
    /// Congestion control: `control = "dcqcn"` (or `off`, `swift`, `fixed`), and its parameters by name. Off.
    #[serde(default)]
    pub cc: toml::Table,
    /// The traffic.
    #[serde(default)]
    pub traffic: Vec<TrafficTable>,
    /// The output.
    #[serde(default)]
    pub output: OutputTable,
}

/// The shape of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShapeName {
    /// `hosts` on one switch.
    Star,
    /// `pairs` of hosts, the first host of each pair on one switch, the second on another.
    Dumbbell,
    /// `leaves` with `hosts` each, linked to each of `spines`.
    LeafSpine,
    /// The fat tree of switches with `k` ports.
    FatTree,
    /// `switches` with `hosts` each.
    Ring,
    /// Listed node by node: `nodes` and `links`, here or in `file`.
    Custom,
}

/// `[network]`: the topology.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkTable {
    /// The shape.
    pub shape: ShapeName,
    /// Hosts of a star, of each leaf, or of each switch of a ring.
    pub hosts: Option<usize>,
    /// Pairs of a dumbbell.
    pub pairs: Option<usize>,
    /// Leaves.
    pub leaves: Option<usize>,
    /// Spines.
    pub spines: Option<usize>,
    /// Switches of a ring.
    pub switches: Option<usize>,
    /// Ports of each switch of a fat tree.
    pub k: Option<usize>,
    /// File with `hosts`, `switches` and `links`, relative to the scenario.
    pub file: Option<String>,
    /// Contents of such a file, inline.
    pub nodes: Option<NodesTable>,
    /// Rate of the hosts' links: 100 Gb/s.
    #[serde(default = "rate")]
    pub rate: Speed,
    /// Delay of the hosts' links: 500 ns, which is 100 m.
    #[serde(default = "delay")]
    pub delay: Time,
    /// Rate of links between switches: like `rate`.
    pub trunk_rate: Option<Speed>,
    /// Delay of links between switches: like `delay`.
    pub trunk_delay: Option<Time>,
    /// Share of frames that every link damages, independently. 0.
    #[serde(default)]
    pub frame_errors: f64,
    /// Routing of the switches.
    #[serde(default)]
    pub routing: RoutingName,
}

/// Routing of the switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoutingName {
    /// All shortest paths.
    #[default]
    Shortest,
    /// Up, then down: free of cycles.
    UpDown,
}

impl std::fmt::Display for ShapeName {
    /// Writes the name as in the file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

impl From<RoutingName> for Routing {
    fn from(name: RoutingName) -> Routing {
        match name {
            RoutingName::Shortest => Routing::ShortestPath,
            RoutingName::UpDown => Routing::UpDown,
        }
    }
}

/// A topology node by node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodesTable {
    /// Names of the hosts.
    pub hosts: Vec<String>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Links.
    pub links: Vec<NodeLink>,
}

/// A link between nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLink {
    /// The names of both ends.
    pub ends: [String; 2],
    /// Like `rate` or `trunk_rate` of the network.
    pub rate: Option<Speed>,
    /// Like `delay` or `trunk_delay` of the network.
    pub delay: Option<Time>,
    /// Like `frame_errors` of the network.
    pub frame_errors: Option<f64>,
}

/// `[switch]`: configuration of all switches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchTable {
    /// Size of the shared buffer: 12 MB.
    pub buffer: Bytes,
    /// Allocation unit of the buffer: 1 B.
    pub cell: Bytes,
    /// Bytes reserved for each port and priority: 0.
    pub reserved: Bytes,
    /// Dynamic limit of a lossy queue, as a multiple of the free bytes: 1.
    pub alpha: f64,
    /// Static limit in bytes, in place of `alpha`.
    pub limit: Option<Bytes>,
    /// Cut-through: a frame starts to leave once its header has arrived, where possible. false.
    pub cut_through: bool,
    /// For each priority: `"strict"`, or a weight from 1 to 100. All strict.
    pub schedule: Vec<Service>,
}

impl Default for SwitchTable {
    fn default() -> SwitchTable {
        SwitchTable {
            buffer: Bytes(12_000_000),
            cell: Bytes(1),
            reserved: Bytes(0),
            alpha: 1.0,
            limit: None,
            cut_through: false,
            schedule: Vec::new(),
        }
    }
}

/// Scheduling of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Service {
    /// By its weight.
    Weight(u8),
    /// `"strict"`.
    Strict(String),
}

/// `[pfc]`: priority flow control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PfcTable {
    /// Lossless priorities: 3.
    pub lossless: Vec<u8>,
    /// Static limit in bytes of a port and priority, above which the peer has to pause. Without it: that of `alpha`.
    pub xoff: Option<Bytes>,
    /// Dynamic limit as a multiple of the free bytes: 1, which is the DCQCN paper's beta of 8 with eight priorities.
    pub alpha: f64,
    /// Bytes below the limit at which the peer may resume: two frames.
    pub xon_offset: Option<Bytes>,
    /// Headroom in bytes of one port and priority, for the worst case.
    pub headroom: Option<Bytes>,
    /// Pause time of a PFC frame, in quanta of 512 bit times: 65535.
    pub quanta: u16,
    /// Time from the end of a PFC frame until it takes effect: the limit of 802.3.
    pub response: Option<Time>,
    /// A queue paused continuously for this long is emptied. Without it, no watchdog.
    pub watchdog: Option<Time>,
    /// Time after the end of the pause until the queue works again: like `watchdog`.
    pub restore: Option<Time>,
}

impl Default for PfcTable {
    fn default() -> PfcTable {
        PfcTable {
            lossless: vec![3],
            xoff: None,
            alpha: 1.0,
            xon_offset: None,
            headroom: None,
            quanta: 0xffff,
            response: None,
            watchdog: None,
            restore: None,
        }
    }
}

/// `[ecn]`: ECN marking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EcnTable {
    /// Queue depth in bytes above which marking starts: 5 KB.
    pub kmin: Bytes,
    /// Queue depth in bytes above which every frame is marked: 200 KB.
    pub kmax: Bytes,
    /// Share of frames marked at kmax: 0.01.
    pub pmax: f64,
    /// Priorities with marking queues: all but 6, the priority of notifications.
    pub priorities: Vec<u8>,
}

impl Default for EcnTable {
    /// The values of the DCQCN paper, for 40 Gb/s.
    fn default() -> EcnTable {
        EcnTable {
            kmin: Bytes(5_000),
            kmax: Bytes(200_000),
            pmax: 0.01,
            priorities: vec![0, 1, 2, 3, 4, 5, 7],
        }
    }
}

/// `[hosts]`: configuration of all hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostTable {
    /// Payload of a full packet: 256, 512, 1024, 2048 or 4096. 1024.
    pub mtu: u32,
    /// Maximum bytes of a work request: 64 KiB.
    pub message: Bytes,
    /// Outstanding work requests of a flow: 8.
    pub depth: u32,
    /// Size of a host's transmit ring in frames: 64.
    pub slots: usize,
    /// Local ACK timeout code: 4.096 us times two to its power. 10, which is 4.2 ms.
    pub timeout: u8,
    /// Lost packets are sent again alone, in place of all behind them: false.
    pub selective_repeat: bool,
    /// Adapter that all hosts behave as, by the name or file of its profile: none.
    pub profile: Option<String>,
}

impl Default for HostTable {
    fn default() -> HostTable {
        HostTable {
            mtu: 1024,
            message: Bytes(65_536),
            depth: 8,
            slots: 64,
            timeout: 10,
            selective_repeat: false,
            profile: None,
        }
    }
}

/// Traffic pattern: sources and destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// From each of `from` to each of `to`, all at the same time.
    Flows,
    /// From each of `from` to one host, `to`: the last by default.
    Incast,
    /// From each host to one other, such that each host receives from one.
    Permutation,
    /// Each host to each other.
    AllToAll,
    /// An all-reduce of `bytes` around a ring: 2 (n - 1) steps of 1/n each.
    RingAllReduce,
    /// An all-reduce of `bytes` on a binary tree: up, then down.
    TreeAllReduce,
    /// From each of `from`: reads from and writes to targets among `to`, `depth` requests at a time.
    Storage,
    /// Flows that start at random, to random hosts. Each host sends `load` of its link's rate, in flows with the
    /// distribution `sizes`.
    Poisson,
}

impl std::fmt::Display for Pattern {
    /// Writes the name as in the file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// `[[traffic]]`: one traffic pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficTable {
    /// The pattern.
    pub pattern: Pattern,
    /// Name in the results: the pattern's name.
    pub name: Option<String>,
    /// Sending hosts, by number or name: all.
    pub from: Option<Vec<Place>>,
    /// Receiving hosts, by number or name: all.
    pub to: Option<Vec<Place>>,
    /// Bytes of a flow, or of an all-reduce, or of a request.
    pub bytes: Option<Bytes>,
    /// Start of the first flows: 0.
    #[serde(default)]
    pub start: Time,
    /// Latest start of a flow: the end of the run.
    pub until: Option<Time>,
    /// Number of repetitions: 1. A repetition starts when the previous one between the same hosts has ended.
    pub repeat: Option<u32>,
    /// Poisson: share of its link's rate that each sender uses, 0 to 1.
    pub load: Option<f64>,
    /// Poisson: distribution of flow sizes.
    pub sizes: Option<Sizes>,
    /// Storage: share of requests that are reads, 0 to 1. 0.5.
    pub reads: Option<f64>,
    /// Storage: outstanding requests of each client. 4.
    pub depth: Option<u32>,
    /// Use READs by the data's destination in place of WRITEs by its source. false.
    #[serde(default)]
    pub read: bool,
    /// 802.1p priority, given by the upper bits of the DSCP: 3.
    #[serde(default = "priority")]
    pub priority: u8,
}

/// A host, by number or name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Place {
    /// By number, from 0.
    Number(usize),
    /// By name: `host3`.
    Name(String),
}

impl std::fmt::Display for Place {
    /// Writes the host as in the file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Number(number) => number.fmt(f),
            Place::Name(name) => name.fmt(f),
        }
    }
}

/// `[output]`: the output of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputTable {
    /// Interval between samples of rates, and between checks for deadlocks: 100 us.
    pub interval: Time,
    /// Sample rate, target and alpha of each flow that congestion control limits. false.
    pub control: bool,
    /// Links to capture: `"leaf0-spine1"`.
    pub capture: Vec<String>,
    /// Maximum frames of a capture: 100,000.
    pub frames: usize,
}

impl Default for OutputTable {
    fn default() -> OutputTable {
        OutputTable {
            interval: Time(Nanos::from_micros(100)),
            control: false,
            capture: Vec::new(),
            frames: 100_000,
        }
    }
}

fn rate() -> Speed {
    Speed(LinkRate::from_gbps(100))
}

fn delay() -> Time {
    Time(Nanos(500))
}

fn priority() -> u8 {
    3
}

impl Scenario {
    /// Parses a scenario.
    ///
    /// # Errors
    /// If the text is invalid, with the line and what is allowed there.
    pub fn read(text: &str) -> Result<Scenario, ScenarioError> {
        toml::from_str(text).map_err(|error| ScenarioError::of_text(&error))
    }

    /// Converts a parsed TOML table. Errors have no line numbers.
    ///
    /// # Errors
    /// If the table is not a valid scenario.
    pub fn of_table(table: toml::Table) -> Result<Scenario, ScenarioError> {
        table.try_into().map_err(|error: toml::de::Error| ScenarioError::of_text(&error))
    }

    /// Reads a scenario, and the network file that it may name.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid.
    pub fn open(path: &std::path::Path) -> Result<Scenario, ScenarioError> {
        let mut scenario =
            Scenario::read(&load(path)?).map_err(|error| ScenarioError::of_file(path, &error))?;
        scenario.find_nodes(path.parent().unwrap_or(std::path::Path::new("")))?;
        Ok(scenario)
    }

    /// Reads the network file, if the scenario names one, from `folder`.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid.
    pub fn find_nodes(&mut self, folder: &std::path::Path) -> Result<(), ScenarioError> {
        if let Some(name) = self.network.file.take() {
            let path = folder.join(name);
            let nodes = toml::from_str(&load(&path)?);
            self.network.nodes = Some(nodes.map_err(|error| ScenarioError::of_file(&path, &error))?);
        }
        Ok(())
    }

    /// Returns the congestion control of the hosts.
    ///
    /// # Errors
    /// If the name is unknown, or a parameter is not one of its parameters.
    pub fn control(&self) -> Result<Settings, ScenarioError> {
        let name = match self.cc.get("control") {
            None if self.cc.is_empty() => "off",
            None => "dcqcn",
            Some(toml::Value::String(name)) => name,
            Some(other) => {
                let what = format!("control = {other}: give \"off\", \"dcqcn\", \"swift\" or \"fixed\"");
                return Err(ScenarioError::wrong(("cc", "control"), what));
            }
        };
        let mut text = name.to_owned();
        // The preset comes first, because it sets the parameters' start values.
        let preset = self.cc.iter().filter(|(knob, _)| *knob == "preset");
        let rest = self.cc.iter().filter(|(knob, _)| *knob != "preset" && *knob != "control");
        for (knob, value) in preset.chain(rest) {
            let value = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Boolean(on) => u8::from(*on).to_string(),
                other => other.to_string(),
            };
            text.push_str(&format!(",{knob}={value}"));
        }
        Ok(text.parse()?)
    }
}
