//! A NIC as a process (`roxie nic`): it serves any number of others, as an adapter serves the programs of its host.
//!
//! ```text
//! a process                         the NIC
//! ---------                         -------
//! connects                  ------> one thread for all connections looks whether their user is served
//! greets                    ------> finds the way to its memory, gives it a seat
//! questions                 ------> a thread for each process: is all that a question names its own? then the engine
//! events                    <------ a thread for all
//! rings its doorbells       ------> the engine, which reads work requests from the arenas,
//! polls its queues          <------ writes completions there, and copies from and to the process's memory
//! ```
//!
//! Nothing that a process writes, to its queues or to its sockets, is believed: what breaks is its own. When it ends, however that is, the
//! socket hangs up. Then its memory is fenced, its objects are taken away, and its seat is given to another some time.

mod account;
mod door;
mod guest;
mod house;
mod lent;
mod outbox;
mod owned;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::cm::Manager;
use crate::host::{ConnectionService, Device, DeviceError, Nobody};
use crate::remote::link::Link;
use crate::remote::message::{Hello, VERSION, Welcome};
use crate::remote::{AttachError, name_of, nic_of};
use crate::roster::Identity;
use crate::shared::remote_memory::RemoteMemory;
use crate::shared::{Doorbells, EventCounter};
use crate::threads::{lock, spawn_unsignalled};
use crate::verbs::{AsyncEvent, EventKind};
pub use account::Quota;
use door::{Bounds, Door, Greeting, Knock, refuse};
use guest::{Arrival, Guest, Session, Unheard};
use house::House;
pub use house::{Config, Users};

/// How often threads look whether they are to end.
const LOOK: Duration = Duration::from_millis(200);
/// Events that wait to be told.
const EVENTS: usize = 1 << 16;

/// Why a NIC does not serve.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Another one serves this interface.
    #[error(
        "{interface} has a NIC already (`roxie show processes` lists those that it serves); one is enough"
    )]
    Taken {
        /// The interface.
        interface: String,
    },
    /// A process that is no NIC has its name.
    #[error(
        "{by} has taken the name of the NIC of {interface}, @roxie/nic/{interface}: end it (`ss -xlp` lists such names)"
    )]
    Squatted {
        /// The interface.
        interface: String,
        /// The process, as far as it is known.
        by: String,
    },
    /// The system.
    #[error("{what}: {source}")]
    System {
        /// What it was asked for.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Somebody who is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its process, as it is numbered here.
    pub pid: u32,
    /// The name of its process.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// Its seat.
    pub slot: u8,
}

/// Who comes and goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visit {
    /// It is served from now on.
    Came(Served),
    /// It was not let in.
    Refused {
        /// Its process.
        pid: u32,
        /// Why.
        why: String,
    },
    /// It is served no more: its memory did not answer, which would hold up all others.
    Silent(Served),
    /// It is gone, and nothing is left of it.
    Went(Served),
}

/// Called for each visit, by the thread that serves it.
pub type Porter = Box<dyn Fn(Visit) + Send + Sync>;

/// A NIC that serves. It ends when this is dropped: those who are served are told that their device is gone.
pub struct Daemon {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
    // Nobody listens at the NIC itself: it refuses what is for none of those that it serves.
    _manager: ConnectionService<Nobody>,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon").field("house", &self.inner.house).finish_non_exhaustive()
    }
}

struct Inner {
    house: House,
    guests: Arc<Mutex<Vec<Arc<Guest>>>>,
    serving: Mutex<Vec<JoinHandle<()>>>,
    porter: Porter,
    stop: EventFd,
    stopping: AtomicBool,
}

fn system(what: &'static str) -> impl Fn(io::Error) -> DaemonError {
    move |source| DaemonError::System { what, source }
}

/// Why the name of an interface's NIC is not free.
fn taken(interface: &str) -> DaemonError {
    let by = match nic_of(interface) {
        Err(AttachError::Stranger { pid, uid, .. }) => format!("process {pid} of user {uid}"),
        Err(AttachError::Silent { .. }) => "a process that accepts no connection".to_owned(),
        _ => return DaemonError::Taken { interface: interface.to_owned() },
    };
    DaemonError::Squatted { interface: interface.to_owned(), by }
}

impl Daemon {
    /// Serves a device of this process to others of the calling thread's network namespace, for as long as it is not dropped. The
    /// device has to have been made to serve ([`DeviceConfig::serves`](crate::host::DeviceConfig::serves)).
    ///
    /// # Errors
    /// If another NIC serves the interface, or the system lacks descriptors or threads.
    pub fn start(
        device: Device,
        interface: &str,
        config: Config,
        porter: Porter,
    ) -> Result<Daemon, DaemonError> {
        let address = SocketAddr::from_abstract_name(name_of(interface)).map_err(system("the NIC's name"))?;
        let listener = UnixListener::bind_addr(&address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => taken(interface),
            _ => system("the NIC's socket")(source),
        })?;
        listener.set_nonblocking(true).map_err(system("the NIC's socket"))?;
        let manager = ConnectionService::start(&device, Manager::new(crate::cm::Config::default()), Nobody)?;
        let (inner, raised) = Inner::new(device, config, porter)?;
        let mut daemon = Daemon { inner: Arc::clone(&inner), threads: Vec::new(), _manager: manager };
        let tells = Arc::clone(&inner);
        let threads = [
            spawn_unsignalled("roxie-door", move || inner.open_door(listener)),
            spawn_unsignalled("roxie-events", move || tells.tell(&raised)),
        ];
        for thread in threads {
            daemon.threads.push(thread.map_err(system("a thread"))?);
        }
        Ok(daemon)
    }

    /// Those who are served.
    pub fn served(&self) -> Vec<Served> {
        lock(&self.inner.guests).iter().map(|guest| served(guest)).collect()
    }

    /// True if its engine has failed.
    pub fn has_failed(&self) -> bool {
        self.inner.house.device.has_failed()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Relaxed);
        let _ = self.inner.stop.write(1);
        for guest in lock(&self.inner.guests).iter() {
            guest.tell(AsyncEvent::Device(EventKind::DeviceFatal));
            guest.dismiss();
        }
        let join = |threads: Vec<JoinHandle<()>>| threads.into_iter().for_each(|thread| drop(thread.join()));
        // After the one that makes others there are no more.
        join(std::mem::take(&mut self.threads));
        join(std::mem::take(&mut *lock(&self.inner.serving)));
    }
}

fn served(guest: &Guest) -> Served {
    Served { pid: guest.pid, name: guest.name.clone(), uid: guest.uid, slot: guest.slot }
}

impl Inner {
    /// A NIC that serves, and the events that it is to [tell of](Self::tell_of).
    fn new(
        device: Device,
        config: Config,
        porter: Porter,
    ) -> Result<(Arc<Inner>, Receiver<AsyncEvent>), DaemonError> {
        let (sender, raised) = bounded(EVENTS);
        device.set_event_sink(Box::new(move |event| {
            // Full: it would be told too late to be of use.
            let _ = sender.try_send(event);
        }));
        // A kernel that refuses does so again when a client brings a channel, and the client is told why.
        let _ = EventCounter::prepare();
        let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let inner = Arc::new(Inner {
            house: House::new(device, config)?,
            guests: Arc::default(),
            serving: Mutex::default(),
            porter,
            stop: stop.map_err(|error| system("an eventfd")(error.into()))?,
            stopping: AtomicBool::new(false),
        });
        let guests = Arc::clone(&inner.guests);
        inner
            .house
            .device
            .tell_others(Box::new(move |object| lock(&guests).iter().any(|guest| guest.has(object))));
        let guests = Arc::clone(&inner.guests);
        let clients = move || lock(&guests).iter().map(|guest| guest.entry()).collect();
        inner.house.device.tell_clients(Box::new(clients));
        Ok((inner, raised))
    }

    /// Serves each process that greets.
    fn open_door(self: &Arc<Inner>, listener: UnixListener) {
        let mut door = Door::new(listener, Bounds::default());
        while !self.stopping.load(Relaxed) {
            for knock in door.wait(self.stop.as_fd(), &|uid| self.house.standing(uid)) {
                match knock {
                    Knock::Greeted(greeting) => self.receive(greeting, &mut door),
                    Knock::Refused { pid, why } => (self.porter)(Visit::Refused { pid, why }),
                }
            }
        }
    }

    /// Starts the thread that serves a process.
    fn receive(self: &Arc<Inner>, greeting: Greeting, door: &mut Door) {
        let (socket, pid) = (greeting.socket.try_clone(), greeting.pid);
        let inner = Arc::clone(self);
        let mut serving = lock(&self.serving);
        serving.retain(|thread| !thread.is_finished());
        match spawn_unsignalled("roxie-guest", move || inner.serve(greeting)) {
            Ok(thread) => serving.push(thread),
            Err(error) => {
                door.pause();
                let refused = socket.map(|socket| refuse(socket, pid, format!("a thread: {error}")));
                if let Ok(Knock::Refused { pid, why }) = refused {
                    (self.porter)(Visit::Refused { pid, why });
                }
            }
        }
    }

    /// Serves one process.
    fn serve(&self, greeting: Greeting) {
        let Greeting { socket, pid, uid, hello, fds, place } = greeting;
        let admitted = self.admit(socket, (pid, uid), hello, fds);
        drop(place);
        let Some((guest, mut session)) = admitted else { return };
        while guest.answer_next(&self.house, &mut session) {}
        self.part_from(&guest, session);
    }

    /// Lets a process in and welcomes it. `None`: it was told why not.
    fn admit(
        &self,
        socket: UnixStream,
        (pid, uid): (i32, u32),
        hello: Hello,
        fds: Vec<OwnedFd>,
    ) -> Option<(Arc<Guest>, Session)> {
        let link = Link::new(socket);
        let (guest, bells, fds) = match self.seat(&link, (pid, uid), hello, fds) {
            Ok(seated) => seated,
            Err(why) => {
                let pid = pid.cast_unsigned();
                let _ = link.send_at_once(&Err::<Welcome, _>(&why));
                (self.porter)(Visit::Refused { pid, why });
                return None;
            }
        };
        drop(link);
        let guest = Arc::new(guest);
        lock(&self.guests).push(Arc::clone(&guest));
        (self.porter)(Visit::Came(served(&guest)));
        let welcomed = guest.welcome(&self.house, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        // One that is gone already leaves as any other.
        if welcomed.is_err() || self.stopping.load(Relaxed) {
            guest.dismiss();
        }
        Some((guest, Session::new(bells)))
    }

    /// A client asks no more: takes away all that it has.
    fn part_from(&self, guest: &Arc<Guest>, session: Session) {
        guest.leave(&self.house, session);
        lock(&self.guests).retain(|other| !Arc::ptr_eq(other, guest));
        (self.porter)(Visit::Went(served(guest)));
    }

    /// Gives a process a seat. What it gets: the page of its doorbells, what rings them, its end of the socket of events.
    fn seat(
        &self,
        link: &Link,
        (pid, uid): (i32, u32),
        hello: Hello,
        fds: Vec<OwnedFd>,
    ) -> Result<(Guest, Unheard, Vec<OwnedFd>), String> {
        let said = |error: &dyn std::fmt::Display| error.to_string();
        if hello.version != VERSION {
            let theirs = hello.version;
            return Err(format!("it speaks version {theirs}, the NIC {VERSION}: use the same roxie"));
        }
        if self.house.is_silent(uid) {
            return Err(format!(
                "memory of another program of user {uid} does not answer, or did not lately"
            ));
        }
        let memory = RemoteMemory::new(fds, hello.secret).map_err(|error| said(&error))?;
        let (bells, fds, held) =
            Doorbells::for_guest(self.house.device.limits().qps).map_err(|error| said(&error))?;
        let (events, heard) = UnixStream::pair().map_err(|error| said(&error))?;
        let link = link.try_clone().map_err(|error| said(&error))?;
        let (pid, events) = (pid.cast_unsigned(), Link::new(events));
        let name: String = hello.name.chars().filter(|c| !c.is_control()).take(64).collect();
        let member = Identity { pid, uid, name: name.clone() };
        let room = self.house.room_of(uid);
        let slot = lock(&self.house.roster).admit(member, room).map_err(|denied| said(&denied))?;
        let arrival = Arrival { pid, name, uid, slot, memory, link, events };
        let fds = fds.into_iter().chain([heard.into()]).collect();
        let Config { quota, user_quota, .. } = &self.house.config;
        let account = self.house.accounts.open(uid, quota, user_quota);
        Ok((Guest::new(arrival, quota, account), (bells, held), fds))
    }

    /// Tells clients of what is raised, and of what they did not take before.
    fn tell(&self, raised: &Receiver<AsyncEvent>) {
        while !self.stopping.load(Relaxed) {
            self.tell_of(raised.recv_timeout(LOOK).ok());
        }
    }

    /// Tells those whom it concerns of an event; `None`: of events that they did not take before.
    fn tell_of(&self, event: Option<AsyncEvent>) {
        let guests = lock(&self.guests).clone();
        guests.iter().filter(|guest| guest.has_fallen_silent()).for_each(|guest| {
            self.house.note_silent(guest.uid, &guest.memory);
            (self.porter)(Visit::Silent(served(guest)));
            guest.dismiss();
        });
        match event {
            Some(event) => {
                guests.iter().filter(|guest| guest.concerns(event)).for_each(|guest| guest.tell(event));
            }
            None => guests.iter().for_each(|guest| guest.tell_kept()),
        }
    }
}
