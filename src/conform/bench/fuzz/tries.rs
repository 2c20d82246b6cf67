//! Attempts to shrink an input that fails (delta debugging, Zeller and Hildebrandt 2002), of any kind: packets for a
//! target, scripts of a simulation.

/// What tells whether a smaller input still fails, and how often it may be asked.
pub struct Tries<'a, T> {
    fails: &'a mut dyn FnMut(&T) -> bool,
    left: u32,
}

impl<'a, T: Clone + PartialEq> Tries<'a, T> {
    /// Allows `most` attempts. `fails` returns true for an input that still fails.
    pub fn new(most: u32, fails: &'a mut dyn FnMut(&T) -> bool) -> Tries<'a, T> {
        Tries { fails, left: most }
    }

    /// True if no attempt is left.
    pub fn are_spent(&self) -> bool {
        self.left == 0
    }

    /// Allows one attempt more.
    pub fn grant(&mut self) {
        self.left += 1;
    }

    /// Replaces `best` by `smaller` if that differs and fails too. Returns true if it did.
    pub fn attempt(&mut self, best: &mut T, smaller: T) -> bool {
        if self.left == 0 || smaller == *best {
            return false;
        }
        self.left -= 1;
        let fails = (self.fails)(&smaller);
        if fails {
            *best = smaller;
        }
        fails
    }

    /// Removes ranges of a list of `best`, half of it first.
    pub fn without<I>(&mut self, best: &mut T, list: fn(&mut T) -> &mut Vec<I>) {
        let mut size = list(best).len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            while at < list(best).len() {
                let mut smaller = best.clone();
                let items = list(&mut smaller);
                items.drain(at..(at + size).min(items.len()));
                if !self.attempt(best, smaller) {
                    at += size;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
    }
}
