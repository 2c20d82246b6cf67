//! Datagrams (9.8.3, 10.2.5, 11.6).

use std::net::IpAddr;

use roxie_wire::{Deth, Opcode, Qpn};

use crate::bench::{Bench, Pair, QKEY, RECEIVES, Setup};
use crate::check::{Chapter, Check, Role};
use crate::packet::Craft;
use crate::service::Service;
use crate::verdict::{Script, must};

/// Bytes in front of a received datagram.
const GRH: usize = 40;
/// QPN from which datagrams come.
const SOURCE: u32 = 0x0077_7777;

/// Returns a valid datagram.
fn datagram(ud: &Pair, payload: &[u8]) -> Craft {
    with_qkey(ud, QKEY, payload)
}

fn with_qkey(ud: &Pair, qkey: u32, payload: &[u8]) -> Craft {
    let mut packet = Craft::new(Opcode(0x64), ud.qpn, ud.next).data(payload);
    packet.headers.extend(Deth { qkey, src_qp: Qpn::new(SOURCE) }.to_bytes());
    packet
}

/// A datagram that is dropped: name, clause, stimulus, packet.
type Dropped = (&'static str, &'static str, &'static str, fn(&Pair) -> Craft);

const DROPPED: [Dropped; 10] = [
    ("wrong_qkey", "10.2.5", "a datagram with another Q_Key", |ud| with_qkey(ud, QKEY ^ 1, b"the wrong one")),
    ("bad_icrc", "7.8.1", "a datagram with a wrong ICRC", |ud| datagram(ud, b"the wrong one").spoiled()),
    ("wrong_pkey", "9.6.1", "a datagram of another partition", |ud| {
        datagram(ud, b"the wrong one").with(|bth| bth.pkey = 0x8001)
    }),
    ("bad_version", "9.6.1", "a datagram of transport version 1", |ud| {
        datagram(ud, b"the wrong one").with(|bth| bth.tver = 1)
    }),
    ("reserved_opcode", "9.2.1", "the opcode 0x66, which UD does not have", |ud| {
        datagram(ud, b"the wrong one").with(|bth| bth.opcode = Opcode(0x66))
    }),
    ("rc_send", "9.6.1", "a SEND of RC", |ud| {
        datagram(ud, b"the wrong one").with(|bth| bth.opcode = Opcode::RC_SEND_ONLY)
    }),
    ("uc_write", "9.6.1", "a WRITE of UC", |ud| {
        let write = Craft::new(Opcode::UC_WRITE_ONLY, ud.qpn, ud.next);
        write.reth(ud.region.addr, ud.region.rkey, 8).data(&[0xee; 8])
    }),
    ("short_deth", "9.3", "a datagram that ends within its DETH", |ud| datagram(ud, b"").cut(4)),
    ("above_receive", "9.8.3.2", "a datagram longer than the receive", |ud| datagram(ud, &[0xee; 512])),
    ("stranger_qpn", "9.6.1", "a datagram to a QPN that no QP has", |ud| {
        datagram(ud, b"the wrong one").with(|bth| bth.dest_qp = Qpn::new(bth.dest_qp.value() ^ 0x0055_5555))
    }),
];

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Datagrams", Service::Ud, Role::Responder);
    for (name, clause, stimulus, packet) in DROPPED {
        let check = chapter.add(
            format!("ud/dropped/{name}"),
            clause,
            format!("{stimulus}, then a valid one"),
            "the datagram is dropped without an answer, and the next one is received",
            move |bench| is_dropped(bench, packet),
        );
        if name == "wrong_qkey" {
            check.short();
        }
    }
    received(&mut chapter);
    chapter.add(
        "ud/dropped/no_receive",
        "9.8.3.2",
        "a datagram to a QP without a receive, then a receive and a datagram",
        "a datagram that finds no receive is dropped without an answer",
        |bench| {
            let ud = bench.connect(&Setup::new(Service::Ud))?;
            bench.ask(&ud, &datagram(&ud, b"lost"), &[])?;
            bench.receive(&ud, 256, 1)?;
            bench.ask(&ud, &datagram(&ud, b"received"), &[])?;
            let done = bench.completes(&ud, &[(0, 0)])?;
            must(done[0].length == 48, || format!("{} bytes were received, expected 48", done[0].length))
        },
    );
    chapter.done()
}

/// Datagrams that are received.
fn received(chapter: &mut Chapter) {
    for length in [0, 1, 4, 1023, 1024] {
        chapter
            .add(
                format!("ud/valid/{length}_bytes"),
                "9.8.3",
                format!("a datagram of {length} bytes"),
                "the datagram is received behind 40 bytes for the network header, with its length and its source QPN",
                move |bench| is_received(bench, length),
            )
            .short();
    }
    chapter.add(
        "ud/valid/immediate",
        "9.8.3",
        "a datagram with immediate data",
        "the immediate data is in the completion",
        |bench| {
            let ud = bench.connect(&Setup::new(Service::Ud))?;
            bench.receive(&ud, 256, 1)?;
            let packet = datagram(&ud, b"received").with(|bth| bth.opcode = Opcode(0x65)).word(0x0102_0304);
            bench.ask(&ud, &packet, &[])?;
            let done = bench.completes(&ud, &[(0, 0)])?;
            must(done[0].imm == 0x0102_0304, || format!("the immediate data is {:#x}", done[0].imm))
        },
    );
    chapter.add(
        "ud/valid/network_header",
        "A17.4.5.2",
        "a valid datagram of 8 bytes",
        "the 40 bytes in front of it end with the source and destination address of the datagram",
        |bench| {
            let ud = bench.connect(&Setup::new(Service::Ud))?;
            bench.receive(&ud, 256, 1)?;
            bench.ask(&ud, &datagram(&ud, b"received"), &[])?;
            bench.completes(&ud, &[(0, 0)])?;
            let header = bench.peek(ud.region, RECEIVES, GRH)?;
            let bytes = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            let expected = [bytes(bench.wire.here()), bytes(bench.wire.target())].concat();
            must(header.ends_with(&expected), || format!("the header is {header:02x?}"))
        },
    );
    chapter.add(
        "ud/valid/any_psn",
        "9.8.3.2",
        "datagrams with PSNs that go back and forth",
        "the PSN of a datagram means nothing to the receiver",
        |bench| {
            let ud = bench.connect(&Setup::new(Service::Ud))?;
            bench.receive(&ud, 256, 3)?;
            for ahead in [1000, -1000, 0] {
                let psn = ud.request_at(Opcode::RC_SEND_ONLY, ahead).bth.psn;
                bench.send(&datagram(&ud, b"received").with(|bth| bth.psn = psn))?;
            }
            bench.expect(&ud, &[])?;
            bench.completes(&ud, &[(0, 0), (1, 0), (2, 0)]).map(drop)
        },
    );
}

fn is_received(bench: &mut Bench, length: u32) -> Script {
    let ud = bench.connect(&Setup::new(Service::Ud))?;
    bench.receive(&ud, 2048, 1)?;
    let bytes: Vec<u8> = (0..length).map(|n| n as u8).collect();
    bench.ask(&ud, &datagram(&ud, &bytes), &[])?;
    let done = bench.completes(&ud, &[(0, 0)])?;
    must(done[0].length == 40 + length && done[0].source == SOURCE, || {
        format!(
            "{} bytes from QP {:#x}, expected {} and {SOURCE:#x}",
            done[0].length,
            done[0].source,
            40 + length
        )
    })?;
    bench.memory(ud.region, RECEIVES + 40, &bytes)
}

fn is_dropped(bench: &mut Bench, packet: fn(&Pair) -> Craft) -> Script {
    let ud = bench.connect(&Setup::new(Service::Ud))?;
    bench.receive(&ud, 256, 2)?;
    bench.send(&packet(&ud))?;
    bench.ask(&ud, &datagram(&ud, b"the next message"), &[])?;
    let done = bench.completes(&ud, &[(0, 0)])?;
    must(done[0].length == 56, || {
        format!("a message of {} bytes was received, expected 56", done[0].length)
    })?;
    bench.memory(ud.region, RECEIVES + 40, b"the next message")
}
