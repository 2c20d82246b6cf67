//! Roxie's end of a run: its verbs API on a port of its own.

mod program;

use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use roxie::engine::Drive;
use roxie::host::{
    CompletionChannel, CompletionQueue, ConnectOptions, Device, DeviceConfig, DeviceError, Endpoint,
    MemoryRegion, OpenError, ProtectionDomain, QueuePair, Stack,
};
use roxie::port::fault::FaultConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::{XdpConfig, XdpError};
use roxie::shared::Armed;
use roxie::time::Nanos;
use roxie::verbs::{self, Mtu, Psn, QpCaps, QpState, Qpn, RKey, SendWr, Wc, WcFlags, WcOpcode, WrOpcode};
use roxie::wire::Gid;

use crate::end::{
    Access, Completion, Connection, Done, End, Ended, Local, Pair, Receive, Region, Request, Setup, State,
    Status, Unready,
};
use crate::error::Error;
use crate::network::Namespace;
use crate::pattern::{self, Mismatch};
use crate::report::SkipReason;
use crate::rows::{Family, Fault, Op, PortKind};
use program::Program;

pub use program::build_roxie;

/// How long the engine's thread looks for work before it sleeps. Its core is needed by the guest.
const SPIN: Nanos = Nanos::from_micros(200);
/// What no row may make the device count: a peer's packets are whole and meant for us, and queues are large enough.
const NEVER: [&str; 9] = [
    "rx_icrc_encapsulated",
    "rx_malformed",
    "rx_wrong_source",
    "rx_wrong_service",
    "rx_bad_pkey",
    "cq_overflow",
    "ghost_acks",
    "tx_invalid",
    "tx_failed",
];
/// Room of a queue pair's queues.
const QUEUE: u32 = 64;

/// Where Roxie works.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The namespace of its interface; `None` for the one that the runner is in (hardware peers).
    pub namespace: Option<&'a Namespace>,
    /// The interface.
    pub interface: &'a str,
    /// The interface's addresses, one per IP version that is to be tested.
    pub addresses: &'a [IpAddr],
}

/// Roxie's end at a site. Its port is opened by the first row.
pub fn open<'a>(site: &Site<'a>) -> Box<dyn Local + 'a> {
    Box::new(Roxie { site: *site, open: None, program: None, said: None })
}

struct Roxie<'a> {
    site: Site<'a>,
    open: Option<Open>,
    program: Option<Program>,
    /// The port whose mode was told last.
    said: Option<PortKind>,
}

/// An open device and what was made on it.
struct Open {
    setup: Setup,
    /// [`NEVER`] as it was before the row.
    before: [u64; NEVER.len()],
    // Fields are dropped in this order: queue pairs before what they use.
    pairs: Vec<PairObjects>,
    regions: Vec<MemoryRegion>,
    pd: ProtectionDomain,
    device: Device,
}

struct PairObjects {
    qp: QueuePair,
    cq: CompletionQueue,
    channel: CompletionChannel,
}

/// Says on which call an error came.
trait Named<T> {
    fn named(self, what: &str) -> Result<T, Error>;
}

impl<T, E: std::fmt::Display> Named<T> for Result<T, E> {
    fn named(self, what: &str) -> Result<T, Error> {
        self.map_err(|reason| Error::Local(format!("{what}: {reason}")))
    }
}

impl Fault {
    /// What the fault port is told, in its text form; `None`: there is none.
    fn config(self, seed: u64) -> Result<Option<FaultConfig>, Error> {
        let text = match self {
            Fault::None => return Ok(None),
            Fault::Loss1 => "drop=0.01",
            Fault::Loss5 => "drop=0.05",
            // Where nothing follows, the frame is late by less than the ACK timeout of a row.
            Fault::Reorder => "reorder=0.05:3:10ms",
        };
        let parsed = FaultConfig::parse(text).named("the fault")?;
        Ok(Some(FaultConfig { seed, ..parsed }))
    }
}

impl Site<'_> {
    /// Runs `f` where the interface is.
    fn within<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, Error> {
        match self.namespace {
            Some(namespace) => namespace.within(f),
            None => Ok(f()),
        }
    }

    fn address(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|a| a.is_ipv4() == (family == Family::V4))
    }

    fn open(&self, setup: &Setup) -> Result<Open, Unready> {
        let fault = setup.fault.config(setup.seed)?;
        // A held-back IPv4 frame leaves without the segments before it, and so with another identification than
        // its ICRC was made for.
        let gso = fault.is_none();
        let stack = Stack { fault, capture: setup.capture.clone() };
        let config = DeviceConfig {
            drive: Drive::Thread { core: None, spin: SPIN },
            // The row's own numbers, so that the same row sends the same frames.
            seed: Some(setup.seed),
            ..DeviceConfig::default()
        };
        let (interface, addresses) = (self.interface, self.addresses.to_vec());
        let device = self.within(move || match setup.port {
            PortKind::Xdp => {
                let xdp = XdpConfig { addresses, ..XdpConfig::new(interface) };
                Device::open_xdp(&xdp, &stack, &config)
            }
            PortKind::Udp => {
                let interface = Some(interface.to_owned());
                let udp = UdpConfig { addresses, interface, gso, ..UdpConfig::default() };
                Device::open_udp(&udp, &stack, &config)
            }
        })?;
        let device = device.map_err(unready)?;
        let pd = device.alloc_pd().named("a protection domain")?;
        Ok(Open {
            setup: setup.clone(),
            before: [0; NEVER.len()],
            pairs: Vec::new(),
            regions: Vec::new(),
            pd,
            device,
        })
    }
}

/// A port that this host does not have is no fault of Roxie's.
fn unready(error: OpenError) -> Unready {
    match error {
        OpenError::Xdp(XdpError::Unsupported { .. } | XdpError::NotPermitted { .. }) => {
            eprintln!("{error}");
            Unready::Skip(SkipReason::PortUnavailable)
        }
        other => Unready::Failed(Error::Local(format!("the port did not open: {other}"))),
    }
}

impl Open {
    fn pair(&self, pair: Pair) -> Result<&PairObjects, Error> {
        self.pairs.get(pair.key).ok_or_else(|| Error::Local(format!("there is no queue pair {}", pair.key)))
    }

    fn region(&self, region: Region) -> Result<&MemoryRegion, Error> {
        self.regions.get(region.key).ok_or_else(|| Error::Local(format!("there is no region {}", region.key)))
    }

    /// The scatter/gather list of a request: one entry or none.
    fn entries(&self, entry: Option<(Region, usize, usize)>) -> Result<Vec<verbs::Sge>, Error> {
        let Some((region, offset, length)) = entry else { return Ok(Vec::new()) };
        let length = u32::try_from(length).named("the length of an entry")?;
        Ok(vec![self.region(region)?.sge(offset, length)])
    }

    fn never(&self) -> [u64; NEVER.len()] {
        let counters = self.device.counters();
        let of = |name| counters.iter().filter(|(n, _)| *n == name).map(|(_, value)| value).sum();
        NEVER.map(of)
    }

    /// True if a new row may use the device that the last one opened.
    fn serves(&self, setup: &Setup) -> bool {
        let plain = |s: &Setup| s.fault == Fault::None && s.capture.is_none();
        self.setup.port == setup.port && plain(&self.setup) && plain(setup)
    }

    fn endpoint(&self, family: Family, qpn: Qpn, psn: u32) -> Result<Endpoint, Error> {
        let entry = self.device.gids().into_iter().find(|e| e.gid.is_ipv4() == (family == Family::V4));
        let entry = entry.ok_or_else(|| Error::Local(format!("the device has no {family} GID")))?;
        Ok(Endpoint { qpn, psn: Psn::new(psn), gid: entry.gid })
    }
}

impl Roxie<'_> {
    fn open(&self) -> Result<&Open, Error> {
        self.open.as_ref().ok_or_else(|| Error::Local("no port is open: prepare comes first".into()))
    }

    fn open_mut(&mut self) -> Result<&mut Open, Error> {
        self.open.as_mut().ok_or_else(|| Error::Local("no port is open: prepare comes first".into()))
    }
}

impl End for Roxie<'_> {
    fn address(&mut self, family: Family) -> Result<IpAddr, Error> {
        let found = self.site.address(family);
        found.ok_or_else(|| Error::Local(format!("{} has no {family} address", self.site.interface)))
    }

    fn register(&mut self, size: usize, access: Access) -> Result<Region, Error> {
        let mut rights = verbs::Access::LOCAL_WRITE;
        rights.set(verbs::Access::REMOTE_READ, access.read);
        rights.set(verbs::Access::REMOTE_WRITE, access.write);
        rights.set(verbs::Access::REMOTE_ATOMIC, access.atomic);
        let open = self.open_mut()?;
        let region = open.pd.register(size, rights).named("register")?;
        let made = Region { key: open.regions.len(), addr: region.address(), rkey: region.rkey().0 };
        open.regions.push(region);
        Ok(made)
    }

    fn fill(&mut self, region: Region, range: Range<usize>, seed: u64) -> Result<(), Error> {
        let mut bytes = vec![0; range.len()];
        pattern::fill(&mut bytes, seed);
        self.open()?.region(region)?.write_at(range.start, &bytes).named("fill")
    }

    fn mismatch(
        &mut self,
        region: Region,
        range: Range<usize>,
        seed: u64,
    ) -> Result<Option<Mismatch>, Error> {
        let bytes = self.open()?.region(region)?.to_vec(range.start, range.len()).named("check")?;
        Ok(pattern::mismatch(&bytes, seed))
    }

    fn store(&mut self, region: Region, offset: usize, value: u64) -> Result<(), Error> {
        self.open()?.region(region)?.write_at(offset, &value.to_ne_bytes()).named("store")
    }

    fn load(&mut self, region: Region, offset: usize) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.open()?.region(region)?.read_at(offset, &mut bytes).named("load")?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn create_pair(&mut self) -> Result<Pair, Error> {
        let open = self.open_mut()?;
        let objects = open.create_pair().named("create a queue pair")?;
        let made = Pair { key: open.pairs.len(), qpn: objects.qp.qpn().value() };
        open.pairs.push(objects);
        Ok(made)
    }

    fn connect(&mut self, pair: Pair, c: &Connection) -> Result<(), Error> {
        let open = self.open()?;
        let here = open.endpoint(c.family, Qpn::new(pair.qpn), c.sq_psn)?;
        let there =
            Endpoint { qpn: Qpn::new(c.remote_qpn), psn: Psn::new(c.rq_psn), gid: Gid::from(c.remote) };
        let options = ConnectOptions {
            path_mtu: Some(Mtu::from_bytes(c.mtu).ok_or(c.mtu).named("no path MTU")?),
            timeout: c.timeout,
            retry_cnt: c.retry,
            rnr_retry: c.rnr_retry,
            ..ConnectOptions::default()
        };
        let qp = &open.pair(pair)?.qp;
        // Neighbours are asked for in the calling thread's network namespace.
        self.site.within(|| qp.connect(&here, &there, &options))?.named("connect")
    }

    fn post_receive(&mut self, pair: Pair, receive: &Receive) -> Result<(), Error> {
        let open = self.open()?;
        let entries = open.entries(receive.to)?;
        open.pair(pair)?.qp.post_recv(receive.wr_id, &entries).named("post a receive")
    }

    fn post_send(&mut self, pair: Pair, request: &Request) -> Result<(), Error> {
        let open = self.open()?;
        let entries = open.entries(request.local)?;
        let wr = SendWr {
            wr_id: request.wr_id,
            opcode: opcode(request.op),
            imm: request.imm,
            remote_addr: request.remote_addr,
            rkey: RKey(request.rkey),
            compare_add: request.compare_add,
            swap: request.swap,
            ..SendWr::default()
        };
        open.pair(pair)?.qp.post_send(&wr, &entries).named("post a request")
    }

    fn poll(&mut self, pair: Pair, least: usize, timeout: Duration) -> Result<Vec<Completion>, Error> {
        let objects = self.open()?.pair(pair)?;
        let until = Instant::now() + timeout;
        let mut seen = Vec::new();
        loop {
            // Armed first: what comes after this look raises an event.
            objects.cq.arm(Armed::Next);
            seen.extend(std::iter::from_fn(|| objects.cq.poll_one()).map(|wc| completion(&wc)));
            let left = until.saturating_duration_since(Instant::now());
            if seen.len() >= least || left.is_zero() {
                return Ok(seen);
            }
            objects.channel.wait(left);
        }
    }

    fn state(&mut self, pair: Pair) -> Result<State, Error> {
        Ok(match self.open()?.pair(pair)?.qp.query().named("query")?.state {
            QpState::Reset => State::Reset,
            QpState::Init => State::Init,
            QpState::Rtr => State::Rtr,
            QpState::Rts => State::Rts,
            QpState::Sqd => State::Sqd,
            QpState::Sqe => State::Sqe,
            QpState::Err => State::Err,
        })
    }

    fn reset(&mut self) -> Result<(), Error> {
        let open = self.open_mut()?;
        open.pairs.clear();
        open.regions.clear();
        Ok(())
    }
}

impl Open {
    fn create_pair(&self) -> Result<PairObjects, DeviceError> {
        let channel = CompletionChannel::new()?;
        let cq = self.device.create_cq(2 * QUEUE, Some(&channel))?;
        let caps = QpCaps { max_send_wr: QUEUE, max_recv_wr: QUEUE, ..QpCaps::default() };
        let qp = self.device.create_qp(&self.pd, &cq, &cq, caps, true)?;
        qp.initialize(ConnectOptions::default().access)?;
        Ok(PairObjects { qp, cq, channel })
    }
}

fn opcode(op: Op) -> WrOpcode {
    match op {
        Op::Send => WrOpcode::Send,
        Op::SendImm => WrOpcode::SendImm,
        Op::Write => WrOpcode::Write,
        Op::WriteImm => WrOpcode::WriteImm,
        Op::Read => WrOpcode::Read,
        Op::CmpSwap => WrOpcode::CompareSwap,
        Op::FetchAdd => WrOpcode::FetchAdd,
    }
}

fn completion(wc: &Wc) -> Completion {
    let status = Status(wc.status as u32);
    let good = status == Status::SUCCESS;
    let done = match wc.opcode {
        WcOpcode::Send => Done::Request(Op::Send),
        WcOpcode::Write => Done::Request(Op::Write),
        WcOpcode::Read => Done::Request(Op::Read),
        WcOpcode::CompareSwap => Done::Request(Op::CmpSwap),
        WcOpcode::FetchAdd => Done::Request(Op::FetchAdd),
        WcOpcode::Recv => Done::Receive,
        WcOpcode::RecvWriteImm => Done::ReceiveWriteImm,
        other => panic!("the matrix posts nothing that completes as {other:?}"),
    };
    Completion {
        wr_id: wc.wr_id,
        status,
        done: good.then_some(done),
        byte_len: if good { wc.byte_len } else { 0 },
        imm: (good && wc.flags.contains(WcFlags::WITH_IMM)).then_some(wc.imm),
    }
}

impl Local for Roxie<'_> {
    fn prepare(&mut self, setup: &Setup) -> Result<(), Unready> {
        if let Some(open) = self.open.as_mut().filter(|open| open.serves(setup)) {
            open.before = open.never();
            return Ok(());
        }
        // The old one must be gone before the new one can have the interface.
        self.open = None;
        let open = self.site.open(setup)?;
        if self.said != Some(setup.port) {
            println!("roxie: {}, {}", setup.port, open.device.port().mode);
            self.said = Some(setup.port);
        }
        self.open = Some(open);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        let Some(open) = &self.open else { return Ok(()) };
        let link = open.device.take_link_error();
        let counted = NEVER.iter().zip(open.before.iter().zip(open.never()));
        let counted: Vec<String> = counted
            .filter(|(_, (before, after))| after > before)
            .map(|(name, (before, after))| format!("{name} {}", after - before))
            .collect();
        if open.setup.capture.is_some() {
            // Closing the device completes the file.
            self.open = None;
        }
        if let Some(error) = link {
            return Err(Error::Local(format!("the link failed: {error}")));
        }
        match counted.is_empty() {
            true => Ok(()),
            false => {
                Err(Error::Local(format!("the device counted what never should be: {}", counted.join(", "))))
            }
        }
    }

    fn wait_for_listener(&mut self, port: u16, timeout: Duration) -> Result<bool, Error> {
        let until = Instant::now() + timeout;
        loop {
            if self.site.within(|| program::somebody_listens(port))?? {
                return Ok(true);
            }
            if Instant::now() > until {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn pingpong(&mut self, family: Family, arguments: &[String]) -> Result<(), Error> {
        let setup = self.open()?.setup.clone();
        // The program opens the interface itself.
        self.open = None;
        let site = &self.site;
        // A device's GIDs are its addresses, in their order.
        let gid = site.addresses.iter().position(|a| Some(*a) == site.address(family));
        let gid = gid.ok_or_else(|| Error::Local(format!("{} has no {family} address", site.interface)))?;
        let mut words: Vec<String> = ["pingpong", "rc", "--dev", site.interface].map(String::from).into();
        words.extend([
            format!("--port={}", setup.port),
            format!("--gid-index={gid}"),
            "--drive=thread".into(),
        ]);
        words.extend(site.addresses.iter().map(|a| format!("--address={a}")));
        words.extend(setup.capture.map(|path| format!("--capture={}", path.display())));
        words.extend_from_slice(arguments);
        self.program = Some(Program::start(site.namespace, &program::roxie()?, &words)?);
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ended, Error> {
        match self.program.take() {
            Some(program) => program.wait(timeout),
            None => Err(Error::Local("no program was started".into())),
        }
    }
}
