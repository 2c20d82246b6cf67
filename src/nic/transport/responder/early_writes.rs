//! WRITEs behind the message in progress of which the first packet came early: it names the memory of the others.

use roxie_wire::{Psn, Reth};

/// Number of WRITEs behind the message in progress that are remembered: with it, eight messages of 16 packets fill the
/// window of 128.
const WRITES: usize = 7;

/// A WRITE of which the first packet came early.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyWrite {
    pub first: Psn,
    pub reth: Reth,
}

/// The remembered WRITEs, all with the same key, without padding between them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlyWrites {
    addresses: [u64; WRITES],
    lengths: [u32; WRITES],
    rkey: u32,
    /// Low 8 bits of each first PSN, which is at most 128 behind the expected one.
    firsts: [u8; WRITES],
    /// Bit `i`: place `i` is taken.
    taken: u8,
}

impl EarlyWrites {
    /// True if none is remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Returns all, with the expected PSN.
    pub(super) fn iter(&self, expected: Psn) -> impl Iterator<Item = EarlyWrite> + use<> {
        let all = *self;
        let places = (0..WRITES).filter(move |place| all.taken >> place & 1 == 1);
        places.map(move |place| EarlyWrite {
            first: expected + u32::from(all.firsts[place].wrapping_sub(expected.value() as u8)),
            reth: Reth { va: all.addresses[place], rkey: all.rkey, dma_len: all.lengths[place] },
        })
    }

    /// True if a WRITE with this key can be added.
    pub(super) fn has_room(&self, rkey: u32) -> bool {
        self.taken == 0 || (self.rkey == rkey && self.taken.count_ones() < WRITES as u32)
    }

    pub(super) fn add(&mut self, write: EarlyWrite) {
        let place = self.taken.trailing_ones() as usize;
        if place < WRITES {
            self.addresses[place] = write.reth.va;
            self.lengths[place] = write.reth.dma_len;
            self.rkey = write.reth.rkey;
            self.firsts[place] = write.first.value() as u8;
            self.taken |= 1 << place;
        }
    }

    /// Forgets those that begin within `count` PSNs from `expected` on.
    pub(super) fn pass(&mut self, count: u32, expected: Psn) {
        for (place, first) in self.firsts.iter().enumerate() {
            if u32::from(first.wrapping_sub(expected.value() as u8)) < count {
                self.taken &= !(1 << place);
            }
        }
    }

    pub(super) fn forget(&mut self, first: Psn) {
        for place in (0..WRITES).filter(|place| self.firsts[*place] == first.value() as u8) {
            self.taken &= !(1 << place);
        }
    }
}
