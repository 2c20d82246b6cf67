//! Links: serialization time and propagation delay of frames.

use std::fmt;

use super::error::ConfigError;
use roxie_base::time::Nanos;
use roxie_wire::mac_control::{quanta_bytes, response_quanta};
pub use roxie_wire::net::{ETHERNET_OVERHEAD, SHORTEST_FRAME};

/// Bits per second on the wire, including overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkRate(pub u64);

impl LinkRate {
    /// No limit: frames take no time.
    pub const UNBOUNDED: LinkRate = LinkRate(u64::MAX);

    /// Returns a rate of `mbps` million bits per second.
    pub const fn from_mbps(mbps: u64) -> LinkRate {
        LinkRate(mbps * 1_000_000)
    }

    /// Returns a rate of `gbps` thousand million bits per second.
    pub const fn from_gbps(gbps: u64) -> LinkRate {
        LinkRate(gbps * 1_000_000_000)
    }

    /// Returns the time that `bytes` take, rounded up.
    pub const fn nanos_for(self, bytes: u64) -> Nanos {
        Nanos((bytes as u128 * 8_000_000_000).div_ceil(self.0 as u128) as u64)
    }

    /// Returns the number of bytes that start within `time`, including a partial one.
    pub const fn bytes_in(self, time: Nanos) -> u64 {
        (time.0 as u128 * self.0 as u128).div_ceil(8_000_000_000) as u64
    }

    /// Returns the duration of a pause of `quanta`. A quantum is 512 bit times (802.3 31B.2).
    pub const fn pause(self, quanta: u16) -> Nanos {
        self.nanos_for(quanta_bytes(quanta) as u64)
    }

    /// Returns the maximum time from the end of a PFC frame to the last bit that a conforming peer starts to send
    /// afterwards (802.3 31B.3.7, in quanta by rate).
    pub const fn pause_response(self) -> Nanos {
        self.pause(response_quanta(self.0))
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        roxie_nic::congestion::Rate(self.0 as f64).fmt(f)
    }
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// Rate of the wire.
    pub rate: LinkRate,
    /// Propagation delay: 5 ns per metre.
    pub delay: Nanos,
    /// Bytes per frame on the wire in addition to the frame itself.
    pub overhead: u32,
    /// Share of frames damaged on the way, independently, 0 to 1. A damaged frame takes its time and is then discarded.
    pub frame_errors: f64,
}

impl LinkConfig {
    /// Creates an Ethernet link without errors.
    pub const fn new(rate: LinkRate, delay: Nanos) -> LinkConfig {
        LinkConfig { rate, delay, overhead: ETHERNET_OVERHEAD, frame_errors: 0.0 }
    }

    /// Returns the bytes on the wire of a frame of `length` bytes.
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

/// Transmits frames on a link, one after the other. The gap between two frames is counted to the later one, so a frame
/// has left entirely when its time is over. Fractions of a nanosecond are carried over to the next frame: a line that
/// is never idle keeps its rate exactly.
#[derive(Debug)]
pub struct Line {
    link: LinkConfig,
    free_at: Nanos,
    /// Sum of the fractions rounded away since the line was idle, in 1/rate ns.
    fraction: u64,
    /// True if no frame has been sent yet.
    fresh: bool,
}

impl Line {
    /// Creates an idle line.
    pub fn new(link: LinkConfig) -> Line {
        Line { link, free_at: Nanos::ZERO, fraction: 0, fresh: true }
    }

    /// Returns the link.
    pub fn link(&self) -> &LinkConfig {
        &self.link
    }

    /// Returns when the current frame ends.
    pub fn free_at(&self) -> Nanos {
        self.free_at
    }

    /// Returns true if a frame is being sent.
    pub fn is_busy(&self, now: Nanos) -> bool {
        now < self.free_at
    }

    /// Starts a frame of `length` bytes. Returns when its last bit has left and the line is free.
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
    fn busy_line_keeps_its_exact_rate() {
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
        assert_eq!(line.begin(Nanos(2_000_000), 101), Nanos(2_000_269), "an idle line starts afresh");
    }

    #[test]
    fn short_frames_are_padded_and_have_overhead() {
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
