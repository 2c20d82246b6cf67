//! Copies that ask the system whether memory is there, instead of touching it.
//!
//! `process_vm_readv` and `process_vm_writev` on the process itself: the system walks the page tables as for a page fault,
//! brings in what can be brought in, and says where there is nothing. No signal, whatever the address. Atomics are no copies: see
//! [`trial`](super::trial).

use super::memory::Fault;

/// Copies from an address of this process.
pub(super) fn read(address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: `local` is the caller's own slice, of that length; the system checks what `remote` names, and no Rust
    // reference to it exists by the promise of `HostMemory::on_demand`.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    judge(copied, address, bytes.len())
}

/// Copies to an address of this process. A failure may leave the pages before the missing one written.
pub(super) fn write(address: u64, bytes: &[u8]) -> Result<(), Fault> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: `local` is only read, and is the caller's slice; the system checks what `remote` names, and no Rust
    // reference to it exists by the promise of `HostMemory::on_demand`.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    judge(copied, address, bytes.len())
}

fn judge(copied: isize, address: u64, length: usize) -> Result<(), Fault> {
    match usize::try_from(copied) {
        Ok(n) if n == length => Ok(()),
        _ => Err(Fault::NotMapped { address, length }),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::shared::HostMemory;

    pub(in crate::shared) const PAGE: usize = 4096;

    /// Three pages of which the second can be taken away.
    pub(in crate::shared) struct Pages(*mut u8);

    // SAFETY: plain memory, of which only the protection is changed here.
    unsafe impl Sync for Pages {}

    impl Pages {
        pub(in crate::shared) fn new() -> Pages {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping anywhere.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), 3 * PAGE, protection, flags, -1, 0) };
            assert_ne!(base, libc::MAP_FAILED);
            Pages(base.cast())
        }

        pub(in crate::shared) fn protect_second(&self, protection: i32) {
            // SAFETY: a page of the mapping, into which no reference exists.
            assert_eq!(unsafe { libc::mprotect(self.0.add(PAGE).cast(), PAGE, protection) }, 0);
        }

        pub(in crate::shared) fn memory(&self) -> HostMemory {
            // SAFETY: no reference into the mapping exists.
            unsafe { HostMemory::on_demand(self.0 as u64, 3 * PAGE) }.expect("allowed on oneself")
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: the mapping of `new`.
            unsafe { libc::munmap(self.0.cast(), 3 * PAGE) };
        }
    }

    #[test]
    fn what_is_there_is_copied_and_what_is_not_is_a_fault() {
        let pages = Pages::new();
        let memory = pages.memory();
        let mut back = [0; 5];
        memory.write(PAGE as u64 - 2, b"hello").unwrap();
        memory.read(PAGE as u64 - 2, &mut back).unwrap();
        assert_eq!(&back, b"hello");
        pages.protect_second(libc::PROT_NONE);
        assert!(memory.read(PAGE as u64, &mut back).is_err());
        assert!(memory.read(PAGE as u64 - 2, &mut back).is_err(), "half there is not there");
        assert!(memory.write(PAGE as u64, &back).is_err());
        memory.write(2 * PAGE as u64, b"there").unwrap();
        pages.protect_second(libc::PROT_READ);
        memory.read(PAGE as u64 - 2, &mut back).unwrap();
        assert!(memory.write(PAGE as u64, &back).is_err(), "not writable");
        pages.protect_second(libc::PROT_READ | libc::PROT_WRITE);
        memory.write(PAGE as u64, b"again").unwrap();
        assert!(memory.write(3 * PAGE as u64 - 1, b"beyond").is_err());
    }

    #[test]
    fn all_of_the_address_space_is_a_region_without_a_signal() {
        // SAFETY: the bytes that are accessed are those of `word` while nothing else looks at it.
        let all = unsafe { HostMemory::on_demand(0, usize::MAX) }.expect("allowed on oneself");
        let mut word = std::cell::UnsafeCell::new(7u32.to_ne_bytes());
        let mut back = [0; 4];
        all.read(word.get() as u64, &mut back).unwrap();
        assert_eq!(u32::from_ne_bytes(back), 7);
        all.write(word.get() as u64, &9u32.to_ne_bytes()).unwrap();
        assert_eq!(*word.get_mut(), 9u32.to_ne_bytes());
        for address in [0, 8, 1 << 47, 1 << 63, u64::MAX - 8] {
            assert!(all.read(address, &mut back).is_err(), "{address:#x}");
            assert!(all.write(address, &back).is_err(), "{address:#x}");
        }
    }

    #[test]
    fn no_memory_reads_as_zeros_and_takes_everything() {
        let null = HostMemory::null();
        null.write(u64::MAX - 20, b"gone").unwrap();
        let mut back = [1; 4];
        null.read(u64::MAX - 20, &mut back).unwrap();
        assert_eq!(back, [0; 4]);
    }
}
