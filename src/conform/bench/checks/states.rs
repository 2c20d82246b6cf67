//! States of a QP, and flushing (10.3.1, 10.8.3).

use std::time::Duration;

use roxie_wire::Opcode;

use crate::bench::{Bench, Setup};
use crate::check::{Chapter, Check, Role};
use crate::service::Service;
use crate::verdict::{Script, must};

/// Status of a flushed request (`IBV_WC_WR_FLUSH_ERR`).
const FLUSHED: u32 = 5;

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("States and flushing", Service::Rc, Role::Responder);
    flushing(&mut chapter);
    silence(&mut chapter);
    solicited_events(&mut chapter);
    unreliable_flushing(&mut chapter);
    chapter.done()
}

/// Requests and receives that the error state flushes.
fn flushing(chapter: &mut Chapter) {
    chapter
        .add(
            "rc/error/receives_are_flushed",
            "10.3.1.7",
            "four receives, and the agent moves the QP to the error state",
            "all receives complete with a flush error, in order",
            |bench| {
                let rc = bench.rc()?;
                bench.receive(&rc, 64, 4)?;
                bench.tell(&rc, "modify", "to=err")?;
                bench.completes(&rc, &[(0, FLUSHED), (1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]).map(drop)
            },
        )
        .short();
    chapter.add(
        "rc/error/sends_are_flushed",
        "10.3.1.7",
        "three SENDs without an acknowledgement, and the agent moves the QP to the error state",
        "all requests complete with a flush error, and nothing more is sent",
        |bench| {
            let rc = bench.rc()?;
            bench.post(&rc, "op=send off=0 len=8 n=3 id=1")?;
            bench.packets(&rc, 3)?;
            bench.tell(&rc, "modify", "to=err")?;
            bench.completes(&rc, &[(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)])?;
            bench.expect(&rc, &[]).map(drop)
        },
    );
    chapter.add(
        "rc/error/posted_later_is_flushed",
        "10.3.1.7",
        "a receive, which is flushed when the agent moves the QP to the error state; then the agent posts a receive and a SEND",
        "what is posted in the error state completes with a flush error",
        |bench| {
            let rc = bench.rc()?;
            bench.receive(&rc, 64, 1)?;
            bench.tell(&rc, "modify", "to=err")?;
            // A device may flush after the modify returns: a receive that is posted meanwhile would be flushed with the
            // first.
            bench.completes(&rc, &[(0, FLUSHED)])?;
            bench.settle()?;
            bench.receive(&rc, 64, 1)?;
            bench.completes(&rc, &[(0, FLUSHED)])?;
            bench.post(&rc, "op=send off=0 len=8 id=7")?;
            bench.completes(&rc, &[(7, FLUSHED)])?;
            bench.expect(&rc, &[]).map(drop)
        },
    );
}

/// Packets to a QP that neither executes nor answers.
fn silence(chapter: &mut Chapter) {
    for (name, to) in [("error", "err"), ("reset", "reset")] {
        chapter.add(
            format!("rc/{name}/is_silent"),
            "9.9.3",
            format!("a WRITE and an acknowledgement to a QP in the {name} state"),
            "requests and responses are dropped without an answer or an effect",
            move |bench| {
                let rc = bench.rc()?;
                bench.tell(&rc, "modify", &format!("to={to}"))?;
                bench.in_state(&rc, to)?;
                bench.send(&rc.write_only(512, &[0xee; 8]))?;
                bench.send(&rc.ack(0, 1))?;
                bench.expect(&rc, &[])?;
                bench.untouched(512, 64)
            },
        );
    }
    chapter.add(
        "rc/error/destroyed_is_silent",
        "9.6.1",
        "a WRITE to a QP that was destroyed",
        "a packet for a QP that is not there is dropped without an answer",
        |bench| {
            let rc = bench.rc()?;
            bench.destroy(&rc)?;
            bench.send(&rc.write_only(512, &[0xee; 8]))?;
            bench.expect(&rc, &[])?;
            bench.untouched(512, 64)
        },
    );
    chapter.add(
        "rc/error/after_refused_request",
        "9.9.3",
        "two receives, an invalid request, and a valid one",
        "after a refusal the receives are flushed, and the QP answers no more",
        |bench| {
            let rc = bench.rc()?;
            bench.receive(&rc, 64, 2)?;
            bench.ask(
                &rc,
                &rc.request(Opcode::RC_SEND_MIDDLE).data(&[1; 1024]).ack(),
                &["NAK_INVALID_REQUEST+0 msn 0"],
            )?;
            let done = bench.completions(&rc, 2, Duration::from_secs(1))?;
            must(done.len() == 2 && done.iter().all(|wc| wc.status != 0), || {
                format!("completed as {done:?}")
            })?;
            bench.ask(&rc, &rc.send_only(&[1; 8]), &[]).map(drop)
        },
    );
}

/// Events of solicited completions.
fn solicited_events(chapter: &mut Chapter) {
    for (solicited, name) in [(true, "raises_the_event"), (false, "without_the_bit_is_quiet")] {
        chapter.add(
            format!("rc/solicited/{name}"),
            "11.4.2.2",
            format!(
                "a SEND {} the solicited event bit, to a queue armed for solicited completions",
                if solicited { "with" } else { "without" }
            ),
            "a solicited completion raises the event of a queue armed for it, another completion does not",
            move |bench| event(bench, solicited),
        );
    }
}

/// Flushing of UC and UD.
fn unreliable_flushing(chapter: &mut Chapter) {
    for (service, name) in [(Service::Uc, "uc"), (Service::Ud, "ud")] {
        let mut other = Chapter::new("States and flushing", service, Role::Responder);
        other.add(
            format!("{name}/error/receives_are_flushed"),
            "10.3.1.7",
            "two receives, and the agent moves the QP to the error state",
            "all receives complete with a flush error, in order",
            move |bench| {
                let pair = bench.connect(&Setup::new(service))?;
                bench.receive(&pair, 64, 2)?;
                bench.tell(&pair, "modify", "to=err")?;
                bench.completes(&pair, &[(0, FLUSHED), (1, FLUSHED)]).map(drop)
            },
        );
        chapter.extend(other.done());
    }
}

fn event(bench: &mut Bench, solicited: bool) -> Script {
    let rc = bench.rc()?;
    bench.receive(&rc, 64, 1)?;
    bench.tell(&rc, "arm", "solicited=1")?;
    bench.ask(&rc, &rc.send_only(&[1; 8]).with(|bth| bth.solicited = solicited), &["ACK+0 msn 1"])?;
    let raised = bench.tell(&rc, "event", if solicited { "ms=1000" } else { "ms=50" })?.number("event")?;
    must((raised == 1) == solicited, || format!("event raised: {raised}"))?;
    bench.completes(&rc, &[(0, 0)]).map(drop)
}
