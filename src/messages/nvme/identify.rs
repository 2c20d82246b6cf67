//! Data structures of Identify (NVMe base specification 5.15.2; NVMe over Fabrics 4.1).

use crate::nvme::bytes::{first, put, put_text, text_at, u16_at, u32_at, u64_at};

/// Bytes of each data structure.
pub const LENGTH: usize = 4096;

/// Values of CNS: which data structure.
pub mod cns {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// The active namespaces with higher identifiers than the command's.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// The identifiers of a namespace.
    pub const DESCRIPTORS: u8 = 0x03;
}

/// SGLs: data in any alignment, keyed descriptors, data at an offset in the capsule.
const SGLS: u32 = 1 | 1 << 2 | 1 << 20;
/// OAES: a namespace has changed.
pub const NAMESPACE_EVENTS: u32 = 1 << 8;
/// CTRATT: host identifiers of 128 bits, and each command keeps the association alive.
const ATTRIBUTES: u32 = 1 | 1 << 6;
/// ONCS: Write Zeroes.
const WRITE_ZEROES: u16 = 1 << 3;
/// VWC: a write cache, and Flush of all namespaces.
const WRITE_CACHE: u8 = 0b111;
/// KAS: granularity of the keep-alive timer, in units of 100 ms.
const KEEP_ALIVE: u16 = 1;
/// CNTRLTYPE.
const IO_CONTROLLER: u8 = 1;
const DISCOVERY_CONTROLLER: u8 = 2;

/// The controller, as far as it is used over RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Serial number, at most 20 characters.
    pub serial: String,
    /// Model number, at most 40 characters.
    pub model: String,
    /// Firmware revision, at most 8 characters.
    pub firmware: String,
    /// Longest transfer in bytes: 4096 times a power of two. `None`: unlimited.
    pub longest_transfer: Option<u64>,
    /// Controller identifier.
    pub id: u16,
    /// Version: major in bits 31:16, minor in 15:8.
    pub version: u32,
    /// The controller is of a discovery subsystem.
    pub is_discovery: bool,
    /// Asynchronous Event Requests that the controller holds, minus 1.
    pub event_requests: u8,
    /// Asynchronous events that the controller sends (OAES).
    pub events: u32,
    /// Most commands outstanding on an I/O queue.
    pub commands: u16,
    /// Highest namespace identifier.
    pub namespaces: u32,
    /// The volatile write cache is present.
    pub has_write_cache: bool,
    /// Supported SGLs; bit 2: keyed, bit 20: data in the capsule.
    pub sgls: u32,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Bytes of an I/O command capsule with its data.
    pub capsule: u32,
}

impl Controller {
    /// Bits of SGLS that this crate's controller has.
    pub const SGLS: u32 = SGLS;

    /// Encodes the data structure.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        put_text(&mut bytes, (4, 20), &self.serial, b' ');
        put_text(&mut bytes, (24, 40), &self.model, b' ');
        put_text(&mut bytes, (64, 8), &self.firmware, b' ');
        // CMIC: the subsystem may have several controllers.
        bytes[76] = 1 << 1;
        // A power of two, in units of the smallest memory page.
        bytes[77] = self.longest_transfer.map_or(0, |bytes| (bytes / 4096).max(2).ilog2() as u8);
        put(&mut bytes, 78, &self.id.to_le_bytes());
        put(&mut bytes, 80, &self.version.to_le_bytes());
        put(&mut bytes, 92, &self.events.to_le_bytes());
        put(&mut bytes, 96, &ATTRIBUTES.to_le_bytes());
        bytes[111] = if self.is_discovery { DISCOVERY_CONTROLLER } else { IO_CONTROLLER };
        // Abort commands at a time, minus 1.
        bytes[258] = 3;
        bytes[259] = self.event_requests;
        // The firmware slot 1 is read-only.
        bytes[260] = 0b11;
        // Extended data of Get Log Page: offsets, and lengths beyond 16 bits.
        bytes[261] = 1 << 2;
        put(&mut bytes, 320, &KEEP_ALIVE.to_le_bytes());
        // Entries of 2^6 and 2^4 bytes.
        (bytes[512], bytes[513]) = (0x66, 0x44);
        put(&mut bytes, 514, &self.commands.to_le_bytes());
        put(&mut bytes, 516, &self.namespaces.to_le_bytes());
        if !self.is_discovery {
            put(&mut bytes, 520, &WRITE_ZEROES.to_le_bytes());
        }
        bytes[525] = if self.has_write_cache { WRITE_CACHE } else { 0 };
        put(&mut bytes, 536, &self.sgls.to_le_bytes());
        put_text(&mut bytes, (768, 256), &self.subsystem, 0);
        // Capsules in units of 16 bytes; data begins right behind the command.
        put(&mut bytes, 1792, &(self.capsule / 16).to_le_bytes());
        put(&mut bytes, 1796, &1u32.to_le_bytes());
        // One SGL descriptor a command.
        bytes[1803] = 1;
        bytes
    }

    /// Parses the data structure. `None`: it is too short.
    pub fn parse(bytes: &[u8]) -> Option<Controller> {
        let bytes: &[u8; LENGTH] = first(bytes)?;
        Some(Controller {
            serial: text_at(bytes, 4, 20),
            model: text_at(bytes, 24, 40),
            firmware: text_at(bytes, 64, 8),
            longest_transfer: (bytes[77] != 0).then(|| 4096 << bytes[77].min(32)),
            id: u16_at(bytes, 78),
            version: u32_at(bytes, 80),
            is_discovery: bytes[111] == DISCOVERY_CONTROLLER,
            event_requests: bytes[259],
            events: u32_at(bytes, 92),
            commands: u16_at(bytes, 514),
            namespaces: u32_at(bytes, 516),
            has_write_cache: bytes[525] & 1 != 0,
            sgls: u32_at(bytes, 536),
            subsystem: text_at(bytes, 768, 256),
            capsule: u32_at(bytes, 1792).saturating_mul(16),
        })
    }
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Size in blocks; 0: not active.
    pub blocks: u64,
    /// Bytes of a block as a power of two.
    pub block_shift: u8,
    /// Writes are refused.
    pub is_read_only: bool,
    /// Globally unique identifier.
    pub guid: [u8; 16],
}

impl Namespace {
    /// Encodes the data structure, with one LBA format.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        for at in [0, 8, 16] {
            put(&mut bytes, at, &self.blocks.to_le_bytes());
        }
        // Controllers share the namespace.
        bytes[30] = 1;
        bytes[99] = self.is_read_only.into();
        put(&mut bytes, 104, &self.guid);
        bytes[130] = self.block_shift;
        bytes
    }

    /// Parses the data structure. `None`: too short, or a block is not of 2^9 to 2^16 bytes.
    pub fn parse(bytes: &[u8]) -> Option<Namespace> {
        let bytes: &[u8; LENGTH] = first(bytes)?;
        let format = usize::from(bytes[26] & 0xf);
        let namespace = Namespace {
            blocks: u64_at(bytes, 0),
            block_shift: bytes[130 + 4 * format],
            is_read_only: bytes[99] & 1 != 0,
            guid: std::array::from_fn(|n| bytes[104 + n]),
        };
        let is_active = namespace.blocks != 0;
        (!is_active || (9..=16).contains(&namespace.block_shift)).then_some(namespace)
    }

    /// Encodes the identifiers of the namespace: the GUID.
    pub fn descriptors(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        // Type 2: a GUID, of 16 bytes.
        (bytes[0], bytes[1]) = (2, 16);
        put(&mut bytes, 4, &self.guid);
        bytes
    }
}

/// Encodes a list of namespace identifiers, 1,024 at most.
pub fn namespace_list(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut bytes: Vec<u8> = ids.into_iter().take(LENGTH / 4).flat_map(u32::to_le_bytes).collect();
    bytes.resize(LENGTH, 0);
    bytes
}

/// Parses a list of namespace identifiers, which ends with its first 0.
pub fn parse_namespace_list(bytes: &[u8]) -> Vec<u32> {
    let ids = bytes.chunks_exact(4).map(|bytes| u32_at(bytes, 0));
    ids.take(LENGTH / 4).take_while(|id| *id != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller() -> Controller {
        Controller {
            serial: "0123456789abcdef".into(),
            model: "Roxie".into(),
            firmware: "0.1.0".into(),
            longest_transfer: Some(128 << 10),
            id: 0x0102,
            version: 0x0001_0400,
            is_discovery: false,
            event_requests: 3,
            events: NAMESPACE_EVENTS,
            commands: 128,
            namespaces: 5,
            has_write_cache: true,
            sgls: SGLS,
            subsystem: "nqn.2026-11.example:disk".into(),
            capsule: 64 + 4096,
        }
    }

    #[test]
    fn controller_has_the_specified_layout() {
        let bytes = controller().to_bytes();
        assert_eq!(&bytes[4..24], b"0123456789abcdef    ");
        assert_eq!((bytes[77], &bytes[78..80], &bytes[80..84]), (5, &[2, 1][..], &[0, 4, 1, 0][..]));
        assert_eq!((&bytes[92..96], bytes[96], bytes[111]), (&[0, 1, 0, 0][..], 0x41, 1));
        assert_eq!((bytes[259], bytes[320], bytes[512], bytes[513]), (3, 1, 0x66, 0x44));
        assert_eq!((bytes[514], bytes[516], bytes[520], bytes[525]), (128, 5, 8, 7));
        assert_eq!(&bytes[536..540], [5, 0, 0x10, 0]);
        assert!(bytes[768..].starts_with(b"nqn.2026-11.example:disk\0"));
        assert_eq!((&bytes[1792..1796], bytes[1796], bytes[1800]), (&[4, 1, 0, 0][..], 1, 0));
        assert_eq!(Controller::parse(&bytes), Some(controller()));
    }

    #[test]
    fn namespace_has_the_specified_layout() {
        let namespace = Namespace { blocks: 0x0123_4567, block_shift: 12, is_read_only: true, guid: [7; 16] };
        let bytes = namespace.to_bytes();
        for at in [0, 8, 16] {
            assert_eq!(bytes[at..at + 8], [0x67, 0x45, 0x23, 1, 0, 0, 0, 0]);
        }
        assert_eq!((bytes[25], bytes[26], bytes[99], bytes[130]), (0, 0, 1, 12));
        assert_eq!(bytes[104..120], [7; 16]);
        assert_eq!(namespace.descriptors()[..20], [vec![2, 16, 0, 0], vec![7; 16]].concat());
        assert_eq!(Namespace::parse(&bytes), Some(namespace));
    }

    #[test]
    fn implausible_block_sizes_are_refused() {
        let namespace = Namespace { blocks: 1, block_shift: 9, is_read_only: false, guid: [0; 16] };
        for shift in [0, 8, 17, 255] {
            assert_eq!(
                Namespace::parse(&Namespace { block_shift: shift, ..namespace.clone() }.to_bytes()),
                None
            );
        }
        assert!(Namespace::parse(&vec![0; LENGTH]).is_some_and(|namespace| namespace.blocks == 0));
    }

    #[test]
    fn namespace_lists_end_at_zero() {
        assert_eq!(parse_namespace_list(&namespace_list([1, 2, 9])), [1, 2, 9]);
        assert_eq!(parse_namespace_list(&namespace_list(1..=2000)).len(), 1024);
    }
}
