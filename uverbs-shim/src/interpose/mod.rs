//! Calls of the C library that reach `/dev/infiniband/rdma_cm`, and netlink to RDMA devices, here and everything else where they always
//! went.
//!
//! `librdmacm` opens that file, looks at it with `fstat`, and speaks through `write`. These functions stand before the C library's,
//! under its version names; each passes on what is not about that file, to whoever is next ([`Next`]). `_exit` stands here too: the NIC is
//! part of the process, and has to send what it owes before that is no more. The price for other
//! descriptors is one look at a bit ([`descriptors::is_ours`]), without a lock; nothing here allocates or touches `errno` on their way.
//!
//! They may be called from signal handlers, before this library is set up, between `vfork` and `exec`, and they may be the end of
//! a thread that is cancelled: hence `C-unwind`, and no destructors on the way.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{self, transmute_copy};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};

use crate::farewell;
use crate::netlink;
// `ucma` asks for it here.
use crate::object::set_errno;
use crate::ucma::{self, descriptors};

mod signals;

/// The file that is ours.
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

/// A function that comes after ours: the C library's, or that of another library that stands before it.
struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicPtr::new(null_mut()) }
    }

    fn find(&self) {
        // SAFETY: a name; looks symbols up, and is called once, while the library is set up.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Release);
    }

    /// `None`: this library is not set up yet. System calls do then: nothing that is more than them can be there so early.
    ///
    /// # Safety
    /// `F` is the type of the function of this name.
    #[inline]
    unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(mem::size_of::<F>() == mem::size_of::<*mut c_void>()) };
        let found = self.address.load(Acquire);
        // SAFETY: a function pointer of the caller's type, of the size that was asserted.
        (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
    }
}

macro_rules! next {
    ($($place:ident $name:literal)*) => {
        $(static $place: Next = Next::new($name);)*
        /// Looks all of them up. `compat.c` calls it when the library is loaded.
        #[unsafe(no_mangle)]
        pub extern "C" fn roxie_find_next() {
            $($place.find();)*
            signals::found();
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
    // SAFETY: not null, as was seen, so a string that ends with zero, as the caller promises.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == FILE
}

macro_rules! open {
    ($name:ident, $next:ident) => {
        /// As the C library's. The mode is there whether it was given or not: as a number in a register that nobody reads.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
            // SAFETY: arguments as they came; the type is that of the function.
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
        /// As the C library's; see `open`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            folder: c_int,
            path: *const c_char,
            flags: c_int,
            mode: c_uint,
        ) -> c_int {
            // SAFETY: arguments as they came; the type is that of the function.
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
        /// What `open` becomes in programs that are compiled with `_FORTIFY_SOURCE`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: arguments as they came; the type is that of the function.
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
        /// What `openat` becomes in programs that are compiled with `_FORTIFY_SOURCE`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: arguments as they came; the type is that of the function.
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
        /// As the C library's; our file is a character device.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, to: *mut libc::stat) -> c_int {
            // SAFETY: arguments as they came; the type is that of the function.
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

// A 64-bit system has one structure for both.
fstat!(fstat, FSTAT);
fstat!(fstat64, FSTAT64);

macro_rules! fxstat {
    ($name:ident, $next:ident) => {
        /// What `fstat` became before glibc 2.33.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
            // SAFETY: arguments as they came; the type is that of the function.
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

/// As the C library's; on our file, a command of the connection manager's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    // SAFETY: arguments as they came; the type is that of the function.
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

/// As the C library's; with the last descriptor of an open file of ours goes all that was made through it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if descriptors::is_ours(fd) {
        ucma::close(fd);
    }
    netlink::forget(fd);
    // SAFETY: arguments as they came; the type is that of the function.
    unsafe {
        match CLOSE.get::<Close>() {
            Some(next) => next(fd),
            None => libc::syscall(libc::SYS_close, fd) as c_int,
        }
    }
}

/// As the C library's; both descriptors are the same open file.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: arguments as they came; the type is that of the function.
    let new = unsafe {
        match DUP.get::<Close>() {
            Some(next) => next(fd),
            None => libc::syscall(libc::SYS_dup, fd) as c_int,
        }
    };
    duplicated(fd, new)
}

/// As the C library's; `new` ceases to be what it was.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, new: c_int) -> c_int {
    // SAFETY: arguments as they came; the type is that of the function.
    let new = unsafe {
        match DUP2.get::<Dup2>() {
            Some(next) => next(fd, new),
            None if fd != new => libc::syscall(libc::SYS_dup3, fd, new, 0) as c_int,
            // Nothing, but only if it is open.
            None if libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) >= 0 => new,
            None => -1,
        }
    };
    duplicated(fd, new)
}

/// As the C library's; `new` ceases to be what it was.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: arguments as they came; the type is that of the function.
    let new = unsafe {
        match DUP3.get::<Dup3>() {
            Some(next) => next(fd, new, flags),
            None => libc::syscall(libc::SYS_dup3, fd, new, flags) as c_int,
        }
    };
    duplicated(fd, new)
}

/// As the C library's; for netlink to RDMA devices, where the kernel has no such thing, a socket that is answered here.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: arguments as they came; the type is that of the function.
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

/// As the C library's; on such a socket, a request.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(fd: c_int, bytes: *const c_void, count: usize, flags: c_int) -> isize {
    // SAFETY: arguments as they came; the type is that of the function.
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

/// As the C library's; on such a socket, a request.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    count: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    length: libc::socklen_t,
) -> isize {
    // SAFETY: arguments as they came; the type is that of the function.
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

/// As the C library's; on such a socket, a request.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: arguments as they came; the type is that of the function. Fields are read from a message that the caller has whole.
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
        /// As the C library's; what the NIC owes to peers goes first.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(status: c_int) -> ! {
            farewell::at_once();
            // SAFETY: arguments as they came; the type is that of the function.
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
