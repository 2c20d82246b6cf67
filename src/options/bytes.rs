//! Numbers of bytes as options.

/// Parses bytes with a suffix: 512M, 4G.
///
/// # Errors
///
/// If the text is not a number of bytes, or the number is beyond 2^64.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, factor) = match text.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        Some((at, 'T' | 't')) => (&text[..at], 1 << 40),
        _ => (text, 1),
    };
    let number: u64 =
        number.parse().map_err(|_| "a number of bytes, or of K, M, G or T: 512M, 4G".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| format!("{text} is beyond 2^64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!((bytes("512M"), bytes("4G"), bytes("1k")), (Ok(512 << 20), Ok(4 << 30), Ok(1024)));
        assert_eq!(bytes("2T"), Ok(2 << 40));
        assert!(bytes("4GB").unwrap_err().contains("512M") && bytes("99999999999999G").is_err());
    }
}
