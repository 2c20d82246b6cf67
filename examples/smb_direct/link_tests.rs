//! Messages by bytes, connections of two links, and input that no conforming peer sends.

use super::super::messages::VERSION;
use super::*;

/// Sizes of MS-SMBD 4.1: messages of 1 KiB, 128 KiB in fragments.
const SIZES: Sizes = Sizes { preferred_send: 0x400, receive: 0x400, fragmented: 0x20000 };
const REQUEST: NegotiateRequest =
    NegotiateRequest { versions: (VERSION, VERSION), credits_requested: 10, sizes: SIZES };
const RESPONSE: NegotiateResponse = NegotiateResponse {
    status: 0,
    credits_requested: 10,
    credits_granted: 10,
    max_read_write: 0x10_0000,
    sizes: SIZES,
};
/// The request and the response of MS-SMBD 4.1, byte by byte.
const REQUEST_BYTES: [u8; 20] = [0, 1, 0, 1, 0, 0, 10, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0, 2, 0];
const RESPONSE_BYTES: [u8; 32] =
    [0, 1, 0, 1, 0, 1, 0, 0, 10, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0, 2, 0];

fn pair() -> (Link, Link) {
    (Link::connected(&SIZES, &RESPONSE, 10, 10), Link::accepted(&SIZES, &REQUEST, 10, 10))
}

/// Moves messages until neither end has any. Returns what each end's upper layer received, and the number of messages.
fn run(near: &mut Link, far: &mut Link) -> ([Vec<Vec<u8>>; 2], usize) {
    let (mut received, mut count) = ([Vec::new(), Vec::new()], 0);
    loop {
        let mut is_idle = true;
        for turn in 0..2 {
            let (from, to) = if turn == 0 { (&mut *near, &mut *far) } else { (&mut *far, &mut *near) };
            while let Some(message) = from.next_message() {
                assert!(message.len() <= 0x400, "{} bytes", message.len());
                (is_idle, count) = (false, count + 1);
                received[1 - turn].extend(to.received(&message).expect("conforms"));
                to.receives_are_posted(1);
            }
        }
        assert!(count < 10_000, "messages without end");
        if is_idle {
            return (received, count);
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n / 251 + n) as u8).collect()
}

#[test]
fn negotiation_has_the_published_bytes() {
    assert_eq!(REQUEST.to_bytes(), REQUEST_BYTES);
    assert_eq!(NegotiateRequest::parse(&REQUEST_BYTES), Ok(REQUEST));
    assert_eq!(RESPONSE.to_bytes(), RESPONSE_BYTES);
    assert_eq!(NegotiateResponse::parse(&RESPONSE_BYTES, &SIZES), Ok(RESPONSE));
    // A peer that has later versions too.
    let mut later = REQUEST_BYTES;
    later[3] = 3;
    assert!(NegotiateRequest::parse(&later).unwrap().has_version());
    later[1] = 2;
    assert!(!NegotiateRequest::parse(&later).unwrap().has_version());
}

#[test]
fn wrong_negotiation_fields_are_named() {
    let request = |at: usize, byte: u8| {
        let mut bytes = REQUEST_BYTES;
        bytes[at] = byte;
        NegotiateRequest::parse(&bytes).unwrap_err()
    };
    assert_eq!(request(6, 0), Refused::Field { field: "CreditsRequested", value: 0 });
    assert_eq!(request(13, 0), Refused::Field { field: "MaxReceiveSize", value: 0 });
    assert_eq!(request(18, 1), Refused::Field { field: "MaxFragmentedSize", value: 0x10000 });
    let response = |at: usize, byte: u8| {
        let mut bytes = RESPONSE_BYTES;
        bytes[at] = byte;
        NegotiateResponse::parse(&bytes, &SIZES).unwrap_err()
    };
    assert_eq!(response(15, 0xc0), Refused::Field { field: "Status", value: 0xc000_0000 });
    assert_eq!(response(4, 1), Refused::Field { field: "NegotiatedVersion", value: 0x0101 });
    assert_eq!(response(8, 0), Refused::Field { field: "CreditsRequested", value: 0 });
    assert_eq!(response(10, 0), Refused::Field { field: "CreditsGranted", value: 0 });
    assert_eq!(response(18, 0xf), Refused::Field { field: "MaxReadWriteSize", value: 0xf0000 });
    assert_eq!(response(20, 1), Refused::Field { field: "PreferredSendSize", value: 0x401 });
    for length in 0..20 {
        assert!(matches!(NegotiateRequest::parse(&REQUEST_BYTES[..length]), Err(Refused::Short { .. })));
    }
    for length in 0..32 {
        let short = NegotiateResponse::parse(&RESPONSE_BYTES[..length], &SIZES);
        assert!(matches!(short, Err(Refused::Short { .. })), "{short:?}");
    }
}

#[test]
fn short_message_goes_in_one_transfer() {
    let (mut local, mut remote) = pair();
    assert!(local.queue(pattern(500)));
    let message = local.next_message().expect("a message");
    // The first message grants all of this end's receives. The data is at offset 24, behind 4 bytes of padding.
    let header = [10, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0xf4, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(message, [&header[..], &pattern(500)].concat());
    assert_eq!(remote.received(&message), Ok(Some(pattern(500))));
    assert_eq!(local.next_message(), None);
}

#[test]
fn long_message_is_sent_in_fragments() {
    let (mut local, mut remote) = pair();
    assert!(local.queue(pattern(64 << 10)));
    let first = local.next_message().expect("a message");
    // 65,536 bytes less the 1000 of the first fragment are 0xfc18.
    assert_eq!((&first[8..12], &first[16..20]), (&[0x18, 0xfc, 0, 0][..], &[0xe8, 3, 0, 0][..]));
    assert_eq!(remote.received(&first), Ok(None));
    remote.receives_are_posted(1);
    let (received, count) = run(&mut local, &mut remote);
    assert_eq!(received, [vec![], vec![pattern(64 << 10)]]);
    // 65 further fragments, and a grant for each five of them.
    assert!((65..65 + 20).contains(&count), "{count} messages");
    assert!(local.is_sent());
}

#[test]
fn both_ends_may_send_at_once() {
    let (mut local, mut remote) = pair();
    for n in 1..20 {
        assert!(local.queue(pattern(n * 997)) && remote.queue(pattern(n * 1009)));
    }
    let ([at_local, at_remote], _) = run(&mut local, &mut remote);
    assert_eq!(at_remote, (1..20).map(|n| pattern(n * 997)).collect::<Vec<_>>());
    assert_eq!(at_local, (1..20).map(|n| pattern(n * 1009)).collect::<Vec<_>>());
}

#[test]
fn sender_stops_without_credits() {
    let (mut local, mut remote) = pair();
    assert!(local.queue(pattern(64 << 10)));
    let mut sent = 0;
    while let Some(message) = local.next_message() {
        remote.received(&message).expect("conforms");
        sent += 1;
    }
    // All but the last credit, which must bring others.
    assert_eq!(sent, 9);
    assert_eq!(remote.next_message(), None, "no receive is free");
    remote.receives_are_posted(9);
    let grant = remote.next_message().expect("a grant");
    assert_eq!(grant, [10, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    local.received(&grant).expect("conforms");
    assert!(local.next_message().is_some());
}

#[test]
fn keep_alive_is_answered_once() {
    let (mut local, mut remote) = pair();
    assert!(local.next_message().is_some(), "the grant of the first receives");
    local.request_message();
    let request = local.next_message().expect("a question");
    assert_eq!(request, [10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(remote.received(&request), Ok(None));
    remote.send_credits = 9;
    let answer = remote.next_message().expect("an answer");
    assert_eq!((answer.len(), answer[4]), (20, 0));
    assert_eq!(remote.next_message(), None);
    assert_eq!(local.next_message(), None);
}

#[test]
fn wrong_transfers_are_refused() {
    let field = |field, value| Err(Refused::Field { field, value });
    let whole = DataTransfer {
        credits_requested: 10,
        credits_granted: 0,
        wants_response: false,
        remaining: 0,
        data: &pattern(64),
    };
    let whole = whole.to_bytes();
    let of = |at: usize, bytes: &[u8]| {
        let mut message = whole.clone();
        message[at..at + bytes.len()].copy_from_slice(bytes);
        pair().1.received(&message)
    };
    assert_eq!(of(0, &[10]), Ok(Some(pattern(64))));
    assert_eq!(of(0, &[0, 0]), field("CreditsRequested", 0));
    assert_eq!(of(12, &[20]), field("DataOffset", 20));
    assert_eq!(of(12, &[16]), field("DataOffset", 16));
    assert_eq!(of(12, &[32]), Err(Refused::Short { length: 88, needed: 96 }));
    assert_eq!(of(16, &[0xff; 4]), Err(Refused::Short { length: 88, needed: 24 + 0xffff_ffff }));
    assert_eq!(of(8, &[0xff; 4]), field("RemainingDataLength", u32::MAX));
    assert_eq!(of(8, &[0xc1, 0xff, 1, 0]), field("RemainingDataLength", 0x1_ffc1));
    assert_eq!(of(8, &[0xc0, 0xff, 1, 0]), Ok(None), "exactly what is assembled at most");
    // A fragment of nothing.
    let mut empty = whole[..20].to_vec();
    empty[8..20].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(pair().1.received(&empty), field("DataLength", 0));
    for length in 0..whole.len() {
        assert!(matches!(pair().1.received(&whole[..length]), Err(Refused::Short { .. })));
    }
}

#[test]
fn fragments_must_continue_their_message() {
    let fragment = |remaining, data| {
        let credits = (10, 0);
        let (credits_requested, credits_granted) = credits;
        DataTransfer { credits_requested, credits_granted, wants_response: false, remaining, data }.to_bytes()
    };
    let first = fragment(100, &[7; 50]);
    for (remaining, length) in [(0, 99), (0, 101), (51, 50), (0x1_0000, 100)] {
        let mut remote = pair().1;
        assert_eq!(remote.received(&first), Ok(None));
        let is = length as u64 + u64::from(remaining);
        let next = fragment(remaining, &[8; 200][..length]);
        assert_eq!(remote.received(&next), Err(Refused::Sequence { is, due: 100 }));
    }
    // Credits may come between fragments.
    let mut remote = pair().1;
    assert_eq!(remote.received(&first), Ok(None));
    assert_eq!(remote.received(&fragment(0, &[])), Ok(None));
    assert_eq!(remote.received(&fragment(0, &[8; 100])).unwrap().map(|message| message.len()), Some(150));
}

#[test]
fn messages_without_credits_are_refused() {
    let (_, mut remote) = pair();
    let (mut local, _) = pair();
    local.send_credits = 100;
    assert!(local.queue(pattern(64 << 10)));
    let all: Vec<_> = std::iter::from_fn(|| local.next_message()).take(11).collect();
    for message in &all[..10] {
        assert_eq!(remote.received(message), Ok(None));
    }
    assert_eq!(remote.received(&all[10]), Err(Refused::NoCredit));
    let mut local = pair().0;
    local.receive_credits = 1;
    let grant = [1, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(local.received(&grant), Err(Refused::Field { field: "CreditsGranted", value: 0xffff }));
}

#[test]
fn queue_takes_what_the_peer_assembles() {
    let (mut local, _) = pair();
    assert!(!local.queue(Vec::new()));
    assert!(!local.queue(vec![0; 0x20001]));
    assert!(local.queue(vec![0; 0x20000]));
}

/// Draws numbers: xorshift64 (Marsaglia 2003).
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// Messages of both kinds, with bytes changed, cut off and added: neither a panic nor an assembly beyond its limit.
///
/// `SMB_DIRECT_INPUTS=10000000 cargo test --release -p roxie --test devices smb_direct::mutated` takes more than the
/// usual 100,000 inputs.
#[test]
fn mutated_messages_are_refused_or_fit() {
    let inputs = std::env::var("SMB_DIRECT_INPUTS").map_or(100_000, |count| count.parse().expect("a number"));
    let mut draw = Draw(0x5eed);
    let (mut remote, mut taken, mut whole, mut refused) = (pair().1, 0, 0, 0);
    let transfer = |remaining, data| DataTransfer {
        credits_requested: 10,
        credits_granted: 1,
        wants_response: true,
        remaining,
        data,
    };
    let data = pattern(1000);
    for _ in 0..inputs {
        let length = draw.below(data.len() + 1);
        let remaining = match draw.below(3) {
            0 => 0,
            1 => (remote.missing as usize).saturating_sub(length) as u32,
            _ => draw.below(0x21000) as u32,
        };
        let mut message = match draw.below(8) {
            0 => REQUEST_BYTES.to_vec(),
            1 => RESPONSE_BYTES.to_vec(),
            _ => transfer(remaining, &data[..length]).to_bytes(),
        };
        for _ in 0..draw.below(4) {
            match draw.below(4) {
                0 => message.truncate(draw.below(message.len() + 1)),
                1 => message.push(draw.below(256) as u8),
                _ if message.is_empty() => {}
                _ => {
                    let at = draw.below(message.len().min(32));
                    message[at] = [0, 1, 0x7f, 0xff, draw.below(256) as u8][draw.below(5)];
                }
            }
        }
        if let Ok(request) = NegotiateRequest::parse(&message) {
            assert!(request.credits_requested > 0 && request.sizes.receive >= 128);
        }
        if let Ok(response) = NegotiateResponse::parse(&message, &SIZES) {
            assert!(response.credits_granted > 0 && response.sizes.preferred_send <= SIZES.receive);
        }
        match remote.received(&message) {
            Ok(complete) => {
                taken += 1;
                let length = complete.as_ref().map_or(remote.assembly.len(), Vec::len);
                assert!(length + remote.missing as usize <= SIZES.fragmented as usize);
                whole += usize::from(complete.is_some());
                remote.receives_are_posted(1);
                while let Some(answer) = remote.next_message() {
                    assert!(answer.len() <= SIZES.receive as usize);
                }
            }
            // The connection ends, and another begins.
            Err(_) => {
                refused += 1;
                remote = pair().1;
            }
        }
    }
    // The inputs reach all three outcomes.
    assert!(
        taken > inputs / 10 && whole > inputs / 100 && refused > inputs / 10,
        "{taken} {whole} {refused}"
    );
}
