//! Interposed signal handlers and masks. A program's handlers of `SIGSEGV` and `SIGBUS` are called after the one of
//! [`roxie::shared::guard`], which recovers from faults in copies made by the NIC. Masks leave the two signals out: a
//! thread that blocked them would be killed by such a fault before any handler runs, and every polling thread makes
//! copies.
//!
//! Other signals are passed on to the C library unchanged, as are these two before memory is first registered. Handlers
//! that the C library installs itself (`sigset`, `sigignore`) replace the guard's until the next registration.

use std::ffi::c_int;
use std::mem;

use roxie::shared::guard::signals;

use super::{BSD_SIGNAL, Next, PTHREAD_SIGMASK, SIGACTION, SIGNAL, SIGPROCMASK, SSIGNAL, SYSV_SIGNAL};
use crate::base::object::set_errno;

type Signal = unsafe extern "C-unwind" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
type Mask = unsafe extern "C-unwind" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

/// Gives the guard the C library's function. Part of the initialization of this library.
pub(super) fn install() {
    // SAFETY: the type is the function's.
    if let Some(next) = unsafe { SIGACTION.get::<signals::Sigaction>() } {
        signals::use_sigaction(next);
    }
}

/// Returns the C library's function. Other libraries' constructors may call before this library is initialized, when
/// symbols can already be looked up.
///
/// # Safety
/// `F` is the type of the function with this name.
unsafe fn next<F: Copy>(place: &'static Next) -> Option<F> {
    // SAFETY: the caller promises that `F` is the type of the function with this name, which is looked up.
    unsafe {
        place.get().or_else(|| {
            place.find();
            install();
            place.get()
        })
    }
}

fn unknown() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

fn is_ours(signal: c_int) -> bool {
    signals::SIGNALS.contains(&signal)
}

macro_rules! sigaction {
    ($name:ident) => {
        /// Interposes the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            signal: c_int,
            new: *const libc::sigaction,
            old: *mut libc::sigaction,
        ) -> c_int {
            // SAFETY: the caller's arguments, unchanged; the type is the function's.
            unsafe {
                match next::<signals::Sigaction>(&SIGACTION) {
                    Some(_) if is_ours(signal) => signals::sigaction(signal, new, old),
                    Some(next) => next(signal, new, old),
                    None => unknown(),
                }
            }
        }
    };
}

sigaction!(sigaction);
sigaction!(__sigaction);

/// Implements `signal` by `sigaction`, with these flags.
///
/// # Safety
/// A handler, or `SIG_DFL` or `SIG_IGN`.
unsafe fn by_sigaction(signal: c_int, handler: libc::sighandler_t, flags: c_int) -> libc::sighandler_t {
    if handler == libc::SIG_ERR {
        set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: plain numbers and a null, for which zeros are valid; valid sets and actions.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (mem::zeroed(), mem::zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut new.sa_mask, signal);
        }
        match sigaction(signal, &new, &mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

macro_rules! signal {
    ($name:ident, $next:ident, $flags:expr) => {
        /// Interposes the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            signal: c_int,
            handler: libc::sighandler_t,
        ) -> libc::sighandler_t {
            // SAFETY: the caller's arguments, unchanged; the type is the function's.
            unsafe {
                match next::<Signal>(&$next) {
                    _ if is_ours(signal) => by_sigaction(signal, handler, $flags),
                    Some(next) => next(signal, handler),
                    None => {
                        unknown();
                        libc::SIG_ERR
                    }
                }
            }
        }
    };
}

signal!(signal, SIGNAL, libc::SA_RESTART);
signal!(ssignal, SSIGNAL, libc::SA_RESTART);
signal!(bsd_signal, BSD_SIGNAL, libc::SA_RESTART);
signal!(sysv_signal, SYSV_SIGNAL, libc::SA_RESETHAND | libc::SA_NODEFER);
signal!(__sysv_signal, SYSV_SIGNAL, libc::SA_RESETHAND | libc::SA_NODEFER);

/// Calls `next` with the guard's signals removed from the set.
///
/// # Safety
/// As for the C library's function.
unsafe fn mask(next: Mask, how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the caller keeps the contract of the C library's function: sets are null or valid, and each is read only
    // if it is not null.
    unsafe {
        if set.is_null() || how == libc::SIG_UNBLOCK {
            return next(how, set, old);
        }
        let mut unblocked = *set;
        signals::keep_unblocked(&mut unblocked);
        next(how, &unblocked, old)
    }
}

/// Interposes the C library's function, without [`signals::SIGNALS`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments, unchanged; the type is the function's.
    unsafe {
        match next::<Mask>(&SIGPROCMASK) {
            Some(next) => mask(next, how, set, old),
            None => unknown(),
        }
    }
}

/// Interposes the C library's function, without [`signals::SIGNALS`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments, unchanged; the type is the function's.
    unsafe {
        match next::<Mask>(&PTHREAD_SIGMASK) {
            Some(next) => mask(next, how, set, old),
            None => libc::ENOSYS,
        }
    }
}
