//! Priority flow control: how much may still come after a peer was told to pause, and who was told what.

use super::error::{ConfigError, check_priority};
use super::link::{LinkConfig, SHORTEST_FRAME};
use crate::time::Nanos;

/// What becomes of a queue that its peer pauses and pauses: it is emptied, so that others do not wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchdogConfig {
    /// A queue with frames that has been paused for so long without a break is emptied, and takes nothing more.
    pub detect: Nanos,
    /// So long after the end of the pause, it is as before.
    pub restore: Nanos,
}

/// How a switch keeps lossless priorities from losing frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PfcConfig {
    /// Bit `n`: priority `n` loses nothing.
    pub lossless: u8,
    /// Bytes below the threshold at which the peer is told to go on (the DCQCN paper: two frames).
    pub xon_offset: u64,
    /// For how long a frame pauses, in quanta. It is sent again when half of it has passed.
    pub quanta: u16,
    /// Bytes of headroom of each lossless priority of a port. `None`: [`worst_case`] for its link.
    pub headroom: Option<u64>,
    /// From the end of a PFC frame until it holds, at this switch and, for the headroom, at its peers. `None`: what 802.3 allows at
    /// the link's rate.
    pub response: Option<Nanos>,
    /// `None`: a queue waits for as long as its peer likes.
    pub watchdog: Option<WatchdogConfig>,
}

impl PfcConfig {
    /// For these priorities.
    ///
    /// # Errors
    /// If one is none.
    pub fn new(lossless: &[u8]) -> Result<PfcConfig, ConfigError> {
        let mut mask = 0;
        for &priority in lossless {
            check_priority(priority)?;
            mask |= 1 << priority;
        }
        Ok(PfcConfig {
            lossless: mask,
            xon_offset: 0,
            quanta: 0xffff,
            headroom: None,
            response: None,
            watchdog: None,
        })
    }

    /// True if frames of this priority must not be lost.
    pub fn is_lossless(&self, priority: usize) -> bool {
        self.lossless & (1 << priority) != 0
    }

    pub(super) fn response_at(&self, link: &LinkConfig) -> Nanos {
        self.response.unwrap_or(link.rate.pause_response())
    }

    pub(super) fn headroom_of(&self, link: &LinkConfig, longest_frame: u32, cell: u32) -> u64 {
        let exact = || worst_case(link, self.response_at(link), longest_frame);
        let bytes = self.headroom.unwrap_or_else(|| occupied(exact(), cell));
        if self.lossless == 0 { 0 } else { bytes }
    }
}

/// The most bytes that come, from the frame that crosses the threshold on, until the peer is silent.
///
/// The frame that crosses it is one of the longest. The line back has just begun another, so that the PFC frame waits for it, then
/// takes its own time and the cable's. The peer heeds it after `response`, and has begun one more of the longest just before; what it
/// sent before that fills the cable. So frames are begun at the peer for `wait + PFC + response + 2 delays` after the first of
/// them would have been, and the last takes no less for being late.
pub fn worst_case(link: &LinkConfig, response: Nanos, longest_frame: u32) -> u64 {
    let longest = u64::from(longest_frame);
    let full = link.wire_bytes(longest_frame as usize);
    let silence = link.rate.nanos_for(full).0
        + link.rate.nanos_for(link.wire_bytes(crate::wire::mac_control::FRAME_LEN)).0
        + response.0
        + 2 * link.delay.0;
    // The last frame begins when at most this much of the wire has passed.
    let before_last = link.rate.bytes_in(Nanos(silence)).saturating_sub(1);
    let (whole, rest) = (before_last / full, before_last % full);
    // What does not hold a whole frame holds a shorter one; where it holds none, a whole one is shortened for it.
    let shortest = link.wire_bytes(SHORTEST_FRAME);
    let overhead = u64::from(link.overhead);
    let shorter = if rest >= shortest || whole > 0 { rest.saturating_sub(overhead) } else { 0 };
    longest + whole * longest + shorter + longest
}

/// Bytes of a buffer of `cell`s that `bytes` take at worst: as many of the shortest frames as take a cell and one byte, or less.
fn occupied(bytes: u64, cell: u32) -> u64 {
    let cell = u64::from(cell);
    let worst_frame = (SHORTEST_FRAME as u64).max(cell + 1);
    match cell {
        1 => bytes,
        _ => bytes.div_ceil(worst_frame) * worst_frame.next_multiple_of(cell),
    }
}

/// XOFF, the bytes of headroom that a network operating system gives a port and priority, as SONiC's buffer manager computes it.
/// It allows for less than [`worst_case`] in one thing, the frame that crosses the threshold, and for more in others: a cell's worst
/// filling, delays of the MAC and of gearboxes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SonicHeadroom {
    /// The longest frame of a lossless priority, bytes.
    pub lossless_mtu: f64,
    /// The longest frame of the port, bytes.
    pub port_mtu: f64,
    /// Thousand million bits per second.
    pub gbps: f64,
    /// Length of the cable, in metres.
    pub cable: f64,
    /// What a gearbox holds, in bytes; counted once.
    pub gearbox: f64,
    /// What MAC and PHY delay, in bytes.
    pub mac_phy: f64,
    /// Of the peer (802.3 31B.3.7), in quanta.
    pub response_quanta: f64,
    /// Bytes of a cell.
    pub cell: f64,
}

impl SonicHeadroom {
    /// In bytes, a multiple of 1024.
    pub fn xoff(&self) -> u64 {
        let occupancy =
            if self.cell > 128.0 { self.cell / 64.0 } else { 2.0 * self.cell / (1.0 + self.cell) };
        // Its tables count 1024 Mb/s to the Gb/s of the divisor.
        let on_cable = 2.0 * self.cable * self.gbps * 1e9 / 1.98e8 / 8.0 * (1000.0 / 1024.0);
        let way = self.port_mtu + on_cable + 2.0 * self.gearbox + self.mac_phy + self.response_quanta * 64.0;
        ((self.lossless_mtu + way * occupancy) / 1024.0).ceil() as u64 * 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::fabric::link::LinkRate;

    #[test]
    fn sonic_headroom_is_that_of_its_tables() {
        let at = |gbps, cable, response_quanta| {
            SonicHeadroom {
                lossless_mtu: 1024.0,
                port_mtu: 9100.0,
                gbps,
                cable,
                gearbox: 0.0,
                mac_phy: 0.8 * 1024.0,
                response_quanta,
                cell: 144.0,
            }
            .xoff()
        };
        assert_eq!(at(40.0, 5.0, 118.0), 40_960);
        assert_eq!(at(100.0, 5.0, 394.0), 81_920);
        assert_eq!(at(100.0, 300.0, 394.0), 163_840);
    }

    #[test]
    fn the_worst_case_is_what_fits_before_the_silence() {
        // 8 Gb/s: a byte is a nanosecond. No overhead, so that whole frames fill the time.
        let link = LinkConfig { overhead: 0, ..LinkConfig::new(LinkRate::from_gbps(8), Nanos(100)) };
        // 1000 (begun) + 60 (PFC) + 540 (response) + 200 (cable) = 1800: 1799 bytes before the last begins.
        assert_eq!(worst_case(&link, Nanos(540), 1000), 1000 + 1799 + 1000);
        let link = LinkConfig::new(LinkRate::from_gbps(8), Nanos(100));
        // 1024 + 84 + 540 + 200 = 1848: a whole frame of 1024 on the wire, one of 823 that carries 799.
        assert_eq!(worst_case(&link, Nanos(540), 1000), 1000 + 1000 + 799 + 1000);
    }

    #[test]
    fn there_are_eight_priorities() {
        assert_eq!(PfcConfig::new(&[3, 8]), Err(ConfigError::Priority(8)));
        assert_eq!(PfcConfig::new(&[0, 3]).map(|pfc| pfc.lossless), Ok(0b1001));
    }
}
