//! Connects to Unix sockets that any process may have created, and listens where any process may connect.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect as connect_to, listen as listen_at,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::passing::set_takes_descriptors;

/// Connects to a socket by its abstract name.
///
/// # Errors
/// `TimedOut` if the backlog is still full at `until`; `ConnectionRefused` if the socket does not exist.
pub fn connect(name: &str, until: Instant) -> io::Result<UnixStream> {
    let address = UnixAddr::new_abstract(name.as_bytes())?;
    let own: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    loop {
        let remaining = until.saturating_duration_since(Instant::now()).as_micros();
        // The send timeout also limits connect (`unix_stream_connect`); 0 would mean no limit.
        let timeout = TimeVal::microseconds(i64::try_from(remaining).unwrap_or(i64::MAX).max(1));
        setsockopt(&own, sockopt::SendTimeout, &timeout)?;
        match connect_to(own.as_raw_fd(), &address) {
            Ok(()) => break,
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
    setsockopt(&own, sockopt::SendTimeout, &TimeVal::microseconds(0))?;
    Ok(own.into())
}

/// Connects without blocking. Uses `own`, which must be non-blocking, or a new socket.
///
/// # Errors
/// `WouldBlock` if the backlog is full; `ConnectionRefused` if the socket does not exist.
pub fn connect_now(own: Option<OwnedFd>, name: &str) -> io::Result<UnixStream> {
    let address = UnixAddr::new_abstract(name.as_bytes())?;
    let own = match own {
        Some(own) => own,
        None => socket(
            AddressFamily::Unix,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )?,
    };
    connect_to(own.as_raw_fd(), &address)?;
    Ok(own.into())
}

/// Listens at an abstract name. Connections receive no descriptors until [`set_takes_descriptors`] permits that.
/// Accepting does not block.
///
/// # Errors
/// `AddrInUse` if another socket has the name.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    let address = UnixAddr::new_abstract(name.as_bytes())?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let own: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // A connection inherits the option when it is made.
    set_takes_descriptors(own.as_fd(), false);
    bind(own.as_raw_fd(), &address)?;
    listen_at(&own, Backlog::MAXCONN)?;
    Ok(own.into())
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::time::Duration;

    use super::*;

    #[test]
    fn connect_to_full_backlog_times_out() {
        let name = format!("roxie/test/full/{}", std::process::id());
        assert_eq!(
            connect(&name, Instant::now()).expect_err("none").kind(),
            io::ErrorKind::ConnectionRefused
        );
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = UnixListener::bind_addr(&address).expect("free");
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(1).expect("small"))
            .expect("it listens");
        let soon = || Instant::now() + Duration::from_millis(20);
        let mut waiting = Vec::new();
        let refused = loop {
            match connect(&name, soon()) {
                Ok(socket) => waiting.push(socket),
                Err(error) => break error,
            }
            assert!(waiting.len() < 4, "the backlog is 1");
        };
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{refused}");
        // Accepting a connection frees an entry of the backlog.
        let _accepted = listener.accept().expect("one waits");
        let socket = connect(&name, soon()).expect("room");
        assert_eq!(socket.write_timeout().expect("a socket"), None);
    }
}
