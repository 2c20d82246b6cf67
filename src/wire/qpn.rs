//! Queue pair numbers.

use core::fmt;

/// A 24-bit queue pair number. 0 and 1 are the management QPs, 0xffffff is the multicast QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u32", into = "u32"))]
pub struct Qpn(u32);

impl From<u32> for Qpn {
    fn from(v: u32) -> Qpn {
        Qpn::new(v)
    }
}

impl From<Qpn> for u32 {
    fn from(v: Qpn) -> u32 {
        v.0
    }
}

impl Qpn {
    /// QP1, the general service interface; the connection manager uses it (IBTA 13.5).
    pub const GSI: Qpn = Qpn(1);
    /// The destination of every multicast packet (IBTA 9.6.4).
    pub const MULTICAST: Qpn = Qpn(0x00ff_ffff);

    /// Returns the QPN in the low 24 bits of `v`.
    pub const fn new(v: u32) -> Qpn {
        Qpn(v & 0x00ff_ffff)
    }

    /// Returns the number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    /// Prints `0x000012`, as Wireshark does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qpn_keeps_24_bits_and_shows_six_digits() {
        assert_eq!(Qpn::new(0xff00_0012).value(), 0x12);
        assert_eq!(Qpn::new(0x12).to_string(), "0x000012");
    }
}
