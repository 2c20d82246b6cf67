//! Errors: an errno for the program, and for the user a line on standard error with the cause.
//!
//! `ROXIE_LOG=info` prints the lines, each once. Without it, only errors of the whole device are printed. If a launcher
//! provides an event log (`ROXIE_EVENTS`), every error is written to it, each time.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::ErrorKind;
use std::sync::{LazyLock, Mutex};

use roxie::host::{DeviceError, EventLog, OpenError};
use roxie::port::udp::UdpError;
use roxie::port::xdp::XdpError;
use roxie::shared::PostError;
use roxie::text::Plain;

use crate::base::cancellation::Uncancelled;
use crate::base::object::Errno;

/// Maximum number of distinct lines remembered as printed.
const REMEMBERED: usize = 1024;

static WANTED: LazyLock<bool> = LazyLock::new(|| {
    std::env::var("ROXIE_LOG").is_ok_and(|level| matches!(&*level, "info" | "debug" | "trace"))
});
/// Event log, which the launcher reads after the program has failed.
static EVENTS: LazyLock<Option<EventLog>> = LazyLock::new(|| {
    let opened = EventLog::open(std::env::var_os("ROXIE_EVENTS")?.as_ref());
    // Any other error: the launcher has ended.
    if let Err(error) = &opened
        && error.kind() == ErrorKind::InvalidData
    {
        eprintln!("roxie: ROXIE_EVENTS: {}", Plain(error));
    }
    opened.ok()
});
static KNOWN: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// Logs the cause of a failed call; prints it if `ROXIE_LOG` asks for that.
pub(crate) fn info(call: &str, why: impl Display) {
    note(call, why, *WANTED);
}

/// Logs and prints the cause, once.
pub(crate) fn print(call: &str, why: impl Display) {
    note(call, why, true);
}

fn note(call: &str, why: impl Display, aloud: bool) {
    let _uncancelled = Uncancelled::new();
    if !aloud && EVENTS.is_none() {
        return;
    }
    let line = format!("{call}: {why}");
    if let Some(log) = &*EVENTS {
        log.note(&line, aloud);
    }
    if aloud && is_new(&line) {
        eprintln!("roxie: {}", Plain(line));
    }
}

/// Returns true if the line has not been printed yet.
fn is_new(line: &str) -> bool {
    // The lock may be held by a thread that a forked child does not have, so it is only tried. At worst, a line is
    // printed twice.
    let Ok(mut known) = KNOWN.try_lock() else { return true };
    known.len() < REMEMBERED && known.insert(line.to_owned())
}

/// Logs an error of this library, and returns it.
pub(crate) fn refuse<T>(call: &str, errno: Errno, why: impl Display) -> Result<T, Errno> {
    info(call, why);
    Err(errno)
}

/// Returns a function that logs a device error and converts it to an errno.
pub(crate) fn device(call: &'static str) -> impl Fn(DeviceError) -> Errno {
    move |error| {
        match &error {
            // Without the interface, nothing works at all.
            DeviceError::Claim(_) => print(call, &error),
            _ => info(call, &error),
        }
        errno_of(&error)
    }
}

/// Returns a function that logs a post error and converts it to an errno.
pub(crate) fn post(call: &'static str) -> impl Fn(PostError) -> Errno {
    move |error| {
        // Not logged: programs fill queues on purpose.
        if !matches!(error, PostError::QueueFull { .. }) {
            info(call, error);
        }
        errno_of_post(&error)
    }
}

/// Returns the errno of an interface that could not be opened.
pub(crate) fn errno_of_open(error: &OpenError) -> Errno {
    match error {
        OpenError::Xdp(XdpError::ProgramAttached { .. } | XdpError::QueueBusy { .. })
        | OpenError::Udp(UdpError::InUse { .. }) => libc::EBUSY,
        OpenError::Xdp(XdpError::NotPermitted { .. }) => libc::EPERM,
        OpenError::Xdp(XdpError::LockedMemory { .. }) => libc::ENOMEM,
        OpenError::Device(error) => errno_of(error),
        _ => libc::ENODEV,
    }
}

fn errno_of(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Control(error) => error.errno(),
        DeviceError::System { source, .. } => source.raw_os_error().unwrap_or(libc::ENOMEM),
        DeviceError::Claim(error) => errno_of_open(error),
        DeviceError::Resolve(_) => libc::EHOSTUNREACH,
        DeviceError::Memory(_) => libc::EFAULT,
        DeviceError::Post(error) => errno_of_post(error),
        _ => libc::EINVAL,
    }
}

fn errno_of_post(error: &PostError) -> Errno {
    match error {
        PostError::QueueFull { .. } | PostError::TooMuchInline { .. } => libc::ENOMEM,
        PostError::DeviceFatal => libc::EIO,
        _ => libc::EINVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie::nic::ControlError;

    #[test]
    fn errors_map_to_the_errno_that_programs_expect() {
        let full = || PostError::QueueFull { outstanding: 4, capacity: 4 };
        let control = DeviceError::Control;
        for (error, errno) in [
            (control(ControlError::DeviceFatal), libc::EIO),
            (control(ControlError::NoRawPackets), libc::EOPNOTSUPP),
            (DeviceError::Post(full()), libc::ENOMEM),
            (DeviceError::Post(PostError::DeviceFatal), libc::EIO),
        ] {
            assert_eq!(errno_of(&error), errno, "{error}");
        }
        assert_eq!(errno_of_post(&PostError::TooMuchInline { given: 65, max: 64 }), libc::ENOMEM);
        assert_eq!(errno_of_post(&full()), libc::ENOMEM);
        assert_eq!(errno_of_post(&PostError::DeviceFatal), libc::EIO);
    }
}
