//! Reading what devices tell of themselves.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};

use super::Snapshot;
use super::window::NAME;
use crate::descriptors::receive_until;

/// How long a device may take to answer. One that is stopped (`SIGSTOP`) does not answer at all.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
/// The longest answer that is read, in bytes: some 100 times that of a device with a thousand QPs.
const LONGEST: u64 = 1 << 28;

/// What there was to be seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Those that answered, by process.
    pub snapshots: Vec<Snapshot>,
    /// Processes of this user that did not answer in time: they are stopped, or of another version.
    pub silent: Vec<u32>,
}

/// Asks all devices of the calling thread's network namespace that this process may ask: those of its user, all of them if it is root.
/// Waits half a second for those that do not answer, for all of them together.
///
/// # Errors
/// If the list of sockets cannot be read: there is no `/proc`.
pub fn snapshots() -> io::Result<Look> {
    let until = Instant::now() + PATIENCE;
    // All are asked before the first answer is waited for.
    let asked: Vec<_> = names()?.iter().filter_map(|name| ask(name)).collect();
    let mut look = Look::default();
    for reader in asked {
        let pid = getsockopt(&reader, sockopt::PeerCredentials).map_or(0, |who| who.pid().cast_unsigned());
        match answer(reader.as_fd(), until) {
            Ok(Some(mut snapshot)) => {
                if pid != 0 {
                    snapshot.pid = pid;
                }
                look.snapshots.push(snapshot);
            }
            // It has ended, or is somebody else's.
            Ok(None) => {}
            Err(_) => look.silent.push(pid),
        }
    }
    look.snapshots.sort_by_key(|snapshot| snapshot.pid);
    Ok(look)
}

pub(super) fn names() -> io::Result<Vec<String>> {
    let table = fs::read_to_string("/proc/thread-self/net/unix")?;
    let listens = |line: &str| {
        let name = line.rsplit_once(" @")?.1;
        name.starts_with(NAME).then(|| name.to_owned())
    };
    let mut all: Vec<String> = table.lines().filter_map(listens).collect();
    // Connections have the name of the listener that they came to.
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

fn ask(name: &str) -> Option<UnixStream> {
    let reader = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?);
    // Nobody is there any more.
    reader.ok()
}

/// `None`: the other end closed without an answer.
pub(super) fn answer(reader: BorrowedFd<'_>, until: Instant) -> io::Result<Option<Snapshot>> {
    let file = receive_until(reader, until)?.and_then(|fds| fds.into_iter().next());
    file.map(|file| read(&File::from(file))).transpose()
}

fn read(file: &File) -> io::Result<Snapshot> {
    let length = file.metadata()?.len().min(LONGEST);
    let mut text = vec![0; length as usize];
    file.read_exact_at(&mut text, 0)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}
