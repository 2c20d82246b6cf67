//! For tests: pages of this process with protection and backing that change.

use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mprotect, munmap};

/// Bytes of the pages: whole pages on every kernel.
const LENGTH: usize = 1 << 16;

/// State of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Writable,
    Readable,
    /// Protected from every access, like unmapped pages. The address range stays reserved.
    Protected,
    /// Beyond the end of their file.
    BehindTheEnd,
}

pub(crate) struct Pages {
    base: NonNull<c_void>,
    file: File,
}

impl Pages {
    pub(crate) fn new() -> Pages {
        let file = File::from(memfd_create("pages", MFdFlags::MFD_CLOEXEC).expect("a file"));
        file.set_len(LENGTH as u64).expect("room");
        let length = NonZeroUsize::new(LENGTH).expect("not 0");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses; no reference to its bytes is ever made.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) };
        Pages { base: base.expect("a mapping"), file }
    }

    /// Returns the address of the first byte, and the number of bytes.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.base.as_ptr() as u64, LENGTH as u64)
    }

    pub(crate) fn turn_into(&self, state: State) {
        let length = if state == State::BehindTheEnd { 0 } else { LENGTH as u64 };
        self.file.set_len(length).expect("its own");
        let protection = match state {
            State::Protected => ProtFlags::PROT_NONE,
            State::Readable => ProtFlags::PROT_READ,
            State::Writable | State::BehindTheEnd => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: the mapping is this object's own, and no instruction of the process touches its bytes.
        unsafe { mprotect(self.base, LENGTH, protection) }.expect("its own");
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and reached by no instruction of the process.
        let _ = unsafe { munmap(self.base, LENGTH) };
    }
}
