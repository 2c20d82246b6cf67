//! FLUSH: WRITEs that must be visible or persistent before the next request (IBTA annex A19).

use super::{Failure, PATIENCE, Wiring, expect_pattern, must};
use crate::end::{Access, Completion, Done, End, Flush, Registration, Request, Status};
use crate::rows::{Family, Feature, Op};

const MTU: usize = 1024;
/// Bytes of the regions, and the range that is written and flushed.
const REGION: usize = 8192;
const OFFSET: usize = 1024;
const LENGTH: usize = 3000;

/// Returns the FLUSHes of a row in order, and the offset of the first from the message's address.
fn requested(feature: Feature) -> (Vec<Flush>, usize) {
    let range = Flush { length: LENGTH, global: true, persistent: false, whole_region: false };
    match feature {
        // Address and length are ignored: the range ends beyond the region.
        Feature::FlushRegion => {
            (vec![Flush { whole_region: true, length: 2 * REGION, ..range }], REGION - OFFSET - 1)
        }
        Feature::FlushNothing => (vec![Flush { length: 0, ..range }], 0),
        Feature::FlushPersistent => {
            let persistent = Flush { persistent: true, global: false, ..range };
            (vec![persistent, Flush { global: true, ..persistent }], 0)
        }
        _ => (vec![range], 0),
    }
}

/// Posts WRITE, the FLUSHes of the row, and READ together. All must complete in order, and the READ must return the
/// data.
pub(super) fn flush(
    feature: Feature,
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let (flushes, shift) = requested(feature);
    let persistent = feature == Feature::FlushPersistent;
    let access = Access { flush_global: true, flush_persistent: persistent, ..Access::ALL };
    let local_end = requester.register(REGION, Access::ALL)?;
    let back = requester.register(REGION, Access::ALL)?;
    let remote = responder.register(REGION, access)?;
    requester.fill(local_end, OFFSET..OFFSET + LENGTH, seed)?;
    requester.fill(back, 0..REGION, !seed)?;
    responder.fill(remote, 0..OFFSET, !seed)?;
    let (requesting, answers) = Wiring::new(family, MTU, seed).connect(requester, responder)?;
    let to = |wr_id, op, local: Option<Registration>| Request {
        local: local.map(|region| (region, OFFSET, LENGTH)),
        remote_addr: remote.addr + OFFSET as u64,
        rkey: remote.rkey,
        ..Request::new(wr_id, op)
    };
    let mut requests = vec![to(0, Op::Write, Some(local_end))];
    for flush in flushes {
        let request = to(requests.len() as u64, Op::Flush, None);
        let remote_addr = request.remote_addr + shift as u64;
        requests.push(Request { flush: Some(flush), remote_addr, ..request });
    }
    requests.push(to(requests.len() as u64, Op::Read, Some(back)));
    for request in &requests {
        requester.post_send(requesting, request)?;
    }
    let seen = requester.poll(requesting, requests.len(), PATIENCE)?;
    let as_due = |(c, r): (&Completion, &Request)| {
        (c.wr_id, c.status, c.done) == (r.wr_id, Status::SUCCESS, Some(Done::Request(r.op)))
    };
    must!(
        seen.len() == requests.len() && seen.iter().zip(&requests).all(as_due),
        "WRITE, FLUSH, READ completed as {seen:?}"
    );
    let silent = responder.poll(answers, 0, std::time::Duration::ZERO)?;
    must!(silent.is_empty(), "the responder completed something: {silent:?}");
    expect_pattern(responder, remote, OFFSET..OFFSET + LENGTH, seed, "what was written")?;
    expect_pattern(responder, remote, 0..OFFSET, !seed, "what is before it")?;
    expect_pattern(requester, back, OFFSET..OFFSET + LENGTH, seed, "what was read behind the FLUSH")
}
