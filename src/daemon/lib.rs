//! A NIC as a process (`roxie nic`): serves up to 255 clients, as an adapter serves the programs of its host.
//!
//! ```no_run
//! use roxie::host::{Device, DeviceConfig, Stack};
//! use roxie::port::udp::UdpConfig;
//! use roxie_daemon::{Config, Daemon};
//!
//! let udp = UdpConfig { interface: Some("eth0".into()), ..UdpConfig::default() };
//! let device = Device::open_udp(&udp, &Stack::default(), &DeviceConfig { serves: true, ..DeviceConfig::default() })?;
//! let daemon = Daemon::start(device, "eth0", Config::default(), Box::new(|_change| {}))?;
//! std::thread::park();
//! println!("{} clients", daemon.served().len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//! client                            the NIC
//! ------                            -------
//! connects                  ------> one thread for all connections: is the user served?
//! sends its Hello           ------> that thread: version; then a thread for each client: quota
//! hands over its memory     ------> checks the descriptors, allocates a slot
//! sends requests            ------> `owned` checks that each object is the client's own; then the engine
//! receives events           <------ one thread for all clients
//! rings doorbells           ------> the engine fetches work requests from the arenas,
//! polls its queues          <------ writes completions there; a thread for each client copies from and to its memory
//! ```
//!
//! The NIC trusts nothing that a client writes to queues or sockets: a client can break only its own objects. When a
//! client ends, its socket hangs up. The NIC then fences its memory, destroys its objects and frees its slot.

#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod acceptor;
mod account;
mod client;
mod copies;
mod kernel;
mod lent;
mod memory;
mod notify;
mod outbox;
mod owned;
mod payers;
mod processor_share;
mod quota;
mod registry;
mod serving;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use nix::sys::eventfd::{EfdFlags, EventFd};

use acceptor::{Acceptor, Bounds, Greeting, Handshake, refuse};
use client::{Client, NewClient, NewDoorbells, Session};
pub use kernel::Means;
pub use quota::Quota;
use registry::Registry;
pub use registry::{Config, Users};
use roxie::host::{ConnectionService, Device, DeviceError, IgnoreEvents};
use roxie::remote::link::Link;
use roxie::remote::message::Welcome;
use roxie::remote::{AttachError, name_of, nic_of};
use roxie_base::descriptors::listen;
use roxie_base::roster::Identity;
use roxie_base::text::Foreign;
use roxie_base::threads::{lock, spawn_unsignalled};
use roxie_nic::cm::Manager;
use roxie_nic::shared::remote_memory::RemoteMemory;
use roxie_nic::shared::{Doorbells, EventCounter};
use roxie_nic::verbs::{AsyncEvent, EventKind};

/// Interval at which threads check for the end.
const LOOK: Duration = Duration::from_millis(200);
/// How long the NIC waits for its threads when it ends.
const END: Duration = Duration::from_secs(2);
/// Interval of checks whether they have ended.
const LOOK_FOR_END: Duration = Duration::from_millis(1);
/// Capacity of the queue of events for clients.
const EVENTS: usize = 1 << 16;

/// The reason why a NIC does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Another NIC serves this interface.
    #[error(
        "{interface} has a NIC already (`roxie show processes` lists those that it serves); one is enough"
    )]
    Taken {
        /// The interface.
        interface: String,
    },
    /// A process that is no NIC holds the NIC's name.
    #[error(
        "{by} has taken the name of the NIC of {interface}, @roxie/nic/{interface}: end it (`ss -xlp` lists such names)"
    )]
    Squatted {
        /// The interface.
        interface: String,
        /// The process, as far as it is known.
        by: String,
    },
    /// A system error.
    #[error("{what}: {source}")]
    System {
        /// The resource or operation requested.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// An error of the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A client of the NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its process number, in the NIC's PID namespace.
    pub pid: u32,
    /// The name of its process, as the process itself says.
    pub name: Foreign,
    /// Its user.
    pub uid: u32,
    /// Its slot.
    pub slot: u8,
}

/// A change among the clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientChange {
    /// The client is served from now on.
    Admitted(Served),
    /// The process was not admitted.
    Refused {
        /// The process number.
        pid: u32,
        /// The reason.
        why: String,
    },
    /// The client is evicted: its memory did not answer, which would block all others.
    Evicted(Served),
    /// The client has ended, and all its objects are destroyed.
    Ended(Served),
    /// The NIC has ended, except for this many threads. Each waits for a file that a client handed over, and ends with
    /// the NIC's process.
    StillBusy(usize),
}

/// Called for each change, by the thread that serves the client.
pub type OnClientChange = Box<dyn Fn(ClientChange) + Send + Sync>;

/// A NIC that serves clients. On drop it ends, and its clients get a device-fatal event.
pub struct Daemon {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
    // The NIC itself has no listeners: its manager refuses requests that name no client.
    _manager: ConnectionService<IgnoreEvents>,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon").field("registry", &self.inner.registry).finish_non_exhaustive()
    }
}

struct Inner {
    registry: Registry,
    clients: Arc<Mutex<Vec<Arc<Client>>>>,
    serving: Mutex<Vec<JoinHandle<()>>>,
    on_change: OnClientChange,
    stop: EventFd,
    stopping: AtomicBool,
}

fn system(what: &'static str) -> impl Fn(io::Error) -> DaemonError {
    move |source| DaemonError::System { what, source }
}

/// The reason why the name of an interface's NIC is not free.
fn taken(interface: &str) -> DaemonError {
    let by = match nic_of(interface) {
        Err(AttachError::Stranger { nic, .. }) => format!("process {} of {nic}", nic.pid),
        Err(AttachError::Silent { .. }) => "a process that accepts no connection".to_owned(),
        _ => return DaemonError::Taken { interface: interface.to_owned() },
    };
    DaemonError::Squatted { interface: interface.to_owned(), by }
}

impl Daemon {
    /// Starts to serve a device of this process to others in the calling thread's network namespace, until it is
    /// dropped. The device must be configured to serve ([`DeviceConfig::serves`](roxie::host::DeviceConfig::serves)).
    ///
    /// # Errors
    /// If another NIC serves the interface, or the system lacks descriptors or threads.
    pub fn start(
        device: Device,
        interface: &str,
        config: Config,
        on_change: OnClientChange,
    ) -> Result<Daemon, DaemonError> {
        let listener = listen(&name_of(interface)).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => taken(interface),
            _ => system("the NIC's socket")(source),
        })?;
        let manager =
            ConnectionService::start(&device, Manager::new(roxie_nic::cm::Config::default()), IgnoreEvents)?;
        let (inner, raised) = Inner::new(device, config, on_change)?;
        let mut daemon = Daemon { inner: Arc::clone(&inner), threads: Vec::new(), _manager: manager };
        let notifying = Arc::clone(&inner);
        let threads = [
            spawn_unsignalled("roxie-accept", move || inner.accept_clients(listener)),
            spawn_unsignalled("roxie-events", move || notifying.notify_clients(&raised)),
        ];
        for thread in threads {
            daemon.threads.push(thread.map_err(system("a thread"))?);
        }
        Ok(daemon)
    }

    /// Returns the clients.
    pub fn served(&self) -> Vec<Served> {
        lock(&self.inner.clients).iter().map(|client| served(client)).collect()
    }

    /// True if the device has failed.
    pub fn has_failed(&self) -> bool {
        self.inner.registry.device.has_failed()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Relaxed);
        let _ = self.inner.stop.write(1);
        for client in lock(&self.inner.clients).iter() {
            client.notify(AsyncEvent::Device(EventKind::DeviceFatal));
            client.dismiss();
        }
        let until = Instant::now() + END;
        // After the one that makes others there are no more.
        let own = running_at(until, std::mem::take(&mut self.threads));
        let busy = own + running_at(until, std::mem::take(&mut *lock(&self.inner.serving)));
        if busy > 0 {
            (self.inner.on_change)(ClientChange::StillBusy(busy));
        }
    }
}

/// Joins threads that end in time. Returns how many do not.
fn running_at(until: Instant, threads: Vec<JoinHandle<()>>) -> usize {
    let ends = |thread: &JoinHandle<()>| {
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK_FOR_END);
        }
        thread.is_finished()
    };
    let (ended, running): (Vec<_>, Vec<_>) = threads.into_iter().partition(ends);
    ended.into_iter().for_each(|thread| drop(thread.join()));
    running.len()
}

fn served(client: &Client) -> Served {
    Served { pid: client.pid, name: client.name.clone(), uid: client.uid, slot: client.slot }
}

impl Inner {
    /// Makes a NIC, and the queue of events for [`notify_of`](Self::notify_of).
    fn new(
        device: Device,
        config: Config,
        on_change: OnClientChange,
    ) -> Result<(Arc<Inner>, Receiver<AsyncEvent>), DaemonError> {
        let (sender, raised) = bounded(EVENTS);
        device.set_event_sink(Box::new(move |event| {
            // A full queue: the event would arrive too late to be of use, and is dropped.
            let _ = sender.try_send(event);
        }));
        // If the kernel refuses, it will do so again for a client's channel, and the client gets the reason.
        let _ = EventCounter::prepare();
        let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let inner = Arc::new(Inner {
            registry: Registry::new(device, config)?,
            clients: Arc::default(),
            serving: Mutex::default(),
            on_change,
            stop: stop.map_err(|error| system("an eventfd")(error.into()))?,
            stopping: AtomicBool::new(false),
        });
        let clients = Arc::clone(&inner.clients);
        inner
            .registry
            .device
            .set_others(Box::new(move |object| lock(&clients).iter().any(|client| client.has(object))));
        let clients = Arc::clone(&inner.clients);
        let clients = move || lock(&clients).iter().map(|client| client.entry()).collect();
        inner.registry.device.set_clients(Box::new(clients));
        Ok((inner, raised))
    }

    /// Serves each process that greets.
    fn accept_clients(self: &Arc<Inner>, listener: UnixListener) {
        let mut acceptor = Acceptor::new(listener, self.registry.device.name().to_owned(), Bounds::default());
        while !self.stopping.load(Relaxed) {
            for handshake in acceptor.wait(self.stop.as_fd(), &|uid| {
                (self.registry.class_of(uid), self.registry.payers.known(uid))
            }) {
                match handshake {
                    Handshake::Greeted(greeting) => self.receive(greeting, &mut acceptor),
                    Handshake::Refused { pid, why } => (self.on_change)(ClientChange::Refused { pid, why }),
                }
            }
        }
    }

    /// Starts the thread that serves a process.
    fn receive(self: &Arc<Inner>, greeting: Greeting, acceptor: &mut Acceptor) {
        let nic = Arc::downgrade(self);
        // The thread may have the only descriptor of the connection, and is the one to close it.
        let greeting = Arc::new(Mutex::new(Some(greeting)));
        let taken = Arc::clone(&greeting);
        let mut serving = lock(&self.serving);
        serving.retain(|thread| !thread.is_finished());
        match spawn_unsignalled("roxie-client", move || {
            let greeting = lock(&taken).take();
            greeting.into_iter().for_each(|greeting| serving::serve(&nic, greeting));
        }) {
            Ok(thread) => serving.push(thread),
            Err(error) => {
                acceptor.pause();
                let Some(Greeting { socket, pid, .. }) = lock(&greeting).take() else { return };
                if let Handshake::Refused { pid, why } = refuse(socket, pid, format!("a thread: {error}")) {
                    (self.on_change)(ClientChange::Refused { pid, why });
                }
            }
        }
    }

    /// Admits a process and sends the welcome. Returns `None` if it was refused.
    fn admit(
        &self,
        link: &Link,
        (pid, uid): (u32, u32),
        name: &str,
        memory: Result<RemoteMemory, String>,
    ) -> Option<(Arc<Client>, Session)> {
        let (client, bells, fds) =
            match memory.and_then(|memory| self.take_slot(link, (pid, uid), name, memory)) {
                Ok(admitted) => admitted,
                Err(why) => {
                    let _ = link.send_at_once(&Err::<Welcome, _>(&why));
                    (self.on_change)(ClientChange::Refused { pid, why });
                    return None;
                }
            };
        let client = Arc::new(client);
        lock(&self.clients).push(Arc::clone(&client));
        (self.on_change)(ClientChange::Admitted(served(&client)));
        let welcomed = client.welcome(&self.registry, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        // A client that has already closed its socket ends like any other.
        if welcomed.is_err() || self.stopping.load(Relaxed) {
            client.dismiss();
        }
        Some((client, Session::new(bells)))
    }

    /// Frees the slot of a client of which nothing is left.
    fn strike(&self, client: &Arc<Client>) {
        lock(&self.registry.roster).leave(client.slot);
        lock(&self.clients).retain(|other| !Arc::ptr_eq(other, client));
        (self.on_change)(ClientChange::Ended(served(client)));
    }

    /// Gives a process a slot. Returns the descriptors to pass: its doorbell page, the eventfd for ringing, its end of
    /// the event socket.
    fn take_slot(
        &self,
        link: &Link,
        (pid, uid): (u32, u32),
        name: &str,
        memory: RemoteMemory,
    ) -> Result<(Client, NewDoorbells, Vec<OwnedFd>), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let (bells, fds, held) =
            Doorbells::for_client(self.registry.device.limits().qps).map_err(|error| text(&error))?;
        let (events, receiver) = UnixStream::pair().map_err(|error| text(&error))?;
        let link = link.try_clone().map_err(|error| text(&error))?;
        let events = Link::new(events);
        // Clients only receive there. Descriptors that they sent would be closed by the thread of events.
        events.shut_input().map_err(|error| text(&error))?;
        let name = Foreign::from(name);
        let member = Identity { pid, uid, name: name.clone() };
        let notifier = self.registry.new_notifier().map_err(|error| text(&error))?;
        let room = self.registry.room_of(uid);
        let slot = {
            let mut roster = lock(&self.registry.roster);
            roster.count_as(uid, self.registry.payers.known(uid));
            roster.admit(member, room).map_err(|denied| text(&denied))?
        };
        let arrival = NewClient { pid, name, uid, slot, memory, link, events, notifier };
        let fds = fds.into_iter().chain([receiver.into()]).collect();
        let account = self.registry.open_account(uid);
        Ok((Client::new(arrival, &self.registry.config.quota, account), (bells, held), fds))
    }

    /// Passes events to the clients, new ones and those not received before.
    fn notify_clients(&self, raised: &Receiver<AsyncEvent>) {
        while !self.stopping.load(Relaxed) {
            self.notify_of(raised.recv_timeout(LOOK).ok());
        }
    }

    /// Passes an event to the clients that it concerns. `None`: retries the events not received before.
    fn notify_of(&self, event: Option<AsyncEvent>) {
        let clients = lock(&self.clients).clone();
        clients.iter().filter(|client| client.has_fallen_silent()).for_each(|client| {
            self.registry.note_silent(client.uid, &client.memory);
            (self.on_change)(ClientChange::Evicted(served(client)));
            client.dismiss();
        });
        match event {
            Some(event) => {
                clients
                    .iter()
                    .filter(|client| client.concerns(event))
                    .for_each(|client| client.notify(event));
            }
            None => clients.iter().for_each(|client| client.notify_queued()),
        }
    }
}
