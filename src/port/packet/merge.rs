//! Frames of two rings in the order of their arrival.
//!
//! For each frame the kernel reserves the next slot of a ring, copies the frame, notes the time, and marks the slot as
//! filled. Each processor does so for one frame at a time, so a slot may be filled while an earlier one is not, and may
//! have an earlier time. The frames of a flow come from one processor, one after the other.

/// What is seen of a ring's next slots, of as many as processors may fill at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outlook<T> {
    /// The next slot is filled, and can be taken.
    pub(super) is_ready: bool,
    /// The earliest time in those that are filled.
    pub(super) earliest: T,
}

/// A ring that the kernel fills meanwhile.
pub(super) trait Filling {
    /// An arrival time.
    type Time: Ord;

    /// Looks at the next slots. `None`: none of them is filled.
    fn peek(&self) -> Option<Outlook<Self::Time>>;

    /// Returns how many slots are filled without a gap, from the next one on.
    fn in_a_row(&self) -> usize;
}

/// The ring whose next frame is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Older {
    Lone,
    Train,
}

/// Chooses between a ring of lone frames and one of trains, so that no frame of a flow overtakes another.
#[derive(Debug, Default)]
pub(super) struct Merge {
    /// Lone frames that precede all trains.
    run: usize,
}

impl Merge {
    /// Returns the ring from which the caller takes the next frame. `None`: none can be taken yet.
    ///
    /// The ring with the earliest time is next. If its next slot is not filled yet, the other ring has to wait too: it
    /// may have a later frame of the same flow. Whatever precedes a frame in its flow was filled before. So a look at
    /// the other ring that begins once the frame was seen finds it, within as many slots as there are processors.
    pub(super) fn next<R: Filling>(&mut self, lone: &R, trains: &R) -> Option<Older> {
        if let Some(run) = self.run.checked_sub(1) {
            self.run = run;
            return Some(Older::Lone);
        }
        let in_a_row = lone.in_a_row();
        if trains.peek().is_none() {
            self.run = in_a_row.saturating_sub(1);
            return (in_a_row > 0).then_some(Older::Lone);
        }
        let (before, train) = (lone.peek(), trains.peek()?);
        if let Some(lone) = before.filter(|lone| lone.earliest < train.earliest) {
            return lone.is_ready.then_some(Older::Lone);
        }
        let is_first = lone.peek().is_none_or(|lone| train.earliest <= lone.earliest);
        (is_first && train.is_ready).then_some(Older::Train)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use roxie_base::random::splitmix;

    const FRAMES: usize = 4;
    const PROCESSORS: usize = 3;

    /// A frame: its flow, which is its processor, and its number there.
    type Frame = (usize, usize);

    /// Two rings that processors fill while the port looks at them.
    struct Kernel {
        random: u64,
        /// The slots of the rings: a frame, and the time once it is filled.
        rings: [Vec<(Frame, Option<u64>)>; 2],
        taken: [usize; 2],
        /// The ring and the slot that each processor fills, and its number of frames so far.
        filling: [Option<(usize, usize)>; PROCESSORS],
        begun: [usize; PROCESSORS],
        time: u64,
    }

    impl Kernel {
        fn draw(&mut self, below: u64) -> usize {
            (splitmix(&mut self.random) % below) as usize
        }

        /// Lets a few steps pass: a processor reserves a slot, or fills the one that it has.
        fn pass(&mut self) {
            for _ in 0..self.draw(4) {
                let cpu = self.draw(PROCESSORS as u64);
                self.time += 1;
                if let Some((ring, slot)) = self.filling[cpu].take() {
                    self.rings[ring][slot].1 = Some(self.time);
                } else if self.begun[cpu] < FRAMES {
                    let ring = self.draw(2);
                    self.filling[cpu] = Some((ring, self.rings[ring].len()));
                    self.rings[ring].push(((cpu, self.begun[cpu]), None));
                    self.begun[cpu] += 1;
                }
            }
        }
    }

    struct Ring<'a>(&'a RefCell<Kernel>, usize);

    impl Filling for Ring<'_> {
        type Time = u64;

        fn peek(&self) -> Option<Outlook<u64>> {
            let mut kernel = self.0.borrow_mut();
            let next = kernel.taken[self.1];
            let (mut is_ready, mut earliest) = (false, None::<u64>);
            for i in 0..PROCESSORS {
                kernel.pass();
                if let Some((_, Some(time))) = kernel.rings[self.1].get(next + i) {
                    is_ready |= i == 0;
                    earliest = Some(earliest.map_or(*time, |earliest| earliest.min(*time)));
                }
            }
            earliest.map(|earliest| Outlook { is_ready, earliest })
        }

        fn in_a_row(&self) -> usize {
            let mut kernel = self.0.borrow_mut();
            kernel.pass();
            let slots = &kernel.rings[self.1][kernel.taken[self.1]..];
            slots.iter().take_while(|(_, time)| time.is_some()).count()
        }
    }

    #[test]
    fn flows_keep_their_order_over_two_rings() {
        for seed in 0..50_000 {
            let kernel = RefCell::new(Kernel {
                random: seed,
                rings: [Vec::new(), Vec::new()],
                taken: [0; 2],
                filling: [None; PROCESSORS],
                begun: [0; PROCESSORS],
                time: 0,
            });
            let (mut merge, mut next) = (Merge::default(), [0; PROCESSORS]);
            while next != [FRAMES; PROCESSORS] {
                let older = merge.next(&Ring(&kernel, 0), &Ring(&kernel, 1));
                let mut kernel = kernel.borrow_mut();
                kernel.pass();
                let ring = match older {
                    None => continue,
                    Some(Older::Lone) => 0,
                    Some(Older::Train) => 1,
                };
                let ((flow, number), time) = kernel.rings[ring][kernel.taken[ring]];
                assert!(
                    time.is_some() && number == next[flow],
                    "seed {seed}: {number} of flow {flow}, {next:?}"
                );
                next[flow] += 1;
                kernel.taken[ring] += 1;
            }
        }
    }
}
