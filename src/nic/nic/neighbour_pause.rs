//! The pause state of the neighbour: when it is paused, paused again, and resumed.
//!
//! The port's receive ring is the buffer. Above XOFF the chosen priorities are paused, and paused again before the
//! pause ends; at XON, half of XOFF, they are resumed. Frames that arrive after XOFF, before the neighbour stops, need
//! room: the headroom.

use super::congestion_config::CongestionConfig;
use roxie_base::time::Nanos;
use roxie_wire::MacControl;
use roxie_wire::mac_control::{FRAME_LEN, quanta_bytes, quanta_nanos, response_quanta};
use roxie_wire::net::{ETHERNET_OVERHEAD, SHORTEST_FRAME};

/// Quanta of a pause: the longest. A pause ends by a frame with 0 quanta.
const QUANTA: u16 = 0xffff;
/// Interval of checks of the ring while the neighbour is paused.
pub(super) const LOOKS: Nanos = Nanos::from_micros(50);

/// The pause state of the neighbour, as last sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NeighbourPause {
    /// Bit p: priority p is paused.
    stopped: u8,
    renew_at: Nanos,
    /// When the ring must be checked again.
    check_at: Nanos,
}

/// Returns the number of frames that may still arrive after XOFF. Each side may just have begun to send its longest
/// frame, the pause frame takes time, and the neighbour may react as late as 802.3 allows (31B.3.7). All arriving
/// frames may be of the shortest length.
fn headroom(bits_per_second: f64, longest: usize) -> usize {
    let on_link = |frame: usize| frame + ETHERNET_OVERHEAD as usize;
    let response = quanta_bytes(response_quanta(bits_per_second as u64));
    (2 * on_link(longest) + on_link(FRAME_LEN) + response).div_ceil(on_link(SHORTEST_FRAME))
}

impl NeighbourPause {
    /// True if a priority of the neighbour is paused.
    pub(super) fn is_on(&self) -> bool {
        self.stopped != 0
    }

    /// Returns when the receive ring must be checked although no frame arrives, since it may have emptied; `MAX`: the
    /// neighbour is not paused.
    pub(super) fn next_check(&self) -> Nanos {
        if self.is_on() { self.check_at } else { Nanos::MAX }
    }

    /// Returns the frame to send, if any, as [`Nic::neighbour_should`] says.
    pub(super) fn due(
        &mut self,
        now: Nanos,
        config: &CongestionConfig,
        (waiting, capacity): (usize, usize),
        longest: usize,
    ) -> Option<MacControl> {
        let wanted = config.classes.send_pfc;
        let room = capacity.saturating_sub(headroom(config.line_rate().0, longest));
        let xoff = config.classes.xoff.map_or(room, |percent| capacity * usize::from(percent) / 100).max(1);
        self.check_at = now + LOOKS;
        let (enable, time) = match self.stopped {
            0 if waiting >= xoff => (wanted, QUANTA),
            0 => return None,
            stopped if waiting <= xoff / 2 || wanted == 0 => (stopped, 0),
            stopped if now >= self.renew_at => (stopped, QUANTA),
            _ => return None,
        };
        let quanta = std::array::from_fn(|priority| if enable & 1 << priority != 0 { time } else { 0 });
        Some(MacControl::Pfc { enable, quanta })
    }

    /// Records a sent frame: `enable` is paused, or resumed.
    pub(super) fn record_sent(&mut self, now: Nanos, enable: u8, stops: bool, bits_per_second: f64) {
        self.stopped = if stops { enable } else { 0 };
        self.renew_at = now + Nanos((quanta_nanos(QUANTA, bits_per_second) / 2.0) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::headroom;

    #[test]
    fn headroom_holds_frames_that_may_still_arrive() {
        // 10 Gb/s, frames of 1,514: 2 x 1,538, 84 for the pause frame, 67 quanta of 64 bytes; in frames that take 84
        // each.
        assert_eq!(headroom(10e9, 1514), (2 * 1538 + 84 + 67 * 64_usize).div_ceil(84));
    }
}
