//! The NIC's acceptor: connections of processes that are not served yet.
//!
//! One thread accepts connections and reads greetings as their bytes arrive. A connection costs a descriptor, and a
//! thread only once its greeting is whole. The kernel names the connection's user before a byte is read. A user that is
//! not served gets the reason, and no more.
//!
//! This thread neither receives nor closes descriptors of a connection, because either may block forever
//! ([`listen`](roxie_base::descriptors::listen)).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use roxie::remote::link::{Link, Pieces};
use roxie::remote::message::{FirstMessage, Hello, Welcome};
use roxie_base::descriptors::peer_of;
use roxie_base::threads::lock;

/// How long a connection may take for its whole greeting.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a greeting at most.
const LONGEST_GREETING: usize = 4096;
/// Pause in accepting connections after the system lacked a descriptor, memory or a thread: connections already
/// accepted come first.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that are accepted before greetings are read again.
const AT_ONCE: usize = 64;

/// How many connections may wait to be served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Of one user: as many as there are slots, so all programs of a user may start at the same time.
    pub(super) of_user: usize,
    /// Of all users together, except for root and the NIC's own user: there is always room for their programs.
    pub(super) of_clients: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { of_user: 256, of_clients: 1024 }
    }
}

/// The class of a user with the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserClass {
    /// Root, or the user of the NIC's process.
    Host,
    /// Served besides those.
    Served,
    /// Not served.
    Unserved,
}

/// Connections that wait, by the user that pays for them, each with the time at which its handshake is to be over.
#[derive(Debug, Default)]
struct Waiting(Mutex<BTreeMap<u32, (UserClass, Vec<Instant>)>>);

/// A place among the connections that wait, freed on drop.
#[derive(Debug)]
pub(super) struct PendingSlot {
    among: Arc<Waiting>,
    uid: u32,
    /// The end of the handshake.
    pub(super) until: Instant,
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        let mut users = lock(&self.among.0);
        if let Some((_, ends)) = users.get_mut(&self.uid)
            && let Some(at) = ends.iter().position(|until| *until == self.until)
        {
            ends.swap_remove(at);
        }
        users.retain(|_, (_, ends)| !ends.is_empty());
    }
}

impl Waiting {
    fn place(
        self: &Arc<Waiting>,
        uid: u32,
        class: UserClass,
        bounds: Bounds,
        until: Instant,
    ) -> Result<PendingSlot, String> {
        let mut users = lock(&self.0);
        let of_clients: usize =
            users.values().filter(|(class, _)| *class != UserClass::Host).map(|(_, ends)| ends.len()).sum();
        let ends = users.get(&uid).map_or(&[][..], |(_, ends)| ends);
        let of_user = ends.len();
        // Its thread waits for a file that the program handed over.
        if ends.iter().any(|end| *end + PATIENCE < until - PATIENCE) {
            return Err(format!("a file of another program of user {uid} does not answer"));
        }
        if of_user >= bounds.of_user {
            return Err(format!("{of_user} connections of user {uid} wait to be served, as many as may"));
        }
        if class != UserClass::Host && of_clients >= bounds.of_clients {
            return Err(format!("{of_clients} connections wait to be served, as many as may"));
        }
        users.entry(uid).or_insert((class, Vec::new())).1.push(until);
        Ok(PendingSlot { among: Arc::clone(self), uid, until })
    }
}

/// A process that has greeted.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) socket: UnixStream,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) hello: Hello,
    /// To be dropped once it is served, or is not.
    pub(super) place: PendingSlot,
}

/// The outcome of a connection.
#[derive(Debug)]
pub(super) enum Handshake {
    Greeted(Greeting),
    /// The process was refused, with this reason.
    Refused {
        pid: u32,
        why: String,
    },
}

/// A connection with an incomplete greeting.
#[derive(Debug)]
struct Connecting {
    socket: UnixStream,
    pid: u32,
    uid: u32,
    pieces: Pieces,
    place: PendingSlot,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Acceptor {
    listener: UnixListener,
    /// The name of the NIC's device.
    device_name: String,
    bounds: Bounds,
    waiting: Arc<Waiting>,
    connecting: Vec<Connecting>,
    /// No connection is accepted before this time.
    closed_until: Option<Instant>,
}

impl Acceptor {
    /// Makes the acceptor of a non-blocking listener.
    pub(super) fn new(listener: UnixListener, device_name: String, bounds: Bounds) -> Acceptor {
        Acceptor {
            listener,
            device_name,
            bounds,
            waiting: Arc::default(),
            connecting: Vec::new(),
            closed_until: None,
        }
    }

    /// Accepts no connection for a while: the system lacks the resources for one.
    pub(super) fn pause(&mut self) {
        self.closed_until = Some(Instant::now() + PAUSE);
    }

    /// Waits for greetings and connections, or until `stop` is readable. Returns the connections' outcomes. `class`
    /// gives a user's class, and the user that pays for it.
    pub(super) fn wait(
        &mut self,
        stop: BorrowedFd<'_>,
        class: &dyn Fn(u32) -> (UserClass, u32),
    ) -> Vec<Handshake> {
        let now = Instant::now();
        self.closed_until = self.closed_until.filter(|until| *until > now);
        let accepts = if self.closed_until.is_some() { PollFlags::empty() } else { PollFlags::POLLIN };
        let fixed = [PollFd::new(stop, PollFlags::POLLIN), PollFd::new(self.listener.as_fd(), accepts)];
        let connecting = self
            .connecting
            .iter()
            .map(|connection| PollFd::new(connection.socket.as_fd(), PollFlags::POLLIN));
        let mut fds: Vec<PollFd<'_>> = fixed.into_iter().chain(connecting).collect();
        let due =
            self.connecting.iter().map(|connection| connection.place.until).chain(self.closed_until).min();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            // Not a moment early: whole milliseconds, rounded up.
            let remaining = due.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX)
        });
        let _ = poll(&mut fds, timeout);
        let is_ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        let mut handshakes = self.read_greetings(&is_ready[2..]);
        if is_ready[1] {
            self.accept(class, &mut handshakes);
        }
        handshakes
    }

    /// Reads what the connecting processes have sent.
    fn read_greetings(&mut self, is_ready: &[bool]) -> Vec<Handshake> {
        let now = Instant::now();
        let mut handshakes = Vec::new();
        let connecting = std::mem::take(&mut self.connecting);
        for (mut connection, is_ready) in connecting.into_iter().zip(is_ready) {
            let read = match is_ready {
                true => connection
                    .pieces
                    .read(connection.socket.as_fd())
                    .map(|whole| whole.map(FirstMessage::read)),
                false => Err(io::ErrorKind::WouldBlock.into()),
            };
            let Connecting { pid, uid, ref place, .. } = connection;
            match read {
                Ok(Some(Ok(FirstMessage::NameQuestion))) => {
                    let link = Link::new(connection.socket);
                    let _ = link
                        .send_at_once(&Ok::<_, String>(()))
                        .and_then(|()| link.send_at_once(&self.device_name));
                }
                Ok(Some(Ok(FirstMessage::Hello(hello)))) => {
                    let Connecting { socket, place, .. } = connection;
                    handshakes.push(Handshake::Greeted(Greeting { socket, pid, uid, hello, place }));
                }
                Ok(Some(Err(why))) => handshakes.push(refuse(connection.socket, pid, why)),
                // A look whether there is a NIC ends like this.
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && now < place.until => {
                    self.connecting.push(connection)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Version 4 sent descriptors with the first byte.
                    let patience = PATIENCE.as_secs();
                    let why = format!("no whole greeting came within {patience} s: update the library");
                    handshakes.push(refuse(connection.socket, pid, why));
                }
                Err(error) => {
                    let why = format!("what it said is no greeting: {error}");
                    handshakes.push(refuse(connection.socket, pid, why));
                }
            }
        }
        handshakes
    }

    fn accept(&mut self, class: &dyn Fn(u32) -> (UserClass, u32), handshakes: &mut Vec<Handshake>) {
        for _ in 0..AT_ONCE {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if has_ended(&error) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // EMFILE, ENFILE, ENOBUFS, ENOMEM: the connection is still there, and the listener readable.
                Err(_) => return self.pause(),
            };
            let Ok(peer) = peer_of(socket.as_fd()) else { continue };
            let pid = peer.pid;
            let Some(uid) = peer.uid else {
                handshakes.push(refuse(socket, pid, format!("it does not serve {peer}")));
                continue;
            };
            let admitted = match class(uid) {
                (UserClass::Unserved, _) => {
                    Err(format!("user {uid} is not one that it serves (`roxie nic --user`)"))
                }
                (class, payer) => self.waiting.place(payer, class, self.bounds, Instant::now() + PATIENCE),
            };
            match admitted {
                Ok(place) => self.connecting.push(Connecting {
                    socket,
                    pid,
                    uid,
                    pieces: Pieces::new(LONGEST_GREETING),
                    place,
                }),
                Err(why) => handshakes.push(refuse(socket, pid, why)),
            }
        }
    }
}

/// The connection ended before it was accepted, or the call was interrupted.
fn has_ended(error: &io::Error) -> bool {
    [Errno::ECONNABORTED, Errno::EINTR].iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// Sends the reason why a process is not served. Never blocks.
pub(super) fn refuse(socket: UnixStream, pid: u32, why: String) -> Handshake {
    let _ = Link::new(socket).send_at_once(&Err::<Welcome, _>(&why));
    Handshake::Refused { pid, why }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use nix::sys::eventfd::{EfdFlags, EventFd};
    use roxie::remote::message::NAME_QUESTION;

    use super::*;

    fn acceptor(bounds: Bounds) -> (Acceptor, SocketAddr, EventFd) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("roxie/test/acceptor/{}/{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let listener = roxie_base::descriptors::listen(&name).expect("free");
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        (
            Acceptor::new(listener, "mlx5_7".into(), bounds),
            address,
            EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("a descriptor"),
        )
    }

    #[test]
    fn stranger_is_refused_before_it_greets() {
        let (mut acceptor, address, stop) = acceptor(Bounds::default());
        let connection = UnixStream::connect_addr(&address).expect("it listens");
        let handshakes = acceptor.wait(stop.as_fd(), &|_| (UserClass::Unserved, 0));
        let [Handshake::Refused { pid, why }] = &handshakes[..] else { panic!("{handshakes:?}") };
        assert!(*pid == std::process::id() && why.contains("--user"), "{why}");
        assert!(acceptor.connecting.is_empty(), "it takes no place");
        let (reply, _) =
            Link::new(connection).receive::<Result<Welcome, String>>().expect("a word").expect("the reason");
        assert!(reply.expect_err("refused").contains("--user"));
    }

    #[test]
    fn question_for_the_name_takes_no_place() {
        let (mut acceptor, address, stop) = acceptor(Bounds { of_user: 1, of_clients: 1 });
        for _ in 0..3 {
            let link = Link::new(UnixStream::connect_addr(&address).expect("it listens"));
            link.send(&NAME_QUESTION, &[]).expect("it reads");
            while acceptor.connecting.is_empty() {
                assert!(acceptor.wait(stop.as_fd(), &|_| (UserClass::Served, 1000)).is_empty());
            }
            assert!(acceptor.wait(stop.as_fd(), &|_| (UserClass::Served, 1000)).is_empty());
            let (answer, _) = link.receive::<Result<(), String>>().expect("an answer").expect("whole");
            let (name, _) = link.receive::<String>().expect("an answer").expect("whole");
            assert_eq!((answer, name.as_str()), (Ok(()), "mlx5_7"));
            assert!(acceptor.connecting.is_empty() && lock(&acceptor.waiting.0).is_empty());
        }
    }

    #[test]
    fn connection_beyond_its_users_bound_is_refused() {
        let (mut acceptor, address, stop) = acceptor(Bounds { of_user: 3, of_clients: 100 });
        let mut connecting: Vec<_> =
            (0..4).map(|_| UnixStream::connect_addr(&address).expect("it listens")).collect();
        let handshakes = acceptor.wait(stop.as_fd(), &|_| (UserClass::Served, 0));
        assert!(
            matches!(&handshakes[..], [Handshake::Refused { why, .. }] if why.contains("3 connections")),
            "{handshakes:?}"
        );
        // A connection that leaves makes room.
        drop(connecting.remove(0));
        assert!(acceptor.wait(stop.as_fd(), &|_| (UserClass::Served, 0)).is_empty());
        connecting.push(UnixStream::connect_addr(&address).expect("it listens"));
        assert!(acceptor.wait(stop.as_fd(), &|_| (UserClass::Served, 0)).is_empty());
        assert_eq!(acceptor.connecting.len(), 3);
    }

    #[test]
    fn guests_leave_room_for_root() {
        let waiting = Arc::<Waiting>::default();
        let bounds = Bounds { of_user: 2, of_clients: 3 };
        let until = Instant::now();
        let place = |uid, class| waiting.place(uid, class, bounds, until);
        let mut places: Vec<_> =
            [1000, 1000, 1001].map(|uid| place(uid, UserClass::Served).expect("room")).into();
        for uid in [1000, 1001, 1002] {
            assert!(place(uid, UserClass::Served).is_err(), "{uid}");
        }
        let own = [0, 0].map(|uid| place(uid, UserClass::Host).expect("room"));
        assert!(place(0, UserClass::Host).is_err(), "its own bound holds");
        drop(places.pop());
        place(1002, UserClass::Served).expect("room");
        drop((places, own));
        assert!(lock(&waiting.0).is_empty(), "nothing is kept of users that are gone");
    }

    #[test]
    fn user_of_overdue_handshake_waits() {
        let waiting = Arc::<Waiting>::default();
        let now = Instant::now();
        let place = |uid, until| waiting.place(uid, UserClass::Served, Bounds::default(), until);
        let stuck = place(1000, now).expect("room");
        place(1000, now + 2 * PATIENCE).expect("its time is not over");
        let later = now + 3 * PATIENCE;
        assert!(place(1000, later).is_err_and(|why| why.contains("does not answer")));
        place(1001, later).expect("another user");
        drop(stuck);
        place(1000, later).expect("none is late");
    }

    #[test]
    fn door_that_pauses_accepts_later() {
        let (mut acceptor, address, stop) = acceptor(Bounds::default());
        let _caller = UnixStream::connect_addr(&address).expect("it listens");
        acceptor.pause();
        assert!(
            acceptor.wait(stop.as_fd(), &|_| (UserClass::Host, 0)).is_empty()
                && acceptor.connecting.is_empty()
        );
        // A signal may end a wait early, and the pause not yet.
        (0..100).find(|_| {
            acceptor.wait(stop.as_fd(), &|_| (UserClass::Host, 0));
            !acceptor.connecting.is_empty()
        });
        assert_eq!(acceptor.connecting.len(), 1);
    }
}
