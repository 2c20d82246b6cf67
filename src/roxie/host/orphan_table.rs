//! Connections of ended programs (orphans), in shared memory that outlives them.
//!
//! Each program records its connections in a table of its own ([`OrphanTable::handover_store`]), and hands it to the
//! process that outlives it: the NIC that serves it ([`DeviceSlot::orphans`]) or its launcher
//! ([`OrphanTable::register`]). The launcher [serves](OrphanListener::serve) all programs that it started. If one ends,
//! killed or not, or calls `exec`, its peers receive a DREQ at once, as they do from a kernel, which outlives its
//! programs too.
//!
//! The kernel tells of the end: it closes the program's end of their socket, which neither a child of `fork` nor the
//! program that `exec` starts has. A process number would say less: it is another in each PID namespace, and stays
//! through `exec`.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::sys::uio::pread;

use super::connections::{ConnectionService, IgnoreEvents};
use super::device::Device;
use super::device_slot::DeviceSlot;
use super::error::DeviceError;
use roxie_base::descriptors::{
    children, connect, listen, peer_of, receive_until, send, set_takes_descriptors,
};
use roxie_base::random::unguessable_text;
use roxie_nic::cm::{Config, Handover, HandoverStore, Manager};
use roxie_nic::nic::{Command, GsiRoutes};
use roxie_nic::shared::Region;
use roxie_wire::cm::CommId;

/// Capacity: connections of a program. Further connections end by their peers' timeouts.
const PLACES: usize = 8192;
/// 64-bit words of a record: state (unit, complete), seed of the manager, connection.
const PLACE: usize = 16;
/// Records that are read at a time.
const READ: usize = 256;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// State bits: the record is in use, and complete. Above them is the writer's unit plus 1.
const USED: u64 = 1;
const WHOLE: u64 = 1 << 32;
const UNIT_SHIFT: u32 = 40;
/// Maximum time to end all recorded connections. A peer that does not answer is asked for up to 1 s.
const LIMIT: Duration = Duration::from_millis(1500);
/// Interval between two checks whether all messages are sent.
const LOOK: Duration = Duration::from_millis(2);
/// Maximum time that launcher and program wait for each other. Both answer immediately unless they are stopped.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause after the system lacked descriptors or memory for a program's socket, which stays queued.
const PAUSE: Duration = Duration::from_millis(100);

/// A program's table of its connections, which outlives it.
#[derive(Debug)]
pub struct OrphanTable {
    region: Arc<Region>,
    /// The launcher's end closes when the launcher ends. `None`: a NIC has the table.
    launcher: Option<UnixStream>,
}

/// Recorded connections of ended processes, by the seed and unit of their manager.
type Orphans = HashMap<(u64, Option<u8>), Vec<Handover>>;

impl OrphanTable {
    /// Creates an empty table, and hands it to the launcher with this [name](OrphanListener::name).
    ///
    /// # Errors
    /// If there is no such launcher, it is another user's, or the system is out of memory or descriptors.
    pub fn register(launcher: &str) -> io::Result<OrphanTable> {
        let socket = connect(launcher, Instant::now() + PATIENCE)?;
        is_own(&socket)?;
        let (region, fd) = Region::shared(PLACES * PLACE)?;
        send(socket.as_fd(), &[fd.as_fd()])?;
        // A child would hide this process's end.
        children::keep_from([socket.as_raw_fd()]);
        Ok(OrphanTable { region, launcher: Some(socket) })
    }

    /// True while another process would end the connections.
    pub fn is_watched(&self) -> bool {
        self.launcher.as_ref().is_none_or(is_open)
    }

    /// Returns the recorder for a connection manager of this process. `seed` is the manager's seed, `unit` the prefix
    /// of its communication IDs.
    pub fn handover_store(&self, seed: u64, unit: Option<u8>) -> Box<dyn HandoverStore> {
        Box::new(Writer::new(&self.region, seed, unit))
    }
}

/// Fails if the process at the other end is another user's.
fn is_own(socket: &UnixStream) -> io::Result<()> {
    let peer = peer_of(socket.as_fd())?;
    if peer.is_own() {
        return Ok(());
    }
    let why = format!("the other end is a process of {peer}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// True until the other end is closed. Launcher and program say nothing more: what can be read is the end.
fn is_open(socket: &UnixStream) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    recv(socket.as_raw_fd(), &mut [0], flags) == Err(Errno::EAGAIN)
}

/// A launcher's side: the tables of the programs that it started.
#[derive(Debug)]
pub struct OrphanListener {
    name: String,
    listener: UnixListener,
    programs: Vec<(UnixStream, HandedOver)>,
}

impl OrphanListener {
    /// Starts to listen for programs.
    ///
    /// # Errors
    /// If the system is out of memory or descriptors.
    pub fn new() -> io::Result<OrphanListener> {
        let name = format!("roxie/launcher/{}", unguessable_text());
        let listener = listen(&name)?;
        // Connections inherit it.
        set_takes_descriptors(listener.as_fd(), true);
        Ok(OrphanListener { name, listener, programs: Vec::new() })
    }

    /// The name by which programs [register](OrphanTable::register): an abstract socket's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends the connections of each program that ends, until `stop` can be read and every program that had ended by
    /// then is done. `device` opens the device of the connections, and is called only if there are any. Telling the
    /// peers takes as long as they take to answer, and up to 1.5 s.
    ///
    /// # Errors
    /// The last error of `device`, for instance because another process has claimed the interface. The peers then find
    /// out by their timeouts.
    pub fn serve<E: From<DeviceError>>(
        &mut self,
        stop: BorrowedFd<'_>,
        device: impl Fn() -> Result<Device, E>,
    ) -> Result<(), E> {
        let mut result = Ok(());
        loop {
            let (stopped, connects) = self.wait(stop);
            let mut orphans = Orphans::new();
            let mut ended = false;
            self.programs.retain(|(socket, table)| {
                let lives = is_open(socket);
                if !lives {
                    ended = true;
                    orphans.extend(table.orphans());
                }
                lives
            });
            if !orphans.is_empty()
                && let Err(error) =
                    device().and_then(|device| notify_peers(orphans, &device).map_err(E::from))
            {
                result = Err(error);
            }
            if stopped && !connects && !ended {
                return result;
            }
        }
    }

    /// Waits until a program comes or ends, or `stop` can be read. Returns whether `stop` can, and whether a program
    /// came.
    fn wait(&mut self, stop: BorrowedFd<'_>) -> (bool, bool) {
        let sockets = self.programs.iter().map(|(socket, _)| socket.as_fd());
        let all = [stop, self.listener.as_fd()].into_iter().chain(sockets);
        let mut waits: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // After an error, the caller looks at all of them.
        let _ = poll(&mut waits, PollTimeout::NONE);
        let [stopped, connects] = [0, 1].map(|at| waits[at].any() == Some(true));
        if connects {
            match self.listener.accept() {
                Ok((socket, _)) => self.programs.extend(table_of(socket)),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        (stopped, connects)
    }
}

/// Receives a program's table. `None`: the program has ended before it could send it, or is another user's.
fn table_of(socket: UnixStream) -> Option<(UnixStream, HandedOver)> {
    is_own(&socket).ok()?;
    let fds = receive_until(socket.as_fd(), Instant::now() + PATIENCE).ok()??;
    let table = HandedOver::new(fds.into_iter().next()?).ok()?;
    Some((socket, table))
}

/// A table of connections in a file that a client has passed on.
#[derive(Debug)]
pub struct HandedOver(OwnedFd);

impl HandedOver {
    /// # Errors
    /// If the file is not in memory (tmpfs): reading another may block for as long as its owner likes.
    pub fn new(fd: OwnedFd) -> io::Result<HandedOver> {
        if fstatfs(&fd)?.filesystem_type() != TMPFS_MAGIC {
            let why = "what connections leave is handed over in memory (memfd_create)";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(HandedOver(fd))
    }

    /// Ends the connections of a client of `device` that has ended and had this unit. Ignores records in the name of
    /// other clients, and those beyond `most`, the maximum number of its connections.
    ///
    /// # Errors
    /// If the unit is in use, or the device has failed or has no room for a QP1.
    pub fn settle_for(&self, unit: u8, most: usize, device: &Device) -> Result<(), DeviceError> {
        let own = self.orphans().into_iter().filter(|((_, of), _)| *of == Some(unit)).collect();
        let orphans = bounded(own, most);
        if orphans.is_empty() { Ok(()) } else { notify_peers(orphans, device) }
    }

    /// Reads the file instead of mapping it: its owner may have truncated it, or punched holes.
    fn orphans(&self) -> Orphans {
        let mut orphans = Orphans::new();
        let mut bytes = vec![0; READ * PLACE * WORD];
        for first in (0..PLACES).step_by(READ) {
            let Ok(length) = pread(&self.0, &mut bytes, (first * PLACE * WORD) as i64) else { break };
            for record in bytes[..length].chunks_exact(PLACE * WORD) {
                let mut words = record
                    .chunks_exact(WORD)
                    .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
                add_record(&mut orphans, &std::array::from_fn(|_| words.next().expect("as many")));
            }
        }
        orphans
    }
}

/// Adds a complete record to `left`.
fn add_record(left: &mut Orphans, place: &[u64; PLACE]) {
    let (state, seed) = (place[0], place[1]);
    let words = std::array::from_fn(|i| place[2 + i]);
    if state & WHOLE != 0
        && let Some(handover) = Handover::from_words(&words)
    {
        let unit = (state >> UNIT_SHIFT).checked_sub(1).and_then(|unit| u8::try_from(unit).ok());
        left.entry((seed, unit)).or_default().push(handover);
    }
}

impl DeviceSlot {
    /// Makes a table for this process's connections, which the NIC ends when the process has ended. `None`: there is no
    /// such NIC.
    ///
    /// # Errors
    /// If the system is out of memory, or the NIC is gone.
    pub fn orphans(&self) -> io::Result<Option<OrphanTable>> {
        #[cfg_attr(
            not(feature = "udp"),
            expect(clippy::infallible_destructuring_match, reason = "groups are of sockets")
        )]
        let nic = match self {
            DeviceSlot::Nic(nic) => nic,
            #[cfg(feature = "udp")]
            DeviceSlot::Group(_) => return Ok(None),
        };
        let (region, fd) = Region::shared(PLACES * PLACE)?;
        nic.hand_over_estate(fd.as_fd())?;
        Ok(Some(OrphanTable { region, launcher: None }))
    }
}

/// Drops connections beyond `most`.
fn bounded(mut left: Orphans, most: usize) -> Orphans {
    let mut room = most;
    left.retain(|_, handovers| {
        handovers.truncate(room);
        room -= handovers.len();
        !handovers.is_empty()
    });
    left
}

/// Tells the peers of these connections that they have ended. Each manager gets an equal share of the remaining time.
/// Peers not told in time find out by their timeouts.
fn notify_peers(has_connections: Orphans, device: &Device) -> Result<(), DeviceError> {
    let end = Instant::now() + LIMIT;
    let managers = has_connections.len() as u32;
    for (((seed, unit), handovers), before) in has_connections.into_iter().zip(0..) {
        let now = Instant::now();
        if now >= end {
            break;
        }
        let share = (end - now) / (managers - before);
        let until = now + share;
        let mut manager = Manager::new(Config { seed, ..Config::default() });
        if let Some(unit) = unit {
            device.claim()?;
            // If another process has these numbers by now, it receives the replies and drops them. The messages are
            // sent all the same, some of them more than once.
            if let Some(slot) = device.slot().filter(|slot| slot.slot() != unit) {
                let _ = slot.take_unit(unit);
            }
            manager.set_unit(unit);
        }
        // No application is left to receive events.
        let service = ConnectionService::start(device, manager, IgnoreEvents)?;
        if let Some(unit) = unit {
            // A NIC with several QP1s must route the replies to this one. Elsewhere the replies come here anyway.
            let routes = GsiRoutes::new(vec![unit], Vec::new());
            let _ = device.execute(Command::RouteGsi(service.qp1(), Box::new(routes)));
        }
        // Messages that are sent only once need a resolved path first.
        let known = now + share / 3;
        while !handovers.iter().all(|handover| service.resolve_path(handover.route()))
            && Instant::now() < known
        {
            std::thread::sleep(LOOK);
        }
        service.with(|manager, _, now| {
            for handover in &handovers {
                // A duplicate ID is a forgery, and is ignored.
                let _ = manager.take_over(now, handover);
            }
        });
        let has_connections = || service.with(|manager, _, _| manager.connections()) > 0;
        while (has_connections() || !service.has_sent_all()) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
    Ok(())
}

/// Recorder of one connection manager.
#[derive(Debug)]
struct Writer {
    region: Arc<Region>,
    seed: u64,
    /// The state of its incomplete records.
    used: u64,
    places: HashMap<CommId, usize>,
    /// Index at which the search for a free record starts.
    next: usize,
}

impl Writer {
    fn new(region: &Arc<Region>, seed: u64, unit: Option<u8>) -> Writer {
        let used = USED | unit.map_or(0, |unit| (u64::from(unit) + 1) << UNIT_SHIFT);
        Writer { region: Arc::clone(region), seed, used, places: HashMap::new(), next: 0 }
    }

    /// Claims a free record, and returns its index.
    fn claim(&mut self) -> Option<usize> {
        let index = (0..PLACES).map(|i| (self.next + i) % PLACES).find(|index| {
            let state = &self.region.words()[index * PLACE];
            state.compare_exchange(0, self.used, Acquire, Relaxed).is_ok()
        })?;
        self.next = index + 1;
        Some(index)
    }
}

impl HandoverStore for Writer {
    fn store(&mut self, id: CommId, handover: Option<&Handover>) {
        let Some(handover) = handover else {
            if let Some(index) = self.places.remove(&id) {
                self.region.words()[index * PLACE].store(0, Release);
            }
            return;
        };
        let index = match self.places.get(&id) {
            Some(index) => *index,
            None => {
                let Some(index) = self.claim() else { return };
                self.places.insert(id, index);
                index
            }
        };
        let place = &self.region.words()[index * PLACE..][..PLACE];
        // If the process dies before the last store, the record stays incomplete.
        place[0].store(self.used, Relaxed);
        place[1].store(self.seed, Release);
        for (to, word) in place[2..].iter().zip(handover.to_words()) {
            to.store(word, Relaxed);
        }
        place[0].store(WHOLE | self.used, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::IpAddr;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::host::{DeviceConfig, Resolve, ResolveError};
    use roxie_base::time::Nanos;
    use roxie_port::memory::{self, MemoryConfig};
    use roxie_port::netdev::RouteKey;
    use roxie_wire::Gid;
    use roxie_wire::cm::Kind;

    fn handover(id: u64) -> Handover {
        let mut words = [0; Handover::WORDS];
        words[0] = id << 32;
        Handover::from_words(&words).expect("the first state")
    }

    fn table() -> (Arc<Region>, OwnedFd) {
        Region::shared(PLACES * PLACE).expect("memory")
    }

    #[test]
    fn released_record_is_reused_and_surplus_is_dropped() {
        let (region, _fd) = table();
        let (mut one, mut other) = (Writer::new(&region, 1, None), Writer::new(&region, 2, Some(7)));
        for id in 0..PLACES as u64 / 2 {
            one.store(CommId(id as u32), Some(&handover(id)));
            other.store(CommId(id as u32), Some(&handover(id)));
        }
        let states = || region.words().iter().step_by(PLACE);
        let whole = || states().filter(|state| state.load(Relaxed) & WHOLE != 0).count();
        assert_eq!(whole(), PLACES);
        one.store(CommId(u32::MAX), Some(&handover(7)));
        assert_eq!(whole(), PLACES, "the table is full");
        other.store(CommId(3), None);
        assert_eq!(whole(), PLACES - 1);
        one.store(CommId(u32::MAX), Some(&handover(7)));
        assert_eq!(whole(), PLACES);
    }

    #[test]
    fn removed_and_incomplete_records_are_not_left() {
        let (region, fd) = table();
        let mut writer = Writer::new(&region, 5, None);
        for id in [1, 2, 3] {
            writer.store(CommId(id), Some(&handover(id.into())));
        }
        writer.store(CommId(2), None);
        // The process ended while writing.
        region.words()[0].store(writer.used, Relaxed);
        let orphans = HandedOver::new(fd).expect("memory").orphans();
        assert_eq!(orphans.into_iter().collect::<Vec<_>>(), [((5, None), vec![handover(3)])]);
    }

    /// Resolves a path only at the sixth attempt.
    struct Slow(AtomicU64);

    impl Resolve for Slow {
        fn resolve(&self, _: RouteKey) -> Result<[u8; 6], ResolveError> {
            Ok([2, 0, 0, 0, 0, 2])
        }

        fn resolve_now(&self, key: RouteKey, _: bool) -> Result<Option<[u8; 6]>, ResolveError> {
            if self.0.fetch_add(1, Relaxed) < 5 { Ok(None) } else { self.resolve(key).map(Some) }
        }
    }

    /// Never resolves a path.
    struct Never;

    impl Resolve for Never {
        fn resolve(&self, _: RouteKey) -> Result<[u8; 6], ResolveError> {
            Ok([2, 0, 0, 0, 0, 2])
        }

        fn resolve_now(&self, _: RouteKey, _: bool) -> Result<Option<[u8; 6]>, ResolveError> {
            Ok(None)
        }
    }

    #[test]
    fn many_managers_are_settled_in_one_deadline() {
        let end = |n: u8| MemoryConfig { mac: [2, 0, 0, 0, 0, n], ..MemoryConfig::default() };
        let (local, _remote) = memory::pair(end(1), end(2));
        let address = IpAddr::from([192, 0, 2, 1]);
        let device =
            Device::new("test", Box::new(local), [address], Box::new(Never), &DeviceConfig::default());
        let device = device.expect("a device");
        let (region, fd) = table();
        for seed in 0..PLACES as u64 {
            let mut writer = Writer::new(&region, seed, Some(6));
            writer.store(CommId(seed as u32), Some(&handover(seed)));
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let handed_over = HandedOver::new(fd).expect("memory");
            let _ = handed_over.settle_for(6, usize::MAX, &device);
            let _ = sender.send(());
        });
        receiver.recv_timeout(Duration::from_secs(30)).expect("the end of the settlement");
    }

    #[test]
    fn surplus_connections_of_a_handover_are_dropped() {
        let (region, fd) = table();
        for seed in 0..4 {
            let mut writer = Writer::new(&region, seed, Some(6));
            (0..10).for_each(|id| writer.store(CommId(id), Some(&handover(id.into()))));
        }
        let orphans = HandedOver::new(fd).expect("memory").orphans();
        assert_eq!(orphans.values().map(Vec::len).sum::<usize>(), 40);
        assert_eq!(bounded(orphans, 25).values().map(Vec::len).sum::<usize>(), 25);
    }

    #[test]
    fn holes_of_a_handover_stay_holes() {
        let (region, fd) = table();
        Writer::new(&region, 3, Some(6)).store(CommId(1), Some(&handover(1)));
        let file = File::from(fd.try_clone().expect("a descriptor"));
        let before = file.metadata().expect("a file").blocks();
        let handed_over = HandedOver::new(fd).expect("memory");
        assert_eq!(handed_over.orphans().values().map(Vec::len).sum::<usize>(), 1);
        assert_eq!(file.metadata().expect("a file").blocks(), before, "a touch of a mapping makes pages");
        let short =
            nix::sys::memfd::memfd_create("short", nix::sys::memfd::MFdFlags::empty()).expect("a file");
        assert!(HandedOver::new(short).expect("memory").orphans().is_empty());
        let (reader, _writer) = io::pipe().expect("a pipe");
        HandedOver::new(reader.into()).expect_err("no file in memory");
    }

    #[test]
    fn peers_of_ended_program_are_told_after_resolution() {
        const CONNECTIONS: usize = 40;
        let addresses = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let end = |n: u8| MemoryConfig { mac: [2, 0, 0, 0, 0, n], ..MemoryConfig::default() };
        let (local, remote) = memory::pair(end(1), end(2));
        let open = |port, address| {
            let resolver = Box::new(Slow(AtomicU64::new(0)));
            Device::new("test", Box::new(port), [address], resolver, &DeviceConfig::default())
                .expect("a device")
        };
        let (local, remote) = (open(local, addresses[0]), open(remote, addresses[1]));
        let manager = Manager::new(Config::default());
        let peer = ConnectionService::start(&remote, manager, IgnoreEvents).expect("QP1");
        let mut listener = OrphanListener::new().expect("a socket");
        let (stop, stopper) = io::pipe().expect("a pipe");
        let program = OrphanTable::register(listener.name()).expect("a launcher");
        let mut writer = program.handover_store(5, None);
        // The peers have sent DREQ, and wait for the DREP, which is sent only once.
        let dreq_received = (0..).find(|state| {
            let words = [0, 0, state << 40, 0, 0, 0, 0];
            Handover::from_words(&words).is_some_and(|b| format!("{b:?}").contains("DreqRcvd"))
        });
        let half = |address: IpAddr| {
            let gid = Gid::from(address).0;
            [0, 8].map(|at| u64::from_be_bytes(gid[at..at + 8].try_into().expect("8 bytes")))
        };
        let [[local_high, local_low], [remote_high, remote_low]] = addresses.map(half);
        let state = dreq_received.expect("the state") << 40 | 64 << 24;
        let handover_of = |id: u64| {
            let words = [id << 32 | id, 7 << 32 | 8, state, local_high, local_low, remote_high, remote_low];
            Handover::from_words(&words).expect("a handover")
        };
        // Only communication IDs that a manager with this seed allocates.
        let mut manager = Manager::new(Config { seed: 5, ..Config::default() });
        let given =
            (1..).map(handover_of).filter(|handover| manager.take_over(Nanos::ZERO, handover).is_ok());
        for (number, handover) in given.take(CONNECTIONS).enumerate() {
            writer.store(CommId(number as u32), Some(&handover));
        }
        // The launcher has a program that ends, and one that lives.
        let living = OrphanTable::register(listener.name()).expect("a launcher");
        living.handover_store(6, None).store(CommId(1), Some(&handover(1)));
        assert!(program.is_watched());
        drop((program, stopper));
        listener.serve(stop.as_fd(), || Ok::<_, DeviceError>(local.clone())).expect("a device");
        assert_eq!(listener.programs.len(), 1);
        assert!(living.is_watched());
        drop(listener);
        assert!(!living.is_watched());
        let received = || peer.with(|manager, _, _| manager.counters().received(Kind::Drep) as usize);
        let until = Instant::now() + Duration::from_secs(10);
        while received() < CONNECTIONS && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        assert_eq!(received(), CONNECTIONS);
    }
}
