//! Interposed calls of the C library. Calls on `/dev/infiniband/rdma_cm`, and on netlink to RDMA devices, are served
//! here; all others are passed on.
//!
//! `librdmacm` opens that file, checks it with `fstat`, and sends commands by `write`. The functions here come before
//! the C library's, under its version names, and each passes unrelated calls on to the next function of that name
//! ([`Next`]). `_exit` is interposed as well: the NIC is part of the process, and must send pending data before the
//! process ends. For other descriptors, the cost is one test of a bit ([`descriptors::is_ours`]), without a lock, an
//! allocation or a change of `errno`.
//!
//! Any of them may be called in signal handlers, before this library is initialized, and between `vfork` and `exec`. A
//! cancelled thread may unwind through them: hence `C-unwind`, and no destructors.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{self, transmute_copy};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};

use crate::netlink;
// Used by `ucma`.
use crate::base::object::set_errno;
use crate::ucma::{self, descriptors};

pub(crate) mod farewell;
mod signals;

/// The interposed file.
const FILE: &CStr = c"/dev/infiniband/rdma_cm";

type Open = unsafe extern "C-unwind" fn(*const c_char, c_int, ...) -> c_int;
type Openat = unsafe extern "C-unwind" fn(c_int, *const c_char, c_int, ...) -> c_int;
type Open2 = unsafe extern "C-unwind" fn(*const c_char, c_int) -> c_int;
type Openat2 = unsafe extern "C-unwind" fn(c_int, *const c_char, c_int) -> c_int;
type Fstat = unsafe extern "C-unwind" fn(c_int, *mut libc::stat) -> c_int;
type Fxstat = unsafe extern "C-unwind" fn(c_int, c_int, *mut libc::stat) -> c_int;
type Write = unsafe extern "C-unwind" fn(c_int, *const c_void, usize) -> isize;
type Close = unsafe extern "C-unwind" fn(c_int) -> c_int;
type Dup2 = unsafe extern "C-unwind" fn(c_int, c_int) -> c_int;
type Socket = unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int;
type Send = unsafe extern "C-unwind" fn(c_int, *const c_void, usize, c_int) -> isize;
type Sendto = unsafe extern "C-unwind" fn(
    c_int,
    *const c_void,
    usize,
    c_int,
    *const libc::sockaddr,
    libc::socklen_t,
) -> isize;
type Sendmsg = unsafe extern "C-unwind" fn(c_int, *const libc::msghdr, c_int) -> isize;
type Exit = unsafe extern "C-unwind" fn(c_int) -> !;
type Dup3 = unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int;

/// The next function of a name: the C library's, or another interposed library's.
struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicPtr::new(null_mut()) }
    }

    fn find(&self) {
        // SAFETY: a name; looks symbols up, and is called once, during initialization.
        let symbol = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(symbol, Release);
    }

    /// Returns the function, or `None` before this library is initialized. Callers then use the system call: no other
    /// library can be interposed so early.
    ///
    /// # Safety
    /// `F` is the type of the function with this name.
    #[inline]
    unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(mem::size_of::<F>() == mem::size_of::<*mut c_void>()) };
        let symbol = self.address.load(Acquire);
        // SAFETY: a function pointer of the caller's type, of the size asserted.
        (!symbol.is_null()).then(|| unsafe { transmute_copy(&symbol) })
    }
}

macro_rules! next {
    ($($place:ident $name:literal)*) => {
        $(static $place: Next = Next::new($name);)*
        /// Looks up all functions. Called by `compat.c` when the library is loaded.
        #[unsafe(no_mangle)]
        pub extern "C" fn roxie_find_next() {
            $($place.find();)*
            signals::install();
        }
    };
}

next! {
    OPEN c"open"
    OPEN64 c"open64"
    OPENAT c"openat"
    OPENAT64 c"openat64"
    OPEN_2 c"__open_2"
    OPEN64_2 c"__open64_2"
    OPENAT_2 c"__openat_2"
    OPENAT64_2 c"__openat64_2"
    FSTAT c"fstat"
    FSTAT64 c"fstat64"
    FXSTAT c"__fxstat"
    FXSTAT64 c"__fxstat64"
    WRITE c"write"
    CLOSE c"close"
    DUP c"dup"
    DUP2 c"dup2"
    DUP3 c"dup3"
    SOCKET c"socket"
    SEND c"send"
    SENDTO c"sendto"
    SENDMSG c"sendmsg"
    EXIT c"_exit"
    EXIT_OF_C c"_Exit"
    SIGACTION c"sigaction"
    SIGNAL c"signal"
    SSIGNAL c"ssignal"
    BSD_SIGNAL c"bsd_signal"
    SYSV_SIGNAL c"__sysv_signal"
    SIGPROCMASK c"sigprocmask"
    PTHREAD_SIGMASK c"pthread_sigmask"
}

/// # Safety
/// `path` is null or a string.
unsafe fn is_the_file(path: *const c_char) -> bool {
    // SAFETY: not null, as checked, so a null-terminated string, as the caller promises.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == FILE
}

macro_rules! open {
    ($name:ident, $next:ident) => {
        /// Interposes the C library's function. The mode is passed on in any case; without `O_CREAT`, its register has
        /// any value and is ignored.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
            // SAFETY: the caller's arguments, unchanged; the type is the function's.
            unsafe {
                if is_the_file(path) {
                    return ucma::open(flags);
                }
                match $next.get::<Open>() {
                    Some(next) => next(path, flags, mode),
                    None => libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int,
                }
            }
        }
    };
}

open!(open, OPEN);
open!(open64, OPEN64);

macro_rules! openat {
    ($name:ident, $next:ident) => {
        /// Interposes the C library's function; see `open`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            folder: c_int,
            path: *const c_char,
            flags: c_int,
            mode: c_uint,
        ) -> c_int {
            // SAFETY: the caller's arguments, unchanged; the type is the function's.
            unsafe {
                if is_the_file(path) {
                    return ucma::open(flags);
                }
                match $next.get::<Openat>() {
                    Some(next) => next(folder, path, flags, mode),
                    None => libc::syscall(libc::SYS_openat, folder, path, flags, mode) as c_int,
                }
            }
        }
    };
}

openat!(openat, OPENAT);
openat!(openat64, OPENAT64);

macro_rules! open_2 {
    ($name:ident, $next:ident) => {
        /// Interposes `open` of programs compiled with `_FORTIFY_SOURCE`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's arguments, unchanged; the type is the function's.
            unsafe {
                if is_the_file(path) {
                    return ucma::open(flags);
                }
                match $next.get::<Open2>() {
                    Some(next) => next(path, flags),
                    None => libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0) as c_int,
                }
            }
        }
    };
}

open_2!(__open_2, OPEN_2);
open_2!(__open64_2, OPEN64_2);

macro_rules! openat_2 {
    ($name:ident, $next:ident) => {
        /// Interposes `openat` of programs compiled with `_FORTIFY_SOURCE`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's arguments, unchanged; the type is the function's.
            unsafe {
                if is_the_file(path) {
                    return ucma::open(flags);
                }
                match $next.get::<Openat2>() {
                    Some(next) => next(folder, path, flags),
                    None => libc::syscall(libc::SYS_openat, folder, path, flags, 0) as c_int,
                }
            }
        }
    };
}

openat_2!(__openat_2, OPENAT_2);
openat_2!(__openat64_2, OPENAT64_2);

macro_rules! fstat {
    ($name:ident, $next:ident) => {
        /// Interposes the C library's function. The connection manager's file is reported as a character device.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, to: *mut libc::stat) -> c_int {
            // SAFETY: the caller's arguments, unchanged; the type is the function's.
            unsafe {
                let result = match $next.get::<Fstat>() {
                    Some(next) => next(fd, to),
                    None => libc::syscall(libc::SYS_fstat, fd, to) as c_int,
                };
                if result == 0 && descriptors::is_ours(fd) {
                    ucma::describe(fd, to);
                }
                result
            }
        }
    };
}

// 64-bit systems have one structure for both functions.
fstat!(fstat, FSTAT);
fstat!(fstat64, FSTAT64);

macro_rules! fxstat {
    ($name:ident, $next:ident) => {
        /// Interposes `fstat` of programs built before glibc 2.33.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
            // SAFETY: the caller's arguments, unchanged; the type is the function's.
            unsafe {
                let result = match $next.get::<Fxstat>() {
                    Some(next) => next(version, fd, to),
                    None => libc::syscall(libc::SYS_fstat, fd, to) as c_int,
                };
                if result == 0 && descriptors::is_ours(fd) {
                    ucma::describe(fd, to);
                }
                result
            }
        }
    };
}

fxstat!(__fxstat, FXSTAT);
fxstat!(__fxstat64, FXSTAT64);

/// Interposes the C library's function. On the connection manager's file, a write is a command.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    // SAFETY: the caller's arguments, unchanged; the type is the function's.
    unsafe {
        if descriptors::is_ours(fd)
            && let Some(result) = ucma::write(fd, bytes.cast(), count)
        {
            return result;
        }
        match WRITE.get::<Write>() {
            Some(next) => next(fd, bytes, count),
            None => libc::syscall(libc::SYS_write, fd, bytes, count) as isize,
        }
    }
}

/// Interposes the C library's function. Closing the last descriptor of the connection manager's open file destroys its
/// identifiers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if descriptors::is_ours(fd) {
        ucma::close(fd);
    }
    netlink::forget(fd);
    // SAFETY: the caller's arguments, unchanged; the type is the function's.
    unsafe {
        match CLOSE.get::<Close>() {
            Some(next) => next(fd),
            None => libc::syscall(libc::SYS_close, fd) as c_int,
        }
    }
}

/// Interposes the C library's function. The new descriptor refers to the same open file.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged; the type is the function's.
    let new = unsafe {
        match DUP.get::<Close>() {
            Some(next) => next(fd),
            None => libc::syscall(libc::SYS_dup, fd) as c_int,
        }
    };
    duplicated(fd, new)
}

/// Interposes the C library's function. `new` is closed first.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, new: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged; the type is the function's.
    let new = unsafe {
        match DUP2.get::<Dup2>() {
            Some(next) => next(fd, new),
            None if fd != new => libc::syscall(libc::SYS_dup3, fd, new, 0) as c_int,
            // Does nothing, but fails if `fd` is not open.
            None if libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) >= 0 => new,
            None => -1,
        }
    };
    duplicated(fd, new)
}

/// Interposes the C library's function. `new` is closed first.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged; the type is the function's.
    let new = unsafe {
        match DUP3.get::<Dup3>() {
            Some(next) => next(fd, new, flags),
            None => libc::syscall(libc::SYS_dup3, fd, new, flags) as c_int,
        }
    };
    duplicated(fd, new)
}

/// Interposes the C library's function. If the kernel has no netlink family of RDMA, the socket is served here.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged; the type is the function's.
    let fd = unsafe {
        match SOCKET.get::<Socket>() {
            Some(next) => next(family, kind, protocol),
            None => libc::syscall(libc::SYS_socket, family, kind, protocol) as c_int,
        }
    };
    if fd < 0 && family == libc::AF_NETLINK && protocol == netlink::RDMA {
        let errno = nix::errno::Errno::last_raw();
        if errno == libc::EPROTONOSUPPORT
            && let Some(ours) = netlink::socket(kind)
        {
            return ours;
        }
        set_errno(errno);
    }
    fd
}

/// Interposes the C library's function. On such a socket, serves a request.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(fd: c_int, bytes: *const c_void, count: usize, flags: c_int) -> isize {
    // SAFETY: the caller's arguments, unchanged; the type is the function's.
    unsafe {
        if netlink::may_be_ours(fd)
            && let Some(sent) = netlink::send(fd, null_mut(), 0, [(bytes.cast(), count)].into_iter())
        {
            return sent;
        }
        match SEND.get::<Send>() {
            Some(next) => next(fd, bytes, count, flags),
            None => {
                libc::syscall(libc::SYS_sendto, fd, bytes, count, flags, null_mut::<c_void>(), 0) as isize
            }
        }
    }
}

/// Interposes the C library's function. On such a socket, serves a request.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    count: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    length: libc::socklen_t,
) -> isize {
    // SAFETY: the caller's arguments, unchanged; the type is the function's.
    unsafe {
        if netlink::may_be_ours(fd)
            && let Some(sent) = netlink::send(fd, to.cast(), length, [(bytes.cast(), count)].into_iter())
        {
            return sent;
        }
        match SENDTO.get::<Sendto>() {
            Some(next) => next(fd, bytes, count, flags, to, length),
            None => libc::syscall(libc::SYS_sendto, fd, bytes, count, flags, to, length) as isize,
        }
    }
}

/// Interposes the C library's function. On such a socket, serves a request.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's arguments, unchanged; the type is the function's. The caller's message is complete.
    unsafe {
        if netlink::may_be_ours(fd) && !message.is_null() {
            let (to, length) = ((*message).msg_name, (*message).msg_namelen);
            let (list, count) = ((*message).msg_iov, (*message).msg_iovlen);
            let pieces = (0..count)
                .map(|place| ((*list.add(place)).iov_base.cast_const().cast(), (*list.add(place)).iov_len));
            if let Some(sent) = netlink::send(fd, to, length, pieces) {
                return sent;
            }
        }
        match SENDMSG.get::<Sendmsg>() {
            Some(next) => next(fd, message, flags),
            None => libc::syscall(libc::SYS_sendmsg, fd, message, flags) as isize,
        }
    }
}

macro_rules! exit {
    ($name:ident, $next:ident) => {
        /// Interposes the C library's function. Sends the NIC's pending data first.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(status: c_int) -> ! {
            farewell::at_once();
            // SAFETY: the caller's arguments, unchanged; the type is the function's.
            unsafe {
                if let Some(next) = $next.get::<Exit>() {
                    next(status);
                }
                loop {
                    libc::syscall(libc::SYS_exit_group, status);
                }
            }
        }
    };
}

exit!(_exit, EXIT);
exit!(_Exit, EXIT_OF_C);

fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old && (descriptors::is_ours(old) || descriptors::is_ours(new)) {
        ucma::duplicate(old, new);
    }
    new
}
