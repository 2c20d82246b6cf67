//! An atomic at an address that may not be there, done by a process that may fault.
//!
//! The system has calls that copy to and from addresses that may not be there (see [`on_demand`](super::on_demand)), but two copies
//! are no atomic: what the CPU stores between them would be lost. Only an instruction is, and where there is no page an instruction
//! ends in a signal, whose handler belongs to the application. So another process executes it: one that shares the memory
//! and not the handlers (`clone` with `CLONE_VM` and without `CLONE_SIGHAND`), lives for this one instruction, and takes the
//! signal upon itself. `CLONE_VFORK` suspends the calling thread meanwhile, as in `posix_spawn`, which does the same for longer.
//!
//! It costs two system calls for its stack and the life of a process without memory of its own: some 100 us.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::signal::{SigSet, SigmaskHow};

use super::memory::Fault;

/// Bytes of the stack on which it is tried. The frame of a signal has room for all registers there are, 12 KiB at most so far.
const STACK: usize = 64 << 10;

/// What is tried, and what came of it.
struct Trial<'a> {
    address: u64,
    operation: &'a dyn Fn(u64) -> Option<u64>,
    before: AtomicU64,
    done: AtomicBool,
}

/// Runs `operation` on the 8 bytes at an 8-aligned address of this process, as the CPU's own atomics would, and returns what was
/// there before.
///
/// # Errors
/// [`Fault::NotMapped`] if there is no page that may be written; [`Fault::NoTrial`] if the system makes no process to try it.
pub(super) fn atomic(address: u64, operation: &dyn Fn(u64) -> Option<u64>) -> Result<u64, Fault> {
    debug_assert!(address.is_multiple_of(8), "{address:#x}: the caller checks this");
    let trial = Trial { address, operation, before: AtomicU64::new(0), done: AtomicBool::new(false) };
    let stack = Stack::new().map_err(no_trial)?;
    // Handlers of the application must not run in the other process: it inherits what is blocked here.
    let _quiet = Quiet::new();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SYSVSEM;
    // SAFETY: the stack is fresh and grows down from its end; `attempt` gets the trial, which outlives the call: it returns
    // when the other process has ended. No signal is sent for that end (the lowest byte of the flags), so no handler for
    // children hears of it.
    let pid = unsafe { libc::clone(attempt, stack.top(), flags, (&raw const trial).cast_mut().cast()) };
    if pid < 0 {
        return Err(no_trial(io::Error::last_os_error()));
    }
    // SAFETY: it has ended and waits to be forgotten; `__WALL` because its end sends no signal.
    while unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
    if trial.done.load(Ordering::Acquire) {
        Ok(trial.before.into_inner())
    } else {
        Err(Fault::NotMapped { address, length: 8 })
    }
}

fn no_trial(error: io::Error) -> Fault {
    Fault::NoTrial(error.raw_os_error().unwrap_or(0))
}

/// In the other process. As after `vfork`, nothing may be called here that allocates, locks or panics.
extern "C" fn attempt(trial: *mut c_void) -> c_int {
    // SAFETY: `atomic` hands it over and waits.
    let trial = unsafe { &*trial.cast_const().cast::<Trial<'_>>() };
    // SAFETY: handlers of this process alone, which has its own; the action and the set are zeroed, and filled in before they
    // are used.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = leave as extern "C" fn(c_int) as usize;
        let mut faults: libc::sigset_t = MaybeUninit::zeroed().assume_init();
        libc::sigemptyset(&mut faults);
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            if libc::sigaction(signal, &action, ptr::null_mut()) != 0 {
                libc::_exit(1);
            }
            libc::sigaddset(&mut faults, signal);
        }
        libc::sigprocmask(libc::SIG_UNBLOCK, &faults, ptr::null_mut());
    }
    // SAFETY: 8-aligned. Nothing may be there: then the instruction faults, this process ends in `leave`, and `done` stays
    // false, because it is stored after the instruction (`Release`). If there are bytes, no Rust reference to them exists, by the
    // promise of `HostMemory::on_demand`.
    let word = unsafe { AtomicU64::from_ptr(trial.address as *mut u64) };
    let before = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, trial.operation);
    trial.before.store(before.unwrap_or_else(|unchanged| unchanged), Ordering::Relaxed);
    trial.done.store(true, Ordering::Release);
    // SAFETY: ends this process alone; it runs nothing that was registered to be run at the end.
    unsafe { libc::_exit(0) }
}

/// There is no such page.
extern "C" fn leave(_signal: c_int) {
    // SAFETY: as in `attempt`.
    unsafe { libc::_exit(1) }
}

/// A stack for as long as the other process lives.
struct Stack(*mut c_void);

impl Stack {
    fn new() -> io::Result<Stack> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
        // SAFETY: a new mapping anywhere.
        let base = unsafe { libc::mmap(ptr::null_mut(), STACK, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Stack(base)) }
    }

    fn top(&self) -> *mut c_void {
        self.0.wrapping_byte_add(STACK)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, on which nobody runs any more.
        unsafe { libc::munmap(self.0, STACK) };
    }
}

/// All signals of the calling thread wait while it lives.
struct Quiet(nix::Result<SigSet>);

impl Quiet {
    fn new() -> Quiet {
        Quiet(SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Ok(before) = self.0 {
            let _ = before.thread_set_mask();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::thread;

    use super::super::on_demand::tests::{PAGE, Pages};
    use super::*;
    use crate::shared::HostMemory;

    fn add(memory: &HostMemory, offset: usize) -> Result<u64, Fault> {
        memory.atomic(offset as u64, |value| Some(value.wrapping_add(1)))
    }

    #[test]
    fn an_atomic_is_done_where_there_is_a_page_and_a_fault_where_there_is_none() {
        let pages = Pages::new();
        let memory = pages.memory();
        assert_eq!((add(&memory, 8), add(&memory, 8)), (Ok(0), Ok(1)), "a page that nobody has touched yet");
        assert_eq!(memory.atomic(8, |value| (value == 7).then_some(9)), Ok(2), "nothing to store");
        pages.protect_second(libc::PROT_NONE);
        assert_eq!(
            add(&memory, PAGE),
            Err(Fault::NotMapped { address: memory.address() + PAGE as u64, length: 8 })
        );
        pages.protect_second(libc::PROT_READ);
        assert!(add(&memory, PAGE).is_err(), "not writable");
        pages.protect_second(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(add(&memory, PAGE), Ok(0));
        assert_eq!(add(&memory, 12), Err(Fault::Misaligned(12)));
        assert!(matches!(add(&memory, 3 * PAGE), Err(Fault::OutOfBounds { .. })));
    }

    #[test]
    fn a_page_behind_the_end_of_its_file_is_a_fault_as_well() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE as u64).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping anywhere.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: no reference into the mapping exists.
        let memory = unsafe { HostMemory::on_demand(base as u64, PAGE) }.unwrap();
        assert_eq!(add(&memory, 0), Ok(0));
        file.set_len(0).unwrap();
        assert!(matches!(add(&memory, 0), Err(Fault::NotMapped { .. })));
        // SAFETY: the mapping of above.
        unsafe { libc::munmap(base, PAGE) };
    }

    #[test]
    fn nothing_that_the_cpu_adds_meanwhile_is_lost() {
        const TRIED: u64 = 300;
        let word = AtomicU64::new(0);
        // SAFETY: the word is an atomic to everybody.
        let memory = unsafe { HostMemory::on_demand(word.as_ptr() as u64, 8) }.unwrap();
        let done = AtomicBool::new(false);
        let added = thread::scope(|scope| {
            let adding = scope.spawn(|| {
                let mut added = 0;
                while !done.load(Ordering::Acquire) {
                    word.fetch_add(1, Ordering::Relaxed);
                    added += 1;
                }
                added
            });
            for _ in 0..TRIED {
                add(&memory, 0).unwrap();
            }
            done.store(true, Ordering::Release);
            adding.join().unwrap()
        });
        assert_eq!(word.into_inner(), added + TRIED);
    }

    #[test]
    fn a_page_that_comes_and_goes_meanwhile_is_there_or_is_a_fault() {
        let pages = Pages::new();
        let memory = pages.memory();
        let done = AtomicBool::new(false);
        let (mut there, mut gone) = (0, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    pages.protect_second(libc::PROT_NONE);
                    thread::yield_now();
                    pages.protect_second(libc::PROT_READ | libc::PROT_WRITE);
                    thread::yield_now();
                }
            });
            while (there < 20 || gone < 20) && there + gone < 100_000 {
                match add(&memory, PAGE) {
                    Ok(before) => {
                        assert_eq!(before, there);
                        there += 1;
                    }
                    Err(_) => gone += 1,
                }
            }
            done.store(true, Ordering::Release);
        });
        assert!(there >= 20 && gone >= 20, "{there} there, {gone} gone");
    }
}
