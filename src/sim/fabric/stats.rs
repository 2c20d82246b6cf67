//! What a switch counts.

use super::depth::Depth;
use crate::time::Nanos;

/// Why a frame went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Its queue has the share of the buffer that it may have.
    Threshold,
    /// The shared buffer is full.
    Full,
    /// A lossless priority whose headroom is full: its peer did not pause in time, or the headroom is too small.
    Headroom,
    /// Nobody is known at its destination address, or only whom it comes from.
    NoRoute,
    /// Longer than the switch carries.
    TooLong,
    /// No Ethernet header.
    Malformed,
    /// The watchdog has closed its queue, which has been paused for too long.
    Watchdog,
}

/// How many reasons there are.
const REASONS: usize = 7;

impl DropReason {
    /// All of them.
    pub const ALL: [DropReason; REASONS] = [
        DropReason::Threshold,
        DropReason::Full,
        DropReason::Headroom,
        DropReason::NoRoute,
        DropReason::TooLong,
        DropReason::Malformed,
        DropReason::Watchdog,
    ];
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DropReason::Threshold => "threshold",
            DropReason::Full => "full",
            DropReason::Headroom => "headroom",
            DropReason::NoRoute => "no_route",
            DropReason::TooLong => "too_long",
            DropReason::Malformed => "malformed",
            DropReason::Watchdog => "watchdog",
        })
    }
}

/// Frames dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; REASONS]);

impl Drops {
    /// For this reason.
    pub fn by(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// For any.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }
}

/// What came in at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngressStats {
    /// Frames that came in.
    pub frames: u64,
    /// Bytes of the frames that came in.
    pub bytes: u64,
    /// MAC control frames, which go no further.
    pub control: u64,
    /// Copies offered to queues: one for each frame to one station, and one a port for those to groups.
    pub copies: u64,
    /// Frames of which no copy was offered to any queue.
    pub drops: Drops,
}

/// One queue of a port, that of one priority; and what the peer at this port was told about that priority.
#[derive(Clone, Debug, Default)]
pub struct QueueStats {
    /// Copies offered to it.
    pub offered: u64,
    /// Those that it took.
    pub enqueued: u64,
    /// Those that it did not.
    pub drops: Drops,
    /// Frames that have begun to leave.
    pub sent: u64,
    /// Frames that the watchdog took out of it.
    pub flushed: u64,
    /// How often the watchdog has found it stuck.
    pub storms: u64,
    /// Bytes of the frames that have begun to leave.
    pub sent_bytes: u64,
    /// Frames that it marked.
    pub marked: u64,
    /// How often the peer was told to pause, again and again for as long as it shall.
    pub xoff_sent: u64,
    /// How often it was told to go on.
    pub xon_sent: u64,
    /// For how long the peer was to be silent, up to when it was told to go on last.
    pub pause_sent: Nanos,
    /// Since when the peer is to be silent, if it is now: not in `pause_sent` yet.
    pub pausing_since: Option<Nanos>,
    /// For how long the queue was told to be silent.
    pub pause_received: Nanos,
    /// The most bytes of headroom that what came in at this port took.
    pub headroom_peak: u64,
    /// Its depth, without the frame that is leaving.
    pub depth: Depth,
}

impl QueueStats {
    /// Frames that wait in it, if all were counted right.
    pub fn queued(&self) -> u64 {
        self.enqueued - self.sent - self.flushed
    }
}
