//! `/dev/infiniband/rdma_cm`: the kernel's connection manager as `librdmacm` speaks to it, on top of [`roxie::cm`].
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
//! An open file is an eventfd that counts the events that wait, so that `poll`, `epoll` and `O_NONBLOCK` work by themselves. The
//! program's descriptor is a duplicate of one that this library keeps: what a program does to its own cannot reach what was another's.
//!
//! A call that waits is a cancellation point, as with the kernel (`rping` ends threads that way): it waits in a frame without
//! destructors, and everything else runs with cancellation off.

pub(crate) mod descriptors;

mod answer;
mod attributes;
mod command;
mod connect;
mod event;
mod finder;
mod id;
mod incoming;
mod multicast;
mod options;
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
use crate::cancellation::Uncancelled;
use crate::object::{Errno, failed, set_errno};
use crate::report;
use crate::settings::settings;
use crate::waiting::{take_count, wait_for_a_signal};
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
            // SAFETY: it was just made, and nobody knows of it.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
        return Err(errno);
    }
    Ok(fd)
}

/// What a program wrote to a descriptor. `None`: it is not ours after all.
///
/// # Safety
/// The contract of `write`, and what the commands say of the pointers in them.
pub(crate) unsafe fn write(fd: c_int, bytes: *const u8, count: usize) -> Option<isize> {
    // SAFETY: `write`'s contract, handed on to each.
    unsafe {
        match begin(fd, bytes, count) {
            Begun::NotOurs => None,
            Begun::Done(result) => Some(result),
            Begun::Wait => Some(wait(fd, bytes, count)),
        }
    }
}

/// What became of a command.
enum Begun {
    NotOurs,
    Done(isize),
    /// An event is wanted, and has to be waited for.
    Wait,
}

/// # Safety
/// As [`write`].
unsafe fn begin(fd: c_int, bytes: *const u8, count: usize) -> Begun {
    let _uncancelled = Uncancelled::new();
    let Some(process) = process::this() else {
        let errno = nix::errno::Errno::last_raw();
        if !descriptors::is_still_ours(fd) {
            set_errno(errno);
            return Begun::NotOurs;
        }
        // Of a parent: dead here. In a child that shares its parent's memory nothing is known of it either way.
        report::info("rdma_cm", "this descriptor is of the process that this one was forked from");
        return Begun::Done(failed(libc::EIO) as isize);
    };
    let mut state = process.state();
    let Some(file) = state.descriptors.file(fd) else { return Begun::NotOurs };
    // SAFETY: `write`'s contract: `bytes` is null, or `count` bytes that may be read.
    let command = unsafe { parse(bytes, count) };
    let Some(command) = command else { return Begun::Done(failed(libc::EINVAL) as isize) };
    if command.0 == RDMA_USER_CM_CMD_GET_EVENT {
        if command.2 < command::EVENT_ROOM {
            return Begun::Done(failed(libc::ENOSPC) as isize);
        }
        if let Some(channel) = state.channel_mut(file) {
            channel.set_handler(None);
        }
        drop(state);
        // Nobody polls while the program waits here.
        process.nic().device.step_aside();
        return Begun::Wait;
    }
    drop(state);
    // SAFETY: `write`'s contract: what the pointers in the command name is as the command says.
    let result = unsafe { Command::run(process, file, command) };
    Begun::Done(result.map_or_else(|errno| failed(errno) as isize, |()| count as isize))
}

/// # Safety
/// `bytes` is null, or `count` bytes.
unsafe fn parse<'a>(bytes: *const u8, count: usize) -> Option<(u32, &'a [u8], usize)> {
    if bytes.is_null() {
        return None;
    }
    // SAFETY: `write`'s contract: `bytes` is null, or `count` bytes that may be read.
    command::parse(unsafe { std::slice::from_raw_parts(bytes, count) })
}

/// Waits for an event as `read` does: `O_NONBLOCK`, signals and cancellation are its business. No destructors here.
///
/// # Safety
/// As [`write`].
unsafe fn wait(fd: c_int, bytes: *const u8, count: usize) -> isize {
    loop {
        if !take_count(fd) {
            // Closed since the call began: see `Finished::Closed`.
            if nix::errno::Errno::last_raw() == libc::EBADF {
                wait_for_a_signal();
            }
            return -1;
        }
        // SAFETY: `write`'s contract, for the same command: it is the program's for as long as its call lasts.
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

/// What became of an event that was waited for.
enum Finished {
    Done(isize),
    /// It concerned an identifier that has gone since.
    TakenBack,
    /// The descriptor was closed by another thread, after the call had begun: with the kernel such a call waits on, for nothing, and
    /// programs (`rping`) rely on its not returning.
    Closed,
}

/// Hands over the event whose count was taken.
///
/// # Safety
/// As [`write`].
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
    // SAFETY: `write`'s contract; the command was looked at before.
    let given =
        unsafe { parse(bytes, count).ok_or(libc::EINVAL).and_then(|command| command::give(&event, command)) };
    Finished::Done(given.map_or_else(|errno| failed(errno) as isize, |()| count as isize))
}

/// A descriptor is about to be closed.
pub(crate) fn close(fd: c_int) {
    let _uncancelled = Uncancelled::new();
    let errno = nix::errno::Errno::last_raw();
    match process::this() {
        Some(process) => process.close(fd),
        None if process::is_forked() => descriptors::forget(fd),
        // Our parent's memory: hands off.
        None => {}
    }
    set_errno(errno);
}

/// A descriptor has become another for the same open file as `old`, whatever it was.
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
        self.let_the_handler_come_back(fd);
        self.with(|state, cm| {
            if let Some((file, true)) = state.descriptors.remove(fd) {
                state.close(cm, file);
            }
        });
    }

    /// A thread that has acknowledged the last event of a file is about to ask for the next one when another thread may close the file
    /// (`rping`, where the first ends the process if it then finds no file). It gets the time to come: its call waits for nothing then.
    /// One that sleeps, or has ended, is not waited for.
    fn let_the_handler_come_back(&self, fd: c_int) {
        let until = Instant::now() + COME_BACK;
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

/// How long a program that closes its file waits for its thread, at most.
const COME_BACK: Duration = Duration::from_millis(100);

/// A thread of this process has a processor, or waits for one.
fn is_running(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name before it may have parentheses and blanks.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

/// Something happened to the port or the device. Called by whoever turns the NIC, so it leaves the looking to a thread.
pub(crate) fn port_changed() {
    if let Some(process) = process::this() {
        process.look_for_the_device();
    }
}

/// True if there may be a peer to whom nobody would say that the process has ended, once it has. Waits for nothing.
pub(crate) fn has_to_part() -> bool {
    settings().estate.is_none() && process::this().is_some_and(Process::has_to_part)
}

/// The process is about to end: its peers hear of it, those that were connected until they answer or `limit` has passed.
pub(crate) fn part(limit: Duration) {
    if let Some(process) = process::this() {
        process.part(limit);
    }
}

/// Our file is a character device, whose number is the one in sysfs.
///
/// # Safety
/// `stat` has been filled in for `fd`.
pub(crate) unsafe fn describe(fd: c_int, stat: *mut libc::stat) {
    const KIND: libc::mode_t = libc::S_IFCHR | 0o666;
    let _uncancelled = Uncancelled::new();
    let errno = nix::errno::Errno::last_raw();
    let ours = process::this().is_some_and(|process| process.state().descriptors.file(fd).is_some());
    if ours {
        // SAFETY: `stat` has been filled in, as this function asks: it may be written.
        unsafe {
            (*stat).st_mode = KIND;
            (*stat).st_rdev = device_number().unwrap_or((*stat).st_rdev);
        }
    }
    set_errno(errno);
}

/// The kernel's own number, if it has such a device too (`librdmacm` asks it), else the one that `roxie run` shows.
fn device_number() -> Option<libc::dev_t> {
    let places = ["/sys/devices/virtual/misc/rdma_cm/dev", "/sys/class/misc/rdma_cm/dev"];
    let text = places.into_iter().find_map(|place| std::fs::read_to_string(place).ok())?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}
