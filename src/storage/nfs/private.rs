//! Private data of connection management messages: sizes of messages, and remote invalidation (RFC 8797).

/// The word by which the private data are known.
const MAGIC: u32 = 0xf6ab_0e18;
const VERSION: u8 = 1;
/// Flag: the sender's keys may be invalidated by the peer's replies.
const REMOTE_INVALIDATION: u8 = 1;
/// Bytes of the private data.
pub const LENGTH: usize = 8;
/// Bytes of an inline message without private data (RFC 8166 3.3.2).
pub const DEFAULT_INLINE: u32 = 1024;

/// Sizes that an end announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The peer's replies may invalidate keys of the sender's.
    pub takes_invalidation: bool,
    /// Bytes of the longest inline message that the end sends: a multiple of 1024, up to 262,144.
    pub sends: u32,
    /// Bytes of the longest inline message that the end receives: a multiple of 1024, up to 262,144.
    pub receives: u32,
}

impl Sizes {
    /// Sizes of an end without private data.
    pub const DEFAULT: Sizes =
        Sizes { takes_invalidation: false, sends: DEFAULT_INLINE, receives: DEFAULT_INLINE };

    /// Parses private data. Whatever is no private data of this format stands for the defaults.
    pub fn parse(bytes: &[u8]) -> Sizes {
        let Some([m0, m1, m2, m3, VERSION, flags, send, receive]) = bytes.first_chunk::<LENGTH>() else {
            return Sizes::DEFAULT;
        };
        if u32::from_be_bytes([*m0, *m1, *m2, *m3]) != MAGIC {
            return Sizes::DEFAULT;
        }
        let bytes = |code: &u8| (u32::from(*code) + 1) << 10;
        Sizes {
            takes_invalidation: flags & REMOTE_INVALIDATION != 0,
            sends: bytes(send),
            receives: bytes(receive),
        }
    }

    /// Encodes the private data. Sizes are rounded down to multiples of 1024.
    pub fn to_bytes(self) -> [u8; LENGTH] {
        let [m0, m1, m2, m3] = MAGIC.to_be_bytes();
        let code = |bytes: u32| (bytes >> 10).clamp(1, 256).wrapping_sub(1) as u8;
        [m0, m1, m2, m3, VERSION, u8::from(self.takes_invalidation), code(self.sends), code(self.receives)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_specified_layout() {
        let sizes = Sizes { takes_invalidation: true, sends: 4096, receives: 262_144 };
        assert_eq!(sizes.to_bytes(), [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 255]);
        assert_eq!(Sizes::parse(&sizes.to_bytes()), sizes);
    }

    #[test]
    fn other_private_data_stands_for_defaults() {
        assert_eq!(Sizes::parse(&[0; 56]), Sizes::DEFAULT);
        assert_eq!(Sizes::parse(&[0xf6, 0xab, 0x0e, 0x18, 2, 1, 3, 3]), Sizes::DEFAULT);
        assert_eq!(Sizes::parse(&Sizes::DEFAULT.to_bytes()[..7]), Sizes::DEFAULT);
        assert_eq!(Sizes::parse(&Sizes::DEFAULT.to_bytes()), Sizes::DEFAULT);
    }
}
