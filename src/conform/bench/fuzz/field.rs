//! The target's side of a sequence: regions that packets may and may not reach, a queue pair of its own for each
//! sequence, and what is there afterwards.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::draft::{MTU, Place, Regions};
use super::honest::Honest;
use super::model::{READS, REGION};
use super::script::{LARGEST_RECEIVE, MOST_RECEIVES, Sequence};
use crate::agent::{Completion, hex};
use crate::bench::{Bench, Pair, Region, Setup};
use crate::packet::Seen;
use crate::verdict::Script;

/// Bytes in front of and behind each region, which no packet may change.
const MARGIN: usize = 4096;
/// Byte that fills regions without a right to read. No packet carries it.
pub(crate) const SECRET: u8 = 0xfd;
/// First byte of the pattern in regions that may be read.
const PATTERN: u64 = 1;
/// Time for a sequence beside that of its packets.
const LIMIT: Duration = Duration::from_secs(30);
/// Packets that are sent with one call.
const BURST: usize = 16;

/// Regions and connections that live as long as a campaign.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) regions: Regions,
    inbox: Region,
    pub(crate) honest: Honest,
    /// READs and atomics that the device takes at a time.
    reads: u8,
}

/// State of the target behind a sequence.
#[derive(Debug)]
pub(crate) struct Observed {
    /// True if the queue pair is in the error state.
    pub(crate) is_dead: bool,
    /// Bytes of the granted region.
    pub(crate) memory: Vec<u8>,
    /// Receives that completed with success, with their bytes.
    pub(crate) received: Vec<(Completion, Vec<u8>)>,
    /// Packets of the target to the bench's queue pair.
    pub(crate) packets: Vec<Seen>,
    /// Damage at memory that no packet may reach, in words.
    pub(crate) damage: Option<String>,
}

impl Observed {
    /// Adds a later look at the same queue pair.
    pub(crate) fn add(&mut self, later: Observed) {
        self.received.extend(later.received);
        self.packets.extend(later.packets);
        (self.is_dead, self.memory, self.damage) = (later.is_dead, later.memory, later.damage);
    }
}

impl Field {
    /// Registers memory, and opens the honest connection.
    pub(crate) fn new(bench: &mut Bench) -> Script<Field> {
        let mut regions = Regions::default();
        for (place, rights, pd) in [
            (Place::Granted, "lrwa", 0),
            (Place::ReadOnly, "lr", 0),
            (Place::Withheld, "l", 0),
            (Place::Foreign, "lrwa", 1),
        ] {
            regions.0[place as usize] = bench.register_with_margin(REGION, MARGIN, rights, pd)?;
        }
        let inbox = u64::from(MOST_RECEIVES) * u64::from(LARGEST_RECEIVE);
        let inbox = bench.register_with_margin(inbox as usize, MARGIN, "l", 0)?;
        let honest = Honest::new(bench)?;
        bench.keep();
        let most = bench.device_number("max_qp_rd_atom").clamp(1, READS.into());
        let mut field = Field { regions, inbox, honest, reads: most as u8 };
        field.reset(bench)?;
        Ok(field)
    }

    /// True if the device takes as many READs and atomics at a time as the model assumes.
    pub(crate) fn takes_reads(&self) -> bool {
        u32::from(self.reads) == READS
    }

    /// Returns what the granted region has before a sequence.
    pub(crate) fn pattern() -> Vec<u8> {
        (0..REGION as u64).map(|i| ((PATTERN + i) % 251) as u8).collect()
    }

    /// Fills all regions anew.
    fn reset(&mut self, bench: &mut Bench) -> Script {
        for place in [Place::Granted, Place::ReadOnly] {
            bench.fill(self.regions.of(place), REGION as u64, PATTERN)?;
        }
        for place in [Place::Withheld, Place::Foreign] {
            bench.poke(self.regions.of(place), 0, &[SECRET; REGION])?;
        }
        Ok(())
    }

    /// Sends a sequence to a new queue pair, at `rate` packets a second, and returns what is there afterwards.
    pub(crate) fn play(
        &mut self,
        bench: &mut Bench,
        sequence: &Sequence,
        rate: u32,
    ) -> Script<(Pair, Observed)> {
        bench.begin(LIMIT);
        bench.fill(self.regions.of(Place::Granted), REGION as u64, PATTERN)?;
        let setup =
            Setup { mtu: MTU, first: sequence.first, reads: self.reads, ..Setup::new(sequence.service) };
        let pair = bench.connect(&setup)?;
        for id in 0..sequence.receives {
            let at = u64::from(id) * u64::from(LARGEST_RECEIVE);
            let words = format!("mr={} off={at} len={} id={id}", self.inbox.id, sequence.room);
            bench.tell(&pair, "recv", &words)?;
        }
        self.send(bench, &pair, sequence, rate)?;
        bench.settle()?;
        let observed = self.observe(bench, &pair, sequence)?;
        Ok((pair, observed))
    }

    fn send(&self, bench: &mut Bench, pair: &Pair, sequence: &Sequence, rate: u32) -> Script {
        let stranger = bench.wire.stranger();
        let mut crafts: VecDeque<_> = sequence
            .sent()
            .iter()
            .map(|sent| sent.draft.craft(pair.qpn, sent.psn, sent.line, &self.regions, stranger))
            .collect();
        let start = Instant::now();
        let mut sent = 0;
        while !crafts.is_empty() {
            let burst: Vec<_> = crafts.drain(..crafts.len().min(BURST)).collect();
            bench.wire.send_burst(&burst, false)?;
            sent += burst.len() as u32;
            let due = start + Duration::from_secs(1) * sent / rate.max(1);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// Looks at the target.
    pub(crate) fn observe(
        &mut self,
        bench: &mut Bench,
        pair: &Pair,
        sequence: &Sequence,
    ) -> Script<Observed> {
        let completions = bench.completions(pair, 0, Duration::ZERO)?;
        let mut received = Vec::new();
        for wc in completions.into_iter().filter(|wc| wc.status == 0) {
            let at = wc.id * u64::from(LARGEST_RECEIVE);
            let length = wc.length.min(LARGEST_RECEIVE) as usize;
            let is_known = wc.id < u64::from(sequence.receives);
            let bytes = if is_known { bench.peek(self.inbox, at, length)? } else { Vec::new() };
            received.push((wc, bytes));
        }
        let is_dead = bench.tell(pair, "query", "")?.word("state")? == "err";
        let memory = bench.peek(self.regions.of(Place::Granted), 0, REGION)?;
        let packets = bench.within_time(pair, 0, Duration::ZERO);
        let damage = self.damage(bench)?;
        Ok(Observed { is_dead, memory, received, packets, damage })
    }

    /// Returns what was changed outside of the granted region.
    fn damage(&self, bench: &mut Bench) -> Script<Option<String>> {
        for (name, place) in Place::ALL {
            let region = self.regions.of(place);
            if let Some(at) = bench.margin_changed(region)? {
                return Ok(Some(format!("byte {at} beside the region `{name}` was changed")));
            }
            let expected = match place {
                Place::Granted => continue,
                Place::ReadOnly => Field::pattern(),
                Place::Withheld | Place::Foreign => vec![SECRET; REGION],
            };
            let there = bench.peek(region, 0, REGION)?;
            if let Some(at) = there.iter().zip(&expected).position(|(a, b)| a != b) {
                return Ok(Some(format!(
                    "byte {at} of the region `{name}`, which no packet may write, is now {}",
                    hex(&there[at..=at])
                )));
            }
        }
        let beside = bench.margin_changed(self.inbox)?;
        Ok(beside.map(|at| format!("byte {at} beside the receives was changed")))
    }

    /// Opens another honest connection in place of one that was disturbed.
    pub(crate) fn renew_honest(&mut self, bench: &mut Bench) -> Script {
        self.honest = Honest::new(bench)?;
        bench.keep();
        Ok(())
    }

    /// Destroys the queue pair of a sequence, and repairs what it has damaged.
    pub(crate) fn clean(&mut self, bench: &mut Bench, pair: &Pair, is_damaged: bool) -> Script {
        bench.destroy(pair)?;
        if is_damaged {
            self.reset(bench)?;
            for region in self.regions.0.into_iter().chain([self.inbox]) {
                bench.repair_margin(region)?;
            }
        }
        Ok(())
    }
}
