//! The unreliable connection: lost messages are dropped without an answer (9.8.2).

use roxie_wire::Opcode;

use crate::bench::{Bench, Pair, RECEIVES, Setup};
use crate::check::{Chapter, Check, Role};
use crate::packet::Craft;
use crate::service::Service;
use crate::verdict::{Script, must};

/// Packets of UC that are dropped: name, clause, stimulus, packets with PSNs from the next one on.
type Dropped = (&'static str, &'static str, &'static str, fn(&mut Pair) -> Vec<Craft>);

fn write(uc: &Pair, opcode: Opcode, length: u32, sent: usize) -> Craft {
    uc.request(opcode).reth(uc.region.addr, uc.region.rkey, length).data(&vec![0xee; sent])
}

fn plain(uc: &Pair, opcode: Opcode, sent: usize) -> Craft {
    uc.request(opcode).data(&vec![0xee; sent])
}

const DROPPED: [Dropped; 14] = [
    ("bad_icrc", "7.8.1", "a SEND with a wrong ICRC", |uc| {
        vec![plain(uc, Opcode::RC_SEND_ONLY, 8).spoiled()]
    }),
    ("wrong_pkey", "9.6.1", "a SEND of another partition", |uc| {
        vec![plain(uc, Opcode::RC_SEND_ONLY, 8).with(|bth| bth.pkey = 0x8001)]
    }),
    ("bad_version", "9.6.1", "a SEND of transport version 1", |uc| {
        vec![plain(uc, Opcode::RC_SEND_ONLY, 8).with(|bth| bth.tver = 1)]
    }),
    ("other_service", "9.6.1", "a SEND of RC", |uc| {
        vec![plain(uc, Opcode::RC_SEND_ONLY, 8).with(|bth| bth.opcode = Opcode::RC_SEND_ONLY)]
    }),
    ("reserved_opcode", "9.2.1", "the opcode 0x2c, which UC does not have", |uc| {
        vec![plain(uc, Opcode::RC_SEND_ONLY, 8).with(|bth| bth.opcode = Opcode(0x2c))]
    }),
    ("middle_alone", "9.8.2.2", "a SEND MIDDLE without a FIRST", |uc| {
        vec![plain(uc, Opcode::RC_SEND_MIDDLE, 1024)]
    }),
    ("last_alone", "9.8.2.2", "a SEND LAST without a FIRST", |uc| vec![plain(uc, Opcode::RC_SEND_LAST, 8)]),
    ("gap_in_message", "9.8.2.2", "a SEND FIRST, and a LAST two PSNs later", |uc| {
        let first = plain(uc, Opcode::RC_SEND_FIRST, 1024);
        uc.advance(2);
        vec![first, plain(uc, Opcode::RC_SEND_LAST, 8)]
    }),
    ("write_unknown_key", "9.8.2.2", "a WRITE with an unknown rkey", |uc| {
        vec![uc.request(Opcode::RC_WRITE_ONLY).reth(uc.region.addr, 0x00ba_dbad, 8).data(&[0xee; 8])]
    }),
    ("write_beyond_region", "9.8.2.2", "a WRITE across the region's end", |uc| {
        let at = uc.region.addr + crate::bench::REGION - 4;
        vec![uc.request(Opcode::RC_WRITE_ONLY).reth(at, uc.region.rkey, 8).data(&[0xee; 8])]
    }),
    ("write_wrong_length", "9.8.2.2", "a WRITE ONLY of 8 bytes with a RETH length of 100", |uc| {
        vec![write(uc, Opcode::RC_WRITE_ONLY, 100, 8)]
    }),
    ("short_first", "9.8.2.2", "a SEND FIRST shorter than the path MTU", |uc| {
        vec![plain(uc, Opcode::RC_SEND_FIRST, 512)]
    }),
    ("short_reth", "9.3", "a WRITE that ends within its RETH", |uc| {
        vec![write(uc, Opcode::RC_WRITE_ONLY, 8, 0).cut(4)]
    }),
    ("read_request", "9.6.1", "a READ request of RC", |uc| {
        let read = uc.request(Opcode::RC_READ_REQUEST).reth(uc.region.addr, uc.region.rkey, 8);
        vec![read.with(|bth| bth.opcode = Opcode::RC_READ_REQUEST)]
    }),
];

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Unreliable connection", Service::Uc, Role::Responder);
    for (name, clause, stimulus, packets) in DROPPED {
        let check = chapter.add(
            format!("uc/dropped/{name}"),
            clause,
            format!("{stimulus}, then a valid SEND"),
            "the packet is dropped without an answer, and the next message is received",
            move |bench| is_dropped(bench, packets),
        );
        if name == "bad_icrc" {
            check.short();
        }
    }
    received(&mut chapter);
    chapter.add(
        "uc/dropped/no_receive",
        "9.8.2.2",
        "a SEND to a QP without a receive, then a receive and a SEND",
        "a SEND that finds no receive is dropped without an answer",
        |bench| {
            let mut uc = bench.connect(&Setup::new(Service::Uc))?;
            bench.ask(&uc, &plain(&uc, Opcode::RC_SEND_ONLY, 8), &[])?;
            uc.advance(1);
            bench.receive(&uc, 64, 1)?;
            bench.ask(&uc, &plain(&uc, Opcode::RC_SEND_ONLY, 12), &[])?;
            let done = bench.completes(&uc, &[(0, 0)])?;
            must(done[0].length == 12, || format!("the message of {} bytes was received", done[0].length))
        },
    );
    chapter.done()
}

/// Messages that are received.
fn received(chapter: &mut Chapter) {
    for (name, opcode, has_imm) in [
        ("send_only", Opcode::RC_SEND_ONLY, false),
        ("send_only_imm", Opcode::RC_SEND_ONLY_IMM, true),
        ("write_only", Opcode::RC_WRITE_ONLY, false),
        ("write_only_imm", Opcode::RC_WRITE_ONLY_IMM, true),
    ] {
        chapter
            .add(
                format!("uc/valid/{name}"),
                "9.8.2",
                format!("a valid {} that asks for an acknowledgement", name.to_uppercase()),
                "the request is executed, and UC acknowledges nothing",
                move |bench| valid(bench, opcode, has_imm),
            )
            .short();
    }
    chapter.add(
        "uc/valid/gap_between_messages",
        "9.8.2.2",
        "a SEND, and a SEND 5 PSNs later",
        "messages are lost as a whole: the next message is received whatever its PSN",
        |bench| {
            let mut uc = bench.connect(&Setup::new(Service::Uc))?;
            bench.receive(&uc, 2048, 2)?;
            bench.send(&plain(&uc, Opcode::RC_SEND_ONLY, 8))?;
            uc.advance(5);
            bench.ask(&uc, &plain(&uc, Opcode::RC_SEND_ONLY, 8), &[])?;
            bench.completes(&uc, &[(0, 0), (1, 0)]).map(drop)
        },
    );
    chapter.add(
        "uc/valid/three_packets",
        "9.8.2",
        "a SEND of FIRST, MIDDLE and LAST",
        "the message is received in one receive",
        |bench| {
            let mut uc = bench.connect(&Setup::new(Service::Uc))?;
            bench.receive(&uc, 4096, 1)?;
            for (opcode, length) in
                [(Opcode::RC_SEND_FIRST, 1024), (Opcode::RC_SEND_MIDDLE, 1024), (Opcode::RC_SEND_LAST, 5)]
            {
                bench.send(&plain(&uc, opcode, length))?;
                uc.advance(1);
            }
            bench.expect(&uc, &[])?;
            let done = bench.completes(&uc, &[(0, 0)])?;
            must(done[0].length == 2053, || {
                format!("{} bytes were received, expected 2053", done[0].length)
            })?;
            bench.memory(uc.region, RECEIVES, &[0xee; 2053])
        },
    );
}

fn is_dropped(bench: &mut Bench, packets: fn(&mut Pair) -> Vec<Craft>) -> Script {
    let mut uc = bench.connect(&Setup::new(Service::Uc))?;
    bench.receive(&uc, 4096, 2)?;
    for packet in packets(&mut uc) {
        bench.send(&packet)?;
    }
    bench.expect(&uc, &[])?;
    bench.untouched(0, 4096)?;
    uc.advance(1);
    bench.ask(&uc, &uc.request(Opcode::RC_SEND_ONLY).data(b"the next message"), &[])?;
    let done = bench.completes(&uc, &[(0, 0)])?;
    must(done[0].length == 16, || {
        format!("a message of {} bytes was received, expected 16", done[0].length)
    })?;
    bench.memory(uc.region, RECEIVES, b"the next message")
}

fn valid(bench: &mut Bench, opcode: Opcode, has_imm: bool) -> Script {
    let uc = bench.connect(&Setup::new(Service::Uc))?;
    bench.receive(&uc, 64, 1)?;
    let is_write = matches!(opcode, Opcode::RC_WRITE_ONLY | Opcode::RC_WRITE_ONLY_IMM);
    let mut request = uc.request(opcode);
    if is_write {
        request = request.reth(uc.region.addr, uc.region.rkey, 8);
    }
    if has_imm {
        request = request.word(0x0102_0304);
    }
    bench.ask(&uc, &request.data(b"received").ack(), &[])?;
    bench.memory(uc.region, if is_write { 0 } else { RECEIVES }, b"received")?;
    let takes_receive = !is_write || has_imm;
    let done = bench.completes(&uc, if takes_receive { &[(0, 0)] } else { &[] })?;
    must(!has_imm || done.first().is_some_and(|wc| wc.imm == 0x0102_0304), || {
        format!("completed as {done:?}")
    })
}
