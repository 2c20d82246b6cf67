//! Private data: bytes that the consumers exchange in messages of communication management.

use core::fmt;
use core::ops::Deref;

use super::Kind;

/// Private data of a consumer. Its field has a fixed size in each message, and no length is sent: shorter
/// data arrives padded with zeros.
#[derive(Clone, Copy)]
pub struct PrivateData {
    bytes: [u8; PrivateData::LARGEST],
    len: u8,
}

/// Private data exceeds the size of the message's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// Length of the data in bytes.
    pub len: usize,
    /// Size of the field in bytes.
    pub room: usize,
    /// Name of the message.
    pub what: &'static str,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of private data, but {} has room for {}", self.len, self.what, self.room)
    }
}

impl core::error::Error for TooLong {}

impl PrivateData {
    /// The largest field of any message in bytes (RTU and DREP).
    pub const LARGEST: usize = 224;
    /// No private data.
    pub const EMPTY: PrivateData = PrivateData { bytes: [0; PrivateData::LARGEST], len: 0 };

    /// Returns private data for a message of this kind.
    ///
    /// # Errors
    /// If `bytes` exceed the message's field.
    pub fn new(kind: Kind, bytes: &[u8]) -> Result<PrivateData, TooLong> {
        let data = PrivateData::cut(bytes);
        if data.len() < bytes.len() {
            return Err(TooLong { len: bytes.len(), room: kind.private_data_len(), what: kind.name() });
        }
        data.check(kind)?;
        Ok(data)
    }

    /// Returns the first bytes, truncated to the largest field of any message.
    pub(super) fn cut(bytes: &[u8]) -> PrivateData {
        let len = bytes.len().min(PrivateData::LARGEST);
        let mut data = PrivateData::EMPTY;
        data.bytes[..len].copy_from_slice(&bytes[..len]);
        data.len = len as u8;
        data
    }

    /// Checks that the data fits a message of this kind.
    ///
    /// # Errors
    /// If the data exceeds the message's field.
    pub fn check(&self, kind: Kind) -> Result<(), TooLong> {
        let room = kind.private_data_len();
        if self.len() > room {
            return Err(TooLong { len: self.len(), room, what: kind.name() });
        }
        Ok(())
    }
}

impl Default for PrivateData {
    fn default() -> PrivateData {
        PrivateData::EMPTY
    }
}

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl PartialEq for PrivateData {
    fn eq(&self, other: &PrivateData) -> bool {
        **self == **other
    }
}

impl Eq for PrivateData {}

impl fmt::Debug for PrivateData {
    /// Prints the length, and the bytes up to the last nonzero one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        write!(f, "{}:", self.len())?;
        self[..used].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
