//! For tests: pages of this process with protection and backing that change.

use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mprotect, munmap};
use nix::unistd::ftruncate;

use crate::shared::HostMemory;

/// Bytes of the pages: whole pages on every kernel.
const LENGTH: usize = 1 << 16;

/// PageState of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Readable and writable.
    Writable,
    /// Readable.
    Readable,
    /// Protected from every access, like unmapped pages. The address range stays reserved.
    Protected,
    /// Beyond the end of their file.
    BehindTheEnd,
}

/// Pages that no reference reaches.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<c_void>,
    file: File,
}

impl Pages {
    /// Maps the pages, writable.
    #[expect(clippy::new_without_default, reason = "it maps memory")]
    pub fn new() -> Pages {
        let file = File::from(memfd_create("pages", MFdFlags::MFD_CLOEXEC).expect("a file"));
        file.set_len(LENGTH as u64).expect("room");
        let length = NonZeroUsize::new(LENGTH).expect("not 0");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses; no reference to its bytes is ever made.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) };
        Pages { base: base.expect("a mapping"), file }
    }

    /// Returns the address of the first byte, and the number of bytes.
    pub fn place(&self) -> (u64, u64) {
        (self.base.as_ptr() as u64, LENGTH as u64)
    }

    /// Changes what the pages are.
    pub fn turn_into(&self, state: PageState) {
        let length = if state == PageState::BehindTheEnd { 0 } else { LENGTH as u64 };
        self.file.set_len(length).expect("its own");
        let protection = match state {
            PageState::Protected => ProtFlags::PROT_NONE,
            PageState::Readable => ProtFlags::PROT_READ,
            PageState::Writable | PageState::BehindTheEnd => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
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

/// Makes a file of memory as a program would, and a shared mapping of it, which is never unmapped.
pub fn file_of_program(length: usize) -> (OwnedFd, HostMemory) {
    let fd = memfd_create("program", MFdFlags::MFD_ALLOW_SEALING).expect("a file");
    ftruncate(&fd, length as i64).expect("room");
    let bytes = NonZeroUsize::new(length).expect("some bytes");
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the system's choice.
    let base = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, &fd, 0) }.expect("mapped");
    // SAFETY: the mapping is never unmapped, and no reference into it exists.
    (fd, unsafe { HostMemory::borrowed(base.cast(), length) })
}
