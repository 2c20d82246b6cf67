//! The reader of a running device's frames.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::geteuid;

use super::Snapshot;
use super::live::{CHALLENGE, SECRET};
use super::look::connect;
use super::window::FOR_FRAMES;
use roxie_base::descriptors::{Peer, peer_of};
use roxie_base::text::Foreign;
use roxie_base::threads::as_user;

/// Maximum time for a device to answer. A stopped one (`SIGSTOP`) does not answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum length of a refusal in bytes.
const LONGEST_REFUSAL: usize = 256;
/// First byte of a section header, with which the stream begins.
const SECTION_HEADER: u8 = 0x0a;

/// Why the frames of a device cannot be captured.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The process has ended, or its device is closed.
    #[error("process {pid} has ended, or closed its device")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// The process belongs to another user.
    #[error("process {} belongs to {peer}: only that user and root may capture its frames", peer.pid)]
    OtherUser {
        /// The process and its user.
        peer: Peer,
    },
    /// This program may not read the process's memory, and frames carry memory.
    #[error(
        "process {pid} shows its frames only to who may read its memory, which the kernel does not allow here ({source}): it has \
         capabilities that this program lacks, is in a PID namespace that cannot be seen from here, or programs may not trace others \
         (kernel.yama.ptrace_scope); root may in most cases"
    )]
    Unreadable {
        /// The process.
        pid: u32,
        /// The system's error.
        source: io::Error,
    },
    /// The process does not answer.
    #[error("process {pid} does not answer: it is stopped, or busy")]
    Silent {
        /// The process.
        pid: u32,
    },
    /// The process uses an older version of Roxie, which answered with a snapshot.
    #[error(
        "process {pid} has an older Roxie, whose frames cannot be captured: update its library or program, or start it with --capture"
    )]
    OtherVersion {
        /// The process.
        pid: u32,
    },
    /// The process refuses.
    #[error("process {pid}: {why}")]
    Refused {
        /// The process.
        pid: u32,
        /// The reason that it gives.
        why: Foreign,
    },
    /// A system call failed.
    #[error("process {pid}: {source}")]
    System {
        /// The process.
        pid: u32,
        /// The system's error.
        source: io::Error,
    },
}

/// A capture of another process's frames: a pcapng stream that ends with [`stop`](Attached::stop), with the process, or
/// with its device. Dropping it ends the capture.
///
/// The stream has blocks of interface statistics: how many frames were seen, and how many of these are missing because
/// the reader was slow. Unless the process was killed, the last block is one.
#[derive(Debug)]
pub struct Attached {
    stream: UnixStream,
    /// First byte of the stream, until it is read.
    first: Option<u8>,
}

/// Captures the frames of a device from now on, up to `snap_length` bytes of each (0: all). Frames are captured when
/// this returns.
///
/// # Errors
/// If the device is gone, or refuses: [`AttachError`].
pub fn attach(device: &Snapshot, snap_length: u32) -> Result<Attached, AttachError> {
    let pid = device.pid;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => AttachError::Gone { pid },
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AttachError::Silent { pid },
        _ => AttachError::System { pid, source },
    };
    let question = format!("{FOR_FRAMES}{snap_length}/");
    let connect = || connect(&device.socket, &question);
    let own = geteuid();
    // In a user namespace, a program sees root as any other user.
    let stream = match own.is_root() && device.uid != 0 {
        true => as_user(device.uid, connect).and_then(|connected| connected),
        false => connect(),
    }
    .map_err(failed)?;
    let peer = peer_of(stream.as_fd()).map_err(failed)?;
    match peer.uid {
        Some(uid) if uid == device.uid => {}
        // Another process has taken the name.
        Some(_) => return Err(AttachError::Gone { pid }),
        None => return Err(AttachError::OtherUser { peer }),
    }
    stream.set_nonblocking(false).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut first = first_byte(&stream).map_err(failed)?;
    if first == Some(CHALLENGE) {
        let mut address = [0; size_of::<u64>()];
        (&stream).read_exact(&mut address).map_err(failed)?;
        let address = u64::from_ne_bytes(address);
        let secret = secret_of(peer.pid, address, device.uid)
            .map_err(|source| AttachError::Unreadable { pid, source })?;
        (&stream).write_all(&secret).map_err(failed)?;
        first = first_byte(&stream).map_err(failed)?;
    }
    stream.set_read_timeout(None).map_err(failed)?;
    match first {
        Some(SECTION_HEADER) => Ok(Attached { stream, first }),
        // A snapshot comes with one byte of this value.
        Some(1) => Err(AttachError::OtherVersion { pid }),
        Some(byte) => Err(AttachError::Refused { pid, why: refusal(byte, &stream) }),
        None if !peer.is_own() && !own.is_root() => Err(AttachError::OtherUser { peer }),
        None => Err(AttachError::Gone { pid }),
    }
}

/// Reads the secret of a process, to show that the kernel allows that. Root without CAP_SYS_PTRACE, as in most
/// containers, reads it as the process's user.
fn secret_of(pid: u32, address: u64, user: u32) -> io::Result<[u8; SECRET]> {
    let read = || -> io::Result<[u8; SECRET]> {
        let mut secret = [0; SECRET];
        File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut secret, address)?;
        Ok(secret)
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && geteuid().is_root() && user != 0 => {
            as_user(user, read)?
        }
        read => read,
    }
}

/// Returns the user of a process, if there is such a process.
pub fn user_of(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|process| process.uid())
}

fn first_byte(mut stream: &UnixStream) -> io::Result<Option<u8>> {
    let mut byte = [0];
    loop {
        match stream.read(&mut byte) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(Errno::ECONNRESET as i32) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Returns the text of a refusal, which the process may have chosen.
fn refusal(first: u8, stream: &UnixStream) -> Foreign {
    let mut text = vec![first];
    // A program that sends no end is not waited for.
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.take(LONGEST_REFUSAL as u64).read_to_end(&mut text);
    text.as_slice().into()
}

impl Attached {
    /// Ends the capture. The rest of the stream can be read.
    ///
    /// # Errors
    /// Those of `shutdown`.
    pub fn stop(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Returns another handle to the same stream, to [`stop`](Self::stop) it from another thread.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Attached> {
        Ok(Attached { stream: self.stream.try_clone()?, first: None })
    }
}

impl From<UnixStream> for Attached {
    /// Takes a connection over which a capture comes.
    fn from(stream: UnixStream) -> Attached {
        Attached { stream, first: None }
    }
}

impl Read for Attached {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (Some(byte), Some(place)) = (self.first, buffer.first_mut()) else {
            return self.stream.read(buffer);
        };
        *place = byte;
        self.first = None;
        Ok(1)
    }
}

impl AsFd for Attached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
