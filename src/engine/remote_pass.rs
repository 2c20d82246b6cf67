//! A pass of a NIC that serves other processes. Copies from and to their memory are made without holding the worker's lock.
//!
//! Such a copy may block for as long as the other process likes, and only a fatal signal ends it. A thread that blocks in a copy
//! cannot be interrupted, but it can be replaced:
//!
//! ```text
//! worker thread                 standby thread
//! -------------                 --------------
//! begins a half of a pass
//! unlocks the worker
//! copies                        sees a copy that takes longer than WaitPolicy::COPY_DEADLINE_NS while its thread sleeps
//! .                             fences that memory, fails the QPs that wait for it, and starts another worker thread
//! .                             the new thread ends the half, and runs the worker from then on
//! locks the worker, finds
//! that its term is over, ends
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::{self, JoinHandle};

use nix::unistd::gettid;

use super::Progress;
use super::shared::{Dead, Shared, WorkerGuard};
use super::wait_policy::WaitPolicy;
use super::worker::COMMANDS;
use roxie_base::time::Nanos;

/// Why a thread stops running the worker.
#[derive(Debug)]
pub(super) enum EndReason {
    /// The engine is dead.
    Dead,
    /// Another worker thread has replaced this one.
    Superseded,
}

impl From<Dead> for EndReason {
    fn from(_: Dead) -> EndReason {
        EndReason::Dead
    }
}

/// Begins a term on the calling thread. Completes the half of a pass that a replaced thread has left; other threads that want the
/// worker wait for it.
pub(super) fn begin_term(shared: &Shared, term: u64) -> Result<(), EndReason> {
    shared.remote.thread.store(gettid().as_raw(), Relaxed);
    let worker = shared.lock()?;
    if worker.is_mid_pass() {
        copy(shared, worker, term)?.end_half();
    }
    Ok(())
}

/// Runs a pass in the worker thread of this term.
pub(super) fn pass<'a>(
    shared: &'a Shared,
    mut worker: WorkerGuard<'a>,
    now: Nanos,
    term: u64,
) -> Result<(WorkerGuard<'a>, Progress), EndReason> {
    worker.begin_take_in(now, COMMANDS);
    worker = copy(shared, worker, term)?;
    let came = worker.end_half();
    worker.begin_send_out(now);
    worker = copy(shared, worker, term)?;
    let left = worker.end_half();
    Ok((worker, came.and(&left)))
}

fn copy<'a>(
    shared: &'a Shared,
    mut worker: WorkerGuard<'a>,
    term: u64,
) -> Result<WorkerGuard<'a>, EndReason> {
    let remote = &shared.remote;
    while let Some(mut copies) = worker.next_copies() {
        remote.copies.fetch_add(1, Release);
        drop(worker);
        copies.run();
        worker = shared.lock()?;
        if remote.term.load(Relaxed) != term {
            return Err(EndReason::Superseded);
        }
        remote.copies.fetch_add(1, Release);
        worker.copied(copies);
    }
    Ok(worker)
}

/// Starts the worker thread of a term.
pub(super) type Spawn<'a> = &'a dyn Fn(u64) -> io::Result<JoinHandle<()>>;

/// Monitors the copies of the worker thread until it ends, and replaces a thread that blocks in one.
pub(super) fn stand_by(shared: &Arc<Shared>, first: JoinHandle<()>, spawn: Spawn<'_>) {
    let (mut worker, mut term) = (Some(first), 0);
    let mut seen = (0, shared.clock.now());
    loop {
        thread::park_timeout(Nanos(WaitPolicy::COPY_LOOK_NS).as_duration());
        match worker.take() {
            Some(thread) if thread.is_finished() => return drop(thread.join()),
            Some(thread) => worker = Some(thread),
            // An earlier attempt to start the thread failed: try again.
            None => worker = spawn(term).ok(),
        }
        let (copies, now) = (shared.remote.copies.load(Acquire), shared.clock.now());
        if copies % 2 == 0 || copies != seen.0 {
            seen = (copies, now);
        } else if now - seen.1 >= Nanos(WaitPolicy::COPY_DEADLINE_NS)
            && !shared.remote.thread_is_running()
            && let Some(next) = take_over(shared, copies)
        {
            term = next;
            worker = spawn(term).ok();
        }
    }
}

/// Ends the term of the thread that makes copy number `copies`. `None`: the copy has ended meanwhile.
fn take_over(shared: &Shared, copies: u64) -> Option<u64> {
    let mut worker = shared.lock_mid_pass();
    if shared.remote.copies.load(Relaxed) != copies {
        return None;
    }
    worker.abandon_copies();
    shared.remote.copies.fetch_add(1, Release);
    Some(shared.remote.term.fetch_add(1, Relaxed) + 1)
}
