//! Extended reliable connections (annex A14): requests of a peer name the shared receive queue that takes them, by its
//! number.

use roxie_wire::Opcode;

use super::psn::{ahead, duplicate};
use super::{AT, KINDS, Kind};
use crate::bench::{Bench, Pair, Setup};
use crate::check::{Chapter, Check, Need, Role};
use crate::service::Service;
use crate::verdict::{Script, must};

/// Makes a shared receive queue in an XRC domain of the agent. Returns the agent's number, and that which requests
/// name.
fn queue(bench: &mut Bench, domain: u8) -> Script<(u64, u32)> {
    let made = bench.agent.ask(&format!("srq domain={domain}"))?;
    let (id, srqn) = (made.number("qp")?, made.word32("srqn")?);
    bench.open.push(id);
    Ok((id, srqn))
}

/// Makes an XRC target and a shared receive queue in its domain. Requests of the first name the second.
fn target(bench: &mut Bench) -> Script<(Pair, Pair)> {
    let (id, srqn) = queue(bench, 0)?;
    let target = Pair { srqn, ..bench.connect(&Setup::new(Service::Xrc))? };
    Ok((target.clone(), Pair { id, ..target }))
}

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Extended reliable connection", Service::Xrc, Role::Responder);
    for kind in KINDS {
        each(&mut chapter, kind);
    }
    queues(&mut chapter);
    refusals(&mut chapter);
    dropped(&mut chapter);
    let mut checks = chapter.done();
    for check in &mut checks {
        check.needs(Need::Xrc);
    }
    checks
}

/// Rules that hold for each request.
fn each(chapter: &mut Chapter, kind: Kind) {
    let upper = kind.name.to_uppercase();
    chapter
        .add(
            format!("xrc/valid/{}", kind.name),
            "A14",
            format!("a valid {upper} that names a shared receive queue of the target's domain"),
            "the request is executed and answered, and takes its receive from that queue",
            move |bench| {
                let (target, queue) = target(bench)?;
                bench.receive(&queue, 64, 1)?;
                bench.ask(&target, &(kind.craft)(&target), &[&kind.answered(0, 1)])?;
                bench.completes(&queue, &vec![(0, 0); kind.receives]).map(drop)
            },
        )
        .needs(kind.need)
        .is_short = kind.name == "send_only";
    chapter
        .add(
            format!("xrc/duplicate/{}", kind.name),
            "9.7.5.1.2",
            format!("the same {upper} twice"),
            "a duplicate is answered again and executed once",
            move |bench| {
                let (target, queue) = target(bench)?;
                duplicate(bench, target, &queue, kind)
            },
        )
        .needs(kind.need);
    chapter
        .add(
            format!("xrc/ahead/{}", kind.name),
            "9.7.5.2.8",
            format!("a {upper} three PSNs ahead, twice, then a valid WRITE"),
            "a gap is answered by one sequence NAK of the expected PSN; what is ahead is not executed",
            move |bench| {
                let (target, queue) = target(bench)?;
                ahead(bench, &target, &queue, kind, 3)
            },
        )
        .needs(kind.need);
    for (name, stimulus) in
        [("unknown_queue", "that no queue has"), ("other_domain", "of a queue in another XRC domain")]
    {
        chapter
            .add(
                format!("xrc/refused/{name}/{}", kind.name),
                "A14",
                format!("a {upper} with the number {stimulus}"),
                "NAK Invalid Request; nothing is executed, and no receive is taken",
                move |bench| refused(bench, kind, name == "other_domain"),
            )
            .needs(kind.need);
    }
}

fn refused(bench: &mut Bench, kind: Kind, is_foreign: bool) -> Script {
    let (mut target, own) = target(bench)?;
    let (id, srqn) = queue(bench, 1)?;
    let foreign = Pair { id, srqn, ..own.clone() };
    for queue in [&own, &foreign] {
        bench.receive(queue, 64, 1)?;
    }
    target.srqn = if is_foreign { srqn } else { unused(own.srqn, srqn) };
    bench.ask(&target, &(kind.craft)(&target), &["NAK_INVALID_REQUEST+0 msn 0"])?;
    bench.untouched(AT, 64)?;
    bench.completes(&own, &[])?;
    bench.completes(&foreign, &[]).map(drop)
}

/// Returns a number of 24 bits that neither queue has. An agent has no others.
fn unused(own: u32, foreign: u32) -> u32 {
    (1..0x0100_0000).rev().find(|number| ![own, foreign].contains(number)).unwrap_or_default()
}

/// Rules about the queue that requests name.
fn queues(chapter: &mut Chapter) {
    chapter.add(
        "xrc/queue/each_takes_its_own",
        "A14",
        "two SENDs to two queues of the target's domain, the second queue's first",
        "each SEND completes a receive of the queue that it names, and none of the other",
        |bench| {
            let (mut target, first) = target(bench)?;
            let (id, srqn) = queue(bench, 0)?;
            let second = Pair { id, srqn, ..first.clone() };
            for (queue, answer) in [(&second, "ACK+0 msn 1"), (&first, "ACK+1 msn 2")] {
                bench.receive(&first, 64, 1)?;
                bench.receive(&second, 64, 1)?;
                target.srqn = queue.srqn;
                bench.ask(&target, &target.send_only(b"sixteen bytes..."), &[answer])?;
                bench.completes(queue, &[(0, 0)])?;
                target.advance(1);
            }
            // Each queue has one receive left.
            bench.completes(&first, &[])?;
            bench.completes(&second, &[]).map(drop)
        },
    );
    chapter.add(
        "xrc/queue/changes_in_message",
        "A14",
        "a SEND FIRST that names a queue, and its LAST that names another one of the domain",
        "all packets of a message name one queue: the LAST gets NAK Invalid Request",
        |bench| {
            let (mut target, first) = target(bench)?;
            let (id, srqn) = queue(bench, 0)?;
            let second = Pair { id, srqn, ..first.clone() };
            bench.receive(&first, 2048, 1)?;
            bench.receive(&second, 2048, 1)?;
            let begin = target.request(Opcode::RC_SEND_FIRST).data(&[1; 1024]).ack();
            bench.ask(&target, &begin, &["ACK+0 msn 0"])?;
            target.advance(1);
            target.srqn = srqn;
            let end = target.request(Opcode::RC_SEND_LAST).data(&[2; 8]).ack();
            bench.ask(&target, &end, &["NAK_INVALID_REQUEST+1 msn 0"])?;
            bench.completes(&second, &[]).map(drop)
        },
    );
    chapter.add(
        "xrc/queue/long_message",
        "A14",
        "a SEND of three packets to a shared receive queue",
        "the message takes one receive, with its whole length",
        |bench| {
            let (mut target, queue) = target(bench)?;
            bench.receive(&queue, 4096, 2)?;
            for opcode in [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE] {
                bench.send(&target.request(opcode).data(&[1; 1024]))?;
                target.advance(1);
            }
            let last = target.request(Opcode::RC_SEND_LAST).data(&[2; 8]).ack();
            bench.ask(&target, &last, &["ACK+2 msn 1"])?;
            let done = bench.completes(&queue, &[(0, 0)])?;
            must(done[0].length == 2056, || format!("the completion is {:?}", done[0]))
        },
    );
}

/// Requests that the queue cannot take, or whose key is of another domain.
fn refusals(chapter: &mut Chapter) {
    chapter.add(
        "xrc/queue/empty",
        "9.7.5.2.8",
        "a SEND to a queue without a receive, though another queue of the domain has one; then again with one",
        "an RNR NAK, and no receive of the other queue is taken; the SEND that comes again is executed",
        |bench| {
            let (target, first) = target(bench)?;
            let (id, srqn) = queue(bench, 0)?;
            let second = Pair { id, srqn, ..first.clone() };
            bench.receive(&second, 64, 1)?;
            bench.ask(&target, &target.send_only(&[1; 8]), &["RNR_NAK+0 msn 0"])?;
            bench.receive(&first, 64, 1)?;
            bench.ask(&target, &target.send_only(&[1; 8]), &["ACK+0 msn 1"])?;
            bench.completes(&first, &[(0, 0)])?;
            bench.completes(&second, &[]).map(drop)
        },
    );
    chapter.add(
        "xrc/queue/key_of_another_domain",
        "A14",
        "a WRITE to a region of another protection domain than that of the queue that it names",
        "NAK Remote Access Error: keys are those of the queue's protection domain",
        |bench| {
            let (mut target, _) = target(bench)?;
            target.region = bench.register(4096, "lrwa", 1)?;
            bench.ask(&target, &target.write_only(0, &[0xee; 8]), &["NAK_REMOTE_ACCESS+0 msn 0"])?;
            bench.memory(target.region, 0, &[0; 8])
        },
    );
}

/// Packets that a target does not take.
fn dropped(chapter: &mut Chapter) {
    chapter.add(
        "xrc/dropped/other_service",
        "9.6.1",
        "a SEND ONLY of RC and one of UC to an XRC target, then a valid WRITE",
        "a packet of another service is dropped: no answer, no receive taken, and the WRITE is executed",
        |bench| {
            let (target, queue) = target(bench)?;
            bench.receive(&queue, 64, 1)?;
            for service in [Service::Rc, Service::Uc] {
                let foreign = Pair { service, ..target.clone() };
                bench.ask(&foreign, &foreign.send_only(b"sixteen bytes..."), &[])?;
            }
            bench.works(&target, 1)?;
            bench.completes(&queue, &[]).map(drop)
        },
    );
    chapter.add(
        "xrc/dropped/response",
        "A14",
        "an acknowledgement to an XRC target, then a valid WRITE",
        "a target sends no requests and takes no responses: no answer, and the WRITE is executed",
        |bench| {
            let (target, _) = target(bench)?;
            bench.send(&target.response(Opcode::XRC_ACKNOWLEDGE, 0).aeth(0x1f, 1))?;
            bench.expect(&target, &[])?;
            bench.works(&target, 1)
        },
    );
}
