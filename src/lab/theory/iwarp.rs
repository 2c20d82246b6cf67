//! iWARP: RDMA messages over TCP. RDMAP (RFC 5040) has the operation, DDP (RFC 5041) the placement, MPA (RFC 5044) the
//! framing within the stream.

use super::crc::crc32c;

/// Bytes of DDP and RDMAP headers before a tagged segment (WRITE, READ response).
pub const TAGGED: usize = 14;
/// Bytes of DDP and RDMAP headers before an untagged segment (SEND, READ request).
pub const UNTAGGED: usize = 18;
/// Bytes of MPA's length field.
pub const MPA_LENGTH: usize = 2;
/// Bytes of MPA's CRC.
pub const MPA_CRC: usize = 4;

/// RDMAP operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// RDMA WRITE: into memory named by the sender (opcode 0).
    Write {
        /// Steering tag, the equivalent of an rkey.
        stag: u32,
        /// Tagged offset of the first byte.
        offset: u64,
    },
    /// SEND: into the receiver's next buffer (opcode 3).
    Send {
        /// Message sequence number on its queue, from 1.
        number: u32,
    },
}

/// Returns the maximum payload of a TCP segment of `mss` bytes: without markers, with a CRC (RFC 5044 4.3).
pub fn payload_of(message: &Message, mss: usize) -> usize {
    let ulpdu = (mss - MPA_CRC) / 4 * 4 - MPA_LENGTH;
    ulpdu - header_len(message)
}

/// Returns the bytes of DDP and RDMAP headers before each segment of a message.
pub fn header_len(message: &Message) -> usize {
    match message {
        Message::Write { .. } => TAGGED,
        Message::Send { .. } => UNTAGGED,
    }
}

/// Splits a message into framed PDUs, one per TCP segment of at most `mss` bytes.
pub fn fpdus(message: &Message, payload: &[u8], mss: usize) -> Vec<Vec<u8>> {
    let most = payload_of(message, mss);
    let count = payload.len().div_ceil(most).max(1);
    (0..count)
        .map(|n| {
            let at = n * most;
            let part = &payload[at..(at + most).min(payload.len())];
            fpdu(message, at as u64, part, n + 1 == count)
        })
        .collect()
}

fn fpdu(message: &Message, at: u64, part: &[u8], last: bool) -> Vec<u8> {
    /// Versions of DDP and of RDMAP.
    const VERSIONS: [u8; 2] = [1, 0x40];
    let control = u8::from(last) << 6 | VERSIONS[0];
    let mut ulpdu = Vec::with_capacity(UNTAGGED + part.len());
    match message {
        Message::Write { stag, offset } => {
            ulpdu.extend([0x80 | control, VERSIONS[1]]);
            ulpdu.extend(stag.to_be_bytes());
            ulpdu.extend((offset + at).to_be_bytes());
        }
        Message::Send { number } => {
            ulpdu.extend([control, VERSIONS[1] | 3]);
            // Invalidated tag: none. Queue number: 0.
            ulpdu.extend([0; 8]);
            ulpdu.extend(number.to_be_bytes());
            ulpdu.extend((at as u32).to_be_bytes());
        }
    }
    ulpdu.extend(part);
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend(ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend(crc32c(&bytes.clone()).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_fill_tcp_segments_and_end_in_crc() {
        let payload: Vec<u8> = (0..4000).map(|i| i as u8).collect();
        for message in [Message::Write { stag: 0x1122_3344, offset: 0x7000 }, Message::Send { number: 1 }] {
            let all = fpdus(&message, &payload, 1448);
            assert_eq!(all.len(), 3);
            let mut back: Vec<u8> = Vec::new();
            for (n, bytes) in all.iter().enumerate() {
                assert!(bytes.len() <= 1448 && bytes.len().is_multiple_of(4), "{}", bytes.len());
                let (body, crc) = bytes.split_at(bytes.len() - 4);
                assert_eq!(crc, crc32c(body).to_le_bytes());
                let ulpdu = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
                back.extend(&bytes[2 + header_len(&message)..2 + ulpdu]);
                assert_eq!(bytes[2] & 0x40 != 0, n == 2, "only the last has the Last flag");
            }
            assert_eq!(back, payload);
        }
    }

    #[test]
    fn headers_have_the_layout_of_the_rfcs() {
        let write = &fpdus(&Message::Write { stag: 0x1122_3344, offset: 0x7000 }, b"abc", 1448)[0];
        assert_eq!(write[..8], [0, 17, 0xc1, 0x40, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(write[8..19], *b"\0\0\0\0\0\0\x70\0abc");
        let send = &fpdus(&Message::Send { number: 5 }, b"abc", 1448)[0];
        assert_eq!(send[..4], [0, 21, 0x41, 0x43]);
        assert_eq!(send[12..23], *b"\0\0\0\x05\0\0\0\0abc");
        // Length field, ULPDU and pad are a multiple of four.
        assert_eq!((write.len(), send.len()), (20 + 4, 24 + 4));
    }
}
