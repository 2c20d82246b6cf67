//! Runs a row between two ends, and checks that all expectations are met.
//!
//! The executor knows verbs and expectations, not the ends: `requester` and `responder` may both be sessions with one
//! guest, which is how the executor itself is tested against a kernel.

pub mod broken;
mod datagram;
mod errors;
mod notified;
pub mod odd;
mod placement;
pub mod rule;
mod shared;
pub mod table;
mod transfer;
mod unreliable;
mod windows;
pub mod wrong;

use std::time::{Duration, Instant};

use crate::end::{Completion, Connection, Done, End, Pair, PairKind, Registration, Request, State, Status};
use crate::error::Error;
use crate::rows::{Case, Family, Feature, Impairment, Network, Op, Row, Service, Transfer};

pub use transfer::MESSAGES;

/// Bytes before and after each message that must not change.
const GUARD: usize = 64;
/// How long to wait for completions of a clean row.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait under faults: each lost frame may cost some ACK timeouts.
const PATIENCE_FAULTS: Duration = Duration::from_secs(40);

/// Why a row failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The outcome is not the expected one.
    #[error("{0}")]
    Unexpected(String),
    /// An end failed.
    #[error("{0}")]
    End(#[from] Error),
}

/// Fails the row with a message unless the condition holds.
macro_rules! must {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::exec::Failure::Unexpected(format!($($message)+)));
        }
    };
}
use must;

/// Runs a transfer, an error or a feature row. Destroys its objects at both ends, also after a failure.
///
/// # Panics
/// For [`Case::Pingpong`], [`Case::Program`], [`Case::Fallback`], [`Case::Profiled`], [`Case::Nvme`], [`Case::Iser`],
/// [`Case::Nfs`], [`Case::Conform`], [`Case::Bond`], [`Case::Wrong`] and [`Case::Odd`], which do not consist of verbs.
pub fn run(row: &Row, requester: &mut dyn End, responder: &mut dyn End) -> Result<(), Failure> {
    let result = match row.case {
        Case::Transfer { service, op, mtu, size, fault } => {
            transferred(row, Transfer { service, op, mtu, size, fault }, requester, responder)
        }
        Case::Over(_, transfer) => transferred(row, transfer, requester, responder),
        Case::Error(case) => errors::run(case, row.family, row.seed(), requester, responder),
        Case::Feature(feature) => use_feature(feature, row, requester, responder),
        Case::Wrong(_) | Case::Odd(_) => {
            unreachable!("scripts have one end: see wrong::run and odd::run")
        }
        Case::Pingpong(_)
        | Case::Program(_)
        | Case::Fallback(_)
        | Case::Profiled(..)
        | Case::Nvme(_)
        | Case::Iser(_)
        | Case::Nfs(_)
        | Case::Conform
        | Case::Bond(_) => {
            unreachable!("stock programs are not made of verbs: see Local::program")
        }
    };
    let cleaned = requester.reset().and(responder.reset());
    result?;
    Ok(cleaned?)
}

fn transferred(
    row: &Row,
    transfer: Transfer,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let Transfer { service, op, mtu, size, fault } = transfer;
    let (family, seed, network) = (row.family, row.seed(), row.network());
    let plan = transfer::Plan { service, op, mtu, size, fault, family, seed, network };
    match service {
        Service::Ud => datagram::transfer(&plan, requester, responder),
        _ => transfer::run(&plan, requester, responder),
    }
}

fn use_feature(
    feature: Feature,
    row: &Row,
    requester: &mut dyn End,
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let (family, seed) = (row.family, row.seed());
    match feature {
        Feature::UcBadRkey => unreliable::refused_writes(true, family, seed, requester, responder),
        Feature::UcOutOfBounds => unreliable::refused_writes(false, family, seed, requester, responder),
        Feature::UcNoReceive => unreliable::no_receive(family, seed, requester, responder),
        Feature::UdWrongQkey => datagram::wrong_qkey(family, seed, requester, responder),
        Feature::UdNoReceive => datagram::no_receive(family, seed, requester, responder),
        Feature::Multicast => datagram::multicast(family, seed, requester, responder),
        Feature::SrqShared => shared::many_pairs(family, seed, requester, responder),
        Feature::SrqLimit => shared::limit(family, seed, requester, responder),
        Feature::WindowAccess => windows::access(family, seed, requester, responder),
        Feature::WindowLocalInvalidate => {
            windows::invalidation(windows::By::Owner, family, seed, requester, responder)
        }
        Feature::WindowSendInvalidate => {
            windows::invalidation(windows::By::Requester, family, seed, requester, responder)
        }
        Feature::PacedWrite | Feature::PacedRead | Feature::PacedSend => {
            let op = match feature {
                Feature::PacedRead => Op::Read,
                Feature::PacedSend => Op::Send,
                _ => Op::Write,
            };
            let (service, mtu, size, fault) = (Service::Rc, 1024, 64 << 10, Impairment::None);
            let plan =
                transfer::Plan { service, op, mtu, size, fault, family, seed, network: Network::Plain };
            transfer::run(&plan, requester, responder)
        }
        Feature::Notified => notified::transfer(family, seed, requester, responder),
        Feature::ZeroBased => windows::zero_based(family, seed, requester, responder),
        Feature::FlushRange | Feature::FlushRegion | Feature::FlushNothing | Feature::FlushPersistent => {
            placement::flush(feature, family, seed, requester, responder)
        }
    }
}

/// Parameters with which the two queue pairs of a row are connected.
#[derive(Clone, Copy, Debug)]
struct Wiring {
    family: Family,
    /// Type of the requester's queue pair; of the responder's too, unless `answers_kind` says otherwise.
    kind: PairKind,
    answers_kind: Option<PairKind>,
    mtu: usize,
    /// The requester's first PSN, as the responder expects it.
    psn: u32,
    /// How far ahead of `psn` the requester really starts.
    psn_skew: u32,
    /// Added to the QPN that the requester sends to.
    qpn_skew: u32,
    timeout: u8,
    retry: u8,
    rnr_retry: u8,
}

impl Wiring {
    /// Returns the defaults, with an initial PSN near the wrap or anywhere, by the seed, so that the matrix has both
    /// kinds.
    fn new(family: Family, mtu: usize, seed: u64) -> Wiring {
        let psn = if seed.is_multiple_of(2) { 0xff_fffe } else { (seed >> 8) as u32 & 0xff_ffff };
        // 4.096 us << 14 is 67 ms: above the round trip of an emulated guest on a busy host.
        Wiring {
            family,
            kind: PairKind::Rc,
            answers_kind: None,
            mtu,
            psn,
            psn_skew: 0,
            qpn_skew: 0,
            timeout: 14,
            retry: 7,
            rnr_retry: 7,
        }
    }

    /// Makes and connects a queue pair at each end.
    fn connect(&self, requester: &mut dyn End, responder: &mut dyn End) -> Result<(Pair, Pair), Error> {
        let requesting = requester.create_pair(self.kind)?;
        let answers = responder.create_pair(self.answers_kind.unwrap_or(self.kind))?;
        let (from, to) = (requester.address(self.family)?, responder.address(self.family)?);
        // The other direction carries no requests; its PSN is the complement, to tell the two apart.
        let back = !self.psn & 0xff_ffff;
        let common = Connection {
            family: self.family,
            remote: from,
            remote_qpn: requesting.qpn,
            mtu: self.mtu,
            rq_psn: self.psn,
            sq_psn: back,
            timeout: self.timeout,
            retry: self.retry,
            rnr_retry: self.rnr_retry,
        };
        responder.connect(answers, &common)?;
        let there = Connection {
            remote: to,
            remote_qpn: (answers.qpn + self.qpn_skew) & 0xff_ffff,
            rq_psn: back,
            sq_psn: (self.psn + self.psn_skew) & 0xff_ffff,
            ..common
        };
        requester.connect(requesting, &there)?;
        Ok((requesting, answers))
    }
}

/// Posts a request and waits for its completion, which must be the only one.
fn carry_out(
    end: &mut dyn End,
    pair: Pair,
    request: &Request,
    status: Status,
) -> Result<Completion, Failure> {
    end.post_send(pair, request)?;
    let want = if status == Status::SUCCESS { Some(Done::Request(request.op.completes_as())) } else { None };
    let seen = end.poll(pair, 1, PATIENCE)?;
    must!(
        seen.len() == 1 && (seen[0].wr_id, seen[0].status, seen[0].done) == (request.wr_id, status, want),
        "{} {} completed as {seen:?}, status {} was due",
        request.op,
        request.wr_id,
        status.0
    );
    Ok(seen[0])
}

/// Waits for the completions of these receives, in this order, and no others.
fn expect_receives(end: &mut dyn End, pair: Pair, wr_ids: &[u64]) -> Result<Vec<Completion>, Failure> {
    let seen = end.poll(pair, wr_ids.len(), PATIENCE)?;
    let good = |c: &Completion| c.status == Status::SUCCESS && c.done == Some(Done::Receive);
    must!(
        seen.iter().map(|c| c.wr_id).eq(wr_ids.iter().copied()) && seen.iter().all(good),
        "the responder's completions are {seen:?}; those of the receives {wr_ids:?} were due"
    );
    Ok(seen)
}

/// How long a queue pair may take into the error state after the completion of the failed request, if the end has that
/// quirk.
const ERRS_WITHIN: Duration = Duration::from_secs(1);

/// Fails unless the requester's queue pair is in the error state.
fn expect_error_state(end: &mut dyn End, pair: Pair) -> Result<(), Failure> {
    let patience = if end.quirks().completes_before_it_errs { ERRS_WITHIN } else { Duration::ZERO };
    let start = Instant::now();
    loop {
        let state = end.state(pair)?;
        if state == State::Err {
            return Ok(());
        }
        must!(start.elapsed() < patience, "the requester's queue pair is in {state:?} and should be in Err");
    }
}

/// Fails if a range of a region is not the pattern of `seed`.
fn expect_pattern(
    end: &mut dyn End,
    region: Registration,
    range: std::ops::Range<usize>,
    seed: u64,
    what: &str,
) -> Result<(), Failure> {
    let of = range.len();
    match end.mismatch(region, range, seed)? {
        None => Ok(()),
        Some(m) => Err(Failure::Unexpected(format!(
            "{what}: byte {} of {of} is {:#04x} and should be {:#04x}",
            m.at, m.got, m.want
        ))),
    }
}
