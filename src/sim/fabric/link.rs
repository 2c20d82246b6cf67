//! Links: how long frames take onto them and along them.

use std::fmt;

use super::error::ConfigError;
use crate::time::Nanos;
use crate::wire::mac_control::{quanta_bytes, response_quanta};
pub use crate::wire::net::{ETHERNET_OVERHEAD, SHORTEST_FRAME};

/// Bits per second on the wire, overhead included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkRate(pub u64);

impl LinkRate {
    /// Frames take no time.
    pub const UNBOUNDED: LinkRate = LinkRate(u64::MAX);

    /// `mbps` million bits per second.
    pub const fn from_mbps(mbps: u64) -> LinkRate {
        LinkRate(mbps * 1_000_000)
    }

    /// `gbps` thousand million bits per second.
    pub const fn from_gbps(gbps: u64) -> LinkRate {
        LinkRate(gbps * 1_000_000_000)
    }

    /// How long `bytes` take, rounded up.
    pub const fn nanos_for(self, bytes: u64) -> Nanos {
        Nanos((bytes as u128 * 8_000_000_000).div_ceil(self.0 as u128) as u64)
    }

    /// Bytes that begin within `time`: what does not fit entirely counts.
    pub const fn bytes_in(self, time: Nanos) -> u64 {
        (time.0 as u128 * self.0 as u128).div_ceil(8_000_000_000) as u64
    }

    /// How long a pause of `quanta` lasts: a quantum is 512 bit times (802.3 31B.2).
    pub const fn pause(self, quanta: u16) -> Nanos {
        self.nanos_for(quanta_bytes(quanta) as u64)
    }

    /// The longest time from a PFC frame's end to the last bit that a conforming peer begins to send after it (802.3 31B.3.7,
    /// in quanta by rate).
    pub const fn pause_response(self) -> Nanos {
        self.pause(response_quanta(self.0))
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::congestion::Rate(self.0 as f64).fmt(f)
    }
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bits per second of the wire.
    pub rate: LinkRate,
    /// Along the cable: 5 ns a metre.
    pub delay: Nanos,
    /// Bytes that each frame takes on the wire beside those that a port carries.
    pub overhead: u32,
    /// The share of frames that are damaged on the way, each by itself: they take their time, and nobody sees them. 0 to 1.
    pub frame_errors: f64,
}

impl LinkConfig {
    /// An Ethernet link.
    pub const fn new(rate: LinkRate, delay: Nanos) -> LinkConfig {
        LinkConfig { rate, delay, overhead: ETHERNET_OVERHEAD, frame_errors: 0.0 }
    }

    /// Bytes of the wire that a frame of `length` takes.
    pub fn wire_bytes(&self, length: usize) -> u64 {
        length.max(SHORTEST_FRAME) as u64 + u64::from(self.overhead)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.rate.0 == 0 {
            return Err(ConfigError::NoRate);
        }
        if !(0.0..=1.0).contains(&self.frame_errors) {
            return Err(ConfigError::FrameErrors(self.frame_errors));
        }
        Ok(())
    }
}

/// Puts frames on a link, one after the other. The gap between two counts to the later, so that a frame is there entirely when
/// its time is over. Fractions of a nanosecond are carried from one frame to the next: a line that is never idle has its rate.
#[derive(Debug)]
pub struct Line {
    link: LinkConfig,
    free_at: Nanos,
    /// What has been rounded away since the line was idle, in 1/rate ns.
    fraction: u64,
    /// It has not sent yet.
    fresh: bool,
}

impl Line {
    /// An idle line.
    pub fn new(link: LinkConfig) -> Line {
        Line { link, free_at: Nanos::ZERO, fraction: 0, fresh: true }
    }

    /// Its link.
    pub fn link(&self) -> &LinkConfig {
        &self.link
    }

    /// When the frame on it is over.
    pub fn free_at(&self) -> Nanos {
        self.free_at
    }

    /// True if a frame is on it.
    pub fn is_busy(&self, now: Nanos) -> bool {
        now < self.free_at
    }

    /// Begins a frame of `length` bytes; the line is free at the time returned, when the last bit has left.
    pub fn begin(&mut self, now: Nanos, length: usize) -> Nanos {
        debug_assert!(!self.is_busy(now), "one frame at a time");
        if now > self.free_at || self.fresh {
            self.fraction = 0;
        }
        self.fresh = false;
        let rate = u128::from(self.link.rate.0);
        let work = u128::from(self.link.wire_bytes(length)) * 8_000_000_000 + u128::from(self.fraction);
        self.fraction = (work % rate) as u64;
        self.free_at = now + Nanos((work / rate) as u64);
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_line_keeps_its_rate_to_the_nanosecond() {
        // 3 Gb/s: a frame of 101 bytes takes 269.33 ns.
        let mut line =
            Line::new(LinkConfig { overhead: 0, ..LinkConfig::new(LinkRate::from_gbps(3), Nanos(0)) });
        let mut now = Nanos(1000);
        let mut ends = Vec::new();
        for _ in 0..3000 {
            now = line.begin(now, 101);
            ends.push(now.0 - 1000);
        }
        assert_eq!(ends[..4], [269, 538, 808, 1077]);
        assert_eq!(ends[2999], 3000 * 808 / 3);
        assert_eq!(line.begin(Nanos(2_000_000), 101), Nanos(2_000_269), "an idle line begins anew");
    }

    #[test]
    fn short_frames_are_padded_and_all_have_their_overhead() {
        let mut line = Line::new(LinkConfig::new(LinkRate::from_gbps(8), Nanos(7)));
        assert_eq!(line.begin(Nanos(5), 14), Nanos(5 + 84));
        assert_eq!(line.begin(Nanos(89), 1514), Nanos(89 + 1538));
    }

    #[test]
    fn quanta_are_512_bit_times() {
        assert_eq!(LinkRate::from_gbps(40).pause(0xffff), Nanos(838_848));
        assert_eq!(LinkRate::from_gbps(100).pause_response(), Nanos(2018));
    }
}
