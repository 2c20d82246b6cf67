//! A file that a thread of its own writes, so that whoever captures waits for no disk and no reader of a pipe.
//!
//! Each write is queued whole or refused whole (`WouldBlock`), so what arrives in the file is a row of whole blocks. The
//! first failure ends the file: behind half a block nothing could be read.
//!
//! A process may end without dropping anything: [`write_out`] then has all files of the process brought up to date.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::threads::spawn_unsignalled;

/// Bytes that may wait for the thread. Touched only as far as they are used.
const CAPACITY: usize = 64 << 20;
/// Bytes of one write to the file.
const PIECE: usize = 64 << 10;
/// The thread collects for so long before it writes, unless a piece is full earlier.
const COLLECT: Duration = Duration::from_millis(2);
/// At the end a file that takes nothing for so long is given up.
const GRACE: Duration = Duration::from_secs(2);
/// How often a process that ends looks whether all is written.
const LOOK: Duration = Duration::from_micros(500);

/// The files that are open.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Hands what is written to it to a thread. Dropping it waits until all is written, or until nothing has been for two
/// seconds.
#[derive(Debug)]
pub struct Background {
    shared: Arc<Shared>,
    capacity: usize,
    grace: Duration,
    thread: Option<JoinHandle<()>>,
}

/// How far the thread of a [`Background`] is.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Whose thread writes: a child of a fork has none.
    process: u32,
    state: Mutex<State>,
    /// For the thread: there is something to do.
    work: Condvar,
    /// For whoever waits: something was done.
    done: Condvar,
}

#[derive(Debug)]
struct State {
    /// What came while the thread was writing what came before.
    queue: Vec<u8>,
    /// Bytes that the thread has taken and not written yet.
    taken: usize,
    /// Bytes that were ever queued.
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
    /// Bytes that wait to be written.
    pub fn unwritten(&self) -> usize {
        let state = self.0.lock();
        state.queue.len() + state.taken
    }

    /// True if writing failed: then the file ends there.
    pub fn has_failed(&self) -> bool {
        self.0.lock().failure.is_some()
    }
}

impl Background {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn new(out: impl Write + Send + 'static) -> io::Result<Background> {
        Background::with_limits(out, CAPACITY, GRACE)
    }

    /// The same with at most `capacity` bytes waiting, and `grace` instead of two seconds.
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

    /// A way to look how far it is, from anywhere.
    pub fn progress(&self) -> Progress {
        Progress(Arc::clone(&self.shared))
    }
}

impl Write for Background {
    /// Takes all bytes or none: `WouldBlock` if the queue has no room for them, or what the file said when it failed.
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

    /// Waits for nothing: the thread writes as soon as it can.
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
                let _ = writeln!(
                    io::stderr(),
                    "roxie: warning: capture: it takes nothing any more, {before} bytes of it are lost"
                );
                // The thread sits in a write that may never return: it is left to itself.
                return;
            }
        }
        drop(state);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until what was captured before is in its file, of all files of this process, for `limit` at most. True if it is.
///
/// For a process that ends: no lock is waited for longer, since the calling thread may hold it itself, in the handler of a signal.
/// A child of a fork leaves its parent's files alone.
pub fn write_out(limit: Duration) -> bool {
    let until = Instant::now() + limit;
    let Some(open) = taken_until(&OPEN, until) else { return false };
    let files: Vec<_> = open.iter().filter_map(Weak::upgrade).collect();
    drop(open);
    let ours = files.iter().filter(|file| file.process == std::process::id());
    // All are waited for, also after one that takes nothing.
    let behind = ours.filter(|file| !file.write_out(until)).count();
    behind == 0
}

impl Shared {
    fn write_out(&self, until: Instant) -> bool {
        let mut wanted = None;
        while let Some(state) = taken_until(&self.state, until) {
            let wanted = *wanted.get_or_insert(state.queued);
            let waiting = (state.queue.len() + state.taken) as u64;
            if state.failure.is_some() || state.queued - waiting >= wanted {
                return state.failure.is_none();
            }
            drop(state);
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(LOOK);
        }
        false
    }
}

/// A lock, unless it is not to be had until then.
fn taken_until<T>(lock: &Mutex<T>, until: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match lock.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
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

/// Waits for bytes and exchanges the empty `buffer` for them. False if no more will come.
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

    /// A pipe whose reader takes what was written when the test lets it.
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
    fn what_is_written_arrives_in_order_and_all_of_it_before_the_drop_ends() {
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
    fn a_reader_that_stands_still_makes_nobody_wait_and_a_block_is_refused_whole() {
        let (pipe, allow, reader) = pipe();
        let mut file = Background::with_limits(pipe, 100, GRACE).unwrap();
        let progress = file.progress();
        file.write_all(&[1; 60]).unwrap();
        // The thread has taken them and sits in its write: the queue is empty again.
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
    fn a_reader_that_never_reads_does_not_hold_up_the_end() {
        let (pipe, allow, reader) = pipe();
        let mut file = Background::with_limits(pipe, 100, Duration::from_millis(20)).unwrap();
        file.write_all(b"lost").unwrap();
        drop(file);
        assert_eq!(reader.try_iter().count(), 0);
        drop(allow);
    }

    /// Both in one test: a process has one list of files, and tests share a process.
    #[test]
    fn who_ends_without_a_drop_has_its_files_written_unless_their_reader_stands_still() {
        let (quick, allow_quick, reader) = pipe();
        (0..100).for_each(|_| allow_quick.send(()).unwrap());
        let mut file = Background::new(quick).unwrap();
        for i in 0..1000u16 {
            file.write_all(&i.to_be_bytes()).unwrap();
        }
        // Others of this process may stand still at the same time.
        assert!(file.shared.write_out(Instant::now() + GRACE));
        let all: Vec<u8> = reader.try_iter().flatten().collect();
        assert_eq!(all, (0..1000u16).flat_map(u16::to_be_bytes).collect::<Vec<u8>>());

        let (still, allow, reader) = pipe();
        let mut file = Background::with_limits(still, 100, Duration::ZERO).unwrap();
        file.write_all(b"lost").unwrap();
        let start = Instant::now();
        assert!(!write_out(Duration::from_millis(20)));
        assert!(start.elapsed() >= Duration::from_millis(20));
        // Whoever ends inside a call of ours has the lock, and gets an end all the same.
        let state = file.shared.lock();
        assert!(!write_out(Duration::from_millis(20)));
        drop(state);
        assert_eq!(reader.try_iter().count(), 0);
        allow.send(()).unwrap();
        assert!(file.shared.write_out(Instant::now() + GRACE), "once it is read");
        assert_eq!(reader.try_iter().collect::<Vec<_>>(), [b"lost"]);
    }

    #[test]
    fn a_failure_is_told_to_all_writes_after_it() {
        let (pipe, allow, _reader) = pipe();
        drop(allow);
        let mut file = Background::new(pipe).unwrap();
        let progress = file.progress();
        file.write_all(b"first").unwrap();
        until(|| progress.has_failed());
        assert_eq!(progress.unwritten(), 0, "nobody waits for what cannot come");
        assert!(file.write(b"second").unwrap_err().to_string().contains("the reader left"));
        assert!(file.flush().is_err());
    }
}
