//! What a switch is like. Everything is checked before anything is built; an error says what would be right.

use super::error::{ConfigError, PRIORITIES, check_priority};
use super::link::LinkConfig;
use super::pfc::PfcConfig;

/// How a congested queue marks (DCQCN, section 3.1): no frame below `kmin`, all above `kmax`, in between with a probability that
/// grows in a line to `pmax`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EcnConfig {
    /// Bytes in the queue up to which nothing is marked.
    pub kmin: u64,
    /// Bytes in the queue from which on everything is marked.
    pub kmax: u64,
    /// The probability of a mark just below `kmax`, 0 to 1.
    pub pmax: f64,
}

impl EcnConfig {
    /// The probability that a frame is marked that finds `depth` bytes in its queue.
    pub fn probability(&self, depth: u64) -> f64 {
        if depth <= self.kmin {
            0.0
        } else if depth > self.kmax {
            1.0
        } else {
            self.pmax * (depth - self.kmin) as f64 / (self.kmax - self.kmin) as f64
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.kmin > self.kmax {
            return Err(ConfigError::Kmin { kmin: self.kmin, kmax: self.kmax });
        }
        if !(0.0..=1.0).contains(&self.pmax) {
            return Err(ConfigError::Pmax(self.pmax));
        }
        Ok(())
    }
}

/// When a queue is served (802.1Q 37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Ahead of all that have a weight, and of lower strict ones.
    Strict,
    /// By this weight among those that have one: 1 to 100.
    Ets(u8),
}

/// How much of the shared buffer a queue may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// So many bytes.
    Static(u64),
    /// This many times what is free (Choudhury and Hahne 1998).
    Dynamic(f64),
}

impl Threshold {
    /// In bytes, when `free` are.
    pub(super) fn bytes(self, free: u64) -> u64 {
        match self {
            Threshold::Static(bytes) => bytes,
            Threshold::Dynamic(alpha) => (alpha * free as f64) as u64,
        }
    }

    fn check(self) -> Result<(), ConfigError> {
        match self {
            Threshold::Dynamic(alpha) if !(alpha > 0.0 && alpha.is_finite()) => {
                Err(ConfigError::Alpha(alpha))
            }
            _ => Ok(()),
        }
    }
}

/// What a frame's priority is told by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriorityMap {
    /// By the DSCP of its IP header, from this table of 64; other frames have priority 0.
    Dscp(Box<[u8; 64]>),
    /// By the PCP of its 802.1Q tag, from this table; frames without one have priority 0.
    Pcp([u8; PRIORITIES]),
}

impl Default for PriorityMap {
    /// The upper three bits of the DSCP: its class selector.
    fn default() -> PriorityMap {
        PriorityMap::Dscp(Box::new(std::array::from_fn(|dscp| (dscp >> 3) as u8)))
    }
}

impl PriorityMap {
    fn check(&self) -> Result<(), ConfigError> {
        let table: &[u8] = match self {
            PriorityMap::Dscp(table) => &**table,
            PriorityMap::Pcp(table) => table,
        };
        table.iter().try_for_each(|priority| check_priority(*priority))
    }
}

/// One port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    /// What leaves it goes along this. Its peer's is taken to be like it.
    pub link: LinkConfig,
    /// By priority: how its queue marks.
    pub ecn: [Option<EcnConfig>; PRIORITIES],
    /// By priority: when its queue is served.
    pub schedule: [Schedule; PRIORITIES],
}

impl PortConfig {
    /// Eight strict queues that mark nothing.
    pub fn new(link: LinkConfig) -> PortConfig {
        PortConfig { link, ecn: [None; PRIORITIES], schedule: [Schedule::Strict; PRIORITIES] }
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.link.check()?;
        self.ecn.iter().flatten().try_for_each(EcnConfig::check)?;
        self.schedule.iter().try_for_each(|schedule| match schedule {
            Schedule::Ets(weight) if !(1..=100).contains(weight) => Err(ConfigError::Weight(*weight)),
            _ => Ok(()),
        })
    }
}

/// A switch.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchConfig {
    /// The ports, by number from 0.
    pub ports: Vec<PortConfig>,
    /// Bytes for all of them.
    pub buffer: u64,
    /// Bytes that a frame's place in the buffer is rounded up to.
    pub cell: u32,
    /// Bytes of the buffer that each ingress port and priority has for itself.
    pub reserved: u64,
    /// What the queue of a lossy priority may have.
    pub lossy: Threshold,
    /// What comes in at one port of one lossless priority may have: beyond it the peer is told to pause.
    pub lossless: Threshold,
    /// Which frame has which priority.
    pub priorities: PriorityMap,
    /// Priority flow control; `None`: the switch never pauses its peers.
    pub pfc: Option<PfcConfig>,
    /// The longest frame, without FCS.
    pub longest_frame: u32,
    /// A frame begins to leave when its header has come, if its way out is free and no faster than its way in. Else it is stored first.
    pub cut_through: bool,
    /// Of the MAC control frames that it sends.
    pub mac: [u8; 6],
    /// What marking and the choice among equal ways follow from.
    pub seed: u64,
}

impl SwitchConfig {
    /// A lossy switch of these ports that marks nothing, with 12 MB as the one in section 4 of the DCQCN paper.
    pub fn new(ports: Vec<PortConfig>) -> SwitchConfig {
        SwitchConfig {
            ports,
            buffer: 12_000_000,
            cell: 1,
            reserved: 0,
            lossy: Threshold::Dynamic(1.0),
            lossless: Threshold::Dynamic(1.0),
            priorities: PriorityMap::default(),
            pfc: None,
            longest_frame: 9216,
            cut_through: false,
            mac: [2, 0xff, 0, 0, 0, 0],
            seed: 0,
        }
    }

    /// Headroom of one lossless priority of a port in bytes; 0 if none is lossless.
    pub fn headroom(&self, port: usize) -> u64 {
        self.pfc
            .as_ref()
            .map_or(0, |pfc| pfc.headroom_of(&self.ports[port].link, self.longest_frame, self.cell))
    }

    /// Bytes that are promised to single ports and priorities.
    pub fn promised(&self) -> u64 {
        let lossless = self.pfc.as_ref().map_or(0, |pfc| u64::from(pfc.lossless.count_ones()));
        let one = |port| self.reserved * PRIORITIES as u64 + self.headroom(port) * lossless;
        (0..self.ports.len()).map(one).sum()
    }

    /// Says what is wrong with it.
    ///
    /// # Errors
    /// If something is.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.ports.is_empty() || self.ports.len() > usize::from(u16::MAX) {
            return Err(ConfigError::Ports);
        }
        self.ports.iter().try_for_each(PortConfig::check)?;
        self.priorities.check()?;
        self.lossy.check()?;
        self.lossless.check()?;
        if self.cell == 0 {
            return Err(ConfigError::Cell);
        }
        if self.longest_frame < 60 {
            return Err(ConfigError::LongestFrame(self.longest_frame));
        }
        if self.pfc.as_ref().is_some_and(|pfc| pfc.quanta == 0) {
            return Err(ConfigError::Quanta);
        }
        if self.pfc.as_ref().and_then(|pfc| pfc.watchdog).is_some_and(|dog| dog.detect.0 == 0) {
            return Err(ConfigError::Watchdog);
        }
        let promised = self.promised();
        if promised > self.buffer {
            return Err(ConfigError::Buffer { promised, buffer: self.buffer });
        }
        Ok(())
    }
}
