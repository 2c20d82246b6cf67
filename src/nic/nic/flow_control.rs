//! Flow control towards the neighbour: pauses it when frames arrive faster than they are received.
//!
//! The port's receive ring is the buffer. Above XOFF the chosen priorities are paused, and paused again before the pause ends; at
//! XON, half of XOFF, they are resumed. Frames that arrive after XOFF, before the neighbour stops, need room: the headroom.

use super::Nic;
use super::congestion::{Congestion, CongestionConfig};
use roxie_base::time::Nanos;
use roxie_wire::MacControl;
use roxie_wire::mac_control::{FRAME_LEN, quanta_bytes, quanta_nanos, response_quanta};
use roxie_wire::net::{ETHERNET_OVERHEAD, SHORTEST_FRAME};

/// Quanta of a pause: the longest. A pause ends by a frame with 0 quanta.
const QUANTA: u16 = 0xffff;
/// Interval of checks of the ring while the neighbour is paused.
const LOOKS: Nanos = Nanos::from_micros(50);

/// The pause state of the neighbour, as last sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NeighbourPause {
    /// Bit p: priority p is paused.
    stopped: u8,
    renew_at: Nanos,
    /// When the ring must be checked again.
    look_at: Nanos,
}

/// Returns the number of frames that may still arrive after XOFF. Each side may just have begun to send its longest frame, the
/// pause frame takes time, and the neighbour may react as late as 802.3 allows (31B.3.7). All arriving frames may be of the
/// shortest length.
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

    /// Returns when the receive ring must be checked although no frame arrives, since it may have emptied; `MAX`: the neighbour is
    /// not paused.
    pub(super) fn next_look(&self) -> Nanos {
        if self.is_on() { self.look_at } else { Nanos::MAX }
    }

    /// Returns the frame to send, if any, as [`Nic::neighbour_should`] says.
    fn due(
        &mut self,
        now: Nanos,
        config: &CongestionConfig,
        (waiting, capacity): (usize, usize),
        longest: usize,
    ) -> Option<MacControl> {
        let wanted = config.classes.send_pfc;
        let room = capacity.saturating_sub(headroom(config.line_rate().0, longest));
        let xoff = config.classes.xoff.map_or(room, |percent| capacity * usize::from(percent) / 100).max(1);
        self.look_at = now + LOOKS;
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
    fn told(&mut self, now: Nanos, enable: u8, stops: bool, bits_per_second: f64) {
        self.stopped = if stops { enable } else { 0 };
        self.renew_at = now + Nanos((quanta_nanos(QUANTA, bits_per_second) / 2.0) as u64);
    }
}

impl Nic {
    /// True if the NIC may pause its neighbour.
    pub fn sends_pauses(&self) -> bool {
        self.congestion.config.classes.send_pfc != 0 || self.congestion.neighbour.is_on()
    }

    /// Returns the MAC control frame to send, if any, when the receive ring holds `waiting` of `capacity` frames of up to
    /// `longest` bytes. Once the frame is sent, call [`Nic::has_told`].
    pub fn neighbour_should(
        &mut self,
        now: Nanos,
        ring: (usize, usize),
        longest: usize,
    ) -> Option<MacControl> {
        let Congestion { neighbour, config, .. } = &mut self.congestion;
        neighbour.due(now, config, ring, longest)
    }

    /// Records that the frame of [`Nic::neighbour_should`] was sent.
    pub fn has_told(&mut self, now: Nanos, control: MacControl) {
        let MacControl::Pfc { enable, quanta } = control else { return };
        let stops = quanta != [0; 8];
        let Congestion { neighbour, config, .. } = &mut self.congestion;
        neighbour.told(now, enable, stops, config.line_rate().0);
        self.counters.tx_prio_pause += u64::from(stops);
        self.counters.tx_prio_resume += u64::from(!stops);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Rate;
    use crate::nic::{Command, CongestionConfig, NicConfig};
    use roxie_wire::frame::Frame;

    #[test]
    fn neighbour_is_paused_renewed_and_resumed() {
        let mut nic =
            Nic::new(NicConfig { limits: roxie_base::limits::Limits::small(), ..NicConfig::default() });
        assert!(!nic.sends_pauses());
        let classes = "send_pfc=3+4,xoff=50".parse().expect("classes");
        let line_rate = Some(Rate::from_gbps(1.0));
        let config = CongestionConfig { classes, line_rate, ..CongestionConfig::default() };
        nic.execute(Nanos::ZERO, Command::SetCongestion(Box::new(config))).expect("carried out");
        assert!(nic.sends_pauses());
        let mut say = |us, waiting| {
            let (now, ring) = (Nanos::from_micros(us), (waiting, 100));
            let control = nic.neighbour_should(now, ring, 1514)?;
            nic.has_told(now, control);
            MacControl::parse(&Frame::whole(&control.build([2; 6])))
        };
        let pfc = |time| Some(MacControl::Pfc { enable: 0x18, quanta: [0, 0, 0, time, time, 0, 0, 0] });
        assert_eq!(say(0, 49), None);
        assert_eq!(say(1, 50), pfc(0xffff));
        assert_eq!(say(2, 90), None, "the pause is still in force");
        // 65,535 quanta at 1 Gb/s are 33.6 ms.
        assert_eq!(say(16_000, 90), None);
        assert_eq!(say(17_000, 30), pfc(0xffff), "before the pause ends");
        assert_eq!(say(17_001, 25), pfc(0));
        assert_eq!(say(17_002, 49), None);
    }

    /// A paused neighbour sends nothing, so the ring must be checked by a timer.
    #[test]
    fn ring_is_checked_while_neighbour_is_paused() {
        let mut nic =
            Nic::new(NicConfig { limits: roxie_base::limits::Limits::small(), ..NicConfig::default() });
        let classes = "send_pfc=3,xoff=50".parse().expect("classes");
        let config = CongestionConfig { classes, ..CongestionConfig::default() };
        nic.execute(Nanos::ZERO, Command::SetCongestion(Box::new(config))).expect("carried out");
        assert_eq!(nic.next_deadline(), Nanos::MAX);
        let now = Nanos::from_micros(7);
        let control = nic.neighbour_should(now, (60, 100), 1514).expect("a pause");
        nic.has_told(now, control);
        assert_eq!(nic.next_deadline(), now + LOOKS);
        let control = nic.neighbour_should(now + LOOKS, (10, 100), 1514).expect("an end of it");
        nic.has_told(now + LOOKS, control);
        assert_eq!(nic.next_deadline(), Nanos::MAX);
    }

    #[test]
    fn headroom_holds_frames_that_may_still_arrive() {
        // 10 Gb/s, frames of 1,514: 2 x 1,538, 84 for the pause frame, 67 quanta of 64 bytes; in frames that take 84 each.
        assert_eq!(headroom(10e9, 1514), (2 * 1538 + 84 + 67 * 64_usize).div_ceil(84));
    }
}
