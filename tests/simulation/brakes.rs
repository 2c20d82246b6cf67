//! Generates congestion: NICs with congestion control, links that mark, rates that change, and strangers that try to
//! slow QPs.

use roxie::time::Nanos;
use roxie::verbs::RateLimit;

use crate::generate::Swarm;
use crate::script::{Action, Brakes, Channel, Hosts, Intrusion, Place, Rule, Service, Timed, Trouble};

/// Timeout code of channels that may be slow: 67 ms. Two packets of the largest path MTU take less at the lowest rate.
pub const PATIENT: u8 = 14;

const CONTROLS: [&str; 11] = [
    "dcqcn",
    "dcqcn",
    "dcqcn,preset=paper",
    "dcqcn,min_time_between_cnps=0",
    "dcqcn,min_time_between_cnps=50,rpg_ai_rate=500",
    "dcqcn,cnp_moderation=destination",
    "dcqcn,cnp_moderation=port",
    "swift",
    "fixed,rate=20M",
    "fixed,rate=2G",
    "off",
];
const CLASSES: [&str; 6] = ["", "", "pfc=3", "pause=on", "pfc=0+3,strict=3", "weight=0:20+3:80,pfc=0"];

impl Swarm {
    /// Adds congestion to a third of the seeds.
    pub fn congestion(
        &mut self,
        hosts: &Hosts,
        channels: &mut [Channel],
        weather: &mut Vec<Rule>,
        actions: &mut Vec<Timed>,
    ) {
        if !self.rng.one_in(3) {
            return;
        }
        let last = actions.iter().map(|timed| timed.at.0).max().unwrap_or(0) + 100_000;
        let rng = &mut self.rng;
        for host in 0..hosts.count {
            let changes = rng.below(3);
            for change in 0..=changes {
                let at = if change == 0 { 0 } else { rng.below(last) / 1_000 * 1_000 };
                let brakes = Brakes {
                    control: rng.pick(&CONTROLS).into(),
                    ecn: rng.pick(&["auto", "auto", "auto", "on", "off", "dscp=0"]).into(),
                    classes: rng.pick(&CLASSES).into(),
                    mbps: rng.pick(&[10_000, 10_000, 1_000]),
                };
                actions.push(Timed { at: Nanos(at), action: Action::Brake(host, brakes) });
            }
            if !rng.one_in(3) {
                let of_10_000 = rng.pick(&[100, 1_000, 5_000, 10_000]);
                weather.push(Rule::Rate { to: host, trouble: Trouble::Mark, of_10_000 });
            }
        }
        for (number, spec) in channels.iter_mut().enumerate() {
            spec.timeout = PATIENT;
            spec.sl = rng.pick(&[0, 0, 3]);
            if matches!(spec.service, Service::Ud | Service::Group) || rng.one_in(2) {
                continue;
            }
            for _ in 0..1 + rng.below(4) {
                let at = Nanos(rng.pick(&[0, rng_time(last, 3), rng_time(last, 7)]) / 1_000 * 1_000);
                let limit = RateLimit {
                    kbps: rng.pick(&[2_000, 10_000, 10_000, 100_000, 1_000_000, 0]),
                    max_burst: rng.pick(&[0, 0, 1, 9_000]),
                    typical_packet: rng.pick(&[0, 1_000]),
                };
                let place = Place { channel: number, end: rng.below(2) as usize };
                actions.push(Timed { at, action: Action::Limit(place, limit) });
            }
        }
        self.hostile(channels, last, actions);
    }

    /// Adds frames of strangers that try to slow QPs.
    fn hostile(&mut self, channels: &[Channel], last: u64, actions: &mut Vec<Timed>) {
        let kinds =
            [Intrusion::Forged, Intrusion::Forged, Intrusion::Marked, Intrusion::Pause, Intrusion::Pfc];
        for _ in 0..self.rng.below(16) {
            let rng = &mut self.rng;
            let channel = rng.below(channels.len() as u64) as usize;
            let end = rng.below(channels[channel].ends.len() as u64) as usize;
            let intrude = Action::Intrude(Place { channel, end }, rng.pick(&kinds), rng.below(1_000));
            actions.push(Timed { at: Nanos(rng.below(last) / 1_000 * 1_000), action: intrude });
        }
    }
}

/// A fraction of the run's length.
const fn rng_time(last: u64, part: u64) -> u64 {
    last / part
}
