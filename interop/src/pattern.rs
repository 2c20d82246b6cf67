//! The data pattern by which transfers are verified.
//!
//! The pattern of a seed: xorshift64* (Marsaglia's 12, 25, 27; multiplier 0x2545F4914F6CDD1D), started
//! at `seed ^ 0x9E3779B97F4A7C15`, or at 1 where that is 0. Each step yields 8 bytes, least significant
//! first; a last step may be used in part. `guest/peer/memory.c` implements the same pattern.

/// The first byte that differs from the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset from the start of the range that was checked.
    pub at: usize,
    /// The byte found.
    pub got: u8,
    /// The byte expected.
    pub want: u8,
}

/// Returns the pattern's bytes, an endless stream.
pub fn bytes(seed: u64) -> impl Iterator<Item = u8> {
    let start = seed ^ 0x9E37_79B9_7F4A_7C15;
    let mut x = if start == 0 { 1 } else { start };
    std::iter::repeat_with(move || {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        x.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes()
    })
    .flatten()
}

/// Fills `to` with the pattern of `seed`.
pub fn fill(to: &mut [u8], seed: u64) {
    for (byte, pattern) in to.iter_mut().zip(bytes(seed)) {
        *byte = pattern;
    }
}

/// Returns where `data` first differs from the pattern of `seed`.
pub fn mismatch(data: &[u8], seed: u64) -> Option<Mismatch> {
    let wrong = data.iter().zip(bytes(seed)).enumerate().find(|(_, (got, want))| **got != *want);
    wrong.map(|(at, (&got, want))| Mismatch { at, got, want })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found() {
        let mut data = [0u8; 21];
        fill(&mut data, 7);
        assert_eq!(mismatch(&data, 7), None);
        data[20] ^= 0x40;
        assert_eq!(mismatch(&data, 7), Some(Mismatch { at: 20, got: data[20], want: data[20] ^ 0x40 }));
    }

    #[test]
    fn seed_that_cancels_the_start_has_a_pattern() {
        let first: Vec<u8> = bytes(0x9E37_79B9_7F4A_7C15).take(8).collect();
        // x = 1 -> 1 ^ (1 << 25) = 0x2000001, times the multiplier.
        assert_eq!(first, 0x0200_0001_u64.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
}
