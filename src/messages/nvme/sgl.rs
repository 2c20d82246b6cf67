//! SGL descriptors: where the data of a command is (NVMe base specification 4.4; RDMA transport specification 2.3).

use std::fmt;

use crate::nvme::bytes::{put, u32_at, u64_at};

/// Bytes of a descriptor.
pub const LENGTH: usize = 16;
/// Most bytes that a keyed descriptor describes: its length has 24 bits.
pub const LONGEST_KEYED: u32 = (1 << 24) - 1;

/// Descriptor types, with their subtypes: the last byte of a descriptor.
const DATA_BLOCK: u8 = 0x00;
const OFFSET: u8 = 0x01;
const KEYED: u8 = 0x40;
const KEYED_INVALIDATE: u8 = 0x4f;
const TRANSPORT: u8 = 0x5a;

/// An SGL descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// Memory of the host by address alone. Not used over RDMA.
    Address {
        /// First address.
        address: u64,
        /// Bytes.
        length: u32,
    },
    /// Bytes of the command capsule, behind the command.
    InCapsule {
        /// Bytes between the end of the command and the data.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Memory of the host by address and rkey.
    Keyed {
        /// First address.
        address: u64,
        /// Bytes, at most [`LONGEST_KEYED`].
        length: u32,
        /// The rkey.
        key: u32,
        /// The response is to invalidate the key (SEND with invalidate).
        invalidate: bool,
    },
    /// Data that the transport moves without an address (NVMe/TCP).
    Transport {
        /// Bytes.
        length: u32,
    },
    /// Any other descriptor.
    Other([u8; LENGTH]),
}

impl Sgl {
    /// The descriptor of a command without data, as Linux sends it: keyed, zero bytes.
    pub const NONE: Sgl = Sgl::Keyed { address: 0, length: 0, key: 0, invalidate: false };

    /// Parses a descriptor. Total: an unknown one is [`Sgl::Other`]. Reserved bytes are ignored: Linux leaves an
    /// earlier key in them.
    pub fn parse(bytes: &[u8; LENGTH]) -> Sgl {
        let (address, length) = (u64_at(bytes, 0), u32_at(bytes, 8));
        match bytes[15] {
            DATA_BLOCK => Sgl::Address { address, length },
            OFFSET => Sgl::InCapsule { offset: address, length },
            TRANSPORT => Sgl::Transport { length },
            kind @ (KEYED | KEYED_INVALIDATE) => Sgl::Keyed {
                address,
                length: length & LONGEST_KEYED,
                key: u32_at(bytes, 11),
                invalidate: kind == KEYED_INVALIDATE,
            },
            _ => Sgl::Other(*bytes),
        }
    }

    /// Encodes the descriptor. Of a keyed length, the low 24 bits.
    pub fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let (address, length, kind) = match self {
            Sgl::Other(bytes) => return bytes,
            Sgl::Address { address, length } => (address, length, DATA_BLOCK),
            Sgl::InCapsule { offset, length } => (offset, length, OFFSET),
            Sgl::Transport { length } => (0, length, TRANSPORT),
            Sgl::Keyed { address, length, invalidate: false, .. } => (address, length & LONGEST_KEYED, KEYED),
            Sgl::Keyed { address, length, .. } => (address, length & LONGEST_KEYED, KEYED_INVALIDATE),
        };
        put(&mut bytes, 0, &address.to_le_bytes());
        put(&mut bytes, 8, &length.to_le_bytes());
        if let Sgl::Keyed { key, .. } = self {
            put(&mut bytes, 11, &key.to_le_bytes());
        }
        bytes[15] = kind;
        bytes
    }

    /// Bytes that the descriptor describes; 0 for an unknown one.
    pub fn length(self) -> u32 {
        match self {
            Sgl::Address { length, .. }
            | Sgl::InCapsule { length, .. }
            | Sgl::Keyed { length, .. }
            | Sgl::Transport { length } => length,
            Sgl::Other(_) => 0,
        }
    }
}

impl fmt::Display for Sgl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sgl::Keyed { length: 0, .. } => write!(f, "no data"),
            Sgl::Address { address, length } => write!(f, "{length} B at {address:#x}"),
            Sgl::InCapsule { offset, length } => write!(f, "{length} B in capsule at {offset}"),
            Sgl::Keyed { address, length, key, invalidate } => {
                write!(f, "{length} B at {address:#x} key {key:#x}")?;
                if *invalidate { write!(f, " invalidate") } else { Ok(()) }
            }
            Sgl::Transport { length } => write!(f, "{length} B by transport"),
            Sgl::Other(bytes) => write!(f, "SGL type {:#04x}", bytes[15]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyed_descriptor_has_the_specified_layout() {
        let sgl = Sgl::Keyed {
            address: 0x1122_3344_5566_7788,
            length: 0xa0b0c0,
            key: 0xdead_beef,
            invalidate: true,
        };
        let bytes = sgl.to_bytes();
        assert_eq!(bytes[..8], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(bytes[8..11], [0xc0, 0xb0, 0xa0]);
        assert_eq!(bytes[11..15], [0xef, 0xbe, 0xad, 0xde]);
        assert_eq!((bytes[15], Sgl::parse(&bytes)), (0x4f, sgl));
    }

    #[test]
    fn each_kind_parses_to_itself() {
        let all = [
            Sgl::Address { address: 7, length: u32::MAX },
            Sgl::InCapsule { offset: 0, length: 4096 },
            Sgl::Keyed { address: 1, length: LONGEST_KEYED, key: 2, invalidate: false },
            Sgl::Transport { length: 512 },
            Sgl::Other([0xff; LENGTH]),
            Sgl::NONE,
        ];
        assert!(all.iter().all(|sgl| Sgl::parse(&sgl.to_bytes()) == *sgl));
        assert_eq!(all.map(|sgl| sgl.to_bytes()[15]), [0x00, 0x01, 0x40, 0x5a, 0xff, 0x40]);
    }

    #[test]
    fn reserved_bytes_are_ignored() {
        let sgl = Sgl::InCapsule { offset: 0, length: 1 };
        let mut bytes = sgl.to_bytes();
        bytes[12..15].copy_from_slice(&[1, 2, 3]);
        assert_eq!(Sgl::parse(&bytes), sgl);
    }
}
