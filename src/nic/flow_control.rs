//! Telling the neighbour to pause: when frames come faster than they are taken in.
//!
//! The receive ring of the port is the buffer. Above XOFF the chosen priorities are stopped, and told so again before the pause ends;
//! at XON they go on. What comes after XOFF until the neighbour is silent must still find room: that is the headroom.

use super::Nic;
use crate::time::Nanos;
use crate::wire::MacControl;
use crate::wire::mac_control::FRAME_LEN;

/// Frames of MAC control ask for the longest pause, and end it by one of none.
const QUANTA: u16 = 0xffff;
/// Preamble, FCS and gap: what a frame takes on a link beside its bytes.
const OVERHEAD: f64 = 24.0;
/// The shortest frame, without FCS.
const SHORTEST: f64 = 60.0;

/// What was said last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// Bit p: priority p is stopped.
    stopped: u8,
    renew_at: Nanos,
    /// When the ring is to be looked at again.
    look_at: Nanos,
}

/// While the neighbour is stopped, so often.
const LOOKS: Nanos = Nanos::from_micros(50);

/// Frames that may still come after XOFF has been decided on: one of each side's longest is just beginning, the frame itself takes its
/// time, and the neighbour may take as long as 802.3 allows (31B.3.7) to heed it. All of them may be of the shortest.
fn headroom(gbps: f64, longest: f64) -> usize {
    // Pause response in quanta of 64 bytes, by speed.
    let response = match gbps {
        g if g <= 10.0 => 67.0,
        g if g <= 25.0 => 80.0,
        g if g <= 40.0 => 118.0,
        g if g <= 50.0 => 147.0,
        g if g <= 100.0 => 394.0,
        g if g <= 200.0 => 453.0,
        _ => 905.0,
    } * 64.0;
    let bytes = 2.0 * (longest + OVERHEAD) + FRAME_LEN as f64 + OVERHEAD + response;
    (bytes / (SHORTEST + OVERHEAD)).ceil() as usize
}

impl Nic {
    /// True if it tells its neighbour to pause.
    pub fn sends_pauses(&self) -> bool {
        self.congestion.config.classes.send_pfc != 0 || self.told.stopped != 0
    }

    /// When the receive ring is to be looked at although nothing comes: it may have emptied; `MAX`: the neighbour is not stopped.
    pub(super) fn looks_at_ring(&self) -> Nanos {
        if self.told.stopped == 0 { Nanos::MAX } else { self.told.look_at }
    }

    /// The frame of [`Nic::tell_neighbour`] did not leave: it is to be said again.
    pub fn not_told(&mut self) {
        self.told = self.told_before;
    }

    /// The receive ring holds `waiting` of `capacity` frames, which are of `longest` bytes at most: the frame that tells the neighbour
    /// to pause or to go on, from station `mac`, if it is time for one.
    pub fn tell_neighbour(
        &mut self,
        now: Nanos,
        (waiting, capacity): (usize, usize),
        longest: usize,
        mac: [u8; 6],
    ) -> Option<[u8; FRAME_LEN]> {
        let config = &self.congestion.config;
        let rate = config.line_rate();
        let wanted = config.classes.send_pfc;
        let room = capacity.saturating_sub(headroom(rate.0 / 1e9, longest as f64));
        let xoff = config.classes.xoff.map_or(room, |percent| capacity * usize::from(percent) / 100).max(1);
        self.told_before = self.told;
        let told = &mut self.told;
        told.look_at = now + LOOKS;
        let (enable, quanta) = match told.stopped {
            0 if waiting >= xoff => (wanted, QUANTA),
            0 => return None,
            stopped if waiting <= xoff / 2 || wanted == 0 => (stopped, 0),
            stopped if now >= told.renew_at => (stopped, QUANTA),
            _ => return None,
        };
        told.stopped = if quanta == 0 { 0 } else { enable };
        // Half of the pause.
        told.renew_at = now + Nanos((f64::from(QUANTA) * 256.0 * 1e9 / rate.0) as u64);
        self.counters.tx_prio_pause += u64::from(quanta != 0);
        self.counters.tx_prio_resume += u64::from(quanta == 0);
        let quanta = std::array::from_fn(|priority| if enable & 1 << priority != 0 { quanta } else { 0 });
        Some(MacControl::Pfc { enable, quanta }.build(mac))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Rate;
    use crate::frame::Frame;
    use crate::nic::{Command, CongestionConfig, NicConfig};

    #[test]
    fn the_neighbour_is_stopped_reminded_and_let_go() {
        let mut nic = Nic::new(NicConfig { limits: crate::limits::Limits::small(), ..NicConfig::default() });
        assert!(!nic.sends_pauses());
        let classes = "send_pfc=3+4,xoff=50".parse().expect("classes");
        let line_rate = Some(Rate::from_gbps(1.0));
        let config = CongestionConfig { classes, line_rate, ..CongestionConfig::default() };
        nic.execute(Nanos::ZERO, Command::SetCongestion(Box::new(config))).expect("carried out");
        assert!(nic.sends_pauses());
        let mut say = |us, waiting| {
            let frame = nic.tell_neighbour(Nanos::from_micros(us), (waiting, 100), 1514, [2; 6])?;
            MacControl::parse(&Frame::whole(&frame))
        };
        let pfc = |time| Some(MacControl::Pfc { enable: 0x18, quanta: [0, 0, 0, time, time, 0, 0, 0] });
        assert_eq!(say(0, 49), None);
        assert_eq!(say(1, 50), pfc(0xffff));
        assert_eq!(say(2, 90), None, "it has been told");
        // 65,535 quanta at 1 Gb/s are 33.6 ms.
        assert_eq!(say(16_000, 90), None);
        assert_eq!(say(17_000, 30), pfc(0xffff), "before the pause ends");
        assert_eq!(say(17_001, 25), pfc(0));
        assert_eq!(say(17_002, 49), None);
    }

    /// Nothing comes from a neighbour that is stopped: the ring is looked at all the same.
    #[test]
    fn the_nic_is_turned_again_while_its_neighbour_is_stopped() {
        let mut nic = Nic::new(NicConfig { limits: crate::limits::Limits::small(), ..NicConfig::default() });
        let classes = "send_pfc=3,xoff=50".parse().expect("classes");
        let config = CongestionConfig { classes, ..CongestionConfig::default() };
        nic.execute(Nanos::ZERO, Command::SetCongestion(Box::new(config))).expect("carried out");
        assert_eq!(nic.next_deadline(), Nanos::MAX);
        let now = Nanos::from_micros(7);
        assert!(nic.tell_neighbour(now, (60, 100), 1514, [2; 6]).is_some());
        assert_eq!(nic.next_deadline(), now + LOOKS);
        assert!(nic.tell_neighbour(now + LOOKS, (10, 100), 1514, [2; 6]).is_some());
        assert_eq!(nic.next_deadline(), Nanos::MAX);
    }

    #[test]
    fn the_headroom_holds_what_may_still_come() {
        // 10 Gb/s, frames of 1,514: 2 x 1,538, 84 of the frame itself, 67 quanta of 64 bytes; in frames that take 84 each.
        assert_eq!(headroom(10.0, 1514.0), (2 * 1538 + 84 + 67 * 64_usize).div_ceil(84));
    }
}
