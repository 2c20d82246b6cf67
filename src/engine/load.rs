//! Number of threads that want to run on this machine.

use std::fs::File;

use super::wait_policy::WaitPolicy;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;

/// A cached answer of `/proc/loadavg`. Without that file the load is never high.
#[derive(Debug)]
pub(super) struct Load {
    file: Option<File>,
    processors: u32,
    read_at: AtomicU64,
    /// Weighted number of answers with more runnable threads than processors.
    weight: AtomicU32,
}

impl Load {
    pub(super) fn new() -> Load {
        let processors = thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Load {
            file: File::open("/proc/loadavg").ok(),
            processors,
            read_at: AtomicU64::new(0),
            weight: AtomicU32::new(0),
        }
    }

    /// True if more threads want to run than there are processors, and have wanted to for about 10 ms. Threads that
    /// sleep in between soon stop counting.
    pub(super) fn is_high(&self, now: u64) -> bool {
        let read_at = self.read_at.load(Relaxed);
        let age = now.saturating_sub(read_at);
        if age >= WaitPolicy::LOAD_INTERVAL_NS
            && self.read_at.compare_exchange(read_at, now, Relaxed, Relaxed).is_ok()
        {
            self.note(age, self.running());
        }
        self.weight.load(Relaxed) >= WaitPolicy::LOAD_ENOUGH
    }

    /// Makes the load high from `now` on.
    #[cfg(test)]
    pub(super) fn assume_high(&self, now: u64) {
        self.read_at.store(now, Relaxed);
        self.weight.store(WaitPolicy::LOAD_MOST, Relaxed);
    }

    fn note(&self, age: u64, running: Option<u32>) {
        let before = if age < WaitPolicy::LOAD_AGE_NS { self.weight.load(Relaxed) } else { 0 };
        let is_so = running.is_some_and(|running| running > self.processors);
        let weight = if is_so {
            (before + WaitPolicy::LOAD_WEIGHT).min(WaitPolicy::LOAD_MOST)
        } else {
            before.saturating_sub(1)
        };
        debug_assert!(weight <= WaitPolicy::LOAD_MOST, "a load of {weight}, from {before}");
        self.weight.store(weight, Relaxed);
    }

    fn running(&self) -> Option<u32> {
        let mut text = [0; 64];
        let count = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        running_in(std::str::from_utf8(&text[..count]).ok()?)
    }
}

/// Returns the number of runnable threads: the 1 of `0.20 0.18 0.12 1/80 11206` (`proc_loadavg(5)`).
fn running_in(text: &str) -> Option<u32> {
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runnable_threads_are_read_from_loadavg() {
        assert_eq!(running_in("0.20 0.18 0.12 13/80 11206\n"), Some(13));
        assert_eq!(running_in("0.20 0.18"), None);
        assert!(Load::new().running().is_some_and(|running| running > 0), "this one runs");
    }

    #[test]
    fn load_is_high_after_repeated_answers_until_forgotten() {
        let load = Load { file: None, processors: 2, read_at: AtomicU64::new(0), weight: AtomicU32::new(0) };
        let after = |age, running| {
            load.note(age, running);
            load.weight.load(Relaxed) >= WaitPolicy::LOAD_ENOUGH
        };
        assert_eq!([3, 2, 3].map(|running| after(WaitPolicy::LOAD_INTERVAL_NS, Some(running))), [false; 3]);
        assert_eq!(
            [3, 3, 2].map(|running| after(WaitPolicy::LOAD_INTERVAL_NS, Some(running))),
            [false, true, true]
        );
        // One answer in three keeps the load high.
        let mut answers = [3, 2, 2].into_iter().cycle();
        assert!((0..300).all(|_| after(WaitPolicy::LOAD_INTERVAL_NS, answers.next())));
        assert!(
            (0..40).any(|_| !after(WaitPolicy::LOAD_INTERVAL_NS, Some(2))),
            "each thread has a processor"
        );
        assert!(!after(WaitPolicy::LOAD_AGE_NS, Some(3)), "the previous answer is too old");
        assert!(!after(WaitPolicy::LOAD_INTERVAL_NS, None) && !load.is_high(1), "there is no answer");
    }
}
