//! How threads that do not run the worker read and change it: the thread that owns it calls them between two passes,
//! and never waits for them.

use std::io;
use std::sync::{Arc, Mutex};

use crossbeam_channel::{RecvTimeoutError, bounded};
use roxie_base::limits::Limits;
use roxie_base::threads::lock;
use roxie_base::time::Nanos;
use roxie_nic::verbs::Mtu;
use roxie_port::{LinkChange, PortInfo};

use super::{Engine, Request, Visit, WaitPolicy, Worker};

impl Engine {
    /// Reads the worker between two passes, or whatever is left of a dead one. A thread that owns the worker calls
    /// `look`, and never waits for the calling thread.
    pub fn inspect<T, F>(&self, look: F) -> T
    where
        T: Send + 'static,
        F: FnOnce(&Worker) -> T + Send + 'static,
    {
        match self.visit(move |worker: &mut Worker| look(worker)) {
            Ok(result) => result,
            Err(look) => look(&mut self.shared.lock_to_inspect()),
        }
    }

    /// Changes the worker between two passes, as [`inspect`](Self::inspect) reads it. `None`: the engine is dead.
    pub fn adjust<T, F>(&self, change: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Worker) -> T + Send + 'static,
    {
        self.visit(change).map_or_else(
            |change| {
                let mut worker = self.shared.lock_between().ok()?;
                let result = change(&mut worker);
                self.shared.wake_if_needed(&worker, false);
                Some(result)
            },
            Some,
        )
    }

    /// Has the thread that owns the worker run `act` between two passes, and blocks until its result. `Err`: no thread
    /// owns the worker, or the engine is dead.
    fn visit<T, F>(&self, act: F) -> Result<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&mut Worker) -> T + Send + 'static,
    {
        if self.caller_drives || self.thread.is_none() {
            return Err(act);
        }
        let take = |act: &Mutex<Option<F>>| lock(act).take();
        let act = Arc::new(Mutex::new(Some(act)));
        let (answer, answered) = bounded(1);
        let visit = Visit::new({
            let act = Arc::clone(&act);
            move |worker| {
                if let Some(act) = take(&act) {
                    let _ = answer.send(act(worker));
                }
            }
        });
        if self.submit(Request::Visit(visit)).is_ok() {
            self.doorbells.wake_if_sleeping();
            loop {
                match answered.recv_timeout(Nanos(WaitPolicy::LONGEST_SLEEP_NS).as_duration()) {
                    Ok(result) => return Ok(result),
                    Err(RecvTimeoutError::Timeout) if !self.is_dead() => {}
                    Err(_) => break,
                }
            }
        }
        // The worker may have answered, and have died since.
        if let Ok(result) = answered.try_recv() {
            return Ok(result);
        }
        Err(take(&act).expect("a visit that panicked has no result"))
    }

    /// Returns the link's first error, once.
    pub fn take_link_error(&self) -> Option<io::Error> {
        match self.visit(Worker::take_link_error) {
            Ok(error) => error,
            Err(take) => take(&mut self.shared.lock_to_inspect()),
        }
    }

    /// Makes the port follow a change of the link. Returns the number of QPs that fail because their packets no longer
    /// fit. `None`: the engine is dead.
    pub fn follow(&self, change: LinkChange) -> Option<io::Result<u32>> {
        let now = self.now();
        let failed = self.adjust(move |worker| worker.follow(now, &change));
        self.read_facts();
        failed
    }

    pub(super) fn read_facts(&self) {
        let facts = self.inspect(|worker| (worker.port().info().clone(), worker.nic().largest_mtu()));
        *lock(&self.facts) = facts;
    }

    /// The NIC's limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Properties of the port, as of the last change of the link that it followed.
    pub fn port(&self) -> PortInfo {
        lock(&self.facts).0.clone()
    }

    /// The largest path MTU over the port's link.
    pub fn largest_mtu(&self) -> Mtu {
        lock(&self.facts).1
    }
}
