//! The program's descriptors of the connection manager's file.

use std::collections::HashMap;
use std::ffi::c_int;
use std::io::Write;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// Descriptors that can be tracked: the maximum of a process, unless `fs.nr_open` was raised.
pub(super) const LIMIT: usize = 1 << 20;

/// One bit for each descriptor.
static OURS: [AtomicU64; LIMIT / 64] = [const { AtomicU64::new(0) }; LIMIT / 64];

/// Returns true if a descriptor was one of the file's when last known. Takes no lock: this check is the only cost for other descriptors.
#[inline]
pub(crate) fn is_ours(fd: c_int) -> bool {
    let Ok(fd) = usize::try_from(fd) else { return false };
    OURS.get(fd / 64).is_some_and(|word| word.load(Relaxed) >> (fd % 64) & 1 != 0)
}

fn mark(fd: c_int, ours: bool) -> bool {
    let Ok(fd) = usize::try_from(fd) else { return false };
    let Some(word) = OURS.get(fd / 64) else { return false };
    let bit = 1 << (fd % 64);
    if ours {
        word.fetch_or(bit, SeqCst)
    } else {
        word.fetch_and(!bit, SeqCst)
    };
    true
}

/// Forgets a descriptor. In a forked process, no descriptor is one of the file's.
pub(super) fn forget(fd: c_int) {
    mark(fd, false);
}

/// Returns true if a descriptor is one of the file's, and may still refer to it. Programs close descriptors without this library's
/// knowledge (`close_range`, `closefrom`, direct system calls), and the next file gets the number. An eventfd of the program cannot be
/// distinguished. Makes a system call: not for the fast path of other descriptors.
pub(super) fn is_still_ours(fd: c_int) -> bool {
    is_ours(fd) && is_event_counter(fd)
}

/// Returns true if a descriptor is open and, as far as /proc can be read, an eventfd.
fn is_event_counter(fd: c_int) -> bool {
    let mut name = [0u8; 32];
    // SAFETY: a null-terminated path, and room for the result. Direct system calls, because this library interposes some of these
    // functions.
    let length = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            path_of(fd).as_ptr(),
            name.as_mut_ptr(),
            name.len(),
        )
    };
    match usize::try_from(length) {
        Ok(length) => name[..length].starts_with(b"anon_inode:[eventfd]"),
        // SAFETY: a query about a number.
        Err(_) => unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) >= 0 },
    }
}

/// Returns `/proc/self/fd/FD`, null-terminated, without an allocation.
fn path_of(fd: c_int) -> [u8; 32] {
    let mut path = [0u8; 32];
    let mut rest = &mut path[..31];
    // Cannot fail: a number has at most 11 characters.
    let _ = write!(rest, "/proc/self/fd/{fd}");
    path
}

/// Maps descriptors to the numbers of open files. Several descriptors may have the same open file.
#[derive(Debug, Default)]
pub(super) struct Descriptors(HashMap<c_int, u64>);

impl Descriptors {
    /// Adds a descriptor. Returns false if its number is too large.
    pub(super) fn add(&mut self, fd: c_int, file: u64) -> bool {
        let possible = mark(fd, true);
        if possible {
            self.0.insert(fd, file);
        }
        possible
    }

    /// Returns the open file of a descriptor. Returns `None` for other descriptors, and if the program has closed it without this library's
    /// knowledge and the number was reused.
    pub(super) fn file(&self, fd: c_int) -> Option<u64> {
        self.0.get(&fd).copied().filter(|_| is_still_ours(fd))
    }

    /// Returns the open file of a descriptor, if this is the file's last descriptor.
    pub(super) fn last_of(&self, fd: c_int) -> Option<u64> {
        let file = self.file(fd)?;
        let others = self.0.iter().filter(|(other, of)| **other != fd && **of == file);
        (others.count() == 0).then_some(file)
    }

    /// Removes a descriptor. Returns its open file, and whether it was the file's last descriptor.
    pub(super) fn remove(&mut self, fd: c_int) -> Option<(u64, bool)> {
        mark(fd, false);
        let file = self.0.remove(&fd)?;
        Some((file, self.0.values().all(|other| *other != file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use std::os::fd::AsRawFd;

    #[test]
    fn file_is_tracked_until_its_last_descriptor_goes() {
        let (one, two) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let (one, two) = (one.as_raw_fd(), two.as_raw_fd());
        let mut descriptors = Descriptors::default();
        assert!(!is_ours(one) && descriptors.add(one, 7) && descriptors.add(two, 7) && is_ours(one));
        assert_eq!((descriptors.file(one), descriptors.file(two)), (Some(7), Some(7)));
        assert_eq!((descriptors.last_of(one), descriptors.last_of(two)), (None, None));
        assert_eq!(descriptors.remove(one), Some((7, false)));
        assert_eq!((descriptors.last_of(one), descriptors.last_of(two)), (None, Some(7)));
        assert!(!is_ours(one) && is_ours(two));
        assert_eq!(descriptors.remove(two), Some((7, true)));
        assert_eq!(descriptors.remove(two), None);
    }

    #[test]
    fn reused_descriptor_number_is_not_tracked() {
        let place = EventFd::new().unwrap();
        let fd = place.as_raw_fd();
        let mut descriptors = Descriptors::default();
        descriptors.add(fd, 1);
        let file = std::fs::File::open("/dev/null").unwrap();
        // Without this library's knowledge, as by a program that makes system calls directly.
        // SAFETY: two descriptors of this function.
        unsafe { libc::syscall(libc::SYS_dup3, file.as_raw_fd(), fd, 0) };
        assert_eq!(descriptors.file(fd), None);
        assert!(is_ours(fd) && !is_still_ours(fd));
        descriptors.remove(fd);
    }

    #[test]
    fn impossible_descriptor_numbers_are_not_tracked() {
        assert!(!is_ours(-1) && !is_ours(c_int::MAX));
        assert!(!Descriptors::default().add(c_int::MAX, 1));
    }

    #[test]
    fn forgotten_descriptor_is_not_tracked() {
        let fd = EventFd::new().unwrap();
        let mut descriptors = Descriptors::default();
        assert!(descriptors.add(fd.as_raw_fd(), 1) && is_ours(fd.as_raw_fd()));
        forget(fd.as_raw_fd());
        assert!(!is_ours(fd.as_raw_fd()));
    }
}
