//! Congestion notifications (A17.9).

use std::time::Duration;

use roxie_wire::Opcode;

use crate::bench::{Bench, Setup};
use crate::check::{Chapter, Check, Need, Role};
use crate::packet::Craft;
use crate::service::Service;
use crate::verdict::{Script, Stop, must};

/// ECN codepoints (RFC 3168 5): ECT(0), CE.
const ECT: u8 = 2;
const CE: u8 = 3;

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Congestion notifications", Service::Rc, Role::Responder);
    notifications(&mut chapter);
    silence(&mut chapter);
    for (name, pieces) in [("to_idle_qp", 1), ("hundred_to_idle_qp", 100)] {
        chapter.add(
            format!("rc/cnp/{name}"),
            "A17.9.3",
            format!("{pieces} CNP to a QP that has sent nothing"),
            "a CNP has no PSN and no answer, and does no harm",
            move |bench| {
                let rc = bench.rc()?;
                for _ in 0..pieces {
                    bench.send(&cnp(&rc))?;
                }
                bench.expect(&rc, &[])?;
                bench.works(&rc, 1)
            },
        );
    }
    let mut requester = Chapter::new("Congestion notifications", Service::Rc, Role::Requester);
    requester.add(
        "rc/cnp/to_sending_qp",
        "A17.9.3",
        "the agent posts a SEND of 64 packets; the bench answers the first packets by a CNP and the last by an ACK",
        "a CNP may lower the rate: it neither acknowledges nor stops the message",
        sending,
    );
    requester
        .add(
            "rc/cnp/of_marked_response",
            "A17.9.3",
            "a marked WRITE, as a probe; then the agent posts a READ, whose response a switch has marked (ECN 11)",
            "a notification point answers a marked READ response as any marked data: by a CNP to the QP that sent it",
            of_marked_response,
        )
        .needs(Need::CapNetRaw);
    let mut all = chapter.done();
    all.extend(requester.done());
    all
}

/// Marked packets, which cause CNPs.
fn notifications(chapter: &mut Chapter) {
    chapter
        .add(
            "rc/cnp/of_marked_write",
            "A17.9.3",
            "a WRITE that a switch has marked (ECN 11)",
            "a notification point sends a CNP to the sender: BECN is set, the destination is the sender's QP; the WRITE is executed",
            |bench| {
                let rc = bench.rc()?;
                let write = rc.write_only(512, b"marked");
                bench.send(&Craft { traffic_class: CE, ..write })?;
                let came = bench.packets(&rc, 2)?;
                bench.memory(rc.region, 512, b"marked")?;
                let cnps: Vec<_> = came.iter().filter(|seen| seen.opcode() == Opcode::CNP).collect();
                let strays = bench.wire.take_opcode(Opcode::CNP);
                must(strays.is_empty(), || format!("a CNP came to QP {}", strays[0].packet.bth.dest_qp))?;
                let acks = came.iter().filter(|seen| seen.words(rc.first) == "ACK+0 msn 1").count();
                must(acks == 1, || format!("{acks} acknowledgements came"))?;
                match cnps[..] {
                    [] => Err(Stop::NotTested("the device sends no CNPs: no notification point".into())),
                    [cnp] => must(cnp.packet.bth.becn && cnp.payload().iter().all(|byte| *byte == 0), || {
                        format!("the CNP is {}", cnp.packet)
                    }),
                    _ => Err(Stop::Breaks(format!("{} CNPs came for one packet", cnps.len()))),
                }
            },
        )
        .needs(Need::CapNetRaw);
    chapter
        .add(
            "rc/cnp/interval",
            "A17.9.3",
            "16 marked WRITEs in one burst",
            "CNPs keep a minimum interval: a burst causes few, not one a packet",
            |bench| {
                let mut rc = bench.rc()?;
                let mut burst = Vec::new();
                for _ in 0..16 {
                    burst.push(Craft { traffic_class: CE, ..rc.write_only(512, &[1; 8]) });
                    rc.advance(1);
                }
                bench.wire.send_burst(&burst, false)?;
                let came = bench.packets(&rc, 2)?;
                match came.iter().filter(|seen| seen.opcode() == Opcode::CNP).count() {
                    0 => Err(Stop::NotTested("the device sends no CNPs: no notification point".into())),
                    cnps => must(cnps <= 8, || format!("{cnps} CNPs came for 16 packets")),
                }
            },
        )
        .needs(Need::CapNetRaw);
}

/// Packets that cause no CNP.
fn silence(chapter: &mut Chapter) {
    for (name, class) in [("unmarked", 0), ("capable", ECT)] {
        chapter
            .add(
                format!("rc/cnp/not_of_{name}"),
                "A17.9.3",
                format!("a WRITE with ECN {class:02b}"),
                "a packet that no switch has marked causes no CNP",
                move |bench| {
                    let rc = bench.rc()?;
                    let write = Craft { traffic_class: class, ..rc.write_only(512, &[1; 8]) };
                    bench.ask(&rc, &write, &["ACK+0 msn 1"]).map(drop)
                },
            )
            .needs(Need::CapNetRaw);
    }
    chapter
        .add(
            "rc/cnp/not_of_void",
            "A17.9.3",
            "a marked WRITE with a wrong ICRC",
            "a packet that is void causes no CNP",
            |bench| {
                let rc = bench.rc()?;
                bench.send(&Craft { traffic_class: CE, ..rc.write_only(512, &[1; 8]).spoiled() })?;
                bench.expect(&rc, &[])?;
                bench.works(&rc, 1)
            },
        )
        .needs(Need::CapNetRaw);
}

/// Longest interval between two CNPs of a notification point that a check waits for.
const INTERVAL: Duration = Duration::from_millis(50);

fn of_marked_response(bench: &mut Bench) -> Script {
    let is_cnp = |came: &[crate::packet::Seen]| came.iter().any(|seen| seen.opcode() == Opcode::CNP);
    let probe = bench.rc()?;
    bench.send(&Craft { traffic_class: CE, ..probe.write_only(512, b"marked") })?;
    if !is_cnp(&bench.packets(&probe, 2)?) {
        return Err(Stop::NotTested("the device sends no CNPs: no notification point".into()));
    }
    std::thread::sleep(INTERVAL);
    let rc = bench.rc()?;
    bench.post(&rc, &super::requester::words("read", 8))?;
    bench.expect_requests(&rc, &["READ_REQUEST+0 len 0"])?;
    let response = rc.response(Opcode::RC_READ_RESPONSE_ONLY, 0).aeth(0x1f, 1).data(&[4; 8]);
    bench.send(&Craft { traffic_class: CE, ..response })?;
    let came = bench.packets(&rc, 1)?;
    bench.completes(&rc, &[(7, 0)])?;
    must(is_cnp(&came), || "a marked WRITE causes a CNP, a marked READ response none".into())
}

fn cnp(rc: &crate::bench::Pair) -> Craft {
    let cnp = Craft::new(Opcode::CNP, rc.qpn, roxie_wire::Psn::new(0)).with(|bth| bth.becn = true);
    cnp.data(&[0; 16])
}

fn sending(bench: &mut Bench) -> Script {
    let rc = bench.connect(&Setup { mtu: 256, ..Setup::new(Service::Rc) })?;
    bench.post(&rc, "op=send off=0 len=16384 id=7")?;
    let mut came = bench.within_time(&rc, 4, Duration::from_secs(1));
    bench.send(&cnp(&rc))?;
    // A NIC may wait for acknowledgements: each round acknowledges what has come.
    for _ in 0..64 {
        if came.len() >= 64 {
            break;
        }
        came.extend(bench.within_time(&rc, 64 - came.len(), Duration::from_millis(100)));
        let last = came.len() as i32 - 1;
        bench.send(&rc.ack(last, 0))?;
    }
    let psns: Vec<i32> = came.iter().map(|seen| seen.psn_from(rc.peer_first)).collect();
    must(psns == (0..64).collect::<Vec<_>>(), || {
        format!("packets came with the PSNs {psns:?}, expected 0 to 63")
    })?;
    bench.send(&rc.ack(63, 1))?;
    bench.completes(&rc, &[(7, 0)]).map(drop)
}
