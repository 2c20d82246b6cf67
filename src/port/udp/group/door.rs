//! Where newcomers knock: a Unix socket that all members listen on.
//!
//! It has an abstract name, so it belongs to the network namespace, as the UDP port does, and leaves nothing in any file system. Members
//! have one listening socket in common: it is there as long as any of them lives, and whoever of them is awake answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::geteuid;

use super::error::JoinError;
use crate::descriptors::{connect, listen, peer_of, receive_until, send};

/// How long a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(1);
/// How long no newcomer is let in after the system had no descriptor or memory for one, which waits.
const PAUSE: Duration = Duration::from_millis(100);

/// The listening socket.
#[derive(Debug)]
pub(super) struct Door {
    listener: UnixListener,
    stop: EventFd,
}

/// What a newcomer finds.
pub(super) enum Found {
    /// A group: what its members hold in common.
    Group(Vec<OwnedFd>),
    /// Nobody, and this is the door from now on.
    Nobody(OwnedFd),
}

/// The name of the user's group on a UDP port.
pub(super) fn name_of(port: u16) -> String {
    format!("roxie/{port}/{}", geteuid())
}

fn system(what: &'static str) -> impl Fn(io::Error) -> JoinError {
    move |source| JoinError::System { what, source }
}

/// Finds the group with this name, or becomes its first member.
pub(super) fn knock(name: &str) -> Result<Found, JoinError> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(fds) = ask(name, until)? {
            return Ok(Found::Group(fds));
        }
        match listen(name) {
            Ok(door) => return Ok(Found::Nobody(door.into())),
            // Somebody else was faster.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => std::thread::sleep(LOOK),
            Err(error) => return Err(system("binding the group's socket")(error)),
        }
    }
}

/// What the members of the group with this name have in common; `None`: there is no group.
pub(super) fn look(name: &str) -> Result<Option<Vec<OwnedFd>>, JoinError> {
    ask(name, Instant::now() + PATIENCE)
}

fn ask(name: &str, until: Instant) -> Result<Option<Vec<OwnedFd>>, JoinError> {
    loop {
        match connect(name, until) {
            Ok(asks) => {
                if let Some(user) = stranger(&asks).map_err(system("asking who keeps the group"))? {
                    return Err(JoinError::Stranger { name: name.to_owned(), user });
                }
                if let Some(fds) = answer(asks.as_fd(), until)? {
                    return Ok(Some(fds));
                }
                // Whoever was about to answer has ended.
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

/// The user at the other end, if it is another one.
fn stranger(socket: &UnixStream) -> io::Result<Option<u32>> {
    let user = peer_of(socket)?.uid();
    Ok((user != geteuid().as_raw()).then_some(user))
}

/// What a member hands to a newcomer; `None`: it has ended.
fn answer(asks: BorrowedFd<'_>, until: Instant) -> Result<Option<Vec<OwnedFd>>, JoinError> {
    receive_until(asks, until).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => JoinError::Silent,
        _ => system("hearing from the group")(error),
    })
}

impl Door {
    /// The door that a newcomer was handed, or made.
    pub(super) fn new(listener: OwnedFd) -> io::Result<Door> {
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Door { listener: listener.into(), stop })
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Lets newcomers of the same user in until told to stop: each gets the door itself and `common`. `idle` is called after each
    /// `often` in which nobody came.
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
                Ok((newcomer, _)) if stranger(&newcomer).is_ok_and(|user| user.is_none()) => {
                    // A newcomer that is gone by now needs nothing.
                    let _ = send(newcomer.as_fd(), &all);
                }
                Ok(_) => {}
                // Another member may be faster: the listener does not block.
                Err(error) => accepts = error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Ends `serve`.
    pub(super) fn close(&self) {
        let _ = self.stop.write(1);
    }
}
