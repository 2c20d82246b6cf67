//! The handler of faults in remote memory, in programs of the Rust API, where nothing intercepts `sigaction`. Each case
//! is its own process, because some end by a signal.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::in_time::CommandInTime;
use roxie::shared::HostMemory;

const CHILD: &str = "ROXIE_GUARD_CHILD";
const PAGE: usize = 4096;

/// Runs `case` in its own process.
fn apart(name: &str, case: impl FnOnce()) -> Option<ExitStatus> {
    if std::env::var(CHILD).is_ok_and(|of| of == name) {
        case();
        std::process::exit(0);
    }
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    Some(
        child
            .args([&format!("guard::{name}"), "--exact", "--nocapture"])
            .env(CHILD, name)
            .status_in_time()
            .expect("a child"),
    )
}

fn assert_well(ended: Option<ExitStatus>) {
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

fn assert_killed(ended: Option<ExitStatus>, signal: c_int) {
    assert!(ended.is_some_and(|status| status.signal() == Some(signal)), "{ended:?}");
}

/// Returns a page without any access.
fn no_page() -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at any address.
    let at = unsafe { libc::mmap(ptr::null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// Registers such a page.
fn unmapped_page() -> HostMemory {
    // SAFETY: no other object uses the page.
    unsafe { HostMemory::borrowed(NonNull::new(no_page()).expect("an address"), PAGE) }
}

fn assert_missing(memory: &HostMemory) {
    assert!(memory.write(8, &[1; 100]).is_err());
    assert!(memory.read(8, &mut [1; 100]).is_err());
    assert!(memory.atomic(8, Some).is_err());
}

/// Causes a fault outside of any copy.
fn fault() {
    // SAFETY: none: a fault on purpose, in a process that exists for it.
    unsafe { no_page().write_volatile(1) };
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn handle(signal: c_int, handler: Handler) -> libc::sigaction {
    // SAFETY: plain numbers, for which zero is a valid value, and a handler that lives as long as the program.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        new.sa_sigaction = handler as usize;
        new.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(signal, &new, &mut old), 0);
        old
    }
}

static SEEN: AtomicUsize = AtomicUsize::new(0);

/// Counts a fault, and resolves it by making the page accessible.
extern "C" fn mends(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the faulting page is one of `no_page`.
    unsafe {
        let page = ((*info).si_addr() as usize & !(PAGE - 1)) as *mut c_void;
        libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
}

thread_local! {
    static BEFORE: Cell<usize> = const { Cell::new(0) };
}

/// Counts a fault, and passes it to the previous handler.
extern "C" fn passes_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    let before = BEFORE.get();
    assert!(before > 1, "a handler was there");
    // SAFETY: the previous handler is the guard's, which takes three arguments.
    unsafe { std::mem::transmute::<usize, Handler>(before)(signal, info, context) };
}

/// Ends the process, as crash reporters do.
extern "C" fn reports(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(7) };
}

#[test]
fn own_fault_kills_the_program() {
    let name = "own_fault_kills_the_program";
    let ended = apart(name, || {
        assert_missing(&unmapped_page());
        fault();
    });
    assert_killed(ended, libc::SIGSEGV);
}

#[test]
fn sent_signal_kills_the_program() {
    let ended = apart("sent_signal_kills_the_program", || {
        // SAFETY: removes the standard library's handler, which takes the first signal for a fault.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        assert_missing(&unmapped_page());
        // SAFETY: a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
        std::thread::sleep(std::time::Duration::from_secs(10));
    });
    assert_killed(ended, libc::SIGBUS);
}

#[test]
fn earlier_handler_sees_only_own_faults() {
    assert_well(apart("earlier_handler_sees_only_own_faults", || {
        handle(libc::SIGSEGV, mends);
        assert_missing(&unmapped_page());
        assert_eq!(SEEN.load(Ordering::Relaxed), 0);
        fault();
        assert_eq!(SEEN.load(Ordering::Relaxed), 1);
    }));
}

#[test]
fn chaining_handler_keeps_copies_guarded() {
    let name = "chaining_handler_keeps_copies_guarded";
    let ended = apart(name, || {
        let memory = unmapped_page();
        BEFORE.set(handle(libc::SIGSEGV, passes_on).sa_sigaction);
        assert_missing(&memory);
        assert_eq!(SEEN.load(Ordering::Relaxed), 3);
        // The guard is first again, then that handler, then the guard, which has no further handler.
        let memory = unmapped_page();
        assert_missing(&memory);
        assert_eq!(SEEN.load(Ordering::Relaxed), 3);
        fault();
    });
    assert_killed(ended, libc::SIGSEGV);
}

#[test]
fn next_registration_puts_guard_first() {
    let name = "next_registration_puts_guard_first";
    let ended = apart(name, || {
        let memory = unmapped_page();
        handle(libc::SIGSEGV, reports);
        drop(unmapped_page());
        assert_missing(&memory);
        fault();
    });
    assert!(ended.is_some_and(|status| status.code() == Some(7)), "{ended:?}");
}

#[test]
fn one_shot_handler_runs_once() {
    let ended = apart("one_shot_handler_runs_once", || {
        let old = handle(libc::SIGSEGV, mends);
        // SAFETY: installs the same handler, for one signal only.
        unsafe {
            let mut once: libc::sigaction = std::mem::zeroed();
            once.sa_sigaction = mends as Handler as usize;
            once.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &once, ptr::null_mut()), 0);
        }
        assert_ne!(old.sa_sigaction, mends as Handler as usize);
        assert_missing(&unmapped_page());
        fault();
        assert_missing(&unmapped_page());
        fault();
    });
    assert_killed(ended, libc::SIGSEGV);
}

#[test]
fn many_later_handlers_keep_the_guard() {
    assert_well(apart("many_later_handlers_keep_the_guard", || {
        let memory = unmapped_page();
        for _ in 0..3 {
            handle(libc::SIGSEGV, reports);
            drop(unmapped_page());
            assert_missing(&memory);
        }
    }));
}
