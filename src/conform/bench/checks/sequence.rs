//! Opcode sequences and lengths that a responder refuses (9.7.4.1, 9.9.3).

use roxie_wire::Opcode;

use crate::bench::{Bench, Pair};
use crate::check::{Chapter, Check, Need, Role};
use crate::packet::Craft;
use crate::service::Service;
use crate::verdict::{Script, Stop};

const WRITE: Opcode = Opcode::RC_WRITE_ONLY;

/// A request with a RETH for `length` bytes and `sent` bytes of payload.
fn write(rc: &Pair, opcode: Opcode, length: u32, sent: usize) -> Craft {
    rc.request(opcode).reth(rc.region.addr, rc.region.rkey, length).data(&vec![0xee; sent]).ack()
}

fn plain(rc: &Pair, opcode: Opcode, sent: usize) -> Craft {
    rc.request(opcode).data(&vec![0xee; sent]).ack()
}

/// A wrong request: name, stimulus, clause, packets. All before the last are valid.
type Wrong = (&'static str, &'static str, fn(&mut Pair) -> Vec<Craft>);

/// Packets behind the valid FIRST of a WRITE of 2,000 bytes.
fn after_first(rc: &mut Pair, next: impl Fn(&Pair) -> Craft) -> Vec<Craft> {
    let first = write(rc, Opcode::RC_WRITE_FIRST, 2000, 1024);
    rc.advance(1);
    vec![first, next(rc)]
}

/// Packets behind the valid FIRST of a SEND.
fn after_send_first(rc: &mut Pair, next: impl Fn(&Pair) -> Craft) -> Vec<Craft> {
    let first = plain(rc, Opcode::RC_SEND_FIRST, 1024);
    rc.advance(1);
    vec![first, next(rc)]
}

const SEQUENCES: [Wrong; 22] = [
    ("send_middle_alone", "a SEND MIDDLE without a FIRST", |rc| {
        vec![plain(rc, Opcode::RC_SEND_MIDDLE, 1024)]
    }),
    ("send_last_alone", "a SEND LAST without a FIRST", |rc| vec![plain(rc, Opcode::RC_SEND_LAST, 8)]),
    ("send_last_imm_alone", "a SEND LAST with immediate without a FIRST", |rc| {
        vec![rc.request(Opcode::RC_SEND_LAST_IMM).word(1).data(&[1; 8]).ack()]
    }),
    ("write_middle_alone", "a WRITE MIDDLE without a FIRST", |rc| {
        vec![plain(rc, Opcode::RC_WRITE_MIDDLE, 1024)]
    }),
    ("write_last_alone", "a WRITE LAST without a FIRST", |rc| vec![plain(rc, Opcode::RC_WRITE_LAST, 8)]),
    ("write_last_imm_alone", "a WRITE LAST with immediate without a FIRST", |rc| {
        vec![rc.request(Opcode::RC_WRITE_LAST_IMM).word(1).data(&[1; 8]).ack()]
    }),
    ("write_first_twice", "a WRITE FIRST, then a WRITE FIRST", |rc| {
        after_first(rc, |rc| write(rc, Opcode::RC_WRITE_FIRST, 2000, 1024))
    }),
    ("send_first_twice", "a SEND FIRST, then a SEND FIRST", |rc| {
        after_send_first(rc, |rc| plain(rc, Opcode::RC_SEND_FIRST, 1024))
    }),
    ("send_only_in_write", "a WRITE FIRST, then a SEND ONLY", |rc| {
        after_first(rc, |rc| plain(rc, Opcode::RC_SEND_ONLY, 8))
    }),
    ("write_only_in_send", "a SEND FIRST, then a WRITE ONLY", |rc| {
        after_send_first(rc, |rc| write(rc, WRITE, 8, 8))
    }),
    ("send_middle_in_write", "a WRITE FIRST, then a SEND MIDDLE", |rc| {
        after_first(rc, |rc| plain(rc, Opcode::RC_SEND_MIDDLE, 1024))
    }),
    ("write_last_in_send", "a SEND FIRST, then a WRITE LAST", |rc| {
        after_send_first(rc, |rc| plain(rc, Opcode::RC_WRITE_LAST, 8))
    }),
    ("read_in_write", "a WRITE FIRST, then a READ request", |rc| after_first(rc, |rc| rc.read(0, 8))),
    ("write_first_short", "a WRITE FIRST shorter than the path MTU", |rc| {
        vec![write(rc, Opcode::RC_WRITE_FIRST, 2000, 512)]
    }),
    ("send_first_short", "a SEND FIRST shorter than the path MTU", |rc| {
        vec![plain(rc, Opcode::RC_SEND_FIRST, 512)]
    }),
    ("write_middle_short", "a WRITE FIRST, then a MIDDLE shorter than the path MTU", |rc| {
        after_first(rc, |rc| plain(rc, Opcode::RC_WRITE_MIDDLE, 512))
    }),
    ("write_last_empty", "a WRITE FIRST, then a LAST without a byte", |rc| {
        after_first(rc, |rc| plain(rc, Opcode::RC_WRITE_LAST, 0))
    }),
    ("write_only_too_few", "a WRITE ONLY of 8 bytes with a RETH length of 100", |rc| {
        vec![write(rc, WRITE, 100, 8)]
    }),
    ("write_only_too_many", "a WRITE ONLY of 100 bytes with a RETH length of 8", |rc| {
        vec![write(rc, WRITE, 8, 100)]
    }),
    ("write_last_too_many", "a WRITE FIRST of 2,000 bytes, then a LAST of 1,000", |rc| {
        after_first(rc, |rc| plain(rc, Opcode::RC_WRITE_LAST, 1000))
    }),
    ("write_only_wrong_pad", "a WRITE ONLY of 8 bytes with a pad count of 1", |rc| {
        vec![write(rc, WRITE, 8, 8).pad(1)]
    }),
    ("write_only_above_mtu", "a WRITE ONLY longer than the path MTU", |rc| {
        vec![write(rc, WRITE, 1100, 1100)]
    }),
];

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Opcode sequences and lengths", Service::Rc, Role::Responder);
    for (name, stimulus, packets) in SEQUENCES {
        let check = chapter.add(
            format!("rc/sequence/{name}"),
            if name.contains("alone") || name.contains("_in_") || name.contains("twice") {
                "9.7.4.1.2"
            } else {
                "9.7.4.1.6"
            },
            stimulus,
            "an invalid sequence or length is answered by NAK Invalid Request, and the QP enters the error state",
            move |bench| is_refused(bench, packets),
        );
        if matches!(name, "send_middle_alone" | "write_only_too_few") {
            check.short();
        }
    }
    chapter.add(
        "rc/sequence/reserved_opcodes",
        "9.2.1",
        "each RC opcode that the table does not have, then a valid WRITE of the same PSN",
        "a packet with a reserved opcode is dropped, or refused by NAK Invalid Request",
        reserved_are_refused,
    );
    chapter.add(
        "rc/sequence/send_above_receive",
        "9.9.3",
        "a SEND of 256 bytes to a receive of 64",
        "a SEND that is longer than the receive is answered by NAK Invalid Request; the receive completes with a length error",
        |bench| {
            let rc = bench.rc()?;
            bench.receive(&rc, 64, 1)?;
            bench.ask(&rc, &rc.send_only(&[0xee; 256]), &["NAK_INVALID_REQUEST+0 msn 0"])?;
            bench.in_error(&rc)?;
            bench.completes(&rc, &[(0, 1)])?;
            bench.untouched(crate::bench::RECEIVES + 64, 256)
        },
    );
    chapter.add(
        "rc/sequence/response_unasked",
        "9.9.2",
        "a READ response, an atomic's answer and an ACK, to a QP that has sent no request",
        "responses that answer no request are dropped",
        |bench| {
            let rc = bench.rc()?;
            bench.send(&rc.response(Opcode::RC_READ_RESPONSE_ONLY, 0).aeth(0, 0).data(&[1; 8]))?;
            bench.send(&rc.response(Opcode::RC_ATOMIC_ACKNOWLEDGE, 0).aeth(0, 0).word(0).word(1))?;
            bench.send(&rc.ack(0, 1))?;
            bench.expect(&rc, &[])?;
            bench.works(&rc, 1)?;
            bench.completes(&rc, &[]).map(drop)
        },
    );
    for (name, opcode) in [("compare_swap", Opcode::RC_COMPARE_SWAP), ("fetch_add", Opcode::RC_FETCH_ADD)] {
        chapter
            .add(
                format!("rc/sequence/misaligned_{name}"),
                "9.7.4.1.3",
                format!("a {} at an address that is no multiple of 8", name.to_uppercase()),
                "a misaligned atomic is answered by NAK Invalid Request, and memory stays as it was",
                move |bench| misaligned_is_refused(bench, opcode),
            )
            .needs(Need::Atomics);
    }
    chapter.done()
}

fn reserved_are_refused(bench: &mut Bench) -> Script {
    for reserved in [0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f] {
        let rc = bench.rc()?;
        bench.send(&rc.request(Opcode(reserved)).ack())?;
        let came = bench.packets(&rc, 0)?;
        match came.iter().map(|seen| seen.words(rc.first)).collect::<Vec<_>>().as_slice() {
            [] => bench.works(&rc, 1)?,
            [one] if one == "NAK_INVALID_REQUEST+0 msn 0" => bench.in_error(&rc)?,
            other => {
                return Err(Stop::Breaks(format!("opcode {reserved:#x}: came {}", other.join(", "))));
            }
        }
        bench.end()?;
    }
    Ok(())
}

fn misaligned_is_refused(bench: &mut Bench, opcode: Opcode) -> Script {
    let rc = bench.rc()?;
    let request = rc.request(opcode).atomic(rc.region.addr + 4, rc.region.rkey, 1, 0).ack();
    bench.ask(&rc, &request, &["NAK_INVALID_REQUEST+0 msn 0"])?;
    bench.in_error(&rc)?;
    bench.untouched(0, 64)
}

/// Sends valid packets and a last invalid one: the last alone is refused, and the QP enters the error state.
fn is_refused(bench: &mut Bench, packets: fn(&mut Pair) -> Vec<Craft>) -> Script {
    let mut rc = bench.rc()?;
    bench.receive(&rc, 4096, 1)?;
    let mut packets = packets(&mut rc);
    let last = packets.pop().expect("a packet");
    for (n, packet) in packets.iter().enumerate() {
        bench.ask(&rc, packet, &[&format!("ACK+{n} msn 0")])?;
    }
    bench.ask(&rc, &last, &[&format!("NAK_INVALID_REQUEST+{} msn 0", packets.len())])?;
    bench.in_error(&rc)?;
    bench.untouched(4096, 4096)?;
    // The error state is silent.
    bench.ask(&rc, &rc.write_only(512, &[1; 8]), &[])?;
    Ok(())
}
