//! Whose a fault is, in programs of the Rust API, where nothing stands before `sigaction`. Each case is a process of its own, for some
//! of them end by a signal.

#[path = "support/in_time.rs"]
mod in_time;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use in_time::CommandInTime;
use roxie::shared::HostMemory;

const CHILD: &str = "ROXIE_GUARD_CHILD";
const PAGE: usize = 4096;

/// Runs `case` in a process of its own.
fn apart(name: &str, case: impl FnOnce()) -> Option<ExitStatus> {
    if std::env::var(CHILD).is_ok_and(|of| of == name) {
        case();
        std::process::exit(0);
    }
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    Some(child.args([name, "--exact", "--nocapture"]).env(CHILD, name).status_in_time().expect("a child"))
}

fn assert_well(ended: Option<ExitStatus>) {
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

fn assert_killed(ended: Option<ExitStatus>, signal: c_int) {
    assert!(ended.is_some_and(|status| status.signal() == Some(signal)), "{ended:?}");
}

/// A page without any access.
fn no_page() -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping anywhere.
    let at = unsafe { libc::mmap(ptr::null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// Such a page, registered.
fn gone() -> HostMemory {
    // SAFETY: nobody has anything there.
    unsafe { HostMemory::borrowed(NonNull::new(no_page()).expect("an address"), PAGE) }
}

fn assert_missing(memory: &HostMemory) {
    assert!(memory.write(8, &[1; 100]).is_err());
    assert!(memory.read(8, &mut [1; 100]).is_err());
    assert!(memory.atomic(8, Some).is_err());
}

/// A fault of the program's own.
fn fault() {
    // SAFETY: none: it is a mistake on purpose, in a process that is there for it.
    unsafe { no_page().write_volatile(1) };
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn handle(signal: c_int, handler: Handler) -> libc::sigaction {
    // SAFETY: plain numbers, of which all zeroes is a value; a handler that lives as long as the program.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        new.sa_sigaction = handler as usize;
        new.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(signal, &new, &mut old), 0);
        old
    }
}

static SEEN: AtomicUsize = AtomicUsize::new(0);

/// Sees a fault, and takes it back by making the page accessible.
extern "C" fn mends(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the page of the fault, which is one of `no_page`.
    unsafe {
        let page = ((*info).si_addr() as usize & !(PAGE - 1)) as *mut c_void;
        libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
}

thread_local! {
    static BEFORE: Cell<usize> = const { Cell::new(0) };
}

/// Sees a fault, and passes it on to what was there before.
extern "C" fn passes_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    let before = BEFORE.get();
    assert!(before > 1, "a handler was there");
    // SAFETY: the guard's, which takes three arguments.
    unsafe { std::mem::transmute::<usize, Handler>(before)(signal, info, context) };
}

/// Sees a fault, and ends the process as programs do that report a crash.
extern "C" fn reports(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(7) };
}

#[test]
fn a_fault_of_the_programs_own_ends_it_as_ever() {
    let name = "a_fault_of_the_programs_own_ends_it_as_ever";
    let ended = apart(name, || {
        assert_missing(&gone());
        fault();
    });
    assert_killed(ended, libc::SIGSEGV);
}

#[test]
fn a_signal_that_is_sent_ends_it_as_ever() {
    let ended = apart("a_signal_that_is_sent_ends_it_as_ever", || {
        // SAFETY: no handler, instead of the standard library's, which takes the first one for a fault.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        assert_missing(&gone());
        // SAFETY: a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
        std::thread::sleep(std::time::Duration::from_secs(10));
    });
    assert_killed(ended, libc::SIGBUS);
}

#[test]
fn a_handler_that_was_there_sees_its_faults_and_none_of_a_copys() {
    assert_well(apart("a_handler_that_was_there_sees_its_faults_and_none_of_a_copys", || {
        handle(libc::SIGSEGV, mends);
        assert_missing(&gone());
        assert_eq!(SEEN.load(Ordering::Relaxed), 0);
        fault();
        assert_eq!(SEEN.load(Ordering::Relaxed), 1);
    }));
}

#[test]
fn a_handler_that_comes_later_and_passes_on_costs_no_copy_its_guard() {
    let name = "a_handler_that_comes_later_and_passes_on_costs_no_copy_its_guard";
    let ended = apart(name, || {
        let memory = gone();
        BEFORE.set(handle(libc::SIGSEGV, passes_on).sa_sigaction);
        assert_missing(&memory);
        assert_eq!(SEEN.load(Ordering::Relaxed), 3);
        // The guard comes first again, and behind it that handler, and behind that the guard, which passes on to nobody.
        let memory = gone();
        assert_missing(&memory);
        assert_eq!(SEEN.load(Ordering::Relaxed), 3);
        fault();
    });
    assert_killed(ended, libc::SIGSEGV);
}

#[test]
fn a_handler_that_comes_later_is_behind_the_guard_with_the_next_registration() {
    let name = "a_handler_that_comes_later_is_behind_the_guard_with_the_next_registration";
    let ended = apart(name, || {
        let memory = gone();
        handle(libc::SIGSEGV, reports);
        drop(gone());
        assert_missing(&memory);
        fault();
    });
    assert!(ended.is_some_and(|status| status.code() == Some(7)), "{ended:?}");
}

#[test]
fn a_handler_for_one_time_is_called_one_time() {
    let ended = apart("a_handler_for_one_time_is_called_one_time", || {
        let old = handle(libc::SIGSEGV, mends);
        // SAFETY: what was just set, for one time.
        unsafe {
            let mut once: libc::sigaction = std::mem::zeroed();
            once.sa_sigaction = mends as Handler as usize;
            once.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &once, ptr::null_mut()), 0);
        }
        assert_ne!(old.sa_sigaction, mends as Handler as usize);
        assert_missing(&gone());
        fault();
        assert_missing(&gone());
        fault();
    });
    assert_killed(ended, libc::SIGSEGV);
}

#[test]
fn many_handlers_that_come_later_leave_the_guard_in_its_place() {
    assert_well(apart("many_handlers_that_come_later_leave_the_guard_in_its_place", || {
        let memory = gone();
        for _ in 0..3 {
            handle(libc::SIGSEGV, reports);
            drop(gone());
            assert_missing(&memory);
        }
    }));
}
