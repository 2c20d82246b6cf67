//! Runs the program: forwards signals to it, and returns its exit code.

#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::{SigHandler, SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, daemon, fork};
use roxie_report::failure::Failure;
use roxie_report::output;

/// Signals that are forwarded to the program.
const FORWARDED: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// Runs a program to its end. Returns its exit code in the shell's convention.
pub(super) fn run(mut command: Command, program: &OsStr) -> Result<u8, Failure> {
    let mut mask: SigSet = FORWARDED.into_iter().collect();
    mask.add(Signal::SIGCHLD);
    // From here on, signals are pending until the loop below reads them. The program starts with this process's
    // original mask.
    let before = SigSet::thread_get_mask().map_err(|e| Failure::Run(format!("the signal mask: {e}")))?;
    let restore = move || Ok(before.thread_set_mask()?);
    // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
    unsafe { command.pre_exec(restore) };
    mask.thread_block().map_err(|e| Failure::Run(format!("blocking signals: {e}")))?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC)
        .map_err(|e| Failure::Run(format!("a descriptor for signals: {e}")))?;
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_started(program, &error)),
    };
    let status = wait(child, &signals).map_err(|e| Failure::Run(format!("waiting for the program: {e}")))?;
    Ok(exit_code(status))
}

/// Calls `act` in a forked process, so that it changes only that process's state, and returns its result.
pub(super) fn rehearse(act: impl FnOnce() -> String) -> io::Result<String> {
    let (mut reader, mut writer) = io::pipe()?;
    // SAFETY: `roxie run` has one thread while it prepares: no other thread's lock is copied, and the child may do what
    // its parent may.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(reader);
            let said = act();
            let code = i32::from(writer.write_all(said.as_bytes()).is_err());
            // SAFETY: `_exit` ends the process, and runs none of its parent's handlers.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut said = String::new();
            let read = reader.read_to_string(&mut said);
            let ended = waitpid(child, None)?;
            read?;
            match ended {
                WaitStatus::Exited(_, 0) => Ok(said),
                other => Err(io::Error::other(format!("{other:?}"))),
            }
        }
    }
}

/// Calls `act` in a process that is no child of this one, in a session of its own, without the descriptors that this
/// process inherited, and deaf to the signals by which programs are ended together. The process ends with `act`.
pub(super) fn detach(act: impl FnOnce()) -> io::Result<()> {
    // SAFETY: as in `rehearse`.
    match unsafe { fork() }? {
        ForkResult::Child => {
            // Only a child of the child returns from it.
            let code = match daemon(false, false) {
                Ok(()) => {
                    close_inherited();
                    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
                        // SAFETY: a signal that is ignored runs no code.
                        let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigIgn) };
                    }
                    i32::from(catch_unwind(AssertUnwindSafe(act)).is_err())
                }
                Err(_) => 1,
            };
            // SAFETY: as in `rehearse`.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(()),
            other => Err(io::Error::other(format!("{other:?}"))),
        },
    }
}

/// Calls `act` as [`detach`] does. The reader that `act` gets is at its end once no copy of the returned writer is
/// open.
pub(super) fn detach_until_closed(act: impl FnOnce(PipeReader)) -> io::Result<PipeWriter> {
    let (closed, open) = io::pipe()?;
    let mut open = Some(open);
    detach({
        let open = &mut open;
        move || {
            // The process that started this one has the only other.
            open.take();
            act(closed);
        }
    })?;
    open.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
}

/// Closes the descriptors that survive `exec`: this program's own do not.
fn close_inherited() {
    let own = fs::read_dir("/proc/self/fd").into_iter().flatten();
    let numbers = own.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    for number in numbers.filter(|number| *number > libc::STDERR_FILENO) {
        // SAFETY: the first call only reads a flag. A descriptor without it is not one of this program, so nothing here
        // uses it.
        unsafe {
            if libc::fcntl(number, libc::F_GETFD) == 0 {
                libc::close(number);
            }
        }
    }
}

/// Reports that the program cannot be started, and returns the shell's exit code for that.
fn not_started(program: &OsStr, error: &io::Error) -> u8 {
    output::complain("run", format_args!("cannot start {}: {error}", program.to_string_lossy()));
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

fn wait(mut child: Child, signals: &SignalFd) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let Some(info) = signals.read_signal()? else { continue };
        let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
        // The terminal signals the whole process group: the program has received it already.
        let of_terminal = info.ssi_code == libc::SI_KERNEL;
        if let Some(signal) = signal.filter(|signal| *signal != Signal::SIGCHLD && !of_terminal) {
            // If the program has ended meanwhile, the next iteration sees that.
            let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
