//! Requests byte by byte, and responses that no conforming server sends.

use super::*;

const FILE: FileId = [7; 16];
const BUFFER: Buffer = Buffer { offset: 0x1122_3344_5566_7788, token: 0x99aa_bbcc, length: 0x10_0000 };

/// The buffer's descriptor: offset, token, length.
const DESCRIPTOR: [u8; 16] =
    [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xcc, 0xbb, 0xaa, 0x99, 0, 0, 0x10, 0];

#[test]
fn header_has_each_field_in_place() {
    let header = Header { message_id: 3, tree: 4, session: 5, ..Header::request(WRITE, 0x10_0001) };
    let message = header.with(&[1, 2]);
    let first = [0xfe, b'S', b'M', b'B', 64, 0, 17, 0, 0, 0, 0, 0, 9, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let last = [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(message, [&first[..], &last, &[0; 16], &[1, 2]].concat());
    assert_eq!(Header::parse(&message), Ok(header));
    // A request costs a credit for each 64 KiB begun.
    let charges = [0, 1, 65_536, 65_537].map(|length| Header::request(READ, length).charge);
    assert_eq!(charges, [1, 1, 1, 2]);
}

#[test]
fn negotiation_names_two_dialects_and_one_context() {
    let body = negotiate(&[0xaa; 16], &[0xbb; 32]);
    let fixed = [36, 0, 2, 0, 1, 0, 0, 0, 4, 0, 0, 0];
    let contexts = [104, 0, 0, 0, 1, 0, 0, 0, 2, 3, 0x11, 3];
    // The context's type and length, and one algorithm, SHA-512, with a salt of 32 bytes.
    let context = [1, 0, 38, 0, 0, 0, 0, 0, 1, 0, 32, 0, 1, 0];
    assert_eq!(body, [&fixed[..], &[0xaa; 16], &contexts, &context, &[0xbb; 32]].concat());
    assert_eq!(HEADER + fixed.len() + 16 + contexts.len(), 104);
}

#[test]
fn transfers_name_buffer_or_data() {
    let by_rdma = write(FILE, 0x0102, Place::Rdma(RDMA_INVALIDATE, BUFFER));
    let fixed = [49, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
    let channel = [2, 0, 0, 0, 0, 0, 0x10, 0, 112, 0, 16, 0, 0, 0, 0, 0];
    assert_eq!(by_rdma, [&fixed[..], &FILE, &channel, &DESCRIPTOR].concat());
    let in_message = write(FILE, 0, Place::Message(&[1, 2, 3]));
    let fixed = [49, 0, 112, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(in_message, [&fixed[..], &FILE, &[0; 16], &[1, 2, 3]].concat());
    let by_rdma = read(FILE, 0, 0x10_0000, Some((RDMA_INVALIDATE, BUFFER)));
    let fixed = [49, 0, 80, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let channel = [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 112, 0, 16, 0];
    assert_eq!(by_rdma, [&fixed[..], &FILE, &channel, &DESCRIPTOR].concat());
    assert_eq!(Buffer::parse(&Header::default().with(&by_rdma), 112), Ok(BUFFER));
    // Without a buffer there is one byte behind 48.
    assert_eq!(read(FILE, 0, 1, None).len(), 49);
}

#[test]
fn tokens_of_a_guest_have_no_responses() {
    let token = ntlm_authenticate("ab");
    let empty = [0, 0, 0, 0, 64, 0, 0, 0];
    let user = [4, 0, 4, 0, 64, 0, 0, 0];
    let begin = [&b"NTLMSSP\0"[..], &[3, 0, 0, 0]].concat();
    let flags = [5, 2, 0, 0];
    let expected = [&begin[..], &empty, &empty, &empty, &user, &empty, &empty, &flags, b"a\0b\0"].concat();
    assert_eq!(token, expected);
    assert_eq!(ntlm_negotiate().len(), 32);
}

#[test]
fn wrong_responses_are_refused() {
    let good = Header::default().with(&[]);
    let mut other = good.clone();
    other[0] = 0xff;
    assert_eq!(Header::parse(&other), Err(Refused::Field { field: "ProtocolId", value: 0x424d_53ff }));
    let mut compound = good.clone();
    compound[20] = 8;
    assert_eq!(Header::parse(&compound), Err(Refused::Field { field: "NextCommand", value: 8 }));
    let limits = Negotiated { dialect: 0x0210, max_read: 1, max_write: 1, requires_signing: false };
    let old = Header::default().with(&limits.to_body());
    assert_eq!(Negotiated::parse(&old), Err(Refused::Field { field: "DialectRevision", value: 0x0210 }));
    let mut data = Out::default();
    data.u16(17).u16(80).u32(3).u32(0).u32(0).raw(&[1, 2, 3]);
    let data = Header::default().with(&data.0);
    assert_eq!(read_data(&data), Ok((&[1, 2, 3][..], 0)));
    let with = |at: usize, byte: u8| {
        let mut data = data.clone();
        data[at] = byte;
        read_data(&data).map(|(data, _)| data.to_vec())
    };
    assert!(matches!(with(HEADER + 2, 81), Err(Refused::Short { needed: 84, .. })));
    assert!(matches!(with(HEADER + 2, 63), Err(Refused::Short { .. })), "data in the header");
    assert!(matches!(with(HEADER + 7, 0xff), Err(Refused::Short { .. })));
}

/// Each byte of responses, with each value: no panic, and data from inside the message.
#[test]
fn changed_responses_do_not_panic() {
    let limits =
        Negotiated { dialect: 0x0311, max_read: 1 << 20, max_write: 1 << 20, requires_signing: false };
    let mut data = Out::default();
    data.u16(17).u16(80).u32(100).u32(0).u32(0).raw(&[9; 100]);
    let responses =
        [limits.to_body(), created_body(FILE, 5), data.0].map(|body| Header::default().with(&body));
    let check = |message: &[u8]| {
        let _ = (Header::parse(message), Negotiated::parse(message), created(message), written(message));
        let _ = Buffer::parse(message, u16_at(message, 108).unwrap_or(0).into());
        if let Ok((data, _)) = read_data(message) {
            assert!(data.len() <= message.len() - HEADER);
        }
    };
    for response in responses {
        for at in 0..response.len() {
            check(&response[..at]);
            for byte in 0..=255 {
                let mut changed = response.clone();
                changed[at] = byte;
                check(&changed);
            }
        }
    }
}
