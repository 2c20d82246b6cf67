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

    /// Last bytes of the private data of a REQ or REP: the sender has selective repeat. Consumers do not see them: the
    /// manager of the other end takes them out. To others they are part of the padding.
    const SELECTIVE_REPEAT: [u8; 4] = *b"RxSR";

    /// Returns the data with the offer of selective repeat at the end of the field. `None`: the data needs the room.
    pub fn offering_selective_repeat(&self, kind: Kind) -> Option<PrivateData> {
        let end = kind.private_data_len();
        let start = end.checked_sub(PrivateData::SELECTIVE_REPEAT.len())?;
        if self.iter().skip(start).any(|byte| *byte != 0) {
            return None;
        }
        let mut data = *self;
        data.bytes[start..end].copy_from_slice(&PrivateData::SELECTIVE_REPEAT);
        data.len = end as u8;
        Some(data)
    }

    /// Takes out the offer of selective repeat. Returns false if there is none.
    pub fn take_selective_repeat(&mut self) -> bool {
        let end = usize::from(self.len);
        let Some(start) = end.checked_sub(PrivateData::SELECTIVE_REPEAT.len()) else { return false };
        let offers = self.bytes[start..end] == PrivateData::SELECTIVE_REPEAT;
        if offers {
            self.bytes[start..end].fill(0);
        }
        offers
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offer_of_selective_repeat_uses_free_bytes_only() {
        let short = PrivateData::new(Kind::Req, b"hello").expect("short");
        let mut offer = short.offering_selective_repeat(Kind::Req).expect("room");
        assert_eq!(offer.len(), Kind::Req.private_data_len());
        assert!(offer.take_selective_repeat() && !offer.take_selective_repeat());
        assert_eq!((&offer[..5], offer[5..].iter().all(|byte| *byte == 0)), (&b"hello"[..], true));
        let full = PrivateData::new(Kind::Rep, &[1; 196]).expect("as long as the field");
        assert_eq!(full.offering_selective_repeat(Kind::Rep), None);
    }
}
