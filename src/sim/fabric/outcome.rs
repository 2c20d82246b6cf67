//! Outcomes of frames in a switch.

use super::stats::DropReason;
use roxie_base::time::Nanos;
use roxie_wire::mac_control::MacControl;

/// A frame that starts to leave.
#[derive(Debug, PartialEq, Eq)]
pub struct Departure {
    /// The frame, starting at its Ethernet header.
    pub frame: Vec<u8>,
    /// Time at which the last bit leaves and the line becomes free.
    pub departs: Nanos,
    /// Time at which the last bit arrives at the other end.
    pub arrives: Nanos,
    /// Outcome in this switch.
    pub egress: EgressOutcome,
}

/// Outcome of a frame that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressOutcome {
    /// A MAC control frame of the switch itself.
    Control,
    /// A forwarded frame.
    Data {
        /// Priority of the queue that held the frame.
        priority: usize,
        /// Time in the queue.
        waited: Nanos,
        /// True if the queue marked the frame.
        marked: bool,
        /// Bytes that remain in the queue.
        behind: u64,
    },
}

/// Outcome of a frame that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IngressOutcome {
    /// The frame was queued, and may have left already.
    Queued {
        /// Egress port.
        port: usize,
        /// Priority of the queue.
        priority: usize,
        /// Bytes in the queue before the frame.
        depth: u64,
        /// True if the peer that sent the frame was told to pause.
        paused: bool,
    },
    /// The frame is flooded to all other ports.
    Flooded,
    /// A MAC control frame, which is not forwarded.
    Applied(MacControl),
    /// The frame was dropped.
    Dropped(DropReason),
}
