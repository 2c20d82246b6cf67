//! The selective acknowledgement of Roxie, between peers that agreed to selective repeat (in the manner of IRN, SIGCOMM
//! 2018, 3.1).
//!
//! ```text
//! BTH    PSN: the first one missing. All before it are acknowledged, as by an ACK for the PSN before it.
//! AETH   syndrome ACK with credits, MSN
//! SACK   Count8 Latest24 Bitmap128
//! ```
//!
//! Bit `i` of the bitmap stands for the BTH's PSN plus `i`. A set bit: the packet came, and is kept. A clear bit below
//! `count`: the packet is missing, or came and was not kept; the peer asks for it. Nothing is said of later PSNs.

use core::fmt;

use super::Psn;

/// Selective acknowledgement header: `Count8 Latest24 Bitmap128`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Sack {
    /// Number of PSNs that the bitmap describes, 1 to 128.
    pub count: u8,
    /// PSN of the packet that came last, in any order.
    pub latest: Psn,
    /// PSNs that came and are kept. Bit 0 is the BTH's PSN, which is missing.
    pub bitmap: u128,
}

impl Sack {
    /// Length in bytes.
    pub const LEN: usize = 20;
    /// Largest number of PSNs in the bitmap.
    pub const BITS: u32 = u128::BITS;

    /// Decodes the header. All values of the 20 bytes are accepted; see [`Sack::is_coherent`].
    pub fn read(bytes: &[u8; Sack::LEN]) -> Sack {
        let [count, a, b, c, bitmap @ ..] = *bytes;
        let latest = Psn::new(u32::from_be_bytes([0, a, b, c]));
        Sack { count, latest, bitmap: u128::from_be_bytes(bitmap) }
    }

    /// Encodes the header.
    pub fn to_bytes(&self) -> [u8; Sack::LEN] {
        let mut bytes = [0; Sack::LEN];
        bytes[..4].copy_from_slice(&self.latest.value().to_be_bytes());
        bytes[0] = self.count;
        bytes[4..].copy_from_slice(&self.bitmap.to_be_bytes());
        bytes
    }

    /// Returns the bitmap of the PSNs that are described.
    pub fn covered(&self) -> u128 {
        u128::MAX.checked_shr(Sack::BITS.saturating_sub(self.count.into())).unwrap_or(0)
    }

    /// True if the header contradicts itself nowhere: the count is 1 to 128, the first PSN is missing, and no PSN
    /// beyond the count came.
    pub fn is_coherent(&self) -> bool {
        let counts = (1..=Sack::BITS).contains(&u32::from(self.count));
        counts && self.bitmap & 1 == 0 && self.bitmap & !self.covered() == 0
    }

    /// Returns the number of PSNs that are asked for.
    pub fn missing(&self) -> u32 {
        (self.covered() & !self.bitmap).count_ones()
    }
}

impl fmt::Display for Sack {
    /// `asks for 3 of 12 latest 268`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asks for {} of {} latest {}", self.missing(), self.count, self.latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sack_reads_back_what_was_written() {
        let sack = Sack { count: 128, latest: Psn::new(0xabcdef), bitmap: 0x8000_0000_0000_0001 << 1 };
        assert_eq!(Sack::read(&sack.to_bytes()), sack);
        assert_eq!(sack.to_bytes()[..4], [128, 0xab, 0xcd, 0xef]);
    }

    #[test]
    fn contradictory_sacks_are_not_coherent() {
        let sack = |count, bitmap| Sack { count, latest: Psn::new(0), bitmap };
        assert!(sack(1, 0).is_coherent() && sack(128, u128::MAX - 1).is_coherent());
        assert!(sack(4, 0b1010).is_coherent());
        for (count, bitmap) in [(0, 0), (129, 0), (255, 0), (4, 0b1011), (4, 0b1_0000), (1, 0b10)] {
            assert!(!sack(count, bitmap).is_coherent(), "{count} {bitmap:#b}");
        }
    }

    #[test]
    fn display_tells_how_many_are_missing() {
        let sack = Sack { count: 12, latest: Psn::new(268), bitmap: 0xffa };
        assert_eq!(sack.to_string(), "asks for 2 of 12 latest 268");
    }
}
