//! A pass of a NIC that serves other processes: copies from and to their memory are made without holding the worker.
//!
//! Such a copy may wait for as long as the other process likes, and the kernel ends the wait for nothing but a fatal signal. So the thread
//! that makes it cannot be called back, but it can be left behind:
//!
//! ```text
//! the worker's thread           the stand-by thread
//! -------------------           -------------------
//! begins a half of a pass
//! lets go of the worker
//! copies                        sees that a copy takes longer than WaitPolicy::COPY_DEADLINE_NS, and that its thread sleeps
//! .                             fences that memory, fails the QPs that wait for it, and starts another worker's thread
//! .                             the other thread ends the half, and turns the worker from then on
//! takes the worker again, finds
//! that its term is over, ends
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::{self, JoinHandle};

use nix::unistd::gettid;

use super::Progress;
use super::shared::{Dead, Shared, Turn};
use super::wait_policy::WaitPolicy;
use crate::time::Nanos;

/// Why a thread turns the worker no more.
#[derive(Debug)]
pub(super) enum Ended {
    /// The engine is dead.
    Dead,
    /// Another thread does.
    Superseded,
}

impl From<Dead> for Ended {
    fn from(_: Dead) -> Ended {
        Ended::Dead
    }
}

/// Begins a term on the calling thread: ends the half of a pass that a thread was left behind in. Others that want the worker wait for that.
pub(super) fn begin_term(shared: &Shared, term: u64) -> Result<(), Ended> {
    shared.remote.thread.store(gettid().as_raw(), Relaxed);
    let worker = shared.lock()?;
    if worker.is_mid_pass() {
        copy(shared, worker, term)?.end_half();
    }
    Ok(())
}

/// A pass, for the worker's thread of this term.
pub(super) fn pass<'a>(
    shared: &'a Shared,
    mut worker: Turn<'a>,
    now: Nanos,
    term: u64,
) -> Result<(Turn<'a>, Progress), Ended> {
    worker.begin_take_in(now);
    worker = copy(shared, worker, term)?;
    let came = worker.end_half();
    worker.begin_send_out(now);
    worker = copy(shared, worker, term)?;
    let left = worker.end_half();
    Ok((worker, came.and(&left)))
}

fn copy<'a>(shared: &'a Shared, mut worker: Turn<'a>, term: u64) -> Result<Turn<'a>, Ended> {
    let remote = &shared.remote;
    while let Some(mut copies) = worker.next_copies() {
        remote.copies.fetch_add(1, Release);
        drop(worker);
        copies.run();
        worker = shared.lock()?;
        if remote.term.load(Relaxed) != term {
            return Err(Ended::Superseded);
        }
        remote.copies.fetch_add(1, Release);
        worker.copied(copies);
    }
    Ok(worker)
}

/// Starts a worker's thread of a term.
pub(super) type Spawn<'a> = &'a dyn Fn(u64) -> io::Result<JoinHandle<()>>;

/// Watches the copies of the worker's thread until that ends.
pub(super) fn stand_by(shared: &Arc<Shared>, first: JoinHandle<()>, spawn: Spawn<'_>) {
    let (mut worker, mut term) = (Some(first), 0);
    let mut seen = (0, shared.clock.now());
    loop {
        thread::park_timeout(Nanos(WaitPolicy::COPY_LOOK_NS).as_duration());
        match worker.take() {
            Some(thread) if thread.is_finished() => return drop(thread.join()),
            Some(thread) => worker = Some(thread),
            // The system had no thread before.
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

/// Ends the term of the thread that makes these copies. `None`: they have just been made.
fn take_over(shared: &Shared, copies: u64) -> Option<u64> {
    let mut worker = shared.lock_mid_pass();
    if shared.remote.copies.load(Relaxed) != copies {
        return None;
    }
    worker.abandon_copies();
    shared.remote.copies.fetch_add(1, Release);
    Some(shared.remote.term.fetch_add(1, Relaxed) + 1)
}
