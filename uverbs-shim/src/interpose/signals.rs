//! Handlers of `SIGSEGV` and `SIGBUS`, as a program installs them, behind the one that takes faults back that copies of the NIC lead to
//! ([`roxie::shared::guard`]); and masks, which leave these two out: a thread that blocks them would be killed by such a fault before any
//! handler could say whose it is, and every thread that polls copies.
//!
//! Signals other than these two, and all of them before memory is first registered, go on to the C library as they came. So does what
//! the C library calls itself (`sigset`, `sigignore`): ours comes first again with the next registration.

use std::ffi::c_int;
use std::mem;

use roxie::shared::guard::signals;

use super::{BSD_SIGNAL, Next, PTHREAD_SIGMASK, SIGACTION, SIGNAL, SIGPROCMASK, SSIGNAL, SYSV_SIGNAL};
use crate::object::set_errno;

type Signal = unsafe extern "C-unwind" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
type Mask = unsafe extern "C-unwind" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

/// Tells the guard how the C library is asked. Part of setting this library up.
pub(super) fn found() {
    // SAFETY: the type is that of the function.
    if let Some(next) = unsafe { SIGACTION.get::<signals::Sigaction>() } {
        signals::use_sigaction(next);
    }
}

/// Others may ask before this library is set up: in their constructors, where symbols may be looked up.
///
/// # Safety
/// `F` is the type of the function of this name.
unsafe fn next<F: Copy>(place: &'static Next) -> Option<F> {
    // SAFETY: the caller promises that `F` is the type of the function of this name, which is what is found.
    unsafe {
        place.get().or_else(|| {
            place.find();
            found();
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
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            signal: c_int,
            new: *const libc::sigaction,
            old: *mut libc::sigaction,
        ) -> c_int {
            // SAFETY: arguments as they came; the type is that of the function.
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

/// `signal` in terms of `sigaction`, with these flags.
///
/// # Safety
/// A handler, or `SIG_DFL` or `SIG_IGN`.
unsafe fn by_sigaction(signal: c_int, handler: libc::sighandler_t, flags: c_int) -> libc::sighandler_t {
    if handler == libc::SIG_ERR {
        set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: plain numbers and a null, for which all zeroes is a value; sets and actions that are there.
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
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            signal: c_int,
            handler: libc::sighandler_t,
        ) -> libc::sighandler_t {
            // SAFETY: arguments as they came; the type is that of the function.
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

/// Calls `next` with the set as the guard wants it.
///
/// # Safety
/// As with the C library's.
unsafe fn mask(next: Mask, how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the caller keeps what the C library's asks for: sets are null or there, and each is looked at only if it is not null.
    unsafe {
        if set.is_null() || how == libc::SIG_UNBLOCK {
            return next(how, set, old);
        }
        let mut kept = *set;
        signals::keep_unblocked(&mut kept);
        next(how, &kept, old)
    }
}

/// As the C library's, but for [`signals::SIGNALS`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: arguments as they came; the type is that of the function.
    unsafe {
        match next::<Mask>(&SIGPROCMASK) {
            Some(next) => mask(next, how, set, old),
            None => unknown(),
        }
    }
}

/// As the C library's, but for [`signals::SIGNALS`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: arguments as they came; the type is that of the function.
    unsafe {
        match next::<Mask>(&PTHREAD_SIGMASK) {
            Some(next) => mask(next, how, set, old),
            None => libc::ENOSYS,
        }
    }
}
