//! Bitmaps of PSNs, for selective repeat. Bit `i` stands for the `i`-th PSN from a base on.

/// Returns the lowest `count` bits.
pub(super) fn mask(count: u32) -> u128 {
    u128::MAX.checked_shr(128 - count.min(128)).unwrap_or(0)
}
