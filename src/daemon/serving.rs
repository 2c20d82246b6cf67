//! The thread of a client: answers the client's requests one by one.

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::acceptor::{Greeting, UserClass};
use super::client::{Client, Session};
use super::{Inner, notify};
use roxie::remote::link::Link;
use roxie::remote::message::Hello;
use roxie_base::descriptors::{receive_until, set_takes_descriptors};
use roxie_nic::shared::remote_memory::RemoteMemory;

/// Serves one process.
///
/// Runs in a thread of the client's own, which may block forever: checking or closing a file that the client hands over
/// waits for the file's file system, which may be a process that does not answer. Then the thread holds no lock and not
/// the NIC, which ends without it. The client keeps its slot until then.
pub(super) fn serve(nic: &Weak<Inner>, greeting: Greeting) {
    let Greeting { socket, pid, uid, hello, place } = greeting;
    let link = Link::new(socket);
    let admitted = admit(nic, &link, (pid, uid), &hello, place.until);
    drop(link);
    drop(place);
    let Some((client, mut session)) = admitted else { return };
    let notifies = notify::start(nic, &client);
    let shares = nic.upgrade().map(|inner| inner.registry.shares_of(client.uid));
    // Root and the NIC's own user are not limited.
    let is_host = nic.upgrade().is_some_and(|inner| inner.registry.class_of(client.uid) == UserClass::Host);
    let share = shares.as_ref().map(|shares| &shares.requests).filter(|_| !is_host);
    let mut charged = Duration::ZERO;
    while notifies.is_ok() && answer_next(nic, &client, &mut session) {
        if let Some(share) = share {
            share.charge_thread(&mut charged);
            share.pay(|time| stays_for(&client, time));
        }
    }
    part_from(nic, &client, session, notifies.ok());
    // The last request, and the end of the client's objects.
    if let Some(share) = share {
        share.charge_thread(&mut charged);
    }
}

/// Lets a process in. `None`: it was told why not, or the NIC is gone.
pub(super) fn admit(
    nic: &Weak<Inner>,
    link: &Link,
    (pid, uid): (u32, u32),
    hello: &Hello,
    until: Instant,
) -> Option<(Arc<Client>, Session)> {
    let greeted = nic.upgrade()?.registry.admits_user(uid);
    let memory = greeted.and_then(|()| memory_of(link, hello, until));
    nic.upgrade()?.admit(link, (pid, uid), &hello.name, memory)
}

/// Has a process hand over its memory.
fn memory_of(link: &Link, hello: &Hello, until: Instant) -> Result<RemoteMemory, String> {
    set_takes_descriptors(link.as_fd(), true);
    link.send_at_once(&Ok::<(), String>(())).map_err(|error| error.to_string())?;
    let fds = receive_until(link.as_fd(), until)
        .map_err(|error| format!("descriptors of its memory did not come: {error}"))?;
    RemoteMemory::new(fds.ok_or("it hung up")?, hello.secret).map_err(|error| error.to_string())
}

/// Answers a client's next request. False: there are no more, or the NIC is gone.
pub(super) fn answer_next(nic: &Weak<Inner>, client: &Client, session: &mut Session) -> bool {
    let Some(request) = client.next_request() else { return false };
    let Some(inner) = nic.upgrade() else { return false };
    let reply = client.answer(&inner.registry, session, request);
    drop(inner);
    client.reply(session, &reply)
}

/// Destroys all objects of a client, and frees its slot once nothing of it can block.
pub(super) fn part_from(
    nic: &Weak<Inner>,
    client: &Arc<Client>,
    session: Session,
    notifies: Option<JoinHandle<()>>,
) {
    if let Some(inner) = nic.upgrade() {
        client.leave(&inner.registry, session);
    }
    client.release();
    client.notifier.end();
    client.end_copies();
    if let Some(notifies) = notifies {
        let _ = notifies.join();
    }
    if let Some(inner) = nic.upgrade() {
        inner.strike(client);
    }
}

/// Sleeps for this time, or until the client has hung up, or is dismissed. False: the client is gone.
fn stays_for(client: &Client, time: Duration) -> bool {
    let mut fds = [PollFd::new(client.link.as_fd(), PollFlags::empty())];
    // A hang-up is reported in any case.
    let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    matches!(poll(&mut fds, timeout), Ok(0) | Err(Errno::EINTR))
}
