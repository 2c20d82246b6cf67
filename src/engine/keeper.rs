//! The engine's thread: the keeper, which turns the worker while callers do not, or a thread that owns it.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags};
use nix::sys::prctl;

use super::remote_pass::{Ended, stand_by};
use super::shared::{Dead, Shared, Turn, readable, sleep_on};
use super::wait_policy::WaitPolicy;
use super::watch::Rest;
use super::{Drive, Progress, remote_pass};
use crate::threads::{ask_for_short_turns, spawn_unsignalled};
use crate::time::Nanos;

/// Held by a thread that turns the worker: if it unwinds, the engine is dead.
struct Obituary(Arc<Shared>);

impl Drop for Obituary {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.declare_dead(&mut self.0.lock_mid_pass());
        }
    }
}

/// Starts the engine's thread. `serves`: the NIC copies from and to memory of other processes.
pub(super) fn spawn(shared: Arc<Shared>, drive: Drive, serves: bool) -> io::Result<JoinHandle<()>> {
    if !serves {
        return spawn_worker(shared, drive, 0);
    }
    let first = spawn_worker(Arc::clone(&shared), drive, 0)?;
    spawn_unsignalled("roxie-standby", move || {
        stand_by(&shared, first, &|term| spawn_worker(Arc::clone(&shared), drive, term));
    })
}

fn spawn_worker(shared: Arc<Shared>, drive: Drive, term: u64) -> io::Result<JoinHandle<()>> {
    spawn_unsignalled("roxie-worker", move || {
        let _obituary = Obituary(Arc::clone(&shared));
        // A nap of 50 us must not take 100. Where it cannot be had, naps are longer.
        let _ = prctl::set_timerslack(1);
        // Nor must a frame wait until a program that spins has used up its turn.
        let _ = ask_for_short_turns();
        let _ended = match drive {
            Drive::Caller => keep(&shared).map_err(Ended::from),
            Drive::Thread { core, spin } => {
                if let Some(id) = core
                    && !core_affinity::set_for_current(core_affinity::CoreId { id })
                {
                    eprintln!(
                        "roxie: the engine's thread cannot be pinned to core {id}, it runs on any: is the core online \
                         and allowed (`taskset -p {}`, cpuset of the container)?",
                        std::process::id()
                    );
                }
                spin_then_sleep(&shared, spin, core.is_none(), term)
            }
            Drive::CallerOnly => Ok(()),
        };
    })
}

/// The loop of a thread that owns its worker. `shares`: its processor is not its own.
fn spin_then_sleep(shared: &Shared, spin: Nanos, shares: bool, term: u64) -> Result<(), Ended> {
    remote_pass::begin_term(shared, term)?;
    let mut busy_at = shared.clock.now();
    let mut last_pass = None;
    while !shared.stop.load(Acquire) {
        let now = shared.clock.now();
        let mut worker = shared.lock_in_turn()?;
        if let Some(began) = last_pass.take() {
            worker.note_pass(now - began);
        }
        let (worker, progress) = remote_pass::pass(shared, worker, now, term)?;
        if !progress.is_idle() {
            busy_at = now;
            last_pass = Some(now);
        } else if now - busy_at > spin || shares && shared.is_crowded(now) {
            watch(shared, worker);
            busy_at = shared.clock.now();
        } else if shares {
            drop(worker);
            // Whoever it works for may be waiting for this very processor.
            thread::yield_now();
        }
    }
    Ok(())
}

/// The loop of the keeper. See [`super::watch`] for when it does what.
fn keep(shared: &Shared) -> Result<(), Dead> {
    let mut busy_at = Nanos::ZERO;
    while !shared.stop.load(Acquire) {
        let now = shared.clock.now();
        let excuse = Excuse::of(shared, now);
        match shared.watch.rest(now.0) {
            Rest::Until(until) => {
                drop(excuse);
                let until = nap(shared, now, Nanos(until));
                look_after_a_nap(shared, until);
                continue;
            }
            Rest::Deep => {
                let until = nap(shared, now, now + Nanos(WaitPolicy::LONGEST_SLEEP_NS));
                look_after_a_nap(shared, until);
                continue;
            }
            Rest::None => {}
        }
        let Some(mut worker) = shared.try_turn() else {
            if shared.is_dead() {
                return Err(Dead);
            }
            // A caller is at it. To wait for the lock would cost it a system call to hand it over.
            drop(excuse);
            if let Rest::Until(until) = shared.watch.rest_beside(now.0) {
                let until = nap(shared, now, Nanos(until));
                look_after_a_nap(shared, until);
            }
            continue;
        };
        let progress = pass(shared, &mut worker, now);
        if !progress.is_idle() {
            busy_at = now;
            worker.note_pass(shared.clock.now() - now);
        }
        // What the application waits for is there: the processor is its.
        let is_over = progress.completions > 0 || now - busy_at > Nanos(WaitPolicy::LINGER_NS);
        if is_over || progress.is_idle() && shared.is_crowded(now) {
            drop(excuse);
            watch(shared, worker);
        } else if progress.is_idle() {
            drop(worker);
            if shared.owed_at().is_none() {
                thread::yield_now();
            }
        }
    }
    Ok(())
}

/// A pass of the keeper. An application that spins on its memory replies within microseconds: as in [`super::Engine::caller_pass`], the
/// acknowledgement of what came waits [`WaitPolicy::OWED_FOR_NS`] for the reply, so that both reach the peer together. An acknowledgement that arrives
/// alone would end the peer's polling, and its engine thread would have to be woken for the reply.
fn pass(shared: &Shared, worker: &mut Turn<'_>, now: Nanos) -> Progress {
    let came = worker.take_in(now);
    shared.stir(came.completions);
    if came.completions == 0 && !worker.doorbells().any() && !worker.nic().has_pressing() {
        match shared.owed_at() {
            None if came.received > 0 && shared.watch.away(now.0) < WaitPolicy::RECENT_NS => {
                shared.owe(worker, now);
                return came;
            }
            Some(at) if now - at < Nanos(WaitPolicy::OWED_FOR_NS) => return came,
            _ => {}
        }
    }
    came.and(&shared.send_out(worker, now))
}

/// A caller that polled until the keeper woke may have had to give its processor to it: that is no break in its polling.
struct Excuse<'a>(&'a Shared, bool);

impl Excuse<'_> {
    fn of(shared: &Shared, now: Nanos) -> Excuse<'_> {
        Excuse(shared, shared.watch.away(now.0) < WaitPolicy::POLL_GAP_NS)
    }
}

impl Drop for Excuse<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.watch.pass_ended(self.0.clock.now().0);
        }
    }
}

/// Sleeps until a time, which callers may put off, or until it is roused. Gives the time at which it was to end.
fn nap(shared: &Shared, now: Nanos, until: Nanos) -> Nanos {
    shared.wake_keeper_at(now, until);
    let mut fds =
        [shared.alarm.as_fd(), shared.nap_ends.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    sleep_on(&mut fds, Nanos(WaitPolicy::LONGEST_SLEEP_NS));
    wakes(shared, &fds[0])
}

fn wakes(shared: &Shared, alarm: &PollFd<'_>) -> Nanos {
    let until = shared.watch.wakes();
    if alarm.any() == Some(true) {
        let _ = shared.alarm.read();
    }
    until.map_or_else(|| shared.clock.now(), Nanos)
}

/// A nap is over. If nobody has come although there is something to do, who was expected is trusted no longer: it is busy with something
/// else, stopped, or was cancelled. `until`: when the nap was to end.
fn look_after_a_nap(shared: &Shared, until: Nanos) {
    let now = shared.clock.now().0;
    if !shared.watch.is_relieved() {
        // Long enough for whoever polls to have come, and short enough not to take a poller for one that does not. That the keeper
        // has come in a poller's place, on its processor, is no fault of the poller's: it takes a while, and a poller cannot look then.
        // Nor has one failed to come who put off the end of the nap beyond the longest sleep.
        let missed =
            until.0 <= now && shared.watch.away(until.0) > WaitPolicy::JUST_NOW_NS && something_waits(shared);
        shared.watch.napped(now, missed);
        return;
    }
    if shared.watch.away(now) < WaitPolicy::SHORTEST_NAP_NS {
        return;
    }
    if something_waits(shared) {
        let _ = shared.watch.stop_watching();
    }
}

/// True if something is to be done, and nobody is doing it.
fn something_waits(shared: &Shared) -> bool {
    let Some(mut worker) = shared.try_turn() else { return false };
    if !worker.is_quiet() {
        return true;
    }
    drop(worker);
    // A port of sockets does not see what waits in them.
    let frames = shared.frames();
    let mut fds = readable(frames.iter().map(AsFd::as_fd));
    sleep_on(&mut fds, Nanos::ZERO);
    fds.iter().any(|fd| fd.any() == Some(true))
}

/// Sleeps until a frame, a doorbell, a command, a timer or a caller's pass that leaves something. The lock is free
/// meanwhile.
fn watch(shared: &Shared, mut worker: Turn<'_>) {
    let guests = worker.guests().sleep_begins();
    if !worker.prepare_sleep() {
        guests.ends(|_| false);
        return;
    }
    let now = shared.clock.now();
    let until = worker.next_deadline().min(now + Nanos(WaitPolicy::LONGEST_SLEEP_NS));
    shared.watch.watches(until.0);
    drop(worker);
    let frames = shared.frames();
    // Not an epoll set of them: it would be one more thing to wake, which then lets the scheduler forget who woke it.
    let others = [shared.alarm.as_fd(), shared.doorbells.wake_fd().as_fd()];
    let before = others.len();
    let mut fds = readable(others.into_iter().chain(guests.wake_fds()).chain(frames.iter().map(AsFd::as_fd)));
    sleep_on(&mut fds, until - now);
    wakes(shared, &fds[0]);
    shared.doorbells.sleep_ends(fds[1].any() == Some(true));
    guests.ends(|at| fds[before + at].any() == Some(true));
}
