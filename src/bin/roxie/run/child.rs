//! The program, while it runs: signals go on to it, and it decides how we end.

#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::failure::Failure;

/// Signals that are the program's.
const FORWARDED: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// Runs a program to its end. Returns its exit code, as shells have it.
pub(super) fn run(mut command: Command, program: &OsStr) -> Result<u8, Failure> {
    let mut mask: SigSet = FORWARDED.into_iter().collect();
    mask.add(Signal::SIGCHLD);
    // From here on signals wait for the loop below. The program starts with the mask that we were given.
    let before = SigSet::thread_get_mask().map_err(|e| Failure::Run(format!("the signal mask: {e}")))?;
    let restore = move || Ok(before.thread_set_mask()?);
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
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

/// Does something in a process of its own, which it may change as it likes, and returns what it says of it.
pub(super) fn rehearse(act: impl FnOnce() -> String) -> io::Result<String> {
    let (mut reader, mut writer) = io::pipe()?;
    // SAFETY: `roxie run` has one thread when it prepares: nobody else's lock is copied, and the child may do what its parent may.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(reader);
            let said = act();
            let code = i32::from(writer.write_all(said.as_bytes()).is_err());
            // SAFETY: ends the process, and runs nothing of its parent's on the way.
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

/// As shells have it.
fn not_started(program: &OsStr, error: &io::Error) -> u8 {
    eprintln!("roxie run: cannot start {}: {error}", program.to_string_lossy());
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

fn wait(mut child: Child, signals: &SignalFd) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let Some(info) = signals.read_signal()? else { continue };
        let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
        // What the terminal sends goes to the whole process group: the program has it already.
        let of_terminal = info.ssi_code == libc::SI_KERNEL;
        if let Some(signal) = signal.filter(|signal| *signal != Signal::SIGCHLD && !of_terminal) {
            // It may have ended meanwhile; then the next look shows it.
            let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
