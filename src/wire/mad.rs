//! Management datagrams: what a SEND to QP1 carries (IBTA 13.4).

/// Bytes of a management datagram (IBTA 13.4.2).
pub const MAD_LEN: usize = 256;
/// Bytes of the header that all classes share.
pub const MAD_HEADER_LEN: usize = 24;
/// The queue key of QP1 (IBTA 10.2.4).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// The management class of communication management (IBTA 13.4.4, table 121).
pub const CLASS_CM: u8 = 0x07;
/// The version of that class (IBTA 12.6).
pub const CLASS_CM_VERSION: u8 = 2;
/// The method of every message that expects no answer by itself (IBTA 13.4.5).
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
    /// Whose message it is.
    pub class: u8,
    /// The version of that class.
    pub class_version: u8,
    /// What is to be done; the highest bit marks an answer.
    pub method: u8,
    /// How it went, in answers.
    pub status: u16,
    /// As the class says.
    pub class_specific: u16,
    /// Which messages belong together.
    pub tid: u64,
    /// What it is about.
    pub attribute: u16,
    /// A detail of that.
    pub modifier: u32,
}

impl MadHeader {
    /// Base version of all management datagrams there are.
    pub const BASE_VERSION: u8 = 1;

    /// Reads the header at the beginning of `bytes`. `None`: they are too few, or of another base version.
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

    /// The bytes.
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
