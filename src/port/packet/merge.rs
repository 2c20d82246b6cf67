//! Frames of two rings in the order of their arrival.

/// Which of two rings has the older frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Older {
    Lone,
    Train,
}

/// Chooses between the rings of lone frames and of trains by the arrival time of their next frames, which each call looks up anew.
///
/// The kernel fills both rings in the order of arrival. So the frames that came before a frame are in their ring once that frame is seen: a
/// ring that was empty is looked at again after the other.
pub(super) fn older<T: Ord>(lone: impl Fn() -> Option<T>, train: impl Fn() -> Option<T>) -> Option<Older> {
    match (lone(), train()) {
        (None, None) => None,
        (Some(_), None) => Some(Older::Lone),
        (Some(l), Some(t)) => Some(if l < t { Older::Lone } else { Older::Train }),
        (None, Some(t)) => Some(if lone().is_some_and(|l| l < t) { Older::Lone } else { Older::Train }),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Two rings that the kernel fills while the port looks at them: frame `i` of the sequence goes to the ring of trains if its bit is set.
    struct Rings<'a> {
        trains: u32,
        /// Frames that have arrived, and those of each ring that were taken.
        arrived: Cell<u32>,
        taken: [u32; 2],
        /// How many frames arrive before each look.
        schedule: &'a dyn Fn() -> u32,
    }

    impl Rings<'_> {
        /// Lets frames arrive, then returns the next frame of a ring.
        fn head(&self, ring: u32, frames: u32) -> Option<u32> {
            self.arrived.set((self.arrived.get() + (self.schedule)()).min(frames));
            let of_ring = (0..self.arrived.get()).filter(|i| self.trains >> i & 1 == ring);
            of_ring.into_iter().nth(self.taken[ring as usize] as usize)
        }
    }

    #[test]
    fn two_rings_are_emptied_in_order_of_arrival() {
        const FRAMES: u32 = 5;
        // Before each of so many looks 0, 1 or 2 frames arrive; then all.
        const LOOKS: u32 = 8;
        for trains in 0..1 << FRAMES {
            for arrivals in 0..3_u32.pow(LOOKS) {
                let rest = Cell::new((arrivals, LOOKS));
                let schedule = || {
                    let (digits, looks) = rest.get();
                    rest.set((digits / 3, looks.saturating_sub(1)));
                    if looks == 0 { FRAMES } else { digits % 3 }
                };
                let mut rings = Rings { trains, arrived: Cell::new(0), taken: [0; 2], schedule: &schedule };
                let mut next = 0;
                while next < FRAMES {
                    let ring = match older(|| rings.head(0, FRAMES), || rings.head(1, FRAMES)) {
                        None => continue,
                        Some(Older::Lone) => 0,
                        Some(Older::Train) => 1,
                    };
                    assert_eq!(trains >> next & 1, ring, "frame {next} of {trains:05b}, arrivals {arrivals}");
                    rings.taken[ring as usize] += 1;
                    next += 1;
                }
            }
        }
    }
}
