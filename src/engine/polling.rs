//! Callers that poll, and how they share the processors: with one another, with the engine's thread, and with other programs.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use nix::poll::{PollFd, PollFlags};

use super::shared::{Shared, sleep_on};
use super::wait::MAX_WATCHED;
use super::wait_policy::WaitPolicy;
use super::watch::NOTHING;
use crate::threads::ask_for_short_turns;
use crate::time::Nanos;

impl Shared {
    /// A caller's pass found nothing. After a while whoever else wants the processor may have it: what is waited for may
    /// well come from there.
    pub(super) fn found_nothing(&self, now: Nanos) {
        let since = self.pollers.empty_since.load(Relaxed);
        // Callers that count at the same time lose a count.
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

    /// Yields the processor to a thread that waits for it: another program that computes, or another poller of this device. A single
    /// poller does not yield: two that yield to one another would stay on one processor while another is idle, because the scheduler
    /// moves no thread that has just run.
    fn let_others_work(&self, now: Nanos) {
        if self.is_crowded(now) {
            self.doze(now);
        } else if self.others_poll(now) {
            thread::yield_now();
        }
    }

    /// True if more threads want to run than there are processors. A thread that spins or yields then costs another thread its
    /// time slice, or loses its own for milliseconds. A thread that sleeps until a frame arrives preempts a program that computes.
    pub(super) fn is_crowded(&self, now: Nanos) -> bool {
        self.load.is_high(now.0)
    }

    /// True if several threads poll.
    pub(super) fn others_poll(&self, now: Nanos) -> bool {
        self.pollers.several(now.0)
    }

    /// A poller sleeps until a frame comes, or for a moment.
    fn doze(&self, now: Nanos) {
        thread_local!(static ASKED: Cell<bool> = const { Cell::new(false) });
        if !ASKED.replace(true) {
            // What it waits for comes soon, and so should its turn then. It gets no more processor time by it.
            let _ = ask_for_short_turns();
        }
        self.while_watching(now, || {
            self.pollers.dozing.fetch_add(1, Relaxed);
            let frames = self.frames();
            let stir = self.pollers.stir.as_fd();
            // On the data path nothing allocates. Of a port with more descriptors than that the keeper hears.
            let mut fds: [_; MAX_WATCHED] = std::array::from_fn(|_| PollFd::new(stir, PollFlags::empty()));
            let count = fds.len().min(1 + frames.len());
            let all = std::iter::once(stir).chain(frames.iter().map(AsFd::as_fd));
            fds.iter_mut().zip(all).for_each(|(place, fd)| *place = PollFd::new(fd, PollFlags::POLLIN));
            sleep_on(&mut fds[..count], Nanos(WaitPolicy::DOZE_NS));
            self.pollers.dozing.fetch_sub(1, Relaxed);
            if fds[0].any() == Some(true) {
                let _ = self.pollers.stir.read();
            }
        });
    }

    /// After a pass: completions came, which may be what a poller that dozes waits for.
    pub(super) fn stir(&self, completions: usize) {
        if completions > 0 && self.pollers.dozing.load(Relaxed) > 0 {
            let _ = self.pollers.stir.write(1);
        }
    }

    /// A caller's pass found something to do.
    pub(super) fn found_something(&self) {
        self.pollers.empty_since.store(NOTHING, Relaxed);
        self.pollers.empty.store(0, Relaxed);
    }
}
