//! Little-endian fields of fixed-size arrays. Offsets are constants of the caller, so a wrong one fails in the first
//! test.

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Copies `field` to `at`.
pub(crate) fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// Copies text to `at`, padded to `length` bytes with `pad`. Longer text is cut.
pub(crate) fn put_text(bytes: &mut [u8], (at, length): (usize, usize), text: &str, pad: u8) {
    let field = &mut bytes[at..at + length];
    field.fill(pad);
    let kept = text.len().min(length);
    field[..kept].copy_from_slice(&text.as_bytes()[..kept]);
}

/// Returns the text of a field without the zeros or spaces behind it. Bytes that are not UTF-8 become U+FFFD.
pub(crate) fn text_at(bytes: &[u8], at: usize, length: usize) -> String {
    let field = &bytes[at..at + length];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(length);
    String::from_utf8_lossy(&field[..end]).trim_end_matches(' ').to_owned()
}

/// Returns the first `N` bytes, or `None` if there are fewer.
pub(crate) fn first<const N: usize>(bytes: &[u8]) -> Option<&[u8; N]> {
    bytes.first_chunk()
}
