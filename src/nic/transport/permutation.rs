//! Keyed permutations, which turn table indices into numbers that are hard to guess: QPNs and memory keys.
//!
//! A number on the wire is a keyed permutation of (generation, index). A look-up needs only arithmetic and one index,
//! no hash. A number has 24 random-looking bits, and is not reused until its generation wraps.

use std::cell::Cell;

use roxie_base::random::splitmix;

/// A keyed permutation of numbers of `2 * HALF_BITS` bits, of which `INDEX_BITS` are an index. Implemented as a Feistel
/// network of four rounds, as a pseudo-random permutation requires (Luby and Rackoff 1988).
///
/// The permutation protects against guesses by off-path attackers. The permutation is no cipher: many outputs may
/// reveal the key.
#[derive(Clone, Copy, Debug)]
pub struct Feistel<const HALF_BITS: u32, const INDEX_BITS: u32> {
    keys: [u64; 4],
}

/// Permutation of 24-bit numbers: 16 bits of index, 8 of generation.
pub type Permutation = Feistel<12, 16>;
/// Permutation of 24-bit numbers with a cache, for look-ups on the data path.
pub type QuickPermutation = CachedPermutation<12, 16>;
/// Permutation of 32-bit numbers: 16 bits of index, 16 of generation.
pub type LongPermutation = Feistel<16, 16>;
/// Permutation of 16-bit numbers: 12 bits of index, 4 of generation.
pub type ShortPermutation = Feistel<8, 12>;

impl<const HALF_BITS: u32, const INDEX_BITS: u32> Feistel<HALF_BITS, INDEX_BITS> {
    const HALF: u32 = (1 << HALF_BITS) - 1;

    /// Returns the permutation that `seed` determines.
    pub fn new(seed: u64) -> Feistel<HALF_BITS, INDEX_BITS> {
        let mut state = seed;
        Feistel { keys: std::array::from_fn(|_| splitmix(&mut state) | 1) }
    }

    /// Returns the number of an index in a generation. High bits of the generation that do not fit are dropped.
    pub fn encode(&self, index: u16, generation: u16) -> u32 {
        let plain = u32::from(generation) << INDEX_BITS | u32::from(index);
        let (mut left, mut right) = (plain >> HALF_BITS & Self::HALF, plain & Self::HALF);
        for key in self.keys {
            (left, right) = (right, left ^ round(key, right) & Self::HALF);
        }
        left << HALF_BITS | right
    }

    /// Returns the index and the generation of a number. Every number has one.
    pub fn decode(&self, number: u32) -> (u16, u16) {
        let (mut left, mut right) = (number >> HALF_BITS & Self::HALF, number & Self::HALF);
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ round(key, left) & Self::HALF, left);
        }
        let plain = left << HALF_BITS | right;
        ((plain & ((1 << INDEX_BITS) - 1)) as u16, (plain >> INDEX_BITS) as u16)
    }
}

/// Entries of the cache; a power of two.
const REMEMBERED: usize = 64;

/// A permutation with a cache of recent look-ups: most packets have the QPN and the key of the packet before. Results
/// do not depend on the cache.
#[derive(Debug)]
pub struct CachedPermutation<const HALF_BITS: u32, const INDEX_BITS: u32> {
    permutation: Feistel<HALF_BITS, INDEX_BITS>,
    /// Numbers with their index, at the place given by the number's low bits.
    recent: Box<[Cell<(u32, u16)>; REMEMBERED]>,
}

impl<const HALF_BITS: u32, const INDEX_BITS: u32> CachedPermutation<HALF_BITS, INDEX_BITS> {
    /// Returns the permutation that `seed` determines, as [`Feistel::new`] does.
    pub fn new(seed: u64) -> CachedPermutation<HALF_BITS, INDEX_BITS> {
        let permutation = Feistel::new(seed);
        // A valid entry for number 0. No value is free to mark an empty entry.
        let zero = (0, permutation.decode(0).0);
        CachedPermutation { permutation, recent: Box::new(std::array::from_fn(|_| Cell::new(zero))) }
    }

    /// Same as [`Feistel::encode`].
    pub fn encode(&self, index: u16, generation: u16) -> u32 {
        self.permutation.encode(index, generation)
    }

    /// Same as [`Feistel::decode`].
    pub fn decode(&self, number: u32) -> (u16, u16) {
        self.permutation.decode(number)
    }

    /// Returns the index of a number.
    #[inline]
    pub fn index_of(&self, number: u32) -> u16 {
        let place = &self.recent[number as usize % REMEMBERED];
        match place.get() {
            (last, index) if last == number => index,
            _ => self.recent_index(number, place),
        }
    }

    #[inline(never)]
    fn recent_index(&self, number: u32, place: &Cell<(u32, u16)>) -> u16 {
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
    fn short_decoding_undoes_encoding_for_every_number() {
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
    fn cached_index_equals_decoded_index() {
        let p = CachedPermutation::<12, 16>::new(7);
        let mut seed = 1;
        for _ in 0..100_000 {
            // Few enough numbers to repeat, enough to evict one another, and including 0.
            let number = (splitmix(&mut seed) % 200) as u32 * 37;
            assert_eq!(p.index_of(number), p.decode(number).0, "{number}");
        }
    }

    #[test]
    fn neighbouring_indices_get_distant_numbers() {
        let p = Permutation::new(1);
        let close = (0..10_000).filter(|i| p.encode(*i, 0).abs_diff(p.encode(i + 1, 0)) < 1 << 12).count();
        assert!(close < 20, "{close} of 10,000 within 4,096; chance gives about 5");
    }

    #[test]
    fn different_seeds_give_different_numbers() {
        assert_ne!(Permutation::new(1).encode(0, 0), Permutation::new(2).encode(0, 0));
    }
}
