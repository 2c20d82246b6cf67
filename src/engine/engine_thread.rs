//! The engine thread: runs the worker between calls of the application, or owns the worker.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags};
use nix::sys::prctl;

use super::handoff::NextSleep;
use super::shared::{Dead, Shared, WorkerGuard, readable, sleep_on};
use super::wait_policy::WaitPolicy;
use super::{Drive, Progress};
use roxie_base::threads::{request_short_slices, spawn_unsignalled};
use roxie_base::time::Nanos;

/// Restricts the calling thread to one core, and reports if that is not possible.
fn pin(core: usize) {
    #[cfg(feature = "pinning")]
    if !core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        tracing::warn!(
            "the engine's thread cannot be pinned to core {core}, it runs on any: is the core online \
             and allowed (`taskset -p {}`, cpuset of the container)?",
            std::process::id()
        );
    }
    #[cfg(not(feature = "pinning"))]
    tracing::warn!("core {core} was asked for, and this program was built without the feature `pinning`");
}

/// Declares the engine dead if the thread that runs the worker unwinds.
struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.declare_dead(&mut self.0.lock_any());
        }
    }
}

/// Starts the engine thread.
pub(super) fn spawn(shared: Arc<Shared>, drive: Drive) -> io::Result<JoinHandle<()>> {
    spawn_unsignalled("roxie-worker", move || {
        let _guard = PanicGuard(Arc::clone(&shared));
        // Without a timer slack of 1 ns, a sleep of 50 us takes 100 us. On failure sleeps are longer.
        let _ = prctl::set_timerslack(1);
        // With short time slices, a frame does not wait until a spinning program has used up its own slice.
        let _ = request_short_slices();
        let _ended = match drive {
            Drive::Caller => run_between_callers(&shared),
            Drive::Thread { core, spin } => {
                if let Some(core) = core {
                    pin(core);
                }
                spin_then_sleep(&shared, spin, core.is_none())
            }
            Drive::CallerOnly | Drive::Stepped => Ok(()),
        };
    })
}

/// Loop of a thread that owns its worker. `shares`: the thread is not pinned to a core of its own.
fn spin_then_sleep(shared: &Shared, spin: Nanos, shares: bool) -> Result<(), Dead> {
    shared.lock_in_turn()?.copying.patience = Nanos(WaitPolicy::COPY_WAIT_NS).as_duration();
    let mut busy_at = shared.clock.now();
    let mut last_pass = None;
    let (mut lost_yields, mut yielded_at) = (LostYields::default(), None);
    while !shared.stop.load(Acquire) {
        let now = shared.clock.now();
        if let Some(before) = yielded_at.take() {
            lost_yields.note(before, now);
        }
        let mut worker = shared.lock_in_turn()?;
        if let Some(began) = last_pass.take() {
            worker.note_pass(now - began);
        }
        let progress = worker.poll(now);
        if !progress.is_idle() {
            busy_at = now;
            last_pass = Some(now);
        } else if now - busy_at > spin || lost_yields.are_recent(now) {
            block(shared, worker);
            busy_at = shared.clock.now();
        } else if shares {
            drop(worker);
            // The thread or client that waits for this NIC may need this processor.
            thread::yield_now();
            yielded_at = Some(now);
        }
    }
    Ok(())
}

/// Yields in which another program computed for its whole time slice. A thread that sleeps instead preempts that
/// program when it is woken.
#[derive(Debug, Default)]
struct LostYields {
    /// Until when yields are avoided.
    until: Nanos,
    /// For how long they were avoided after the last lost one; zero after one that stood alone.
    memory: Nanos,
}

impl LostYields {
    /// Notes a yield. One lost yield alone means nothing: a virtual machine stops for a millisecond at times. If
    /// another is lost soon, yields are avoided for a while; if one is lost soon after that, for twice as long.
    fn note(&mut self, before: Nanos, back: Nanos) {
        if back - before <= Nanos(WaitPolicy::YIELD_LOST_NS) {
            return;
        }
        let (first, longest) =
            (Nanos(WaitPolicy::YIELD_LOST_MEMORY_NS), Nanos(WaitPolicy::YIELD_LOST_LONGEST_MEMORY_NS));
        let is_repeated = back - self.until <= self.memory.max(first);
        self.memory = if is_repeated { Nanos(2 * self.memory.0).clamp(first, longest) } else { Nanos::ZERO };
        self.until = back + self.memory;
    }

    /// True if the next yield would probably be lost as well.
    fn are_recent(&self, now: Nanos) -> bool {
        now < self.until
    }
}

/// Loop of an engine thread that runs the worker between calls. [`super::handoff`] describes its states.
fn run_between_callers(shared: &Shared) -> Result<(), Dead> {
    let mut busy_at = Nanos::ZERO;
    while !shared.stop.load(Acquire) {
        let now = shared.clock.now();
        let polling = PollingGuard::of(shared, now);
        match shared.handoff.rest(now.0) {
            NextSleep::Until(until) => {
                drop(polling);
                let until = backoff_sleep(shared, now, Nanos(until));
                check_after_backoff(shared, until);
                continue;
            }
            NextSleep::UntilWoken => {
                let until = backoff_sleep(shared, now, now + Nanos(WaitPolicy::LONGEST_SLEEP_NS));
                check_after_backoff(shared, until);
                continue;
            }
            NextSleep::None => {}
        }
        let Some(mut worker) = shared.try_turn() else {
            if shared.is_dead() {
                return Err(Dead);
            }
            // A caller runs a pass. If this thread waited for the lock, the caller would pay a system call to hand it
            // over.
            drop(polling);
            if let NextSleep::Until(until) = shared.handoff.rest_while_caller_polls(now.0) {
                let until = backoff_sleep(shared, now, Nanos(until));
                check_after_backoff(shared, until);
            }
            continue;
        };
        let progress = pass(shared, &mut worker, now);
        if !progress.is_idle() {
            busy_at = now;
            worker.note_pass(shared.clock.now() - now);
        }
        // The application's completions are published: leave the processor to it.
        let is_over = progress.completions > 0 || now - busy_at > Nanos(WaitPolicy::LINGER_NS);
        if is_over || progress.is_idle() && shared.is_crowded(now) {
            drop(polling);
            block(shared, worker);
        } else if progress.is_idle() {
            drop(worker);
            if shared.deferred_ack_since().is_none() {
                thread::yield_now();
            }
        }
    }
    Ok(())
}

/// Runs one pass of the engine thread. An application that spins on its memory replies within microseconds. As in
/// [`super::Engine::caller_pass`], the acknowledgement of received frames is deferred by up to
/// [`WaitPolicy::OWED_FOR_NS`], so that it reaches the peer together with the reply. An acknowledgement that arrives
/// alone ends the peer's polling, and the peer's engine thread has to be woken for the reply.
fn pass(shared: &Shared, worker: &mut WorkerGuard<'_>, now: Nanos) -> Progress {
    let intake = worker.take_in(now);
    shared.wake_pollers(intake.completions);
    if intake.completions == 0 && !worker.doorbells().any() && !worker.nic().has_pressing() {
        match shared.deferred_ack_since() {
            None if intake.received > 0 && shared.handoff.away(now.0) < WaitPolicy::RECENT_NS => {
                shared.defer_acks(worker, now);
                return intake;
            }
            Some(at) if now - at < Nanos(WaitPolicy::OWED_FOR_NS) => return intake,
            _ => {}
        }
    }
    intake.and(&shared.send_out(worker, now))
}

/// Marks a polling caller as still polling when dropped. The engine thread may have preempted that caller, which is no
/// gap in its polling.
struct PollingGuard<'a>(&'a Shared, bool);

impl PollingGuard<'_> {
    fn of(shared: &Shared, now: Nanos) -> PollingGuard<'_> {
        PollingGuard(shared, shared.handoff.away(now.0) < WaitPolicy::POLL_GAP_NS)
    }
}

impl Drop for PollingGuard<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.handoff.pass_ended(self.0.clock.now().0);
        }
    }
}

/// Sleeps until `until`, which callers may postpone, or until woken. Returns the time at which the sleep was to end.
fn backoff_sleep(shared: &Shared, now: Nanos, until: Nanos) -> Nanos {
    shared.set_backoff_end(now, until);
    let mut fds =
        [shared.alarm.as_fd(), shared.backoff_timer.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    sleep_on(&mut fds, Nanos(WaitPolicy::LONGEST_SLEEP_NS));
    wakes(shared, &fds[0])
}

fn wakes(shared: &Shared, alarm: &PollFd<'_>) -> Nanos {
    let until = shared.handoff.wakes();
    if alarm.any() == Some(true) {
        let _ = shared.alarm.read();
    }
    until.map_or_else(|| shared.clock.now(), Nanos)
}

/// Runs after a backoff sleep. If work waits and no caller has run a pass, callers are no longer trusted: they compute,
/// were stopped, or were cancelled. `until`: when the sleep was to end.
fn check_after_backoff(shared: &Shared, until: Nanos) {
    let now = shared.clock.now().0;
    if !shared.handoff.has_substitute() {
        // A caller that polls runs a pass within `JUST_NOW_NS`; a longer absence at `until` is a miss. Two cases are no
        // miss:
        // * The engine thread has preempted the poller since `until`. The absence is therefore measured at `until`, not
        //   now.
        // * A caller has postponed the end of the sleep to a time that is still ahead.
        let missed =
            until.0 <= now && shared.handoff.away(until.0) > WaitPolicy::JUST_NOW_NS && work_waits(shared);
        shared.handoff.backoff_ended(now, missed);
        return;
    }
    if shared.handoff.away(now) < WaitPolicy::SHORTEST_BACKOFF_NS {
        return;
    }
    // The caller that blocks on the link has not fetched its frame: take over.
    if work_waits(shared) {
        let _ = shared.handoff.end_substituting();
    }
}

/// True if there is work or a received frame, and the worker's lock is free.
fn work_waits(shared: &Shared) -> bool {
    let Some(mut worker) = shared.try_turn() else { return false };
    if !worker.is_quiet() {
        return true;
    }
    drop(worker);
    // A port over sockets does not know about frames that wait in its sockets: poll their descriptors.
    let frames = shared.frames();
    let mut fds = readable(frames.iter().map(AsFd::as_fd));
    sleep_on(&mut fds, Nanos::ZERO);
    fds.iter().any(|fd| fd.any() == Some(true))
}

/// Sleeps until a frame, a doorbell, a command, a timer, or a caller's pass that leaves work. Releases the worker's
/// lock meanwhile.
fn block(shared: &Shared, mut worker: WorkerGuard<'_>) {
    let clients = worker.clients().sleep_begins();
    if !worker.prepare_sleep() {
        clients.ends(false);
        return;
    }
    let now = shared.clock.now();
    let until = worker.next_deadline().min(now + Nanos(WaitPolicy::LONGEST_SLEEP_NS));
    shared.handoff.blocks(until.0);
    drop(worker);
    let frames = shared.frames();
    // One `ppoll` on all descriptors of this process. An epoll set of them would be another object to wake, and the
    // scheduler would lose track of the waker.
    let others = [shared.alarm.as_fd(), shared.doorbells.wake_fd().as_fd()];
    let before = others.len();
    let mut fds = readable(others.into_iter().chain(clients.wake_fd()).chain(frames.iter().map(AsFd::as_fd)));
    sleep_on(&mut fds, until - now);
    wakes(shared, &fds[0]);
    shared.doorbells.sleep_ends(fds[1].any() == Some(true));
    clients.ends(clients.wake_fd().is_some() && fds[before].any() == Some(true));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn repeatedly_lost_yields_are_avoided_for_longer() {
        let mut yields = LostYields::default();
        let (lost, memory) = (Nanos(2 * MS), Nanos(WaitPolicy::YIELD_LOST_MEMORY_NS));
        let mut now = Nanos(3_600_000 * MS);
        let lose = |yields: &mut LostYields, now: &mut Nanos| {
            yields.note(*now, *now + lost);
            *now = *now + lost;
        };
        lose(&mut yields, &mut now);
        assert!(!yields.are_recent(now), "one stands alone");
        yields.note(now, now + Nanos(MS / 2));
        assert!(!yields.are_recent(now), "a client had the processor");
        for times in [1, 2, 4, 8] {
            lose(&mut yields, &mut now);
            let until = now + Nanos(times * memory.0);
            assert!(yields.are_recent(until - Nanos(1)) && !yields.are_recent(until), "{times}");
            now = until;
        }
        for _ in 0..20 {
            lose(&mut yields, &mut now);
            now = now + yields.memory;
        }
        assert_eq!(yields.memory, Nanos(WaitPolicy::YIELD_LOST_LONGEST_MEMORY_NS));
        now = now + yields.memory + Nanos(1);
        lose(&mut yields, &mut now);
        assert!(!yields.are_recent(now), "the program had ended");
    }
}
