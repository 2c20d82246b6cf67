//! Memory and files that do not answer: of a file system that its owner serves, and that waits with a page or with an
//! answer.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::channel;

use super::files::Pair;
use super::honest::Couple;
use super::isolation::attached;
use super::{Nic, PATIENCE, Quota, answer_to, hello, nic};
use crate::{ClientChange, copies};
use roxie::host::MemoryRegion;
use roxie::remote::Attachment;
use roxie::remote::link::Link;
use roxie::remote::message::Request;
use roxie_base::descriptors::send;
use roxie_base::threads::{as_user, lock};
use roxie_nic::nic::Command;
use roxie_nic::shared::HostMemory;
use roxie_nic::shared::remote_memory::silent::{SilentFile, SilentMemory};
use roxie_nic::verbs::{Access, OpenXrcd, QpState, SendWr, WrOpcode};

/// The user of clients that do not answer.
const USER: u32 = 65534;

impl Nic {
    /// Another client comes, is served, and goes.
    pub(super) fn serves_others(&self) {
        let socket = self.connect();
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let served = self.daemon.served().len();
        let other = self.admitted_by(socket).expect("let in");
        other.call(Command::AllocPd).expect("served");
        drop(other);
        self.wait("its end", |nic| nic.daemon.served().len() <= served);
    }

    /// Ends it, and returns the last change. Nothing has the NIC any more, whatever threads are left.
    pub(super) fn end(self) -> ClientChange {
        let Nic { daemon, changes, .. } = self;
        let inner = Arc::downgrade(&daemon.inner);
        let (sender, ended) = channel();
        let ends = std::thread::spawn(move || {
            drop(daemon);
            let _ = sender.send(());
        });
        ended.recv_timeout(PATIENCE).expect("the NIC ends");
        ends.join().expect("no panic");
        assert!(inner.upgrade().is_none());
        lock(&changes).last().cloned().expect("a change")
    }
}

/// The memory is read to send a message, or written by a peer.
#[test]
fn silent_memory_fails_its_qps_alone() {
    for is_written in [false, true] {
        let silent = match SilentMemory::new() {
            Ok(silent) => silent,
            Err(error) => {
                println!("SKIP silent_memory_fails_its_qps_alone: no FUSE file system: {error}");
                return;
            }
        };
        let nic = nic(Quota::default());
        let mut honest = Couple::new([attached(&nic), attached(&nic)], 1);
        let pair = Pair::between([nic.daemon.inner.registry.device.clone(), nic.remote.clone()]);
        let (qp, other) = (&pair.qp, &pair.peer_memory);
        let shares = nic.daemon.inner.registry.shares_of(USER);
        copies::start(&silent.memory, shares).expect("a thread");
        let mapped = [0u8; 64];
        let memory = HostMemory::remote(&silent.memory, mapped.as_ptr() as u64, mapped.len(), false);
        let region = pair.pd.register_memory(memory, Access::READ_WRITE).expect("room");
        let to = |of: &MemoryRegion| SendWr {
            opcode: WrOpcode::Write,
            remote_addr: of.address(),
            rkey: of.rkey(),
            ..SendWr::default()
        };
        match is_written {
            true => pair.peer.post_send(&to(&region), &[other.sge(0, 64)]).expect("room"),
            false => qp.post_send(&to(other), &[region.sge(0, 64)]).expect("room"),
        }
        nic.wait("its end", |_| silent.memory.is_abandoned());
        honest.exchange(|| ());
        assert_eq!(qp.query().expect("its own").state, QpState::Err);
        assert!(!nic.daemon.has_failed());
        drop(silent);
        honest.exchange(|| ());
    }
}

/// A user keeps at most one thread of the NIC blocked.
#[test]
fn silent_user_is_refused_until_memory_answers() {
    let nic = nic(Quota::default());
    let uid = nix::unistd::getuid().as_raw();
    let memory = attached(&nic);
    let client = Arc::clone(&lock(&nic.daemon.inner.clients)[0]);
    client.memory.abandon();
    nic.wait("the end of its service", |nic| nic.daemon.served().is_empty());
    assert!(nic.daemon.inner.registry.is_silent(uid) && !nic.daemon.inner.registry.is_silent(uid + 1));
    let refused = Attachment::open(&nic.interface).expect_err("its user waits").to_string();
    assert!(refused.contains("does not answer"), "{refused}");
    drop((client, memory));
}

/// A client hands over a file that does not answer, as its memory or with a request. Others come and are served, and
/// the NIC ends.
#[test]
fn silent_file_stops_its_client_alone() {
    let hand_over: [fn(&Nic, BorrowedFd<'_>) -> Link; 4] = [
        |nic, file| {
            let link = Link::new(as_user(USER, || nic.connect()).expect("root"));
            answer_to(&link, &hello(&7)).expect("it hears");
            send(link.as_fd(), &[file, file]).expect("it listens");
            link
        },
        |nic, file| request(nic, &Request::Port, file),
        |nic, file| request(nic, &Request::Arena { words: 64 }, file),
        |nic, file| request(nic, &Request::Command(Command::OpenXrcd(OpenXrcd::default())), file),
    ];
    for hand_over in hand_over {
        let silent = match SilentFile::new() {
            Ok(silent) => silent,
            Err(error) => {
                println!("SKIP silent_file_stops_its_client_alone: no FUSE file system: {error}");
                return;
            }
        };
        let nic = nic(Quota::default());
        let _link = hand_over(&nic, silent.file.as_fd());
        nic.serves_others();
        assert_eq!(nic.end(), ClientChange::StillBusy(1));
    }
}

/// Asks as a client of another user, and does not wait for the answer.
fn request(nic: &Nic, request: &Request, file: BorrowedFd<'_>) -> Link {
    let client = nic.admitted_by(as_user(USER, || nic.connect()).expect("root")).expect("served");
    client.link.send(request, &[file]).expect("it listens");
    client.link
}
