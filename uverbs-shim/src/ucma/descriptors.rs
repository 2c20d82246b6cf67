//! Which descriptors are ours, in which process.

use std::collections::HashMap;
use std::ffi::c_int;
use std::io::Write;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// Descriptors that can be ours: what a process may have at most where nobody raised `fs.nr_open`.
pub(super) const LIMIT: usize = 1 << 20;

/// A bit for each.
static OURS: [AtomicU64; LIMIT / 64] = [const { AtomicU64::new(0) }; LIMIT / 64];

/// True if a descriptor was ours when it was last heard of. A look without a lock: what other descriptors pay.
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

/// No descriptor of a process that was forked off is ours, whatever it does with it.
pub(super) fn forget(fd: c_int) {
    mark(fd, false);
}

/// True if a descriptor is one of ours, and its file may still be the one that was opened. Programs close descriptors in ways that go past
/// this library (`close_range`, `closefrom`, system calls of their own), and the next file gets the number. An event counter of the program's
/// cannot be told from ours. A system call: not for the way of other descriptors.
pub(super) fn is_still_ours(fd: c_int) -> bool {
    is_ours(fd) && is_event_counter(fd)
}

/// True if a descriptor is open, and an event counter as far as /proc tells.
fn is_event_counter(fd: c_int) -> bool {
    let mut name = [0u8; 32];
    // SAFETY: a path that ends with 0, and room for the answer. The system calls themselves, since some of these functions are ours.
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
        // SAFETY: a question about a number.
        Err(_) => unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) >= 0 },
    }
}

/// `/proc/self/fd/FD`, and a 0 behind it. Nothing allocates.
fn path_of(fd: c_int) -> [u8; 32] {
    let mut path = [0u8; 32];
    let mut rest = &mut path[..31];
    // It fits: a number has 11 characters at most.
    let _ = write!(rest, "/proc/self/fd/{fd}");
    path
}

/// What is behind our descriptors: the number of an open file, of which several may be the same.
#[derive(Debug, Default)]
pub(super) struct Descriptors(HashMap<c_int, u64>);

impl Descriptors {
    /// A descriptor is ours from now on. False: its number is too large.
    pub(super) fn add(&mut self, fd: c_int, file: u64) -> bool {
        let possible = mark(fd, true);
        if possible {
            self.0.insert(fd, file);
        }
        possible
    }

    /// The file behind a descriptor. `None`: it is not ours, or the program has closed it in a way that went past us and
    /// the number is something else's now.
    pub(super) fn file(&self, fd: c_int) -> Option<u64> {
        self.0.get(&fd).copied().filter(|_| is_still_ours(fd))
    }

    /// The file behind a descriptor that is the last one of it.
    pub(super) fn last_of(&self, fd: c_int) -> Option<u64> {
        let file = self.file(fd)?;
        let others = self.0.iter().filter(|(other, of)| **other != fd && **of == file);
        (others.count() == 0).then_some(file)
    }

    /// It is ours no more. The file, and whether it was the last descriptor of it.
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
    fn a_descriptor_is_ours_until_it_is_removed_and_a_file_until_its_last_is() {
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
    fn a_number_that_became_something_else_is_not_ours() {
        let place = EventFd::new().unwrap();
        let fd = place.as_raw_fd();
        let mut descriptors = Descriptors::default();
        descriptors.add(fd, 1);
        let file = std::fs::File::open("/dev/null").unwrap();
        // Past us, as a program does that makes system calls by itself.
        // SAFETY: two descriptors of this function.
        unsafe { libc::syscall(libc::SYS_dup3, file.as_raw_fd(), fd, 0) };
        assert_eq!(descriptors.file(fd), None);
        assert!(is_ours(fd) && !is_still_ours(fd));
        descriptors.remove(fd);
    }

    #[test]
    fn numbers_that_no_descriptor_can_have_are_not_ours() {
        assert!(!is_ours(-1) && !is_ours(c_int::MAX));
        assert!(!Descriptors::default().add(c_int::MAX, 1));
    }

    #[test]
    fn what_a_forked_process_forgets_is_not_ours() {
        let fd = EventFd::new().unwrap();
        let mut descriptors = Descriptors::default();
        assert!(descriptors.add(fd.as_raw_fd(), 1) && is_ours(fd.as_raw_fd()));
        forget(fd.as_raw_fd());
        assert!(!is_ours(fd.as_raw_fd()));
    }
}
