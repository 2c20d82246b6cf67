//! Numbers that a table index hides behind: QPNs and memory keys.
//!
//! A number on the wire is a keyed permutation of (generation, index). Looking one up is
//! arithmetic and an index, no hash; guessing one is guessing 24 bits, and a number that was
//! in use before does not come back until its generation does.

use std::cell::Cell;

use crate::random::splitmix;

/// A keyed permutation of numbers of `2 * HALF_BITS` bits, `INDEX_BITS` of which are an index: a Feistel network of four rounds, which is what a
/// pseudo-random permutation needs (Luby and Rackoff 1988).
///
/// It keeps off-path guessers out. It is no cipher: whoever sees many of its outputs may learn the key.
#[derive(Clone, Copy, Debug)]
pub struct Feistel<const HALF_BITS: u32, const INDEX_BITS: u32> {
    keys: [u64; 4],
}

/// Of 24-bit numbers: an index of 16 bits, and a generation of 8.
pub type Permutation = Feistel<12, 16>;
/// The same for who asks for each packet.
pub type QuickPermutation = Remembering<12, 16>;
/// Of 32-bit numbers: an index of 16 bits, and a generation of 16.
pub type LongPermutation = Feistel<16, 16>;
/// Of 16-bit numbers: an index of 12 bits, and a generation of 4.
pub type ShortPermutation = Feistel<8, 12>;

impl<const HALF_BITS: u32, const INDEX_BITS: u32> Feistel<HALF_BITS, INDEX_BITS> {
    const HALF: u32 = (1 << HALF_BITS) - 1;

    /// A permutation of its own for each `seed`.
    pub fn new(seed: u64) -> Feistel<HALF_BITS, INDEX_BITS> {
        let mut state = seed;
        Feistel { keys: std::array::from_fn(|_| splitmix(&mut state) | 1) }
    }

    /// The number for `index` in its `generation`. Bits that a short number has no room for are left out.
    pub fn encode(&self, index: u16, generation: u16) -> u32 {
        let plain = u32::from(generation) << INDEX_BITS | u32::from(index);
        let (mut left, mut right) = (plain >> HALF_BITS & Self::HALF, plain & Self::HALF);
        for key in self.keys {
            (left, right) = (right, left ^ round(key, right) & Self::HALF);
        }
        left << HALF_BITS | right
    }

    /// The index and generation of a number; every number has one.
    pub fn decode(&self, number: u32) -> (u16, u16) {
        let (mut left, mut right) = (number >> HALF_BITS & Self::HALF, number & Self::HALF);
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ round(key, left) & Self::HALF, left);
        }
        let plain = left << HALF_BITS | right;
        ((plain & ((1 << INDEX_BITS) - 1)) as u16, (plain >> INDEX_BITS) as u16)
    }
}

/// Numbers that are remembered: a power of two.
const REMEMBERED: usize = 64;

/// A permutation that remembers which numbers it was asked for, because most packets are for whom the one before was for, and name the
/// same memory. What it answers is the same as without.
#[derive(Debug)]
pub struct Remembering<const HALF_BITS: u32, const INDEX_BITS: u32> {
    permutation: Feistel<HALF_BITS, INDEX_BITS>,
    /// A number and its index, where the number's low bits say.
    lately: Box<[Cell<(u32, u16)>; REMEMBERED]>,
}

impl<const HALF_BITS: u32, const INDEX_BITS: u32> Remembering<HALF_BITS, INDEX_BITS> {
    /// A permutation of its own for each `seed`, as [`Feistel::new`] makes it.
    pub fn new(seed: u64) -> Remembering<HALF_BITS, INDEX_BITS> {
        let permutation = Feistel::new(seed);
        // Something true: that no number is 2^32 - 1 the type does not say.
        let zero = (0, permutation.decode(0).0);
        Remembering { permutation, lately: Box::new(std::array::from_fn(|_| Cell::new(zero))) }
    }

    /// As [`Feistel::encode`].
    pub fn encode(&self, index: u16, generation: u16) -> u32 {
        self.permutation.encode(index, generation)
    }

    /// As [`Feistel::decode`].
    pub fn decode(&self, number: u32) -> (u16, u16) {
        self.permutation.decode(number)
    }

    /// The index of a number.
    #[inline]
    pub fn index_of(&self, number: u32) -> u16 {
        let place = &self.lately[number as usize % REMEMBERED];
        match place.get() {
            (last, index) if last == number => index,
            _ => self.look_up(number, place),
        }
    }

    #[inline(never)]
    fn look_up(&self, number: u32, place: &Cell<(u32, u16)>) -> u16 {
        let (index, _) = self.permutation.decode(number);
        place.set((number, index));
        index
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
        let p = ShortPermutation::new(7);
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
    fn what_is_remembered_is_what_would_be_worked_out() {
        let p = Remembering::<12, 16>::new(7);
        let mut seed = 1;
        for _ in 0..100_000 {
            // Few enough to come again, many enough to take one another's places, and zero before it is remembered.
            let number = (splitmix(&mut seed) % 200) as u32 * 37;
            assert_eq!(p.index_of(number), p.decode(number).0, "{number}");
        }
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
