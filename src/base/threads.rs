//! Threads of Roxie in an application's process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Starts a thread that blocks all signals except SIGSEGV and SIGBUS, so that the application's threads
/// receive them. The signals of faults are not blocked, because the kernel kills a process that faults while
/// it blocks them, regardless of its handlers (`shared::guard`).
///
/// # Errors
/// If the thread cannot be started.
pub fn spawn_unsignalled(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut blocked = SigSet::all();
    for fault in [Signal::SIGSEGV, Signal::SIGBUS] {
        blocked.remove(fault);
    }
    // A thread inherits the signal mask of its creator.
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = Builder::new().name(name.into()).spawn(run);
    before.thread_set_mask()?;
    thread
}

/// Locks a mutex even if a thread panicked with it. For data that is never left half changed.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Scheduler slice of a reacting thread in ns, the shortest that the kernel accepts.
const SHORT_SLICE: u64 = 100_000;

/// Requests a short time slice for the calling thread, so that the scheduler runs it soon after a wake-up
/// (`sched_setattr(2)`: since Linux 6.12, `sched_runtime` of a normal thread is its slice, and shorter slices
/// run first). Without it, the thread may wait for milliseconds until a busy program has used up its slice.
/// The thread's share of the CPU is unchanged. Needs no privilege.
///
/// # Errors
/// If the kernel does not support or allow it. The scheduling is then unchanged.
#[allow(unsafe_code)]
pub fn request_short_slices() -> io::Result<()> {
    // SAFETY: `sched_attr` consists of numbers, for which zero is valid.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the call concerns the calling thread, and `attr` has room for `size` bytes, which the kernel
    // writes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    if attr.sched_policy != libc::SCHED_OTHER as u32 {
        // The thread was given another policy, which is kept.
        return Ok(());
    }
    (attr.size, attr.sched_runtime) = (size, SHORT_SLICE);
    // SAFETY: the call concerns the calling thread. `attr` lives as long as the call, and holds its size.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs the calling thread ahead of all normal threads as soon as it wakes (SCHED_RR with the lowest
/// priority, `sched(7)`). For threads that keep time and sleep most of it.
///
/// # Errors
/// If the process lacks CAP_SYS_NICE.
#[allow(unsafe_code)]
pub fn request_real_time() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call concerns the calling thread. `parameters` live as long as the call.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Tells whether a thread has what it needs to run, apart from a processor.
#[derive(Debug)]
pub struct ThreadState(File);

impl ThreadState {
    /// That of the calling thread.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn of_caller() -> io::Result<ThreadState> {
        File::open("/proc/thread-self/stat").map(ThreadState)
    }

    /// True if the thread runs, or waits for nothing but a processor. False after its end.
    pub fn is_runnable(&self) -> bool {
        // Number, name in parentheses, state (`proc_pid_stat(5)`). The name has at most 15 bytes.
        let mut start = [0; 64];
        let length = self.0.read_at(&mut start, 0).unwrap_or(0);
        let fields = &start[..length];
        let state = fields.iter().rposition(|byte| *byte == b')').and_then(|end| fields.get(end + 2));
        state == Some(&b'R')
    }
}

/// Runs `act` in a thread with the given effective user ID, which the kernel reports to the peers of its connections.
/// The real and the saved user ID stay, so that no process of that user can signal or trace this one.
///
/// # Errors
/// Without CAP_SETUID.
#[allow(unsafe_code)]
pub fn as_user<R: Send>(uid: u32, act: impl FnOnce() -> R + Send) -> io::Result<R> {
    const AS_IT_IS: u32 = u32::MAX;
    let run = || {
        // SAFETY: the call takes three numbers and, unlike the C library's, concerns the calling thread alone, which
        // ends here.
        let set = unsafe { libc::syscall(libc::SYS_setresuid, AS_IT_IS, uid, AS_IT_IS) };
        if set == 0 { Ok(act()) } else { Err(io::Error::last_os_error()) }
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, run)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_blocks_all_signals_its_creator_none() {
        let before = SigSet::thread_get_mask().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread =
            spawn_unsignalled("quiet", move || sender.send(SigSet::thread_get_mask()).unwrap()).unwrap();
        let mask = receiver.recv().unwrap().unwrap();
        thread.join().unwrap();
        for signal in [nix::sys::signal::Signal::SIGINT, nix::sys::signal::Signal::SIGALRM] {
            assert!(mask.contains(signal));
        }
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
    }

    #[test]
    fn thread_that_waits_is_not_runnable() {
        assert!(ThreadState::of_caller().unwrap().is_runnable());
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = Builder::new().name("a) R (b) R".into()).spawn(move || {
            sender.send(ThreadState::of_caller().unwrap()).unwrap();
            let _ = ended.recv();
        });
        let state = receiver.recv().unwrap();
        while state.is_runnable() {
            std::thread::yield_now();
        }
        drop(end);
        thread.unwrap().join().unwrap();
        assert!(!state.is_runnable());
    }
}
