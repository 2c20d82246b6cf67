//! Memory windows of type 2, invalidation from both sides, and zero-based regions.

use super::{
    Failure, PATIENCE, Wiring, carry_out, expect_error_state, expect_pattern, expect_receives, must,
};
use crate::end::{Access, Done, End, Pair, Receive, Registration, Request, Status};
use crate::error::Error;
use crate::rows::{Family, Op};

const MTU: usize = 1024;
/// Bytes of the regions, and the range of the window.
const REGION: usize = 8192;
const OFFSET: usize = 1024;
const LENGTH: usize = 3000;

/// The side that invalidates a window's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The owner, by a work request.
    Owner,
    /// The requester, by SEND with invalidate.
    Requester,
}

/// Two ends with a connection and a region each; the responder has bound a window to a range of its region.
struct Stage<'a> {
    requester: &'a mut dyn End,
    responder: &'a mut dyn End,
    local: Registration,
    remote: Registration,
    requesting: Pair,
    answers: Pair,
    rkey: u32,
    seed: u64,
}

impl<'a> Stage<'a> {
    fn set(
        family: Family,
        seed: u64,
        requester: &'a mut dyn End,
        responder: &'a mut dyn End,
    ) -> Result<Stage<'a>, Failure> {
        let (requesting, answers, local, remote) =
            prepare(family, seed, requester, responder, Access { bind: true, ..Access::NONE })?;
        let window = responder.create_window()?;
        let rkey = responder.post_bind(answers, 500, window, (remote, OFFSET, LENGTH))?;
        let bound = responder.poll(answers, 1, PATIENCE)?;
        must!(
            bound.len() == 1 && (bound[0].status, bound[0].done) == (Status::SUCCESS, Some(Done::Bind)),
            "the bind completed as {bound:?}"
        );
        Ok(Stage { requester, responder, local, remote, requesting, answers, rkey, seed })
    }

    fn write(&mut self, wr_id: u64, rkey: u32, shift: usize, status: Status) -> Result<(), Failure> {
        let request = Request {
            local: Some((self.local, OFFSET, LENGTH)),
            remote_addr: self.remote.addr + (OFFSET + shift) as u64,
            rkey,
            ..Request::new(wr_id, Op::Write)
        };
        carry_out(self.requester, self.requesting, &request, status).map(drop)
    }

    /// Checks that the window's range was written (or not), and that all other bytes are unchanged.
    fn expect_written(&mut self, written: bool) -> Result<(), Failure> {
        check_memory(self.responder, self.remote, self.seed, written)
    }

    /// Checks that a WRITE by the key is refused, and that the queue pair is in the error state.
    fn expect_refused(&mut self, rkey: u32, shift: usize) -> Result<(), Failure> {
        self.write(90, rkey, shift, Status::REM_ACCESS_ERR)?;
        expect_error_state(self.requester, self.requesting)
    }
}

fn prepare(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
    access: Access,
) -> Result<(Pair, Pair, Registration, Registration), Error> {
    let local = requester.register(REGION, Access::ALL)?;
    let remote = responder.register(REGION, access)?;
    requester.fill(local, OFFSET..OFFSET + LENGTH, seed)?;
    responder.fill(remote, 0..REGION, !seed)?;
    let (requesting, answers) = Wiring::new(family, MTU, seed).connect(requester, responder)?;
    Ok((requesting, answers, local, remote))
}

fn check_memory(responder: &mut dyn End, far: Registration, seed: u64, written: bool) -> Result<(), Failure> {
    let mut want: Vec<u8> = crate::pattern::bytes(!seed).take(REGION).collect();
    if written {
        let part = &mut want[OFFSET..OFFSET + LENGTH];
        part.iter_mut().zip(crate::pattern::bytes(seed)).for_each(|(byte, pattern)| *byte = pattern);
    }
    for start in (0..REGION).step_by(1024) {
        let got = responder.read(far, start..start + 1024)?;
        let wrong = got.iter().zip(&want[start..]).position(|(got, want)| got != want);
        must!(wrong.is_none(), "byte {} of the responder's memory is wrong", start + wrong.unwrap_or(0));
    }
    Ok(())
}

/// The window opens its range for WRITE and READ; one byte beyond must be refused.
pub(super) fn access(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let mut stage = Stage::set(family, seed, requester, responder)?;
    let rkey = stage.rkey;
    stage.write(1, rkey, 0, Status::SUCCESS)?;
    stage.expect_written(true)?;
    let (local, remote) = (stage.local, stage.remote);
    stage.requester.fill(local, OFFSET..OFFSET + LENGTH, !seed)?;
    let read = Request {
        local: Some((local, OFFSET, LENGTH)),
        remote_addr: remote.addr + OFFSET as u64,
        rkey,
        ..Request::new(2, Op::Read)
    };
    carry_out(stage.requester, stage.requesting, &read, Status::SUCCESS)?;
    expect_pattern(
        stage.requester,
        local,
        OFFSET..OFFSET + LENGTH,
        seed,
        "what was read through the window",
    )?;
    if stage.responder.quirks().windows_are_as_wide_as_regions {
        // A range beyond the region must be refused all the same.
        stage.expect_refused(rkey, REGION - LENGTH - OFFSET + 1)?;
    } else {
        stage.expect_refused(rkey, 1)?;
    }
    stage.expect_written(true)
}

/// An invalidated key must open nothing.
pub(super) fn invalidation(
    by: By,
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let mut stage = Stage::set(family, seed, requester, responder)?;
    let rkey = stage.rkey;
    match by {
        By::Owner => {
            stage.responder.post_invalidate(stage.answers, 501, rkey)?;
            let done = stage.responder.poll(stage.answers, 1, PATIENCE)?;
            must!(
                done.len() == 1
                    && (done[0].status, done[0].done) == (Status::SUCCESS, Some(Done::LocalInvalidate)),
                "the invalidation completed as {done:?}"
            );
        }
        By::Requester => {
            // The key works before its invalidation.
            stage.write(1, rkey, 0, Status::SUCCESS)?;
            stage.responder.post_receive(stage.answers, &Receive { wr_id: 1000, to: None })?;
            let request = Request { rkey, ..Request::new(2, Op::SendInv) };
            carry_out(stage.requester, stage.requesting, &request, Status::SUCCESS)?;
            let seen = expect_receives(stage.responder, stage.answers, &[1000])?;
            let want = (!stage.responder.quirks().hides_invalidations).then_some(rkey);
            let invalidated = seen[0].invalidated;
            must!(
                invalidated == want,
                "the receive says that {invalidated:x?} is invalid and should say {want:x?}"
            );
        }
    }
    stage.expect_refused(rkey, 0)?;
    stage.expect_written(by == By::Requester)
}

/// A zero-based region is written and read as any other.
pub(super) fn zero_based(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let zero_based = Access { zero_based: true, ..Access::ALL };
    let (requesting, _, local, remote) = prepare(family, seed, requester, responder, zero_based)?;
    must!(remote.addr == 0, "its first address is {:#x}", remote.addr);
    let request = |wr_id, op, offset: usize, length| Request {
        local: Some((local, OFFSET, length)),
        remote_addr: offset as u64,
        rkey: remote.rkey,
        ..Request::new(wr_id, op)
    };
    carry_out(requester, requesting, &request(1, Op::Write, OFFSET, LENGTH), Status::SUCCESS)?;
    check_memory(responder, remote, seed, true)?;
    requester.fill(local, OFFSET..OFFSET + LENGTH, !seed)?;
    carry_out(requester, requesting, &request(2, Op::Read, OFFSET, LENGTH), Status::SUCCESS)?;
    expect_pattern(requester, local, OFFSET..OFFSET + LENGTH, seed, "what was read")?;
    carry_out(
        requester,
        requesting,
        &request(3, Op::Write, REGION - LENGTH + 1, LENGTH),
        Status::REM_ACCESS_ERR,
    )?;
    check_memory(responder, remote, seed, true)
}
