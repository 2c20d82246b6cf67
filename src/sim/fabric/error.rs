//! Errors of a fabric's configuration.

/// Number of priorities, and of queues of a port (802.1Q).
pub const PRIORITIES: usize = 8;

/// Invalid value of a configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Link rate of zero.
    #[error("a link rate of 0 moves nothing: give bits per second, 1 or more")]
    NoRate,
    /// Share of damaged frames outside of 0 to 1.
    #[error("frame errors of {0} are not a share of frames: give 0 to 1 (0.1 % is 0.001)")]
    FrameErrors(f64),
    /// PFC watchdog without a detection time.
    #[error(
        "a watchdog that waits for 0 ns empties every queue that is paused: give a time longer than any regular pause"
    )]
    Watchdog,
    /// ECN thresholds in the wrong order.
    #[error(
        "Kmin {kmin} is above Kmax {kmax}: marking begins at Kmin and is complete at Kmax, so Kmin is at most Kmax"
    )]
    Kmin {
        /// The lower threshold, in bytes.
        kmin: u64,
        /// The upper threshold, in bytes, which the lower one exceeds.
        kmax: u64,
    },
    /// Marking probability outside of 0 to 1.
    #[error("Pmax {0} is not a probability: give 0 to 1 (1 % is 0.01)")]
    Pmax(f64),
    /// Priority above 7.
    #[error("there is no priority {0}: they are 0 to 7")]
    Priority(u8),
    /// ETS weight outside of 1 to 100.
    #[error("an ETS weight of {0}: give 1 to 100")]
    Weight(u8),
    /// Dynamic threshold of zero or below.
    #[error("alpha {0} is not a share of the free bytes: give a number above 0 (1 is common)")]
    Alpha(f64),
    /// Reservations exceed the buffer.
    #[error(
        "reserved bytes and headroom of all ports and priorities are {promised}, the buffer has {buffer}: give at least as much"
    )]
    Buffer {
        /// Bytes that are reserved, headroom included, for all ports and priorities.
        promised: u64,
        /// Bytes of the whole buffer.
        buffer: u64,
    },
    /// Buffer cell of zero bytes.
    #[error("a cell of 0 bytes holds nothing: give 1 (to count bytes) or more")]
    Cell,
    /// No ports, or more than 65,535.
    #[error("a switch without ports: give one or more, 65,535 at most")]
    Ports,
    /// Pause time of zero, which is a resume.
    #[error("a pause of 0 quanta resumes: give 1 to 65,535")]
    Quanta,
    /// Longest frame too short for a frame.
    #[error("the longest frame is {0} bytes: give 60 or more")]
    LongestFrame(u32),
    /// Unknown host or port, or two links on one port.
    #[error("{0}")]
    Topology(String),
}

pub(super) fn check_priority(priority: u8) -> Result<(), ConfigError> {
    if usize::from(priority) < PRIORITIES { Ok(()) } else { Err(ConfigError::Priority(priority)) }
}
