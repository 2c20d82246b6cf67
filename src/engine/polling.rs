//! Callers that poll, and how they share the processors: with one another, with the engine's thread, and with other programs.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use nix::poll::{PollFd, PollFlags};

use super::crowded::LONG_TURN;
use super::kept_off::was_kept_off;
use super::shared::{Shared, sleep_on};
use super::wait::MAX_WATCHED;
use super::waiters::this_thread;
use super::watch::{BREAK, NOTHING};
use crate::threads::ask_for_short_turns;
use crate::time::Nanos;

/// How long callers find nothing before they offer the processor to others, in ns.
const PATIENCE: u64 = 3_000;
/// And in how many passes at least: who looks now and then is not polling.
const EMPTY_PASSES: u32 = 6;
/// So often within this time, in ns: the processors are crowded. Two that only share one by chance are parted earlier.
const COUNTED: u64 = 100_000_000;
const OFTEN: u32 = 8;
/// How long a poller sleeps on the link at most. It may have other things to look at.
const DOZE: Nanos = Nanos::from_micros(50);

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
        } else if empty >= EMPTY_PASSES && now.0.saturating_sub(since) > PATIENCE {
            self.pollers.empty_since.store(NOTHING, Relaxed);
            self.let_others_work(now);
        }
    }

    /// A caller polls, `away` ns after somebody did last. One that polled in a loop and then did not for long was kept off its
    /// processor by a program that computes. If that happens again and again, callers that find nothing sleep for a while
    /// instead of polling on, for a moment each: who sleeps until a frame comes has the processor back then, and not in milliseconds.
    pub(super) fn note_poll(&self, now: Nanos, away: u64) {
        self.pollers.note_thread(now.0, this_thread());
        if (BREAK..LONG_TURN).contains(&away) && was_kept_off(now, Nanos(away - BREAK)) {
            // Nothing that it did, so no break. Who is kept off for longer shares with a program that computes: the keeper helps then.
            self.watch.pass_ended(now.0);
        }
        if away < LONG_TURN || self.pollers.empty.load(Relaxed) < EMPTY_PASSES {
            return;
        }
        let gaps = if now.0.saturating_sub(self.pollers.gaps_since.load(Relaxed)) > COUNTED {
            self.pollers.gaps_since.store(now.0, Relaxed);
            1
        } else {
            self.pollers.gaps.load(Relaxed) + 1
        };
        self.pollers.gaps.store(gaps, Relaxed);
        if gaps >= OFTEN {
            self.pollers.gaps.store(0, Relaxed);
            self.pollers.crowded.found(now.0);
        }
    }

    /// Lets others have the processor, where somebody wants it: another program that computes, or another poller of this device. A single
    /// poller offers it to nobody: two that do so to one another would stay on one processor while another is idle, for the scheduler
    /// moves no thread that has just run.
    fn let_others_work(&self, now: Nanos) {
        let others_poll = self.others_poll(now);
        let others_compute =
            if others_poll { self.yields_are_long(now) } else { self.pollers.load.is_high(now.0) };
        if others_compute || self.pollers.crowded.is_so(now.0) {
            self.doze(now);
        } else if others_poll {
            self.offer_processor(now);
        }
    }

    /// Offers the processor to others, before the next look.
    pub(super) fn offer_processor(&self, now: Nanos) {
        self.long_yields.offer_processor(&self.clock, now);
    }

    /// True if that costs milliseconds. Who waits had better sleep then: a frame wakes it, ahead of a program that computes.
    pub(super) fn yields_are_long(&self, now: Nanos) -> bool {
        self.long_yields.is_so(now.0)
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
            sleep_on(&mut fds[..count], DOZE);
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
