//! Reads bytes as decisions. Exhausted input reads as zeros, so every input is valid.

/// A cursor over fuzzed bytes.
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    pub fn flag(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// Returns one of the given values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.u8()) % from.len()]
    }

    /// Returns up to `most` bytes; the next byte times 16 is the number.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let count = (usize::from(self.u8()) * 16).min(most).min(self.bytes.len());
        let (taken, rest) = self.bytes.split_at(count);
        self.bytes = rest;
        taken
    }

    /// Returns a number that is often a corner case: near zero, near `near`, or at the ends of the range.
    pub fn number(&mut self, near: u64) -> u64 {
        match self.u8() % 8 {
            0 => 0,
            1 => near,
            2 => near.wrapping_add(u64::from(self.u8())),
            3 => near.wrapping_sub(u64::from(self.u8())),
            4 => u64::MAX - u64::from(self.u8()),
            5 => u64::from(self.u16()),
            6 => u64::from(self.u32()),
            _ => self.u64(),
        }
    }
}
