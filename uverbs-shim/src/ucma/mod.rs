//! `/dev/infiniband/rdma_cm`: the interface of the kernel's connection manager for `librdmacm`, on top of
//! [`roxie::cm`].
//!
//! ```text
//!  librdmacm      open, write, poll                       the stock library
//!  interpose      the C library's calls, for one file
//!  mod, command   descriptors and commands                unsafe is here
//!  process        the NIC, threads that wait
//!  state, id      identifiers, ports, events: what ucma.c and cma.c of the kernel have; safe, and tested by itself
//!  roxie::host    ConnectionService: QP1 and a thread
//!  roxie::cm      the protocol
//! ```
//!
//! An open file is an eventfd that counts the pending events, so `poll`, `epoll` and `O_NONBLOCK` need no extra code.
//! The program's descriptor is a duplicate of one that this library keeps: operations on the program's own descriptor
//! cannot affect another file.
//!
//! A call that blocks is a cancellation point, as with the kernel (`rping` ends threads by cancellation). The wait is
//! in a frame without destructors; all other code runs with cancellation disabled.

pub(crate) mod descriptors;

pub(crate) mod agreed;
mod answer;
mod attributes;
mod command;
mod connect;
mod event;
mod finder;
mod id;
mod incoming;
mod marshal;
mod multicast;
mod options;
mod plain;
mod ports;
mod process;
mod resolve;
mod sockaddr;
mod state;
mod table;
#[cfg(test)]
mod tests;

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::eventfd::EfdFlags;

use crate::abi::RDMA_USER_CM_CMD_GET_EVENT;
use crate::base::cancellation::Uncancelled;
use crate::base::object::{Errno, failed, set_errno};
use crate::base::report;
use crate::base::waiting::{take_count, wait_for_a_signal};
use command::Command;
use event::Channel;
use process::Process;

/// Opens the file.
pub(crate) fn open(flags: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    open_file(flags).unwrap_or_else(failed)
}

fn open_file(flags: c_int) -> Result<c_int, Errno> {
    let process = process::make()?;
    let mut state = process.state();
    let nonblocking = if flags & libc::O_NONBLOCK != 0 { EfdFlags::EFD_NONBLOCK } else { EfdFlags::empty() };
    let file = state.open(nonblocking)?;
    let ours = state.channel(file).map_or(-1, |channel| channel.counter().as_raw_fd());
    let how = if flags & libc::O_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: a descriptor that the state keeps, and a number.
    let fd = unsafe { libc::fcntl(ours, how, 0) };
    if fd < 0 || !state.descriptors.add(fd, file) {
        let errno = if fd < 0 { nix::errno::Errno::last_raw() } else { libc::EMFILE };
        state.close(None, file);
        if fd >= 0 {
            // SAFETY: the descriptor was just created, and is not shared yet.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
        return Err(errno);
    }
    Ok(fd)
}

/// Runs a command written to a descriptor. Returns `None` if the descriptor is not one of the file's.
///
/// # Safety
/// The contract of `write`, and the contract of each command for its pointers.
pub(crate) unsafe fn write(fd: c_int, bytes: *const u8, count: usize) -> Option<isize> {
    // SAFETY: `write`'s contract, passed on to each.
    unsafe {
        match begin(fd, bytes, count) {
            CommandResult::NotOurs => None,
            CommandResult::Done(result) => Some(result),
            CommandResult::Wait => Some(wait(fd, bytes, count)),
        }
    }
}

/// Result of a command.
enum CommandResult {
    NotOurs,
    Done(isize),
    /// An event was requested, and none is pending.
    Wait,
}

/// # Safety
/// As for [`write`].
unsafe fn begin(fd: c_int, bytes: *const u8, count: usize) -> CommandResult {
    let _uncancelled = Uncancelled::new();
    let Some(process) = process::this() else {
        let errno = nix::errno::Errno::last_raw();
        if !descriptors::is_still_ours(fd) {
            set_errno(errno);
            return CommandResult::NotOurs;
        }
        // The descriptor belongs to the parent, and is not usable here. A child that shares its parent's memory cannot
        // know that in any case.
        report::info("rdma_cm", "this descriptor belongs to the process from which this one was forked");
        return CommandResult::Done(failed(libc::EIO) as isize);
    };
    let mut state = process.state();
    let Some(file) = state.descriptors.file(fd) else { return CommandResult::NotOurs };
    // SAFETY: `write`'s contract: `bytes` is null, or `count` bytes that may be read.
    let command = unsafe { parse(bytes, count) };
    let Some(command) = command else { return CommandResult::Done(failed(libc::EINVAL) as isize) };
    if command.0 == RDMA_USER_CM_CMD_GET_EVENT {
        if command.2 < command::EVENT_ROOM {
            return CommandResult::Done(failed(libc::ENOSPC) as isize);
        }
        if let Some(channel) = state.channel_mut(file) {
            channel.set_handler(None);
        }
        drop(state);
        // The program does not poll while it blocks here.
        process.nic().device.step_aside();
        return CommandResult::Wait;
    }
    drop(state);
    // SAFETY: `write`'s contract: pointers in the command are valid as the command says.
    let result = unsafe { Command::run(process, file, command) };
    CommandResult::Done(result.map_or_else(|errno| failed(errno) as isize, |()| count as isize))
}

/// # Safety
/// `bytes` is null, or has `count` bytes.
unsafe fn parse<'a>(bytes: *const u8, count: usize) -> Option<(u32, &'a [u8], usize)> {
    if bytes.is_null() {
        return None;
    }
    // SAFETY: `write`'s contract: `bytes` is null, or `count` bytes that may be read.
    command::parse(unsafe { std::slice::from_raw_parts(bytes, count) })
}

/// Waits for an event by `read`, which implements `O_NONBLOCK`, signals and cancellation. Has no destructors.
///
/// # Safety
/// As for [`write`].
unsafe fn wait(fd: c_int, bytes: *const u8, count: usize) -> isize {
    loop {
        if !take_count(fd) {
            // Closed since the call started: see `Finished::Closed`.
            if nix::errno::Errno::last_raw() == libc::EBADF {
                wait_for_a_signal();
            }
            return -1;
        }
        // SAFETY: `write`'s contract, for the same command, which is valid until the call returns.
        match unsafe { finish(fd, bytes, count) } {
            Finished::Done(result) => return result,
            Finished::TakenBack => {}
            Finished::Closed => {
                wait_for_a_signal();
                return -1;
            }
        }
    }
}

/// Result of a wait for an event.
enum Finished {
    Done(isize),
    /// The event's identifier was destroyed meanwhile.
    TakenBack,
    /// Another thread closed the descriptor after the call started. With the kernel, such a call never returns, and
    /// programs (`rping`) rely on that.
    Closed,
}

/// Delivers an event. Its count was taken before.
///
/// # Safety
/// As for [`write`].
unsafe fn finish(fd: c_int, bytes: *const u8, count: usize) -> Finished {
    let _uncancelled = Uncancelled::new();
    let Some(process) = process::this() else { return Finished::Done(failed(libc::EIO) as isize) };
    let mut state = process.state();
    let Some(file) = state.descriptors.file(fd) else { return Finished::Closed };
    let Some(event) = state.fetch(file) else { return Finished::TakenBack };
    if let Some(channel) = state.channel_mut(file) {
        channel.set_handler(Some(nix::unistd::gettid().as_raw()));
    }
    drop(state);
    if event.what == event::EventType::ConnectRequest {
        process.with(|state, cm| state.take_request(cm, &event));
    }
    // SAFETY: `write`'s contract; the command was parsed before.
    let given =
        unsafe { parse(bytes, count).ok_or(libc::EINVAL).and_then(|command| command::give(&event, command)) };
    Finished::Done(given.map_or_else(|errno| failed(errno) as isize, |()| count as isize))
}

/// Handles a descriptor that is about to be closed.
pub(crate) fn close(fd: c_int) {
    let _uncancelled = Uncancelled::new();
    let errno = nix::errno::Errno::last_raw();
    match process::this() {
        Some(process) => process.close(fd),
        None if process::is_forked() => descriptors::forget(fd),
        // The memory is the parent's and must not be modified.
        None => {}
    }
    set_errno(errno);
}

/// Handles a descriptor `new` that was closed and became a duplicate of `old`.
pub(crate) fn duplicate(old: c_int, new: c_int) {
    let _uncancelled = Uncancelled::new();
    let errno = nix::errno::Errno::last_raw();
    if let Some(process) = process::this() {
        process.close(new);
        let mut state = process.state();
        if let Some(file) = state.descriptors.file(old) {
            state.descriptors.add(new, file);
        }
    }
    set_errno(errno);
}

impl Process {
    fn close(&self, fd: c_int) {
        self.wait_for_handler(fd);
        self.with(|state, cm| {
            if let Some((file, true)) = state.descriptors.remove(fd) {
                state.close(cm, file);
            }
        });
    }

    /// Waits for the handler thread of a file's last descriptor before the file is closed. A thread that has
    /// acknowledged an event is about to request the next one. In `rping`, the first thread ends the process if that
    /// thread then finds the file closed. Waiting gives the thread time to enter its call, which then never returns. A
    /// thread that sleeps or has ended is not waited for.
    fn wait_for_handler(&self, fd: c_int) {
        let until = Instant::now() + HANDLER_WAIT;
        loop {
            let state = self.state();
            let channel = state.descriptors.last_of(fd).and_then(|file| state.channel(file));
            let handler = channel.and_then(Channel::handler);
            drop(state);
            let runs =
                handler.is_some_and(|thread| thread != nix::unistd::gettid().as_raw() && is_running(thread));
            if !runs || Instant::now() > until {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Maximum time that closing a file waits for the handler thread.
const HANDLER_WAIT: Duration = Duration::from_millis(100);

/// Returns true if a thread of this process is running or runnable.
fn is_running(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name before it may contain parentheses and blanks.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

/// Handles a change of the port or the device. Called by the thread that runs the NIC, so the check is left to another
/// thread.
pub(crate) fn port_changed() {
    if let Some(process) = process::this() {
        process.check_device();
    }
}

/// Returns true if peers may be left that no other process would inform of this process's end. Does not block.
pub(crate) fn has_to_part() -> bool {
    process::this().is_some_and(Process::has_to_part)
}

/// Disconnects all peers, because the process is about to end. Waits at most `limit` for the answers of connected
/// peers.
pub(crate) fn part(limit: Duration) {
    if let Some(process) = process::this() {
        process.part(limit);
    }
}

/// Reports the file as a character device, with the device number from sysfs.
///
/// # Safety
/// `stat` has been filled in for `fd`.
pub(crate) unsafe fn describe(fd: c_int, stat: *mut libc::stat) {
    const KIND: libc::mode_t = libc::S_IFCHR | 0o666;
    let _uncancelled = Uncancelled::new();
    let errno = nix::errno::Errno::last_raw();
    let ours = process::this().is_some_and(|process| process.state().descriptors.file(fd).is_some());
    if ours {
        // SAFETY: `stat` has been filled in, as required, so it may be written.
        unsafe {
            (*stat).st_mode = KIND;
            (*stat).st_rdev = device_number().unwrap_or((*stat).st_rdev);
        }
    }
    set_errno(errno);
}

/// Returns the kernel's device number, if it has the device (`librdmacm` checks it), else that provided by `roxie run`.
fn device_number() -> Option<libc::dev_t> {
    let places = ["/sys/devices/virtual/misc/rdma_cm/dev", "/sys/class/misc/rdma_cm/dev"];
    let text = places.into_iter().find_map(|place| std::fs::read_to_string(place).ok())?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}
