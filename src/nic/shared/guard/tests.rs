use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::shared::HostMemory;
use crate::shared::memory::CopyFault;
use crate::shared::memory_tests::place_of_its_own;
use roxie_base::threads::spawn_unsignalled;

/// A multiple of every page size.
const PAGE: usize = 65536;
const ALL: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Three pages, the second of which can be protected or unmapped.
struct Pages(*mut u8);

// SAFETY: plain memory, of which only the protection is changed here.
unsafe impl Send for Pages {}
// SAFETY: plain memory, accessed by raw pointers only: concurrent accesses are the subject of the tests.
unsafe impl Sync for Pages {}

impl Pages {
    fn new() -> Pages {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = place_of_its_own(3 * PAGE) as *mut libc::c_void;
        // SAFETY: a new mapping, which replaces none: the address is a hint.
        let base = unsafe { libc::mmap(at, 3 * PAGE, ALL, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Pages(base.cast())
    }

    fn protect_second(&self, protection: i32) {
        // SAFETY: a page of the mapping, into which no reference exists.
        assert_eq!(unsafe { libc::mprotect(self.0.add(PAGE).cast(), PAGE, protection) }, 0);
    }

    fn unmap_second(&self) {
        // SAFETY: a page of the mapping, into which no reference exists; it is not used afterwards.
        assert_eq!(unsafe { libc::munmap(self.0.add(PAGE).cast(), PAGE) }, 0);
    }

    /// The pages as borrowed memory, and as on-demand memory.
    fn memories(&self) -> [HostMemory; 2] {
        let base = NonNull::new(self.0).unwrap();
        // SAFETY: no reference into the mapping exists.
        unsafe { [HostMemory::borrowed(base, 3 * PAGE), HostMemory::on_demand(self.0 as u64, 3 * PAGE)] }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.0.cast(), 3 * PAGE) };
    }
}

fn add(memory: &HostMemory, offset: usize) -> Result<u64, CopyFault> {
    memory.atomic(offset as u64, |value| Some(value.wrapping_add(1)))
}

#[test]
fn copy_faults_on_protected_pages_only() {
    let pages = Pages::new();
    for memory in pages.memories() {
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
        pages.protect_second(ALL);
        memory.write(PAGE as u64, b"again").unwrap();
        assert!(memory.write(3 * PAGE as u64 - 1, b"beyond").is_err());
    }
}

/// Covers each instruction of the routines that accesses memory.
#[test]
fn copy_of_any_length_faults_at_any_byte() {
    let pages = Pages::new();
    let [memory, _] = pages.memories();
    let lengths = (1..=200).chain([255, 256, 300, 384, 511, 1000, 2048, 4096]);
    for length in lengths.clone() {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8 | 1).collect();
        let mut back = vec![0; length];
        // The first missing byte is the last, the middle, or the first of the copy.
        for there in [length - 1, length / 2, 0] {
            let start = (PAGE - there) as u64;
            pages.protect_second(libc::PROT_NONE);
            let missing = Err(CopyFault::NotMapped { address: memory.address() + start, length });
            assert_eq!(memory.write(start, &bytes), missing, "{length} bytes, {there} there");
            assert_eq!(memory.read(start, &mut back), missing, "{length} bytes, {there} there");
            pages.protect_second(ALL);
            memory.write(start, &bytes).unwrap();
            back.fill(0);
            memory.read(start, &mut back).unwrap();
            assert_eq!(back, bytes);
        }
    }
}

#[test]
fn copy_to_unmapped_page_faults() {
    let pages = Pages::new();
    pages.unmap_second();
    for memory in pages.memories() {
        assert!(memory.write(PAGE as u64, &[1; 8]).is_err());
        assert!(memory.read(PAGE as u64, &mut [0; 8]).is_err());
        assert!(add(&memory, PAGE).is_err());
        memory.write(0, &[1; 8]).unwrap();
    }
}

#[test]
fn on_demand_region_covers_the_whole_address_space() {
    // SAFETY: the bytes that are accessed are in `word`, which nothing else accesses meanwhile.
    let all = unsafe { HostMemory::on_demand(0, usize::MAX) };
    let mut word = 7u64;
    let at = (&raw mut word) as u64;
    all.write(at, &9u64.to_ne_bytes()).unwrap();
    assert_eq!(word, 9);
    let mut back = [1; 8];
    // Address 0 is not mapped, the second belongs to the kernel, and the third is not canonical.
    for nowhere in [0, 0xffff_8000_0000_0000, 0x8000_0000_0000_0000, u64::MAX - 64] {
        assert!(all.read(nowhere, &mut back).is_err(), "{nowhere:#x}");
        assert!(all.write(nowhere, &back).is_err(), "{nowhere:#x}");
        assert!(add(&all, (nowhere & !7) as usize).is_err(), "{nowhere:#x}");
    }
}

#[test]
fn atomic_needs_a_writable_page() {
    let pages = Pages::new();
    for (at, memory) in pages.memories().into_iter().enumerate() {
        let at = 8 + 8 * at;
        assert_eq!(
            (add(&memory, at), add(&memory, at)),
            (Ok(0), Ok(1)),
            "a page that nobody has touched yet"
        );
        assert_eq!(memory.atomic(at as u64, |value| (value == 7).then_some(9)), Ok(2), "nothing to store");
        let missing = Err(CopyFault::NotMapped { address: memory.address() + PAGE as u64, length: 8 });
        pages.protect_second(libc::PROT_NONE);
        assert_eq!(add(&memory, PAGE), missing);
        pages.protect_second(libc::PROT_READ);
        assert_eq!(add(&memory, PAGE), missing, "not writable");
        assert_eq!(memory.atomic(PAGE as u64, |_| None), missing, "though nothing would be stored");
        pages.protect_second(ALL);
        assert!(add(&memory, PAGE).is_ok());
        assert_eq!(add(&memory, 12), Err(CopyFault::Misaligned(12)));
        assert!(matches!(add(&memory, 3 * PAGE), Err(CopyFault::OutOfBounds { .. })));
    }
}

#[test]
fn page_beyond_the_end_of_its_file_faults() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE as u64).unwrap();
    // SAFETY: a new mapping anywhere.
    let base = unsafe { libc::mmap(ptr::null_mut(), PAGE, ALL, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(base, libc::MAP_FAILED);
    // SAFETY: no reference into the mapping exists.
    let memory = unsafe { HostMemory::borrowed(NonNull::new(base.cast()).unwrap(), PAGE) };
    assert_eq!(add(&memory, 0), Ok(0));
    file.set_len(0).unwrap();
    assert!(matches!(add(&memory, 0), Err(CopyFault::NotMapped { .. })));
    assert!(matches!(memory.write(0, &[1; 64]), Err(CopyFault::NotMapped { .. })));
    // SAFETY: the test's own mapping of one page, to which no reference is left.
    unsafe { libc::munmap(base, PAGE) };
}

//= test: IBTA 9.4.5: atomic-is-one-step
#[test]
fn concurrent_additions_by_the_cpu_are_kept() {
    const TRIED: u64 = 10_000;
    let word = AtomicU64::new(0);
    // SAFETY: all accesses to the word are atomic.
    let memory = unsafe { HostMemory::borrowed(NonNull::new(word.as_ptr().cast()).unwrap(), 8) };
    let done = AtomicBool::new(false);
    let added = thread::scope(|scope| {
        let adding = scope.spawn(|| {
            let mut added = 0;
            while !done.load(Ordering::Acquire) {
                word.fetch_add(1, Ordering::Relaxed);
                added += 1;
            }
            added
        });
        for _ in 0..TRIED {
            add(&memory, 0).unwrap();
        }
        done.store(true, Ordering::Release);
        adding.join().unwrap()
    });
    assert_eq!(word.into_inner(), added + TRIED);
}

#[test]
fn concurrently_protected_page_works_or_faults() {
    let pages = Pages::new();
    let [memory, _] = pages.memories();
    let done = AtomicBool::new(false);
    let (mut there, mut unmapped) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                pages.protect_second(libc::PROT_NONE);
                thread::yield_now();
                pages.protect_second(ALL);
                thread::yield_now();
            }
        });
        while (there < 20 || unmapped < 20) && there + unmapped < 10_000_000 {
            match add(&memory, PAGE) {
                Ok(before) => {
                    assert_eq!(before, there);
                    there += 1;
                }
                Err(_) => unmapped += 1,
            }
        }
        done.store(true, Ordering::Release);
    });
    assert!(there >= 20 && unmapped >= 20, "{there} there, {unmapped} gone");
}

#[test]
fn engine_thread_recovers_from_faults() {
    let pages = Pages::new();
    pages.unmap_second();
    let [memory, _] = pages.memories();
    let (sender, receiver) = std::sync::mpsc::channel();
    let copy = move || sender.send(memory.write(PAGE as u64, &[1; 8])).unwrap();
    spawn_unsignalled("engine", copy).unwrap().join().unwrap();
    assert!(receiver.recv().unwrap().is_err());
}
