//! How callers that poll share the processors with one another, the engine thread and other programs.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use nix::poll::{PollFd, PollFlags};

use super::handoff::NOTHING;
use super::shared::{Shared, sleep_on};
use super::wait::MAX_WATCHED;
use super::wait_policy::WaitPolicy;
use roxie_base::threads::request_short_slices;
use roxie_base::time::Nanos;

impl Shared {
    /// Records a caller's pass that found nothing. After [`WaitPolicy::EMPTY_FOR_NS`] and [`WaitPolicy::EMPTY_PASSES`]
    /// the caller lets other threads run: the completion may depend on them.
    pub(super) fn note_empty_pass(&self, now: Nanos) {
        let since = self.pollers.empty_since.load(Relaxed);
        // Callers that count at the same time may lose a count.
        let empty = self.pollers.empty.load(Relaxed).saturating_add(1);
        self.pollers.empty.store(empty, Relaxed);
        if since == NOTHING {
            self.pollers.empty_since.store(now.0, Relaxed);
        } else if empty >= WaitPolicy::EMPTY_PASSES && now.0.saturating_sub(since) > WaitPolicy::EMPTY_FOR_NS
        {
            self.pollers.empty_since.store(NOTHING, Relaxed);
            self.let_others_work(now);
        }
    }

    /// Yields the processor to a runnable thread: another program, or another poller of this device. A single poller
    /// does not yield. Two that yield to one another would stay on one processor while another is idle, because the
    /// scheduler does not move a thread that has just run.
    fn let_others_work(&self, now: Nanos) {
        if self.is_crowded(now) {
            self.sleep_briefly(now);
        } else if self.others_poll(now) {
            thread::yield_now();
        }
    }

    /// True if more threads want to run than there are processors. A thread that spins or yields then costs another
    /// thread its time slice, or loses its own for milliseconds. A thread that sleeps until a frame arrives preempts a
    /// program that computes.
    pub(super) fn is_crowded(&self, now: Nanos) -> bool {
        self.load.is_high(now.0)
    }

    /// True if several threads poll.
    pub(super) fn others_poll(&self, now: Nanos) -> bool {
        self.pollers.several(now.0)
    }

    /// Sleeps until a frame arrives, another thread's pass publishes completions, or [`WaitPolicy::POLLER_SLEEP_NS`] is
    /// over.
    fn sleep_briefly(&self, now: Nanos) {
        thread_local!(static ASKED: Cell<bool> = const { Cell::new(false) });
        if !ASKED.replace(true) {
            // Short time slices let this thread run soon after its frame arrives. The thread gets no more processor
            // time by them.
            let _ = request_short_slices();
        }
        self.while_substituting(now, || {
            self.pollers.asleep.fetch_add(1, Relaxed);
            let frames = self.frames();
            let wake = self.pollers.wake.as_fd();
            // No allocation on the data path. The engine thread waits for descriptors beyond `MAX_WATCHED`.
            let mut fds: [_; MAX_WATCHED] = std::array::from_fn(|_| PollFd::new(wake, PollFlags::empty()));
            let count = fds.len().min(1 + frames.len());
            let all = std::iter::once(wake).chain(frames.iter().map(AsFd::as_fd));
            fds.iter_mut().zip(all).for_each(|(place, fd)| *place = PollFd::new(fd, PollFlags::POLLIN));
            sleep_on(&mut fds[..count], Nanos(WaitPolicy::POLLER_SLEEP_NS));
            self.pollers.asleep.fetch_sub(1, Relaxed);
            if fds[0].any() == Some(true) {
                let _ = self.pollers.wake.read();
            }
        });
    }

    /// Wakes pollers in a short sleep if a pass has published completions.
    pub(super) fn wake_pollers(&self, completions: usize) {
        if completions > 0 && self.pollers.asleep.load(Relaxed) > 0 {
            let _ = self.pollers.wake.write(1);
        }
    }

    /// Records a caller's pass that found something.
    pub(super) fn note_busy_pass(&self) {
        self.pollers.empty_since.store(NOTHING, Relaxed);
        self.pollers.empty.store(0, Relaxed);
    }
}
