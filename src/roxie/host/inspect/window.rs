//! The socket at which a device answers readers.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::MsgFlags;

use super::Snapshot;
use super::live::LiveCapture;
use crate::host::state::State;
use roxie_base::descriptors::{Peer, children, listen, peer_of, send, send_with};

/// Prefix of the socket's name.
pub(super) const NAME: &str = "roxie/see/";
/// Prefix of the name of a reader's socket that asks for the counters only. Counters cost far less than objects, so
/// they may be read often.
pub(super) const FOR_COUNTERS: &str = "roxie/ask/counters/";
/// Prefix of the name of a reader's socket that asks for the device's frames. The number of bytes to keep of each
/// follows.
pub(super) const FOR_FRAMES: &str = "roxie/ask/proved-frames/";
/// The same of a release whose readers do not show that they may read this process's memory.
const FOR_FRAMES_UNPROVED: &str = "roxie/ask/frames/";
/// Answer to such a reader.
const UPDATE: &str = "it shows its frames only to who may read its memory: update the program that captures";
/// Number of readers answered in a row before the thread does other work.
const AT_ONCE: usize = 16;

/// The part of a snapshot that a reader asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// Counters and objects.
    Everything,
    /// Counters only.
    Counters,
    /// Frames from now on, this number of bytes of each at most; 0: whole ones.
    Frames(u32),
    /// Frames, by a reader of an older release.
    FramesUnproved,
}

impl Question {
    /// Returns the question of a reader, from the name of its socket.
    fn of(reader: &SocketAddr) -> Question {
        let name =
            reader.as_abstract_name().and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default();
        if name.starts_with(FOR_COUNTERS) {
            return Question::Counters;
        }
        let length = name.strip_prefix(FOR_FRAMES).and_then(|rest| rest.split('/').next()?.parse().ok());
        match length {
            Some(length) => Question::Frames(length),
            None if name.starts_with(FOR_FRAMES_UNPROVED) => Question::FramesUnproved,
            None => Question::Everything,
        }
    }
}

/// The listening socket. A reader gets a file in memory, so answering never blocks, whatever its length.
#[derive(Debug)]
pub(in crate::host) struct Window(UnixListener);

impl Window {
    /// Opens the socket, under a name that is unique in the network namespace.
    pub(in crate::host) fn open() -> io::Result<Window> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        loop {
            // Processes of different PID namespaces may have the same number.
            let name = format!("{NAME}{pid}/{}", COUNT.fetch_add(1, Relaxed));
            match listen(&name) {
                Ok(listener) => {
                    children::keep_from([listener.as_raw_fd()]);
                    return Ok(Window(listener));
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Readable when a reader connects.
    pub(in crate::host) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Answers readers that have connected. False: the system is out of descriptors or memory for the next one, which
    /// waits.
    pub(in crate::host) fn answer(&self, device: &State, capture: &mut LiveCapture) -> bool {
        for _ in 0..AT_ONCE {
            let (reader, name) = match self.0.accept() {
                Ok(accepted) => accepted,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            };
            // A reader that is gone gets no answer, nor does any if memory is short.
            if !may_inspect(&reader) {
                continue;
            }
            let snapshot = match Question::of(&name) {
                Question::Everything => device.snapshot(),
                Question::Counters => device.counted(),
                Question::Frames(snap_length) => {
                    capture.challenge(reader, snap_length);
                    continue;
                }
                Question::FramesUnproved => {
                    let _ = send_with(reader.as_fd(), UPDATE.as_bytes(), &[], MsgFlags::MSG_DONTWAIT);
                    continue;
                }
            };
            let _ = file_of(&snapshot).and_then(|file| send(reader.as_fd(), &[file.as_fd()]));
        }
        true
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        children::forget([self.0.as_raw_fd()]);
    }
}

/// True for the same user, and for root.
fn may_inspect(reader: &UnixStream) -> bool {
    peer_of(reader.as_fd()).is_ok_and(Peer::is_own_or_root)
}

fn file_of(snapshot: &Snapshot) -> io::Result<File> {
    let mut file = File::from(memfd_create("roxie-snapshot", MFdFlags::MFD_CLOEXEC)?);
    let text = serde_json::to_vec(snapshot).map_err(io::Error::other)?;
    file.write_all(&text)?;
    Ok(file)
}
