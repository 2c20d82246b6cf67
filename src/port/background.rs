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
/// Time that the thread collects bytes before it writes. A full piece is written at once.
const COLLECT: Duration = Duration::from_millis(2);
/// Time after which a closing file that accepts no bytes is abandoned.
const GRACE: Duration = Duration::from_secs(2);
/// Polling interval of [`write_out`].
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// The open files of the process.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Queues writes for a thread. Drop waits until all is written, or until the file has accepted nothing for 2
/// s.
#[derive(Debug)]
pub struct Background {
    shared: Arc<Shared>,
    capacity: usize,
    grace: Duration,
    thread: Option<JoinHandle<()>>,
}

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
        let state = State {
            queue: Vec::with_capacity(capacity),
            taken: 0,
            queued: 0,
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
        let run = move || run(&of_thread, Vec::with_capacity(capacity), out);
        let thread = spawn_unsignalled("roxie-capture", run)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|file| file.strong_count() > 0);
        open.push(Arc::downgrade(&shared));
        drop(open);
        Ok(Background { shared, capacity, grace, thread: Some(thread) })
    }

    /// Returns a handle to observe the thread's progress.
    pub fn progress(&self) -> Progress {
        Progress(Arc::clone(&self.shared))
    }
}

impl Write for Background {
    /// Queues all bytes or none: `WouldBlock` if the queue is full, or the error by which the file failed.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.shared.lock();
        if let Some((kind, text)) = &state.failure {
            return Err(io::Error::new(*kind, text.clone()));
        }
        let before = state.queue.len();
        if bytes.len() > self.capacity - before {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.queue.extend_from_slice(bytes);
        state.queued += bytes.len() as u64;
        let wake = before == 0 || before < PIECE && state.queue.len() >= PIECE;
        drop(state);
        if wake {
            self.shared.work.notify_one();
        }
        Ok(bytes.len())
    }

    /// Does not wait: the thread writes as soon as it can.
    fn flush(&mut self) -> io::Result<()> {
        match &self.shared.lock().failure {
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
            None => Ok(()),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
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
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
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

fn run(shared: &Shared, mut buffer: Vec<u8>, mut out: impl Write) {
    while take(shared, &mut buffer) {
        let written = buffer.chunks(PIECE).try_for_each(|piece| {
            out.write_all(piece)?;
            shared.lock().taken -= piece.len();
            shared.done.notify_all();
            Ok::<_, io::Error>(())
        });
        buffer.clear();
        if let Err(error) = written.and_then(|()| out.flush()) {
            let mut state = shared.lock();
            state.failure = Some((error.kind(), error.to_string()));
            state.taken = 0;
            state.queue.clear();
        }
    }
    shared.lock().ended = true;
    shared.done.notify_all();
}

/// Waits for bytes, then swaps them with the empty `buffer`. Returns false if the file is closed and empty.
fn take(shared: &Shared, buffer: &mut Vec<u8>) -> bool {
    let recover = PoisonError::into_inner;
    let idle = |state: &mut State| state.queue.is_empty() && !state.closing;
    let state = shared.work.wait_while(shared.lock(), idle).unwrap_or_else(recover);
    let short = |state: &mut State| state.queue.len() < PIECE && !state.closing;
    let collected = shared.work.wait_timeout_while(state, COLLECT, short);
    let (mut state, _) = collected.unwrap_or_else(|poisoned| poisoned.into_inner());
    std::mem::swap(&mut state.queue, buffer);
    state.taken = buffer.len();
    !buffer.is_empty()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    use super::*;

    /// A pipe that accepts each write when the test allows it.
    struct Pipe {
        allowed: Receiver<()>,
        read: Sender<Vec<u8>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.allowed.recv().map_err(|_| io::Error::other("the reader left"))?;
            let _ = self.read.send(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pipe() -> (Pipe, Sender<()>, Receiver<Vec<u8>>) {
        let ((allow, allowed), (read, reader)) = (channel(), channel());
        (Pipe { allowed, read }, allow, reader)
    }

    fn until(condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(20), "it never happened");
            std::thread::yield_now();
        }
    }

    #[test]
    fn drop_waits_until_all_is_written_in_order() {
        let (pipe, allow, reader) = pipe();
        (0..100).for_each(|_| allow.send(()).unwrap());
        let mut file = Background::new(pipe).unwrap();
        for i in 0..1000u16 {
            file.write_all(&i.to_be_bytes()).unwrap();
        }
        drop(file);
        let all: Vec<u8> = reader.try_iter().flatten().collect();
        assert_eq!(all, (0..1000u16).flat_map(u16::to_be_bytes).collect::<Vec<u8>>());
    }

    #[test]
    fn full_queue_refuses_whole_block_without_waiting() {
        let (pipe, allow, reader) = pipe();
        let mut file = Background::with_limits(pipe, 100, GRACE).unwrap();
        let progress = file.progress();
        file.write_all(&[1; 60]).unwrap();
        // The thread has taken the bytes and blocks in its write; the queue is empty.
        until(|| file.shared.lock().taken == 60);
        file.write_all(&[2; 60]).unwrap();
        assert_eq!(file.write(&[3; 60]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(progress.unwritten(), 120);
        (0..3).for_each(|_| allow.send(()).unwrap());
        until(|| progress.unwritten() == 0);
        file.write_all(&[4; 60]).unwrap();
        drop(file);
        let all: Vec<Vec<u8>> = reader.try_iter().collect();
        assert_eq!(all, [vec![1; 60], vec![2; 60], vec![4; 60]], "none of the refused block");
    }

    #[test]
    fn stalled_reader_does_not_block_drop() {
        let (pipe, allow, reader) = pipe();
        let mut file = Background::with_limits(pipe, 100, Duration::from_millis(20)).unwrap();
        file.write_all(b"lost").unwrap();
        drop(file);
        assert_eq!(reader.try_iter().count(), 0);
        drop(allow);
    }

    /// Two cases in one test, because the process has one list of files and runs other tests.
    #[test]
    fn write_out_waits_for_files_up_to_limit() {
        let (quick, allow_quick, reader) = pipe();
        (0..100).for_each(|_| allow_quick.send(()).unwrap());
        let mut file = Background::new(quick).unwrap();
        for i in 0..1000u16 {
            file.write_all(&i.to_be_bytes()).unwrap();
        }
        // Not the global `write_out`: files of other tests may be blocked.
        assert!(file.shared.write_out(Instant::now() + GRACE));
        let all: Vec<u8> = reader.try_iter().flatten().collect();
        assert_eq!(all, (0..1000u16).flat_map(u16::to_be_bytes).collect::<Vec<u8>>());

        let (still, allow, reader) = pipe();
        let mut file = Background::with_limits(still, 100, Duration::ZERO).unwrap();
        file.write_all(b"lost").unwrap();
        let start = Instant::now();
        assert!(!write_out(Duration::from_millis(20)));
        assert!(start.elapsed() >= Duration::from_millis(20));
        // A thread interrupted inside a write holds the lock. The call must return all the same.
        let state = file.shared.lock();
        assert!(!write_out(Duration::from_millis(20)));
        drop(state);
        assert_eq!(reader.try_iter().count(), 0);
        allow.send(()).unwrap();
        assert!(file.shared.write_out(Instant::now() + GRACE), "once it is read");
        assert_eq!(reader.try_iter().collect::<Vec<_>>(), [b"lost"]);
    }

    #[test]
    fn failure_is_returned_by_all_later_writes() {
        let (pipe, allow, _reader) = pipe();
        drop(allow);
        let mut file = Background::new(pipe).unwrap();
        let progress = file.progress();
        file.write_all(b"first").unwrap();
        until(|| progress.has_failed());
        assert_eq!(progress.unwritten(), 0, "bytes that cannot be written do not count");
        assert!(file.write(b"second").unwrap_err().to_string().contains("the reader left"));
        assert!(file.flush().is_err());
    }
}
