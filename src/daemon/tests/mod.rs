//! Hostile clients, which speak to the NIC without the library and its checks.

mod bounds;
mod budgets;
mod callers;
mod campaign;
mod files;
mod foreign;
mod honest;
mod hostile;
mod isolation;
mod mine;
mod requests;
mod silent;
mod sizes;
mod tables;
mod users;
mod versions;

#[path = "../../../tests/support/kept.rs"]
mod kept;

use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{ClientChange, Config, Daemon, DaemonError, Quota, Users};
use requests::{alloc_fast, create_counted_cq, create_cq, create_qp, each_request, receives_at, resize_cq};
use roxie::host::{Device, DeviceConfig, Drive};
use roxie::remote::link::Link;
use roxie::remote::message::{
    ArenaPlace, CLIENT_PROTOCOL, Hello, Memory, Receives, Refusal, Reply, Request, Response, Welcome,
};
use roxie::remote::name_of;
use roxie_base::descriptors::send;
use roxie_base::random::splitmix;
use roxie_base::threads::lock;
use roxie_base::time::Nanos;
use roxie_nic::nic::{Answer, Command, MemoryCommand, ReceiveSource};
use roxie_nic::shared::remote_memory::RemoteMemory;
use roxie_nic::shared::{CompletionRing, Doorbells, EventCounter, RecvRing, Region, SendRing};
use roxie_nic::verbs::{
    Access, CqIndex, OpenXrcd, PdId, QpAttr, QpCaps, QpIndex, QpInit, QpState, QpType, SrqInit,
};

/// More time than any test step takes.
const PATIENCE: Duration = Duration::from_secs(10);
const CAPS: QpCaps =
    QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };

struct Nic {
    daemon: Daemon,
    interface: String,
    changes: Arc<Mutex<Vec<ClientChange>>>,
    remote: Device,
}

/// A serving NIC, on a port in memory.
fn nic(quota: Quota) -> Nic {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let interface = format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
    let drive = Drive::Thread { core: None, spin: Nanos::from_micros(20) };
    let config = DeviceConfig { serves: true, drive, ..DeviceConfig::default() };
    let (device, remote) = Device::memory_pair(&config).expect("two devices");
    let changes = Arc::<Mutex<Vec<ClientChange>>>::default();
    let noted = Arc::clone(&changes);
    let on_change = Box::new(move |change| lock(&noted).push(change));
    let config = Config { users: Users::All, quota, ..Config::default() };
    let daemon = Daemon::start(device, &interface, config, on_change).expect("it serves");
    Nic { daemon, interface, changes, remote }
}

/// A client without the library.
struct RawClient {
    link: Link,
    slot: u8,
    /// Its slot at a NIC that no thread serves.
    unthreaded: Option<campaign::UnthreadedClient>,
    /// The descriptors that an admitted client receives.
    fds: Vec<OwnedFd>,
    bells: Doorbells,
    arenas: Vec<Arc<Region>>,
}

impl Nic {
    fn connect(&self) -> UnixStream {
        let address = SocketAddr::from_abstract_name(name_of(&self.interface)).expect("a name");
        UnixStream::connect_addr(&address).expect("a NIC")
    }

    fn link(&self) -> Link {
        Link::new(self.connect())
    }

    fn greeted(&self, hello: &Hello) -> (Result<Welcome, String>, Link, Vec<OwnedFd>) {
        greet(self.link(), hello)
    }

    fn admitted(&self) -> RawClient {
        self.admitted_by(self.connect()).expect("let in")
    }

    /// Sends a greeting over a connection.
    fn admitted_by(&self, socket: UnixStream) -> Result<RawClient, String> {
        let secret = Box::new(0x0123_4567_89ab_cdef_u64);
        let (answer, link, fds) = greet(Link::new(socket), &hello(&secret));
        let Welcome { qps, slot, .. } = answer?;
        // Mapped before the first request: later mappings are refused.
        let [page, wake, ..] = &fds[..] else { panic!("three descriptors") };
        let wake = wake.try_clone().expect("a descriptor");
        let bells = Doorbells::map(page.as_fd(), wake, qps).expect("its page");
        Ok(RawClient { link, slot, unthreaded: None, fds, bells, arenas: Vec::new() })
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Nic) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < until, "{what} within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn qps(&self) -> usize {
        self.daemon.inner.registry.device.qps().len()
    }
}

fn greet(link: Link, hello: &Hello) -> (Result<Welcome, String>, Link, Vec<OwnedFd>) {
    if let Err(why) = answer_to(&link, hello) {
        return (Err(why), link, Vec::new());
    }
    hand_over_memory(&link);
    let (answer, fds) = link.receive().expect("an answer").expect("it did not hang up");
    (answer, link, fds)
}

/// Sends what a client that was heard sends next.
fn hand_over_memory(link: &Link) {
    let memory = RemoteMemory::descriptors().expect("this process's own");
    send(link.as_fd(), &memory.each_ref().map(AsFd::as_fd)).expect("it listens");
}

/// Returns the answer to a greeting.
fn answer_to(link: &Link, hello: &Hello) -> Result<(), String> {
    link.send(hello, &[]).expect("it listens");
    link.receive().expect("an answer").expect("it did not hang up").0
}

fn hello(secret: &u64) -> Hello {
    let secret = (std::ptr::from_ref(secret) as u64, *secret);
    Hello { version: CLIENT_PROTOCOL.version, name: "stranger\n".into(), secret }
}

impl RawClient {
    fn request_with(
        &self,
        request: &Request,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<Response, Refusal> {
        self.link.send(request, fds).expect("it listens");
        self.reply().expect("an answer").expect("it did not hang up")
    }

    /// Returns the NIC's answer. `None` if the NIC serves this client no more.
    fn reply(&self) -> std::io::Result<Option<Reply>> {
        self.unthreaded.iter().for_each(campaign::UnthreadedClient::answer);
        Ok(self.link.receive()?.map(|(reply, _)| reply))
    }

    fn request(&self, request: Request) -> Result<Response, Refusal> {
        self.request_with(&request, &[])
    }

    fn call(&self, command: Command) -> Result<Answer, Refusal> {
        match self.request(Request::Command(command))? {
            Response::Answer(answer) => Ok(answer),
            other => panic!("{other:?}"),
        }
    }

    fn arena(&mut self, words: usize) {
        let (region, fd) = Region::to_lend(words).expect("memory");
        let response = self.request_with(&Request::Arena { words: words as u64 }, &[fd.as_fd()]);
        assert!(matches!(response, Ok(Response::Done(true))), "{response:?}");
        self.arenas.push(region);
    }

    fn pd(&self) -> PdId {
        match self.call(Command::AllocPd) {
            Ok(Answer::Pd(pd)) => pd,
            other => panic!("{other:?}"),
        }
    }

    fn cq(&self, at: usize) -> CqIndex {
        match self.request(create_cq(place(at), 8)) {
            Ok(Response::Answer(Answer::Cq(cq))) => cq,
            other => panic!("{other:?}"),
        }
    }

    fn qp(&self, pd: PdId, cq: CqIndex, qp_type: QpType) -> Result<QpIndex, Refusal> {
        let init = QpInit { qp_type, caps: CAPS, sq_sig_all: true };
        let (sends, receives) = (place(1024), ReceiveSource::Own(receives_at(place(2048))));
        match self.request(create_qp(pd, (cq, cq), init, sends, receives))? {
            Response::Answer(Answer::Qp(handle)) => Ok(handle.index),
            other => panic!("{other:?}"),
        }
    }
}

fn place(at: usize) -> ArenaPlace {
    ArenaPlace { arena: 0, at: at as u64 }
}

/// Returns a client with a domain, a queue and a QP.
fn settled(nic: &Nic) -> (RawClient, PdId, CqIndex, QpIndex) {
    let mut client = nic.admitted();
    client.arena(4096);
    let pd = client.pd();
    let cq = client.cq(0);
    let qp = client.qp(pd, cq, QpType::Rc).expect("room");
    (client, pd, cq, qp)
}

#[test]
fn objects_of_others_cannot_be_named() {
    let nic = nic(Quota::default());
    let (victim, pd, cq, qp) = settled(&nic);
    let own = Box::new([0u64; 8]);
    let address = std::ptr::from_ref(&*own) as u64;
    let memory = Memory::At { address, length: 64, on_demand: false };
    let mr = match victim.request(Request::Memory(MemoryCommand::RegisterMemory {
        pd,
        access: Access::LOCAL_WRITE,
        start: 0x1000,
        memory,
    })) {
        Ok(Response::Answer(Answer::Memory(mr, _))) => mr,
        other => panic!("{other:?}"),
    };
    let (robber, own_pd, own_cq, own_qp) = settled(&nic);
    let error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    let plain = [
        Command::DeallocPd(pd),
        Command::DeregisterMemory(mr),
        Command::ReleaseMemory(mr),
        Command::DestroyCq(cq),
        Command::ModerateCq { cq, count: 2, period: Nanos(1) },
        Command::ModifyQp(qp, Box::new(error)),
        Command::QueryQp(qp),
        Command::SetQpControl(qp, None),
        Command::DestroyQp(qp),
    ];
    for command in plain {
        let what = format!("{command:?}");
        let refused = robber.call(command).expect_err(&what);
        assert_eq!(refused.errno, libc::EINVAL, "{what}: {refused:?}");
    }
    let (access, init) = (Access::LOCAL_WRITE, QpInit { qp_type: QpType::Rc, caps: CAPS, sq_sig_all: true });
    let mine = (place(1024), ReceiveSource::Own(receives_at(place(2048))));
    let with_memory = [
        Request::Memory(MemoryCommand::RegisterMemory { pd, access, start: 0, memory }),
        Request::Memory(MemoryCommand::ReregisterMemory {
            mr,
            pd: None,
            access: None,
            translation: Some((0, memory)),
        }),
        resize_cq(cq, place(0), 8),
        create_qp(pd, (own_cq, own_cq), init, mine.0, mine.1),
        create_qp(own_pd, (cq, own_cq), init, mine.0, mine.1),
        create_qp(own_pd, (own_cq, cq), init, mine.0, mine.1),
    ];
    for request in with_memory {
        let what = format!("{request:?}");
        assert_eq!(robber.request(request).expect_err(&what).errno, libc::EINVAL, "{what}");
    }
    // A command reserved to the process that has started the NIC.
    assert_eq!(robber.call(Command::AddQpnUnit(0)).expect_err("not for clients").errno, libc::EPERM);
    // The client sees its own QPs only.
    match robber.call(Command::ListQps) {
        Ok(Answer::Qps(qps)) => {
            assert_eq!(qps.iter().map(|qp| qp.handle.index).collect::<Vec<_>>(), [own_qp])
        }
        other => panic!("{other:?}"),
    }
    assert!(
        matches!(victim.call(Command::QueryQp(qp)), Ok(Answer::QpStatus(status)) if status.state == QpState::Reset)
    );
}

#[test]
fn ended_client_leaves_no_objects() {
    let nic = nic(Quota::default());
    let before = nic.qps();
    let (client, ..) = settled(&nic);
    assert_eq!((nic.qps(), nic.daemon.served().len()), (before + 1, 1));
    assert_eq!(
        nic.daemon.served()[0].name.to_string(),
        "stranger\u{fffd}",
        "without what would spoil a terminal"
    );
    drop(client);
    nic.wait("gone", |nic| nic.daemon.served().is_empty());
    assert_eq!(nic.qps(), before);
    let objects =
        nic.daemon.inner.registry.device.engine().expect("its own").inspect(|worker| worker.nic().objects());
    // The objects of the NIC's own QP1.
    assert_eq!((objects.pds, objects.cqs, objects.qps), (1, 1, 1), "{objects:?}");
    assert!(matches!(lock(&nic.changes)[..], [ClientChange::Admitted(_), ClientChange::Ended(_)]));
}

#[test]
fn places_outside_the_arenas_are_refused() {
    let nic = nic(Quota::default());
    let (client, pd, cq, _) = settled(&nic);
    let wrong = [
        ArenaPlace { arena: 1, at: 0 },
        ArenaPlace { arena: u32::MAX, at: 0 },
        ArenaPlace { arena: 0, at: 4096 },
        ArenaPlace { arena: 0, at: 4 },
        ArenaPlace { arena: 0, at: u64::MAX - 7 },
    ];
    for ring in wrong {
        let requests = [create_cq(ring, 8), resize_cq(cq, ring, 8), alloc_fast(pd, Memory::Null, ring, 8)];
        for request in requests {
            let what = format!("{request:?}");
            client.request(request).expect_err(&what);
        }
    }
    client.request(create_cq(place(0), u32::MAX)).expect_err("larger than the arena");
    // An arena that could shrink while the NIC uses it, or a missing one.
    let open = nix::sys::memfd::memfd_create("open", nix::sys::memfd::MFdFlags::empty()).expect("a file");
    nix::unistd::ftruncate(&open, 32768).expect("room");
    client.request_with(&Request::Arena { words: 4096 }, &[open.as_fd()]).expect_err("not sealed");
    client.request(Request::Arena { words: 4096 }).expect_err("nothing came");
    client.request_with(&Request::Arena { words: u64::MAX }, &[open.as_fd()]).expect_err("too many");
    // A descriptor that is no eventfd.
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    let request = create_counted_cq(place(0), 8);
    client.request(create_counted_cq(place(0), 8)).expect_err("nothing came");
    assert!(
        client.request_with(&request, &[reader.as_fd()]).expect_err("no eventfd").why.contains("eventfd")
    );
}

#[test]
fn overwritten_queues_and_bells_harm_no_other_client() {
    let nic = nic(Quota::default());
    let (victim, _, _, qp) = settled(&nic);
    let (vandal, ..) = settled(&nic);
    let mut word = 1u64;
    for _ in 0..200 {
        for place in vandal.arenas[0].words() {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            place.store(word >> (word & 63), Relaxed);
        }
        (0..64).for_each(|index| vandal.bells.ring(QpIndex(index)));
    }
    assert!(!nic.daemon.has_failed());
    assert!(
        matches!(victim.call(Command::QueryQp(qp)), Ok(Answer::QpStatus(status)) if status.state == QpState::Reset)
    );
}

#[test]
fn full_event_counter_does_not_block() {
    use nix::sys::eventfd::{EfdFlags, EventFd};
    // The eventfd blocks, as the eventfd of a program's completion channel may.
    let full = Arc::new(EventFd::from_flags(EfdFlags::empty()).expect("a descriptor"));
    full.write(u64::MAX - 1).expect("room for that");
    let copy = full.as_fd().try_clone_to_owned().expect("a descriptor");
    let counter = EventCounter::of(copy).expect("an eventfd");
    counter.raise();
    assert_eq!(full.read().expect("it is full"), u64::MAX);
    counter.raise();
    assert_eq!(full.read().expect("an event"), 1);
}

#[test]
fn invalid_messages_end_only_their_sender() {
    let nic = nic(Quota::default());
    let secret = Box::new(7u64);
    let refusals = [
        (Hello { version: CLIENT_PROTOCOL.version + 1, ..hello(&secret) }, "update the NIC"),
        (Hello { version: CLIENT_PROTOCOL.oldest - 1, ..hello(&secret) }, "update the library"),
        // The address is right, but the 8 bytes differ.
        (Hello { secret: (std::ptr::from_ref(&*secret) as u64, 8), ..hello(&secret) }, "does not lead"),
        (Hello { secret: (8, 7), ..hello(&secret) }, "does not lead"),
    ];
    for (hello, why) in refusals {
        let (answer, ..) = nic.greeted(&hello);
        let refused = answer.expect_err(why);
        assert!(refused.contains(why), "{refused}");
    }
    let link = nic.link();
    link.send(&(CLIENT_PROTOCOL.version, "\u{ff}"), &[]).expect("it listens");
    let answer = link.receive::<Result<Welcome, String>>().expect("an answer").expect("it did not hang up").0;
    assert!(answer.expect_err("nonsense").contains("greeting"));
    drop(nic.link());
    // Before the greeting is accepted, only a few bytes are read.
    let link = nic.link();
    link.send(&Hello { name: "x".repeat(1 << 20), ..hello(&secret) }, &[]).expect_err("it hangs up");

    let (victim, _, _, qp) = settled(&nic);
    let talker = nic.admitted();
    let long = Request::Services(vec![(0, None); 5 << 20]);
    assert!(talker.link.send(&long, &[]).is_err(), "10 MiB in which all is twice nothing");
    nic.wait("gone", |nic| nic.daemon.served().len() == 1);
    let babbler = nic.admitted();
    babbler.link.send(&vec![0xffu8; 64], &[]).expect("it listens");
    assert!(babbler.link.receive::<Reply>().expect("an end").is_none(), "it is not served any more");
    nic.wait("gone", |nic| nic.daemon.served().len() == 1);
    victim.call(Command::QueryQp(qp)).expect("still served");
}

/// Sends requests with up to three corrupted bytes or bits.
#[test]
fn corrupted_questions_are_answered() {
    const ROUNDS: u32 = 4000;
    let nic = nic(Quota::default());
    let (victim, _, _, victims) = settled(&nic);
    let (mut client, pd, cq, qp) = settled(&nic);
    let mut state = 3u64;
    let mut random = |below: usize| splitmix(&mut state) as usize % below;
    let (mut answers, mut ends) = (0, 0);
    for _ in 0..ROUNDS {
        let requests = each_request(pd, cq, qp);
        let mut bytes = postcard::to_stdvec(&requests[random(requests.len())]).expect("a message");
        for _ in 0..=random(2) {
            let (at, bit) = (random(bytes.len()), random(8));
            bytes[at] = if random(3) == 0 { random(256) as u8 } else { bytes[at] ^ 1 << bit };
        }
        // An invalid request would end the client each time.
        let Ok(request) = postcard::from_bytes::<Request>(&bytes) else { continue };
        let sent = client.link.send(&request, &[]);
        match sent.ok().and_then(|()| client.link.receive::<Reply>().ok()?) {
            Some(_) => answers += 1,
            None => {
                ends += 1;
                client = nic.admitted();
                client.arena(4096);
            }
        }
    }
    // Each valid request is answered: an ended thread is a mistake of the NIC.
    assert!(answers > ROUNDS / 4 && ends == 0, "{answers} answers, {ends} ends");
    assert!(!nic.daemon.has_failed());
    assert!(
        matches!(victim.call(Command::QueryQp(victims)), Ok(Answer::QpStatus(status)) if status.state == QpState::Reset)
    );
}

#[test]
fn quotas_hold_and_freed_resources_are_reusable() {
    let quota =
        Quota { qps: 2, cqes: 20, mrs: 2, bytes: 100, objects: 5, queue_bytes: 80 << 10, ..Quota::default() };
    let nic = nic(quota);
    let (mut client, pd, cq, qp) = settled(&nic);
    let second = client.qp(pd, cq, QpType::Rc).expect("two");
    let refused = client.qp(pd, cq, QpType::Rc).expect_err("a third");
    assert!(refused.errno == libc::ENOMEM && refused.why.contains("QPs: 3"), "{refused:?}");
    client.call(Command::DestroyQp(second)).expect("its own");
    client.qp(pd, cq, QpType::Rc).expect("two again");
    client.call(Command::DestroyQp(qp)).expect("its own");

    let cqs = |capacity| client.request(create_cq(place(512), capacity));
    assert!(cqs(13).is_err() && cqs(12).is_ok() && cqs(1).is_err());
    // A domain and two queues exist; two objects are left.
    let srq = || {
        let ring = Receives { place: place(3000), capacity: 1, max_sge: 1 };
        client.request(Request::Memory(MemoryCommand::CreateSrq { pd, init: SrqInit::default(), ring }))
    };
    let Ok(Response::Answer(Answer::Srq(srq_index, _))) = srq() else { panic!("a fourth object") };
    client.pd();
    let beyond = |refused: Result<(), Refusal>| {
        let refused = refused.expect_err("a sixth object");
        assert!(refused.why.contains("objects: 6"), "{refused:?}");
    };
    beyond(srq().map(drop));
    for command in [Command::AllocPd, Command::OpenXrcd(OpenXrcd::default())] {
        beyond(client.call(command).map(drop));
    }
    beyond(client.request(create_cq(place(512), 0)).map(drop));
    client.call(Command::DestroySrq(srq_index)).expect("its own");
    srq().expect("one again");
    let own = [0u8; 128];
    let register = |length| {
        let memory = Memory::At { address: own.as_ptr() as u64, length, on_demand: false };
        client.request(Request::Memory(MemoryCommand::RegisterMemory {
            pd,
            access: Access::empty(),
            start: 0,
            memory,
        }))
    };
    assert!(register(101).is_err());
    let Ok(Response::Answer(Answer::Memory(mr, _))) = register(60) else { panic!("60 bytes") };
    assert!(register(41).is_err() && register(40).is_ok() && register(0).is_err());
    client.call(Command::DeregisterMemory(mr)).expect("its own");
    assert!(register(60).is_ok());

    client.arena(4096);
    let (_, fd) = Region::to_lend(2048).expect("memory");
    let refused = client.request_with(&Request::Arena { words: 2048 }, &[fd.as_fd()]).expect_err("beyond");
    assert!(refused.why.contains("bytes of queues"), "{refused:?}");
}

#[test]
fn client_has_one_qp1_and_keeps_its_unit() {
    let nic = nic(Quota::default());
    let (client, pd, cq, _) = settled(&nic);
    client.qp(pd, cq, QpType::Gsi).expect("its QP1");
    assert_eq!(client.qp(pd, cq, QpType::Gsi).expect_err("one").errno, libc::EBUSY);
    let (other, ..) = settled(&nic);
    let slot = client.slot;
    assert_eq!(other.request(Request::TakeUnit(slot)).expect_err("a process has it").errno, libc::EBUSY);
    drop(client);
    nic.wait("gone", |nic| nic.daemon.served().len() == 1);
    assert!(matches!(other.request(Request::TakeUnit(slot)), Ok(Response::Done(true))));
}

#[test]
fn interface_has_one_nic_and_clients_see_end() {
    let nic = nic(Quota::default());
    let (device, _remote) =
        Device::memory_pair(&DeviceConfig { serves: true, ..DeviceConfig::default() }).expect("two");
    let second = Daemon::start(device, &nic.interface, Config::default(), Box::new(|_| {}));
    assert!(matches!(second, Err(DaemonError::Taken { .. })), "{second:?}");
    let (client, ..) = settled(&nic);
    let Nic { daemon, .. } = nic;
    drop(daemon);
    assert!(client.link.receive::<Reply>().expect("an end").is_none());
}

#[test]
fn test_queues_fit_their_places() {
    assert!(
        CompletionRing::size(16) <= 512 && RecvRing::size(4, 1) <= 1024 && SendRing::size(4, 1, 0) <= 1024
    );
}
