//! Descriptors that outlive their processes: they wait in a Unix socket that every member holds, and nobody takes them out.
//!
//! The sockets of a group have their places by the order in which they were bound, and a place is lost when a socket is closed: the
//! last one moves there. So none may be closed while the group exists, whoever of it dies. What is sent over a Unix socket
//! stays open while it is under way. A look (`MSG_PEEK`) duplicates the descriptors of a message and leaves it where it is, so a message that is
//! never taken keeps its descriptors for as long as anybody holds the socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, socketpair};

use super::super::sys::set_int;
use crate::descriptors::{receive, send};

/// See the module's page.
#[derive(Debug)]
pub(super) struct Ark {
    /// Where messages wait, each of one byte.
    pub(super) keep: OwnedFd,
    /// Where they are put in.
    pub(super) add: OwnedFd,
}

impl Ark {
    /// An empty one.
    pub(super) fn new() -> io::Result<Ark> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (keep, add) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
        Ok(Ark { keep, add })
    }

    /// Takes descriptors in, behind those that are there. Only who holds the roster may.
    pub(super) fn push(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.add.as_fd(), fds)
    }

    /// The descriptors of the `index`-th message; `None`: there are not so many. Only who holds the roster may: where to look is the
    /// socket's, and all have it in common.
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
    fn what_is_in_it_stays_open_and_can_be_had_again_and_again() {
        let ark = Ark::new().unwrap();
        let mut near = Vec::new();
        for _ in 0..20 {
            let (a, b) = UnixStream::pair().unwrap();
            ark.push(&[b.as_fd(), b.as_fd()]).unwrap();
            near.push(a);
        }
        for round in 0..3 {
            for (index, near) in near.iter_mut().enumerate().rev() {
                let fds = ark.peek(index).unwrap().unwrap();
                assert_eq!(fds.len(), 2);
                let mut far = UnixStream::from(fds.into_iter().next().unwrap());
                near.write_all(&[index as u8 + round]).unwrap();
                let mut byte = [0];
                far.read_exact(&mut byte).unwrap();
                assert_eq!(byte, [index as u8 + round]);
            }
        }
        assert!(ark.peek(near.len()).unwrap().is_none());
        // With it they are closed.
        drop(ark);
        assert_eq!(near[3].read(&mut [0]).unwrap(), 0);
    }
}
