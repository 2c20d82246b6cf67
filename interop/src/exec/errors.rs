//! Rows in which the requester makes an error: which completions must follow, and that no memory is changed.

use std::time::Duration;

use super::{Failure, PATIENCE, Wiring, expect_error_state, expect_pattern, must};
use crate::end::{Access, End, Flush, Pair, Receive, Registration, Request, Status};
use crate::rows::{ErrorCase, Family, Op};

const MTU: usize = 1024;
/// Bytes of the regions. The message is in the middle.
const REGION: usize = 8192;
const OFFSET: usize = 1024;
const LENGTH: usize = 3000;
/// Bytes of the receive in `TooLong` rows.
const SHORT: usize = 100;

/// Parameters of a case, and the status that must follow.
struct Shape {
    op: Op,
    /// True if a FLUSH requests persistence instead of visibility.
    persistent: bool,
    access: Access,
    /// Added to the message's offset in the responder's region.
    shift: u64,
    rkey_flip: u32,
    receive: Option<usize>,
    status: Status,
}

/// Rights of a region for FLUSH.
const FLUSHED: Access = Access { flush_global: true, ..Access::ALL };

fn shape(case: ErrorCase) -> Shape {
    let base = Shape {
        op: Op::Write,
        persistent: false,
        access: Access::ALL,
        shift: 0,
        rkey_flip: 0,
        receive: None,
        status: Status::REM_ACCESS_ERR,
    };
    // The last byte of the message is the first beyond the region.
    let beyond = (REGION - OFFSET - LENGTH + 1) as u64;
    match case {
        ErrorCase::BadRkeyWrite => Shape { rkey_flip: 0x5a_5a00, ..base },
        ErrorCase::BadRkeyRead => Shape { op: Op::Read, rkey_flip: 0x5a_5a00, ..base },
        ErrorCase::BadRkeyAtomic => Shape { op: Op::FetchAdd, rkey_flip: 0x5a_5a00, ..base },
        ErrorCase::OutOfBoundsWrite => Shape { shift: beyond, ..base },
        ErrorCase::OutOfBoundsRead => Shape { op: Op::Read, shift: beyond, ..base },
        ErrorCase::NoRightToWrite => Shape { access: Access { write: false, ..Access::ALL }, ..base },
        ErrorCase::NoRightToRead => {
            Shape { op: Op::Read, access: Access { read: false, ..Access::ALL }, ..base }
        }
        ErrorCase::NoReceive => Shape { op: Op::Send, status: Status::RNR_RETRY_EXC_ERR, ..base },
        ErrorCase::LateReceive => Shape { op: Op::Send, status: Status::SUCCESS, ..base },
        ErrorCase::TooLong => {
            Shape { op: Op::Send, receive: Some(SHORT), status: Status::REM_INV_REQ_ERR, ..base }
        }
        ErrorCase::MisalignedAtomic => {
            Shape { op: Op::FetchAdd, shift: 4, status: Status::REM_INV_REQ_ERR, ..base }
        }
        ErrorCase::BadRkeyAtomicWrite => Shape { op: Op::AtomicWrite, rkey_flip: 0x5a_5a00, ..base },
        // Its first byte is the first beyond the region: no multiple of 8 is closer.
        ErrorCase::OutOfBoundsAtomicWrite => {
            Shape { op: Op::AtomicWrite, shift: (REGION - OFFSET) as u64, ..base }
        }
        ErrorCase::NoRightToAtomicWrite => {
            Shape { op: Op::AtomicWrite, access: Access { write: false, ..Access::ALL }, ..base }
        }
        ErrorCase::MisalignedAtomicWrite => {
            Shape { op: Op::AtomicWrite, shift: 4, status: Status::REM_INV_REQ_ERR, ..base }
        }
        ErrorCase::BadRkeyFlush => Shape { op: Op::Flush, access: FLUSHED, rkey_flip: 0x5a_5a00, ..base },
        ErrorCase::OutOfBoundsFlush => Shape { op: Op::Flush, access: FLUSHED, shift: beyond, ..base },
        ErrorCase::NoRightToFlush => Shape { op: Op::Flush, ..base },
        ErrorCase::NoRightToPersist => Shape { op: Op::Flush, persistent: true, access: FLUSHED, ..base },
        ErrorCase::WrongPsn | ErrorCase::NoSuchPair => {
            Shape { op: Op::Send, receive: Some(LENGTH), status: Status::RETRY_EXC_ERR, ..base }
        }
    }
}

pub(super) fn run(
    case: ErrorCase,
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let mut shape = shape(case);
    let operational = case == ErrorCase::TooLong && responder.quirks().long_send_is_operational_error;
    if operational {
        shape.status = Status::REM_OP_ERR;
    }
    let local = requester.register(REGION, Access::ALL)?;
    let remote = responder.register(REGION, shape.access)?;
    requester.fill(local, 0..REGION, seed)?;
    responder.fill(remote, 0..REGION, !seed)?;

    let mut wiring = Wiring::new(family, MTU, seed);
    match case {
        ErrorCase::NoReceive => wiring.rnr_retry = 0,
        // 4.096 us << 11 is 8 ms, so that the retries are over in a moment.
        ErrorCase::WrongPsn => (wiring.psn_skew, wiring.timeout, wiring.retry) = (100, 11, 2),
        ErrorCase::NoSuchPair => (wiring.qpn_skew, wiring.timeout, wiring.retry) = (0x1234, 11, 2),
        _ => {}
    }
    let (requesting, answers) = wiring.connect(requester, responder)?;
    if let Some(room) = shape.receive {
        responder.post_receive(answers, &Receive { wr_id: 1000, to: Some((remote, OFFSET, room)) })?;
    }
    requester.post_send(requesting, &request(&shape, local, remote))?;
    if case == ErrorCase::LateReceive {
        return check_late_receive(seed, (requester, requesting, local), (responder, answers, remote));
    }

    let seen = requester.poll(requesting, 1, PATIENCE)?;
    let statuses: Vec<Status> = seen.iter().map(|c| c.status).collect();
    let want = shape.status.0;
    must!(
        statuses == [shape.status],
        "the requester's completions are {seen:?}; one of status {want} was due"
    );
    expect_error_state(requester, requesting)?;
    if case == ErrorCase::TooLong {
        return check_short_receive(seed, operational, responder, answers, remote);
    }
    check_untouched(&shape, seed, (requester, local), (responder, answers, remote))
}

fn request(shape: &Shape, near: Registration, far: Registration) -> Request {
    let length = if shape.op.is_one_word() { 8 } else { LENGTH };
    let flush =
        Flush { length, global: !shape.persistent, persistent: shape.persistent, whole_region: false };
    let flush = (shape.op == Op::Flush).then_some(flush);
    Request {
        flush,
        local: flush.is_none().then_some((near, OFFSET, length)),
        remote_addr: far.addr + OFFSET as u64 + shape.shift,
        rkey: far.rkey ^ shape.rkey_flip,
        compare_add: 1,
        ..Request::new(7, shape.op)
    }
}

/// Checks that a refused request changes no byte on either side and completes no receive with success.
fn check_untouched(
    shape: &Shape,
    seed: u64,
    (requester, near): (&mut dyn End, Registration),
    (responder, answers, far): (&mut dyn End, Pair, Registration),
) -> Result<(), Failure> {
    expect_pattern(responder, far, 0..REGION, !seed, "the responder's memory was written to")?;
    expect_pattern(requester, near, 0..REGION, seed, "the requester's memory was written to")?;
    let seen = responder.poll(answers, 0, Duration::ZERO)?;
    must!(
        seen.iter().all(|c| c.status == Status::WR_FLUSH_ERR) && (shape.receive.is_some() || seen.is_empty()),
        "the responder completed something: {seen:?}"
    );
    Ok(())
}

/// Checks that nothing completes before the receive is posted, and that all completes afterwards.
fn check_late_receive(
    seed: u64,
    (requester, asks, _): (&mut dyn End, Pair, Registration),
    (responder, answers, far): (&mut dyn End, Pair, Registration),
) -> Result<(), Failure> {
    let early = requester.poll(asks, 1, Duration::from_millis(50))?;
    must!(early.is_empty(), "the requester completed before there was a receive: {early:?}");
    responder.post_receive(answers, &Receive { wr_id: 1000, to: Some((far, OFFSET, LENGTH)) })?;
    let sent = requester.poll(asks, 1, PATIENCE)?;
    must!(sent.len() == 1 && sent[0].status == Status::SUCCESS, "the requester's completions: {sent:?}");
    let received = responder.poll(answers, 1, PATIENCE)?;
    must!(
        received.len() == 1
            && received[0].status == Status::SUCCESS
            && received[0].byte_len as usize == LENGTH,
        "the responder's completions: {received:?}"
    );
    // The message is the middle of the requester's pattern: compare its first and last word.
    for offset in [OFFSET, OFFSET + LENGTH - 8] {
        let (want, got) = (word_of_pattern(seed, offset), responder.load(far, offset)?);
        must!(got == want, "the word at {offset} is {got:#x} and should be {want:#x}");
    }
    Ok(())
}

fn word_of_pattern(seed: u64, offset: usize) -> u64 {
    let mut bytes = crate::pattern::bytes(seed).skip(offset);
    u64::from_le_bytes(std::array::from_fn(|_| bytes.next().unwrap_or_default()))
}

/// Checks that the receive fails with a length error, and that nothing beyond it is written.
fn check_short_receive(
    seed: u64,
    operational: bool,
    responder: &mut dyn End,
    answers: Pair,
    far: Registration,
) -> Result<(), Failure> {
    let want = if operational { Status::LOC_QP_OP_ERR } else { Status::LOC_LEN_ERR };
    let seen = responder.poll(answers, 1, PATIENCE)?;
    must!(
        seen.len() == 1 && seen[0].wr_id == 1000 && seen[0].status == want,
        "the responder's completions are {seen:?}; one of status {} was due",
        want.0
    );
    for offset in [OFFSET - 8, (OFFSET + SHORT).next_multiple_of(8), OFFSET + LENGTH - 8] {
        let (want, got) = (word_of_pattern(!seed, offset), responder.load(far, offset)?);
        must!(got == want, "the word at {offset}, outside the receive, was written to: {got:#x}");
    }
    Ok(())
}
