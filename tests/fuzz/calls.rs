//! Messages of RPC over RDMA to a server of files, and replies to a client.

use std::path::Path;
use std::sync::OnceLock;

use roxie_nfs::mount::{parse_mounted, receive_record};
use roxie_nfs::nfs3::{self, Arguments, Committed, PROGRAM, Written};
use roxie_nfs::placement::{Lengths, MOST_PARTS, Moved, place};
use roxie_nfs::private::Sizes;
use roxie_nfs::rpc::{Call, Credential, Reply};
use roxie_nfs::rpcrdma::{Body, Chunks, Header, length};
use roxie_nfs::server::{Export, LONGEST_TRANSFER, answer};
use roxie_nfs::xdr::{Reader, Writer};

use crate::input::Input;

/// Bytes of a message that the peer receives.
const INLINE: usize = 1024;

/// The folder of this crate's sources, which nothing changes.
fn export() -> &'static Export {
    static EXPORT: OnceLock<Export> = OnceLock::new();
    EXPORT.get_or_init(|| Export::open(Path::new(env!("CARGO_MANIFEST_DIR"))).expect("a folder"))
}

/// Any bytes are a header or are refused, any call is answered within its chunks, and any reply is parsed.
pub fn calls(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (choice, number) = (input.u8(), input.u8());
    let rest = bytes.get(2..).unwrap_or_default();
    let (chunks, message) = match Header::parse(rest) {
        Ok((header, message)) => {
            assert_eq!([&header.to_bytes()[..], message].concat(), rest);
            (header.chunks().cloned().unwrap_or_default(), message)
        }
        Err(refusal) => {
            if let Some(answer) = refusal.answer(1) {
                assert!(Header::parse(&answer.to_bytes()).is_ok(), "{answer:?}");
            }
            (Chunks::default(), rest)
        }
    };
    replies(message);
    let _ = Sizes::parse(message);
    let _ = receive_record(&mut &rest[..], 4096);
    // A call as it stands, or one to a procedure that exists, with the handle of the folder or with any.
    if choice.is_multiple_of(2) {
        return call(message, &chunks);
    }
    let mut out = Writer::new();
    Call::new(7, PROGRAM, u32::from(number) % 23, Credential::None).write(&mut out);
    let mut made = out.finish();
    if choice.is_multiple_of(3) {
        let mut handle = Writer::new();
        handle.opaque(export().root().bytes());
        made.extend(handle.finish());
    }
    made.extend(message);
    call(&made, &chunks);
}

/// Answers a call, and places the reply.
fn call(message: &[u8], chunks: &Chunks) {
    let Ok(answer) = answer(export(), message) else { return };
    let data = answer.data.as_deref().map(<[u8]>::len);
    assert!(answer.head.len() <= LONGEST_TRANSFER + 1024 && data.unwrap_or(0) <= LONGEST_TRANSFER);
    assert!(Reply::parse(&answer.head).is_ok(), "a server's reply is one");
    let lengths = Lengths { head: answer.head.len(), data, inline: INLINE };
    let Ok(placed) = place(7, 1, chunks, &lengths) else { return };
    assert!(placed.parts.len() <= MOST_PARTS);
    let moved: usize = placed.parts.iter().map(|part| part.to.length as usize).sum();
    let offered = chunks.writes.first().map_or(0, |chunk| length(chunk))
        + chunks.reply.as_ref().map_or(0, |chunk| length(chunk));
    assert!(moved as u64 <= offered, "{moved} bytes to {offered}");
    let inline = match placed.moved {
        Moved::Message => 0,
        Moved::Nothing if chunks.writes.is_empty() => {
            lengths.head + data.map_or(0, |data| data.next_multiple_of(4))
        }
        _ => lengths.head,
    };
    assert!(placed.header.to_bytes().len() + inline <= INLINE);
    assert!(matches!(placed.header.body, Body::Message(_) | Body::NoMessage(_)));
}

/// Parses bytes as each kind of results.
fn replies(bytes: &[u8]) {
    let Ok((reply, _)) = Reply::parse(bytes) else { return results(bytes) };
    let _ = reply.outcome.to_string();
    results(bytes);
}

fn results(bytes: &[u8]) {
    let reader = || Reader::new(bytes);
    let _ = (nfs3::file(&mut reader()), nfs3::found(&mut reader()), nfs3::created(&mut reader()));
    let _ = (nfs3::read_head(&mut reader()), nfs3::fs_info(&mut reader()));
    if let Ok(Ok(listing)) = nfs3::listed(bytes.len().is_multiple_of(2), &mut reader()) {
        assert!(listing.entries.len() <= bytes.len() / 24);
    }
    let _ = (Written::parse(&mut reader()), Committed::parse(&mut reader()), parse_mounted(&mut reader()));
    for number in 0..23 {
        let _ = Arguments::parse(number, &mut reader());
    }
}
