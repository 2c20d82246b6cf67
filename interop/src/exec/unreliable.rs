//! Messages that UC drops, and that the next message arrives (IBTA 9.8.2.2, 9.9.3: class D and E errors).

use super::{Failure, Wiring, carry_out, expect_pattern, expect_receives, must};
use crate::end::{Access, End, Pair, PairKind, Receive, Registration, Request, State, Status};
use crate::error::Error;
use crate::rows::{Family, Op};

const MTU: usize = 1024;
/// Bytes of the regions. The message is in the middle and has three packets.
const REGION: usize = 8192;
const OFFSET: usize = 1024;
const LENGTH: usize = 3000;

/// Two ends with a region each, filled with different patterns, and a UC connection.
struct Stage<'a> {
    requester: &'a mut dyn End,
    responder: &'a mut dyn End,
    local: Registration,
    remote: Registration,
    requesting: Pair,
    answers: Pair,
    seed: u64,
}

impl<'a> Stage<'a> {
    fn set(
        family: Family,
        seed: u64,
        requester: &'a mut dyn End,
        responder: &'a mut dyn End,
    ) -> Result<Stage<'a>, Error> {
        let local = requester.register(REGION, Access::ALL)?;
        let remote = responder.register(REGION, Access::ALL)?;
        requester.fill(local, OFFSET..OFFSET + LENGTH, seed)?;
        responder.fill(remote, 0..REGION, !seed)?;
        let wiring = Wiring { kind: PairKind::Uc, ..Wiring::new(family, MTU, seed) };
        let (requesting, answers) = wiring.connect(requester, responder)?;
        Ok(Stage { requester, responder, local, remote, requesting, answers, seed })
    }

    fn request(&self, wr_id: u64, op: Op) -> Request {
        Request { local: Some((self.local, OFFSET, LENGTH)), ..Request::new(wr_id, op) }
    }

    /// Posts a receive and a SEND for it. Checks that the message arrives, nothing else has completed, and both ends
    /// stay usable.
    fn next_arrives(&mut self) -> Result<(), Failure> {
        let to = Some((self.remote, OFFSET, LENGTH));
        self.responder.post_receive(self.answers, &Receive { wr_id: 1001, to })?;
        self.send_and_expect(1001)
    }

    fn send_and_expect(&mut self, receive: u64) -> Result<(), Failure> {
        let request = self.request(9, Op::Send);
        carry_out(self.requester, self.requesting, &request, Status::SUCCESS)?;
        let seen = expect_receives(self.responder, self.answers, &[receive])?;
        must!(seen[0].byte_len as usize == LENGTH, "byte_len {} and should be {LENGTH}", seen[0].byte_len);
        expect_pattern(self.responder, self.remote, OFFSET..OFFSET + LENGTH, self.seed, "the next message")?;
        let states = (self.requester.state(self.requesting)?, self.responder.state(self.answers)?);
        must!(states == (State::Rts, State::Rts), "the states are {states:?} and should be Rts");
        Ok(())
    }

    fn expect_untouched(&mut self) -> Result<(), Failure> {
        expect_pattern(
            self.responder,
            self.remote,
            0..REGION,
            !self.seed,
            "the responder's memory was written to",
        )
    }
}

/// WRITEs with and without immediate data, with an invalid key or to an address beyond the region: they complete at the
/// requester, and have no effect at the responder, where the receive stays for the next message.
pub(super) fn refused_writes(
    bad_rkey: bool,
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let mut stage = Stage::set(family, seed, requester, responder)?;
    let (remote, requesting) = (stage.remote, stage.requesting);
    let to = Some((remote, OFFSET, LENGTH));
    stage.responder.post_receive(stage.answers, &Receive { wr_id: 1000, to })?;
    // The last byte of the message is the first beyond the region.
    let beyond = if bad_rkey { 0 } else { REGION - OFFSET - LENGTH + 1 };
    for (wr_id, op) in [(7, Op::Write), (8, Op::WriteImm)] {
        let request = Request {
            remote_addr: remote.addr + (OFFSET + beyond) as u64,
            rkey: if bad_rkey { remote.rkey ^ 0x5a_5a00 } else { remote.rkey },
            ..stage.request(wr_id, op)
        };
        carry_out(stage.requester, requesting, &request, Status::SUCCESS)?;
    }
    stage.send_and_expect(1000)?;
    // A WRITE that ends beyond the region writes nothing, not even the part inside: its first packet has the length.
    expect_pattern(stage.responder, remote, 0..OFFSET, !seed, "memory before the message was written to")?;
    check_rest(stage.responder, remote, seed)
}

/// Checks that memory behind the message is unchanged. A pattern starts where its filling did, so this compares bytes.
fn check_rest(responder: &mut dyn End, far: Registration, seed: u64) -> Result<(), Failure> {
    let want: Vec<u8> = crate::pattern::bytes(!seed).take(REGION).collect();
    for start in (OFFSET + LENGTH..REGION).step_by(1024) {
        let range = start..REGION.min(start + 1024);
        let got = responder.read(far, range.clone())?;
        must!(got == want[range.clone()], "memory behind the message was written to, in {range:?}");
    }
    Ok(())
}

/// A SEND without a receive: completes at the requester, is lost at the responder.
pub(super) fn no_receive(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let mut stage = Stage::set(family, seed, requester, responder)?;
    let request = stage.request(7, Op::Send);
    carry_out(stage.requester, stage.requesting, &request, Status::SUCCESS)?;
    overtake(family, seed, stage.requester, stage.responder)?;
    stage.expect_untouched()?;
    stage.next_arrives()
}

/// Sends an empty message over another connection and waits for it: earlier packets have arrived by then.
pub(super) fn overtake(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let wiring = Wiring { kind: PairKind::Uc, ..Wiring::new(family, MTU, seed.rotate_left(13)) };
    let (requesting, answers) = wiring.connect(requester, responder)?;
    responder.post_receive(answers, &Receive { wr_id: 2000, to: None })?;
    carry_out(requester, requesting, &Request::new(2000, Op::Send), Status::SUCCESS)?;
    expect_receives(responder, answers, &[2000]).map(drop)
}
