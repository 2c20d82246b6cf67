//! Threads that look whether neighbours have answered, so that no program's call waits. A look takes no time: silent hosts keep no others
//! from being found, or from being given up in time.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roxie::threads::spawn_unsignalled;

use crate::lock::lock;
use crate::object::Errno;

/// Threads at a time.
const THREADS: usize = 8;
/// A thread without work ends after this long.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a job says after each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// Call it again at this time.
    Again(Instant),
}

/// What is to be done, step by step.
pub(super) type Job = Box<dyn FnMut() -> Step + Send>;

/// The threads, which come and go.
#[derive(Debug, Default)]
pub(super) struct Finder(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    work: Mutex<Work>,
    more: Condvar,
}

#[derive(Default)]
struct Work {
    /// Jobs that no thread has, each with the time of its next step.
    jobs: Vec<(Instant, Job)>,
    threads: usize,
    idle: usize,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} jobs, {} threads, {} idle", self.jobs.len(), self.threads, self.idle)
    }
}

impl Work {
    /// Jobs whose next step is due.
    fn due(&self, now: Instant) -> usize {
        self.jobs.iter().filter(|(at, _)| *at <= now).count()
    }

    /// Takes the job that is due for longest.
    fn take(&mut self, now: Instant) -> Option<Job> {
        let due = self.jobs.iter().enumerate().filter(|(_, (at, _))| *at <= now);
        let first = due.min_by_key(|(_, (at, _))| *at)?.0;
        Some(self.jobs.remove(first).1)
    }

    /// How long a thread without work waits.
    fn patience(&self, now: Instant) -> Duration {
        let next = self.jobs.iter().map(|(at, _)| *at).min();
        next.map_or(PATIENCE, |at| at.saturating_duration_since(now).min(PATIENCE))
    }
}

impl Finder {
    /// Has a job done soon. There are never more than there are identifiers.
    ///
    /// # Errors
    /// `ENOMEM` if there is no thread to do it.
    pub(super) fn run(&self, job: Job) -> Result<(), Errno> {
        let now = Instant::now();
        let mut work = self.0.work();
        work.jobs.push((now, job));
        if work.due(now) <= work.idle || work.threads >= THREADS {
            self.0.more.notify_one();
            return Ok(());
        }
        work.threads += 1;
        let shared = Arc::clone(&self.0);
        if spawn_unsignalled("roxie-find", move || shared.serve()).is_err() {
            work.threads -= 1;
            if work.threads == 0 {
                work.jobs.pop();
                return Err(libc::ENOMEM);
            }
        }
        Ok(())
    }
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        lock(&self.work)
    }

    fn serve(&self) {
        let mut work = self.work();
        loop {
            let now = Instant::now();
            if let Some(mut job) = work.take(now) {
                drop(work);
                let step = job();
                work = self.work();
                if let Step::Again(at) = step {
                    work.jobs.push((at, job));
                }
                continue;
            }
            work.idle += 1;
            let patience = work.patience(now);
            let waited = self.more.wait_timeout(work, patience);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            work = again;
            work.idle -= 1;
            // One thread is enough to wait for the next steps.
            if timeout.timed_out() && work.due(Instant::now()) == 0 && (work.idle > 0 || work.jobs.is_empty())
            {
                work.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
    use std::sync::mpsc::{Sender, channel};

    fn telling(done: Sender<i32>, number: i32) -> Job {
        Box::new(move || {
            done.send(number).unwrap();
            Step::Done
        })
    }

    /// More than there are threads, none of which is done before all have begun.
    #[test]
    fn jobs_between_steps_occupy_no_thread() {
        const JOBS: i32 = 5 * THREADS as i32;
        let finder = Finder::default();
        let (done, told) = channel();
        let begun = Arc::new(AtomicI32::new(0));
        for number in 0..JOBS {
            let (begun, done) = (Arc::clone(&begun), done.clone());
            let mut is_new = true;
            let job = move || {
                let all = begun.fetch_add(i32::from(std::mem::take(&mut is_new)), Relaxed);
                if all < JOBS {
                    return Step::Again(Instant::now() + Duration::from_millis(1));
                }
                done.send(number).unwrap();
                Step::Done
            };
            finder.run(Box::new(job)).unwrap();
        }
        for _ in 0..JOBS {
            told.recv_timeout(Duration::from_secs(10)).unwrap();
        }
    }

    #[test]
    fn a_job_that_waits_keeps_no_other_from_being_done() {
        let finder = Finder::default();
        let (release, held) = channel::<()>();
        finder
            .run(Box::new(move || {
                let _ = held.recv();
                Step::Done
            }))
            .unwrap();
        let (done, told) = channel();
        for number in 0..20 {
            let done = done.clone();
            finder.run(telling(done, number)).unwrap();
        }
        let mut all: Vec<i32> =
            (0..20).map(|_| told.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
        assert!(finder.0.work().threads <= THREADS);
        drop(release);
    }

    /// Who waits for work is counted once: the next job after it has some gets a thread of its own.
    #[test]
    fn a_thread_that_found_work_waits_for_none() {
        let finder = Finder::default();
        let (done, told) = channel();
        for number in 0..3 {
            let done = done.clone();
            finder.run(telling(done, number)).unwrap();
            assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(number));
            // It has done its job, and waits for another.
            while finder.0.work().idle == 0 {
                std::thread::yield_now();
            }
            let work = finder.0.work();
            assert!(work.idle <= work.threads, "{} idle of {}", work.idle, work.threads);
        }
    }
}
