//! Packets that a responder drops without a word, and header bits that it ignores (7.8, 9.2, 9.3, 9.6).

use roxie_wire::Opcode;

use super::{AT, KINDS, Kind};
use crate::bench::{Bench, Pair, RECEIVES};
use crate::check::{Chapter, Check, Need, Role};
use crate::packet::Craft;
use crate::service::Service;
use crate::verdict::{Script, must};

/// A fault that makes every packet void: name, clause, stimulus, change.
type Fault = (&'static str, &'static str, &'static str, fn(Craft) -> Craft);

const FAULTS: [Fault; 6] = [
    ("bad_icrc", "7.8.1", "with a wrong ICRC", Craft::spoiled),
    ("wrong_pkey", "9.6.1", "of another partition (P_Key 0x8001)", |p| p.with(|bth| bth.pkey = 0x8001)),
    ("bad_version", "9.6.1", "of transport version 1", |p| p.with(|bth| bth.tver = 1)),
    ("unknown_opcode", "9.2.1", "with the reserved operation 0x1f", |p| {
        p.with(|bth| bth.opcode = Opcode(bth.opcode.0 | 0x1f))
    }),
    ("other_service", "9.6.1", "with the opcode of a datagram", |p| p.with(|bth| bth.opcode = Opcode(0x64))),
    ("stranger_qpn", "9.6.1", "to a QPN that no QP has", |p| {
        p.with(|bth| bth.dest_qp = roxie_wire::Qpn::new(bth.dest_qp.value() ^ 0x0055_5555))
    }),
];

/// Header fields that mean nothing to a responder: name, stimulus, change.
type Ignored = (&'static str, &'static str, fn(Craft) -> Craft);

const IGNORED: [Ignored; 6] = [
    ("reserved6", "with the six reserved bits before the QPN set", |p| p.with(|bth| bth.reserved6 = 0x3f)),
    ("reserved7", "with the seven reserved bits before the PSN set", |p| p.with(|bth| bth.reserved7 = 0x7f)),
    ("mig_req", "with MigReq set", |p| p.with(|bth| bth.mig_req = true)),
    ("fecn", "with FECN set", |p| p.with(|bth| bth.fecn = true)),
    ("limited_pkey", "with the P_Key of a limited member, 0x7fff", |p| p.with(|bth| bth.pkey = 0x7fff)),
    ("solicited", "with the solicited event bit set", |p| p.with(|bth| bth.solicited = true)),
];

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Packets and headers", Service::Rc, Role::Responder);
    for kind in KINDS {
        each(&mut chapter, kind);
    }
    for (name, stimulus, change) in IGNORED {
        chapter.add(
            format!("rc/ignored/{name}"),
            "9.2",
            format!("a SEND {stimulus}"),
            "the request is executed as any other",
            move |bench| {
                let rc = bench.rc()?;
                bench.receive(&rc, 64, 1)?;
                let request = change(rc.send_only(b"sixteen bytes..."));
                bench.ask(&rc, &request, &["ACK+0 msn 1"])?;
                bench.completes(&rc, &[(0, 0)]).map(drop)
            },
        );
    }
    chapter.add(
        "rc/dropped/unpadded/send_only",
        "9.6.1",
        "a SEND of 7 bytes without a pad",
        "a packet whose payload and pad are no multiple of 4 bytes is dropped",
        |bench| {
            let send = KINDS[0];
            lenient_if_acknowledged(bench, send, |rc| rc.send_only(b"seven b").unpadded())
        },
    );
    chapter.add(
        "rc/dropped/pad_without_payload/send_only",
        "9.6.1",
        "a SEND without a byte whose header claims 3 bytes of pad",
        "a packet with fewer bytes than pad is dropped",
        |bench| lenient_if_acknowledged(bench, KINDS[0], |rc| rc.send_only(b"").pad(3)),
    );
    for (name, receives) in [("send", 3), ("write", 0)] {
        chapter.add(
            format!("rc/pad/{name}"),
            "9.2",
            format!("a {} of 5, 6 and 7 bytes", name.to_uppercase()),
            "the pad is no part of the message: the bytes behind the payload stay as they were",
            move |bench| pad_stays_out(bench, receives),
        );
    }
    chapter
        .add(
            "rc/dropped/other_udp_port/write_only",
            "A17.4.3",
            "a WRITE to UDP port 4792",
            "a datagram to another port than 4791 is no RoCE v2 packet",
            |bench| is_dropped(bench, KINDS[2], |rc| Craft { port: 4792, ..(KINDS[2].craft)(rc) }),
        )
        .needs(Need::CapNetRaw);
    chapter.done()
}

/// Rules that hold for each request.
fn each(chapter: &mut Chapter, kind: Kind) {
    for (name, clause, stimulus, fault) in FAULTS {
        let check = chapter.add(
            format!("rc/dropped/{name}/{}", kind.name),
            clause,
            format!("a {} {stimulus}, then a valid WRITE of the same PSN", kind.name.to_uppercase()),
            "the packet is dropped without an answer or an effect, and the valid request is executed",
            move |bench| is_dropped(bench, kind, |rc| fault((kind.craft)(rc))),
        );
        check.needs(kind.need);
        if kind.name == "write_only" {
            check.short();
        }
    }
    let check = chapter.add(
        format!("rc/dropped/short/{}", kind.name),
        "9.3",
        format!("a {} that ends within its headers", kind.name.to_uppercase()),
        "a packet that is too short for the headers of its opcode is dropped without an answer",
        move |bench| {
            is_dropped(bench, kind, |rc| {
                let mut packet = (kind.craft)(rc);
                packet.payload.clear();
                if packet.headers.is_empty() { truncated(packet) } else { packet.cut(4) }
            })
        },
    );
    check.needs(kind.need);
    let check = chapter.add(
        format!("rc/dropped/other_address/{}", kind.name),
        "9.6.1",
        format!("a {} from an address that is not the peer's", kind.name.to_uppercase()),
        "a packet to a connected QP from another address than its peer's is dropped",
        move |bench| {
            let stranger = bench.wire.stranger();
            is_dropped(bench, kind, |rc| Craft { from: Some(stranger), ..(kind.craft)(rc) })
        },
    );
    check.needs(Need::CapNetRaw).needs(kind.need);
}

/// Sends messages that need a pad of 3, 2 and 1 bytes: SENDs if there are receives, else WRITEs.
fn pad_stays_out(bench: &mut Bench, receives: u32) -> Script {
    let mut rc = bench.rc()?;
    bench.receive(&rc, 64, receives)?;
    let at = if receives > 0 { RECEIVES } else { AT };
    for (ahead, length) in [5u64, 6, 7].into_iter().enumerate() {
        let bytes = vec![0xee; length as usize];
        let request = if receives > 0 { rc.send_only(&bytes) } else { rc.write_only(AT, &bytes) };
        bench.ask(&rc, &request, &[&format!("ACK+{ahead} msn {}", ahead + 1)])?;
        bench.memory(rc.region, at, &bytes)?;
        bench.untouched(at + length, 8)?;
        rc.advance(1);
    }
    let done = bench.completes(&rc, &[(0, 0), (1, 0), (2, 0)][..receives as usize])?;
    let lengths: Vec<u32> = done.iter().map(|wc| wc.length).collect();
    must(receives == 0 || lengths == [5, 6, 7], || format!("completions have {lengths:?} bytes"))
}

/// Returns a packet with an opcode of immediate data, which the packet lacks.
fn truncated(mut packet: Craft) -> Craft {
    packet.bth.opcode = Opcode::RC_SEND_ONLY_IMM;
    packet
}

/// Sends a void packet, then a valid WRITE of the same PSN: only the WRITE may be answered or have an effect.
fn is_dropped(bench: &mut Bench, kind: Kind, packet: impl Fn(&Pair) -> Craft) -> Script {
    let rc = bench.rc()?;
    if kind.receives > 0 {
        bench.receive(&rc, 64, 1)?;
    }
    bench.send(&packet(&rc))?;
    bench.expect(&rc, &[])?;
    bench.works(&rc, 1)?;
    bench.untouched(AT, 64)?;
    bench.completes(&rc, &[]).map(drop)
}

/// As [`is_dropped`], for packets that do no harm if they are taken.
fn lenient_if_acknowledged(bench: &mut Bench, kind: Kind, packet: impl Fn(&Pair) -> Craft) -> Script {
    use crate::verdict::Stop;

    let rc = bench.rc()?;
    bench.receive(&rc, 64, kind.receives as u32)?;
    bench.send(&packet(&rc))?;
    let came = bench.packets(&rc, 0)?;
    match came.iter().map(|seen| seen.words(rc.first)).collect::<Vec<_>>().as_slice() {
        [] => bench.works(&rc, 1),
        [one] if one == "ACK+0 msn 1" => {
            Err(Stop::Lenient("the packet was executed and acknowledged".into()))
        }
        other => Err(Stop::Breaks(format!("expected silence, came {}", other.join(", ")))),
    }
}
