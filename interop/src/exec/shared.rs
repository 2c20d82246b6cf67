//! Shared receive queues: several queue pairs take receives from one, and an event reports that it runs low.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Failure, PATIENCE, Wiring, carry_out, expect_pattern, expect_receives, must};
use crate::end::{Access, Completion, Done, End, PairKind, Receive, Request, Status};
use crate::rows::{Family, Op};

const MTU: usize = 1024;
/// Bytes of a message: two packets.
const LENGTH: usize = 1500;
const PAIRS: usize = 3;
const EACH: usize = 3;
/// How long to wait for an event that must not arrive.
const MOMENT: Duration = Duration::from_millis(20);

/// Three connections send three messages each, all at once; each message must be whole, in a receive of its own.
pub(super) fn many_pairs(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let count = PAIRS * EACH;
    let local_end = requester.register(count * LENGTH, Access::ALL)?;
    let remote = responder.register(count * LENGTH, Access::ALL)?;
    responder.fill(remote, 0..count * LENGTH, !seed)?;
    let queue = responder.create_queue()?;
    for i in 0..count {
        let to = Some((remote, i * LENGTH, LENGTH));
        responder.post_shared(queue, &Receive { wr_id: 1000 + i as u64, to })?;
    }
    let answers_kind = Some(PairKind::RcSharing(queue));
    let mut pairs = Vec::new();
    for i in 0..PAIRS {
        let wiring = Wiring { answers_kind, ..Wiring::new(family, MTU, seed.rotate_left(i as u32)) };
        pairs.push(wiring.connect(requester, responder)?);
    }
    // Message `i` goes over connection `i % PAIRS`.
    for i in 0..count {
        requester.fill(local_end, i * LENGTH..(i + 1) * LENGTH, seed + i as u64)?;
    }
    for i in 0..count {
        let local = Some((local_end, i * LENGTH, LENGTH));
        requester.post_send(pairs[i % PAIRS].0, &Request { local, ..Request::new(i as u64, Op::Send) })?;
    }
    let mut taken = BTreeSet::new();
    for (p, &(asks, answers)) in pairs.iter().enumerate() {
        let sent = requester.poll(asks, EACH, PATIENCE)?;
        let good = sent.iter().filter(|c| c.status == Status::SUCCESS).count();
        must!(good == EACH && sent.len() == EACH, "connection {p} completed {sent:?}");
        let seen = responder.poll(answers, EACH, PATIENCE)?;
        let good = |c: &Completion| (c.status, c.done) == (Status::SUCCESS, Some(Done::Receive));
        must!(seen.len() == EACH && seen.iter().all(good), "connection {p} received {seen:?}");
        for (turn, c) in seen.iter().enumerate() {
            must!(taken.insert(c.wr_id), "receive {} was completed twice", c.wr_id);
            must!(c.byte_len as usize == LENGTH, "byte_len {} and should be {LENGTH}", c.byte_len);
            let slot = (c.wr_id - 1000) as usize;
            let message = seed + (turn * PAIRS + p) as u64;
            let range = slot * LENGTH..(slot + 1) * LENGTH;
            expect_pattern(responder, remote, range, message, "a message of its connection, in its order")?;
        }
    }
    must!(taken.into_iter().eq((1000..).take(count)), "some receives were not completed");
    Ok(())
}

/// Four receives, a limit of three: the event must arrive after the second message, and only then.
pub(super) fn limit(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let queue = responder.create_queue()?;
    for wr_id in 1000..1004 {
        responder.post_shared(queue, &Receive { wr_id, to: None })?;
    }
    responder.arm_limit(queue, 3)?;
    let answers_kind = Some(PairKind::RcSharing(queue));
    let wiring = Wiring { answers_kind, ..Wiring::new(family, MTU, seed) };
    let (requesting, answers) = wiring.connect(requester, responder)?;
    for (i, due) in [false, true, false].into_iter().enumerate() {
        carry_out(requester, requesting, &Request::new(i as u64, Op::Send), Status::SUCCESS)?;
        expect_receives(responder, answers, &[1000 + i as u64])?;
        let is_raised = responder.limit_reached(if due { PATIENCE } else { MOMENT })?;
        let remaining = 3 - i;
        must!(
            is_raised == due,
            "with {remaining} receives left the event of limit 3 came: {is_raised}, and should have: {due}"
        );
    }
    Ok(())
}
