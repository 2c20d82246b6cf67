//! The page list of a fast-registered region: the offset of each of its pages.
//!
//! The application writes the list, then posts the work request that makes the region valid. The NIC reads the list
//! once, when it executes that work request, and keeps a copy. As with queues, each value is judged after it is copied.

use std::io;
use std::sync::Arc;

use super::region::Region;
use super::sync::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

/// A list of pages: for each page one 64-bit word, its offset in bytes in the memory that pages are taken from. A clone
/// is another handle to the same list.
#[derive(Clone, Debug)]
pub struct PageList {
    region: Arc<Region>,
    capacity: u32,
}

impl PageList {
    /// Makes a list of `capacity` pages, all at offset 0.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(capacity: u32) -> io::Result<PageList> {
        PageList::on(&Region::new(PageList::size(capacity))?, capacity)
    }

    /// Returns a handle to the list in this region; other handles may exist. All offsets are 0 if the region is zeroed.
    ///
    /// # Errors
    /// If the region is too small: each page takes a word.
    pub fn on(region: &Arc<Region>, capacity: u32) -> io::Result<PageList> {
        Ok(PageList { region: region.part(0, PageList::size(capacity))?, capacity })
    }

    /// Words of a list of `capacity` pages.
    pub fn size(capacity: u32) -> usize {
        (capacity as usize).max(1)
    }

    /// The words of the list. The other side may write them at any time.
    pub fn words(&self) -> &[AtomicU64] {
        self.region.words()
    }

    /// Pages that the list can name.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The application's side: sets the offset of page `index`. Returns false if the list has no such page.
    pub fn set(&self, index: u32, offset: u64) -> bool {
        let inside = index < self.capacity;
        if inside {
            self.region.words()[index as usize].store(offset, Release);
        }
        inside
    }

    /// The NIC's side: returns the offset of page `index`, or `None` if the list has no such page.
    pub fn page(&self, index: u32) -> Option<u64> {
        let inside = index < self.capacity;
        inside.then(|| self.region.words()[index as usize].load(Acquire))
    }
}
