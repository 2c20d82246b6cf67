//! Malicious clients of the NIC, which speak its protocol without the library.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use roxie::nic::{Answer, Command, MemoryCommand, ReceiveSource};
use roxie::random::splitmix;
use roxie::remote::link::Link;
use roxie::remote::message::{
    ArenaPlace, CLIENT_PROTOCOL, Completions, Hello, Memory, Pages, Receives, Reply, Request, Response,
    Welcome,
};
use roxie::remote::name_of;
use roxie::shared::remote_memory::RemoteMemory;
use roxie::shared::{Doorbells, Region};
use roxie::verbs::{
    Access, CqIndex, MrIndex, OpenXrcd, PdId, QpAttr, QpCaps, QpIndex, QpInit, QpState, QpType, SrqIndex,
    SrqInit,
};

/// Words of an arena.
const ARENA: usize = 1 << 14;
/// Maximum number of requests of a session.
const QUESTIONS: usize = 300;
const CAPS: QpCaps =
    QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 2, max_recv_sge: 2, max_inline: 0 };

/// Counts of each action, printed at the end for the parent process.
#[derive(Debug, Default)]
struct Tally {
    services: u64,
    done: u64,
    refused: u64,
    scribbles: u64,
    hang_ups: u64,
    refused_services: u64,
}

struct Client {
    link: Link,
    bells: Doorbells,
    arena: Arc<Region>,
    fds: Vec<OwnedFd>,
}

fn knock(interface: &str) -> std::io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name_of(interface))?)
}

impl Client {
    /// Connects a client and shares its arena with the NIC.
    fn new(interface: &str) -> std::io::Result<Client> {
        let link = Link::new(knock(interface)?);
        let secret = Box::new(7u64);
        let at = (std::ptr::from_ref(&*secret) as u64, *secret);
        let hello = Hello { version: CLIENT_PROTOCOL.version, name: "hostile".into(), secret: at };
        let memory = RemoteMemory::descriptors()?;
        link.send(&hello, &[])?;
        let refused = |why: String| std::io::Error::other(why);
        let hung_up = || refused("it hung up".into());
        let (greeting, _) = link.receive::<Result<(), String>>()?.ok_or_else(hung_up)?;
        greeting.map_err(refused)?;
        link.show(&memory.each_ref().map(AsFd::as_fd))?;
        let (welcome, fds) = link.receive::<Result<Welcome, String>>()?.ok_or_else(hung_up)?;
        let welcome = welcome.map_err(refused)?;
        let bells = Doorbells::map(fds[0].as_fd(), fds[1].try_clone()?, welcome.qps)?;
        let (arena, fd) = Region::to_lend(ARENA)?;
        link.send(&Request::Arena { words: ARENA as u64 }, &[fd.as_fd()])?;
        link.receive::<Reply>()?;
        Ok(Client { link, bells, arena, fds })
    }
}

struct Hostile {
    state: u64,
    memory: Vec<u64>,
    tally: Tally,
}

impl Hostile {
    fn below(&mut self, bound: u64) -> u64 {
        splitmix(&mut self.state) % bound
    }

    /// Returns an object name in the NIC's format, of this or another client.
    fn name(&mut self) -> u32 {
        (self.below(64) | self.below(3) << 16) as u32
    }

    fn place(&mut self) -> ArenaPlace {
        ArenaPlace { arena: 0, at: self.below(ARENA as u64 / 512) * 512 }
    }

    /// Returns part of this process's memory, no memory, or memory that does not exist.
    fn region(&mut self) -> Memory {
        let address = self.memory.as_ptr() as u64 + self.below(64) * 8;
        match self.below(5) {
            0 => Memory::Null,
            3 => Memory::InFile {
                address,
                length: 64,
                offset: self.below(1 << 14),
                is_lent: self.below(2) == 0,
            },
            1 => Memory::At { address: 8, length: self.below(1 << 30), on_demand: false },
            2 => Memory::At { address: 0, length: u64::MAX, on_demand: true },
            _ => Memory::At { address, length: self.below(2048), on_demand: false },
        }
    }

    fn request(&mut self) -> Request {
        let (pd, cq) = (PdId(self.name()), CqIndex(self.name()));
        let qp = QpIndex(self.name());
        let ring = Completions { place: self.place(), capacity: 1 << self.below(8) };
        let receives = Receives { place: self.place(), capacity: 16, max_sge: 2 };
        match self.below(24) {
            0 | 1 => Request::Command(Command::AllocPd),
            2 | 3 => MemoryCommand::CreateCq { ring, notify: None }.into(),
            4 => MemoryCommand::ResizeCq { cq, ring }.into(),
            5 | 6 => {
                let (access, start) =
                    (Access::from_bits_truncate(self.below(64) as u32), self.below(1 << 40));
                MemoryCommand::RegisterMemory { pd, access, start, memory: self.region() }.into()
            }
            7 => MemoryCommand::AllocFastMemory {
                pd,
                memory: self.region(),
                pages: Pages { place: self.place(), capacity: self.below(1 << 20) as u32 },
            }
            .into(),
            8..=10 => {
                let qp_type = [QpType::Rc, QpType::Ud, QpType::Uc, QpType::Gsi][self.below(4) as usize];
                let init = QpInit { qp_type, caps: CAPS, sq_sig_all: true };
                let (sends, receives) = (self.place(), ReceiveSource::Own(receives));
                MemoryCommand::CreateQp { pd, send_cq: cq, recv_cq: cq, init, sends, receives }.into()
            }
            11 => MemoryCommand::CreateSrq { pd, init: SrqInit::default(), ring: receives }.into(),
            12 => {
                let srq = SrqIndex(self.name());
                MemoryCommand::ModifySrq { srq, ring: Some(receives), limit: None }.into()
            }
            13 => Request::Command(Command::DestroyQp(qp)),
            14 => Request::Command(Command::DestroyCq(cq)),
            15 => Request::Command(Command::ReleaseMemory(MrIndex(self.name()))),
            16 => Request::Command(Command::OpenXrcd(OpenXrcd::default())),
            17 => Request::Command(Command::ListQps),
            18 => Request::Snapshot,
            19 => Request::Services((0..self.below(64)).map(|at| (0x0106_0000 + at, None)).collect()),
            20 => Request::Arena { words: self.below(1 << 32) },
            21 => Request::Command(Command::DeallocPd(pd)),
            _ => {
                let state = [QpState::Init, QpState::Err, QpState::Reset][self.below(3) as usize];
                let attr = QpAttr {
                    state: Some(state),
                    pkey_index: Some(0),
                    port: Some(1),
                    access: Some(Access::READ_WRITE),
                    ..QpAttr::default()
                };
                Request::Command(Command::ModifyQp(qp, Box::new(attr)))
            }
        }
    }

    /// Overwrites queues and doorbells with random values.
    fn scribble(&mut self, client: &Client) {
        let words = client.arena.words();
        for _ in 0..64 {
            let at = self.below(words.len() as u64) as usize;
            words[at].store(splitmix(&mut self.state), Relaxed);
        }
        (0..16).for_each(|_| client.bells.ring(QpIndex(self.name())));
        self.tally.scribbles += 1;
    }

    /// Runs one session, and ends it in one of several ways.
    fn be_served(&mut self, interface: &str) -> std::io::Result<()> {
        let client = Client::new(interface)?;
        self.tally.services += 1;
        let most = self.below(QUESTIONS as u64);
        for _ in 0..most {
            self.scribble(&client);
            let request = self.request();
            let fd = &client.fds[self.below(client.fds.len() as u64) as usize];
            client.link.send(&request, &[fd.as_fd()])?;
            match client.link.receive::<Reply>()? {
                Some((Ok(response), _)) => {
                    self.tally.done += u64::from(!matches!(response, Response::Answer(Answer::Done)));
                }
                Some((Err(_), _)) => self.tally.refused += 1,
                None => break,
            }
        }
        // A truncated message, an invalid message, or none.
        let mut socket = UnixStream::from(client.link.as_fd().try_clone_to_owned()?);
        match self.below(3) {
            0 => socket.write_all(&[200, 0, 0, 0, 1, 2, 3])?,
            1 => socket.write_all(&[8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])?,
            _ => {}
        }
        self.tally.hang_ups += 1;
        Ok(())
    }
}

/// Runs a served client for `time`.
pub(crate) fn program(interface: &str, time: Duration) {
    let until = Instant::now() + time;
    let mut hostile =
        Hostile { state: u64::from(std::process::id()), memory: vec![3; 1024], tally: Tally::default() };
    while Instant::now() < until {
        if hostile.be_served(interface).is_err() {
            // Refused, or disconnected by the NIC for a protocol error.
            hostile.tally.refused_services += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    println!("{:?}", hostile.tally);
}

/// Runs a client without permission: silent connections, greetings with too many descriptors, immediate disconnects.
pub(crate) fn without_permission(interface: &str, time: Duration) {
    let until = Instant::now() + time;
    let (mut held, mut knocks) = (Vec::new(), 0u64);
    while Instant::now() < until {
        if let Ok(socket) = knock(interface) {
            let link = Link::new(socket);
            if let Ok(memory) = RemoteMemory::descriptors() {
                let fds: Vec<_> = memory.iter().cycle().take(8).map(AsFd::as_fd).collect();
                let _ = link.send(&"greeting", &fds);
            }
            held.push(link);
            knocks += 1;
        }
        if held.len() > 200 {
            held.clear();
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    println!("{knocks} knocks");
}

/// QPs of which snapshots are taken, and clients that ask for them.
const QPS: u32 = 8_000;
const READERS: usize = 6;

/// Asks for snapshots in several clients, one of which has many QPs.
pub(crate) fn snapshots(interface: &str, time: Duration) {
    let until = Instant::now() + time;
    let clients: Vec<Client> =
        (0..READERS).map(|_| Client::new(interface).expect("the NIC serves it")).collect();
    let send_request = |client: &Client, request: Request| {
        client.link.send(&request, &[]).expect("the NIC lives");
        client.link.receive::<Reply>().expect("the NIC lives").expect("an answer").0
    };
    let Ok(Response::Answer(Answer::Pd(pd))) = send_request(&clients[0], Request::Command(Command::AllocPd))
    else {
        panic!("no protection domain")
    };
    let ring = Completions { place: ArenaPlace { arena: 0, at: 0 }, capacity: 4 };
    let made = send_request(&clients[0], MemoryCommand::CreateCq { ring, notify: None }.into());
    let Ok(Response::Answer(Answer::Cq(cq))) = made else { panic!("no queue: {made:?}") };
    // The queues of all are in one place: none of them is used.
    let sends = ArenaPlace { arena: 0, at: 512 };
    let receives =
        ReceiveSource::Own(Receives { place: ArenaPlace { arena: 0, at: 8192 }, capacity: 16, max_sge: 2 });
    let init = QpInit { qp_type: QpType::Rc, caps: CAPS, sq_sig_all: true };
    let create = || MemoryCommand::CreateQp { pd, send_cq: cq, recv_cq: cq, init, sends, receives };
    let count = (0..QPS).take_while(|_| send_request(&clients[0], create().into()).is_ok()).count();
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                while Instant::now() < until && send_request(client, Request::Snapshot).is_ok() {
                    taken.fetch_add(1, Relaxed);
                }
            });
        }
    });
    println!("{} snapshots of {count} QPs", taken.load(Relaxed));
}
