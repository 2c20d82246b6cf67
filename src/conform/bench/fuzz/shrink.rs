//! Shrinks a sequence to the packets that its finding needs, each played to a new queue pair.

use super::draft::Draft;
use super::script::{Sequence, Step};
use super::tries::Tries;

/// Plays a sequence: true if it still has the finding.
pub(crate) type Fails<'a> = dyn FnMut(&Sequence) -> bool + 'a;

/// A sequence on its way to the shortest one.
struct Shrinker<'a> {
    tries: Tries<'a, Sequence>,
    best: Sequence,
}

/// Returns the shortest sequence found that fails, after `most` attempts at most.
pub(crate) fn shrink(sequence: &Sequence, most: u32, fails: &mut Fails<'_>) -> Sequence {
    let mut shrinker = Shrinker { tries: Tries::new(most, fails), best: sequence.clone() };
    loop {
        let before = shrinker.best.to_string();
        shrinker.tries.without(&mut shrinker.best, |sequence| &mut sequence.lines);
        shrinker.without_references();
        shrinker.plainer();
        if shrinker.best.to_string() == before || shrinker.tries.are_spent() {
            return shrinker.best;
        }
    }
}

impl Shrinker<'_> {
    /// Removes lines together with those that repeat them.
    fn without_references(&mut self) {
        let numbers: Vec<u32> = self.best.lines.iter().map(|line| line.number).collect();
        for number in numbers {
            let mut candidate = self.best.clone();
            candidate.lines.retain(|line| line.number != number && line.step != Step::Again(number));
            if candidate.lines.len() + 1 < self.best.lines.len() {
                self.tries.attempt(&mut self.best, candidate);
            }
        }
    }

    /// Sets fields to their defaults.
    fn plainer(&mut self) {
        let settings: [fn(&mut Sequence); 3] = [|s| s.first = 0x10, |s| s.receives = 1, |s| s.room = 1024];
        for change in settings {
            let mut candidate = self.best.clone();
            change(&mut candidate);
            self.tries.attempt(&mut self.best, candidate);
        }
        const FIELDS: [fn(&mut Draft, &Draft); 12] = [
            |d, _| d.faults.clear(),
            |d, u| d.psn = u.psn,
            |d, u| d.solicited = u.solicited,
            |d, u| d.ack = u.ack,
            |d, u| d.at = u.at,
            |d, u| d.key = u.key,
            |d, u| d.qkey = u.qkey,
            |d, u| d.imm = u.imm,
            |d, _| d.operands = (1, 0),
            |d, u| (d.length, d.dma) = (u.length, u.dma),
            |d, _| (d.length, d.dma) = (16, 16),
            |d, u| d.aeth = u.aeth,
        ];
        for at in 0..self.best.lines.len() {
            for plain in FIELDS {
                let mut candidate = self.best.clone();
                if let Step::Send(draft) = &mut candidate.lines[at].step {
                    let default = Draft::new(draft.opcode);
                    plain(draft, &default);
                    // Of (0, 0) and (16, 16) bytes, the first that fails stays.
                    let was = match &self.best.lines[at].step {
                        Step::Send(was) => was.length + was.dma as usize,
                        Step::Again(_) => 0,
                    };
                    if draft.length + draft.dma as usize > was {
                        continue;
                    }
                }
                self.tries.attempt(&mut self.best, candidate);
            }
        }
    }
}
