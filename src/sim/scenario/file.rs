//! A scenario as it is written: one TOML file. What is missing has the default that its line here says.

use serde::{Deserialize, Serialize};

use super::error::ScenarioError;
use super::quantity::{Bytes, Speed, Time};
use super::sizes::Sizes;
use crate::congestion::Settings;
use crate::sim::fabric::{LinkRate, Routing};
use crate::time::Nanos;

/// A network, who sends what in it, and what is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is called; nothing follows from it.
    #[serde(default)]
    pub name: String,
    /// All that looks random follows from it. 0.
    #[serde(default)]
    pub seed: u64,
    /// When the run ends at the latest. It ends before if all flows have ended.
    pub time: Time,
    /// What is joined to what.
    pub network: NetworkTable,
    /// The switches.
    #[serde(default)]
    pub switch: SwitchTable,
    /// Priority flow control; without it nothing is lossless.
    pub pfc: Option<PfcTable>,
    /// Marking; without it nothing is marked.
    pub ecn: Option<EcnTable>,
    /// The hosts.
    #[serde(default)]
    pub hosts: HostTable,
    /// Congestion control: `control = "dcqcn"` (or `off`, `swift`, `fixed`), and its knobs by their names. Off.
    #[serde(default)]
    pub cc: toml::Table,
    /// Who sends what.
    #[serde(default)]
    pub traffic: Vec<TrafficTable>,
    /// What is written down.
    #[serde(default)]
    pub output: OutputTable,
}

/// The shape of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShapeName {
    /// `hosts` on one switch.
    Star,
    /// `pairs`, the first of each at one switch and the second at another.
    Dumbbell,
    /// `leaves` with `hosts` each, joined to each of `spines`.
    LeafSpine,
    /// The fat tree of switches with `k` ports.
    FatTree,
    /// `switches` with `hosts` each.
    Ring,
    /// What `nodes` and `links` say, here or in `file`.
    Custom,
}

/// `[network]`: what is joined to what.
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
    /// A file with `hosts`, `switches` and `links`, beside this one.
    pub file: Option<String>,
    /// The same in place.
    pub nodes: Option<NodesTable>,
    /// Links of hosts: 100 Gb/s.
    #[serde(default = "rate")]
    pub rate: Speed,
    /// Cables of hosts: 500 ns, 100 m.
    #[serde(default = "delay")]
    pub delay: Time,
    /// Links between switches: like `rate`.
    pub trunk_rate: Option<Speed>,
    /// Cables between switches: like `delay`.
    pub trunk_delay: Option<Time>,
    /// The share of frames that every link loses, each by itself. 0.
    #[serde(default)]
    pub frame_errors: f64,
    /// By which ways.
    #[serde(default)]
    pub routing: RoutingName,
}

/// How switches find their ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoutingName {
    /// By all shortest.
    #[default]
    Shortest,
    /// Up, then down: no cycle.
    UpDown,
}

impl std::fmt::Display for ShapeName {
    /// As it is written.
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

/// A network node by node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodesTable {
    /// Names of the hosts.
    pub hosts: Vec<String>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// What is joined to what.
    pub links: Vec<NodeLink>,
}

/// A link between nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLink {
    /// The names of both ends.
    pub ends: [String; 2],
    /// As `rate` or `trunk_rate` of the network.
    pub rate: Option<Speed>,
    /// As `delay` or `trunk_delay` of the network.
    pub delay: Option<Time>,
    /// As `frame_errors` of the network.
    pub frame_errors: Option<f64>,
}

/// `[switch]`: all switches are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchTable {
    /// Bytes for all ports: 12 MB.
    pub buffer: Bytes,
    /// What a frame's place is rounded up to: 1 B.
    pub cell: Bytes,
    /// Bytes that each port and priority has for itself: 0.
    pub reserved: Bytes,
    /// How many times what is free a queue of a lossy priority may have: 1.
    pub alpha: f64,
    /// The same as a number of bytes, in its place.
    pub limit: Option<Bytes>,
    /// A frame begins to leave when its header has come, where it can. false.
    pub cut_through: bool,
    /// By priority: `"strict"`, or a weight from 1 to 100. All strict.
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

/// When a queue is served.
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
    /// The priorities that lose nothing: 3.
    pub lossless: Vec<u8>,
    /// Bytes of one port and priority beyond which the peer has to pause; without it, `alpha` times what is free.
    pub xoff: Option<Bytes>,
    /// How many times what is free: 1, which is the DCQCN paper's beta of 8 with eight priorities.
    pub alpha: f64,
    /// Bytes below the threshold at which the peer may go on: two frames.
    pub xon_offset: Option<Bytes>,
    /// Bytes of headroom of one port and priority: what the worst case needs.
    pub headroom: Option<Bytes>,
    /// For how long a frame pauses, in quanta of 512 bit times: 65535.
    pub quanta: u16,
    /// From a PFC frame's end until it holds: what 802.3 allows.
    pub response: Option<Time>,
    /// A queue that has been paused for so long without a break is emptied. Without it there is no watchdog.
    pub watchdog: Option<Time>,
    /// So long after the end of the pause the queue is as before: like `watchdog`.
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

/// `[ecn]`: marking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EcnTable {
    /// Bytes in a queue from which on it marks: 5 KB.
    pub kmin: Bytes,
    /// Bytes in a queue above which it marks everything: 200 KB.
    pub kmax: Bytes,
    /// The share that is marked at kmax: 0.01.
    pub pmax: f64,
    /// The priorities whose queues mark: all but 6, that of notifications.
    pub priorities: Vec<u8>,
}

impl Default for EcnTable {
    /// Those of the DCQCN paper, for 40 Gb/s.
    fn default() -> EcnTable {
        EcnTable {
            kmin: Bytes(5_000),
            kmax: Bytes(200_000),
            pmax: 0.01,
            priorities: vec![0, 1, 2, 3, 4, 5, 7],
        }
    }
}

/// `[hosts]`: all hosts are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostTable {
    /// Payload of a full packet: 256, 512, 1024, 2048 or 4096. 1024.
    pub mtu: u32,
    /// Bytes that a work request moves at most: 64 KiB.
    pub message: Bytes,
    /// Work requests that a flow has outstanding: 8.
    pub depth: u32,
    /// Frames that wait for a host's link at most: 64.
    pub slots: usize,
    /// Local ACK timeout code; 4.096 us times two to its power. 10, which is 4.2 ms.
    pub timeout: u8,
}

impl Default for HostTable {
    fn default() -> HostTable {
        HostTable { mtu: 1024, message: Bytes(65_536), depth: 8, slots: 64, timeout: 10 }
    }
}

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Each of `from` to each of `to`, all at once.
    Flows,
    /// Each of `from` to one host, `to`: the last by default.
    Incast,
    /// Each host to one other, and from one other.
    Permutation,
    /// Each host to each other.
    AllToAll,
    /// An all-reduce of `bytes` around a ring: 2 (n - 1) steps of an n-th.
    RingAllReduce,
    /// An all-reduce of `bytes` by a binary tree: up, then down.
    TreeAllReduce,
    /// Each of `from` reads from and writes to targets among `to`, `depth` requests at a time.
    Storage,
    /// Flows begin at random, each host sending `load` of its link's rate, of sizes by `sizes`, to another at random.
    Poisson,
}

impl std::fmt::Display for Pattern {
    /// As it is written.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// `[[traffic]]`: one pattern of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficTable {
    /// Who sends to whom.
    pub pattern: Pattern,
    /// What it is called in the results: the pattern's name.
    pub name: Option<String>,
    /// Hosts that send, by number or name; all by default.
    pub from: Option<Vec<Place>>,
    /// Hosts that are sent to, by number or name; all by default.
    pub to: Option<Vec<Place>>,
    /// Bytes of a flow, or of an all-reduce, or of a request.
    pub bytes: Option<Bytes>,
    /// When it begins: 0.
    #[serde(default)]
    pub start: Time,
    /// When the last begins at the latest: when the run ends.
    pub until: Option<Time>,
    /// How often: 1. Each flow begins when the one before of its hosts has ended.
    pub repeat: Option<u32>,
    /// Poisson: the share of its link's rate that each sender is to use, 0 to 1.
    pub load: Option<f64>,
    /// Poisson: how large flows are.
    pub sizes: Option<Sizes>,
    /// Storage: the share of requests that read, 0 to 1. 0.5.
    pub reads: Option<f64>,
    /// Storage: requests that each client has outstanding. 4.
    pub depth: Option<u32>,
    /// READs of the data's destination in place of WRITEs of its source. false.
    #[serde(default)]
    pub read: bool,
    /// 802.1p priority, by the DSCP's upper bits: 3.
    #[serde(default = "priority")]
    pub priority: u8,
}

/// A host by its number or its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Place {
    /// By number, from 0 on.
    Number(usize),
    /// By name: `host3`.
    Name(String),
}

impl std::fmt::Display for Place {
    /// As it is written.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Number(number) => number.fmt(f),
            Place::Name(name) => name.fmt(f),
        }
    }
}

/// `[output]`: what is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputTable {
    /// Between two looks at rates, and for deadlocks: 100 us.
    pub interval: Time,
    /// At each interval, the rate, target and alpha of each flow that congestion control limits. false.
    pub control: bool,
    /// Links whose frames are kept: `"leaf0-spine1"`.
    pub capture: Vec<String>,
    /// Frames that a capture keeps at most: 100,000.
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
    /// Reads a scenario.
    ///
    /// # Errors
    /// If the text is none: with the line, and what is allowed there.
    pub fn read(text: &str) -> Result<Scenario, ScenarioError> {
        toml::from_str(text).map_err(|error| ScenarioError::of_text(&error))
    }

    /// The same of a table, whose lines nobody knows any more.
    ///
    /// # Errors
    /// If it is none.
    pub fn of_table(table: toml::Table) -> Result<Scenario, ScenarioError> {
        table.try_into().map_err(|error: toml::de::Error| ScenarioError::of_text(&error))
    }

    /// Reads a scenario and the network that it may name, which is a file beside it.
    ///
    /// # Errors
    /// If one cannot be read, or is none.
    pub fn open(path: &std::path::Path) -> Result<Scenario, ScenarioError> {
        let mut scenario = Scenario::read(&load(path)?).map_err(|error| within(path, &error))?;
        scenario.find_nodes(path.parent().unwrap_or(std::path::Path::new("")))?;
        Ok(scenario)
    }

    /// Reads the network that it may name, which lies in `folder`.
    ///
    /// # Errors
    /// If it cannot be read, or is none.
    pub fn find_nodes(&mut self, folder: &std::path::Path) -> Result<(), ScenarioError> {
        if let Some(name) = self.network.file.take() {
            let path = folder.join(name);
            let nodes = toml::from_str(&load(&path)?);
            self.network.nodes = Some(nodes.map_err(|error| within(&path, &error))?);
        }
        Ok(())
    }

    /// The congestion control of the hosts.
    ///
    /// # Errors
    /// If there is none of that name, or a knob is none of its.
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
        // A preset is where knobs begin.
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

fn load(path: &std::path::Path) -> Result<String, ScenarioError> {
    std::fs::read_to_string(path)
        .map_err(|source| ScenarioError::File { path: path.display().to_string(), source })
}

fn within(path: &std::path::Path, error: &dyn std::fmt::Display) -> ScenarioError {
    ScenarioError::Text(format!("{}: {error}", path.display()))
}
