//! What children of a fork must not keep.
//!
//! A child has copies of its parent's descriptors, but not its threads. As long as it held those of a group of sockets, the group would
//! last and nobody of it answer, its parent's place would seem taken, and its sockets would have places in the group that no newcomer
//! knows of. Other parts of the program may have duplicates of them. So they are known by what they stand for, and not by their numbers.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Files and sockets that children close: device, inode. An inode of 0: none.
static KEPT: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];
static ANY: AtomicBool = AtomicBool::new(false);
/// Descriptors beyond are not looked at.
const HIGHEST: RawFd = 4096;

/// Device and inode.
fn identity(descriptor: RawFd) -> Option<[u64; 2]> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for what the call writes; any number is allowed as a descriptor.
    if unsafe { libc::fstat(descriptor, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has succeeded, and so has written all of it.
    let stat = unsafe { stat.assume_init() };
    Some([stat.st_dev, stat.st_ino])
}

/// From now on children close these, and all duplicates. There is room for those of some devices; more are kept.
pub(crate) fn keep_from(descriptors: impl IntoIterator<Item = RawFd>) {
    for [device, inode] in descriptors.into_iter().filter_map(identity) {
        let free = |place: &&[AtomicU64; 2]| place[1].compare_exchange(0, inode, Relaxed, Relaxed).is_ok();
        if let Some(place) = KEPT.iter().find(free) {
            place[0].store(device, Relaxed);
        }
    }
    ANY.store(true, Relaxed);
}

/// They are about to be closed here.
pub(crate) fn forget(descriptors: impl IntoIterator<Item = RawFd>) {
    for [device, inode] in descriptors.into_iter().filter_map(identity) {
        let is_it = |place: &&[AtomicU64; 2]| {
            [&place[0], &place[1]].map(|part| part.load(Relaxed)) == [device, inode]
        };
        if let Some(place) = KEPT.iter().find(is_it) {
            place[1].store(0, Relaxed);
        }
    }
}

/// Closes them, in a child of a fork that will not use them. Does nothing that a signal handler may not do.
pub fn leave_in_child() {
    if !ANY.swap(false, Relaxed) {
        return;
    }
    // SAFETY: no preconditions.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    for descriptor in 0..RawFd::try_from(limit).unwrap_or(HIGHEST).clamp(0, HIGHEST) {
        let Some(found) = identity(descriptor) else { continue };
        if KEPT.iter().any(|place| [&place[0], &place[1]].map(|part| part.load(Relaxed)) == found) {
            // SAFETY: the child's copy of a descriptor, which only objects of its parent have; those are not used here.
            unsafe { libc::close(descriptor) };
        }
    }
    KEPT.iter().for_each(|place| place[1].store(0, Relaxed));
}
