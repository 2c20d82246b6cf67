//! A file written by a thread of its own, so that the capturing thread does not wait for a disk or a pipe.
//!
//! A write is queued as a whole or refused as a whole (`WouldBlock`), so the file consists of complete
//! blocks. The first failure ends the file, because no reader could continue behind an incomplete block.
//!
//! A process may exit without dropping its files: [`write_out`] then waits until all of them are written.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use roxie_base::threads::spawn_unsignalled;

/// Queue limit in bytes. Memory is touched only as far as it is used.
const CAPACITY: usize = 64 << 20;
/// Bytes per write to the file.
const PIECE: usize = 64 << 10;
/// Time that the thread collects bytes before it writes. A full piece is written immediately.
const COLLECT: Duration = Duration::from_millis(2);
/// Time after which a closing file that accepts no bytes is abandoned.
const GRACE: Duration = Duration::from_secs(2);
/// Polling interval of [`write_out`].
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// The open files of the process.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Queues writes for a thread. A clone writes to the same file. The drop of the last one waits until all is written, or
/// until the file has accepted nothing for 2 s.
#[derive(Clone, Debug)]
pub struct Background(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    capacity: usize,
    grace: Duration,
    /// `None` once closed: nothing waits for the thread then.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Number of writes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Writes that were queued.
    pub queued: u64,
    /// Writes that were refused, because the queue was full.
    pub refused: u64,
}

/// Makes the block that reports the writes so far.
pub type Statistics = Box<dyn FnMut(Writes) -> Vec<u8> + Send>;

/// Progress of a [`Background`]'s thread.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Process of the writing thread. A child of a fork does not have the thread.
    process: u32,
    state: Mutex<State>,
    /// Wakes the thread: bytes are queued, or the file is closing.
    work: Condvar,
    /// Wakes waiters: bytes are written, or the thread has ended.
    done: Condvar,
}

#[derive(Debug)]
struct State {
    /// Bytes queued while the thread was writing.
    queue: Vec<u8>,
    /// Bytes that the thread has taken but not written.
    taken: usize,
    /// Total number of bytes ever queued.
    queued: u64,
    writes: Writes,
    closing: bool,
    ended: bool,
    failure: Option<(io::ErrorKind, String)>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    /// Returns the number of bytes not written yet.
    pub fn unwritten(&self) -> usize {
        let state = self.0.lock();
        state.queue.len() + state.taken
    }

    /// True if a write failed. The file ends there.
    pub fn has_failed(&self) -> bool {
        self.0.lock().failure.is_some()
    }

    /// True if the thread has ended: it writes no more.
    pub fn has_ended(&self) -> bool {
        self.0.lock().ended
    }
}

impl Background {
    /// Starts a thread that writes to `out`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(out: impl Write + Send + 'static) -> io::Result<Background> {
        Background::with_limits(out, CAPACITY, GRACE)
    }

    /// Like [`new`](Self::new), with a queue of `capacity` bytes, and a limit of `grace` for a closing file.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn with_limits(
        out: impl Write + Send + 'static,
        capacity: usize,
        grace: Duration,
    ) -> io::Result<Background> {
        Background::start(out, capacity, grace, None)
    }

    /// Like [`with_limits`](Self::with_limits). The file tells how many writes were refused: a block of `statistics`
    /// follows each gap, before the next queued block that the thread takes, and one is the end of the file.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn with_statistics(
        out: impl Write + Send + 'static,
        capacity: usize,
        statistics: Statistics,
    ) -> io::Result<Background> {
        Background::start(out, capacity, GRACE, Some(statistics))
    }

    fn start(
        out: impl Write + Send + 'static,
        capacity: usize,
        grace: Duration,
        statistics: Option<Statistics>,
    ) -> io::Result<Background> {
        let state = State {
            queue: Vec::with_capacity(capacity),
            taken: 0,
            queued: 0,
            writes: Writes::default(),
            closing: false,
            ended: false,
            failure: None,
        };
        let shared = Arc::new(Shared {
            process: std::process::id(),
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let run = move || run(&of_thread, Vec::with_capacity(capacity), out, statistics);
        let thread = spawn_unsignalled("roxie-capture", run)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|file| file.strong_count() > 0);
        open.push(Arc::downgrade(&shared));
        drop(open);
        Ok(Background(Arc::new(Handle { shared, capacity, grace, thread: Mutex::new(Some(thread)) })))
    }

    /// Returns a handle to observe the thread's progress.
    pub fn progress(&self) -> Progress {
        Progress(Arc::clone(&self.0.shared))
    }

    /// Ends the file once all queued bytes are written, without waiting for that. [`Progress::has_ended`] reports the
    /// end. What clones write afterwards is lost.
    pub fn close(&self) {
        self.0.shared.lock().closing = true;
        self.0.shared.work.notify_one();
        self.0.lock_thread().take();
    }
}

impl Write for Background {
    /// Queues all bytes or none: `WouldBlock` if the queue is full, or the error by which the file failed.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.shared.lock();
        if let Some((kind, text)) = &state.failure {
            return Err(io::Error::new(*kind, text.clone()));
        }
        let before = state.queue.len();
        if bytes.len() > self.0.capacity - before {
            state.writes.refused += 1;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.queue.extend_from_slice(bytes);
        state.queued += bytes.len() as u64;
        state.writes.queued += 1;
        let wake = before == 0 || before < PIECE && state.queue.len() >= PIECE;
        drop(state);
        if wake {
            self.0.shared.work.notify_one();
        }
        Ok(bytes.len())
    }

    /// Does not wait: the thread writes as soon as it can.
    fn flush(&mut self) -> io::Result<()> {
        match &self.0.shared.lock().failure {
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
            None => Ok(()),
        }
    }
}

impl Handle {
    fn lock_thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(thread) = self.lock_thread().take() else { return };
        let mut state = self.shared.lock();
        state.closing = true;
        self.shared.work.notify_one();
        while !state.ended {
            let before = state.queue.len() + state.taken;
            let (next, timeout) =
                self.shared.done.wait_timeout(state, self.grace).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if timeout.timed_out() && !state.ended && state.queue.len() + state.taken == before {
                tracing::warn!("capture: the file accepts no more data, {before} bytes are lost");
                // The thread blocks in a write that may never return, so it is not joined.
                return;
            }
        }
        drop(state);
        let _ = thread.join();
    }
}

/// Waits until all bytes captured so far are in their files, for all files of the process, at most for
/// `limit`. Returns true if they are.
///
/// For an exiting process. Locks are tried until `limit` only, because the caller may be a signal handler
/// that interrupted their holder. A child of a fork leaves its parent's files alone.
pub fn write_out(limit: Duration) -> bool {
    let until = Instant::now() + limit;
    let Some(open) = lock_until(&OPEN, until) else { return false };
    let files: Vec<_> = open.iter().filter_map(Weak::upgrade).collect();
    drop(open);
    let ours = files.iter().filter(|file| file.process == std::process::id());
    // No short circuit: a file that fails must not skip the others.
    let behind = ours.filter(|file| !file.write_out(until)).count();
    behind == 0
}

impl Shared {
    /// Ends the file: no reader could continue behind an incomplete block.
    fn fail(&self, error: &io::Error) {
        let mut state = self.lock();
        state.failure = Some((error.kind(), error.to_string()));
        state.taken = 0;
        state.queue.clear();
    }

    fn write_out(&self, until: Instant) -> bool {
        let mut wanted = None;
        while let Some(state) = lock_until(&self.state, until) {
            let wanted = *wanted.get_or_insert(state.queued);
            let waiting = (state.queue.len() + state.taken) as u64;
            if state.failure.is_some() || state.queued - waiting >= wanted {
                return state.failure.is_none();
            }
            drop(state);
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        false
    }
}

/// Returns the lock, or `None` if it is still taken at `until`.
fn lock_until<T>(lock: &Mutex<T>, until: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match lock.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

fn run(shared: &Shared, mut buffer: Vec<u8>, mut out: impl Write, mut statistics: Option<Statistics>) {
    let mut reported = 0;
    while let Some(writes) = take(shared, &mut buffer) {
        // A write is refused only while the queue is full. Its bytes are taken afterwards, so each refusal is seen
        // here.
        let gap = std::mem::replace(&mut reported, writes.refused) != writes.refused;
        let report = statistics.as_mut().filter(|_| gap).map_or_else(Vec::new, |make| make(writes));
        let written = out.write_all(&report).and_then(|()| write(shared, &mut out, &buffer));
        buffer.clear();
        if let Err(error) = written {
            shared.fail(&error);
        }
    }
    let writes = shared.lock().writes;
    if let Some(make) = &mut statistics
        && shared.lock().failure.is_none()
        && let Err(error) = out.write_all(&make(writes)).and_then(|()| out.flush())
    {
        shared.fail(&error);
    }
    shared.lock().ended = true;
    shared.done.notify_all();
}

fn write(shared: &Shared, out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.chunks(PIECE) {
        out.write_all(piece)?;
        shared.lock().taken -= piece.len();
        shared.done.notify_all();
    }
    out.flush()
}

/// Waits for bytes, then swaps them with the empty `buffer`. Returns `None` if the file is closed and empty.
fn take(shared: &Shared, buffer: &mut Vec<u8>) -> Option<Writes> {
    let recover = PoisonError::into_inner;
    let idle = |state: &mut State| state.queue.is_empty() && !state.closing;
    let state = shared.work.wait_while(shared.lock(), idle).unwrap_or_else(recover);
    let short = |state: &mut State| state.queue.len() < PIECE && !state.closing;
    let collected = shared.work.wait_timeout_while(state, COLLECT, short);
    let (mut state, _) = collected.unwrap_or_else(|poisoned| poisoned.into_inner());
    std::mem::swap(&mut state.queue, buffer);
    state.taken = buffer.len();
    (!buffer.is_empty()).then_some(state.writes)
}

#[cfg(test)]
mod tests;
