//! Rendezvous of a group: a Unix socket through which a newcomer gets the group's descriptors.
//!
//! The socket has an abstract name, so it belongs to the network namespace, as the UDP port does, and leaves nothing in
//! any file system. All members share one listening socket: it exists as long as any of them lives, and any of them may
//! answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::geteuid;

use super::GroupId;
use super::error::JoinError;
use roxie_base::descriptors::{Peer, connect, listen, peer_of, receive_until, send};

/// Descriptors that members share. A newer group may pass more; its register says that it is newer.
const SHARED: usize = 4;
/// Timeout for a member's answer.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(1);
/// How long no connection is accepted after the system lacked descriptors or memory for one, which stays queued.
const PAUSE: Duration = Duration::from_millis(100);

/// The listening socket.
#[derive(Debug)]
pub(super) struct Rendezvous {
    listener: UnixListener,
    stop: EventFd,
}

/// Result of looking for a group.
pub(super) enum GroupSearch {
    /// A group exists: the descriptors that its members share.
    Group(Vec<OwnedFd>),
    /// No group exists: the listening socket of the new one.
    New(OwnedFd),
}

/// Returns the name of this user's group.
pub(super) fn name_of(group: &GroupId) -> String {
    let interface = group.interface.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
    format!("roxie/{}/{}{interface}", group.port, geteuid())
}

fn system(what: &'static str) -> impl Fn(io::Error) -> JoinError {
    move |source| JoinError::System { what, source }
}

/// Finds the group with this name, or becomes its first member.
pub(super) fn find_or_begin(name: &str) -> Result<GroupSearch, JoinError> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(fds) = request_fds(name, until)? {
            return Ok(GroupSearch::Group(fds));
        }
        match listen(name) {
            Ok(listener) => return Ok(GroupSearch::New(listener.into())),
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => std::thread::sleep(LOOK),
            Err(error) => return Err(system("binding the group's socket")(error)),
        }
    }
}

/// Returns the descriptors that the members of the group with this name share; `None` if there is no group.
pub(super) fn find(name: &str) -> Result<Option<Vec<OwnedFd>>, JoinError> {
    request_fds(name, Instant::now() + PATIENCE)
}

fn request_fds(name: &str, until: Instant) -> Result<Option<Vec<OwnedFd>>, JoinError> {
    loop {
        match connect(name, until) {
            Ok(asks) => {
                let peer = peer_of(asks.as_fd()).map_err(system("asking for the user of the group"))?;
                if !peer.is_own() {
                    return Err(JoinError::Stranger { name: name.to_owned(), peer });
                }
                if let Some(mut fds) = answer(asks.as_fd(), until)? {
                    fds.truncate(SHARED);
                    return Ok(Some(fds));
                }
                // The member that was about to answer has ended.
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(JoinError::Silent),
            Err(error) => return Err(system("connecting to the group")(error)),
        }
        if Instant::now() > until {
            return Err(JoinError::Silent);
        }
        std::thread::sleep(LOOK);
    }
}

/// Receives the descriptors that a member passes to a newcomer; `None` if the member has ended.
fn answer(asks: BorrowedFd<'_>, until: Instant) -> Result<Option<Vec<OwnedFd>>, JoinError> {
    receive_until(asks, until).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => JoinError::Silent,
        _ => system("receiving from the group")(error),
    })
}

impl Rendezvous {
    /// Wraps the listening socket that a newcomer received or made.
    pub(super) fn new(listener: OwnedFd) -> io::Result<Rendezvous> {
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Rendezvous { listener: listener.into(), stop })
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Answers newcomers of the same user until [`close`](Self::close): each gets the listening socket and `common`.
    /// Calls `idle` after each `often` without a newcomer.
    pub(super) fn serve(&self, common: &[BorrowedFd<'_>], often: Duration, mut idle: impl FnMut()) {
        let all: Vec<_> = [self.listener.as_fd()].into_iter().chain(common.iter().copied()).collect();
        let [often, pause] =
            [often, PAUSE].map(|time| PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX));
        let mut accepts = true;
        loop {
            let listens = if accepts { PollFlags::POLLIN } else { PollFlags::empty() };
            let mut waits = [
                PollFd::new(self.listener.as_fd(), listens),
                PollFd::new(self.stop.as_fd(), PollFlags::POLLIN),
            ];
            let woken = poll(&mut waits, if accepts { often } else { pause });
            if waits[1].any() == Some(true) {
                return;
            }
            if woken == Ok(0) && accepts {
                idle();
            }
            accepts = true;
            if waits[0].any() != Some(true) {
                continue;
            }
            match self.listener.accept() {
                Ok((newcomer, _)) if peer_of(newcomer.as_fd()).is_ok_and(Peer::is_own) => {
                    // An error means that the newcomer has gone.
                    let _ = send(newcomer.as_fd(), &all);
                }
                Ok(_) => {}
                // Another member may have accepted it: the listener does not block.
                Err(error) => accepts = error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Makes `serve` return.
    pub(super) fn close(&self) {
        let _ = self.stop.write(1);
    }
}
