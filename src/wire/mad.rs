//! Management datagrams, the payload of a SEND to QP1 (IBTA 13.4).

/// Length of a management datagram in bytes (IBTA 13.4.2).
pub const MAD_LEN: usize = 256;
/// Length of the header common to all classes, in bytes.
pub const MAD_HEADER_LEN: usize = 24;
/// The queue key of QP1 (IBTA 10.2.4).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// Q_Keys with this bit are for privileged consumers (IBTA 10.2.5). That of QP1 has it.
pub const PRIVILEGED_QKEY: u32 = 1 << 31;
/// Management class of communication management (IBTA 13.4.4, table 121).
pub const CLASS_CM: u8 = 0x07;
/// Class version of communication management (IBTA 12.6).
pub const CLASS_CM_VERSION: u8 = 2;
/// Method Send, of messages that need no response at the datagram level (IBTA 13.4.5).
pub const METHOD_SEND: u8 = 0x03;

/// The header of a management datagram (IBTA 13.4.3).
///
/// ```text
///  0               8               16              24
/// +---------------+---------------+---------------+---------------+
/// | base version 1|     class     | class version |    method     |
/// +---------------+---------------+---------------+---------------+
/// |            status             |        class specific         |
/// +-------------------------------+-------------------------------+
/// |                        transaction ID                         |
/// |                                                               |
/// +-------------------------------+-------------------------------+
/// |         attribute ID          |           reserved            |
/// +-------------------------------+-------------------------------+
/// |                      attribute modifier                       |
/// +---------------------------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadHeader {
    /// Management class.
    pub class: u8,
    /// Class version.
    pub class_version: u8,
    /// Method; the highest bit marks a response.
    pub method: u8,
    /// Status, in responses.
    pub status: u16,
    /// Class-specific field.
    pub class_specific: u16,
    /// Transaction ID: a response repeats the ID of its request.
    pub tid: u64,
    /// Attribute ID.
    pub attribute: u16,
    /// Attribute modifier.
    pub modifier: u32,
}

impl MadHeader {
    /// The only base version that exists.
    pub const BASE_VERSION: u8 = 1;

    /// Decodes the header at the beginning of `bytes`. `None` if the slice is too short or has another base
    /// version.
    pub fn read(bytes: &[u8]) -> Option<MadHeader> {
        let [
            MadHeader::BASE_VERSION,
            class,
            class_version,
            method,
            s0,
            s1,
            c0,
            c1,
            tid @ ..,
            a0,
            a1,
            _,
            _,
            m0,
            m1,
            m2,
            m3,
        ] = *bytes.first_chunk::<MAD_HEADER_LEN>()?
        else {
            return None;
        };
        Some(MadHeader {
            class,
            class_version,
            method,
            status: u16::from_be_bytes([s0, s1]),
            class_specific: u16::from_be_bytes([c0, c1]),
            tid: u64::from_be_bytes(tid),
            attribute: u16::from_be_bytes([a0, a1]),
            modifier: u32::from_be_bytes([m0, m1, m2, m3]),
        })
    }

    /// Encodes the header.
    pub fn to_bytes(&self) -> [u8; MAD_HEADER_LEN] {
        let mut bytes = [0; MAD_HEADER_LEN];
        bytes[..4].copy_from_slice(&[MadHeader::BASE_VERSION, self.class, self.class_version, self.method]);
        bytes[4..6].copy_from_slice(&self.status.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.tid.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.attribute.to_be_bytes());
        bytes[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        bytes
    }
}
