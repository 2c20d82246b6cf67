//! Counters of a switch.

use super::depth::Depth;
use roxie_base::time::Nanos;

/// Reason for dropping a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The egress queue has reached its threshold.
    Threshold,
    /// The shared buffer is full.
    Full,
    /// The headroom of a lossless priority is full: the peer did not pause in time, or the headroom is too small.
    Headroom,
    /// No route to the destination, or only by the ingress port.
    NoRoute,
    /// Longer than the switch's longest frame.
    TooLong,
    /// Shorter than an Ethernet header.
    Malformed,
    /// The watchdog has closed the queue, which was paused for too long.
    Watchdog,
}

/// Number of reasons.
const REASONS: usize = 7;

impl DropReason {
    /// All reasons, in order.
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
    /// Returns the frames dropped for this reason.
    pub fn by(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Returns the frames dropped for any reason.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }
}

/// Ingress counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngressStats {
    /// Frames received.
    pub frames: u64,
    /// Bytes of the frames received.
    pub bytes: u64,
    /// MAC control frames, which are not forwarded.
    pub control: u64,
    /// Copies offered to queues: one for each unicast frame, and one per port for multicast.
    pub copies: u64,
    /// Frames dropped before any copy was offered to a queue.
    pub drops: Drops,
}

/// Counters of one priority's queue of a port, and of the pause requests sent to the peer for that priority.
#[derive(Clone, Debug, Default)]
pub struct QueueStats {
    /// Copies offered to the queue.
    pub offered: u64,
    /// Copies admitted.
    pub enqueued: u64,
    /// Copies dropped.
    pub drops: Drops,
    /// Frames that started to leave.
    pub sent: u64,
    /// Frames removed by the watchdog.
    pub flushed: u64,
    /// Number of times the watchdog found the queue stuck.
    pub storms: u64,
    /// Bytes of the frames that started to leave.
    pub sent_bytes: u64,
    /// Frames marked.
    pub marked: u64,
    /// XOFF frames sent to the peer, repetitions included.
    pub xoff_sent: u64,
    /// XON frames sent to the peer.
    pub xon_sent: u64,
    /// Total time for which the peer was paused, up to the last XON.
    pub pause_sent: Nanos,
    /// Time since which the peer is paused, if it is; not included in `pause_sent`.
    pub pausing_since: Option<Nanos>,
    /// Total time for which the peer paused this queue.
    pub pause_received: Nanos,
    /// Maximum headroom in bytes used by frames that came in at this port.
    pub headroom_peak: u64,
    /// Depth of the queue, without the frame being sent.
    pub depth: Depth,
}

impl QueueStats {
    /// Returns the frames in the queue, if all counts are right.
    pub fn queued(&self) -> u64 {
        self.enqueued - self.sent - self.flushed
    }
}
