//! Why a configuration of the fabric is none.

/// Priorities, and queues of a port (802.1Q).
pub const PRIORITIES: usize = 8;

/// Why a configuration is none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A link that never ends a frame.
    #[error("a link rate of 0 moves nothing: give bits per second, 1 or more")]
    NoRate,
    /// No share.
    #[error("frame errors of {0} are no share of frames: give 0 to 1 (0.1 % is 0.001)")]
    FrameErrors(f64),
    /// A watchdog that bites whoever pauses at all.
    #[error(
        "a watchdog that waits for 0 ns empties every queue that is paused: give what is longer than any honest pause"
    )]
    Watchdog,
    /// The curve would fall.
    #[error(
        "Kmin {kmin} is above Kmax {kmax}: marking begins at Kmin and is complete at Kmax, so Kmin is at most Kmax"
    )]
    Kmin {
        /// The lower threshold, in bytes.
        kmin: u64,
        /// The upper threshold, in bytes, which the lower one exceeds.
        kmax: u64,
    },
    /// No probability.
    #[error("Pmax {0} is no probability: give 0 to 1 (1 % is 0.01)")]
    Pmax(f64),
    /// There are eight.
    #[error("there is no priority {0}: they are 0 to 7")]
    Priority(u8),
    /// A share of nothing.
    #[error("an ETS weight of {0}: give 1 to 100; what shall have nothing needs no queue")]
    Weight(u8),
    /// Weights are shares.
    #[error("alpha {0} is no share of what is free: give a number above 0 (1 is usual)")]
    Alpha(f64),
    /// There is less than was promised.
    #[error(
        "reserved bytes and headroom of all ports and priorities are {promised}, the buffer has {buffer}: give at least as much"
    )]
    Buffer {
        /// Bytes that are reserved, headroom included, for all ports and priorities.
        promised: u64,
        /// Bytes of the whole buffer.
        buffer: u64,
    },
    /// A buffer is made of something.
    #[error("a cell of 0 bytes holds nothing: give 1 (to count bytes) or more")]
    Cell,
    /// Nothing can be sent.
    #[error("a switch without ports: give one or more, 65,535 at most")]
    Ports,
    /// A pause of no time is a resumption.
    #[error("a pause of 0 quanta resumes: give 1 to 65,535")]
    Quanta,
    /// A frame with headers does not fit.
    #[error("the longest frame is {0} bytes: give 60 or more")]
    LongestFrame(u32),
    /// A host or port that is not there, or two links on one.
    #[error("{0}")]
    Topology(String),
}

pub(super) fn check_priority(priority: u8) -> Result<(), ConfigError> {
    if usize::from(priority) < PRIORITIES { Ok(()) } else { Err(ConfigError::Priority(priority)) }
}
