//! Which descriptors are ours, in which process.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use crate::object::Errno;

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

/// The mark of an event channel's open file: the signal that the file would send on input or output (`F_SETSIG`). An eventfd sends none, so
/// the number has no effect, and nothing else sets it. All duplicates of the file have the mark, in children as well, and no other file has.
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

/// True if a descriptor is one of ours, and an event channel is still behind it. Programs close descriptors past this library
/// (`close_range`, `closefrom`, system calls of their own), and the next file gets the number, be it another eventfd. A system call: not for
/// the way of other descriptors.
///
/// Descriptors that the library never hands out have no such look. Where a process closes those as well (`closefrom(3)`), the engine's threads
/// use numbers that may be other files': a look before each system call would not help, since another thread may reuse the number in between.
pub(super) fn is_still_ours(fd: c_int) -> bool {
    // SAFETY: a question about a number. The system call itself: `errno` is kept by callers.
    is_ours(fd) && unsafe { libc::syscall(libc::SYS_fcntl, fd, F_GETSIG) } == libc::c_long::from(MARK)
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
    use std::os::fd::{AsFd, OwnedFd};

    fn channel() -> EventFd {
        let counter = EventFd::new().unwrap();
        mark_file(counter.as_fd()).unwrap();
        counter
    }

    #[test]
    fn a_descriptor_is_ours_until_it_is_removed_and_a_file_until_its_last_is() {
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
    fn a_number_that_became_something_else_is_not_ours() {
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
                // SAFETY: two descriptors of this function. The system call: past us, as programs do that make their own.
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
