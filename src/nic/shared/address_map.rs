//! The protection of the pages of an address space, read from a descriptor of its `/proc/PID/maps`.
//!
//! Since Linux 6.11 the descriptor answers for a single address (`PROCMAP_QUERY`, `fs/proc/task_mmu.c`). Older kernels
//! offer only the text, which takes too long for every copy: there, memory is checked when it is registered, as an
//! adapter does.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

/// The access that a copy makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads the bytes.
    Read,
    /// Writes the bytes.
    Write,
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const SHARED: u64 = 8;

mod call {
    nix::ioctl_readwrite!(procmap_query, b'f', 17, super::Query);
}

/// The mapping that was looked up last; the next copy often goes to the same one.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    range: Range<u64>,
    flags: u64,
    file: MappedFile,
}

/// The file behind a mapping, and the mapping's offset in it. All zero if the mapping has no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MappedFile {
    /// Device number: major and minor.
    pub(super) device: (u32, u32),
    pub(super) inode: u64,
    pub(super) offset: u64,
}

impl Lookup {
    fn allows(&self, what: Use) -> bool {
        match what {
            Use::Read => self.flags & READABLE != 0,
            Use::Write => self.flags & WRITABLE != 0,
        }
    }
}

/// The mappings of an address space; see the module's page.
#[derive(Debug)]
pub(super) struct AddressMap {
    maps: File,
    answers: bool,
}

impl AddressMap {
    /// # Errors
    /// If the descriptor is not of `/proc/PID/maps`, or not readable.
    pub(super) fn new(maps: OwnedFd) -> io::Result<AddressMap> {
        if fstatfs(&maps)?.filesystem_type() != PROC_SUPER_MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is of another file"));
        }
        let map = AddressMap { maps: File::from(maps), answers: true };
        match map.query(0) {
            Ok(_) => Ok(map),
            // A kernel before 6.11, or another file: the text decides.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                let first = Text::new(&map.maps).next().ok_or(io::ErrorKind::InvalidData)??;
                debug_assert!(!first.range.is_empty());
                Ok(AddressMap { answers: false, ..map })
            }
            Err(error) => Err(error),
        }
    }

    /// True if the kernel [answers at once](Self::answers_at_once).
    pub(super) fn kernel_answers_at_once() -> bool {
        let own = File::open("/proc/self/maps").and_then(|maps| AddressMap::new(maps.into()));
        own.is_ok_and(|map| map.answers_at_once())
    }

    /// True if a query is cheap enough to precede every copy.
    pub(super) fn answers_at_once(&self) -> bool {
        self.answers
    }

    /// Checks that these bytes are mapped and allow the access `what`. `last`: the result of the last look-up, updated
    /// here.
    ///
    /// # Errors
    /// EFAULT if some bytes are not mapped, or do not allow the access.
    pub(super) fn check(&self, last: &mut Lookup, address: u64, length: u64, what: Use) -> io::Result<()> {
        let fault = || io::Error::from_raw_os_error(libc::EFAULT);
        let end = address.checked_add(length).ok_or_else(fault)?;
        let mut text = (!self.answers).then(|| Text::new(&self.maps));
        let mut at = address;
        while at < end {
            if !last.range.contains(&at) {
                *last = match &mut text {
                    None => self.query(at)?.ok_or_else(fault)?,
                    Some(text) => {
                        let is_there = |mapped: &Lookup| mapped.range.contains(&at);
                        text.map_while(Result::ok).find(is_there).ok_or_else(fault)?
                    }
                };
            }
            if !last.allows(what) {
                return Err(fault());
            }
            at = last.range.end;
        }
        Ok(())
    }

    /// Returns the addresses of the mapping that holds these bytes, and its file. Returns `None` if they span several
    /// mappings, or if writes to them do not reach the file (`MAP_PRIVATE`).
    pub(super) fn shared_file(&self, address: u64, length: u64) -> Option<(Range<u64>, MappedFile)> {
        let end = address.checked_add(length)?;
        let mapping = match self.answers {
            true => self.query(address).ok()??,
            false => Text::new(&self.maps)
                .map_while(Result::ok)
                .find(|mapping| mapping.range.contains(&address))?,
        };
        let is_shared = mapping.flags & SHARED != 0 && mapping.file.inode != 0;
        (is_shared && end <= mapping.range.end).then_some((mapping.range, mapping.file))
    }

    /// Returns the mapping at an address.
    fn query(&self, address: u64) -> io::Result<Option<Lookup>> {
        let mut query = Query { size: size_of::<Query>() as u64, query_addr: address, ..Query::default() };
        // SAFETY: the kernel reads and writes `size` bytes, which the structure has, and no other memory: both lengths
        // of names are 0.
        match unsafe { call::procmap_query(self.maps.as_raw_fd(), &raw mut query) } {
            Ok(_) => {
                let device = (query.dev_major, query.dev_minor);
                let file = MappedFile { device, inode: query.inode, offset: query.vma_offset };
                Ok(Some(Lookup { range: query.vma_start..query.vma_end, flags: query.vma_flags, file }))
            }
            Err(nix::errno::Errno::ENOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The lines of `/proc/PID/maps`, in the order of their addresses.
struct Text<'a> {
    maps: &'a File,
    at: u64,
    bytes: Vec<u8>,
}

impl Text<'_> {
    fn new(maps: &File) -> Text<'_> {
        Text { maps, at: 0, bytes: Vec::new() }
    }

    /// Returns the next line without its end, or `None` at the end of the file.
    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let rest = self.bytes.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.bytes, rest);
                line.pop();
                return Ok(Some(line));
            }
            let mut piece = [0; 4096];
            let read = self.maps.read_at(&mut piece, self.at)?;
            if read == 0 {
                return Ok(None);
            }
            self.at += read as u64;
            self.bytes.extend_from_slice(&piece[..read]);
        }
    }
}

impl Iterator for Text<'_> {
    type Item = io::Result<Lookup>;

    fn next(&mut self) -> Option<io::Result<Lookup>> {
        let line = self.line().transpose()?;
        Some(line.and_then(|line| mapped(&line).ok_or_else(|| io::ErrorKind::InvalidData.into())))
    }
}

/// Parses a line: `7f0000000000-7f0000001000 rw-p 00001000 00:1a 4711 …` (proc_pid_maps(5)).
fn mapped(line: &[u8]) -> Option<Lookup> {
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let rights = words.next()?.as_bytes();
    let right = |at: usize, letter, flag| if rights.get(at) == Some(&letter) { flag } else { 0 };
    let flags = right(0, b'r', READABLE) | right(1, b'w', WRITABLE) | right(3, b's', SHARED);
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let file = MappedFile { device, inode: words.next()?.parse().ok()?, offset };
    Some(Lookup { range: hex(start)?..hex(end)?, flags, file })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::os::fd::OwnedFd;

    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};

    use super::*;

    const PAGE: u64 = 4096;

    fn own(name: &str) -> OwnedFd {
        File::open(name).expect("this process's own").into()
    }

    /// By query and by text, where the kernel has both.
    fn maps() -> Vec<AddressMap> {
        let queried = AddressMap::new(own("/proc/self/maps")).expect("a map");
        let read = AddressMap { answers: false, maps: File::from(own("/proc/self/maps")) };
        if queried.answers { vec![queried, read] } else { vec![read] }
    }

    #[test]
    fn protection_of_each_page_counts() {
        let length = NonZeroUsize::new(4 * PAGE as usize).expect("four pages");
        let all = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice.
        let base = unsafe { mmap_anonymous(None, length, all, MapFlags::MAP_PRIVATE) }.expect("memory");
        let protect = |page: usize, rights| {
            // SAFETY: a page of the test's own, to which no reference is held.
            unsafe { mprotect(base.byte_add(page * PAGE as usize), PAGE as usize, rights) }.expect("mapped");
        };
        protect(1, ProtFlags::PROT_READ);
        protect(3, ProtFlags::PROT_NONE);
        let at = base.as_ptr() as u64;
        for map in maps() {
            let check =
                |from: u64, length, what| map.check(&mut Lookup::default(), at + from, length, what).is_ok();
            assert!(check(0, PAGE, Use::Write) && !check(0, PAGE + 1, Use::Write));
            assert!(check(0, 3 * PAGE, Use::Read) && !check(0, 3 * PAGE + 1, Use::Read));
            assert!(check(2 * PAGE, PAGE, Use::Write) && check(3 * PAGE, 0, Use::Write));
            assert!(!check(0, u64::MAX, Use::Read), "beyond the end of the range");
        }
    }

    #[test]
    fn unmapped_memory_may_not_be_used() {
        for map in maps() {
            for address in [0, 8, u64::MAX - 8, 1 << 62] {
                let error = map.check(&mut Lookup::default(), address, 8, Use::Read).expect_err("unmapped");
                assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{address:#x}");
            }
        }
    }

    #[test]
    fn other_files_are_no_map() {
        for name in ["/dev/null", "/proc/self/cmdline", "/proc/self/status", "/proc/self/mem"] {
            assert!(AddressMap::new(own(name)).is_err(), "{name}");
        }
    }
}
