//! Completion queues that tasks of a `tokio` runtime await.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::Poll;

use tokio::io::unix::AsyncFd;

use super::channel::CompletionChannel;
use super::cq::CompletionQueue;
use super::device::Device;
use super::error::DeviceError;
use roxie_nic::nic::ControlError;
use roxie_nic::shared::Armed;
use roxie_nic::verbs::Wc;

/// A completion queue with a channel of its own. Dereferences to the [`CompletionQueue`], with which QPs are made.
///
/// ```
/// use roxie::host::{ConnectOptions, Device, DeviceConfig};
/// use roxie::verbs::{Access, SendWr};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let (near, far) = Device::memory_pair(&DeviceConfig::default())?;
/// let (pd, cq) = (near.alloc_pd()?, near.create_async_cq(16)?);
/// let (far_pd, far_cq) = (far.alloc_pd()?, far.create_async_cq(16)?);
/// let (qp, far_qp) = (pd.queue_pair(&cq).create()?, far_pd.queue_pair(&far_cq).create()?);
/// let (here, there) = (qp.endpoint(0)?, far_qp.endpoint(0)?);
/// qp.connect(&here, &there, &ConnectOptions::default())?;
/// far_qp.connect(&there, &here, &ConnectOptions::default())?;
///
/// let memory = far_pd.register(64, Access::LOCAL_WRITE)?;
/// far_qp.post_recv(1, &[memory.sge(0, 64)])?;
/// qp.post_send_inline(&SendWr::send(), b"hello")?;
/// let received = far_cq.next().await?.ok()?;
/// assert_eq!(received.byte_len, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncCompletionQueue {
    queue: CompletionQueue,
    channel: AsyncFd<CompletionChannel>,
    /// Number of completions returned.
    taken: AtomicU32,
}

/// Completions that a task takes before it lets other tasks of its thread run.
const BUDGET: u32 = 64;

impl Device {
    /// Makes a completion queue of at least `entries`, to be awaited in the current `tokio` runtime. No thread is
    /// started: the device needs one ([`Drive::Caller`](super::Drive::Caller) or `Thread`, not `CallerOnly`).
    ///
    /// # Errors
    /// The errors of [`Device::create_cq`]; also if the system is out of descriptors.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn create_async_cq(&self, entries: u32) -> Result<AsyncCompletionQueue, DeviceError> {
        let channel = CompletionChannel::new()?;
        let queue = self.create_cq(entries, Some(&channel))?;
        // Deprecated for types whose descriptor may change: the channel owns its own, and never changes it.
        #[allow(deprecated)]
        let channel = AsyncFd::new(channel).map_err(unwatched)?;
        Ok(AsyncCompletionQueue { queue, channel, taken: AtomicU32::new(0) })
    }
}

fn unwatched(source: std::io::Error) -> DeviceError {
    DeviceError::System { what: "watching a completion channel", source }
}

impl Deref for AsyncCompletionQueue {
    type Target = CompletionQueue;

    fn deref(&self) -> &CompletionQueue {
        &self.queue
    }
}

impl AsyncCompletionQueue {
    /// Waits for the next completion, while the device's own thread runs the NIC. A dropped future loses no completion.
    ///
    /// # Errors
    /// If the device has failed: no more completions will come.
    pub async fn next(&self) -> Result<Wc, DeviceError> {
        if self.taken.fetch_add(1, Relaxed) % BUDGET == BUDGET - 1 {
            yield_once().await;
        }
        let take = || {
            let mut taken = [Wc::default()];
            (self.queue.poll_ready(&mut taken) == 1).then_some(taken[0])
        };
        loop {
            if let Some(wc) = take() {
                return Ok(wc);
            }
            if self.queue.has_failed() {
                return Err(ControlError::DeviceFatal.into());
            }
            self.queue.arm(Armed::Next);
            // A completion before the queue was armed raises no event.
            if let Some(wc) = take() {
                return Ok(wc);
            }
            self.queue.step_aside();
            let mut ready = self.channel.readable().await.map_err(unwatched)?;
            ready.get_inner().discard_event();
            ready.clear_ready();
        }
    }
}

/// Lets other tasks run.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
