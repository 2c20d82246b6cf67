//! READ responses and atomics at a responder (9.4.4, 9.4.5, 9.7.5.1).

use roxie_wire::Opcode;

use crate::bench::{Bench, Setup};
use crate::check::{Chapter, Check, Need, Role};
use crate::service::Service;
use crate::verdict::{Script, must};

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("READ responses and atomics", Service::Rc, Role::Responder);
    lengths(&mut chapter);
    duplicates(&mut chapter);
    responses(&mut chapter);
    atomics(&mut chapter);
    chapter.done()
}

/// READs of all lengths.
fn lengths(chapter: &mut Chapter) {
    for mtu in [256, 512, 1024, 2048, 4096] {
        chapter.add(
            format!("rc/read/segmented/mtu{mtu}"),
            "9.7.5.1",
            format!("a READ of three packets less one byte with path MTU {mtu}"),
            "the response is FIRST, MIDDLE, LAST with one PSN each, all full but the last, and has the bytes of memory",
            move |bench| segmented(bench, mtu),
        );
    }
    for (length, name) in [(0, "empty"), (1, "one_byte"), (1023, "mtu_less_one"), (1024, "mtu")] {
        chapter.add(
            format!("rc/read/{name}"),
            "9.7.5.1",
            format!("a READ of {length} bytes with path MTU 1024"),
            "the response is one packet with exactly these bytes",
            move |bench| {
                let mut rc = bench.rc()?;
                let expected = format!("READ_RESPONSE_ONLY+0 len {length}");
                let came = bench.ask(&rc, &rc.read(100, length), &[&expected])?;
                let right = Bench::pattern(100, length as usize);
                must(came[0].payload() == right, || "the payload is not what memory has".into())?;
                rc.advance(1);
                bench.works(&rc, 2)
            },
        );
    }
    chapter
        .add(
            "rc/read/consumes_psns",
            "9.7.4",
            "a READ of three packets, then a WRITE with the PSN after the response",
            "a READ takes as many PSNs as its response has packets",
            |bench| {
                let mut rc = bench.rc()?;
                let response = [
                    "READ_RESPONSE_FIRST+0 len 1024",
                    "READ_RESPONSE_MIDDLE+1 len 1024",
                    "READ_RESPONSE_LAST+2 len 8",
                ];
                bench.ask(&rc, &rc.read(0, 2056), &response)?;
                rc.advance(3);
                bench.works(&rc, 2)
            },
        )
        .short();
}

/// READs that come again.
fn duplicates(chapter: &mut Chapter) {
    chapter.add(
        "rc/read/rest_again",
        "9.7.5.1.2",
        "a READ of three packets, then a duplicate of its last two",
        "a duplicate READ may ask for the rest of a response: it is sent again with the PSNs of before",
        |bench| {
            let rc = bench.rc()?;
            let response = [
                "READ_RESPONSE_FIRST+0 len 1024",
                "READ_RESPONSE_MIDDLE+1 len 1024",
                "READ_RESPONSE_LAST+2 len 8",
            ];
            bench.ask(&rc, &rc.read(0, 2056), &response)?;
            let psn = rc.next + 1;
            let rest = rc.read(1024, 1032).with(|bth| bth.psn = psn);
            bench.send(&rest)?;
            let came = bench.packets(&rc, 2)?;
            let words: Vec<String> = came.iter().map(|seen| seen.words(rc.first)).collect();
            // Responders resume the message with MIDDLE, or begin it anew with FIRST.
            let right = ["MIDDLE", "FIRST"].map(|name| {
                vec![format!("READ_RESPONSE_{name}+1 len 1024"), "READ_RESPONSE_LAST+2 len 8".to_owned()]
            });
            must(right.contains(&words), || {
                format!("expected the last two packets again, came {}", words.join(", "))
            })?;
            must(came[0].payload() == Bench::pattern(1024, 1024), || "other bytes than memory has".into())
        },
    );
    chapter.add(
        "rc/read/wider_duplicate",
        "9.7.5.1.2",
        "a READ of one packet, then a READ of two with the same PSN",
        "a duplicate that asks for more than the first READ is not executed",
        |bench| {
            let mut rc = bench.rc()?;
            bench.ask(&rc, &rc.read(0, 8), &["READ_RESPONSE_ONLY+0 len 8"])?;
            bench.ask(&rc, &rc.read(0, 2000), &[])?;
            rc.advance(1);
            bench.works(&rc, 2)
        },
    );
}

/// Headers, pad and order of responses.
fn responses(chapter: &mut Chapter) {
    chapter.add(
        "rc/read/syndrome_and_msn",
        "9.7.5.1",
        "a READ of two packets behind a WRITE",
        "FIRST and LAST of a response carry an ACK syndrome and the message sequence number of the READ",
        |bench| {
            let mut rc = bench.rc()?;
            bench.works(&rc, 1)?;
            rc.advance(1);
            let came = bench.ask(
                &rc,
                &rc.read(0, 1032),
                &["READ_RESPONSE_FIRST+1 len 1024", "READ_RESPONSE_LAST+2 len 8"],
            )?;
            for seen in &came {
                let aeth = seen.packet.aeth().unwrap_or_default();
                must(aeth.syndrome >> 5 == 0 && aeth.msn == 2, || {
                    format!(
                        "{} has syndrome {:#04x} and MSN {}, expected an ACK and 2",
                        seen.words(rc.first),
                        aeth.syndrome,
                        aeth.msn
                    )
                })?;
            }
            Ok(())
        },
    );
    chapter.add(
        "rc/read/pad",
        "9.2",
        "a READ of 5 bytes",
        "the response is padded by 3 bytes of zero, and its header says so",
        |bench| {
            let rc = bench.rc()?;
            let came = bench.ask(&rc, &rc.read(0, 5), &["READ_RESPONSE_ONLY+0 len 5"])?;
            let end = came[0].packet.payload.end;
            must(came[0].packet.bth.pad == 3, || format!("pad count {}", came[0].packet.bth.pad))?;
            must(came[0].frame.get(end..end + 3) == Some(&[0; 3]), || "the pad is not zero".into())
        },
    );
    chapter.add(
        "rc/read/ack_stays_behind",
        "9.5",
        "a READ of three packets and a WRITE of no bytes, in one burst",
        "the acknowledgement of the WRITE comes after the response of the READ",
        |bench| {
            let mut rc = bench.rc()?;
            let read = rc.read(0, 2056);
            rc.advance(3);
            // Of the same length as the READ: both arrive as one where the link has trains.
            bench.wire.send_burst(&[read, rc.write_only(4096, &[])], false)?;
            let response = [
                "READ_RESPONSE_FIRST+0 len 1024",
                "READ_RESPONSE_MIDDLE+1 len 1024",
                "READ_RESPONSE_LAST+2 len 8",
            ];
            bench.expect(&rc, &[&response[..], &["ACK+3 msn 2"]].concat()).map(drop)
        },
    );
}

fn segmented(bench: &mut Bench, mtu: usize) -> Script {
    let rc = bench.connect(&Setup { mtu, ..Setup::new(Service::Rc) })?;
    let length = 3 * mtu - 1;
    let came = bench.ask(
        &rc,
        &rc.read(8, length as u32),
        &[
            &format!("READ_RESPONSE_FIRST+0 len {mtu}"),
            &format!("READ_RESPONSE_MIDDLE+1 len {mtu}"),
            &format!("READ_RESPONSE_LAST+2 len {}", mtu - 1),
        ],
    )?;
    let bytes: Vec<u8> = came.iter().flat_map(|seen| seen.payload().to_vec()).collect();
    must(bytes == Bench::pattern(8, length), || "the payload is not what memory has".into())
}

/// An atomic: name, clause, opcode, operands (swap or add, compare), value before, value after.
type Atomic = (&'static str, Opcode, (u64, u64), u64, u64, &'static str);

const ATOMICS: [Atomic; 5] = [
    (
        "swap_on_match",
        Opcode::RC_COMPARE_SWAP,
        (9, 5),
        5,
        9,
        "stores the new value if memory has the compared one",
    ),
    (
        "no_swap_without_match",
        Opcode::RC_COMPARE_SWAP,
        (9, 6),
        5,
        5,
        "stores nothing if memory has another value",
    ),
    ("add", Opcode::RC_FETCH_ADD, (7, 0), 5, 12, "adds"),
    ("add_wraps", Opcode::RC_FETCH_ADD, (2, 0), u64::MAX, 1, "wraps at 64 bits"),
    ("add_zero", Opcode::RC_FETCH_ADD, (0, 0), 5, 5, "leaves the value if zero is added"),
];

fn atomics(chapter: &mut Chapter) {
    for (name, opcode, (operand, compare), before, after, asks) in ATOMICS {
        chapter
            .add(
                format!("rc/atomic/{name}"),
                "9.4.5",
                format!("an atomic on {before:#x}"),
                format!("the atomic {asks}, and returns the value of before"),
                move |bench| {
                    let mut rc = bench.rc()?;
                    bench.poke(rc.region, 64, &before.to_le_bytes())?;
                    let request =
                        rc.request(opcode).atomic(rc.region.addr + 64, rc.region.rkey, operand, compare);
                    let came = bench.ask(&rc, &request.ack(), &["ATOMIC_ACKNOWLEDGE+0 msn 1"])?;
                    let original = came[0].packet.atomic_ack();
                    must(original == Some(before), || {
                        format!("it returned {original:?}, expected {before:#x}")
                    })?;
                    bench.memory(rc.region, 64, &after.to_le_bytes())?;
                    bench.untouched(72, 64)?;
                    rc.advance(1);
                    bench.works(&rc, 2)
                },
            )
            .needs(Need::Atomics);
    }
    chapter
        .add(
            "rc/atomic/saved_result",
            "9.7.5.1.2",
            "four fetch-and-adds, then duplicates of the last and the first",
            "each duplicate returns the result that its request had, though memory has changed since",
            |bench| {
                let mut rc = bench.rc()?;
                bench.poke(rc.region, 64, &[0; 8])?;
                let mut requests = Vec::new();
                for n in 0..4 {
                    let request =
                        rc.request(Opcode::RC_FETCH_ADD).atomic(rc.region.addr + 64, rc.region.rkey, 1, 0);
                    bench.ask(
                        &rc,
                        &request.clone().ack(),
                        &[&format!("ATOMIC_ACKNOWLEDGE+{n} msn {}", n + 1)],
                    )?;
                    requests.push(request.ack());
                    rc.advance(1);
                }
                for n in [3u64, 0] {
                    bench.send(&requests[n as usize])?;
                    let came = bench.packets(&rc, 1)?;
                    let original = came.first().and_then(|seen| seen.packet.atomic_ack());
                    must(original == Some(n), || format!("the duplicate of {n} returned {original:?}"))?;
                }
                bench.memory(rc.region, 64, &4u64.to_le_bytes())
            },
        )
        .needs(Need::Atomics);
}
