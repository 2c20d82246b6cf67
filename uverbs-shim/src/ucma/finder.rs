//! Threads that wait for neighbours to answer, so that no program's call does.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roxie::threads::spawn_unsignalled;

use crate::lock::lock;
use crate::object::Errno;

/// Threads at a time: so many hosts may be silent before others have to wait for them.
const THREADS: usize = 8;
/// A thread without work ends after this long.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is to be done.
pub(super) type Job = Box<dyn FnOnce() + Send>;

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
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} jobs, {} threads, {} idle", self.jobs.len(), self.threads, self.idle)
    }
}

impl Finder {
    /// Has a job done soon. There are never more than there are identifiers.
    ///
    /// # Errors
    /// `ENOMEM` if there is no thread to do it.
    pub(super) fn run(&self, job: Job) -> Result<(), Errno> {
        let mut work = self.0.work();
        work.jobs.push_back(job);
        if work.jobs.len() <= work.idle || work.threads >= THREADS {
            self.0.more.notify_one();
            return Ok(());
        }
        work.threads += 1;
        let shared = Arc::clone(&self.0);
        if spawn_unsignalled("roxie-find", move || shared.serve()).is_err() {
            work.threads -= 1;
            if work.threads == 0 {
                work.jobs.pop_back();
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
            if let Some(job) = work.jobs.pop_front() {
                drop(work);
                job();
                work = self.work();
                continue;
            }
            work.idle += 1;
            let waited = self.more.wait_timeout(work, PATIENCE);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            work = again;
            work.idle -= 1;
            if timeout.timed_out() && work.jobs.is_empty() {
                work.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_job_that_waits_keeps_no_other_from_being_done() {
        let finder = Finder::default();
        let (release, held) = channel::<()>();
        finder
            .run(Box::new(move || {
                let _ = held.recv();
            }))
            .unwrap();
        let (done, told) = channel();
        for number in 0..20 {
            let done = done.clone();
            finder.run(Box::new(move || done.send(number).unwrap())).unwrap();
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
            finder.run(Box::new(move || done.send(number).unwrap())).unwrap();
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
