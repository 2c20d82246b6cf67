//! Descriptors that children of a fork must not keep.
//!
//! A child inherits its parent's descriptors, but not its threads. If the child held the descriptors of a
//! socket group, the group would survive without a process that answers, the parent's slot would seem taken,
//! and its sockets would stay in the group unknown to new members. Other code of the program may have
//! duplicated the descriptors, so the module identifies them by device and inode, not by number.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Device and inode of the files and sockets to close in a child. Device 0 marks a free entry; an entry without inode
/// is being written.
static CLOSE_IN_CHILD: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];
static ANY: AtomicBool = AtomicBool::new(false);
/// Limit of the search: descriptors from this number on are not checked.
const HIGHEST: RawFd = 4096;

/// Returns device and inode of a descriptor.
fn identity(descriptor: RawFd) -> Option<[u64; 2]> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` has room for what the call writes. Any number is allowed as a descriptor.
    if unsafe { libc::fstat(descriptor, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has succeeded, so it has written the whole structure.
    let stat = unsafe { stat.assume_init() };
    Some([stat.st_dev, stat.st_ino])
}

/// Registers descriptors: children will close them and their duplicates. The table has room for several
/// devices; descriptors beyond are not registered, and children keep them.
pub fn keep_from(descriptors: impl IntoIterator<Item = RawFd>) {
    for [device, inode] in descriptors.into_iter().filter_map(identity) {
        let free = |place: &&[AtomicU64; 2]| place[0].compare_exchange(0, device, Relaxed, Relaxed).is_ok();
        if let Some(place) = CLOSE_IN_CHILD.iter().find(free) {
            place[1].store(inode, Relaxed);
        }
    }
    ANY.store(true, Relaxed);
}

/// Unregisters descriptors. To be called before they are closed.
pub fn forget(descriptors: impl IntoIterator<Item = RawFd>) {
    for [device, inode] in descriptors.into_iter().filter_map(identity) {
        let is_it = |place: &&[AtomicU64; 2]| {
            [&place[0], &place[1]].map(|part| part.load(Relaxed)) == [device, inode]
        };
        if let Some(place) = CLOSE_IN_CHILD.iter().find(is_it) {
            clear(place);
        }
    }
}

fn clear([device, inode]: &[AtomicU64; 2]) {
    inode.store(0, Relaxed);
    device.store(0, Relaxed);
}

/// Closes the registered descriptors in a child of a fork that will not use them. Async-signal-safe.
pub fn leave_in_child() {
    if !ANY.swap(false, Relaxed) {
        return;
    }
    // SAFETY: no preconditions.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    for descriptor in 0..RawFd::try_from(limit).unwrap_or(HIGHEST).clamp(0, HIGHEST) {
        let Some(identity_of_child) = identity(descriptor) else { continue };
        if CLOSE_IN_CHILD
            .iter()
            .any(|place| [&place[0], &place[1]].map(|part| part.load(Relaxed)) == identity_of_child)
        {
            // SAFETY: the descriptor is the child's copy. Only objects of the parent use it, and the child
            // does not use those.
            unsafe { libc::close(descriptor) };
        }
    }
    CLOSE_IN_CHILD.iter().for_each(clear);
}
