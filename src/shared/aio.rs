//! Adds to the counter of an eventfd that another process has, and never waits.
//!
//! `write(2)` waits while the counter is full, unless the open file is non-blocking. Whether it is, each process decides that has the eventfd,
//! at any moment, and so is whether it is full. (`RWF_NOWAIT` is no way out: an eventfd refuses it.) The kernel itself adds by
//! `eventfd_signal`, which takes a spin lock for a few instructions and stops at 2^64 - 1. One way to have it do so is asynchronous I/O: a
//! request with `IOCB_FLAG_RESFD` signals when it is done. Here the request is to read 0 bytes of an empty file of this process, which is done
//! before `io_submit` returns. So it is on all kernels since 2.6.22.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// Requests at most whose completions have not been taken.
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

/// A context of the kernel's for asynchronous I/O. There is one, for as long as the process lives.
#[derive(Debug)]
pub(super) struct Signals {
    context: u64,
    empty: OwnedFd,
}

/// The context, or the errno of the refusal: a limit (`fs.aio-max-nr`) or a filter of system calls.
static SIGNALS: OnceLock<Result<Signals, i32>> = OnceLock::new();

impl Signals {
    /// Returns the context of this process.
    ///
    /// # Errors
    /// If the kernel gives it no context.
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
        // Completions that were not taken may be in the way.
        if !self.submit(event) {
            self.take_completions();
            let _ = self.submit(event);
        }
    }

    fn submit(&self, event: BorrowedFd<'_>) -> bool {
        let mut request = Request {
            operation: PREAD,
            fd: self.empty.as_fd().as_raw_fd().cast_unsigned(),
            flags: RESFD,
            result_fd: event.as_raw_fd().cast_unsigned(),
            ..Request::default()
        };
        let mut list = [&raw mut request];
        // SAFETY: one request, which lives until the call returns and names descriptors that are open; nothing is read into memory. The
        // kernel copies what it needs of it.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, list.len(), list.as_mut_ptr()) };
        submitted == 1
    }

    fn take_completions(&self) {
        let mut done = [Done::default(); REQUESTS];
        let none = ptr::null::<libc::timespec>();
        // SAFETY: there is room for as many as are asked for; with a least number of 0 the call does not wait.
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
}
