//! Libraries of other versions: the greeting that each version sends, and what the protocol's version covers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use roxie_nic::shared::work_queue::Payload;
use roxie_nic::verbs::{
    AhId, AsyncEvent, LKey, Qpn, RKey, SendFlags, SendWr, Sge, Srqn, UdAddress, Wc, WcFlags, WcOpcode,
    WcStatus, WrOpcode,
};
use serde::de::DeserializeOwned;

use super::kept;
use super::*;

/// The first message of a library of this version, as it is on the socket: length, version, name, and address and
/// content of the secret.
fn recorded_hello(version: u8, secret: &u64) -> Vec<u8> {
    let mut body = vec![version, 3, b'l', b'i', b'b'];
    for mut word in [std::ptr::from_ref(secret) as u64, *secret] {
        // Seven bits a byte, the lowest first.
        while word > 0x7f {
            body.push(word as u8 | 0x80);
            word >>= 7;
        }
        body.push(word as u8);
    }
    [&(body.len() as u32).to_ne_bytes()[..], &body].concat()
}

/// Reads a message: its length, and its bytes.
fn message(mut socket: &UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).expect("an answer");
    let mut bytes = vec![0; u32::from_ne_bytes(length) as usize];
    socket.read_exact(&mut bytes).expect("a whole answer");
    bytes
}

#[test]
fn recorded_greeting_of_version_7_is_served() {
    let nic = nic(Quota::default());
    let (socket, secret) = (nic.connect(), Box::new(0x0123_4567_89ab_cdef_u64));
    (&socket).write_all(&recorded_hello(7, &secret)).expect("it listens");
    assert_eq!(message(&socket), [0], "`Ok(())`");
    let link = Link::new(socket.try_clone().expect("a descriptor"));
    hand_over_memory(&link);
    let welcome = message(&socket);
    assert_eq!(welcome[0], 0, "{welcome:?}");
    nic.wait("served", |nic| nic.daemon.served().len() == 1);
    // `LargestMtu`, the fourth request.
    (&socket).write_all(&[1, 0, 0, 0, 3]).expect("it listens");
    assert_eq!(message(&socket)[..2], [0, 1], "`Ok(Response::Mtu(_))`");
}

#[test]
fn altered_version_names_the_end_to_update() {
    let nic = nic(Quota::default());
    let (oldest, newest) = (CLIENT_PROTOCOL.oldest as u8, CLIENT_PROTOCOL.version as u8);
    for (version, older) in [(oldest - 1, "update the library"), (newest + 1, "update the NIC")] {
        let socket = nic.connect();
        // All behind the version has another form: a length beyond the message.
        (&socket).write_all(&[6, 0, 0, 0, version, 0xff, 0xff, 0xff, 0xff, 0x0f]).expect("it listens");
        let answer = message(&socket);
        let text = String::from_utf8_lossy(&answer[2..]);
        assert_eq!(answer[0], 1, "`Err`: {text}");
        assert!(
            text.starts_with(&format!("the library speaks version {version} of the client protocol")),
            "{text}"
        );
        assert!(text.ends_with(older), "{text}");
    }
    assert!(nic.daemon.served().is_empty());
}

/// Adds what bytes mean as `T`: `prefix`, a number of a variant, and ones, or the first other number that is allowed
/// behind them. Numbers without a variant are left out.
fn add_meanings<T: DeserializeOwned + Debug>(
    parts: &mut BTreeSet<String>,
    name: &str,
    prefix: &[u8],
    variants: Range<u8>,
) {
    for variant in variants {
        let head = [prefix, &[variant]].concat();
        let numbers = head.iter().map(|byte| format!("{byte:02}")).collect::<Vec<_>>().join(" ");
        let meaning = [1, 0, 2, 4].iter().find_map(|rest| {
            let mut bytes = head.clone();
            bytes.resize(512, *rest);
            postcard::from_bytes::<T>(&bytes).ok()
        });
        parts.extend(meaning.map(|meaning| format!("{name} {numbers} {meaning:?}")));
    }
}

/// Adds the words of shared memory that are not 0.
fn add_words(parts: &mut BTreeSet<String>, name: &str, words: &[AtomicU64]) {
    let words = words.iter().map(|word| word.load(Relaxed)).enumerate().filter(|(_, word)| *word != 0);
    parts.extend(words.map(|(at, word)| format!("{name} word {at:02} {word:#018x}")));
}

#[test]
fn changed_protocol_has_a_new_version() {
    let mut parts = BTreeSet::new();
    add_meanings::<Hello>(&mut parts, "Hello", &[], 1..2);
    add_meanings::<Welcome>(&mut parts, "Welcome", &[], 1..2);
    add_meanings::<Request>(&mut parts, "Request", &[], 0..99);
    add_meanings::<Request>(&mut parts, "Request", &[0], 0..99);
    add_meanings::<Request>(&mut parts, "Request", &[1], 0..99);
    add_meanings::<Reply>(&mut parts, "Reply", &[0], 0..99);
    add_meanings::<Reply>(&mut parts, "Reply", &[0, 0], 0..99);
    add_meanings::<Reply>(&mut parts, "Reply", &[], 1..2);
    add_meanings::<AsyncEvent>(&mut parts, "Event", &[], 0..99);
    add_meanings::<AsyncEvent>(&mut parts, "Event", &[0, 1], 0..99);
    let wr = SendWr {
        wr_id: 0x11,
        opcode: WrOpcode::WriteImm,
        flags: SendFlags::SIGNALED | SendFlags::FENCE,
        imm: 0x12,
        remote_addr: 0x13,
        rkey: RKey(0x14),
        ud: UdAddress { ah: AhId(0x15), remote_qpn: Qpn::new(0x16), remote_qkey: 0x17 },
        remote_srqn: Srqn(0x18),
        ..SendWr::default()
    };
    let sges = [Sge { addr: 0x21, length: 0x22, lkey: LKey(0x23) }];
    let sends = SendRing::new(2, 1, 16).expect("memory");
    sends.post(&wr, Payload::Sges(&sges)).expect("room");
    sends.post(&wr, Payload::Inline(b"inline")).expect("room");
    add_words(&mut parts, "send ring", sends.words());
    let receives = RecvRing::new(2, 1).expect("memory");
    receives.post(0x31, &sges).expect("room");
    add_words(&mut parts, "receive ring", receives.words());
    let completions = CompletionRing::new(2).expect("memory");
    let wc = Wc {
        wr_id: 0x41,
        status: WcStatus::RnrRetryExc,
        opcode: WcOpcode::RecvWriteImm,
        flags: WcFlags::WITH_IMM,
        vendor_err: 0x42,
        qpn: Qpn::new(0x43),
        byte_len: 0x44,
        imm: 0x45,
        src_qp: Qpn::new(0x46),
        pkey_index: 0x47,
        vlan: 0x48,
        sl: 2,
    };
    completions.push(&wc, 0x49).expect("room");
    add_words(&mut parts, "completion ring", completions.words());
    let (bells, [page, _wake], _held) = Doorbells::for_client(128).expect("memory");
    bells.ring_silently(QpIndex(70));
    let page = File::from(page);
    let words = page.metadata().expect("its length").len() / 8;
    let page = Region::map(page.as_fd(), words as usize).expect("not held yet");
    add_words(&mut parts, "doorbells", page.words());

    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client-protocol.txt"));
    let now = BTreeMap::from([("client protocol".to_owned(), (CLIENT_PROTOCOL.version, parts))]);
    let advice = "CLIENT_PROTOCOL in src/roxie/remote/message.rs; `oldest` too, unless the NIC still serves the libraries before";
    kept::compare(file, &now, false, advice);
}
