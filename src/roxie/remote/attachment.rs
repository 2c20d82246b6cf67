//! A process's connection to a NIC in another process.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use nix::unistd::geteuid;

use super::arenas::Arenas;
use super::client_form::ToClientForm;
use super::error::AttachError;
use super::link::Link;
use super::message::{CLIENT_PROTOCOL, Hello, NAME_QUESTION, Refusal, Reply, Request, Response, Welcome};
use super::polling;
use super::trust::{is_trusted, name_of_process};
use roxie_base::descriptors::{children, connect, peer_of};
use roxie_base::random::unguessable;
use roxie_base::roster::{Denied, PortRequest};
use roxie_base::threads::{lock, spawn_unsignalled};
use roxie_base::time::{Nanos, monotonic};
use roxie_engine::{Adapter, EventSink, Progress};
use roxie_nic::nic::{Answer, Command, ControlError};
use roxie_nic::shared::remote_memory::RemoteMemory;
use roxie_nic::shared::{CompletionRing, Doorbells, EventCounter, HostMemory, Region};
use roxie_nic::verbs::{AsyncEvent, CqIndex, EventKind, Mtu, OpenXrcd, QpIndex};
use roxie_port::PortInfo;

/// Maximum time for a NIC to accept a connection.
const CONNECT: Duration = Duration::from_secs(1);
/// Maximum time for a NIC to say whether it serves this process: it may have other clients to answer first.
const ANSWER: Duration = Duration::from_secs(10);
/// Maximum number of bytes of the message with the name of a device.
const LONGEST_NAME: usize = 128;
/// Maximum number of events that wait for the application if there is no sink.
const EVENTS: usize = 4096;

/// Returns the abstract name of the socket of an interface's NIC. Such names belong to the network namespace, as the
/// interface does.
pub fn name_of(interface: &str) -> String {
    format!("roxie/nic/{interface}")
}

/// Returns the process that is the NIC of an interface in the calling thread's network namespace. `None` if there is
/// none.
///
/// # Errors
/// If the process with the NIC's name accepts no connection, or is one that this process may not trust with its memory.
pub fn nic_of(interface: &str) -> Result<Option<u32>, AttachError> {
    Ok(connected(interface)?.map(|(_, pid)| pid))
}

/// Returns the value of [`TRUSTED_NIC`](super::TRUSTED_NIC) for programs started here. `None` if the interface has no
/// NIC that this process trusts.
pub fn trusted_nic(interface: &str) -> Option<String> {
    nic_of(interface).ok().flatten().and_then(name_of_process)
}

/// Returns the name of the device of an interface's NIC. `None` if it has none that this process trusts, or one of a
/// release that cannot be asked.
pub fn device_name_of(interface: &str) -> Option<String> {
    let (socket, _) = connected(interface).ok().flatten()?;
    socket.set_read_timeout(Some(ANSWER)).ok()?;
    let link = Link::new(socket);
    link.send(&NAME_QUESTION, &[]).ok()?;
    let (Ok(()), _) = link.receive::<Result<(), String>>().ok().flatten()? else { return None };
    link.receive_at_most::<String>(LONGEST_NAME).ok().flatten().map(|(name, _)| name)
}

/// Connects to the NIC of an interface. Returns the connection and the NIC's process. `None` if there is none.
fn connected(interface: &str) -> Result<Option<(UnixStream, u32)>, AttachError> {
    let socket = match connect(&name_of(interface), Instant::now() + CONNECT) {
        Ok(socket) => socket,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(silent_or(interface, error)),
    };
    let nic = peer_of(socket.as_fd()).map_err(|source| silent_or(interface, source))?;
    if !is_trusted(nic) {
        let own = geteuid().as_raw();
        return Err(AttachError::Stranger { interface: interface.to_owned(), nic, own });
    }
    Ok(Some((socket, nic.pid)))
}

fn silent_or(interface: &str, source: io::Error) -> AttachError {
    let interface = interface.to_owned();
    match source.kind() {
        // A read that times out fails with `WouldBlock`.
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => AttachError::Silent { interface },
        _ => AttachError::System { interface, source },
    }
}

/// The connection of a client to its NIC.
#[derive(Debug)]
pub struct Attachment {
    link: Arc<Link>,
    /// Serializes requests.
    request_turn: Mutex<()>,
    welcome: Welcome,
    bells: Doorbells,
    arenas: Arenas,
    state: Arc<State>,
    unseen: Receiver<AsyncEvent>,
    thread: Option<JoinHandle<()>>,
    events: OwnedFd,
}

/// The state of the thread that receives events.
struct State {
    has_ended: AtomicBool,
    sink: OnceLock<Mutex<EventSink>>,
    unseen: Sender<AsyncEvent>,
    /// The counters of completion queues. All are raised if the NIC ends, so that no thread waits forever.
    counters: Mutex<Vec<EventCounter>>,
    port: Mutex<PortInfo>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("is_gone", &self.has_ended).finish_non_exhaustive()
    }
}

impl State {
    fn raise(&self, event: AsyncEvent) {
        match self.sink.get() {
            Some(sink) => lock(sink)(event),
            // Without a sink, events wait for the application; those beyond the queue are lost.
            None => drop(self.unseen.try_send(event)),
        }
    }

    fn die(&self) {
        if !self.has_ended.swap(true, Relaxed) {
            self.raise(AsyncEvent::Device(EventKind::DeviceFatal));
            lock(&self.counters).iter().for_each(EventCounter::raise);
        }
    }
}

impl Attachment {
    /// Asks the NIC of an interface in the calling thread's network namespace to serve this process. `None` if there is
    /// none.
    ///
    /// # Errors
    /// If there is a NIC that does not serve this process.
    pub fn open(interface: &str) -> Result<Option<Attachment>, AttachError> {
        let system = |source| silent_or(interface, source);
        let Some((socket, _)) = connected(interface)? else { return Ok(None) };
        socket.set_read_timeout(Some(ANSWER)).map_err(system)?;
        let link = Link::new(socket);
        // The kernel's name of the process, which users know.
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned();
        let secret = unguessable();
        let secret_at = (std::ptr::from_ref(&secret) as u64, secret);
        let hello = Hello { version: CLIENT_PROTOCOL.version, name, secret: secret_at };
        let memory = RemoteMemory::descriptors()
            .map_err(|source| AttachError::Memory { interface: interface.to_owned(), source })?;
        let refused =
            |why: &str| AttachError::Refused { interface: interface.to_owned(), why: why.to_owned() };
        let hung_up = || refused("it hung up; is it of another version?");
        // A NIC that refuses a user says so without hearing the greeting.
        let sent = link.send(&hello, &[]);
        match link.receive::<Result<(), String>>().map_err(system)? {
            Some((heard, _)) => heard.map_err(|why| refused(&why))?,
            None => return Err(sent.map_or_else(system, |()| hung_up())),
        }
        let sent = link.show(&memory.each_ref().map(AsFd::as_fd));
        drop(memory);
        let answer = link.receive::<Result<Welcome, String>>().map_err(system)?;
        // The NIC has read the secret by now.
        std::hint::black_box(&secret);
        let Some((welcome, fds)) = answer else { return Err(sent.map_or_else(system, |()| hung_up())) };
        let welcome = welcome.map_err(|why| refused(&why))?;
        link.set_read_timeout(None).map_err(system)?;
        let Ok([page, wake, events]) = <[OwnedFd; 3]>::try_from(fds) else {
            return Err(refused("what came is not what a NIC hands over"));
        };
        Attachment::start(link, welcome, (page, wake, events)).map(Some).map_err(system)
    }

    fn start(
        link: Link,
        welcome: Welcome,
        (page, wake, events): (OwnedFd, OwnedFd, OwnedFd),
    ) -> io::Result<Attachment> {
        let bells = Doorbells::map(page.as_fd(), wake, welcome.qps)?;
        let (sender, unseen) = bounded(EVENTS);
        let state = Arc::new(State {
            has_ended: AtomicBool::new(false),
            sink: OnceLock::new(),
            unseen: sender,
            counters: Mutex::default(),
            port: Mutex::new(welcome.port.clone()),
        });
        children::keep_from([link.as_fd().as_raw_fd(), events.as_raw_fd()]);
        let incoming = Link::new(UnixStream::from(events.try_clone()?));
        let receiver = Arc::clone(&state);
        let thread = spawn_unsignalled("roxie-events", move || {
            while let Ok(Some((event, _))) = incoming.receive::<AsyncEvent>() {
                receiver.raise(event);
            }
            receiver.die();
        })?;
        Ok(Attachment {
            link: Arc::new(link),
            request_turn: Mutex::new(()),
            welcome,
            bells,
            arenas: Arenas::default(),
            state,
            unseen,
            thread: Some(thread),
            events,
        })
    }

    fn request_with(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Response, ControlError> {
        if self.has_ended() {
            return Err(ControlError::DeviceFatal);
        }
        let _alone = lock(&self.request_turn);
        let answer = self.link.send(request, fds).and_then(|()| self.link.receive::<Reply>());
        match answer {
            Ok(Some((Ok(response), _))) => Ok(response),
            Ok(Some((Err(Refusal { errno, why }), _))) => Err(ControlError::Refused { errno, why }),
            // A message sent or received by half cannot be resumed.
            Ok(None) | Err(_) => {
                self.link.shut();
                self.state.die();
                Err(ControlError::DeviceFatal)
            }
        }
    }

    fn answer_of(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Answer, ControlError> {
        match self.request_with(request, fds)? {
            Response::Answer(answer) => Ok(answer),
            other => Err(unexpected(&other)),
        }
    }

    /// True if the NIC has ended or closed the connection.
    fn has_ended(&self) -> bool {
        self.state.has_ended.load(Relaxed)
    }

    fn request(&self, request: &Request) -> Result<Response, ControlError> {
        self.request_with(request, &[])
    }

    /// Adds a counter that is raised if the NIC ends.
    fn remember(&self, counter: EventCounter) {
        let mut counters = lock(&self.state.counters);
        let own = counter.as_fd().as_raw_fd();
        counters.retain(|other| other.as_fd().as_raw_fd() != own && !other.is_last());
        counters.push(counter);
    }

    /// The process's slot at the NIC, with which its communication IDs begin.
    pub fn slot(&self) -> u8 {
        self.welcome.slot
    }

    /// Takes over the unit of a process of this user that has ended, in order to act for that process.
    ///
    /// # Errors
    /// If the unit is not free or was another user's, or the NIC has ended.
    pub fn take_unit(&self, unit: u8) -> Result<(), Denied> {
        self.request(&Request::TakeUnit(unit)).map(drop).map_err(denied)
    }

    /// Passes memory for the state of this process's connections that outlives the process.
    ///
    /// # Errors
    /// If the NIC has ended, or refuses the memory.
    pub fn hand_over_estate(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.request_with(&Request::OrphanTable, &[fd]).map(drop).map_err(io::Error::other)
    }

    /// Directs requests for these services to this process: (service ID, the only address or all).
    ///
    /// # Errors
    /// If this process may not have some of them ([`Roster::set_services`](roxie_base::roster::Roster::set_services)),
    /// or the NIC has ended.
    pub fn set_services(
        &self,
        services: impl IntoIterator<Item = (u64, Option<IpAddr>)>,
    ) -> Result<(), Denied> {
        self.request(&Request::Services(services.into_iter().collect())).map(drop).map_err(denied)
    }

    /// Executes a request about port numbers. Returns the number.
    ///
    /// # Errors
    /// As for [`Roster::port`](roxie_base::roster::Roster::port), and if the NIC has ended.
    pub fn port_number(&self, request: PortRequest) -> Result<u16, Denied> {
        match self.request(&Request::PortNumber(request)).map_err(denied)? {
            Response::PortNumber(number) => Ok(number),
            other => Err(denied(unexpected(&other))),
        }
    }
}

impl Adapter for Attachment {
    fn call(&self, command: Command) -> Result<Answer, ControlError> {
        let mut by = ToClientForm { arenas: &self.arenas, counter: None, file: None };
        let request = match command {
            // Records contain state that only the NIC's process has.
            Command::QueryLog(_) => return Ok(Answer::QpLog(Vec::new())),
            command if command.is_for_the_device() => {
                let why = "this is for whoever started the NIC (`roxie nic`) to say".to_owned();
                return Err(ControlError::Refused { errno: libc::EPERM, why });
            }
            Command::Memory(command) => Request::Memory(command.convert(&mut by)?),
            command => Request::Command(command),
        };
        let ToClientForm { counter, file, .. } = by;
        let fds: Vec<BorrowedFd<'_>> =
            counter.iter().map(AsFd::as_fd).chain(file.iter().map(AsFd::as_fd)).collect();
        let answer = self.answer_of(&request, &fds)?;
        if let Some(counter) = counter {
            self.remember(counter);
        }
        Ok(answer)
    }

    /// The NIC itself determines the file of the descriptor.
    fn open_xrcd(&self, open: OpenXrcd, file: Option<BorrowedFd<'_>>) -> Result<Answer, ControlError> {
        self.answer_of(&Request::Command(Command::OpenXrcd(open)), file.as_slice())
    }

    fn region(&self, words: usize) -> io::Result<Arc<Region>> {
        self.arenas.take(words, |size, fd| {
            let request = Request::Arena { words: size as u64 };
            self.request_with(&request, &[fd.as_fd()])
                .map(drop)
                .map_err(|error| io::Error::other(error.to_string()))
        })
    }

    fn memory(&self, length: usize) -> io::Result<HostMemory> {
        HostMemory::lent(length).or_else(|_| HostMemory::allocate(length))
    }

    fn ring_doorbell(&self, qp: QpIndex, _outstanding: u32, _posts: u32) {
        self.bells.ring(qp);
    }

    fn ring_for_receive(&self, qp: QpIndex) {
        self.bells.ring(qp);
    }

    fn caller_pass(&self) -> Progress {
        thread::yield_now();
        Progress::default()
    }

    fn after_empty_poll(&self, cq: CqIndex, _: &dyn Fn() -> bool, ring: &dyn Fn() -> CompletionRing) {
        polling::after_empty_poll(cq, ring);
    }

    fn now(&self) -> Nanos {
        Nanos(monotonic().saturating_sub(self.welcome.epoch))
    }

    fn is_dead(&self) -> bool {
        self.has_ended()
    }

    fn set_event_sink(&self, sink: EventSink) -> bool {
        self.state.sink.set(Mutex::new(sink)).is_ok()
    }

    fn event(&self) -> Option<AsyncEvent> {
        self.unseen.try_recv().ok()
    }

    fn raise(&self, event: AsyncEvent) {
        self.state.raise(event);
    }

    /// If the NIC has ended, the last properties known.
    fn port(&self) -> PortInfo {
        if let Ok(Response::Port(info)) = self.request(&Request::Port) {
            *lock(&self.state.port) = info;
        }
        lock(&self.state.port).clone()
    }

    /// If the NIC has ended, the smallest MTU there is.
    fn largest_mtu(&self) -> Mtu {
        match self.request(&Request::LargestMtu) {
            Ok(Response::Mtu(mtu)) => mtu,
            _ => Mtu::Mtu256,
        }
    }

    /// Returns the counters over all clients of the NIC. If the NIC has ended, none.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        match self.request(&Request::Counters) {
            Ok(Response::Counters(all)) => {
                all.into_iter().map(|(name, value)| (interned(name), value)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn served_snapshot(&self) -> Option<Vec<u8>> {
        match self.request(&Request::Snapshot) {
            Ok(Response::Snapshot(text)) => Some(text),
            _ => None,
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        children::forget([self.link.as_fd().as_raw_fd(), self.events.as_raw_fd()]);
        // The client's own end is no failure.
        self.state.has_ended.store(true, Relaxed);
        self.link.shut();
        let _ = nix::sys::socket::shutdown(self.events.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn denied(error: ControlError) -> Denied {
    Denied::new(error.errno(), error.to_string())
}

fn unexpected(response: &Response) -> ControlError {
    ControlError::Refused {
        errno: libc::EPROTO,
        why: format!("the NIC answered something else: {response:?}"),
    }
}

/// The names of counters are few, and a NIC's names never change.
fn interned(name: String) -> &'static str {
    static KNOWN: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut known = lock(&KNOWN);
    if let Some(interned) = known.iter().find(|other| **other == name) {
        return interned;
    }
    let leaked: &'static str = name.leak();
    known.push(leaked);
    leaked
}
