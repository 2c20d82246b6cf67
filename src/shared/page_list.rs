//! The page list of a fast-registered region: where each of its pages lies.
//!
//! The application writes it, then posts the work request that makes the region valid; the NIC reads it once, when it
//! carries that work request out, and keeps a copy. As with the queues, whatever stands there is judged when it is read.

use std::io;
use std::sync::Arc;

use super::region::Region;
use super::sync::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

/// A list of pages: one 64-bit word for each, its place in bytes from the start of the memory that pages are taken from.
/// Cloning it gives another handle to the same list.
#[derive(Clone, Debug)]
pub struct PageList {
    region: Arc<Region>,
    capacity: u32,
}

impl PageList {
    /// A list of up to `capacity` pages, all at 0.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(capacity: u32) -> io::Result<PageList> {
        PageList::on(&Region::new(PageList::size(capacity))?, capacity)
    }

    /// A handle to the list in this region, whoever else has one; all at 0 if it is zeroed.
    ///
    /// # Errors
    /// If the region is too small: a page takes a word.
    pub fn on(region: &Arc<Region>, capacity: u32) -> io::Result<PageList> {
        Ok(PageList { region: region.part(0, PageList::size(capacity))?, capacity })
    }

    /// Words of a list of up to `capacity` pages.
    pub fn size(capacity: u32) -> usize {
        (capacity as usize).max(1)
    }

    /// All of its memory, as whoever shares it may write it.
    pub fn words(&self) -> &[AtomicU64] {
        self.region.words()
    }

    /// Pages that it can name.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The application's side: page `index` lies at `offset`. False: there is no such page in the list.
    pub fn set(&self, index: u32, offset: u64) -> bool {
        let inside = index < self.capacity;
        if inside {
            self.region.words()[index as usize].store(offset, Release);
        }
        inside
    }

    /// The NIC's side: where page `index` lies; `None`: there is no such page in the list.
    pub fn page(&self, index: u32) -> Option<u64> {
        let inside = index < self.capacity;
        inside.then(|| self.region.words()[index as usize].load(Acquire))
    }
}
