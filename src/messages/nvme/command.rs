//! Submission queue entries, with which command capsules begin (NVMe base specification 4.2; NVMe over Fabrics 2.2.1).

use std::fmt;

use crate::nvme::bytes::{first, put, u16_at, u32_at, u64_at};
use crate::nvme::sgl::Sgl;

/// Bytes of a submission queue entry.
pub const LENGTH: usize = 64;

/// Opcodes of admin commands (NVMe base specification 5).
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const EVENT_REQUEST: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of I/O commands (NVMe base specification 6).
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
}

/// Opcode of fabrics commands, and their types (NVMe over Fabrics 3).
pub mod fabrics {
    /// Opcode.
    pub const OPCODE: u8 = 0x7f;
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
}

/// Feature identifiers (NVMe base specification 5.21.1).
pub mod feature {
    /// Volatile Write Cache.
    pub const WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const QUEUES: u8 = 0x07;
    /// Asynchronous Event Configuration.
    pub const EVENTS: u8 = 0x0b;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
}

/// Properties of a controller, by offset (NVMe over Fabrics 3.5).
pub mod property {
    /// Controller Capabilities, 8 bytes.
    pub const CAPABILITIES: u32 = 0x00;
    /// Version.
    pub const VERSION: u32 = 0x08;
    /// Controller Configuration.
    pub const CONFIGURATION: u32 = 0x14;
    /// Controller Status.
    pub const STATUS: u32 = 0x1c;
}

/// Namespace identifier that means all namespaces.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// Force Unit Access, in `dwords[2]` of Write.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;

/// A submission queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Opcode.
    pub opcode: u8,
    /// Fused operation in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// Command identifier; the response has the same.
    pub id: u16,
    /// Namespace identifier; in fabrics commands the type is its low byte.
    pub namespace: u32,
    /// Reserved bytes, and the metadata pointer.
    pub reserved: [u8; 16],
    /// Where the data is.
    pub sgl: Sgl,
    /// Command dwords 10 to 15.
    pub dwords: [u32; 6],
}

/// PSDT 01: an SGL describes the data.
const SGL_DATA: u8 = 0x40;

impl Command {
    /// Returns a command without data and with all other fields zero.
    pub const fn new(opcode: u8, namespace: u32) -> Command {
        Command {
            opcode,
            flags: SGL_DATA,
            id: 0,
            namespace,
            reserved: [0; 16],
            sgl: Sgl::NONE,
            dwords: [0; 6],
        }
    }

    /// Returns a Read, Write or Write Zeroes (`opcode`) of `count` blocks, 1 to 65,536, from `lba` on.
    pub fn blocks(opcode: u8, namespace: u32, lba: u64, count: u32) -> Command {
        let count = count.wrapping_sub(1) & 0xffff;
        Command {
            dwords: [lba as u32, (lba >> 32) as u32, count, 0, 0, 0],
            ..Command::new(opcode, namespace)
        }
    }

    /// Returns an Identify of the data structure `cns`.
    pub const fn identify(cns: u8, namespace: u32) -> Command {
        Command { dwords: [cns as u32, 0, 0, 0, 0, 0], ..Command::new(admin::IDENTIFY, namespace) }
    }

    /// Returns a Get Log Page of `length` bytes, a multiple of 4, from `offset` on.
    pub const fn log_page(page: u8, offset: u64, length: u32) -> Command {
        let count = (length / 4).wrapping_sub(1);
        let low = page as u32 | (count & 0xffff) << 16;
        let dwords = [low, count >> 16, offset as u32, (offset >> 32) as u32, 0, 0];
        Command { dwords, ..Command::new(admin::GET_LOG_PAGE, 0) }
    }

    /// Returns a Set Features.
    pub const fn set_feature(feature: u8, value: u32) -> Command {
        Command { dwords: [feature as u32, value, 0, 0, 0, 0], ..Command::new(admin::SET_FEATURES, 0) }
    }

    /// Returns an Abort of the command `id` of a queue; 0: the admin queue. Bit 0 of the result is 0 if the command was
    /// aborted: it ends with [`Status::ABORTED`](crate::nvme::Status::ABORTED) then (NVMe base specification 5.1).
    pub const fn abort(queue: u16, id: u16) -> Command {
        let dwords = [queue as u32 | (id as u32) << 16, 0, 0, 0, 0, 0];
        Command { dwords, ..Command::new(admin::ABORT, 0) }
    }

    /// Returns a Property Get of 4 or, if `wide`, 8 bytes.
    pub const fn property_get(offset: u32, wide: bool) -> Command {
        let dwords = [wide as u32, offset, 0, 0, 0, 0];
        Command { dwords, ..Command::new(fabrics::OPCODE, fabrics::PROPERTY_GET as u32) }
    }

    /// Returns a Property Set of 4 bytes.
    pub const fn property_set(offset: u32, value: u32) -> Command {
        let dwords = [0, offset, value, 0, 0, 0];
        Command { dwords, ..Command::new(fabrics::OPCODE, fabrics::PROPERTY_SET as u32) }
    }

    /// Parses the entry at the front of a capsule. `None`: the capsule is shorter than an entry.
    pub fn parse(capsule: &[u8]) -> Option<Command> {
        let bytes: &[u8; LENGTH] = first(capsule)?;
        let part = |at: usize| -> [u8; 16] { std::array::from_fn(|n| bytes[at + n]) };
        Some(Command {
            opcode: bytes[0],
            flags: bytes[1],
            id: u16_at(bytes, 2),
            namespace: u32_at(bytes, 4),
            reserved: part(8),
            sgl: Sgl::parse(&part(24)),
            dwords: std::array::from_fn(|n| u32_at(bytes, 40 + 4 * n)),
        })
    }

    /// Encodes the entry.
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        put(&mut bytes, 2, &self.id.to_le_bytes());
        put(&mut bytes, 4, &self.namespace.to_le_bytes());
        put(&mut bytes, 8, &self.reserved);
        put(&mut bytes, 24, &self.sgl.to_bytes());
        for (n, dword) in self.dwords.iter().enumerate() {
            put(&mut bytes, 40 + 4 * n, &dword.to_le_bytes());
        }
        bytes
    }

    /// The type of a fabrics command.
    pub const fn fabrics_type(&self) -> u8 {
        self.namespace as u8
    }

    /// True for a fabrics command.
    pub const fn is_fabrics(&self) -> bool {
        self.opcode == fabrics::OPCODE
    }

    /// True if an SGL describes the data, and the command is not part of a fused one.
    pub const fn has_supported_flags(&self) -> bool {
        matches!(self.flags, SGL_DATA)
    }

    /// First block of a Read, Write or Write Zeroes.
    pub fn lba(&self) -> u64 {
        u64_at(&self.to_bytes(), 40)
    }

    /// Number of blocks of a Read, Write or Write Zeroes: 1 to 65,536.
    pub const fn block_count(&self) -> u32 {
        (self.dwords[2] & 0xffff) + 1
    }

    /// True if a Write must be durable before its response.
    pub const fn forces_unit_access(&self) -> bool {
        self.dwords[2] & FORCE_UNIT_ACCESS != 0
    }

    /// Bytes of a Get Log Page, 4 to 2^34.
    pub const fn log_length(&self) -> u64 {
        let count = (self.dwords[0] >> 16) as u64 | ((self.dwords[1] & 0xffff) as u64) << 16;
        (count + 1) * 4
    }

    /// Offset in bytes of a Get Log Page.
    pub const fn log_offset(&self) -> u64 {
        self.dwords[2] as u64 | (self.dwords[3] as u64) << 32
    }

    /// Name of the command on the admin queue (`admin`) or on an I/O queue. `None`: unknown here.
    pub const fn name(&self, admin: bool) -> Option<&'static str> {
        Some(match (self.opcode, admin) {
            (fabrics::OPCODE, _) => match self.fabrics_type() {
                fabrics::PROPERTY_SET => "Property Set",
                fabrics::CONNECT => "Connect",
                fabrics::PROPERTY_GET => "Property Get",
                _ => return None,
            },
            (admin::GET_LOG_PAGE, true) => "Get Log Page",
            (admin::IDENTIFY, true) => "Identify",
            (admin::ABORT, true) => "Abort",
            (admin::SET_FEATURES, true) => "Set Features",
            (admin::GET_FEATURES, true) => "Get Features",
            (admin::EVENT_REQUEST, true) => "Asynchronous Event Request",
            (admin::KEEP_ALIVE, true) => "Keep Alive",
            (io::FLUSH, false) => "Flush",
            (io::WRITE, false) => "Write",
            (io::READ, false) => "Read",
            (io::WRITE_ZEROES, false) => "Write Zeroes",
            _ => return None,
        })
    }

    /// Returns name, namespace and blocks of the command, on the admin queue (`admin`) or on an I/O queue.
    pub fn title(&self, admin: bool) -> String {
        let mut title = match self.name(admin) {
            Some(name) => name.to_owned(),
            None => format!("opcode {:#04x}", self.opcode),
        };
        if !self.is_fabrics() && self.namespace != 0 {
            title += &format!(" ns {}", self.namespace);
        }
        if !admin && matches!(self.opcode, io::READ | io::WRITE | io::WRITE_ZEROES) {
            title += &format!(" lba {} blocks {}", self.lba(), self.block_count());
        }
        title
    }
}

/// One line in the manner of tcpdump. An opcode alone does not tell the kind of queue: the line names the I/O command.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} id {}, {}", self.title(false), self.id, self.sgl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_has_the_specified_layout() {
        let sgl = Sgl::Keyed { address: 0x7000, length: 8192, key: 0x1122_3344, invalidate: true };
        let command = Command { id: 0x0807, sgl, ..Command::blocks(io::READ, 1, 0x1_0000_1234, 16) };
        let bytes = command.to_bytes();
        assert_eq!(bytes[..8], [2, 0x40, 7, 8, 1, 0, 0, 0]);
        assert_eq!(bytes[24..40], sgl.to_bytes());
        assert_eq!(bytes[40..52], [0x34, 0x12, 0, 0, 1, 0, 0, 0, 15, 0, 0, 0]);
        assert_eq!((command.lba(), command.block_count()), (0x1_0000_1234, 16));
        assert_eq!(Command::parse(&bytes), Some(command));
        assert_eq!(Command::parse(&bytes[..63]), None);
    }

    #[test]
    fn log_page_lengths_use_both_halves() {
        let command = Command::log_page(0x70, 0x1_0000_0400, 0x0004_0000 * 4);
        assert_eq!(command.dwords, [0xffff_0070, 3, 0x400, 1, 0, 0]);
        assert_eq!((command.log_length(), command.log_offset()), (0x10_0000, 0x1_0000_0400));
    }

    #[test]
    fn fabrics_commands_have_the_specified_layout() {
        let get = Command::property_get(property::CAPABILITIES, true).to_bytes();
        assert_eq!((get[0], get[4], get[40], get[44]), (0x7f, 4, 1, 0));
        let set = Command::property_set(property::CONFIGURATION, 0x0046_0001).to_bytes();
        assert_eq!((set[0], set[4], set[40], set[44]), (0x7f, 0, 0, 0x14));
        assert_eq!(set[48..56], [1, 0, 0x46, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn abort_names_queue_and_command() {
        let bytes = Command::abort(0x0102, 0x0304).to_bytes();
        assert_eq!((bytes[0], &bytes[40..44]), (0x08, &[2, 1, 4, 3][..]));
    }

    #[test]
    fn lines_name_command_and_data() {
        let command = Command { id: 7, ..Command::blocks(io::WRITE_ZEROES, 2, 8, 65_536) };
        assert_eq!(command.to_string(), "Write Zeroes ns 2 lba 8 blocks 65536 id 7, no data");
        let write =
            Command { sgl: Sgl::InCapsule { offset: 0, length: 512 }, ..Command::blocks(io::WRITE, 1, 0, 1) };
        assert_eq!(write.to_string(), "Write ns 1 lba 0 blocks 1 id 0, 512 B in capsule at 0");
        assert_eq!(Command::new(0x55, 3).to_string(), "opcode 0x55 ns 3 id 0, no data");
        assert_eq!(Command::property_get(0, true).to_string(), "Property Get id 0, no data");
        assert_eq!(Command::identify(0, 5).title(true), "Identify ns 5");
    }
}
