//! The first process: an application, which shares only queues and buffers with the engine's process.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{read, write};
use roxie::shared::work_queue::Payload;
use roxie::shared::{Armed, CompletionRing, Doorbells, HostMemory, RecvRing, Region, SendRing};
use roxie::verbs::{
    Access, AddressVector, Gid, LKey, Mtu, Psn, QpAttr, QpIndex, QpState, Qpn, RKey, SendFlags, SendWr, Sge,
    Wc, WcStatus, WrOpcode,
};

use crate::two_processes::engine::{QPS, mac};
use crate::two_processes::message::{
    ALLOC_PD, CREATE_CQ, CREATE_QP, DONE, JOIN, Link, MODIFY_QP, Message, REGISTER, words_of,
};

/// Words of memory for an application's queues.
const ARENA: usize = 1 << 16;
/// Work requests in a queue, entries in each, and completions.
pub(crate) const DEPTH: u32 = 8;
const SGES: u32 = 2;
/// Bytes of each end's buffer.
pub(crate) const LENGTH: usize = 20_000;
/// Longest wait: more than any step takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a request has no reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The engine refuses, with this reason.
    Refused(String),
    /// The engine's process has ended.
    Gone,
}

/// The application, and the engine's process that it started.
pub(crate) struct Application {
    engine: Child,
    link: Link,
    arena: Arc<Region>,
    taken: usize,
    bells: Vec<Rc<Bell>>,
}

/// The doorbells of one NIC. The application rings a descriptor of its own, so that wake-ups can be counted before they
/// are passed on.
pub(crate) struct Bell {
    doorbells: Doorbells,
    /// Word 0: number of engine threads that sleep until the bell rings.
    page: Arc<Region>,
    /// The application's descriptor.
    rung: EventFd,
    /// The engine's descriptor.
    wake: OwnedFd,
    wakeups: Cell<u64>,
}

impl Bell {
    fn new(page: &OwnedFd, wake: OwnedFd) -> Bell {
        let rung = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).expect("an eventfd");
        let own = rung.as_fd().try_clone_to_owned().expect("a descriptor");
        let doorbells = Doorbells::map(page.as_fd(), own, QPS).expect("a page of bells");
        let page = Region::map(page.as_fd(), 1).expect("a page of bells");
        Bell { doorbells, page, rung, wake, wakeups: Cell::new(0) }
    }

    fn ring(&self, qp: QpIndex) {
        self.doorbells.ring(qp);
        if let Ok(count) = self.rung.read() {
            self.wakeups.set(self.wakeups.get() + count);
            write(&self.wake, &count.to_ne_bytes()).expect("room in the counter");
        }
    }

    /// Returns how often the bell has woken the engine.
    pub(crate) fn wakeups(&self) -> u64 {
        self.wakeups.get()
    }

    /// Returns true if the engine's thread sleeps.
    pub(crate) fn engine_sleeps(&self) -> bool {
        self.page.words()[0].load(Relaxed) != 0
    }

    /// Returns true if no wake-up is pending: the engine's thread has taken each.
    pub(crate) fn is_awake(&self) -> bool {
        let mut fds = [PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).expect("a descriptor to poll") == 0
    }
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) nic: u64,
    pub(crate) qp: QpIndex,
    pub(crate) qpn: Qpn,
    pub(crate) memory: HostMemory,
    pub(crate) key: u32,
    pub(crate) cq: CompletionRing,
    pub(crate) sends: SendRing,
    pub(crate) receives: RecvRing,
    /// Descriptor that an armed queue writes.
    event: OwnedFd,
    pub(crate) bell: Rc<Bell>,
}

impl Drop for Application {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Application {
    /// Starts the engine's process and connects to it.
    pub(crate) fn start() -> Application {
        let (link, theirs) = Link::pair();
        let own = std::env::current_exe().expect("this program");
        let engine = Command::new(own)
            .args(["--exact", crate::two_processes::ENGINE_TEST, "--nocapture"])
            .env(crate::two_processes::ENGINE, "1")
            .stdin(Stdio::from(theirs.0))
            .stdout(Stdio::null())
            .spawn()
            .expect("the engine's process");
        let (arena, fd) = Region::shared(ARENA).expect("a region");
        let mut application = Application { engine, link, arena, taken: 0, bells: Vec::new() };
        let joined = application.request(&[JOIN, ARENA as u64], &[fd.as_fd()]).expect("joined");
        let mut fds = joined.fds.into_iter();
        while let (Some(page), Some(wake)) = (fds.next(), fds.next()) {
            application.bells.push(Rc::new(Bell::new(&page, wake)));
        }
        application
    }

    /// Sends a request to the engine and waits for the reply.
    pub(crate) fn request(&self, words: &[u64], fds: &[BorrowedFd<'_>]) -> Result<Message, Failure> {
        self.link.send(words, fds).map_err(|_| Failure::Gone)?;
        let mut fds = [PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(PATIENCE).expect("seconds");
        assert!(poll(&mut fds, timeout).expect("a socket to poll") > 0, "no answer within {PATIENCE:?}");
        let mut answer = self.link.receive().expect("a socket of messages").ok_or(Failure::Gone)?;
        if answer.words.remove(0) == DONE {
            return Ok(answer);
        }
        let text: Vec<u8> = answer.words.iter().map(|word| *word as u8).collect();
        Err(Failure::Refused(String::from_utf8(text).expect("text")))
    }

    /// Kills the engine's process, whatever it is doing.
    pub(crate) fn kill(&mut self) {
        let _ = self.engine.kill();
        let _ = self.engine.wait();
    }

    /// Allocates words for a queue in the arena. Returns their offset, too.
    fn place(&mut self, words: usize) -> (u64, Arc<Region>) {
        let at = self.taken;
        self.taken += words.next_multiple_of(roxie::shared::region::LINE);
        (at as u64, self.arena.part(at, words).expect("room in the arena"))
    }

    /// Creates a QP on NIC `nic`, with queues and a buffer of its own.
    pub(crate) fn end(&mut self, nic: u64) -> End {
        let pd = self.request(&[ALLOC_PD, nic], &[]).expect("a domain").words[0];

        let (memory, fd) = HostMemory::shared(LENGTH).expect("a buffer");
        let (access, start) = (Access::READ_WRITE.bits().into(), memory.address());
        let words = [REGISTER, nic, pd, access, start, LENGTH as u64];
        let key = self.request(&words, &[fd.as_fd()]).expect("registered").words[1] as u32;

        let (at, part) = self.place(CompletionRing::size(2 * DEPTH));
        let cq = CompletionRing::on(&part, 2 * DEPTH).expect("a ring");
        let made = self.request(&[CREATE_CQ, nic, at, (2 * DEPTH).into()], &[]).expect("a queue");
        let (cq_index, event) = (made.words[0], made.fds.into_iter().next().expect("its event"));

        let (sends_at, part) = self.place(SendRing::size(DEPTH, SGES, 0));
        let sends = SendRing::on(&part, DEPTH, SGES, 0).expect("a ring");
        let (receives_at, part) = self.place(RecvRing::size(DEPTH, SGES));
        let receives = RecvRing::on(&part, DEPTH, SGES).expect("a ring");
        let (depth, sges) = (DEPTH.into(), SGES.into());
        let words = [CREATE_QP, nic, pd, cq_index, sends_at, receives_at, depth, depth, sges];
        let made = self.request(&words, &[]).expect("a QP").words;
        let (qp, qpn) = (QpIndex(made[0] as u32), Qpn::new(made[1] as u32));
        let bell = Rc::clone(&self.bells[nic as usize]);
        End { nic, qp, qpn, memory, key, cq, sends, receives, event, bell }
    }

    /// Creates a connection between the two NICs.
    pub(crate) fn connection(&mut self) -> [End; 2] {
        let ends = [self.end(0), self.end(1)];
        self.connect(&ends[0], &ends[1]);
        self.connect(&ends[1], &ends[0]);
        ends
    }

    fn connect(&self, end: &End, to: &End) {
        let gid = |nic: u64| Gid::from(IpAddr::from(Ipv4Addr::new(192, 0, 2, nic as u8 + 1)));
        let init = QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::READ_WRITE),
            ..QpAttr::default()
        };
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            av: Some(AddressVector::new(
                gid(end.nic),
                gid(to.nic),
                mac(end.nic as usize),
                mac(to.nic as usize),
            )),
            path_mtu: Some(Mtu::Mtu1024),
            dest_qpn: Some(to.qpn),
            rq_psn: Some(Psn::new(to.qpn.value())),
            max_dest_rd_atomic: Some(4),
            min_rnr_timer: Some(12),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(end.qpn.value())),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(4),
            ..QpAttr::default()
        };
        for attr in [init, rtr, rts] {
            let head = [MODIFY_QP, end.nic, end.qp.0.into()];
            self.request(&[&head[..], &words_of(&attr)].concat(), &[]).expect("a legal transition");
        }
    }

    /// Sleeps until the armed queue of an end has an event.
    pub(crate) fn sleep(&self, end: &End) -> Result<(), Failure> {
        let fds = [end.event.as_fd(), self.link.as_fd()];
        let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let timeout = PollTimeout::try_from(PATIENCE).expect("seconds");
        let ready = poll(&mut fds, timeout).expect("descriptors to poll");
        assert!(ready > 0, "neither an event nor the end of the engine within {PATIENCE:?}");
        if fds[0].any() == Some(true) {
            return Ok(());
        }
        Err(Failure::Gone)
    }
}

impl End {
    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.memory.address() + offset, length, lkey: LKey(self.key) }
    }

    /// Posts a request for the buffer's first `length` bytes; at the peer, it is for `length` bytes at `offset`.
    pub(crate) fn post(&self, opcode: WrOpcode, length: u32, to: &End, offset: u64) {
        let wr = SendWr {
            wr_id: opcode as u64,
            opcode,
            flags: SendFlags::SIGNALED,
            remote_addr: to.memory.address() + offset,
            rkey: RKey(to.key),
            compare_add: 5,
            ..SendWr::default()
        };
        self.sends.post(&wr, Payload::Sges(&[self.sge(0, length)])).expect("room");
        self.ring();
    }

    pub(crate) fn receive(&self, wr_id: u64, offset: u64, length: u32) {
        if self.receives.post(wr_id, &[self.sge(offset, length)]).expect("room") {
            self.ring();
        }
    }

    pub(crate) fn ring(&self) {
        self.bell.ring(self.qp);
    }

    /// Polls until there is a completion, which must be a success.
    pub(crate) fn completion(&self) -> Wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.cq.poll() {
                assert_eq!(wc.status, WcStatus::Success);
                return wc;
            }
            assert!(start.elapsed() < PATIENCE, "no completion within {PATIENCE:?}");
            std::thread::yield_now();
        }
    }

    /// Arms the queue for the next completion. None may be pending.
    pub(crate) fn arm(&self) {
        assert!(!self.cq.arm(Armed::Next));
        assert_eq!(self.cq.poll(), None, "it would have come before the question");
    }

    /// Takes the events of the descriptor.
    pub(crate) fn take_events(&self) -> u64 {
        let mut count = [0; 8];
        read(&self.event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    pub(crate) fn fill(&self, seed: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..LENGTH).map(|i| (i * 7 + i / 251 + seed) as u8).collect();
        self.memory.write(0, &bytes).expect("its own length");
        bytes
    }

    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(offset, &mut bytes).expect("inside");
        bytes
    }
}
