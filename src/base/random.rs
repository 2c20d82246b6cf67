//! Random numbers: reproducible ones from a seed, and unpredictable ones.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns the next number of a splitmix64 sequence (Steele, Lea, Flood 2014).
pub fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Returns an unpredictable number. The standard library takes its hash keys from the operating system.
pub fn unguessable() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns 128 unpredictable bits as hexadecimal digits.
pub fn unguessable_text() -> String {
    format!("{:016x}{:016x}", unguessable(), unguessable())
}
