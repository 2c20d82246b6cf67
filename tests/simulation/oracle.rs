//! The memory oracle: patterns, slices and guards. Independent of packets.

use roxie::shared::HostMemory;

/// The initial value of all bytes.
pub const GUARD: u8 = 0xa5;
/// Number of guard bytes between slices.
const GUARD_LEN: u64 = 16;

/// The bytes of a message. Messages, and places within one, differ.
pub fn pattern(way: u64, op: usize, length: usize) -> Vec<u8> {
    let seed = way.wrapping_mul(31).wrapping_add(op as u64).wrapping_mul(0x9e37_79b9);
    (0..length as u64)
        .map(|i| ((i.wrapping_mul(0x0001_016b) ^ seed) >> (i % 3)) as u8 ^ (i >> 8) as u8)
        .collect()
}

/// Offset of each operation's bytes in a region: slices with guards between them.
#[derive(Clone, Debug)]
pub struct Layout {
    pub offsets: Vec<u64>,
    pub total: u64,
}

impl Layout {
    pub fn new(lengths: impl Iterator<Item = u64>) -> Layout {
        let mut total = GUARD_LEN;
        let offsets = lengths
            .map(|length| {
                let offset = total;
                total = (total + length + GUARD_LEN).next_multiple_of(8);
                offset
            })
            .collect();
        Layout { offsets, total: total + GUARD_LEN }
    }

    /// Asserts that all bytes outside the slices are unchanged.
    pub fn assert_guards(&self, memory: &HostMemory, lengths: impl Iterator<Item = u64>, what: &str) {
        let bytes = bytes(memory, 0, self.total as usize);
        let mut at = 0;
        let slices = self.offsets.iter().zip(lengths).filter(|(_, length)| *length > 0);
        let ends = std::iter::once((&self.total, 0));
        for (offset, length) in slices.chain(ends) {
            let gap = &bytes[at..*offset as usize];
            if let Some(changed) = gap.iter().position(|byte| *byte != GUARD) {
                let byte = gap[changed];
                panic!("{what}: byte {} outside of every slice was changed to {byte:#04x}", at + changed);
            }
            at = (*offset + length) as usize;
        }
    }
}

/// Returns a copy of `length` bytes.
pub fn bytes(memory: &HostMemory, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.read(offset, &mut bytes).expect("within the region");
    bytes
}

/// Asserts that the bytes are the expected ones.
pub fn assert_bytes(memory: &HostMemory, offset: u64, expected: &[u8], what: &str) {
    let actual = bytes(memory, offset, expected.len());
    if let Some(at) = (0..expected.len()).find(|i| actual[*i] != expected[*i]) {
        panic!("{what}: byte {at} of {} is {:#04x}, not {:#04x}", expected.len(), actual[at], expected[at]);
    }
}

/// Asserts that each byte is the expected one, or was never written.
pub fn assert_in_part(memory: &HostMemory, offset: u64, expected: &[u8], what: &str) {
    let actual = bytes(memory, offset, expected.len());
    if let Some(at) = (0..expected.len()).find(|i| actual[*i] != expected[*i] && actual[*i] != GUARD) {
        panic!("{what}: byte {at} of {} is {:#04x}, which no operation wrote", expected.len(), actual[at]);
    }
}
