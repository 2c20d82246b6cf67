//! A completion queue of `src/shared`, in memory that the model checker watches.

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/shared/completion_queue.rs"]
pub(crate) mod completion_queue;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

mod region {
    use std::io;
    use std::sync::Arc;

    use super::sync::AtomicU64;

    pub(super) const LINE: usize = 8;

    /// As the one of `src/shared`.
    #[derive(Debug)]
    pub(crate) struct Region(Vec<AtomicU64>);

    impl Region {
        pub(super) fn new(words: usize) -> io::Result<Arc<Region>> {
            Ok(Arc::new(Region((0..words).map(|_| AtomicU64::new(0)).collect())))
        }

        pub(super) fn part(self: &Arc<Region>, at: usize, words: usize) -> io::Result<Arc<Region>> {
            assert!(at == 0 && words == self.0.len(), "all of it");
            Ok(Arc::clone(self))
        }

        pub(super) fn words(&self) -> &[AtomicU64] {
            &self.0
        }
    }

    pub(super) fn slots_for(capacity: u32) -> usize {
        (capacity.max(1) as usize).next_power_of_two()
    }
}
