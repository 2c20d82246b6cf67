//! Memory of a queue, made of a model checker's words.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use loom::sync::atomic::AtomicU64;

/// As in `src/nic/shared/region.rs`.
pub(crate) const LINE: usize = 8;

/// As in `src/nic/shared/region.rs`.
#[derive(Debug)]
pub(crate) struct HeldPages;

#[derive(Debug)]
pub(crate) struct Region(Box<[AtomicU64]>);

impl Region {
    pub(crate) fn new(words: usize) -> io::Result<Arc<Region>> {
        Ok(Arc::new(Region((0..words).map(|_| AtomicU64::new(0)).collect())))
    }

    /// Models have one process.
    pub(crate) fn shared(_words: usize) -> io::Result<(Arc<Region>, OwnedFd)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Models have one process.
    pub(crate) fn to_lend_and_hold(_words: usize) -> io::Result<(Arc<Region>, OwnedFd, HeldPages)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn map(_fd: BorrowedFd<'_>, _words: usize) -> io::Result<Arc<Region>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// In the models, each queue has its own region.
    pub(crate) fn part(self: &Arc<Region>, at: usize, words: usize) -> io::Result<Arc<Region>> {
        assert!(at == 0 && words == self.0.len());
        Ok(Arc::clone(self))
    }

    pub(crate) fn is_mapped(&self) -> bool {
        false
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Words(Arc<Region>);

impl From<Arc<Region>> for Words {
    fn from(region: Arc<Region>) -> Words {
        Words(region)
    }
}

impl Words {
    pub(crate) fn is_mapped(&self) -> bool {
        self.0.is_mapped()
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

pub(crate) fn slots_for(capacity: u32) -> usize {
    (capacity.max(1) as usize).next_power_of_two()
}
