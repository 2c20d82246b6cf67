//! Threads that resolve neighbours, so that no call of the program blocks. Jobs are polled step by step, so hosts that
//! do not answer delay neither other jobs nor their own timeout.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roxie::threads::spawn_unsignalled;

use crate::base::lock::lock;
use crate::base::object::Errno;

/// Maximum number of threads.
const THREADS: usize = 8;
/// Time after which an idle thread ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// Result of a job's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobStep {
    Done,
    /// Call the job again at this time.
    Again(Instant),
}

/// A job, called step by step.
pub(super) type Job = Box<dyn FnMut() -> JobStep + Send>;

/// The threads, started and ended on demand.
#[derive(Debug, Default)]
pub(super) struct Finder(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    work: Mutex<Work>,
    more: Condvar,
}

#[derive(Default)]
struct Work {
    /// Waiting jobs, each with the time of its next step.
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
    /// Returns the number of jobs with a step due.
    fn due(&self, now: Instant) -> usize {
        self.jobs.iter().filter(|(at, _)| *at <= now).count()
    }

    /// Takes the job that has been due for longest.
    fn take(&mut self, now: Instant) -> Option<Job> {
        let due = self.jobs.iter().enumerate().filter(|(_, (at, _))| *at <= now);
        let first = due.min_by_key(|(_, (at, _))| *at)?.0;
        Some(self.jobs.remove(first).1)
    }

    /// Returns how long an idle thread waits.
    fn patience(&self, now: Instant) -> Duration {
        let next = self.jobs.iter().map(|(at, _)| *at).min();
        next.map_or(PATIENCE, |at| at.saturating_duration_since(now).min(PATIENCE))
    }
}

impl Finder {
    /// Runs a job. The number of jobs is limited by the number of identifiers.
    ///
    /// # Errors
    /// `ENOMEM` if no thread could be started.
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
                if let JobStep::Again(at) = step {
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
            JobStep::Done
        })
    }

    /// Starts more jobs than threads. None of them finishes before all have started.
    #[test]
    fn jobs_between_steps_occupy_no_thread() {
        const JOBS: i32 = 5 * THREADS as i32;
        let finder = Finder::default();
        let (done, receiver) = channel();
        let begun = Arc::new(AtomicI32::new(0));
        for number in 0..JOBS {
            let (begun, done) = (Arc::clone(&begun), done.clone());
            let mut is_new = true;
            let job = move || {
                let all = begun.fetch_add(i32::from(std::mem::take(&mut is_new)), Relaxed);
                if all < JOBS {
                    return JobStep::Again(Instant::now() + Duration::from_millis(1));
                }
                done.send(number).unwrap();
                JobStep::Done
            };
            finder.run(Box::new(job)).unwrap();
        }
        for _ in 0..JOBS {
            receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        }
    }

    #[test]
    fn blocked_job_does_not_delay_others() {
        let finder = Finder::default();
        let (release, held) = channel::<()>();
        finder
            .run(Box::new(move || {
                let _ = held.recv();
                JobStep::Done
            }))
            .unwrap();
        let (done, receiver) = channel();
        for number in 0..20 {
            let done = done.clone();
            finder.run(telling(done, number)).unwrap();
        }
        let mut all: Vec<i32> =
            (0..20).map(|_| receiver.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
        assert!(finder.0.work().threads <= THREADS);
        drop(release);
    }

    /// A thread that waits for work is counted once: the next job is given a thread of its own.
    #[test]
    fn thread_with_work_is_not_counted_as_idle() {
        let finder = Finder::default();
        let (done, receiver) = channel();
        for number in 0..3 {
            let done = done.clone();
            finder.run(telling(done, number)).unwrap();
            assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(number));
            // The thread has finished its job, and waits for another.
            while finder.0.work().idle == 0 {
                std::thread::yield_now();
            }
            let work = finder.0.work();
            assert!(work.idle <= work.threads, "{} idle of {}", work.idle, work.threads);
        }
    }
}
