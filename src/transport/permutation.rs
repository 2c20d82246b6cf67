//! Numbers that a table index hides behind: QPNs and memory keys.
//!
//! A number on the wire is a keyed permutation of (generation, index). Looking one up is
//! arithmetic and an index, no hash; guessing one is guessing 24 bits, and a number that was
//! in use before does not come back until its generation does.

use crate::random::splitmix;

/// A keyed permutation of 24-bit numbers, or of shorter ones: a Feistel network of four rounds, which is what a
/// pseudo-random permutation needs (Luby and Rackoff 1988).
///
/// It keeps off-path guessers out. It is no cipher: whoever sees many of its outputs may learn the key.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    keys: [u64; 4],
    /// Bits of the index; above them is the generation.
    index_bits: u32,
    /// Bits of half a number.
    half_bits: u32,
}

impl Permutation {
    /// One of 24-bit numbers: an index of 16 bits, and a generation of 8. Another one for each `seed`.
    pub fn new(seed: u64) -> Permutation {
        Permutation::of(seed, 16, 12)
    }

    /// One of 16-bit numbers: an index of 12 bits, and a generation of 4.
    pub fn short(seed: u64) -> Permutation {
        Permutation::of(seed, 12, 8)
    }

    fn of(seed: u64, index_bits: u32, half_bits: u32) -> Permutation {
        let mut state = seed;
        Permutation { keys: std::array::from_fn(|_| splitmix(&mut state) | 1), index_bits, half_bits }
    }

    fn half(&self) -> u32 {
        (1 << self.half_bits) - 1
    }

    /// The number for `index` in its `generation`. Bits that a short number has no room for are left out.
    pub fn encode(&self, index: u16, generation: u8) -> u32 {
        let plain = u32::from(generation) << self.index_bits | u32::from(index);
        let (mut left, mut right) = (plain >> self.half_bits & self.half(), plain & self.half());
        for key in self.keys {
            (left, right) = (right, left ^ round(key, right) & self.half());
        }
        left << self.half_bits | right
    }

    /// The index and generation of a number; every number has one.
    pub fn decode(&self, number: u32) -> (u16, u8) {
        let (mut left, mut right) = (number >> self.half_bits & self.half(), number & self.half());
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ round(key, left) & self.half(), left);
        }
        let plain = left << self.half_bits | right;
        ((plain & ((1 << self.index_bits) - 1)) as u16, (plain >> self.index_bits) as u8)
    }
}

fn round(key: u64, half: u32) -> u32 {
    let mixed = (u64::from(half) ^ key >> 17).wrapping_mul(key);
    (mixed >> 40) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_undoes_encoding_for_every_number() {
        let p = Permutation::new(7);
        for number in 0..1 << 24 {
            let (index, generation) = p.decode(number);
            assert_eq!(p.encode(index, generation), number);
        }
    }

    #[test]
    fn so_it_does_for_every_short_number() {
        let p = Permutation::short(7);
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..1 << 16 {
            let (index, generation) = p.decode(number);
            assert!(index < 1 << 12 && generation < 1 << 4);
            assert_eq!(p.encode(index, generation), number);
            seen.insert((index, generation));
        }
        assert_eq!(seen.len(), 1 << 16);
    }

    #[test]
    fn neighbours_do_not_look_like_neighbours() {
        let p = Permutation::new(1);
        let close = (0..10_000).filter(|i| p.encode(*i, 0).abs_diff(p.encode(i + 1, 0)) < 1 << 12).count();
        assert!(close < 20, "{close} of 10,000 within 4,096; chance gives about 5");
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(Permutation::new(1).encode(0, 0), Permutation::new(2).encode(0, 0));
    }
}
