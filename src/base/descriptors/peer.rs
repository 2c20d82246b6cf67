//! The process and the user at the other end of a Unix socket.
//!
//! The kernel gives a user without a number in the asking process's user namespace the overflow number, 65534
//! (`/proc/sys/kernel/overflowuid`). Most containers have such a namespace, and so has the one that `roxie run` makes
//! for a user without privilege. There, 65534 may be any user, also for a process that has this number itself. Then the
//! launcher, which has left a process in the first namespace, is asked ([`credentials`](super::credentials)), or the
//! kernel, which since Linux 6.11 says whether the peer is in the same user namespace. Without an answer the user is
//! unknown, and has no rights.

#![allow(unsafe_code)]

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::stat::fstat;
use nix::unistd::geteuid;

use super::credentials;

/// `SO_PEERPIDFD` of `asm-generic/socket.h`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;
/// `PIDFD_GET_USER_NAMESPACE` of `linux/pidfd.h`, since Linux 6.11.
const PIDFD_GET_USER_NAMESPACE: libc::Ioctl = 0xff09;
/// The overflow number, unless the system says otherwise.
const OVERFLOW: u32 = 65534;
/// User IDs that a user namespace can map: all but -1, which is no user.
const ALL_USERS: u64 = u32::MAX as u64;

/// A process at the time when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process ID; 0 if the process has none in this PID namespace.
    pub pid: u32,
    /// Effective user ID. `None`: this process's user namespace cannot tell the user from others.
    pub uid: Option<u32>,
}

impl Peer {
    /// True for the user of this process.
    pub fn is_own(self) -> bool {
        self.uid == Some(geteuid().as_raw())
    }

    /// True for the user of this process, and for root.
    pub fn is_own_or_root(self) -> bool {
        self.is_own() || self.uid == Some(0)
    }
}

/// The user, for messages.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uid {
            Some(uid) => write!(f, "user {uid}"),
            None => {
                f.write_str("a user whom this user namespace does not tell from others (user_namespaces(7))")
            }
        }
    }
}

/// Returns the process and the user at the other end of a Unix socket (`SO_PEERCRED`).
///
/// # Errors
/// Those of `getsockopt`.
pub fn peer_of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let credentials = getsockopt(&socket, sockopt::PeerCredentials)?;
    let uid = credentials.uid();
    let is_known = || match credentials::query(socket) {
        Some(answer) => answer.uid == Some(uid),
        None => shares_user_namespace(socket),
    };
    let is_certain = uid != overflow_uid() || maps_all_users() || is_known();
    Ok(Peer { pid: credentials.pid().cast_unsigned(), uid: is_certain.then_some(uid) })
}

/// Returns the number that stands for all users without a number in a user namespace.
pub fn overflow_uid() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(OVERFLOW)
}

/// True if each user has a number in this process's user namespace, as in the first one.
fn maps_all_users() -> bool {
    maps_all(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
}

/// Parses a map: lines of first ID inside, first ID outside, count. The kernel lets no two overlap.
fn maps_all(map: &str) -> bool {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<u64>() >= ALL_USERS
}

/// True if the kernel says that the peer is in this process's user namespace. The kernel answers only to a process that
/// may trace the peer (`PTRACE_MODE_READ_FSCREDS`). A user that may enter the namespace may do everything in it.
fn shares_user_namespace(socket: BorrowedFd<'_>) -> bool {
    let identity = |fd: OwnedFd| fstat(&fd).map(|status| (status.st_dev, status.st_ino)).ok();
    let theirs = user_namespace_of(socket).and_then(identity);
    let own = fs::File::open("/proc/self/ns/user").ok().and_then(|file| identity(file.into()));
    theirs.is_some() && theirs == own
}

fn user_namespace_of(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut number: libc::c_int = -1;
    let mut size = size_of_val(&number) as libc::socklen_t;
    let (place, length) = (&raw mut number, &raw mut size);
    // SAFETY: `number` is an int of the given size, and both places outlive the call.
    let got =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, place.cast(), length) };
    if got != 0 || number < 0 {
        return None;
    }
    // SAFETY: the call has made the descriptor for this process, and nothing else owns it.
    let process = unsafe { OwnedFd::from_raw_fd(number) };
    // SAFETY: the request takes no argument.
    let namespace = unsafe { libc::ioctl(process.as_raw_fd(), PIDFD_GET_USER_NAMESPACE, 0) };
    // SAFETY: as above.
    (namespace >= 0).then(|| unsafe { OwnedFd::from_raw_fd(namespace) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn maps_without_a_user_are_recognized() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(maps_all("0 0 1000\n1000 1000 4294966295\n"));
        for partial in ["", "65534 65534 1\n", "0 100000 65536\n", "0 0 4294967294\n", "junk\n0 0\n"] {
            assert!(!maps_all(partial), "{partial:?}");
        }
    }

    #[test]
    fn own_process_is_a_known_peer() {
        let (socket, _other) = UnixStream::pair().expect("two sockets");
        let peer = peer_of(socket.as_fd()).expect("a Unix socket");
        assert_eq!((peer.pid, peer.uid), (std::process::id(), Some(geteuid().as_raw())));
        assert!(peer.is_own() && peer.is_own_or_root());
    }

    #[test]
    fn unknown_user_is_nobody_here() {
        let unknown = Peer { pid: 1, uid: None };
        assert!(!unknown.is_own() && !unknown.is_own_or_root());
        let own = geteuid().as_raw();
        let other = Peer { pid: 1, uid: Some(own + 1) };
        assert!(!other.is_own() && !other.is_own_or_root());
        assert!(Peer { pid: 1, uid: Some(0) }.is_own_or_root());
    }

    #[test]
    fn kernel_tells_the_namespace_of_a_peer() {
        let (socket, _other) = UnixStream::pair().expect("two sockets");
        match user_namespace_of(socket.as_fd()) {
            Some(_) => assert!(shares_user_namespace(socket.as_fd())),
            None => println!("SKIP kernel_tells_the_namespace_of_a_peer: Linux before 6.11"),
        }
    }
}
