//! What children of a fork must not keep.
//!
//! A child has copies of its parent's descriptors, but not its threads. As long as it held those of a group, the group would last and
//! nobody of it answer, and its parent's place would seem taken.

#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// No descriptor.
const NONE: RawFd = -1;

/// Descriptors of this process's members.
static KEPT: [AtomicI32; 64] = [const { AtomicI32::new(NONE) }; 64];

/// From now on children close these. There is room for those of six members; more are kept.
pub(super) fn keep_from(descriptors: &[RawFd]) {
    for descriptor in descriptors {
        let put = |place: &&AtomicI32| place.compare_exchange(NONE, *descriptor, Relaxed, Relaxed).is_ok();
        let _ = KEPT.iter().find(put);
    }
}

/// They are about to be closed here.
pub(super) fn forget(descriptors: &[RawFd]) {
    for place in KEPT.iter().filter(|place| descriptors.contains(&place.load(Relaxed))) {
        place.store(NONE, Relaxed);
    }
}

/// Closes the descriptors of this process's members, in a child of a fork that will not use them. Does nothing that a signal handler may
/// not do.
pub fn leave_in_child() {
    for place in &KEPT {
        let descriptor = place.swap(NONE, Relaxed);
        if descriptor != NONE {
            // SAFETY: the child's copy of a descriptor, which only objects of its parent have; those are not used here.
            unsafe { libc::close(descriptor) };
        }
    }
}
