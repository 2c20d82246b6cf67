//! Checksums of protocols other than RoCE. Computed bit by bit, which is fast enough for single frames.

/// Returns the CRC-32C (Castagnoli) of MPA and NVMe/TCP digests (RFC 3720 12.1). Stored little-endian.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !reflected(bytes, !0, 0x82f6_3b78)
}

/// Returns InfiniBand's variant CRC over everything from the LRH to the ICRC (IBTA 7.8.2). Stored little-endian.
pub fn vcrc(bytes: &[u8]) -> u16 {
    // The polynomial 0x100b, bit-reversed.
    !(reflected(bytes, 0xffff, 0xd008) as u16)
}

fn reflected(bytes: &[u8], start: u32, polynomial: u32) -> u32 {
    bytes.iter().fold(start, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ polynomial } else { crc >> 1 },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crcs_match_published_values() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720 B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
