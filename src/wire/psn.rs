//! Packet sequence numbers: 24 bits that wrap.

use core::fmt;
use core::ops::{Add, Sub};

/// A 24-bit packet sequence number.
///
/// PSNs have no `Ord`, because numbers that wrap are ordered only within a window. Use
/// [`distance_from`](Psn::distance_from) or [`is_before`](Psn::is_before) (IBTA 9.7.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u32", into = "u32"))]
pub struct Psn(u32);

impl From<u32> for Psn {
    fn from(v: u32) -> Psn {
        Psn::new(v)
    }
}

impl From<Psn> for u32 {
    fn from(v: Psn) -> u32 {
        v.0
    }
}

impl Psn {
    const MASK: u32 = 0x00ff_ffff;

    /// Returns the PSN in the low 24 bits of `v`.
    pub const fn new(v: u32) -> Psn {
        //= IBTA 9.7.1: psn-is-24-bits
        Psn(v & Self::MASK)
    }

    /// Returns the number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns `self - base` as a signed 24-bit number, in [-2^23, 2^23).
    pub const fn distance_from(self, base: Psn) -> i32 {
        //= IBTA 9.7.1: psn-half-circle
        (self.0.wrapping_sub(base.0) << 8).cast_signed() >> 8
    }

    /// True if `self` lies in the 2^23 PSNs before `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance_from(other) < 0
    }

    /// Returns the next PSN, modulo 2^24.
    pub const fn next(self) -> Psn {
        Psn::new(self.0 + 1)
    }
}

impl Add<u32> for Psn {
    type Output = Psn;
    /// Adds modulo 2^24.
    fn add(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }
}

impl Sub<u32> for Psn {
    type Output = Psn;
    /// Subtracts modulo 2^24.
    fn sub(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(n))
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= test: IBTA 9.7.1: psn-is-24-bits
    #[test]
    fn distance_is_signed_and_wraps() {
        let d = |a: u32, b: u32| Psn::new(a).distance_from(Psn::new(b));
        assert_eq!(d(5, 3), 2);
        assert_eq!(d(3, 5), -2);
        assert_eq!(d(1, 0xff_ffff), 2);
        assert_eq!(d(0xff_ffff, 1), -2);
        assert_eq!(d(0x7f_ffff, 0), 0x7f_ffff);
        assert_eq!(d(0x80_0000, 0), -0x80_0000);
    }

    //= test: IBTA 9.7.1: psn-half-circle
    #[test]
    fn far_half_of_circle_is_before() {
        assert!(Psn::new(0x80_0000).is_before(Psn::new(0)));
        assert!(!Psn::new(0x7f_ffff).is_before(Psn::new(0)));
        assert!(!Psn::new(7).is_before(Psn::new(7)));
    }

    //= test: IBTA 9.7.1: psn-is-24-bits
    #[test]
    fn arithmetic_stays_within_24_bits() {
        assert_eq!(Psn::new(0xff_ffff).next(), Psn::new(0));
        assert_eq!(Psn::new(0x0100_0007), Psn::new(7));
        assert_eq!(Psn::new(0xff_fff0) + 0x20, Psn::new(0x10));
        assert_eq!(Psn::new(0x10) - 0x20, Psn::new(0xff_fff0));
        assert_eq!(Psn::new(42).to_string(), "42");
    }
}
