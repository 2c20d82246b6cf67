//! Configuration of a switch. Everything is checked before anything is built; an error names the allowed values.

use super::error::{ConfigError, PRIORITIES, check_priority};
use super::link::LinkConfig;
use super::pfc::PfcConfig;

/// ECN marking of a queue (DCQCN, section 3.1). No frame is marked below `kmin`, every frame above `kmax`. In between,
/// the probability grows linearly to `pmax`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EcnConfig {
    /// Queue depth in bytes up to which no frame is marked.
    pub kmin: u64,
    /// Queue depth in bytes above which every frame is marked.
    pub kmax: u64,
    /// Marking probability just below `kmax`, 0 to 1.
    pub pmax: f64,
}

impl EcnConfig {
    /// Returns the probability that a frame is marked that finds `depth` bytes in its queue.
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

/// Scheduling of a queue (802.1Q 37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Before all weighted queues, and before strict queues of lower priority.
    Strict,
    /// Weighted among the other weighted queues: 1 to 100.
    Ets(u8),
}

/// Limit of a queue's share of the shared buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// A fixed number of bytes.
    Static(u64),
    /// A multiple of the free bytes (Choudhury and Hahne 1998).
    Dynamic(f64),
}

impl Threshold {
    /// Returns the limit in bytes when `free` bytes are free.
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

/// Source of a frame's priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriorityMap {
    /// The DSCP of the IP header, by this table of 64; other frames have priority 0.
    Dscp(Box<[u8; 64]>),
    /// The PCP of the 802.1Q tag, by this table; untagged frames have priority 0.
    Pcp([u8; PRIORITIES]),
}

impl Default for PriorityMap {
    /// The upper three bits of the DSCP (class selector).
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

/// A port of a switch.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    /// The outgoing link. The peer's link is assumed to be alike.
    pub link: LinkConfig,
    /// ECN marking of each priority's queue.
    pub ecn: [Option<EcnConfig>; PRIORITIES],
    /// Scheduling of each priority's queue.
    pub schedule: [Schedule; PRIORITIES],
}

impl PortConfig {
    /// Creates a port with eight strict queues and without ECN marking.
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
    /// The ports, numbered from 0.
    pub ports: Vec<PortConfig>,
    /// Size of the shared buffer in bytes.
    pub buffer: u64,
    /// Allocation unit of the buffer in bytes.
    pub cell: u32,
    /// Bytes reserved for each ingress port and priority.
    pub reserved: u64,
    /// Limit of the queue of a lossy priority.
    pub lossy: Threshold,
    /// Limit of an ingress port's lossless priority. Above it, the peer is told to pause.
    pub lossless: Threshold,
    /// How a frame's priority is found.
    pub priorities: PriorityMap,
    /// Priority flow control; `None`: the switch never pauses its peers.
    pub pfc: Option<PfcConfig>,
    /// Length of the longest frame in bytes, without FCS.
    pub longest_frame: u32,
    /// Cut-through: a frame starts to leave once its header has arrived, if the egress line is free and not faster than
    /// the ingress. Other frames are stored first.
    pub cut_through: bool,
    /// Source address of the MAC control frames.
    pub mac: [u8; 6],
    /// Seed of ECN marking and of the choice among equal-cost paths.
    pub seed: u64,
}

impl SwitchConfig {
    /// Creates a lossy switch without ECN marking and with a 12 MB buffer, as in section 4 of the DCQCN paper.
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

    /// Returns the headroom of one lossless priority of a port in bytes; 0 if no priority is lossless.
    pub fn headroom(&self, port: usize) -> u64 {
        self.pfc
            .as_ref()
            .map_or(0, |pfc| pfc.headroom_of(&self.ports[port].link, self.longest_frame, self.cell))
    }

    /// Returns the bytes reserved for individual ports and priorities, headroom included.
    pub fn promised(&self) -> u64 {
        let lossless = self.pfc.as_ref().map_or(0, |pfc| u64::from(pfc.lossless.count_ones()));
        let one = |port| self.reserved * PRIORITIES as u64 + self.headroom(port) * lossless;
        (0..self.ports.len()).map(one).sum()
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// The first invalid value.
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
