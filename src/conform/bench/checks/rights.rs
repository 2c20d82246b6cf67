//! Keys, bounds and rights of remote memory (9.4.3, 9.7.4.1.5, 10.6.3, 10.7.2).

use roxie_wire::Opcode;

use super::AT;
use crate::bench::{Bench, Pair, Setup};
use crate::check::{Chapter, Check, Need, Role};
use crate::packet::Craft;
use crate::service::Service;
use crate::verdict::Script;

/// An operation on remote memory: name, need, right of the region and the QP, request.
type Access = (&'static str, Option<Need>, char, fn(&Pair, u64, u32, u32) -> Craft);

const ACCESSES: [Access; 5] = [
    ("write", None, 'w', |rc, va, rkey, length| {
        rc.request(Opcode::RC_WRITE_ONLY).reth(va, rkey, length).data(&vec![0xee; length as usize]).ack()
    }),
    ("write_imm", None, 'w', |rc, va, rkey, length| {
        let head = rc.request(Opcode::RC_WRITE_ONLY_IMM).reth(va, rkey, length).word(9);
        head.data(&vec![0xee; length as usize]).ack()
    }),
    ("read", None, 'r', |rc, va, rkey, length| {
        rc.request(Opcode::RC_READ_REQUEST).reth(va, rkey, length).ack()
    }),
    ("compare_swap", Some(Need::Atomics), 'a', |rc, va, rkey, _| {
        rc.request(Opcode::RC_COMPARE_SWAP).atomic(va, rkey, 7, 0).ack()
    }),
    ("fetch_add", Some(Need::Atomics), 'a', |rc, va, rkey, _| {
        rc.request(Opcode::RC_FETCH_ADD).atomic(va, rkey, 7, 0).ack()
    }),
];

/// A fault: name, clause, stimulus.
const FAULTS: [(&str, &str, &str); 8] = [
    ("unknown_key", "10.6.3.1", "with an rkey that no region has"),
    ("lkey_variant", "10.6.3.1", "with an rkey of which one bit is wrong"),
    ("other_pd", "10.6.3.5", "to a region of another protection domain"),
    ("without_right", "10.6.3.1", "to a region without the right"),
    ("before_start", "10.6.3.1", "8 bytes before the region"),
    ("across_end", "10.6.3.1", "whose last bytes are beyond the region"),
    ("wrapping", "10.6.3.1", "at the last 8 bytes of the address space"),
    ("deregistered", "10.6.6.1", "to a region that was deregistered"),
];

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Keys, bounds and rights", Service::Rc, Role::Responder);
    for access in ACCESSES {
        each(&mut chapter, access);
    }
    empty_requests(&mut chapter);
    bounds(&mut chapter);
    windows(&mut chapter);
    chapter.done()
}

/// Rules that hold for each access.
fn each(chapter: &mut Chapter, access: Access) {
    let (name, need, right, _) = access;
    let upper = name.to_uppercase();
    for (fault, clause, stimulus) in FAULTS {
        let check = chapter.add(
            format!("rc/rights/{fault}/{name}"),
            clause,
            format!("a {upper} {stimulus}"),
            "the request is answered by NAK Remote Access Error, memory stays as it was, and the QP enters the error state",
            move |bench| is_denied(bench, access, fault),
        );
        check.needs(need);
        if name == "write" && matches!(fault, "unknown_key" | "across_end") {
            check.short();
        }
    }
    let check = chapter.add(
        format!("rc/rights/qp_without_right/{name}"),
        "9.7.4.1.5",
        format!("a {upper} to a QP that does not allow it"),
        "the request is refused by NAK Remote Access Error or NAK Invalid Request, and memory stays as it was",
        move |bench| qp_denies(bench, access, right),
    );
    check.needs(need);
}

/// Requests of no bytes.
fn empty_requests(chapter: &mut Chapter) {
    for (name, make) in [
        (
            "write",
            (|rc| rc.request(Opcode::RC_WRITE_ONLY).reth(0, 0x00ba_dbad, 0).ack()) as fn(&Pair) -> Craft,
        ),
        ("read", |rc| rc.request(Opcode::RC_READ_REQUEST).reth(0, 0x00ba_dbad, 0).ack()),
    ] {
        chapter.add(
            format!("rc/rights/empty_{name}"),
            "9.7.4.1.5",
            format!("a {} of no bytes with an unknown rkey", name.to_uppercase()),
            "the key of a request of no bytes is not looked at",
            move |bench| {
                let mut rc = bench.rc()?;
                let answer = if name == "read" { "READ_RESPONSE_ONLY+0 len 0" } else { "ACK+0 msn 1" };
                bench.ask(&rc, &make(&rc), &[answer])?;
                rc.advance(1);
                bench.works(&rc, 2)
            },
        );
    }
}

/// Bounds of a region.
fn bounds(chapter: &mut Chapter) {
    chapter.add(
        "rc/rights/whole_region/write",
        "10.6.3.1",
        "a WRITE that ends with the last byte of a region",
        "the last byte of a region belongs to it",
        |bench| {
            let rc = bench.rc()?;
            let region = bench.register(4096, "lw", 0)?;
            let write = rc.request(Opcode::RC_WRITE_ONLY).reth(region.addr + 4088, region.rkey, 8);
            bench.ask(&rc, &write.data(b"the last").ack(), &["ACK+0 msn 1"])?;
            bench.memory(region, 4088, b"the last")
        },
    );
    chapter.add(
        "rc/rights/fault_in_later_packet",
        "9.7.4.1.5",
        "a WRITE FIRST whose whole length does not fit the region",
        "the bounds of the whole message are checked with its first packet: nothing is written",
        |bench| {
            let rc = bench.rc()?;
            let region = bench.register(2048, "lw", 0)?;
            let first = rc.request(Opcode::RC_WRITE_FIRST).reth(region.addr, region.rkey, 4096);
            bench.ask(&rc, &first.data(&[0xee; 1024]).ack(), &["NAK_REMOTE_ACCESS+0 msn 0"])?;
            bench.memory(region, 0, &[0; 1024])?;
            bench.in_error(&rc)
        },
    );
}

/// Memory windows.
fn windows(chapter: &mut Chapter) {
    chapter
        .add(
            "rc/rights/window_and_invalidate",
            "9.4.1.1.3",
            "a WRITE by a window's rkey, a SEND with invalidate of that key, and the WRITE again",
            "a bound window opens its bytes; after the SEND with invalidate its key is a remote access error",
            |bench| {
                let mut rc = bench.rc()?;
                let window = bench.bind(&rc, 64)?;
                bench.receive(&rc, 64, 1)?;
                let write = |rc: &Pair| {
                    rc.request(Opcode::RC_WRITE_ONLY).reth(window.addr, window.rkey, 8).data(&[0xee; 8]).ack()
                };
                bench.ask(&rc, &write(&rc), &["ACK+0 msn 1"])?;
                rc.advance(1);
                let invalidate =
                    rc.request(Opcode::RC_SEND_ONLY_INVALIDATE).word(window.rkey).data(&[1; 8]).ack();
                bench.ask(&rc, &invalidate, &["ACK+1 msn 2"])?;
                rc.advance(1);
                bench.ask(&rc, &write(&rc), &["NAK_REMOTE_ACCESS+2 msn 2"])?;
                bench.in_error(&rc)
            },
        )
        .needs(Need::Windows);
    chapter
        .add(
            "rc/rights/window_of_another_qp",
            "10.6.7",
            "a WRITE to one QP by the rkey of a window that another QP of the protection domain has bound, then to that QP",
            "a window of type 2 is for the QP that bound it: over another, its key is a remote access error",
            |bench| {
                let (owner, other) = (bench.rc()?, bench.rc()?);
                let window = bench.bind(&owner, 64)?;
                let write = |rc: &Pair| {
                    rc.request(Opcode::RC_WRITE_ONLY).reth(window.addr, window.rkey, 8).data(&[0xee; 8]).ack()
                };
                bench.ask(&other, &write(&other), &["NAK_REMOTE_ACCESS+0 msn 0"])?;
                bench.in_error(&other)?;
                bench.memory(window, 0, &[0; 64])?;
                bench.ask(&owner, &write(&owner), &["ACK+0 msn 1"]).map(drop)
            },
        )
        .needs(Need::Windows);
}

fn is_denied(bench: &mut Bench, access: Access, fault: &str) -> Script {
    let (_, _, right, request) = access;
    let rc = bench.rc()?;
    bench.receive(&rc, 64, 1)?;
    let letters = format!("l{}", "rwa".replace(right, ""));
    let region = match fault {
        "other_pd" => bench.register(4096, "lrwa", 1)?,
        // Remote writes and atomics need the local right too; what is left are the other remote rights.
        "without_right" => bench.register(4096, &letters, 0)?,
        _ => bench.register(4096, "lrwa", 0)?,
    };
    let (va, rkey) = match fault {
        "unknown_key" => (region.addr + AT, region.rkey ^ 0x5a5a_5a00),
        "lkey_variant" => (region.addr + AT, region.rkey ^ 1),
        "before_start" => (region.addr - 8, region.rkey),
        "across_end" => (region.addr + 4096 - 8, region.rkey),
        "wrapping" => (u64::MAX - 7, region.rkey),
        _ => (region.addr + AT, region.rkey),
    };
    if fault == "deregistered" {
        bench.deregister(region)?;
    }
    // Atomics have 8 bytes: across the end, they begin at it.
    let is_atomic = right == 'a';
    let va = if fault == "across_end" && is_atomic { va + 8 } else { va };
    bench.ask(&rc, &request(&rc, va, rkey, 16), &["NAK_REMOTE_ACCESS+0 msn 0"])?;
    bench.in_error(&rc)?;
    if fault != "deregistered" {
        bench.memory(region, 0, &[0; 4096])?;
    }
    Ok(())
}

fn qp_denies(bench: &mut Bench, access: Access, right: char) -> Script {
    let (_, _, _, request) = access;
    let rights = match right {
        'w' => "ra",
        'r' => "wa",
        _ => "rw",
    };
    let rc = bench.connect(&Setup { access: rights, ..Setup::new(Service::Rc) })?;
    bench.receive(&rc, 64, 1)?;
    bench.send(&request(&rc, rc.region.addr + AT, rc.region.rkey, 16))?;
    let came = bench.packets(&rc, 1)?;
    let words: Vec<String> = came.iter().map(|seen| seen.words(rc.first)).collect();
    let is_right = words == ["NAK_REMOTE_ACCESS+0 msn 0"] || words == ["NAK_INVALID_REQUEST+0 msn 0"];
    crate::verdict::must(is_right, || format!("expected one of the two NAKs, came {}", words.join(", ")))?;
    bench.in_error(&rc)?;
    bench.untouched(AT, 64)
}
