//! Reading the snapshots of devices.
//!
//! Any process may create a socket with such a name. A reader therefore trusts only the kernel's word on the user and
//! process of a socket, and bounds the rest: one deadline for all answers, their length, and the number of their
//! objects. All text in a snapshot is [`Foreign`](roxie_base::text::Foreign). What a snapshot says about other
//! processes counts only if it is root's or the reader's own user's.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use nix::unistd::geteuid;
use serde::Deserialize;

use super::Snapshot;
use super::window::NAME;
use crate::host::snapshot::SNAPSHOT_PROTOCOL;
use roxie_base::descriptors::{Peer, connect_now, overflow_uid, peer_of, receive_until};
use roxie_base::protocol::OtherVersion;
use roxie_base::text::process_name;
use roxie_base::threads::as_user;

/// Maximum time for all devices together to answer. A stopped one (`SIGSTOP`) does not answer.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum length of an answer in bytes. A device with 65,536 QPs and as many regions has some 20 MiB.
pub(super) const LONGEST: u64 = 32 << 20;
/// Limits for devices of users other than the reader and root: their number, and of their answers the length in bytes,
/// the total length, and the total number of objects and counters.
pub(super) const OTHERS: usize = 256;
pub(super) const LONGEST_OF_OTHER: u64 = 1 << 20;
const LONGEST_OF_OTHERS: u64 = 16 << 20;
const ENTRIES_OF_OTHERS: usize = 1 << 16;

/// The result of reading all devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Snapshots of the devices that answered, sorted by process ID.
    pub snapshots: Vec<Snapshot>,
    /// Processes that did not answer in time, or gave an invalid answer.
    pub silent: Vec<u32>,
    /// Processes with an answer of a version that this reader does not understand.
    pub of_other_versions: Vec<(u32, OtherVersion)>,
    /// Number of other users' devices that were not read: they are too many, or their answers too long or invalid.
    pub omitted: usize,
}

/// A device with an outstanding answer.
struct Asked {
    name: String,
    reader: UnixStream,
    whose: Peer,
}

/// Reads all devices in the calling thread's network namespace that this process may read: devices of its user and of
/// root, or all if it is root. Waits up to 0.5 s for all devices together.
///
/// # Errors
/// If the list of sockets cannot be read, for want of `/proc`.
pub fn snapshots() -> io::Result<Look> {
    let until = Instant::now() + PATIENCE;
    let is_root = geteuid().is_root();
    // Ask all devices before waiting for the first answer.
    let (mut queried, mut others) = (Vec::new(), Vec::new());
    let mut result = Look::default();
    for name in names()? {
        // A socket that does not accept immediately is no device, or its process is ending. Its user is unknown.
        let Ok(reader) = connect_now(None, &name) else { continue };
        let Ok(whose) = peer_of(reader.as_fd()) else { continue };
        match whose.is_own_or_root() {
            true => queried.push(Asked { name, reader, whose }),
            false if is_root && others.len() < OTHERS => {
                others.push(Asked { name, reader, whose }.queried_by_its_user())
            }
            false => result.omitted += usize::from(is_root),
        }
    }
    queried
        .into_iter()
        .for_each(|queried| result.add(&queried, answer(queried.reader.as_fd(), until, LONGEST)));
    let mut allowance = Allowance { bytes: LONGEST_OF_OTHERS, entries: ENTRIES_OF_OTHERS };
    for queried in others {
        let answered = answer(queried.reader.as_fd(), until, allowance.bytes.min(LONGEST_OF_OTHER));
        result.add(&queried, answered.and_then(|answered| allowance.take(answered)));
    }
    result.snapshots.sort_by_key(|snapshot| snapshot.pid);
    Ok(result)
}

/// What the answers of other users may still have.
struct Allowance {
    bytes: u64,
    entries: usize,
}

impl Allowance {
    /// Counts an answer, or refuses it.
    fn take(&mut self, answered: Option<(Snapshot, u64)>) -> io::Result<Option<(Snapshot, u64)>> {
        let Some((snapshot, length)) = &answered else { return Ok(None) };
        self.bytes = self.bytes.saturating_sub(*length);
        let remaining = self.entries.checked_sub(snapshot.entries());
        self.entries = remaining.ok_or_else(|| io::Error::other("too many objects of other users"))?;
        Ok(answered)
    }
}

impl Asked {
    /// Asks as the device's own user: in a user namespace (`roxie run` makes one for a user without privilege), a
    /// program sees root as any other user, and tells it nothing.
    fn queried_by_its_user(self) -> Asked {
        let Some(uid) = self.whose.uid else { return self };
        let again = as_user(uid, || connect_now(None, &self.name)).and_then(|connected| connected);
        match again.and_then(|reader| Ok((peer_of(reader.as_fd())?, reader))) {
            Ok((whose, reader)) if whose == self.whose => Asked { reader, ..self },
            _ => self,
        }
    }
}

impl Look {
    fn add(&mut self, asked: &Asked, answered: io::Result<Option<(Snapshot, u64)>>) {
        let (pid, is_trusted) = (asked.whose.pid, asked.whose.is_own_or_root());
        match answered {
            Ok(Some((snapshot, _))) => self.snapshots.push(known(snapshot, &asked.name, asked.whose)),
            // The process has ended, or does not answer this user.
            Ok(None) => {}
            Err(error) if other_version(&error).is_some() => {
                self.of_other_versions.extend(other_version(&error).map(|other| (pid, other)));
            }
            Err(error) if is_trusted || error.kind() == io::ErrorKind::TimedOut => self.silent.push(pid),
            Err(_) => self.omitted += 1,
        }
    }
}

/// Replaces the identity that a snapshot claims by the kernel's. `socket` is the name of its device's socket.
pub(super) fn known(mut snapshot: Snapshot, socket: &str, whose: Peer) -> Snapshot {
    let (pid, is_trusted) = (whose.pid, whose.is_own_or_root());
    socket.clone_into(&mut snapshot.socket);
    snapshot.uid = whose.uid.unwrap_or_else(overflow_uid);
    // 0: the process has no number in the reader's PID namespace.
    if pid != 0 || !is_trusted {
        snapshot.pid = pid;
    }
    if !is_trusted {
        snapshot.name = process_name(pid);
        // Other processes are not for a stranger to name, nor a place in the group of the reader's user.
        snapshot.clients.clear();
        snapshot.slot = None;
    }
    snapshot
}

/// Connects to a device by a socket whose name begins with `question`. Does not block.
pub(super) fn connect(device: &str, question: &str) -> io::Result<UnixStream> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let reader = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    loop {
        // Processes of different PID namespaces may have the same number.
        let name = format!("{question}{}/{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        match bind(reader.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?) {
            Ok(()) => break,
            Err(Errno::EADDRINUSE) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    connect_now(Some(reader), device)
}

pub(super) fn names() -> io::Result<Vec<String>> {
    let table = fs::read("/proc/thread-self/net/unix")?;
    // A name may contain any bytes.
    let table = String::from_utf8_lossy(&table);
    let listens = |line: &str| {
        let name = line.rsplit_once(" @")?.1;
        name.starts_with(NAME).then(|| name.to_owned())
    };
    let mut all: Vec<String> = table.lines().filter_map(listens).collect();
    // Accepted connections have the name of their listener.
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Reads an answer of up to `longest` bytes, and returns it with its length. `None`: the peer closed without an answer.
///
/// # Errors
/// `TimedOut` if none has come by `until`; another error if the answer is invalid.
pub(super) fn answer(
    reader: BorrowedFd<'_>,
    until: Instant,
    longest: u64,
) -> io::Result<Option<(Snapshot, u64)>> {
    let file = receive_until(reader, until)?.and_then(|fds| fds.into_iter().next());
    file.map(|file| read(&File::from(file), longest)).transpose()
}

/// Returns the version of an answer that this reader does not understand.
fn other_version(error: &io::Error) -> Option<OtherVersion> {
    error.get_ref()?.downcast_ref().copied()
}

/// The part of a snapshot that all versions have.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Version {
    version: u32,
}

fn read(file: &File, longest: u64) -> io::Result<(Snapshot, u64)> {
    // Only files in memory have seals. Reading another kind of file might block.
    fcntl(file, FcntlArg::F_GET_SEALS)?;
    let length = file.metadata()?.len();
    if length > longest {
        return Err(io::Error::other(format!("an answer of {length} bytes, {longest} at most")));
    }
    let mut text = vec![0; length as usize];
    file.read_exact_at(&mut text, 0)?;
    let Version { version } = serde_json::from_slice(&text).map_err(io::Error::other)?;
    SNAPSHOT_PROTOCOL.check("this program", "the process", version).map_err(io::Error::other)?;
    Ok((serde_json::from_slice(&text).map_err(io::Error::other)?, length))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::unistd::ftruncate;

    use super::*;
    use crate::host::inspect::{ClientEntry, QpEntry};
    use roxie_base::descriptors::send;

    fn answered(file: &impl AsFd, longest: u64) -> io::Result<Option<(Snapshot, u64)>> {
        let (here, there) = UnixStream::pair().expect("two sockets");
        send(there.as_fd(), &[file.as_fd()]).expect("room");
        answer(here.as_fd(), Instant::now() + Duration::from_secs(10), longest)
    }

    fn in_memory(text: &[u8]) -> File {
        let mut file = File::from(memfd_create("answer", MFdFlags::MFD_CLOEXEC).expect("memory"));
        file.write_all(text).expect("memory");
        file
    }

    #[test]
    fn long_answer_is_refused_unread() {
        let text = serde_json::to_vec(&Snapshot::default()).expect("JSON");
        let file = in_memory(&text);
        let (_, length) = answered(&file, text.len() as u64).expect("short enough").expect("an answer");
        assert_eq!(length, text.len() as u64);
        assert!(answered(&file, length - 1).is_err());
        // The hole costs its owner no memory, but would cost the reader its length.
        ftruncate(&file, 1 << 40).expect("a hole");
        assert!(answered(&file, LONGEST).expect_err("long").to_string().contains("at most"));
    }

    #[test]
    fn answers_of_strangers_are_bounded_together() {
        let of = |count: usize| {
            let qps = vec![QpEntry::default(); count];
            Some((Snapshot { qps, ..Snapshot::default() }, 1000))
        };
        let mut allowance = Allowance { bytes: 1500, entries: 10 };
        assert!(allowance.take(of(7)).is_ok_and(|taken| taken.is_some()));
        assert!(allowance.take(of(4)).is_err(), "4 of 3");
        assert_eq!((allowance.bytes, allowance.entries), (0, 3));
        assert!(allowance.take(of(3)).is_ok() && allowance.take(of(1)).is_err());
    }

    #[test]
    fn answers_of_other_versions_are_read_or_named() {
        let read = |text: &str| answered(&in_memory(text.as_bytes()), LONGEST);
        for known in [r#"{"pid":7,"new":[1]}"#, r#"{"version":1,"pid":7,"qps":[{"qpn":9}]}"#] {
            let (snapshot, _) = read(known).expect("understood").expect("an answer");
            assert_eq!(snapshot.pid, 7);
        }
        let error = read(r#"{"version":2,"pid":"seven"}"#).expect_err("another version");
        let message = other_version(&error).expect("named").to_string();
        assert!(message.contains("version 2") && message.ends_with("update this program"), "{message}");
    }

    #[test]
    fn answer_in_no_memory_file_is_refused() {
        // A read would block until there is a writer.
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        assert!(answered(&reader, LONGEST).is_err());
    }

    #[test]
    fn kernel_says_whose_a_snapshot_is() {
        let clients = vec![ClientEntry { pid: 1, uid: 0, name: "systemd".into(), ..ClientEntry::default() }];
        let forged = || Snapshot {
            pid: 1,
            uid: 7,
            name: "sshd".into(),
            slot: Some(3),
            clients: clients.clone(),
            ..Snapshot::default()
        };
        let (own, other_user) = (geteuid().as_raw(), geteuid().as_raw() + 1);
        let known = |snapshot, pid, uid| known(snapshot, "", Peer { pid, uid: Some(uid) });
        let seen = known(forged(), 4_000_000, own);
        assert_eq!((seen.pid, seen.uid, seen.name.as_received()), (4_000_000, own, "sshd"));
        assert_eq!((seen.clients.len(), seen.slot), (1, Some(3)));
        let seen = known(forged(), 0, own);
        assert_eq!(seen.pid, 1, "of another PID namespace, but of this user");
        for pid in [0, 4_000_000] {
            let seen = known(forged(), pid, other_user);
            assert_eq!(
                (seen.pid, seen.uid, seen.name.as_received()),
                (pid, other_user, ""),
                "no such process"
            );
            assert_eq!((seen.clients.len(), seen.slot), (0, None), "what it says of others");
        }
        let seen = known(forged(), std::process::id(), other_user);
        assert_ne!(seen.name, "sshd");
    }
}
