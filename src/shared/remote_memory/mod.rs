//! The memory of another process, reached as an adapter reaches its host's: by address, at any time, whether or not that process runs.
//!
//! A process hands over two descriptors of its own: `/proc/self/mem`, by which its bytes are read and written, and `/proc/self/maps`,
//! which tells what each page may be used for (`address_map`). The process opened both, so the kernel has judged by the process's own
//! rights whose memory they lead to. A descriptor is bound to one address space, not to a number: after an exec, or after the last thread
//! has ended, it leads to nothing (`mem_rw` of `fs/proc/base.c`), whoever has the process number then. No capability is needed.
//!
//! The kernel heeds no page protection on this way (`FOLL_FORCE`): each copy first asks the map. A page whose protection changes between
//! question and copy was written before the change, as by an adapter whose write was under way.
//!
//! A copy takes one system call, one and a half microseconds for 8 bytes to 4 KiB, as `process_vm_writev(2)` does; the question takes
//! 0.7 us, once for all copies of a batch that lie in one mapping. Both may wait for as long as the process likes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{Whence, lseek};

use super::address_map::AddressMap;
pub use super::address_map::{Lookup, Use};

/// Why a process's memory cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// A descriptor is missing.
    #[error(
        "{0} descriptors of its memory came, not 2: the program has to be able to open /proc/self/mem and /proc/self/maps \
         (is /proc mounted, and may the program dump core?)"
    )]
    NoDescriptor(usize),
    /// A descriptor leads to some other file.
    #[error("its descriptor of /proc/self/mem is {0}")]
    NoMemory(&'static str),
    /// The descriptor of the mappings is of no use.
    #[error("its descriptor of /proc/self/maps cannot be read: {0}")]
    NoMap(io::Error),
    /// The descriptor leads to other memory.
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
}

impl RemoteMemory {
    /// The memory behind these descriptors, of `/proc/self/mem` and `/proc/self/maps`, where the 8 bytes at `address` are `secret`.
    ///
    /// # Errors
    /// If they are descriptors of something else, or the bytes differ.
    pub fn new(fds: Vec<OwnedFd>, (address, secret): (u64, u64)) -> Result<RemoteMemory, Unreachable> {
        let count = fds.len();
        let Ok([memory, maps]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(Unreachable::NoDescriptor(count));
        };
        let memory = File::from(memory);
        is_address_space(&memory).map_err(Unreachable::NoMemory)?;
        let map = AddressMap::new(maps).map_err(Unreachable::NoMap)?;
        let remote =
            RemoteMemory { memory, map, fenced: AtomicBool::new(false), abandoned: AtomicBool::new(false) };
        let mut word = [0; 8];
        match remote.read(&mut Lookup::default(), address, &mut word) {
            Ok(()) if u64::from_ne_bytes(word) == secret => Ok(remote),
            _ => Err(Unreachable::OtherMemory),
        }
    }

    /// The descriptors of the calling process's own memory, for [`new`](Self::new) in another process.
    ///
    /// # Errors
    /// If `/proc` is not mounted, or the process may not open them: one that may dump no core (`PR_SET_DUMPABLE` of prctl(2)) may not.
    pub fn descriptors() -> io::Result<[OwnedFd; 2]> {
        let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
        Ok([memory.into(), File::open("/proc/self/maps")?.into()])
    }

    /// A file in place of memory, at the addresses of this process.
    #[cfg(test)]
    pub(crate) fn behind(memory: File) -> RemoteMemory {
        let maps = File::open("/proc/self/maps").expect("this process's own").into();
        let map = AddressMap::new(maps).expect("a map");
        RemoteMemory { memory, map, fenced: AtomicBool::new(false), abandoned: AtomicBool::new(false) }
    }

    /// From now on nothing of it is touched any more.
    pub fn fence(&self) {
        self.fenced.store(true, Relaxed);
    }

    /// Fences it, because a copy does not come to an end.
    pub fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
        self.fence();
    }

    /// True after [`abandon`](Self::abandon).
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Relaxed)
    }

    /// Checks that all of this memory is mapped, and may be used so, as registering memory with an adapter does.
    ///
    /// # Errors
    /// With EFAULT if some of it is not.
    pub fn check(&self, address: u64, length: u64, what: Use) -> io::Result<()> {
        self.map.check(&mut Lookup::default(), address, length, what)
    }

    /// Copies from there. `lookup`: what the last copy of this batch found.
    ///
    /// # Errors
    /// If some of it is not there, or cannot be read; what lies before may have been copied.
    pub fn read(&self, lookup: &mut Lookup, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.may(lookup, address, bytes.len(), Use::Read)?;
        self.memory.read_exact_at(bytes, address)
    }

    /// Copies there. `lookup`: what the last copy of this batch found.
    ///
    /// # Errors
    /// If some of it is not there, or cannot be written; what lies before may have been copied.
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

/// Checks that a descriptor is of a process's memory, open for reading and writing. Mounts can give any file any name, so the kernel is
/// asked: in a process file system, a position in the upper half of the range is taken by the file of an address space alone (`mem_lseek`),
/// and by `pagemap`, which cannot be written.
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

#[cfg(test)]
pub(crate) mod pages;
#[cfg(test)]
pub(crate) mod silent;
#[cfg(test)]
mod tests;
