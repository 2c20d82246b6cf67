//! Threads that Roxie starts in an application's process.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Starts a thread that takes no signals: those of the process are for the threads of the application. Those of faults it takes,
/// for the system ends a process that blocks its own, whatever its handlers might have done (`shared::guard`).
///
/// # Errors
/// If the system has no room for another thread.
pub fn spawn_unsignalled(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut blocked = SigSet::all();
    for fault in [Signal::SIGSEGV, Signal::SIGBUS] {
        blocked.remove(fault);
    }
    // A thread starts with the mask of the one that starts it.
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = Builder::new().name(name.into()).spawn(run);
    before.thread_set_mask()?;
    thread
}

/// The lock, also if a thread panicked with it: what it guards is looked at and left, never half changed.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A turn of a thread that only reacts, in ns: the shortest that the kernel knows.
const SHORT_TURN: u64 = 100_000;

/// Asks the scheduler for short turns of the calling thread, and so for an early one when it is woken (`sched_setattr(2)`: since Linux
/// 6.12 the runtime of a normal thread is its slice, and shorter ones go first). Without it such a thread waits until another program
/// that only computes has used up its own, for milliseconds. Takes nothing from anybody over time, and needs no privilege.
///
/// # Errors
/// If the system does not know of it, or does not allow it; turns are as ever then.
#[allow(unsafe_code)]
pub fn ask_for_short_turns() -> io::Result<()> {
    // SAFETY: plain numbers, for which all zeroes is a value.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the calling thread, and room for `size` bytes, which the kernel writes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    if attr.sched_policy != libc::SCHED_OTHER as u32 {
        // Somebody has chosen another policy for it.
        return Ok(());
    }
    (attr.size, attr.sched_runtime) = (size, SHORT_TURN);
    // SAFETY: the calling thread, and attributes that live as long as the call, with their size in them.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks the scheduler to run the calling thread ahead of all that are not urgent, as soon as it is woken (SCHED_RR with the lowest
/// priority, `sched(7)`). For threads that keep time and sleep most of it.
///
/// # Errors
/// Without CAP_SYS_NICE.
#[allow(unsafe_code)]
pub fn ask_to_go_first() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the calling thread, and parameters that live as long as the call.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs `act` in a thread whose effective user this is: the kernel names it to processes that the thread connects to. The real and the saved user
/// stay, so no process of that user can signal or trace this one.
///
/// # Errors
/// Without CAP_SETUID.
#[allow(unsafe_code)]
pub(crate) fn as_user<R: Send>(uid: u32, act: impl FnOnce() -> R + Send) -> io::Result<R> {
    const AS_IT_IS: u32 = u32::MAX;
    let run = || {
        // SAFETY: three numbers; unlike the C library's, the call concerns the calling thread alone, which ends here.
        let set = unsafe { libc::syscall(libc::SYS_setresuid, AS_IT_IS, uid, AS_IT_IS) };
        if set == 0 { Ok(act()) } else { Err(io::Error::last_os_error()) }
    };
    std::thread::scope(|scope| {
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_blocks_all_signals_and_its_starter_none() {
        let before = SigSet::thread_get_mask().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let thread =
            spawn_unsignalled("quiet", move || tell.send(SigSet::thread_get_mask()).unwrap()).unwrap();
        let mask = told.recv().unwrap().unwrap();
        thread.join().unwrap();
        for signal in [nix::sys::signal::Signal::SIGINT, nix::sys::signal::Signal::SIGALRM] {
            assert!(mask.contains(signal));
        }
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
    }
}
