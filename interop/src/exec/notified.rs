//! A congestion notification to the sending end: with a reaction point it slows down, without one it does not.

use std::time::{Duration, Instant};

use super::{Failure, Wiring, carry_out, expect_pattern, must};
use crate::end::{Access, End, Pair, Request, Status};
use crate::rows::{Family, NOTIFIED_MBPS, Op};

const MTU: usize = 1024;
/// Bytes of the message that must be slow, and of the one before: a notification counts only after data was sent.
const LENGTH: usize = 1 << 20;
const BEFORE: usize = 64 << 10;
/// How long a notification may take to arrive.
const PATIENCE: Duration = Duration::from_secs(5);

/// Transfers data to the end that can notify: by WRITE if that is the responder, by READ if it is the requester.
pub(super) fn transfer(
    family: Family,
    seed: u64,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let local = requester.register(LENGTH, Access::ALL)?;
    let remote = responder.register(LENGTH, Access::ALL)?;
    let (requesting, answers) = Wiring::new(family, MTU, seed).connect(requester, responder)?;
    let writes = responder.can_notify();
    let op = if writes { Op::Write } else { Op::Read };
    let request = |wr_id, length| Request {
        local: Some((local, 0, length)),
        remote_addr: remote.addr,
        rkey: remote.rkey,
        ..Request::new(wr_id, op)
    };
    match writes {
        true => requester.fill(local, 0..LENGTH, seed)?,
        false => responder.fill(remote, 0..LENGTH, seed)?,
    }
    carry_out(requester, requesting, &request(1, BEFORE), Status::SUCCESS)?;
    let heeded = match writes {
        true => notified(family, requester, requesting, responder)?,
        false => notified(family, responder, answers, requester)?,
    };
    let start = Instant::now();
    carry_out(requester, requesting, &request(2, LENGTH), Status::SUCCESS)?;
    let took = start.elapsed();
    // The rate rises a little meanwhile.
    let least = Duration::from_secs_f64(LENGTH as f64 * 8.0 / (f64::from(NOTIFIED_MBPS) * 1e6) * 0.8);
    must!(
        !heeded || took >= least,
        "{LENGTH} bytes at {NOTIFIED_MBPS} Mb/s took {took:?}, and {least:?} is the least"
    );
    match writes {
        true => expect_pattern(responder, remote, 0..LENGTH, seed, "what was written"),
        false => expect_pattern(requester, local, 0..LENGTH, seed, "what was read"),
    }
}

/// Notifies the source of data. True if it has a reaction point, and has handled the notification.
fn notified(family: Family, source: &mut dyn End, pair: Pair, sink: &mut dyn End) -> Result<bool, Failure> {
    let before = source.notifications()?;
    let to = source.address(family)?;
    sink.notify(family, to, pair.qpn)?;
    let Some(before) = before else { return Ok(false) };
    let start = Instant::now();
    while source.notifications()?.is_none_or(|now| now == before) {
        must!(start.elapsed() < PATIENCE, "a notification was sent, and none was heeded");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}
