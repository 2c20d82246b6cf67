//! Input that no conforming peer sends: no panic, and what is parsed encodes to what it was.

use proptest::prelude::*;

use crate::mount::{parse_mounted, receive_record};
use crate::nfs3::{self, Arguments, Committed, Written, procedure};
use crate::placement::{Lengths, MOST_PARTS, Moved, place};
use crate::private::Sizes;
use crate::rpc::{Call, Reply};
use crate::rpcrdma::{Header, length};
use crate::xdr::{Reader, Writer};

/// Messages: mostly words that begin a header, with small counts, cut anywhere.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![6 => 0u32..3, 2 => 3u32..40, 1 => any::<u32>()];
    let words = prop::collection::vec(word, 0..120).prop_map(|words| {
        let all = [7, 1, 32].into_iter().chain(words);
        all.flat_map(u32::to_be_bytes).collect::<Vec<u8>>()
    });
    let cut = (words, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(mut bytes, at, cuts)| {
        if cuts {
            bytes.truncate(at.index(bytes.len() + 1));
        }
        bytes
    });
    prop_oneof![4 => cut, 1 => prop::collection::vec(any::<u8>(), 0..500)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn headers_of_any_bytes_encode_to_themselves(bytes in message()) {
        match Header::parse(&bytes) {
            Ok((header, rest)) => {
                let encoded = header.to_bytes();
                prop_assert_eq!(&[&encoded[..], rest].concat(), &bytes);
                if let Some(chunks) = header.chunks() {
                    prop_assert_eq!(chunks.header_length(), encoded.len());
                }
            }
            // The answer to a wrong message is a right one.
            Err(refusal) => if let Some(answer) = refusal.answer(1) {
                let encoded = answer.to_bytes();
                prop_assert_eq!(Header::parse(&encoded), Ok((answer, &[][..])));
            }
        }
    }

    #[test]
    fn replies_stay_inside_chunks(bytes in message(), head in 0usize..3000, data in prop::option::of(0usize..100_000)) {
        let Ok((header, _)) = Header::parse(&bytes) else { return Ok(()) };
        let Some(call) = header.chunks() else { return Ok(()) };
        let lengths = Lengths { head, data, inline: 1024 };
        let Ok(placed) = place(header.xid, 1, call, &lengths) else { return Ok(()) };
        let message = head + data.map_or(0, |data| data.next_multiple_of(4));
        let (moved, inline) = match placed.moved {
            Moved::Nothing if call.writes.is_empty() => (0, message),
            Moved::Nothing => (0, head),
            Moved::Data => (data.unwrap_or(0), head),
            Moved::Message => (message, 0),
        };
        prop_assert!(placed.header.to_bytes().len() + inline <= 1024);
        prop_assert!(placed.parts.len() <= MOST_PARTS);
        // Each part is in a segment of the call's, and the parts are all of what moves.
        let offered: Vec<_> = call.writes.iter().take(1).chain(&call.reply).flatten().collect();
        let mut next = 0;
        for part in &placed.parts {
            prop_assert_eq!(part.from, next);
            next += part.to.length as usize;
            let is_inside = |segment: &&crate::rpcrdma::Segment| {
                (segment.handle, segment.offset) == (part.to.handle, part.to.offset) && part.to.length <= segment.length
            };
            prop_assert!(offered.iter().any(is_inside));
        }
        prop_assert_eq!(next, moved);
        let used = placed.header.chunks().expect("lists");
        let used: u64 = used.writes.iter().chain(&used.reply).map(|chunk| length(chunk)).sum();
        prop_assert_eq!(used, moved as u64);
    }

    #[test]
    fn messages_of_any_bytes_do_not_panic(bytes in message(), number in 0u32..30) {
        let reader = || Reader::new(&bytes);
        let _ = (Call::parse(&bytes), Reply::parse(&bytes), Sizes::parse(&bytes));
        if let Ok(Some(arguments)) = Arguments::parse(number, &mut reader())
            && !matches!(arguments, Arguments::Changing(_) | Arguments::Create { .. })
        {
            let mut out = Writer::new();
            arguments.write(&mut out);
            prop_assert!(out.len() <= bytes.len());
            let again = out.finish();
            prop_assert_eq!(Arguments::parse(number, &mut Reader::new(&again)), Ok(Some(arguments)));
        }
        let _ = (nfs3::file(&mut reader()), nfs3::found(&mut reader()), nfs3::created(&mut reader()));
        let _ = (nfs3::read_head(&mut reader()), nfs3::fs_info(&mut reader()));
        let _ = (nfs3::listed(true, &mut reader()), nfs3::listed(false, &mut reader()));
        let _ = (Written::parse(&mut reader()), Committed::parse(&mut reader()));
        let _ = parse_mounted(&mut reader());
        let _ = receive_record(&mut &bytes[..], 4096);
        let _ = (procedure::name(number), nfs3::Status(number).to_string());
    }
}
