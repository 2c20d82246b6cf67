//! Faults of frames, as a script names them. Each frame has a name, and its fault depends on the name alone.
//!
//! A frame therefore has the same fault after other parts of the script are removed, and one line can state it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use roxie::frame::Frame;
use roxie::random::splitmix;
use roxie::time::Nanos;
use roxie::wire::{Psn, Qpn, parse};
use roxie_sim::fabric::{Arrival, End, FrameFaults};

use crate::script::{FrameName, Rule, Trouble, Way};
use crate::stations::Stations;

/// Returns a hash of numbers.
pub fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0x5eed, |state, part| {
        let mut state = state ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        splitmix(&mut state)
    })
}

/// The owner of a QP.
#[derive(Clone, Copy, Debug)]
struct Owner {
    /// The way of its packets.
    way: Way,
    /// First PSN that the QP sends, and first PSN that it receives.
    first: [Psn; 2],
    life: u32,
}

/// State and history of the weather.
#[derive(Debug, Default)]
pub struct Record {
    owners: HashMap<(usize, Qpn), Owner>,
    seen: HashMap<FrameName, u32>,
    /// Applied faults, by frame.
    pub strikes: Vec<(FrameName, Trouble)>,
    /// Number of faults of each way.
    struck: HashMap<Way, u64>,
    nameless: u64,
}

/// A shared handle to the record.
#[derive(Clone, Debug, Default)]
pub struct Records(Arc<Mutex<Record>>);

impl Records {
    pub fn get(&self) -> MutexGuard<'_, Record> {
        self.0.lock().expect("no panic holds the lock")
    }

    /// Registers that QP `qpn` on `host` sends along `way`.
    pub fn learn(&self, host: usize, qpn: Qpn, way: Way, first: [Psn; 2], life: u32) {
        self.get().owners.insert((host, qpn), Owner { way, first, life });
    }

    pub fn struck(&self, way: Way) -> u64 {
        self.get().struck.get(&way).copied().unwrap_or(0)
    }
}

impl Record {
    /// Returns the name of a frame, or `None` if it is no packet of a known QP.
    fn name(&mut self, to: usize, frame: &[u8]) -> Option<FrameName> {
        let packet = parse(&Frame::whole(frame)).ok()?;
        let (bth, info) = (&packet.bth, packet.info());
        let (way, first, life) = match packet.deth() {
            // A datagram is named by its sender, because it may have several receivers.
            Some(deth) => {
                let from = Stations::host_of(Frame::whole(frame).array(6)?);
                let owner = self.owners.get(&(from, deth.src_qp))?;
                (owner.way, owner.first[0], owner.life)
            }
            None => {
                let owner = self.owners.get(&(to, bth.dest_qp))?;
                let way = Way { back: !owner.way.back, ..owner.way };
                (way, owner.first[usize::from(!info.is_response())], owner.life)
            }
        };
        let psn = bth.psn.distance_from(first);
        let mut name = FrameName { way, to, opcode: bth.opcode, psn, earlier: 0, life };
        let seen = self.seen.entry(name).or_default();
        name.earlier = *seen;
        *seen += 1;
        Some(name)
    }
}

/// The weather of a script: faults of frames between the switch and their host.
#[derive(Debug)]
pub struct Forecast {
    seed: u64,
    rules: Vec<Rule>,
    records: Records,
}

impl Forecast {
    pub fn new(seed: u64, rules: &[Rule], records: Records) -> Forecast {
        Forecast { seed, rules: rules.to_vec(), records }
    }
}

fn number(name: &FrameName) -> u64 {
    let FrameName { way, to, opcode, psn, earlier, life } = *name;
    let way = way.channel as u64 * 2 + u64::from(way.back);
    hash(&[way, to as u64, opcode.0.into(), psn as u64, earlier.into(), life.into()])
}

impl FrameFaults for Forecast {
    fn judge(&mut self, _now: Nanos, to: End, frame: &[u8], arrivals: &mut Vec<Arrival>) {
        let mut arrival = Arrival::default();
        let mut copies = 1;
        let End::Station(to) = to else {
            arrivals.push(arrival);
            return;
        };
        let mut record = self.records.get();
        let Some(name) = record.name(to, frame) else {
            record.nameless += 1;
            arrivals.push(arrival);
            return;
        };
        let capable =
            parse(&Frame::whole(frame)).is_ok_and(|packet| matches!(packet.traffic_class() & 3, 1 | 2));
        let number = hash(&[self.seed, number(&name)]);
        for (i, rule) in self.rules.iter().enumerate() {
            let draw = hash(&[number, i as u64]);
            let strikes = match rule {
                Rule::Rate { to: host, of_10_000, .. } => {
                    *host == to && draw % 10_000 < u64::from(*of_10_000)
                }
                Rule::Strike { frame, .. } => *frame == name,
            };
            let (Rule::Rate { trouble, .. } | Rule::Strike { trouble, .. }) = rule;
            if !strikes || (*trouble == Trouble::Mark && !capable) {
                continue;
            }
            match trouble {
                Trouble::Lose => copies = 0,
                Trouble::Double => copies *= 2,
                Trouble::Delay(time) => arrival.delay = arrival.delay + *time,
                Trouble::Mark => arrival.marked = true,
                Trouble::Harm => {
                    // The bit depends on the frame, not on the rule: a rule for a single frame flips the same bit as a
                    // rate.
                    arrival.flipped_bit = Some((hash(&[number]) % (frame.len() as u64 * 8)) as usize);
                }
            }
            record.strikes.push((name, *trouble));
            *record.struck.entry(name.way).or_default() += u64::from(*trouble != Trouble::Mark);
        }
        // The copies of a doubled frame are undamaged and pass at once.
        arrivals.extend((1..copies).map(|_| Arrival::default()));
        arrivals.extend((copies > 0).then_some(arrival));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_all_parts_in_order() {
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        assert_ne!(hash(&[1, 2]), hash(&[1, 3]));
        assert_eq!(hash(&[1, 2]), hash(&[1, 2]));
    }
}
