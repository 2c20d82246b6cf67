//! XDR (RFC 4506): a reader that borrows from a message, and a writer.

/// Why bytes are no message of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct Malformed {
    /// Offset of the first wrong or missing byte.
    pub at: usize,
    /// The reason.
    pub what: &'static str,
}

/// Reads a message from its begin to its end. Each length is compared with what is left before it is used.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Number of bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns all bytes that are not read yet.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Returns an error at the current position.
    pub fn wrong(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    /// Reads `length` bytes and their padding to a multiple of 4.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn fixed(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let padded = length.checked_next_multiple_of(4).ok_or(self.wrong("length"))?;
        let bytes = self.rest().get(..padded).ok_or(self.wrong("end of the message"))?;
        self.at += padded;
        Ok(&bytes[..length])
    }

    /// Reads an unsigned integer of 32 bits.
    ///
    /// # Errors
    /// If fewer than 4 bytes are left.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.rest().first_chunk().ok_or(self.wrong("end of the message"))?;
        self.at += 4;
        Ok(u32::from_be_bytes(*bytes))
    }

    /// Reads an unsigned integer of 64 bits.
    ///
    /// # Errors
    /// If fewer than 8 bytes are left.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// If the value is neither 0 nor 1, or nothing is left.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        let at = self.at;
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed { at, what: "boolean that is neither 0 nor 1" }),
        }
    }

    /// Reads bytes of variable length, `most` at most.
    ///
    /// # Errors
    /// If the length is larger, or fewer bytes are left.
    pub fn opaque(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let at = self.at;
        let length = self.u32()? as usize;
        if length > most {
            return Err(Malformed { at, what: "length beyond the limit" });
        }
        self.fixed(length)
    }
}

/// Builds a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Begins an empty message.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Returns the message.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Number of bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if nothing is written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends an unsigned integer of 32 bits.
    pub fn u32(&mut self, value: u32) -> &mut Writer {
        self.bytes.extend(value.to_be_bytes());
        self
    }

    /// Appends an unsigned integer of 64 bits.
    pub fn u64(&mut self, value: u64) -> &mut Writer {
        self.bytes.extend(value.to_be_bytes());
        self
    }

    /// Appends a boolean.
    pub fn bool(&mut self, value: bool) -> &mut Writer {
        self.u32(value.into())
    }

    /// Appends bytes, and zeros up to a multiple of 4.
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Writer {
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len() + padding(bytes.len()), 0);
        self
    }

    /// Appends the length of bytes and the bytes.
    ///
    /// # Panics
    /// If there are 4 GiB or more.
    pub fn opaque(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u32(u32::try_from(bytes.len()).expect("less than 4 GiB")).fixed(bytes)
    }

    /// Replaces the integer at a byte offset, which must have been written.
    ///
    /// # Panics
    /// If nothing was written there.
    pub fn replace(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
}

/// Number of zeros behind so many bytes.
pub fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_written() {
        let mut writer = Writer::new();
        writer.u32(1).u64(2 << 40).bool(true).opaque(b"abcde").fixed(b"xy");
        let bytes = writer.finish();
        assert_eq!(bytes.len(), 4 + 8 + 4 + 4 + 8 + 4);
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u32(), reader.u64(), reader.bool()), (Ok(1), Ok(2 << 40), Ok(true)));
        assert_eq!((reader.opaque(5), reader.fixed(2)), (Ok(&b"abcde"[..]), Ok(&b"xy"[..])));
        assert!(reader.rest().is_empty());
    }

    #[test]
    fn lengths_beyond_the_end_are_errors() {
        let bytes = [0, 0, 0, 5, 1, 2, 3, 4];
        assert!(Reader::new(&bytes).opaque(5).is_err());
        assert_eq!(Reader::new(&bytes).opaque(4), Err(Malformed { at: 0, what: "length beyond the limit" }));
        assert!(Reader::new(&[255; 4]).opaque(usize::MAX).is_err());
        assert!(Reader::new(&[0; 3]).u32().is_err());
        assert!(Reader::new(&[0, 0, 0, 2]).bool().is_err());
        assert!(Reader::new(&[]).fixed(usize::MAX).is_err());
    }
}
