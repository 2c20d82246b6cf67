//! A piece of memory that holds queues: 64-bit words, aligned to cache lines.
//!
//! Queues address a region by offset and touch it only through atomics, so a second process may map it as well
//! ([`Region::shared`], [`Region::map`]). Within one process, regions are heap memory. Many queues share one region,
//! each in a [`part`](Region::part): with a descriptor and a mapping for each queue, thousands of QPs would exhaust the
//! process's limits and its TLB.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::mapping::Mapping;

/// 64-bit words of a cache line.
pub const LINE: usize = 8;

/// Memory for queues, as 64-bit words. Zeroed at first; freed when the last handle is dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<AtomicU64>,
    words: usize,
    /// True if another process may have mapped the region too.
    is_mapped: bool,
    /// Keeps the words alive: a heap block, a mapping, or the region that this one is a part of.
    _owner: Arc<dyn Debug + Send + Sync>,
}

// SAFETY: the memory is only reached as `&[AtomicU64]`, which any thread may use.
unsafe impl Send for Region {}
// SAFETY: the memory is only reached as `&[AtomicU64]`, which many threads may use concurrently.
unsafe impl Sync for Region {}

/// Heap memory.
#[derive(Debug)]
struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: dropping frees the block, to which no other handle exists by then.
unsafe impl Send for Heap {}
// SAFETY: no method takes `&self`; the block is freed when the last handle is dropped.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `Region::new` with this layout, and every region that reaches it holds it.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// The pages of a lent region, not yet held in place.
#[derive(Debug)]
pub struct HeldPages {
    mapping: Arc<Mapping>,
    fd: OwnedFd,
}

impl HeldPages {
    /// Holds all pages in place. Later writable mappings of the file are refused.
    ///
    /// # Errors
    /// If pages are missing, because the other process has removed them.
    pub fn hold(self) -> io::Result<()> {
        self.mapping.hold(self.fd.as_fd())
    }
}

impl Region {
    /// Makes a region of `words` 64-bit words.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(words: usize) -> io::Result<Arc<Region>> {
        let words = words.max(1);
        // A line more, to begin on a line within the block. Aligned blocks leave gaps behind in the heap, and the
        // queues of successive QPs then lie at irregular distances, which a processor cannot prefetch.
        let with_gap = words.checked_add(LINE - 1).ok_or(io::ErrorKind::OutOfMemory)?;
        let layout = Layout::array::<AtomicU64>(with_gap).map_err(io::Error::other)?;
        // SAFETY: the layout is not empty: there is at least one word.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        let gap = block.align_offset(LINE * size_of::<AtomicU64>());
        // SAFETY: the block is aligned to a word, so the gap is at most `LINE - 1` words, by which the block is longer
        // than `words`.
        let base = unsafe { block.add(gap) };
        let owner = Arc::new(Heap { base: block, layout });
        Ok(Arc::new(Region { base: base.cast(), words, is_mapped: false, _owner: owner }))
    }

    /// Makes a region as [`new`](Self::new) does, in shared memory. Also returns the descriptor by which another
    /// process maps it.
    ///
    /// # Errors
    /// If there is no memory or no descriptor for it.
    pub fn shared(words: usize) -> io::Result<(Arc<Region>, OwnedFd)> {
        let (mapping, fd) = Mapping::create(bytes(words)?)?;
        Ok((Region::mapped(mapping, words), fd))
    }

    /// Maps a region of `words` words that another process made by [`shared`](Self::shared).
    ///
    /// # Errors
    /// If the descriptor is no such file, or the file has fewer words.
    pub fn map(fd: BorrowedFd<'_>, words: usize) -> io::Result<Arc<Region>> {
        Ok(Region::mapped(Mapping::of(fd, bytes(words)?)?, words))
    }

    /// As [`shared`](Self::shared), for a process that [adopts](Self::adopt) the region: all pages are allocated.
    ///
    /// # Errors
    /// If there is no memory or no descriptor for it.
    pub fn to_lend(words: usize) -> io::Result<(Arc<Region>, OwnedFd)> {
        let (mapping, fd) = Mapping::create_to_lend(bytes(words)?)?;
        Ok((Region::mapped(mapping, words), fd))
    }

    /// Maps a region of `words` words of an untrusted process (`mapping.rs` lists the checks).
    ///
    /// # Errors
    /// If the descriptor is no such file, the file has another size, or an access might fault.
    pub fn adopt(fd: BorrowedFd<'_>, words: usize) -> io::Result<Arc<Region>> {
        Ok(Region::mapped(Mapping::adopt(fd, bytes(words)?)?, words))
    }

    /// As [`to_lend`](Self::to_lend). Also returns a [`HeldPages`], which holds the pages in place once the other
    /// process has mapped them.
    ///
    /// # Errors
    /// If there is no memory or no descriptor for it.
    pub fn to_lend_and_hold(words: usize) -> io::Result<(Arc<Region>, OwnedFd, HeldPages)> {
        let (mapping, fd) = Mapping::create_to_lend(bytes(words)?)?;
        let mapping = Arc::new(mapping);
        let held = HeldPages { mapping: Arc::clone(&mapping), fd: fd.try_clone()? };
        let base = mapping.base().cast();
        Ok((Arc::new(Region { base, words: words.max(1), is_mapped: true, _owner: mapping }), fd, held))
    }

    fn mapped(mapping: Mapping, words: usize) -> Arc<Region> {
        let base = mapping.base().cast();
        Arc::new(Region { base, words: words.max(1), is_mapped: true, _owner: Arc::new(mapping) })
    }

    /// Returns the `words` words from word `at` on. `at` must be a multiple of [`LINE`].
    ///
    /// # Errors
    /// If the part is empty, is not within the region, or does not begin on a cache line.
    pub fn part(self: &Arc<Region>, at: usize, words: usize) -> io::Result<Arc<Region>> {
        let inside = at.checked_add(words).is_some_and(|end| end <= self.words);
        if words == 0 || !inside || !at.is_multiple_of(LINE) {
            let (whole, error) = (self.words, io::ErrorKind::InvalidInput);
            let why = format!("{words} words from word {at} on: the region has {whole}, in lines of {LINE}");
            return Err(io::Error::new(error, why));
        }
        // SAFETY: `at` lies before the end of the region.
        let base = unsafe { self.base.add(at) };
        Ok(Arc::new(Region { base, words, is_mapped: self.is_mapped, _owner: Arc::clone(self) as _ }))
    }

    /// As [`part`](Self::part); `with` is dropped together with the part.
    ///
    /// # Errors
    /// As for [`part`](Self::part).
    pub fn part_with(
        self: &Arc<Region>,
        at: usize,
        words: usize,
        with: impl Debug + Send + Sync + 'static,
    ) -> io::Result<Arc<Region>> {
        let part = self.part(at, words)?;
        Ok(Arc::new(Region {
            base: part.base,
            words,
            is_mapped: self.is_mapped,
            _owner: Arc::new((part, with)),
        }))
    }

    /// True if another process may have mapped the region too.
    pub fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    /// The words of the region.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` holds `words` words for as long as the owner lives, aligned to a cache line, and they are only
        // ever reached through atomics; any bytes are a valid AtomicU64.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

/// The words of a region, with their address next to the handle. A queue that looks them up by its [`Region`] touches
/// one cache line more, which with thousands of queues is a miss.
#[derive(Clone, Debug)]
pub struct Words {
    base: NonNull<AtomicU64>,
    count: usize,
    is_mapped: bool,
    _region: Arc<Region>,
}

// SAFETY: as for `Region`.
unsafe impl Send for Words {}
// SAFETY: as for `Region`.
unsafe impl Sync for Words {}

impl From<Arc<Region>> for Words {
    fn from(region: Arc<Region>) -> Words {
        Words { base: region.base, count: region.words, is_mapped: region.is_mapped, _region: region }
    }
}

impl Words {
    /// As [`Region::is_mapped`].
    #[inline(always)]
    pub fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    /// As [`Region::words`].
    #[inline(always)]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: base and count are the region's, which the handle keeps and which never change: see `Region::words`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

/// Slots of a ring of `capacity` entries: the next power of two.
pub(super) fn slots_for(capacity: u32) -> usize {
    (capacity.max(1) as usize).next_power_of_two()
}

fn bytes(words: usize) -> io::Result<usize> {
    words.checked_mul(size_of::<AtomicU64>()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_of_a_region_share_its_words() {
        let (here, fd) = Region::shared(64).expect("a region");
        let there = Region::map(fd.as_fd(), 64).expect("the same");
        let part = there.part(16, 8).expect("inside");
        drop((fd, there));
        here.words()[17].store(7, Relaxed);
        assert_eq!(part.words()[1].load(Relaxed), 7);
        assert_ne!(here.words()[16..].as_ptr(), part.words().as_ptr());
    }

    #[test]
    fn part_outside_or_off_the_line_is_refused() {
        let region = Region::new(32).expect("a region");
        for (at, words) in [(0, 33), (32, 1), (4, 8), (usize::MAX - 7, 16), (0, 0)] {
            assert!(region.part(at, words).is_err(), "{words} words at {at}");
        }
        assert_eq!(region.part(24, 8).expect("the last line").words().len(), 8);
    }
}
