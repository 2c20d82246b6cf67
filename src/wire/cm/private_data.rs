//! What consumers tell each other in messages of communication management.

use std::fmt;
use std::ops::Deref;

use super::Kind;

/// Bytes that a consumer gives along. A message has a fixed room for them and does not say how many there are: what is shorter
/// arrives with zeros behind it.
#[derive(Clone, Copy)]
pub struct PrivateData {
    bytes: [u8; PrivateData::LARGEST],
    len: u8,
}

/// More private data than a message has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes of private data, but {what} has room for {room}")]
pub struct TooLong {
    /// How many were given.
    pub len: usize,
    /// How many there may be.
    pub room: usize,
    /// The message that the data was for.
    pub what: &'static str,
}

impl PrivateData {
    /// The largest room of any message (RTU and DREP).
    pub const LARGEST: usize = 224;
    /// None.
    pub const EMPTY: PrivateData = PrivateData { bytes: [0; PrivateData::LARGEST], len: 0 };

    /// For a message of this kind.
    ///
    /// # Errors
    /// If they are more than it has room for.
    pub fn new(kind: Kind, bytes: &[u8]) -> Result<PrivateData, TooLong> {
        let data = PrivateData::cut(bytes);
        if data.len() < bytes.len() {
            return Err(TooLong { len: bytes.len(), room: kind.private_data_len(), what: kind.name() });
        }
        data.check(kind)?;
        Ok(data)
    }

    /// The first bytes, as many as any message has room for.
    pub(super) fn cut(bytes: &[u8]) -> PrivateData {
        let len = bytes.len().min(PrivateData::LARGEST);
        let mut data = PrivateData::EMPTY;
        data.bytes[..len].copy_from_slice(&bytes[..len]);
        data.len = len as u8;
        data
    }

    /// That a message of this kind has room for them.
    ///
    /// # Errors
    /// If not.
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
    /// The number of bytes, and those before the zeros at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        write!(f, "{}:", self.len())?;
        self[..used].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
