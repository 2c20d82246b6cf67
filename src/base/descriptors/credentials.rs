//! Asking a process in another user namespace for the user of a socket's peer.
//!
//! In the user namespace of `roxie run`, the kernel names all other users by one number. The launcher therefore leaves
//! a process in its own namespace that looks at sockets for the programs: [`CredentialServer`]. A program passes its
//! end of a connection, and gets the user of the other end. The two trust each other by different means. The server,
//! which can tell users apart, answers its own user's processes alone. The program believes the process that knows the
//! secret in its environment ([`CREDENTIALS`]), which only its own user can read.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::MsgFlags;

use super::passing::{receive_until, send, send_with, set_takes_descriptors};
use super::{connect, listen, peer_of};
use crate::random::unguessable_text;

/// The variable by which programs find the server: `NAME:SECRET`.
pub const CREDENTIALS: &str = "ROXIE_CREDENTIALS";

/// Maximum time for each step of an answer. The other end answers at once unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause after the system lacked descriptors or memory for a connection, which stays queued.
const PAUSE: Duration = Duration::from_millis(100);
/// Length of a secret, in hexadecimal digits.
const SECRET: usize = 32;
/// An answer: whether the user is known, and the user ID.
const ANSWER: usize = 1 + size_of::<u32>();

/// The answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The user of the other end. `None`: the server cannot tell either.
    pub(super) uid: Option<u32>,
}

/// The server of this process, if its environment names none.
static SERVER: OnceLock<String> = OnceLock::new();

/// Names the server for this process and its forked children, as [`CREDENTIALS`] does for programs.
pub fn set_credential_server(variable: String) {
    // The first one stays.
    let _ = SERVER.set(variable);
}

/// Asks the server of this process. `None`: there is none, or it does not answer.
pub(super) fn query(socket: BorrowedFd<'_>) -> Option<Answer> {
    match SERVER.get() {
        Some(server) => query_at(server, socket),
        None => query_at(&std::env::var(CREDENTIALS).ok()?, socket),
    }
}

fn query_at(server: &str, socket: BorrowedFd<'_>) -> Option<Answer> {
    let (name, secret) = server.split_once(':')?;
    let mut server = connect(name, Instant::now() + PATIENCE).ok()?;
    server.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut received = [0; SECRET];
    server.read_exact(&mut received).ok()?;
    // Another user may have taken the name of a server that has ended.
    if received != secret.as_bytes() {
        return None;
    }
    send(server.as_fd(), &[socket]).ok()?;
    let mut answer = [0; ANSWER];
    server.read_exact(&mut answer).ok()?;
    let [is_known, uid @ ..] = answer;
    Some(Answer { uid: (is_known == 1).then_some(u32::from_ne_bytes(uid)) })
}

/// The server.
#[derive(Debug)]
pub struct CredentialServer {
    listener: UnixListener,
    name: String,
    secret: String,
}

impl CredentialServer {
    /// Starts to listen.
    ///
    /// # Errors
    /// If the system is out of memory or descriptors.
    pub fn new() -> io::Result<CredentialServer> {
        let (name, secret) = (format!("roxie/credentials/{}", unguessable_text()), unguessable_text());
        let listener = listen(&name)?;
        set_takes_descriptors(listener.as_fd(), true);
        Ok(CredentialServer { listener, name, secret })
    }

    /// Returns the value of [`CREDENTIALS`] for programs.
    pub fn variable(&self) -> String {
        format!("{}:{}", self.name, self.secret)
    }

    /// Answers programs of this process's user until `stop` can be read.
    pub fn serve(&self, stop: BorrowedFd<'_>) {
        loop {
            let mut waits = [stop, self.listener.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut waits, PollTimeout::NONE) {
                Ok(_) if waits[0].any() == Some(true) => return,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => std::thread::sleep(PAUSE),
            }
            match self.listener.accept() {
                Ok((program, _)) => drop(self.answer(&program)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    fn answer(&self, program: &UnixStream) -> io::Result<()> {
        if !peer_of(program.as_fd())?.is_own() {
            return Ok(());
        }
        send_with(program.as_fd(), self.secret.as_bytes(), &[], MsgFlags::MSG_DONTWAIT)?;
        let fds = receive_until(program.as_fd(), Instant::now() + PATIENCE)?.unwrap_or_default();
        let [socket] = &fds[..] else { return Ok(()) };
        let uid = peer_of(socket.as_fd())?.uid;
        let mut answer = [0; ANSWER];
        answer[0] = uid.is_some().into();
        answer[1..].copy_from_slice(&uid.unwrap_or_default().to_ne_bytes());
        send_with(program.as_fd(), &answer, &[], MsgFlags::MSG_DONTWAIT).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::geteuid;

    use super::*;

    #[test]
    fn only_the_server_with_the_secret_is_believed() {
        let server = CredentialServer::new().expect("a socket");
        let variable = server.variable();
        let (stopped, stop) = io::pipe().expect("a pipe");
        let serving = std::thread::spawn(move || server.serve(stopped.as_fd()));
        let (socket, _other) = UnixStream::pair().expect("two sockets");
        let request = |server: &str| query_at(server, socket.as_fd());
        let own = Answer { uid: Some(geteuid().as_raw()) };
        assert_eq!(request(&variable), Some(own));
        let (name, secret) = variable.split_once(':').expect("both");
        for wrong in [format!("{name}:{}", "0".repeat(SECRET)), name.to_owned(), format!("{name}x:{secret}")]
        {
            assert_eq!(request(&wrong), None, "{wrong}");
        }
        // A descriptor of another kind gets no answer, and the next program one.
        let (pipe, _writer) = io::pipe().expect("a pipe");
        assert_eq!(query_at(&variable, pipe.as_fd()), None);
        assert_eq!(request(&variable), Some(own));
        drop(stop);
        serving.join().expect("the end");
        assert_eq!(request(&variable), None);
    }
}
