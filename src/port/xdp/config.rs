//! Configuration of an XDP port.

use std::net::IpAddr;
use std::str::FromStr;

use super::XdpError;

/// Which of the kernel's modes may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The fastest that works: zero-copy, else native copy, else generic.
    #[default]
    Auto,
    /// Zero-copy only: the NIC writes into our memory.
    ZeroCopy,
    /// Native copy only: the driver runs the program, the kernel copies the frame.
    Native,
    /// Generic only: works on every driver, after the kernel has made an skb of the frame.
    Generic,
}

impl Mode {
    /// Returns the name used in options and in the environment.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::ZeroCopy => "zero-copy",
            Mode::Native => "native",
            Mode::Generic => "generic",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
        let all = [Mode::Auto, Mode::ZeroCopy, Mode::Native, Mode::Generic];
        let known = all.into_iter().find(|mode| mode.name() == name);
        known.ok_or_else(|| "no mode of AF_XDP: there are auto, zero-copy, native and generic".into())
    }
}

/// How to open an interface through AF_XDP.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The interface, in the namespace of the thread that opens it.
    pub interface: String,
    /// Receive queues to bind; the first also transmits. Empty: all queues.
    pub queues: Vec<u32>,
    /// Entries of each ring and chunks of 4 KiB for each direction: a power of two, 64 to 32768.
    /// A frame above 3,840 bytes takes two.
    pub ring: u32,
    /// Which modes may be used.
    pub mode: Mode,
    /// Destination addresses of RoCE v2 to take. Empty: the interface's when it is opened.
    /// `XdpPort::set_addresses` changes them later.
    pub addresses: Vec<IpAddr>,
    /// Take RoCE v1 (EtherType 0x8915) too.
    pub roce_v1: bool,
}

impl XdpConfig {
    /// Returns the default configuration: all queues of `interface`, its own addresses, the best mode, rings of 2048.
    pub fn new(interface: impl Into<String>) -> XdpConfig {
        XdpConfig {
            interface: interface.into(),
            queues: Vec::new(),
            ring: 2048,
            mode: Mode::Auto,
            addresses: Vec::new(),
            roce_v1: false,
        }
    }

    /// Returns the bytes of packet memory to lock on an interface with this many receive queues.
    pub fn packet_memory(&self, rx_queues: usize) -> u64 {
        let queues = if self.queues.is_empty() { rx_queues.max(1) } else { self.queues.len() };
        // Chunks for each direction.
        queues as u64 * 2 * u64::from(self.ring) * u64::from(CHUNK)
    }

    /// Checks the values that do not depend on the interface.
    pub(super) fn check(&self) -> Result<(), XdpError> {
        if !self.ring.is_power_of_two() || !(64..=32768).contains(&self.ring) {
            return Err(XdpError::Config(format!(
                "ring of {} entries: it takes a power of two from 64 to 32768",
                self.ring
            )));
        }
        if self.queues.len() > MAX_QUEUES {
            return Err(XdpError::Config(format!(
                "{} queues in one port: it takes {MAX_QUEUES} at most; open several ports",
                self.queues.len()
            )));
        }
        let mut sorted = self.queues.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(XdpError::Config(format!("queue {} is named twice", twice[0])));
        }
        Ok(())
    }
}

/// Chunk size of the UMEM: a page, the largest that the kernel takes without huge pages.
pub(super) const CHUNK: u32 = 4096;

/// Maximum number of queues in one port: each gets its share of a burst, at least one frame.
pub(super) const MAX_QUEUES: usize = crate::BURST;
