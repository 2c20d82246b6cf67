//! Connections of ended programs (orphans), in shared memory that outlives them.
//!
//! A launcher [creates](OrphanTable::create) the memory and passes its path on. Each connection manager of its programs records its
//! connections there ([`OrphanTable::handover_store`]). When the programs have ended, killed or not, the launcher [ends](OrphanTable::settle) the
//! recorded connections: peers receive a DREQ at once, as they do from a kernel, which outlives its programs too.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::sys::uio::pread;

use super::adapter::DeviceSlot;
use super::connections::{ConnectionService, IgnoreEvents};
use super::device::Device;
use super::error::DeviceError;
use roxie_nic::cm::{Config, Handover, HandoverStore, Manager};
use roxie_nic::nic::{Command, GsiRoutes};
use roxie_nic::shared::Region;
use roxie_wire::cm::CommId;

/// Capacity: connections of all programs. Further connections end by their peers' timeouts.
const PLACES: usize = 8192;
/// 64-bit words of a record: state (process, unit, complete), seed of the manager, connection.
const PLACE: usize = 16;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// State bit: the record is complete. Below it is the process ID of its writer, above it the writer's unit plus 1.
const WHOLE: u64 = 1 << 32;
const UNIT_SHIFT: u32 = 40;
/// Maximum time to end all recorded connections. A peer that does not answer is asked for up to 1 s.
const LIMIT: Duration = Duration::from_millis(1500);
/// Interval between two checks whether all messages are sent.
const LOOK: Duration = Duration::from_millis(2);

/// A table of connections that outlives the processes that have them.
#[derive(Debug)]
pub struct OrphanTable {
    region: Arc<Region>,
}

/// The descriptor of shared memory. Other processes can open its path while this value exists.
#[derive(Debug)]
pub struct SharedPath(OwnedFd);

impl SharedPath {
    pub(super) fn of(fd: OwnedFd) -> SharedPath {
        SharedPath(fd)
    }

    /// The path for other processes of this user.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }
}

/// Recorded connections of ended processes, by the seed and unit of their manager.
type Left = HashMap<(u64, Option<u8>), Vec<Handover>>;

impl OrphanTable {
    /// Creates an empty table, and its path for other processes.
    ///
    /// # Errors
    /// If the system is out of memory or descriptors.
    pub fn create() -> io::Result<(OrphanTable, SharedPath)> {
        let (orphans, fd) = OrphanTable::create_to_hand_over()?;
        Ok((orphans, SharedPath(fd)))
    }

    /// Opens a table that another process created.
    ///
    /// # Errors
    /// If there is no table at `path`.
    pub fn open(path: &Path) -> io::Result<OrphanTable> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(OrphanTable { region: Region::map(file.as_fd(), PLACES * PLACE)? })
    }

    /// Creates an empty table, and the descriptor to pass to another process.
    fn create_to_hand_over() -> io::Result<(OrphanTable, OwnedFd)> {
        let (region, fd) = Region::shared(PLACES * PLACE)?;
        Ok((OrphanTable { region }, fd))
    }

    /// Returns the recorder for a connection manager of this process. `seed` is the manager's seed, `unit` the prefix of its
    /// communication IDs.
    pub fn handover_store(&self, seed: u64, unit: Option<u8>) -> Box<dyn HandoverStore> {
        let process =
            u64::from(std::process::id()) | unit.map_or(0, |unit| (u64::from(unit) + 1) << UNIT_SHIFT);
        Box::new(Writer { region: Arc::clone(&self.region), seed, process, places: HashMap::new(), next: 0 })
    }

    /// Removes and returns the connections of ended processes, by the seed and unit of their managers.
    fn take(&self) -> Left {
        let mut left = Left::new();
        for place in places(&self.region) {
            let state = place[0].load(Acquire);
            if state & WHOLE == 0 || is_alive(state as u32) {
                continue;
            }
            add_record(&mut left, &std::array::from_fn(|i| place[i].load(Relaxed)));
            place[0].store(0, Relaxed);
        }
        left
    }

    /// Ends the connections of ended processes: tells their peers. `device` opens the device of the connections, and is called
    /// only if there are any. Takes as long as the peers take to answer, and up to 1.5 s.
    ///
    /// # Errors
    /// If the device cannot be opened, for instance because another process has claimed it.
    pub fn settle<E: From<DeviceError>>(&self, device: impl FnOnce() -> Result<Device, E>) -> Result<(), E> {
        let left = self.take();
        if left.is_empty() {
            return Ok(());
        }
        notify_peers(left, &device()?).map_err(E::from)
    }
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

    /// Ends the connections of a client of `device` that has ended and had this unit. Ignores records in the name of other
    /// clients, and those beyond `most`, the maximum number of its connections.
    ///
    /// # Errors
    /// If the unit is in use, or the device has failed or has no room for a QP1.
    pub fn settle_for(&self, unit: u8, most: usize, device: &Device) -> Result<(), DeviceError> {
        let own = self.left().into_iter().filter(|((_, of), _)| *of == Some(unit)).collect();
        let left = bounded(own, most);
        if left.is_empty() { Ok(()) } else { notify_peers(left, device) }
    }

    /// Reads the file instead of mapping it: its owner may have truncated it, or punched holes.
    fn left(&self) -> Left {
        let mut left = Left::new();
        let mut bytes = [0; PLACE * WORD];
        for index in 0..PLACES {
            let at = (index * bytes.len()) as i64;
            if pread(&self.0, &mut bytes, at) != Ok(bytes.len()) {
                break;
            }
            let mut words =
                bytes.chunks_exact(WORD).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
            add_record(&mut left, &std::array::from_fn(|_| words.next().expect("as many")));
        }
        left
    }
}

/// Adds a complete record to `left`.
fn add_record(left: &mut Left, place: &[u64; PLACE]) {
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
    /// Makes a table for this process's connections, which the NIC ends when the process has ended. `None`: there is no such NIC.
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
        let (orphans, fd) = OrphanTable::create_to_hand_over()?;
        nic.hand_over_estate(fd.as_fd())?;
        Ok(Some(orphans))
    }
}

/// Drops connections beyond `most`.
fn bounded(mut left: Left, most: usize) -> Left {
    let mut room = most;
    left.retain(|_, handovers| {
        handovers.truncate(room);
        room -= handovers.len();
        !handovers.is_empty()
    });
    left
}

/// Tells the peers of these connections that they have ended. Each manager gets an equal share of the remaining time. Peers not
/// told in time find out by their timeouts.
fn notify_peers(left: Left, device: &Device) -> Result<(), DeviceError> {
    let end = Instant::now() + LIMIT;
    let managers = left.len() as u32;
    for (((seed, unit), handovers), before) in left.into_iter().zip(0..) {
        let now = Instant::now();
        if now >= end {
            break;
        }
        let share = (end - now) / (managers - before);
        let until = now + share;
        let mut manager = Manager::new(Config { seed, ..Config::default() });
        if let Some(unit) = unit {
            device.claim()?;
            // If another process has these numbers by now, it receives the replies and drops them. The messages are sent all the
            // same, some of them more than once.
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
            let _ = device.call(Command::RouteGsi(service.qp1(), Box::new(routes)));
        }
        // Messages that are sent only once need a resolved path first.
        let known = now + share / 3;
        while !handovers.iter().all(|handover| service.look_for(handover.route())) && Instant::now() < known {
            std::thread::sleep(LOOK);
        }
        service.with(|manager, _, now| {
            for handover in &handovers {
                // A duplicate ID is a forgery, and is ignored.
                let _ = manager.take_over(now, handover);
            }
        });
        let left = || service.with(|manager, _, _| manager.connections()) > 0;
        while (left() || !service.has_said_all()) && Instant::now() < until {
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
    process: u64,
    places: HashMap<CommId, usize>,
    /// Index at which the search for a free record starts.
    next: usize,
}

impl Writer {
    /// Claims a free record for this process, and returns its index.
    fn claim(&mut self) -> Option<usize> {
        let index = (0..PLACES).map(|i| (self.next + i) % PLACES).find(|index| {
            let state = &self.region.words()[index * PLACE];
            state.compare_exchange(0, self.process, Acquire, Relaxed).is_ok()
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
        place[0].store(self.process, Relaxed);
        place[1].store(self.seed, Release);
        for (to, word) in place[2..].iter().zip(handover.to_words()) {
            to.store(word, Relaxed);
        }
        place[0].store(WHOLE | self.process, Release);
    }
}

fn places(region: &Region) -> impl Iterator<Item = &[AtomicU64]> {
    region.words().chunks_exact(PLACE)
}

/// True if a process has not ended.
fn is_alive(process: u32) -> bool {
    // `pid (name) state …`: the name may contain any character, but ends at the last bracket.
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = status.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z" && state != "X")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::os::unix::fs::MetadataExt;

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

    #[test]
    fn released_record_is_reused_and_surplus_is_dropped() {
        let (orphans, path) = OrphanTable::create().expect("memory");
        let same = OrphanTable::open(&path.path()).expect("the same");
        let (mut one, mut other) = (orphans.handover_store(1, None), same.handover_store(2, Some(7)));
        for id in 0..PLACES as u64 / 2 {
            one.store(CommId(id as u32), Some(&handover(id)));
            other.store(CommId(id as u32), Some(&handover(id)));
        }
        let whole = || places(&orphans.region).filter(|place| place[0].load(Relaxed) & WHOLE != 0).count();
        assert_eq!(whole(), PLACES);
        one.store(CommId(u32::MAX), Some(&handover(7)));
        assert_eq!(whole(), PLACES, "the table is full");
        other.store(CommId(3), None);
        assert_eq!(whole(), PLACES - 1);
        one.store(CommId(u32::MAX), Some(&handover(7)));
        assert_eq!(whole(), PLACES);
        assert!(orphans.take().is_empty(), "the writer lives");
    }

    /// Returns a writer of a process that has ended, for a manager with this seed.
    fn writer_of_a_dead_one(orphans: &OrphanTable, seed: u64) -> Writer {
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let process = child.id().into();
        child.wait().expect("its end");
        Writer { process, ..writer_of(orphans, seed, 0) }
    }

    /// Returns a writer with a unit, counted from 1.
    fn writer_of(orphans: &OrphanTable, seed: u64, unit: u64) -> Writer {
        let process = 1 | unit << UNIT_SHIFT;
        Writer { region: Arc::clone(&orphans.region), seed, process, places: HashMap::new(), next: 0 }
    }

    #[test]
    fn connections_are_taken_once_their_process_has_ended() {
        let (orphans, _path) = OrphanTable::create().expect("memory");
        let mut writer = writer_of_a_dead_one(&orphans, 5);
        for id in [1, 2, 3] {
            writer.store(CommId(id), Some(&handover(id.into())));
        }
        writer.store(CommId(2), None);
        // The process died while writing.
        orphans.region.words()[0].store(writer.process, Relaxed);
        assert_eq!(orphans.take().into_iter().collect::<Vec<_>>(), [((5, None), vec![handover(3)])]);
        assert!(orphans.take().is_empty());
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
        let (near, _far) = memory::pair(end(1), end(2));
        let address = IpAddr::from([192, 0, 2, 1]);
        let device =
            Device::new("test", Box::new(near), [address], Box::new(Never), &DeviceConfig::default());
        let device = device.expect("a device");
        let (orphans, fd) = OrphanTable::create_to_hand_over().expect("memory");
        for seed in 0..PLACES as u64 {
            let mut writer = writer_of(&orphans, seed, 7);
            writer.store(CommId(seed as u32), Some(&handover(seed)));
        }
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let handed_over = HandedOver::new(fd).expect("memory");
            let _ = handed_over.settle_for(6, usize::MAX, &device);
            let _ = tell.send(());
        });
        told.recv_timeout(Duration::from_secs(30)).expect("the end of the settlement");
    }

    #[test]
    fn surplus_connections_of_a_handover_are_dropped() {
        let (orphans, fd) = OrphanTable::create_to_hand_over().expect("memory");
        for seed in 0..4 {
            let mut writer = writer_of(&orphans, seed, 7);
            (0..10).for_each(|id| writer.store(CommId(id), Some(&handover(id.into()))));
        }
        let left = HandedOver::new(fd).expect("memory").left();
        assert_eq!(left.values().map(Vec::len).sum::<usize>(), 40);
        assert_eq!(bounded(left, 25).values().map(Vec::len).sum::<usize>(), 25);
    }

    #[test]
    fn holes_of_a_handover_stay_holes() {
        let (orphans, fd) = OrphanTable::create_to_hand_over().expect("memory");
        writer_of(&orphans, 3, 7).store(CommId(1), Some(&handover(1)));
        let file = File::from(fd.try_clone().expect("a descriptor"));
        let before = file.metadata().expect("a file").blocks();
        let handed_over = HandedOver::new(fd).expect("memory");
        assert_eq!(handed_over.left().values().map(Vec::len).sum::<usize>(), 1);
        assert_eq!(file.metadata().expect("a file").blocks(), before, "a touch of a mapping makes pages");
        let short =
            nix::sys::memfd::memfd_create("short", nix::sys::memfd::MFdFlags::empty()).expect("a file");
        assert!(HandedOver::new(short).expect("memory").left().is_empty());
        let (reader, _writer) = io::pipe().expect("a pipe");
        HandedOver::new(reader.into()).expect_err("no file in memory");
    }

    #[test]
    fn peers_of_ended_program_are_told_after_resolution() {
        const CONNECTIONS: usize = 40;
        let addresses = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let end = |n: u8| MemoryConfig { mac: [2, 0, 0, 0, 0, n], ..MemoryConfig::default() };
        let (near, far) = memory::pair(end(1), end(2));
        let open = |port, address| {
            let resolver = Box::new(Slow(AtomicU64::new(0)));
            Device::new("test", Box::new(port), [address], resolver, &DeviceConfig::default())
                .expect("a device")
        };
        let (near, far) = (open(near, addresses[0]), open(far, addresses[1]));
        let manager = Manager::new(Config::default());
        let peer = ConnectionService::start(&far, manager, IgnoreEvents).expect("QP1");
        let (orphans, _path) = OrphanTable::create().expect("memory");
        let mut writer = writer_of_a_dead_one(&orphans, 5);
        // The peers have sent DREQ, and wait for the DREP, which is sent only once.
        let asked = (0..).find(|state| {
            let words = [0, 0, state << 40, 0, 0, 0, 0];
            Handover::from_words(&words).is_some_and(|b| format!("{b:?}").contains("DreqRcvd"))
        });
        let half = |address: IpAddr| {
            let gid = Gid::from(address).0;
            [0, 8].map(|at| u64::from_be_bytes(gid[at..at + 8].try_into().expect("8 bytes")))
        };
        let [[local_high, local_low], [remote_high, remote_low]] = addresses.map(half);
        let state = asked.expect("the state") << 40 | 64 << 24;
        let left = |id: u64| {
            let words = [id << 32 | id, 7 << 32 | 8, state, local_high, local_low, remote_high, remote_low];
            Handover::from_words(&words).expect("a handover")
        };
        // Only communication IDs that a manager with this seed allocates.
        let mut manager = Manager::new(Config { seed: 5, ..Config::default() });
        let given = (1..).map(left).filter(|handover| manager.take_over(Nanos::ZERO, handover).is_ok());
        for (number, handover) in given.take(CONNECTIONS).enumerate() {
            writer.store(CommId(number as u32), Some(&handover));
        }
        orphans.settle(|| Ok::<_, DeviceError>(near.clone())).expect("a device");
        let heard = || peer.with(|manager, _, _| manager.counters().received(Kind::Drep) as usize);
        let until = Instant::now() + Duration::from_secs(10);
        while heard() < CONNECTIONS && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        assert_eq!(heard(), CONNECTIONS);
    }
}
