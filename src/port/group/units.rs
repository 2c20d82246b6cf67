//! The units of QPNs that a member owns.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Called after each new unit.
type Watcher = Box<dyn Fn() + Send + Sync>;

/// A set of units, which grows.
#[derive(Default)]
pub(crate) struct Units {
    /// A bit for each unit.
    bits: [AtomicU64; 4],
    watcher: OnceLock<Watcher>,
}

impl Units {
    /// Adds a unit. Returns when the watcher has seen it.
    pub(super) fn add(&self, unit: u8) {
        self.bits[usize::from(unit) / 64].fetch_or(1 << (unit % 64), Relaxed);
        if let Some(watcher) = self.watcher.get() {
            watcher();
        }
    }

    /// True if the member owns the unit.
    #[inline]
    pub(crate) fn has(&self, unit: u8) -> bool {
        self.bits[usize::from(unit) / 64].load(Relaxed) >> (unit % 64) & 1 == 1
    }

    /// Returns the units in ascending order.
    pub(crate) fn all(&self) -> Vec<u8> {
        (0..=u8::MAX).filter(|unit| self.has(*unit)).collect()
    }

    /// Has `watcher` called after each new unit. The first watcher stays.
    pub(crate) fn watch(&self, watcher: Watcher) {
        let _ = self.watcher.set(watcher);
    }
}

impl fmt::Debug for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.all()).finish()
    }
}
