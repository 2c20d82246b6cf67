use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::memory::*;
use super::remote_memory::pages::file_of_program;

/// Returns an address for `length` bytes at which the kernel places no other mapping: others lie at the top of the
/// address space. If a page there is unmapped, no mapping of another thread takes its place.
pub(crate) fn place_of_its_own(length: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1 << 36);
    NEXT.fetch_add(length.next_multiple_of(1 << 20), Relaxed)
}

#[test]
fn written_bytes_are_read_at_every_alignment() {
    let memory = HostMemory::allocate(128).unwrap();
    for offset in 0..9u64 {
        for length in 0..40usize {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
            memory.write(offset, &bytes).unwrap();
            let mut back = vec![0; length];
            memory.read(offset, &mut back).unwrap();
            assert_eq!(back, bytes);
        }
    }
}

/// The range begins amid a page: it must reach its last byte, and not that many bytes from the page's start.
#[test]
fn persist_covers_the_last_byte() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::num::NonZeroUsize;
    let two = NonZeroUsize::new(2 * page()).unwrap();
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let at = NonZeroUsize::new(place_of_its_own(two.get()));
    // SAFETY: a new mapping, which replaces none: the address is a hint.
    let base = unsafe { mmap_anonymous(at, two, access, MapFlags::MAP_PRIVATE) }.unwrap();
    // SAFETY: the test's own pages, to which no reference is held.
    let memory = unsafe { HostMemory::borrowed(base.cast(), 2 * page()) };
    let at = page() as u64 - 100;
    assert_eq!(memory.persist(at, 200), Ok(()));
    // SAFETY: the second of the test's pages, which only the system is asked about from now on.
    unsafe { munmap(base.byte_add(page()), page()) }.unwrap();
    assert_eq!(memory.persist(at, 100), Ok(()));
    assert_eq!(memory.persist(at, 101), Err(CopyFault::NotPersistent(libc::ENOMEM)));
    // SAFETY: the first page of the mapping, which is still there, and to which no reference is held.
    unsafe { munmap(base, page()) }.unwrap();
}

#[test]
fn failed_allocation_reports_its_size() {
    for length in [usize::MAX, usize::MAX >> 1, 1 << 62] {
        let error = HostMemory::allocate(length).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert!(error.to_string().contains(&length.to_string()), "{error}");
    }
}

#[test]
fn out_of_bounds_access_is_refused() {
    let memory = HostMemory::allocate(16).unwrap();
    assert!(memory.write(9, &[1; 8]).is_err());
    assert!(memory.write(u64::MAX, &[1; 8]).is_err());
    assert!(memory.atomic(12, Some).is_err());
    assert!(memory.atomic(1, Some).is_err(), "misaligned");
    let mut all = [9; 16];
    memory.read(0, &mut all).unwrap();
    assert_eq!(all, [0; 16]);
}

#[test]
fn part_shares_bytes_and_outlives_the_whole() {
    let memory = HostMemory::allocate(64).unwrap();
    let part = memory.part(16, 8).unwrap();
    memory.write(16, b"together").unwrap();
    assert!(memory.part(60, 8).is_err());
    drop(memory);
    let mut bytes = [0; 8];
    part.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"together");
    assert!(part.read(1, &mut bytes).is_err());
}

#[test]
fn atomic_returns_the_value_before() {
    let memory = HostMemory::allocate(8).unwrap();
    assert_eq!(memory.atomic(0, |v| Some(v.wrapping_add(5))), Ok(0));
    assert_eq!(memory.atomic(0, |v| (v == 4).then_some(9)), Ok(5));
    assert_eq!(memory.atomic(0, |v| (v == 5).then_some(9)), Ok(5));
    assert_eq!(memory.atomic(0, |_| None), Ok(9));
}

/// For every alignment: the largest aligned store at the end is a single one, and the last to be seen.
//= test: IBTA A19: atomic-write-stores-8-bytes-in-one
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn end_of_a_write_is_one_last_store() {
    let memory = HostMemory::allocate(64).unwrap();
    for end in 1..=24usize {
        for length in 1..=end {
            memory.write(0, &[0; 64]).unwrap();
            let last = [8, 4, 2, 1].into_iter().find(|n| length >= *n && end.is_multiple_of(*n)).unwrap();
            // The aligned 8 bytes in which the write ends, and the place of the last store in them.
            let word = (end - 1) & !7;
            let shift = 8 * (end - last - word);
            let mask = u64::MAX >> (64 - 8 * last) << shift;
            let at = (memory.address() as usize + word) as *const u8;
            let bytes = [0xff; 24];
            let states = super::stores::states(at, || {
                memory.write((end - length) as u64, &bytes[..length]).unwrap();
            });
            let parts: Vec<_> = states.iter().map(|state| state & mask).collect();
            let whole = parts.iter().all(|part| *part == 0 || *part == mask);
            assert!(whole, "{length} bytes up to {end}: {states:x?}");
            let before = states[states.len() - 2];
            assert_eq!(before & mask, 0, "{length} bytes up to {end}: something came later: {states:x?}");
        }
    }
}

#[test]
fn file_is_found_for_shared_memory_only() {
    const LENGTH: usize = 8192;
    let (fd, memory) = file_of_program(LENGTH);
    let file_of = |at: u64, length| {
        let base = NonNull::new((memory.address() + at) as *mut u8).expect("mapped");
        // SAFETY: the mapping is never unmapped, and no reference into it exists.
        unsafe { HostMemory::borrowed(base, length) }.file()
    };
    assert_eq!(file_of(0, LENGTH).expect("a shared mapping").offset(), 0);
    assert_eq!(file_of(5000, 100).expect("a shared mapping").offset(), 5000);
    assert!(file_of(0, LENGTH + 1).is_none(), "beyond its end");
    drop(fd);
    // Without a descriptor, only CAP_CHECKPOINT_RESTORE allows opening a file that has no name.
    assert_eq!(file_of(0, LENGTH).is_some(), nix::unistd::geteuid().is_root());
    let mut private = vec![0u8; LENGTH];
    let private = NonNull::new(private.as_mut_ptr()).expect("memory");
    // SAFETY: the vector lives until the end of the test, and no other reference into it exists.
    assert!(unsafe { HostMemory::borrowed(private, LENGTH) }.file().is_none());
}
