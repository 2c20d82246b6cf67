//! What a switch does with frames, as it is told.

use super::stats::DropReason;
use crate::time::Nanos;
use crate::wire::mac_control::MacControl;

/// A frame that has begun to leave.
#[derive(Debug, PartialEq, Eq)]
pub struct Departure {
    /// The frame, from its Ethernet header on.
    pub frame: Vec<u8>,
    /// When its last bit leaves, and the line is free.
    pub left: Nanos,
    /// When it is entirely at the other end.
    pub arrives: Nanos,
    /// What has become of it here.
    pub story: Story,
}

/// What a switch has done with a frame that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// It is the switch's own: a MAC control frame.
    Control,
    /// It came from a peer.
    Data {
        /// The queue in which it was.
        priority: usize,
        /// How long it was there.
        waited: Nanos,
        /// The queue marked it.
        marked: bool,
        /// Bytes that it left behind in its queue.
        behind: u64,
    },
}

/// What a switch has done with a frame that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is, or was, in a queue.
    Queued {
        /// The port by which it leaves.
        port: usize,
        /// The queue.
        priority: usize,
        /// Bytes that were there before it.
        depth: u64,
        /// The peer that it came from was told to pause.
        paused: bool,
    },
    /// It goes to all other ports.
    Flooded,
    /// A MAC control frame, which ends here.
    Heeded(MacControl),
    /// It went no further.
    Dropped(DropReason),
}
