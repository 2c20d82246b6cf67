//! The copying thread of a client: makes the copies from and to its memory, and pays for them.
//!
//! A copy takes as long as the client likes: its page may come from a file system of its own, or have to be zeroed. The
//! thread serves this client alone, so a slow copy delays no other client (`roxie_nic::nic`, module `parking`). The
//! client's first registered memory that the NIC does not map starts the thread, and the client's end ends it. An
//! honest copy takes some microseconds. Processor time beyond [`FREE`] and [`FREE_OF_COPY`] is
//! [charged](super::processor_share).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use super::client::Client;
use super::processor_share::{ProcessorShare, UserShares};
use super::registry::Registry;
use roxie_base::threads::{ThreadState, lock, request_short_slices, spawn_unsignalled};
use roxie_nic::shared::remote_memory::{CopyJobs, RemoteMemory};

/// Processor time that a batch may take without a pause ...
const FREE: Duration = Duration::from_micros(200);
/// ... and that each of its copies adds. A copy of 4 KiB takes 1.5 us, and as long again if its page is new.
const FREE_OF_COPY: Duration = Duration::from_micros(10);

/// Starts the copying thread of some memory.
///
/// # Errors
/// If the system is out of threads.
pub(super) fn start(memory: &Arc<RemoteMemory>, shares: Arc<UserShares>) -> io::Result<JoinHandle<()>> {
    let (sender, jobs) = CopyJobs::new();
    let copied = Arc::clone(memory);
    let (report, state) = channel();
    let thread = spawn_unsignalled("roxie-copies", move || {
        let _ = report.send(ThreadState::of_caller().ok());
        run(&jobs, &copied, &shares.data);
    })?;
    memory.copied_by(sender, state.recv().ok().flatten());
    Ok(thread)
}

impl Client {
    /// Starts the thread that copies from and to its memory, if there is none.
    pub(super) fn start_copies(&self, registry: &Registry) -> io::Result<()> {
        let mut copies = lock(&self.copies);
        if copies.is_none() {
            *copies = Some(start(&self.memory, registry.shares_of(self.uid))?);
        }
        Ok(())
    }

    /// Ends that thread after [`leave`](Client::leave). Blocks as long as a copy.
    pub(super) fn end_copies(&self) {
        self.memory.end_copies();
        let thread = lock(&self.copies).take();
        let _ = thread.map(JoinHandle::join);
    }
}

/// Runs until the end of the client.
fn run(jobs: &CopyJobs, memory: &RemoteMemory, share: &ProcessorShare) {
    // As the worker's thread: a batch does not wait until a spinning program has used up its time slice.
    let _ = request_short_slices();
    while let Some(job) = jobs.next() {
        share.charge_for(FREE + FREE_OF_COPY * job.copies(), || job.run());
        if !share.pause().is_zero() {
            memory.set_paused(true);
            share.pay_unless(|| memory.is_fenced());
            memory.set_paused(false);
        }
    }
}
