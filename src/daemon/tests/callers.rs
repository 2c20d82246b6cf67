//! Connections that are slow, many, or full of descriptors, and clients that take no events.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{MsgFlags, setsockopt, sockopt};

use super::{Nic, PATIENCE, Quota, answer_to, hand_over_memory, hello, nic, settled};
use crate::ClientChange;
use roxie::remote::link::Link;
use roxie::remote::message::{Hello, Welcome};
use roxie_base::descriptors::{send, send_with};
use roxie_base::threads::lock;
use roxie_nic::nic::Command;
use roxie_nic::shared::remote_memory::RemoteMemory;
use roxie_nic::verbs::{AsyncEvent, CqIndex, EventKind};

/// Connects and sends the beginning of a greeting of 4,000 bytes.
fn slow(nic: &Nic) -> UnixStream {
    let mut socket = nic.connect();
    socket.write_all(&4000u32.to_ne_bytes()).expect("it listens");
    socket
}

#[test]
fn surplus_descriptors_of_memory_are_closed() {
    let nic = nic(Quota::default());
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut socket = nic.connect();
    answer_to(&Link::new(socket.try_clone().expect("a descriptor")), &hello(&7)).expect("it hears");
    send(socket.as_fd(), &[writer.as_fd(); 8]).expect("it listens");
    drop(writer);
    // The NIC closes the connection, with or without an answer.
    while socket.read(&mut [0; 100]).is_ok_and(|read| read > 0) {}
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a pipe");
    // While a copy of the pipe's write end is open, a read fails with `WouldBlock` and does not return 0.
    nic.wait("all are closed", |_| (&reader).read(&mut [0]).is_ok_and(|read| read == 0));
    assert!(reader.read(&mut [0]).is_ok());
}

/// A TCP socket that is closed for a minute: its peer reads nothing of what was sent.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut own = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (peer, _) = listener.accept().expect("it has connected");
    let linger = libc::linger { l_onoff: 1, l_linger: 60 };
    setsockopt(&own, sockopt::Linger, &linger).expect("a socket");
    own.set_nonblocking(true).expect("a socket");
    while own.write(&[0; 1 << 16]).is_ok() {}
    (own, peer)
}

#[test]
fn descriptor_beside_greeting_stops_nobody() {
    let nic = nic(Quota::default());
    let (lingering, _peer) = lingering();
    let socket = nic.connect();
    match send_with(socket.as_fd(), &[8], &[lingering.as_fd()], MsgFlags::empty()) {
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        Ok(_) => return println!("SKIP descriptor_beside_greeting_stops_nobody: Linux before 6.16"),
    }
    nic.serves_others();
}

/// The NIC's thread of that client reads bytes there, and no descriptors.
#[test]
fn descriptor_inside_question_stops_its_client_alone() {
    let nic = nic(Quota::default());
    let (lingering, _peer) = lingering();
    let link = nic.link();
    answer_to(&link, &hello(&7)).expect("it hears");
    // The thread is held before it reads the question, so that the last descriptor of the socket is the one that it
    // closes.
    let held = lock(&nic.changes);
    hand_over_memory(&link);
    nic.wait("let in", |nic| !nic.daemon.served().is_empty());
    send_with(link.as_fd(), &8u32.to_ne_bytes(), &[], MsgFlags::empty()).expect("it listens");
    send_with(link.as_fd(), &[0; 8], &[lingering.as_fd()], MsgFlags::empty()).expect("it listens");
    drop(lingering);
    drop(held);
    nic.serves_others();
    assert_eq!(nic.end(), ClientChange::StillBusy(1));
}

#[test]
fn library_of_version_4_is_told_so() {
    let nic = nic(Quota::default());
    let (link, secret) = (nic.link(), 7);
    let memory = RemoteMemory::descriptors().expect("this process's own");
    let older = Hello { version: 4, ..hello(&secret) };
    // Since Linux 6.16 descriptors are refused before a byte is sent.
    let _ = link.send(&older, &memory.each_ref().map(AsFd::as_fd));
    let answer = link.receive::<Result<Welcome, String>>().expect("an answer").expect("it did not hang up").0;
    assert!(answer.expect_err("refused").contains("update the library"));
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
    let client = nic.admitted();
    assert_eq!(lock(&nic.daemon.inner.serving).len(), 1, "that of the one that has greeted");
    drop((waiting, client));
}

#[test]
fn unread_events_wait_and_are_kept_once() {
    let nic = nic(Quota::default());
    let (stopped, _, cq, qp) = settled(&nic);
    let client = lock(&nic.daemon.inner.clients)[0].clone();
    let (often, last) = (AsyncEvent::Qp(qp, EventKind::SqDrained), AsyncEvent::Cq(cq, EventKind::CqError));
    (0..10_000).for_each(|_| client.notify(often));
    client.notify(last);
    // Another client's event does not concern this one.
    let other = AsyncEvent::Cq(CqIndex(77), EventKind::CqError);
    assert!(!client.concerns(other));
    stopped.call(Command::QueryQp(qp)).expect("served as before");
    let events = UnixStream::from(stopped.fds[2].try_clone().expect("a descriptor"));
    events.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let events = Link::new(events);
    let next = || events.receive::<AsyncEvent>().expect("an event").expect("it is served").0;
    let before = std::iter::from_fn(|| Some(next()).filter(|event| *event != last)).count();
    assert!(before < 1000, "{before} of one kind, of one object");
}
