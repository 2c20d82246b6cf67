//! A client's objects, memory and descriptors against the ones of other clients.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::{
    CAPS, PATIENCE, Quota, alloc_fast, create_counted_cq, create_cq, create_qp, nic, place, receives_at,
    settled,
};
use roxie::remote::message::{ArenaPlace, Memory, Request, Response};
use roxie_nic::nic::{Answer, Command, QpHandle, ReceiveSource};
use roxie_nic::shared::{EventCounter, Region, SendRing};
use roxie_nic::verbs::{QpAttr, QpCaps, QpInit, QpState, QpType};

/// The client's places are reused by others before all of its objects are destroyed.
#[test]
fn ending_client_destroys_no_qp_of_others() {
    const ITS: usize = 1500;
    const OTHERS: usize = 1200;
    let nic = nic(Quota::default());
    let (leaver, pd, cq, _) = settled(&nic);
    for _ in 1..ITS {
        leaver.qp(pd, cq, QpType::Rc).expect("room");
    }
    let (other, pd, cq, _) = settled(&nic);
    drop(leaver);
    let made: Vec<_> = (0..OTHERS).map(|_| other.qp(pd, cq, QpType::Rc).expect("room")).collect();
    nic.wait("gone", |nic| nic.daemon.served().len() == 1);
    let lost = made.iter().filter(|qp| other.call(Command::QueryQp(**qp)).is_err()).count();
    assert_eq!(lost, 0, "of {OTHERS} QPs");
}

#[test]
fn arena_is_charged_whole_pages() {
    let nic = nic(Quota { queue_bytes: 64 << 10, ..Quota::default() });
    let mut client = nic.admitted();
    (0..16).for_each(|_| client.arena(1));
    let (_region, fd) = Region::to_lend(1).expect("memory");
    client.request_with(&Request::Arena { words: 1 }, &[fd.as_fd()]).expect_err("a page more than 64 KiB");
}

/// Returns the number of this process's descriptors of an eventfd.
fn descriptors_of(event: &EventFd) -> usize {
    let id = |fd: &str| {
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        text.lines().find(|line| line.starts_with("eventfd-id")).map(str::to_owned)
    };
    let this = id(&event.as_fd().as_raw_fd().to_string());
    let all = fs::read_dir("/proc/self/fd").expect("its descriptors");
    all.flatten().filter(|fd| id(&fd.file_name().to_string_lossy()) == this).count()
}

#[test]
fn channel_of_many_queues_is_one_descriptor() {
    let nic = nic(Quota::default());
    let (client, ..) = settled(&nic);
    let channel = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("a descriptor");
    let queues: Vec<_> = (0..20)
        .map(|_| {
            let request = create_counted_cq(place(0), 8);
            match client.request_with(&request, &[channel.as_fd()]) {
                Ok(Response::Answer(Answer::Cq(cq))) => cq,
                other => panic!("{other:?}"),
            }
        })
        .collect();
    assert_eq!(descriptors_of(&channel), 2, "the client's and the NIC's");
    queues.into_iter().for_each(|cq| drop(client.call(Command::DestroyCq(cq)).expect("its own")));
    client.request(create_cq(place(0), 8)).expect("room");
    assert_eq!(descriptors_of(&channel), 1, "the client's");
}

/// A QP in error flushes posted requests immediately.
#[test]
fn endless_send_queue_delays_no_other_client() {
    const CAPACITY: u32 = 4096;
    let nic = nic(Quota::default());
    let (other, ..) = settled(&nic);
    let (mut client, pd, cq, _) = settled(&nic);
    client.arena(SendRing::size(CAPACITY, 1, 0));
    let caps = QpCaps { max_send_wr: CAPACITY, ..CAPS };
    let init = QpInit { qp_type: QpType::Rc, caps, sq_sig_all: true };
    let (sends, receives) = (ArenaPlace { arena: 1, at: 0 }, ReceiveSource::Own(receives_at(place(2048))));
    let made = client.request(create_qp(pd, (cq, cq), init, sends, receives));
    let Ok(Response::Answer(Answer::Qp(QpHandle { index: qp, .. }))) = made else { panic!("{made:?}") };
    let error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    client.call(Command::ModifyQp(qp, Box::new(error))).expect("its own");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let queue = client.arenas[1].words();
            while !over.load(Relaxed) {
                queue[0].store(queue[8].load(Relaxed) + u64::from(CAPACITY), SeqCst);
            }
        });
        client.bells.ring(qp);
        let (done, answered) = std::sync::mpsc::channel();
        let other = &other;
        scope.spawn(move || {
            (0..20).for_each(|_| drop(other.call(Command::AllocPd)));
            let _ = done.send(());
        });
        let answer = answered.recv_timeout(PATIENCE);
        over.store(true, Relaxed);
        answer.expect("other clients are served");
    });
}

/// All processes with the eventfd can change its flags, and fill its counter at any moment.
#[test]
fn full_event_counter_never_blocks_the_nic() {
    const ROUNDS: u64 = 5_000;
    let event = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("a descriptor"));
    let counter =
        EventCounter::of(event.as_fd().try_clone_to_owned().expect("a descriptor")).expect("an eventfd");
    let (raised, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let blocks = |does: bool| {
        let flags = if does { OFlag::empty() } else { OFlag::O_NONBLOCK };
        fcntl(event.as_fd(), FcntlArg::F_SETFL(flags)).expect("its flags");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                counter.raise();
                raised.fetch_add(1, Relaxed);
            }
        });
        for round in 0..ROUNDS {
            blocks(false);
            let _ = event.read();
            for _ in 0..round % 97 {
                std::hint::spin_loop();
            }
            let _ = event.write(u64::MAX - 1);
            blocks(true);
            let (before, until) = (raised.load(Relaxed), Instant::now() + PATIENCE);
            while raised.load(Relaxed) < before + 2 {
                if Instant::now() > until {
                    over.store(true, Relaxed);
                    let _ = event.read();
                    panic!("blocked in round {round}");
                }
                std::thread::yield_now();
            }
        }
        over.store(true, Relaxed);
    });
}

fn sealed(flags: MFdFlags, length: i64, filled: i64) -> std::os::fd::OwnedFd {
    let file = memfd_create("arena", flags | MFdFlags::MFD_ALLOW_SEALING).expect("a file");
    ftruncate(&file, length).expect("room");
    if filled > 0 {
        fallocate(&file, FallocateFlags::empty(), 0, filled).expect("room");
    }
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW))
        .expect("not sealed yet");
    file
}

#[test]
fn arena_with_missing_pages_is_refused() {
    const LENGTH: i64 = 2 << 20;
    let nic = nic(Quota::default());
    let client = nic.admitted();
    let request =
        |fd: BorrowedFd<'_>| client.request_with(&Request::Arena { words: LENGTH as u64 / 8 }, &[fd]);
    let normal = MFdFlags::empty();
    for (filled, why) in [(0, "nothing is there"), (LENGTH - 4096, "a page is missing")] {
        let refused = request(sealed(normal, LENGTH, filled).as_fd()).expect_err(why);
        assert_eq!(refused.errno, libc::EINVAL, "{refused:?}");
    }
    if memfd_create("huge", MFdFlags::MFD_HUGETLB).is_ok() {
        request(sealed(MFdFlags::MFD_HUGETLB, LENGTH, 0).as_fd()).expect_err("huge pages");
    }
    let whole = sealed(normal, LENGTH, LENGTH);
    request(whole.as_fd()).expect("all pages are there");
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&whole, punch, 0, LENGTH).expect_err("pages stay");
}

#[test]
fn page_list_beyond_the_limit_is_refused() {
    let nic = nic(Quota::default());
    let (mut client, pd, ..) = settled(&nic);
    client.arena(1 << 17);
    let pages = ArenaPlace { arena: 1, at: 0 };
    let request = |count| client.request(alloc_fast(pd, Memory::Null, pages, count));
    let refused = request(1 << 17).expect_err("too long");
    assert!(refused.errno == libc::EINVAL && refused.why.contains("131072"), "{refused:?}");
    request(512).expect("room");
}

#[test]
fn hole_in_doorbell_page_ends_its_client() {
    let nic = nic(Quota::default());
    let (other, ..) = settled(&nic);
    let client = nic.admitted();
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&client.fds[0], punch, 0, 4096).expect("nothing was asked for yet");
    client.request(Request::Port).expect_err("a page is missing");
    nic.wait("gone", |nic| nic.daemon.served().len() == 1);
    fallocate(&other.fds[0], punch, 0, 4096).expect_err("pages stay");
    other.call(Command::AllocPd).expect("it is served");
}
