//! The memory of another process, accessed as an adapter accesses its host's: by address, at any time, whether or not
//! that process runs.
//!
//! A process passes two descriptors of its own: `/proc/self/mem`, by which its bytes are read and written, and
//! `/proc/self/maps`, which tells how each page is protected (`address_map`). The process opened both itself, so the
//! kernel has applied that process's own rights, and the NIC needs no capability. A descriptor is bound to one address
//! space, not to a process number: after an exec, or after the end of the last thread, it leads to nothing (`mem_rw` of
//! `fs/proc/base.c`), even if the number is in use again.
//!
//! By these descriptors the kernel ignores page protection (`FOLL_FORCE`), so each copy first queries the mappings. If
//! the protection changes between query and copy, the copy counts as made before the change, like an adapter's write
//! that was under way.
//!
//! A copy takes one system call, about 1.5 us for 8 bytes to 4 KiB, as `process_vm_writev(2)` does. A query takes 0.7
//! us, once for all copies of a batch to one mapping. Copies and queries may block for as long as the process likes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{Whence, lseek};

use super::address_map::AddressMap;
pub use super::address_map::{Lookup, Use};
pub use jobs::{CopyJob, CopyJobs, CopySender};
use roxie_base::threads::ThreadState;

mod jobs;

/// Number of batches that the worker does not wait for after one that was late.
const SKIPPED: usize = 16;

/// The reason why a process's memory cannot be accessed.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// A descriptor is missing.
    #[error(
        "{0} descriptors of its memory came, not 2: the program has to be able to open /proc/self/mem and /proc/self/maps \
         (is /proc mounted, and may the program dump core?)"
    )]
    NoDescriptor(usize),
    /// A descriptor leads to another kind of file.
    #[error("its descriptor of /proc/self/mem is {0}")]
    NoMemory(&'static str),
    /// The descriptor of the mappings cannot be read.
    #[error("its descriptor of /proc/self/maps cannot be read: {0}")]
    NoMap(io::Error),
    /// The descriptor leads to the memory of another process.
    #[error("its descriptor of /proc/self/mem does not lead to the memory of the process that speaks")]
    OtherMemory,
}

/// The memory of another process.
#[derive(Debug)]
pub struct RemoteMemory {
    memory: File,
    map: AddressMap,
    fenced: AtomicBool,
    abandoned: AtomicBool,
    /// The queue of the process's copying thread, and its state if known.
    copier: OnceLock<(CopySender, Option<ThreadState>)>,
    /// The copying thread pauses, so that its user pays for processor time.
    paused: AtomicBool,
    /// Bytes that wait in the NIC for copies.
    held: AtomicUsize,
    /// Number of batches that the worker does not wait for, because one was late.
    skipped: AtomicUsize,
}

impl RemoteMemory {
    fn with(memory: File, map: AddressMap) -> RemoteMemory {
        RemoteMemory {
            memory,
            map,
            fenced: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            copier: OnceLock::new(),
            paused: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            skipped: AtomicUsize::new(0),
        }
    }

    /// Takes the descriptors of `/proc/self/mem` and `/proc/self/maps` of a process. The 8 bytes at `address` must be
    /// `secret`.
    ///
    /// # Errors
    /// If the descriptors are of other files, or the bytes differ.
    pub fn new(fds: Vec<OwnedFd>, (address, secret): (u64, u64)) -> Result<RemoteMemory, Unreachable> {
        let count = fds.len();
        let Ok([memory, maps]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(Unreachable::NoDescriptor(count));
        };
        let memory = File::from(memory);
        is_address_space(&memory).map_err(Unreachable::NoMemory)?;
        let map = AddressMap::new(maps).map_err(Unreachable::NoMap)?;
        let remote = RemoteMemory::with(memory, map);
        let mut word = [0; 8];
        match remote.read(&mut Lookup::default(), address, &mut word) {
            Ok(()) if u64::from_ne_bytes(word) == secret => Ok(remote),
            _ => Err(Unreachable::OtherMemory),
        }
    }

    /// Opens the descriptors of the calling process's own memory, for [`new`](Self::new) in another process.
    ///
    /// # Errors
    /// If `/proc` is not mounted, or the process may not open the files: one without core dumps (`PR_SET_DUMPABLE` of
    /// prctl(2)) may not.
    pub fn descriptors() -> io::Result<[OwnedFd; 2]> {
        let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
        Ok([memory.into(), File::open("/proc/self/maps")?.into()])
    }

    /// For tests: uses a file in place of another process's memory, with the mappings of this process.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn behind(memory: File) -> RemoteMemory {
        let maps = File::open("/proc/self/maps").expect("this process's own").into();
        let map = AddressMap::new(maps).expect("a map");
        RemoteMemory::with(memory, map)
    }

    /// True if the kernel is asked for the protection of pages before each copy, on Linux 6.11 or later, and not at
    /// registration alone.
    pub fn is_checked_before_copies() -> bool {
        AddressMap::kernel_answers_at_once()
    }

    /// Refuses all later accesses.
    pub fn fence(&self) {
        self.fenced.store(true, Relaxed);
    }

    /// Fences the memory, because a copy does not end.
    pub fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
        self.fence();
    }

    /// True after [`abandon`](Self::abandon).
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Relaxed)
    }

    /// Has a thread make all copies from now on, which takes them from this queue. Without one, the worker makes them.
    /// No effect if there is one.
    pub fn copied_by(&self, thread: CopySender, state: Option<ThreadState>) {
        let _ = self.copier.set((thread, state));
    }

    /// True if the thread runs, or would with a processor of its own.
    pub fn is_copier_runnable(&self) -> bool {
        self.copier.get().and_then(|(_, state)| state.as_ref()).is_some_and(ThreadState::is_runnable)
    }

    /// True if a thread makes the copies.
    pub fn has_copier(&self) -> bool {
        self.copier.get().is_some()
    }

    /// True if copies have to wait for the thread. Copies of fenced memory fail immediately in any thread.
    pub fn waits_for_copier(&self) -> bool {
        self.has_copier() && !self.fenced.load(Relaxed)
    }

    /// Hands a batch to the thread; never blocks.
    pub fn hand_over(&self, job: Box<dyn CopyJob>) {
        if let Some((copier, _)) = self.copier.get() {
            copier.send(job);
        }
    }

    /// Ends the thread, if there is one.
    pub fn end_copies(&self) {
        if let Some((copier, _)) = self.copier.get() {
            copier.end();
        }
    }

    /// True if copies were made promptly in the recent past, so that the worker may wait a little for the copies of the
    /// batch that it hands over. The worker asks once for each batch.
    pub fn is_prompt(&self) -> bool {
        let skipped = self.skipped.load(Relaxed);
        self.skipped.store(skipped.saturating_sub(1), Relaxed);
        skipped == 0
    }

    /// A batch was not back in time: the worker does not wait for the next ones.
    pub fn note_late(&self) {
        self.skipped.store(SKIPPED, Relaxed);
    }

    /// Sets whether the copying thread pauses. The time of a pause does not count as time of a copy.
    pub fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Relaxed);
    }

    /// True while the copying thread pauses.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Relaxed)
    }

    /// True if no access is possible any more.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Relaxed)
    }

    /// Bytes that wait in the NIC for copies. The worker alone changes the number.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Adds bytes that wait, or takes bytes away.
    pub fn hold(&self, more: usize, fewer: usize) {
        self.held.store((self.held() + more).saturating_sub(fewer), Relaxed);
    }

    /// Checks that all of these bytes are mapped and allow the access `what`, as an adapter does at registration.
    ///
    /// # Errors
    /// EFAULT if some bytes are not mapped, or do not allow the access.
    pub fn check(&self, address: u64, length: u64, what: Use) -> io::Result<()> {
        self.map.check(&mut Lookup::default(), address, length, what)
    }

    /// Copies from `address` to `bytes`. `lookup`: the result of the batch's last query.
    ///
    /// # Errors
    /// If some bytes are not mapped for reading, or the memory is fenced. Bytes before them may have been copied.
    pub fn read(&self, lookup: &mut Lookup, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.may(lookup, address, bytes.len(), Use::Read)?;
        self.memory.read_exact_at(bytes, address)
    }

    /// Copies `bytes` to `address`. `lookup`: the result of the batch's last query.
    ///
    /// # Errors
    /// If some bytes are not mapped for writing, or the memory is fenced. Bytes before them may have been copied.
    pub fn write(&self, lookup: &mut Lookup, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.may(lookup, address, bytes.len(), Use::Write)?;
        self.memory.write_all_at(bytes, address)
    }

    fn may(&self, lookup: &mut Lookup, address: u64, length: usize, what: Use) -> io::Result<()> {
        if self.fenced.load(Relaxed) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if !self.map.answers_at_once() {
            return Ok(());
        }
        self.map.check(lookup, address, length as u64, what)
    }
}

/// Checks that a descriptor is of a process's memory, open for reading and writing. A mount can give any file any name,
/// so the kernel is asked: in procfs, only the file of an address space accepts a position in the upper half of the
/// range (`mem_lseek`), and `pagemap`, which cannot be written.
fn is_address_space(file: &File) -> Result<(), &'static str> {
    const UPPER_HALF: i64 = -1 << 13;
    let of_proc = fstatfs(file).is_ok_and(|fs| fs.filesystem_type() == PROC_SUPER_MAGIC);
    if !of_proc || lseek(file, UPPER_HALF, Whence::SeekSet) != Ok(UPPER_HALF) {
        return Err("of another file");
    }
    let flags = fcntl(file.as_fd(), FcntlArg::F_GETFL).map_or(OFlag::empty(), OFlag::from_bits_truncate);
    match flags.contains(OFlag::O_RDWR) {
        true => Ok(()),
        false => Err("not open for reading and writing"),
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod pages;
#[cfg(any(test, feature = "testing"))]
pub mod silent;
#[cfg(test)]
mod tests;
