//! File descriptors that one process hands to another (`SCM_RIGHTS`).

#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Descriptors of one message at most.
const MOST: usize = 4;

/// Sends descriptors, with one byte.
pub(crate) fn send(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, &[1], fds, MsgFlags::MSG_DONTWAIT).map(drop)
}

/// Sends bytes, and descriptors with the first of them. Returns how many bytes there was room for.
pub(crate) fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: MsgFlags,
) -> io::Result<usize> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)?)
}

/// Receives a message; `None`: the other end is gone.
pub(crate) fn receive(socket: BorrowedFd<'_>, flags: MsgFlags) -> io::Result<Option<Vec<OwnedFd>>> {
    let (length, fds) = receive_with(socket, &mut [0], flags)?;
    Ok((length > 0).then_some(fds))
}

/// Receives bytes, and the descriptors that came with them. 0: the other end is gone.
pub(crate) fn receive_with(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: MsgFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = cmsg_space!([RawFd; MOST]);
    let mut pieces = [IoSliceMut::new(bytes)];
    let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
    let received = match recvmsg::<()>(socket.as_raw_fd(), &mut pieces, Some(&mut control), flags) {
        Err(nix::Error::ECONNRESET) => return Ok((0, Vec::new())),
        other => other?,
    };
    let mut fds = Vec::new();
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel made these descriptors for this process with this message; nobody else knows them.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((received.bytes, fds))
}

/// The same, for which it waits until then; `TimedOut`: the other end said nothing.
pub(crate) fn receive_until(socket: BorrowedFd<'_>, until: Instant) -> io::Result<Option<Vec<OwnedFd>>> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], timeout) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) => receive(socket, MsgFlags::empty()),
        Err(Errno::EINTR) => receive_until(socket, until),
        Err(error) => Err(error.into()),
    }
}
