//! Connections that are slow, many, or full of descriptors, and clients that take no events.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::MsgFlags;

use super::{Nic, PATIENCE, Quota, nic, settled};
use crate::descriptors::send_with;
use crate::nic::Command;
use crate::remote::link::Link;
use crate::threads::lock;
use crate::verbs::{AsyncEvent, CqIndex, EventKind};

/// Connects and sends the beginning of a greeting of 4,000 bytes.
fn slow(nic: &Nic) -> UnixStream {
    let mut socket = nic.connect();
    socket.write_all(&4000u32.to_ne_bytes()).expect("it listens");
    socket
}

#[test]
fn surplus_descriptors_of_a_greeting_are_closed() {
    let nic = nic(Quota::default());
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut socket = nic.connect();
    let greeting = [&8u32.to_ne_bytes()[..], b"greeting"].concat();
    send_with(socket.as_fd(), &greeting, &[writer.as_fd(); 8], MsgFlags::empty()).expect("it listens");
    drop(writer);
    // The NIC closes the connection, with or without an answer.
    while socket.read(&mut [0; 100]).is_ok_and(|read| read > 0) {}
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a pipe");
    // While a copy of the pipe's write end is open, a read fails with `WouldBlock` and does not return 0.
    nic.wait("all are closed", |_| (&reader).read(&mut [0]).is_ok_and(|read| read == 0));
    assert!(reader.read(&mut [0]).is_ok());
}

#[test]
fn dribbled_greeting_ends_at_its_deadline() {
    let nic = nic(Quota::default());
    let mut socket = slow(&nic);
    let until = Instant::now() + PATIENCE;
    while socket.write_all(b"x").is_ok() {
        assert!(Instant::now() < until, "it is listened to after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn slow_greetings_take_no_threads() {
    let nic = nic(Quota::default());
    let waiting: Vec<_> = (0..100).map(|_| slow(&nic)).collect();
    let guest = nic.admitted();
    assert_eq!(lock(&nic.daemon.inner.serving).len(), 1, "that of the one that has greeted");
    drop((waiting, guest));
}

#[test]
fn unread_events_wait_and_are_kept_once() {
    let nic = nic(Quota::default());
    let (stopped, _, cq, qp) = settled(&nic);
    let guest = lock(&nic.daemon.inner.guests)[0].clone();
    let (often, last) = (AsyncEvent::Qp(qp, EventKind::SqDrained), AsyncEvent::Cq(cq, EventKind::CqError));
    (0..10_000).for_each(|_| guest.tell(often));
    guest.tell(last);
    // Another client's event does not concern this one.
    let other = AsyncEvent::Cq(CqIndex(77), EventKind::CqError);
    assert!(!guest.concerns(other));
    stopped.call(Command::QueryQp(qp)).expect("served as before");
    let events = UnixStream::from(stopped.fds[2].try_clone().expect("a descriptor"));
    events.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let events = Link::new(events);
    let next = || events.receive::<AsyncEvent>().expect("an event").expect("it is served").0;
    let before = std::iter::from_fn(|| Some(next()).filter(|event| *event != last)).count();
    assert!(before < 1000, "{before} of one kind, of one object");
}
