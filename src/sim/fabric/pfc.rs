//! Priority flow control (PFC): configuration and headroom.

use super::error::{ConfigError, check_priority};
use super::link::{LinkConfig, SHORTEST_FRAME};
use roxie_base::time::Nanos;

/// PFC storm watchdog: empties a queue that its peer keeps paused, so that other queues do not wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchdogConfig {
    /// A non-empty queue paused continuously for this long is emptied, and admits no frames.
    pub detect: Nanos,
    /// Time after the end of the pause until the queue works again.
    pub restore: Nanos,
}

/// PFC configuration of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PfcConfig {
    /// Bit `n`: priority `n` is lossless.
    pub lossless: u8,
    /// Bytes below the threshold at which the peer may resume (DCQCN paper: two frames).
    pub xon_offset: u64,
    /// Pause time of a PFC frame, in quanta. The frame is repeated after half of it.
    pub quanta: u16,
    /// Headroom in bytes of each lossless priority of a port. `None`: [`worst_case`] for the port's link.
    pub headroom: Option<u64>,
    /// Time from the end of a PFC frame until it takes effect, at this switch and, for the headroom, at its peers.
    /// `None`: the limit of 802.3 for the link's rate.
    pub response: Option<Nanos>,
    /// `None`: no watchdog; a peer may pause a queue without limit.
    pub watchdog: Option<WatchdogConfig>,
}

impl PfcConfig {
    /// Creates a configuration with these lossless priorities.
    ///
    /// # Errors
    /// If a priority is above 7.
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

    /// Returns true if the priority is lossless.
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

/// Returns the maximum number of bytes that arrive after the peer must pause, starting with the frame that crosses the
/// threshold.
///
/// The frame that crosses the threshold has maximum length. The reverse line has just started another such frame, so
/// the PFC frame waits for it, then takes its own time and the cable's delay. The peer stops after `response`, and has
/// just started another frame of maximum length. Bytes sent before fill the cable. The peer therefore starts frames for
/// `wait + PFC + response + 2 delays`, and the last of them arrives complete.
pub fn worst_case(link: &LinkConfig, response: Nanos, longest_frame: u32) -> u64 {
    let longest = u64::from(longest_frame);
    let full = link.wire_bytes(longest_frame as usize);
    let silence = link.rate.nanos_for(full).0
        + link.rate.nanos_for(link.wire_bytes(roxie_wire::mac_control::FRAME_LEN)).0
        + response.0
        + 2 * link.delay.0;
    // Bytes on the wire before the last frame starts, at most.
    let before_last = link.rate.bytes_in(Nanos(silence)).saturating_sub(1);
    let (whole, rest) = (before_last / full, before_last % full);
    // A remainder too short for a whole frame holds a shorter frame. If it is too short for any frame, a whole frame is
    // shortened to make room.
    let shortest = link.wire_bytes(SHORTEST_FRAME);
    let overhead = u64::from(link.overhead);
    let shorter = if rest >= shortest || whole > 0 { rest.saturating_sub(overhead) } else { 0 };
    longest + whole * longest + shorter + longest
}

/// Returns the bytes that frames of `bytes` in total occupy in a buffer of `cell`s. Worst case: frames of one cell and
/// one byte, or of minimum length.
fn occupied(bytes: u64, cell: u32) -> u64 {
    let cell = u64::from(cell);
    let worst_frame = (SHORTEST_FRAME as u64).max(cell + 1);
    match cell {
        1 => bytes,
        _ => bytes.div_ceil(worst_frame) * worst_frame.next_multiple_of(cell),
    }
}

/// Headroom per port and priority (XOFF) as SONiC's buffer manager computes it. Unlike [`worst_case`], it omits the
/// frame that crosses the threshold. Added are a cell's worst-case occupancy, and the delays of the MAC and of
/// gearboxes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SonicHeadroom {
    /// Maximum frame length of the lossless priority, in bytes.
    pub lossless_mtu: f64,
    /// Maximum frame length of the port, in bytes.
    pub port_mtu: f64,
    /// Link rate in thousand million bits per second.
    pub gbps: f64,
    /// Cable length in metres.
    pub cable: f64,
    /// Bytes held by a gearbox. The formula counts two.
    pub gearbox: f64,
    /// Delay of MAC and PHY, in bytes.
    pub mac_phy: f64,
    /// Response time of the peer (802.3 31B.3.7), in quanta.
    pub response_quanta: f64,
    /// Cell size in bytes.
    pub cell: f64,
}

impl SonicHeadroom {
    /// Returns the headroom in bytes, a multiple of 1024.
    pub fn xoff(&self) -> u64 {
        let occupancy =
            if self.cell > 128.0 { self.cell / 64.0 } else { 2.0 * self.cell / (1.0 + self.cell) };
        // SONiC's tables divide by 1024 Mb/s per Gb/s.
        let on_cable = 2.0 * self.cable * self.gbps * 1e9 / 1.98e8 / 8.0 * (1000.0 / 1024.0);
        let way = self.port_mtu + on_cable + 2.0 * self.gearbox + self.mac_phy + self.response_quanta * 64.0;
        ((self.lossless_mtu + way * occupancy) / 1024.0).ceil() as u64 * 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::link::LinkRate;

    #[test]
    fn sonic_headroom_matches_its_tables() {
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
    fn worst_case_is_the_bytes_before_the_pause() {
        // 8 Gb/s: one byte per nanosecond. No overhead, so that whole frames fill the time.
        let link = LinkConfig { overhead: 0, ..LinkConfig::new(LinkRate::from_gbps(8), Nanos(100)) };
        // 1000 (frame in progress) + 60 (PFC) + 540 (response) + 200 (cable) = 1800: 1799 bytes before the last frame
        // starts.
        assert_eq!(worst_case(&link, Nanos(540), 1000), 1000 + 1799 + 1000);
        let link = LinkConfig::new(LinkRate::from_gbps(8), Nanos(100));
        // 1024 + 84 + 540 + 200 = 1848: a whole frame of 1024 bytes on the wire, and one of 823 that carries 799.
        assert_eq!(worst_case(&link, Nanos(540), 1000), 1000 + 1000 + 799 + 1000);
    }

    #[test]
    fn priorities_above_7_are_refused() {
        assert_eq!(PfcConfig::new(&[3, 8]), Err(ConfigError::Priority(8)));
        assert_eq!(PfcConfig::new(&[0, 3]).map(|pfc| pfc.lossless), Ok(0b1001));
    }
}
