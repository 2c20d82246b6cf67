//! Passing file descriptors between processes (`SCM_RIGHTS`).

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// Maximum number of descriptors per message.
pub const MOST: usize = 4;
/// Size of the control message for [`MOST`] descriptors in 64-bit words: a header of two (`cmsg(3)`), then
/// the numbers.
const CONTROL: usize = 2 + MOST * size_of::<RawFd>() / size_of::<u64>();

/// `SO_PASSRIGHTS` of `asm-generic/socket.h`, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Sets whether a Unix socket receives descriptors. If not, the sender gets `EPERM`. Connections inherit the option
/// from their listener.
///
/// The process that receives descriptors, or closes a socket with undelivered ones, releases their files. That may
/// wait: for the peer of a TCP socket that lingers, or for the process of a file system in userspace. Before Linux
/// 6.16, every socket receives descriptors.
pub fn set_takes_descriptors(socket: BorrowedFd<'_>, takes: bool) {
    let value = libc::c_int::from(takes);
    let size = size_of_val(&value) as libc::socklen_t;
    let (socket, value) = (socket.as_raw_fd(), &raw const value);
    // SAFETY: `value` is an int of the given size, and outlives the call.
    let _ = unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, value.cast(), size) };
}

/// True if the kernel has sockets that receive no descriptors: Linux 6.16 or later.
pub fn sockets_can_refuse_descriptors() -> bool {
    let Ok((socket, _)) = UnixStream::pair() else { return false };
    let mut value: libc::c_int = 0;
    let mut size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is an int of the given size; both outlive the call.
    let known = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw mut value).cast(),
            &raw mut size,
        )
    };
    known == 0
}

/// Sends descriptors with one byte of data.
///
/// # Errors
/// Those of `sendmsg`; `EAGAIN` if the socket has no room.
pub fn send(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, &[1], fds, MsgFlags::MSG_DONTWAIT).map(drop)
}

/// Sends bytes, with descriptors attached to the first. Returns the number of bytes sent.
///
/// # Errors
/// Those of `sendmsg`.
pub fn send_with(
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

/// Receives descriptors with one byte; `None` if the peer has closed the socket.
///
/// # Errors
/// The errors of [`receive_with`].
pub fn receive(socket: BorrowedFd<'_>, flags: MsgFlags) -> io::Result<Option<Vec<OwnedFd>>> {
    let (length, fds) = receive_with(socket, &mut [0], flags)?;
    Ok((length > 0).then_some(fds))
}

/// Receives bytes and the descriptors attached to them. Returns length 0 if the peer has closed the socket.
///
/// # Errors
/// `InvalidData` if more than [`MOST`] descriptors arrived; `EMFILE` if the process has reached its limit. In
/// each case, the descriptors that were received are closed.
pub fn receive_with(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: MsgFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0u64; CONTROL];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `msghdr` consists of numbers and pointers, for which zero is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    let flags = (flags | MsgFlags::MSG_CMSG_CLOEXEC).bits();
    // SAFETY: the header names `bytes` and `control` with their lengths, and all three outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let Ok(received) = usize::try_from(received) else {
        return match Errno::last() {
            Errno::ECONNRESET => Ok((0, Vec::new())),
            error => Err(error.into()),
        };
    };
    // SAFETY: the call has succeeded, and `control` has not been changed since.
    let fds = unsafe { owned(&header) };
    if header.msg_flags & libc::MSG_CTRUNC == 0 {
        return Ok((received, fds));
    }
    if fds.len() < MOST {
        return Err(Errno::EMFILE.into());
    }
    let why = format!("more than {MOST} descriptors came with a message");
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

/// Takes ownership of the descriptors of a received message.
///
/// # Safety
/// `recvmsg` must have filled the header, the control messages must be unchanged, and no descriptor may have
/// been taken from them.
unsafe fn owned(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel wrote the control messages, and their length into `msg_controllen`.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: `message` is null, or a control message that lies entirely in the buffer, which is aligned for
    // it.
    while let Some(control) = unsafe { message.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the data of a control message lies behind its header.
            let (data, start) = unsafe { (libc::CMSG_DATA(message), libc::CMSG_LEN(0) as usize) };
            let count = (control.cmsg_len - start) / size_of::<RawFd>();
            fds.extend((0..count).map(|at| {
                // SAFETY: the index is inside the message by its length. The kernel made the descriptor for
                // this process with this message, and nothing else owns it.
                unsafe { OwnedFd::from_raw_fd(data.cast::<RawFd>().add(at).read_unaligned()) }
            }));
        }
        // SAFETY: as for the first control message.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    fds
}

/// Like [`receive`], but waits up to `until`.
///
/// # Errors
/// The errors of [`receive`]; `TimedOut` if nothing arrived.
pub fn receive_until(socket: BorrowedFd<'_>, until: Instant) -> io::Result<Option<Vec<OwnedFd>>> {
    let remaining = until.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], timeout) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) => receive(socket, MsgFlags::MSG_DONTWAIT),
        Err(Errno::EINTR) => receive_until(socket, until),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn surplus_descriptors_are_refused_and_closed() {
        let (a, b) = UnixStream::pair().expect("two sockets");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let copies = [writer.as_fd(); MOST + 4];
        send_with(a.as_fd(), b"bytes", &copies, MsgFlags::empty()).expect("room");
        drop(writer);
        let mut bytes = [0; 8];
        let refused = receive_with(b.as_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT).expect_err("too many");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{refused}");
        nix::fcntl::fcntl(&reader, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
            .expect("a pipe");
        // If a writer were left open, the read would report `WouldBlock`.
        assert_eq!(reader.read(&mut bytes).expect("the end: all writers are closed"), 0);
    }

    #[test]
    fn socket_takes_descriptors_or_bytes_alone() {
        let (a, b) = UnixStream::pair().expect("two sockets");
        set_takes_descriptors(b.as_fd(), false);
        match send(a.as_fd(), &[a.as_fd()]) {
            Ok(()) => {
                assert!(!sockets_can_refuse_descriptors());
                return println!("SKIP socket_takes_descriptors_or_bytes_alone: Linux before 6.16");
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        }
        assert!(sockets_can_refuse_descriptors());
        send(a.as_fd(), &[]).expect("a byte");
        set_takes_descriptors(b.as_fd(), true);
        send(a.as_fd(), &[a.as_fd()]).expect("room");
        let counts =
            [(); 2].map(|()| receive(b.as_fd(), MsgFlags::empty()).expect("a byte").expect("open").len());
        assert_eq!(counts, [0, 1]);
    }

    #[test]
    fn descriptors_arrive_with_their_bytes() {
        let (a, b) = UnixStream::pair().expect("two sockets");
        for count in 0..=MOST {
            send_with(a.as_fd(), b"bytes", &vec![a.as_fd(); count], MsgFlags::empty()).expect("room");
            let mut bytes = [0; 8];
            let (length, fds) = receive_with(b.as_fd(), &mut bytes, MsgFlags::empty()).expect("a message");
            assert_eq!((&bytes[..length], fds.len()), (&b"bytes"[..], count));
        }
        drop(a);
        let (length, fds) = receive_with(b.as_fd(), &mut [0; 8], MsgFlags::empty()).expect("an end");
        assert_eq!((length, fds.len()), (0, 0));
    }
}
