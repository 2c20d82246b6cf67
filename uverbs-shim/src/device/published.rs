//! Information about a process's objects for other processes: the contents of its command descriptors, small files in
//! memory.
//!
//! A kernel knows all objects of all processes, and reports them by netlink (`rdma resource show`). Here each process
//! has its own NIC, and writes object counts and its queue pairs to a file, where other processes that may access its
//! descriptors find them ([`of_all_processes`]). The file is written when objects are created and modified, never on
//! the data path. A queue pair's transition to an error state therefore appears only after the program itself queries
//! or modifies the QP.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::base::lock::lock;
use crate::netlink::nldev::Qp;

/// Prefix of the files' names; the process ID follows.
pub(crate) const NAME: &str = "roxie0-of-process-";
/// First bytes of a file. The interface's index follows, then a count for each kind, then the queue pairs.
const MAGIC: [u8; 8] = *b"roxie 1\n";
const HEADER: usize = 64;
const COUNTS: u64 = 16;
/// Bytes of a queue pair's entry.
const ENTRY: usize = 32;
/// Maximum number of queue pairs in a file.
const MOST: usize = 4096;
/// Maximum bytes read of a file. Any process may have created it, with any length.
const LONGEST: usize = HEADER + MOST * ENTRY;
/// Maximum number of queue pairs reported, of all processes together: as many as a device has.
const ALL: usize = 65_536;

/// Kinds of objects, in the order of the kernel's summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pd,
    Cq,
    Qp,
    Mr,
    Ctx,
}

/// Names of the kinds in the summary.
pub(crate) const KINDS: [&str; 5] = ["pd", "cq", "qp", "mr", "ctx"];

/// The file of a command descriptor.
#[derive(Debug)]
pub(crate) struct Published {
    file: File,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counts: [u32; KINDS.len()],
    /// Entries of queue pairs in use.
    taken: Vec<bool>,
}

impl Published {
    /// Writes the header of an empty file. Write errors are ignored: the file is informative.
    pub(crate) fn new(file: File, interface: u32) -> Published {
        let mut head = [0; HEADER];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&interface.to_ne_bytes());
        let _ = file.write_all_at(&head, 0);
        Published { file, state: Mutex::default() }
    }

    fn count(&self, state: &mut State, kind: Kind, more: bool) {
        let count = &mut state.counts[kind as usize];
        *count = if more { count.saturating_add(1) } else { count.saturating_sub(1) };
        let _ = self.file.write_all_at(&count.to_ne_bytes(), COUNTS + 4 * kind as u64);
    }

    /// Counts an object, until the result is dropped.
    pub(crate) fn add(self: &Arc<Self>, kind: Kind) -> Counted {
        self.count(&mut lock(&self.state), kind, true);
        Counted { in_file: Arc::clone(self), kind }
    }

    /// Adds a queue pair, until the result is dropped.
    pub(crate) fn add_qp(self: &Arc<Self>, qp: Qp) -> PublishedQp {
        let counted = self.add(Kind::Qp);
        let mut state = lock(&self.state);
        let free = state.taken.iter().position(|taken| !taken).unwrap_or(state.taken.len());
        let place = (free < MOST).then_some(free);
        if let Some(place) = place {
            if place == state.taken.len() {
                state.taken.push(true);
            }
            state.taken[place] = true;
            self.write(place, Some(&qp));
        }
        drop(state);
        PublishedQp { counted, place, qp: Mutex::new(qp) }
    }

    fn write(&self, place: usize, qp: Option<&Qp>) {
        let bytes = qp.map_or([0; ENTRY], to_bytes);
        let _ = self.file.write_all_at(&bytes, (HEADER + place * ENTRY) as u64);
    }
}

/// A counted object.
#[derive(Debug)]
pub(crate) struct Counted {
    in_file: Arc<Published>,
    kind: Kind,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.in_file.count(&mut lock(&self.in_file.state), self.kind, false);
    }
}

/// A published queue pair.
#[derive(Debug)]
pub(crate) struct PublishedQp {
    counted: Counted,
    /// `None`: the file was full.
    place: Option<usize>,
    qp: Mutex<Qp>,
}

impl PublishedQp {
    /// Updates the published state.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Qp)) {
        let mut qp = lock(&self.qp);
        change(&mut qp);
        if let Some(place) = self.place {
            self.counted.in_file.write(place, Some(&qp));
        }
    }
}

impl Drop for PublishedQp {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        self.counted.in_file.write(place, None);
        if let Some(taken) = lock(&self.counted.in_file.state).taken.get_mut(place) {
            *taken = false;
        }
    }
}

/// Encodes a queue pair: used, number, whether it has a peer and the peer's number, PSNs, type, state.
fn to_bytes(qp: &Qp) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    let remote = qp.remote.unwrap_or_default();
    for (place, word) in
        [1, qp.number, u32::from(qp.remote.is_some()), remote, qp.rq_psn, qp.sq_psn].iter().enumerate()
    {
        bytes[place * 4..place * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    (bytes[24], bytes[25]) = (qp.kind, qp.state);
    bytes
}

fn from_bytes(pid: u32, bytes: &[u8]) -> Option<Qp> {
    let word = |place: usize| Some(u32::from_ne_bytes(bytes.get(place * 4..place * 4 + 4)?.try_into().ok()?));
    if word(0)? == 0 {
        return None;
    }
    let remote = (word(2)? != 0).then_some(word(3)?);
    let (kind, state) = (*bytes.get(24)?, *bytes.get(25)?);
    Some(Qp { pid, number: word(1)?, remote, rq_psn: word(4)?, sq_psn: word(5)?, kind, state })
}

/// Parses a file, for the device on an interface. Returns `None` for other files, and for files of another interface.
fn read(pid: u32, interface: u32, bytes: &[u8]) -> Option<([u64; KINDS.len()], Vec<Qp>)> {
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if bytes.get(..8)? != MAGIC || word(8)? != interface {
        return None;
    }
    let mut counts = [0; KINDS.len()];
    for (place, count) in counts.iter_mut().enumerate() {
        *count = word(COUNTS as usize + 4 * place)?.into();
    }
    let qps = bytes.get(HEADER..)?.chunks_exact(ENTRY).filter_map(|entry| from_bytes(pid, entry));
    Some((counts, qps.collect()))
}

/// Returns the objects of all processes in this network namespace that this process may inspect, for the device on an
/// interface.
pub(crate) fn of_all_processes(interface: u32) -> ([u64; KINDS.len()], Vec<Qp>) {
    let (mut counts, mut qps, mut seen) = ([0; KINDS.len()], Vec::new(), BTreeSet::new());
    let own = fs::read_link("/proc/thread-self/ns/net").ok();
    let Some(memory) = device_of_memory() else { return (counts, qps) };
    for (pid, process) in processes() {
        if fs::read_link(process.join("ns/net")).ok() != own {
            continue;
        }
        let mut remaining = MOST;
        for descriptor in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            let path = descriptor.path();
            if maker(&path) != Some(pid) {
                continue;
            }
            // Several descriptors may refer to one file.
            let Some((file, number)) = in_memory(&path, memory) else { continue };
            if !seen.insert(number) {
                continue;
            }
            let Some((theirs, of_it)) = beginning(&file).and_then(|bytes| read(pid, interface, &bytes))
            else {
                continue;
            };
            counts.iter_mut().zip(theirs).for_each(|(sum, count)| *sum += count);
            let reported = of_it.len().min(remaining).min(ALL - qps.len());
            remaining -= reported;
            qps.extend(of_it.into_iter().take(reported));
        }
    }
    (counts, qps)
}

/// Returns all processes, this user's and root's first, so that other users' processes cannot use up the limit.
fn processes() -> Vec<(u32, PathBuf)> {
    // SAFETY: no preconditions.
    let own = unsafe { libc::geteuid() };
    let process = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let uid = entry.metadata().ok()?.uid();
        Some((uid != 0 && uid != own, pid, entry.path()))
    };
    let mut all: Vec<_> = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(process).collect();
    all.sort_by_key(|(is_of_another, pid, _)| (*is_of_another, *pid));
    all.into_iter().map(|(_, pid, path)| (pid, path)).collect()
}

/// Device number of a file system.
type DeviceNumber = (u32, u32);

/// Returns the device number of files in memory (`memfd_create(2)`). No file system that users can mount has it.
fn device_of_memory() -> Option<DeviceNumber> {
    let file = memfd_create("roxie", MFdFlags::MFD_CLOEXEC).ok()?;
    Some(identity(file.as_fd())?.0)
}

/// Opens a file of another process if it is in memory, and returns it with its number. Other files may have any name,
/// and their processes may exchange them at any time, so nothing else is opened: opening or reading them may block, or
/// have an effect.
fn in_memory(path: &Path, memory: DeviceNumber) -> Option<(File, u64)> {
    // This descriptor names the file, and opens nothing.
    let name = File::options().read(true).custom_flags(libc::O_PATH).open(path).ok()?;
    let (device, number) = identity(name.as_fd())?;
    if device != memory {
        return None;
    }
    let file = File::open(format!("/proc/self/fd/{}", name.as_raw_fd())).ok()?;
    Some((file, number))
}

/// Returns a file's device number, and its number there. Asks no process for them, as `fstat` does of a file system in
/// userspace.
fn identity(file: BorrowedFd<'_>) -> Option<(DeviceNumber, u64)> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: `statx` consists of numbers, for which zero is valid.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the name is a C string, and it and `status` outlive the call.
    let got = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_INO, &raw mut status) };
    (got == 0).then_some(((status.stx_dev_major, status.stx_dev_minor), status.stx_ino))
}

/// Reads the beginning of a file.
fn beginning(file: &File) -> Option<Vec<u8>> {
    let length = file.metadata().ok()?.len().min(LONGEST as u64) as usize;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

/// Returns the process that a command descriptor is named after.
fn maker(descriptor: &Path) -> Option<u32> {
    let path = fs::read_link(descriptor).ok()?;
    let rest = path.to_str()?.strip_prefix("/memfd:")?.strip_prefix(NAME)?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_objects_are_found_in_the_descriptors() {
        const INTERFACE: u32 = 0x7fff_0001;
        let name = format!("{NAME}{}", std::process::id());
        let file = File::from(memfd_create(&*name, MFdFlags::MFD_CLOEXEC).unwrap());
        let published = Arc::new(Published::new(file, INTERFACE));
        let pid = std::process::id();
        let of = |number| Qp { pid, number, kind: 2, ..Qp::default() };
        let (_pd, first) = (published.add(Kind::Pd), published.add_qp(of(17)));
        let second = published.add_qp(of(18));
        second.change(|qp| (qp.remote, qp.state, qp.rq_psn) = (Some(99), 3, 7));
        let (counts, qps) = of_all_processes(INTERFACE);
        assert_eq!(counts, [1, 0, 2, 0, 0]);
        assert_eq!(qps, [of(17), Qp { remote: Some(99), state: 3, rq_psn: 7, ..of(18) }]);
        // The entry is reused.
        drop(first);
        assert_eq!(of_all_processes(INTERFACE).1.len(), 1);
        let third = published.add_qp(of(19));
        assert_eq!(of_all_processes(INTERFACE).1.iter().map(|qp| qp.number).collect::<Vec<_>>(), [19, 18]);
        drop((second, third));
        assert_eq!(of_all_processes(INTERFACE), ([1, 0, 0, 0, 0], Vec::new()));
        assert_eq!(of_all_processes(INTERFACE + 1).0, [0; 5], "of another interface");
    }

    #[test]
    fn file_is_read_up_to_its_maximum_only() {
        const INTERFACE: u32 = 0x7fff_0003;
        let name = format!("{NAME}{}", std::process::id());
        let file = File::from(memfd_create(&*name, MFdFlags::MFD_CLOEXEC).unwrap());
        let copy = file.try_clone().unwrap();
        // Sparse, and longer than the limit.
        file.set_len(1 << 40).unwrap();
        let qp = Qp { pid: std::process::id(), number: 7, ..Qp::default() };
        file.write_all_at(&to_bytes(&qp), (HEADER + MOST * ENTRY) as u64).unwrap();
        let published = Arc::new(Published::new(file, INTERFACE));
        let _first = published.add_qp(qp);
        assert_eq!(beginning(&copy).unwrap().len(), LONGEST);
        assert_eq!(of_all_processes(INTERFACE).1, [qp], "without the entry beyond the limit");
    }

    #[test]
    fn only_files_in_memory_are_opened() {
        let memory = device_of_memory().unwrap();
        let path = |file: &dyn AsRawFd| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let file = File::from(memfd_create("any", MFdFlags::MFD_CLOEXEC).unwrap());
        let (_, number) = in_memory(&path(&file), memory).expect("in memory");
        assert_eq!(number, file.metadata().unwrap().ino());
        // Opening the end of a pipe for reading would wait for a writer.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        assert!(in_memory(&path(&reader), memory).is_none());
        let fifo = std::env::temp_dir().join(format!("roxie-fifo-{}", std::process::id()));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let refused = in_memory(&fifo, memory).is_none();
        fs::remove_file(&fifo).unwrap();
        assert!(refused);
    }

    #[test]
    fn files_of_a_process_share_its_room() {
        const INTERFACE: u32 = 0x7fff_0004;
        let name = format!("{NAME}{}", std::process::id());
        let full = |_| {
            let file = File::from(memfd_create(&*name, MFdFlags::MFD_CLOEXEC).unwrap());
            let published = Arc::new(Published::new(file, INTERFACE));
            let qps: Vec<_> =
                (1..=MOST as u32).map(|number| published.add_qp(Qp { number, ..Qp::default() })).collect();
            (published, qps)
        };
        let _files = [0, 1].map(full);
        assert_eq!(of_all_processes(INTERFACE).1.len(), MOST);
    }

    #[test]
    fn foreign_file_is_ignored() {
        assert_eq!(read(1, 2, b""), None);
        assert_eq!(read(1, 2, &[0; 200]), None);
        let mut bytes = vec![0; HEADER + ENTRY + 5];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&2u32.to_ne_bytes());
        assert_eq!(read(1, 2, &bytes), Some(([0; 5], Vec::new())));
        assert_eq!(read(1, 2, &bytes[..HEADER - 1]), None);
    }
}
