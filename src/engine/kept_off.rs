//! Whether a thread that did not poll was doing something else, or was kept off its processor by others.

use std::cell::Cell;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

use crate::time::Nanos;

/// What the calling thread had done when it was last asked.
#[derive(Clone, Copy)]
struct Usage {
    at: Nanos,
    /// How long it had run, in user space and in the kernel.
    ran: Duration,
    /// How often it had gone to sleep by itself.
    sleeps: i64,
}

impl Usage {
    fn of_this_thread(now: Nanos) -> Option<Usage> {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
        let ran = usage.user_time() + usage.system_time();
        let seconds = Duration::from_secs(ran.tv_sec().try_into().ok()?);
        let ran = seconds + Duration::from_micros(ran.tv_usec().try_into().ok()?);
        Some(Usage { at: now, ran, sleeps: usage.voluntary_context_switches() })
    }
}

/// True if the calling thread was kept off its processor for this long since it last asked, and did not sleep. It costs a system call. The
/// first time nothing is known: false.
pub(super) fn was_kept_off(now: Nanos, at_least: Nanos) -> bool {
    thread_local!(static BEFORE: Cell<Option<Usage>> = const { Cell::new(None) });
    let Some(usage) = Usage::of_this_thread(now) else { return false };
    BEFORE.replace(Some(usage)).is_some_and(|before| {
        let waited = (now - before.at).as_duration().saturating_sub(usage.ran.saturating_sub(before.ran));
        usage.sleeps == before.sleeps && waited >= at_least.as_duration()
    })
}

/// Asks again and again, on a processor that a thread which only computes wants too, until it is so. False: not within 30 s.
#[cfg(test)]
pub(super) fn happens_beside_a_spinner(mut is_so: impl FnMut() -> bool + Send) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;
    use std::time::Instant;

    let core = core_affinity::get_core_ids().unwrap()[0];
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            core_affinity::set_for_current(core);
            while !over.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let asks = scope.spawn(|| {
            core_affinity::set_for_current(core);
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(30) {
                if is_so() {
                    return true;
                }
            }
            false
        });
        let found = asks.join();
        over.store(true, Relaxed);
        found.unwrap()
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::time::Clock;

    const LONG: Nanos = Nanos::from_millis(1);

    #[test]
    fn a_thread_that_slept_was_not_kept_off() {
        let clock = Clock::new();
        assert!(!was_kept_off(clock.now(), Nanos::ZERO), "nothing is known yet");
        thread::sleep(Duration::from_millis(5));
        assert!(!was_kept_off(clock.now(), LONG));
    }

    #[test]
    fn a_thread_that_shares_its_processor_is_kept_off_it() {
        let clock = Clock::new();
        let (mut last, mut began) = (Nanos::ZERO, false);
        assert!(happens_beside_a_spinner(|| {
            if !std::mem::replace(&mut began, true) {
                let _ = was_kept_off(clock.now(), LONG);
                last = clock.now();
            }
            let now = clock.now();
            // A machine may stand still by itself; then it is the next time.
            let away = now - std::mem::replace(&mut last, now);
            away > LONG + LONG && was_kept_off(now, LONG)
        }));
    }
}
