//! Copies that wait for the copying thread of a process.
//!
//! A copy from or to the memory of a process may take as long as that process likes. The worker therefore makes none:
//! it hands batches of them to a thread that serves this process alone, and continues. A test plays the thread: it
//! takes the [`CopyJobs`], and runs them late, in another order, or never.

use std::fmt::Debug;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A batch of copies on its way to a copying thread.
pub trait CopyJob: Send + Debug {
    /// Makes the copies, and returns them to the worker. Blocks as long as the process likes. A job that is dropped
    /// returns its copies as failed.
    fn run(self: Box<Self>);

    /// Number of copies.
    fn copies(&self) -> u32;
}

/// The worker's side of the queue. A clone leads to the same queue.
#[derive(Clone, Debug)]
pub struct CopySender(Sender<Option<Box<dyn CopyJob>>>);

/// The copying thread's side of the queue.
#[derive(Debug)]
pub struct CopyJobs(Receiver<Option<Box<dyn CopyJob>>>);

impl CopyJobs {
    /// Makes a queue.
    pub fn new() -> (CopySender, CopyJobs) {
        let (sender, receiver) = channel();
        (CopySender(sender), CopyJobs(receiver))
    }

    /// Waits for the next batch. `None`: the thread has to end.
    pub fn next(&self) -> Option<Box<dyn CopyJob>> {
        self.0.recv().ok().flatten()
    }

    /// Takes the next batch, if there is one.
    pub fn try_next(&self) -> Option<Box<dyn CopyJob>> {
        self.0.try_recv().unwrap_or_default()
    }
}

impl CopySender {
    /// Queues a batch; never blocks. If the thread has ended, the batch is dropped.
    pub(super) fn send(&self, job: Box<dyn CopyJob>) {
        let _ = self.0.send(Some(job));
    }

    /// Ends the thread after the batches before.
    pub fn end(&self) {
        let _ = self.0.send(None);
    }
}
