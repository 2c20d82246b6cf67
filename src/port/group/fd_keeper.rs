//! Descriptors that outlive their processes: they stay in flight in a Unix socket that every member holds.
//!
//! A reuseport group numbers its sockets in the order of binding. Closing one moves the last socket to its place, so no
//! socket may be closed while the group exists, even if its process ends. A descriptor sent over a Unix socket stays
//! open while its message is queued. `MSG_PEEK` duplicates the descriptors of a message and leaves it queued. A message
//! that is never received therefore keeps its descriptors open as long as any process holds the socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, socketpair};

use crate::udp::sys::set_int;
use roxie_base::descriptors::{receive, send};

/// Keeps descriptors open across the end of processes. See the module's page.
#[derive(Debug)]
pub(super) struct FdKeeper {
    /// Receiving end, where the messages of one byte stay queued.
    pub(super) keep: OwnedFd,
    /// Sending end.
    pub(super) add: OwnedFd,
}

impl FdKeeper {
    /// Makes an empty `FdKeeper`.
    pub(super) fn new() -> io::Result<FdKeeper> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (keep, add) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
        Ok(FdKeeper { keep, add })
    }

    /// Appends a message with these descriptors. Caller must hold the roster.
    pub(super) fn push(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.add.as_fd(), fds)
    }

    /// Returns duplicates of the `index`-th message's descriptors; `None` if there are fewer messages. Caller must hold
    /// the roster: the peek offset belongs to the socket, which all members share.
    pub(super) fn peek(&self, index: usize) -> io::Result<Option<Vec<OwnedFd>>> {
        let offset = i32::try_from(index).map_err(io::Error::other)?;
        set_int(self.keep.as_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, offset)?;
        match receive(self.keep.as_fd(), MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn kept_descriptors_can_be_taken_repeatedly() {
        let fd_keeper = FdKeeper::new().unwrap();
        let mut local = Vec::new();
        for _ in 0..20 {
            let (a, b) = UnixStream::pair().unwrap();
            fd_keeper.push(&[b.as_fd(), b.as_fd()]).unwrap();
            local.push(a);
        }
        for round in 0..3 {
            for (index, local) in local.iter_mut().enumerate().rev() {
                let fds = fd_keeper.peek(index).unwrap().unwrap();
                assert_eq!(fds.len(), 2);
                let mut remote = UnixStream::from(fds.into_iter().next().unwrap());
                local.write_all(&[index as u8 + round]).unwrap();
                let mut byte = [0];
                remote.read_exact(&mut byte).unwrap();
                assert_eq!(byte, [index as u8 + round]);
            }
        }
        assert!(fd_keeper.peek(local.len()).unwrap().is_none());
        // Dropping it closes them.
        drop(fd_keeper);
        assert_eq!(local[3].read(&mut [0]).unwrap(), 0);
    }
}
