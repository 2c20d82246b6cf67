//! A NIC without threads, in virtual time: a seed decides everything.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crossbeam_channel::Receiver;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::MsgFlags;

use super::super::{CAPS, Config, PATIENCE, Quota, RawClient, hello};
use crate::account::Accounts;
use crate::client::{Client, Session};
use crate::registry::Users;
use crate::serving::{admit, answer_next, part_from};
use crate::{ClientChange, Inner};
use roxie::host::{Device, DeviceConfig, Drive, QueuePair};
use roxie::remote::link::{Link, Pieces};
use roxie::remote::message::{Hello, Welcome};
use roxie_base::descriptors::{send, send_with};
use roxie_base::limits::Limits;
use roxie_base::threads::lock;
use roxie_base::time::{Nanos, set_virtual_time};
use roxie_engine::Engine;
use roxie_nic::nic::ObjectCounts;
use roxie_nic::shared::remote_memory::RemoteMemory;
use roxie_nic::shared::{Doorbells, Region};
use roxie_nic::verbs::{AsyncEvent, QpInit, QpType};

/// Virtual time of a turn, as in `sim`.
const TURN: Nanos = Nanos(500);
/// Words of the doorbell page of a small NIC: the count of sleepers, a summary, and a bit for each of 256 QPs.
const BELLS: usize = 8 + 8 + 4;
/// Maximum bytes of a greeting, as the NIC accepts.
const LONGEST_GREETING: usize = 4096;

/// One NIC.
pub(in super::super) struct Side {
    pub(super) inner: Arc<Inner>,
    raised: Receiver<AsyncEvent>,
    _qp1: QueuePair,
}

/// Two NICs joined by a link in memory.
pub(in super::super) struct Bench {
    pub(in super::super) sides: [Side; 2],
    now: Nanos,
    turns: u64,
    /// Questions asked, each of which runs its NIC at least once.
    requests: Arc<AtomicU64>,
}

/// A client of a NIC that no thread serves.
pub(in super::super) struct UnthreadedClient {
    inner: Arc<Inner>,
    client: Arc<Client>,
    /// `None` once the NIC serves it no more.
    session: Mutex<Option<Session>>,
    requests: Arc<AtomicU64>,
    /// The words of its doorbell page.
    pub(super) page: Arc<Region>,
    /// Handles of the same bells, for use after the client has closed its eventfd.
    pub(super) without_eventfd: Mutex<Option<Doorbells>>,
}

impl UnthreadedClient {
    /// Runs the NIC for the client's next request, or for its end.
    pub(in super::super) fn answer(&self) {
        let mut session = lock(&self.session);
        if let Some(open) = session.as_mut()
            && !answer_next(&Arc::downgrade(&self.inner), &self.client, open)
            && let Some(session) = session.take()
        {
            part_from(&Arc::downgrade(&self.inner), &self.client, session, None);
        }
        self.requests.fetch_add(1, Relaxed);
    }

    pub(super) fn slot(&self) -> u8 {
        self.client.slot
    }

    pub(super) fn is_served(&self) -> bool {
        lock(&self.session).is_some()
    }
}

impl Drop for UnthreadedClient {
    /// The client's end is closed by now: the NIC answers the requests sent, then sees the end.
    fn drop(&mut self) {
        while self.is_served() && !std::thread::panicking() {
            self.answer();
        }
    }
}

impl Side {
    fn new(device: Device, quota: Quota) -> Side {
        // The NIC's own QP1, as its connection manager has one.
        let (pd, cq) = (device.alloc_pd().expect("a domain"), device.create_cq(8, None).expect("a queue"));
        let init = QpInit { qp_type: QpType::Gsi, caps: CAPS, sq_sig_all: true };
        let _qp1 = pd.queue_pair(&cq).init(&init).create().expect("its QP1");
        let config = Config { users: Users::All, quota, ..Config::default() };
        let ignored = Box::new(|_: ClientChange| {});
        let (inner, raised) = Inner::new(device, config, ignored).expect("a NIC");
        Side { inner, raised, _qp1 }
    }

    pub(in super::super) fn engine(&self) -> &Engine {
        self.inner.registry.device.engine().expect("its own")
    }

    /// Counts the NIC's objects, and checks their consistency.
    pub(super) fn objects(&self) -> ObjectCounts {
        assert!(!self.inner.registry.device.has_failed(), "a pass panicked");
        let worker = self.engine().inspect(|worker| (worker.nic().objects(), worker.nic().inconsistency()));
        assert_eq!(worker.1, None);
        worker.0
    }

    pub(super) fn accounts(&self) -> &Accounts {
        &self.inner.registry.accounts
    }

    fn turn(&self, now: Nanos, tells_kept: bool) {
        self.engine().adjust(move |worker| worker.poll(now)).expect("a pass panicked");
        while let Ok(event) = self.raised.try_recv() {
            self.inner.notify_of(Some(event));
        }
        if tells_kept {
            self.inner.notify_of(None);
        }
        // No thread does it here.
        let clients = lock(&self.inner.clients).clone();
        clients.iter().for_each(|client| client.notifier.take(|wake| client.wake(wake)));
    }

    /// Runs a worker's steps to fall asleep, and to wake immediately.
    fn sleep(&self) {
        let bells = self.engine().inspect(|worker| worker.clients().clone());
        let sleep = bells.sleep_begins();
        let mut fds: Vec<_> =
            sleep.wake_fd().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).into_iter().collect();
        let woken = poll(&mut fds, PollTimeout::ZERO).expect("descriptors");
        drop(fds);
        sleep.ends(woken > 0);
    }
}

impl Bench {
    pub(in super::super) fn new(seed: u64, quota: Quota) -> Bench {
        set_virtual_time(Some(Nanos::ZERO));
        let limits = Limits::small();
        let (drive, seed) = (Drive::CallerOnly, Some(seed));
        let config = DeviceConfig { serves: true, drive, limits, seed, ..DeviceConfig::default() };
        let (local, remote) = Device::memory_pair(&config).expect("two devices");
        let sides = [local, remote].map(|device| Side::new(device, quota));
        Bench { sides, now: Nanos::ZERO, turns: 0, requests: Arc::default() }
    }

    /// Runs each NIC once, after a turn's time and `later` more.
    pub(in super::super) fn turn(&mut self, later: Nanos) {
        self.now = self.now + TURN + later;
        set_virtual_time(Some(self.now));
        self.turns += 1;
        for side in &self.sides {
            side.turn(self.now, self.turns.is_multiple_of(16));
            if self.turns.is_multiple_of(64) {
                side.sleep();
            }
        }
    }

    /// Returns the number of turns, including one for each request.
    pub(super) fn turns(&self) -> u64 {
        self.turns + self.requests.load(Relaxed)
    }

    /// Greets past the acceptor, with these bytes and descriptors, as this user. Returns the reason of a refusal.
    pub(super) fn greet(
        &self,
        side: usize,
        uid: u32,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<RawClient, String> {
        let inner = &self.sides[side].inner;
        let (own, nics) = UnixStream::pair().expect("two sockets");
        send_with(own.as_fd(), bytes, &[], MsgFlags::empty()).map_err(|error| error.to_string())?;
        // No thread answers in between.
        send(own.as_fd(), fds).map_err(|error| error.to_string())?;
        let mut pieces = Pieces::new(LONGEST_GREETING);
        let greeting = pieces.read(nics.as_fd()).map_err(|error| error.to_string())?;
        let hello = Hello::read(greeting.ok_or("nothing")?)?;
        let (pid, until) = (std::process::id(), Instant::now() + PATIENCE);
        let admitted = admit(&Arc::downgrade(inner), &Link::new(nics), (pid, uid), &hello, until);
        let link = Link::new(own);
        let verdict = link.receive::<Result<(), String>>().map_err(|error| error.to_string())?;
        verdict.ok_or("no answer")?.0?;
        let received = link.receive::<Result<Welcome, String>>().map_err(|error| error.to_string())?;
        let (answer, fds) = received.ok_or("no answer")?;
        let (client, session) = admitted.ok_or_else(|| answer.clone().expect_err("it was not let in"))?;
        let session = Mutex::new(Some(session));
        let (inner, requests) = (Arc::clone(inner), Arc::clone(&self.requests));
        let [page, wake, ..] = &fds[..] else { panic!("three descriptors") };
        let Welcome { slot, qps, .. } = answer.expect("let in");
        let map = |wake: OwnedFd| Doorbells::map(page.as_fd(), wake, qps).expect("its page");
        let bells = map(wake.try_clone().expect("a descriptor"));
        let other = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("a descriptor");
        let (without_eventfd, words) =
            (Mutex::new(Some(map(other.into()))), Region::map(page.as_fd(), BELLS));
        let page = words.expect("its page");
        let unthreaded = Some(UnthreadedClient { inner, client, session, requests, page, without_eventfd });
        Ok(RawClient { link, slot, unthreaded, fds, bells, arenas: Vec::new() })
    }

    /// Greets as the library does.
    pub(in super::super) fn admitted(&self, side: usize, uid: u32) -> Result<RawClient, String> {
        let secret = Box::new(0x0123_4567_89ab_cdef_u64);
        let fds = RemoteMemory::descriptors().expect("this process's own");
        self.greet(side, uid, &message(&hello(&secret)), &borrowed(&fds))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        set_virtual_time(None);
    }
}

/// Returns the bytes of a message, preceded by its length.
pub(super) fn message(what: &impl serde::Serialize) -> Vec<u8> {
    let body = postcard::to_stdvec(what).expect("a message");
    framed(&body)
}

/// Returns bytes preceded by their length.
pub(super) fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_ne_bytes(), body].concat()
}

pub(super) fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}
