//! The program's descriptors of the connection manager's file.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use crate::base::object::Errno;

/// Descriptors that can be tracked: the maximum of a process, unless `fs.nr_open` was raised.
pub(super) const LIMIT: usize = 1 << 20;

/// One bit for each descriptor.
static OURS: [AtomicU64; LIMIT / 64] = [const { AtomicU64::new(0) }; LIMIT / 64];

/// Returns true if a descriptor was one of the file's when last known. Takes no lock: this check is the only cost for
/// other descriptors.
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

/// The mark of an event channel's open file: the signal that the file would send on input or output (`F_SETSIG`). An
/// eventfd sends none, so the number has no effect, and nothing else sets it. All duplicates of the file have the mark,
/// in children as well, and no other file has.
const MARK: c_int = 63;
/// `F_SETSIG` and `F_GETSIG` of `fcntl(2)`.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;

/// Marks the open file of an event channel, before the first duplicate of it is handed out.
///
/// # Errors
/// If the kernel refuses the mark, without which the file could not be known again.
pub(super) fn mark_file(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: a call about an open descriptor, without pointers.
    match unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, MARK) } {
        0 => Ok(()),
        _ => Err(nix::errno::Errno::last_raw()),
    }
}

/// Returns true if a descriptor is one of the file's, and still refers to an event channel. Programs close descriptors
/// without this library's knowledge (`close_range`, `closefrom`, direct system calls), and the next file gets the
/// number, even another eventfd. Makes a system call: not for the fast path of other descriptors.
///
/// Descriptors that the library never hands out have no such check. If a process closes those as well (`closefrom(3)`),
/// the engine's threads use numbers that may refer to other files: a check before each system call would not help,
/// since another thread may reuse the number in between.
pub(super) fn is_still_ours(fd: c_int) -> bool {
    // SAFETY: a query about a number. A direct system call: callers keep `errno`.
    is_ours(fd) && unsafe { libc::syscall(libc::SYS_fcntl, fd, F_GETSIG) } == libc::c_long::from(MARK)
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

    /// Returns the open file of a descriptor. Returns `None` for other descriptors, and if the program has closed it
    /// without this library's knowledge and the number was reused.
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
    use std::os::fd::{AsFd, OwnedFd};

    fn channel() -> EventFd {
        let counter = EventFd::new().unwrap();
        mark_file(counter.as_fd()).unwrap();
        counter
    }

    #[test]
    fn file_is_tracked_until_its_last_descriptor_goes() {
        let (one, two) = (channel(), channel());
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
        let place = channel();
        let fd = place.as_raw_fd();
        let mut descriptors = Descriptors::default();
        descriptors.add(fd, 1);
        let others =
            [std::fs::File::open("/dev/null").unwrap().into(), OwnedFd::from(EventFd::new().unwrap())];
        for file in others {
            assert_eq!(descriptors.file(fd), Some(1));
            let ours = place.as_fd().try_clone_to_owned().unwrap();
            let put = |from: &OwnedFd| {
                // SAFETY: two descriptors of this function. A direct system call, without this library's knowledge.
                unsafe { libc::syscall(libc::SYS_dup3, from.as_raw_fd(), fd, 0) };
            };
            put(&file);
            assert_eq!(descriptors.file(fd), None);
            assert!(is_ours(fd) && !is_still_ours(fd));
            put(&ours);
        }
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
