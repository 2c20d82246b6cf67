//! Pauses that the NIC sends: the neighbour stops when frames arrive faster than they are received. `neighbour_pause`
//! decides when. The other direction is `pauses_received`.

use super::Nic;
use super::congestion::Congestion;
use roxie_base::time::Nanos;
use roxie_wire::MacControl;

impl Nic {
    /// True if the NIC may pause its neighbour.
    pub fn sends_pauses(&self) -> bool {
        self.congestion.config.classes.send_pfc != 0 || self.congestion.neighbour.is_on()
    }

    /// Returns the MAC control frame to send, if any, when the receive ring holds `waiting` of `capacity` frames of up
    /// to `longest` bytes. Once the frame is sent, call [`Nic::pause_sent`].
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
    pub fn pause_sent(&mut self, now: Nanos, control: MacControl) {
        let MacControl::Pfc { enable, quanta } = control else { return };
        let stops = quanta != [0; 8];
        let Congestion { neighbour, config, .. } = &mut self.congestion;
        neighbour.record_sent(now, enable, stops, config.line_rate().0);
        self.counters.tx_prio_pause += u64::from(stops);
        self.counters.tx_prio_resume += u64::from(!stops);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Rate;
    use crate::nic::neighbour_pause::LOOKS;
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
        let mut sent = |us, waiting| {
            let (now, ring) = (Nanos::from_micros(us), (waiting, 100));
            let control = nic.neighbour_should(now, ring, 1514)?;
            nic.pause_sent(now, control);
            MacControl::parse(&Frame::whole(&control.build([2; 6])))
        };
        let pfc = |time| Some(MacControl::Pfc { enable: 0x18, quanta: [0, 0, 0, time, time, 0, 0, 0] });
        assert_eq!(sent(0, 49), None);
        assert_eq!(sent(1, 50), pfc(0xffff));
        assert_eq!(sent(2, 90), None, "the pause is still in force");
        // 65,535 quanta at 1 Gb/s are 33.6 ms.
        assert_eq!(sent(16_000, 90), None);
        assert_eq!(sent(17_000, 30), pfc(0xffff), "before the pause ends");
        assert_eq!(sent(17_001, 25), pfc(0));
        assert_eq!(sent(17_002, 49), None);
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
        nic.pause_sent(now, control);
        assert_eq!(nic.next_deadline(), now + LOOKS);
        let control = nic.neighbour_should(now + LOOKS, (10, 100), 1514).expect("an end of it");
        nic.pause_sent(now + LOOKS, control);
        assert_eq!(nic.next_deadline(), Nanos::MAX);
    }
}
