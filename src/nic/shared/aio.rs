//! Adds to the counter of another process's eventfd without ever blocking.
//!
//! `write(2)` blocks while the counter is full, unless the open file is non-blocking. Every process that has the
//! eventfd can fill it or change that flag at any moment. (`RWF_NOWAIT` does not help: an eventfd refuses it.)
//!
//! The kernel itself adds by `eventfd_signal`, which takes a spin lock for a few instructions and stops at 2^64 - 1.
//! Asynchronous I/O gives access to it: a request with `IOCB_FLAG_RESFD` signals the eventfd when it is done. The
//! request made here reads 0 bytes from an empty file of this process, and is done before `io_submit` returns, on all
//! kernels since 2.6.22.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Maximum number of requests with untaken completions.
const REQUESTS: usize = 128;
/// The operation: a read.
const PREAD: u16 = 0;
/// The request signals an eventfd.
const RESFD: u32 = 1;

/// `struct iocb` of `linux/aio_abi.h` on little-endian processors.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    operation: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    words: [u64; 4],
}

/// A kernel context for asynchronous I/O. A process has one, for its lifetime.
#[derive(Debug)]
pub(super) struct Signals {
    context: u64,
    empty: OwnedFd,
}

/// The context, or the errno of its refusal: by a limit (`fs.aio-max-nr`) or by a system call filter.
static SIGNALS: OnceLock<Result<Signals, i32>> = OnceLock::new();

impl Signals {
    /// Returns the context of this process.
    ///
    /// # Errors
    /// If the kernel refuses to make a context.
    pub(super) fn get() -> io::Result<&'static Signals> {
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let signals = SIGNALS.get_or_init(|| Signals::new().map_err(errno));
        signals.as_ref().map_err(|errno| {
            let why = io::Error::from_raw_os_error(*errno);
            io::Error::new(
                why.kind(),
                format!("the kernel gives no context for asynchronous I/O (io_setup): {why}"),
            )
        })
    }

    fn new() -> io::Result<Signals> {
        let empty = memfd_create("roxie-signals", MFdFlags::MFD_CLOEXEC)?;
        let mut context = 0u64;
        // SAFETY: the kernel writes the context's name to the 8 bytes, which were 0, as it asks.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut context) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Signals { context, empty }) }
    }

    /// Adds 1 to the counter of an eventfd. A counter at 2^64 - 1 stays there.
    pub(super) fn raise(&self, event: BorrowedFd<'_>) {
        // The context may be full of completions that were not taken, and after they were taken by other threads'
        // completions.
        while self.submit(event) == Err(Errno::EAGAIN) {
            self.take_completions();
        }
    }

    fn submit(&self, event: BorrowedFd<'_>) -> nix::Result<()> {
        let mut request = Request {
            operation: PREAD,
            fd: self.empty.as_fd().as_raw_fd().cast_unsigned(),
            flags: RESFD,
            result_fd: event.as_raw_fd().cast_unsigned(),
            ..Request::default()
        };
        let mut list = [&raw mut request];
        // SAFETY: one request, which lives until the call returns and names open descriptors; nothing is read into
        // memory. The kernel copies what it needs of the request.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, list.len(), list.as_mut_ptr()) };
        Errno::result(submitted).map(drop)
    }

    fn take_completions(&self) {
        let mut done = [Done::default(); REQUESTS];
        let none = ptr::null::<libc::timespec>();
        // SAFETY: the array has room for as many as are requested; with a minimum of 0 the call does not wait.
        let _ = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, 0, done.len(), done.as_mut_ptr(), none)
        };
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;

    #[test]
    fn signals_add_up_and_stop_at_the_end() {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("a descriptor");
        let signals = Signals::get().expect("a context");
        let many = 10 * REQUESTS as u64;
        (0..many).for_each(|_| signals.raise(event.as_fd()));
        assert_eq!(event.read(), Ok(many));
        event.write(u64::MAX - 1).expect("room");
        (0..3).for_each(|_| signals.raise(event.as_fd()));
        assert_eq!(event.read(), Ok(u64::MAX));
    }

    #[test]
    fn threads_lose_no_signal() {
        const MANY: u64 = 20_000;
        let signals = Signals::get().expect("a context");
        let raise_all = || {
            let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("a descriptor");
            (0..MANY).for_each(|_| signals.raise(event.as_fd()));
            assert_eq!(event.read(), Ok(MANY));
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(raise_all)).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("none lost"));
        });
    }
}
