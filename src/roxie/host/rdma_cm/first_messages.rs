//! Memory for the first messages of half-open connections.

use std::sync::{Arc, Mutex};

use super::super::error::DeviceError;
use super::super::memory::MemoryRegion;
use super::super::pd::ProtectionDomain;
use roxie_base::threads::lock;
use roxie_nic::verbs::{Access, Sge};

/// Places for the first messages of a server's connections, one for each, in memory that all connections share. A
/// half-open connection has no memory of its own: one of a stranger takes a place, and no page before a message has
/// come.
#[derive(Debug)]
pub struct FirstMessages {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    region: MemoryRegion,
    /// Bytes of a place.
    length: usize,
    free: Mutex<Vec<u32>>,
}

/// A place for one message, free again when it is dropped. A QP with a receive for it must
/// [keep](super::super::QpBuilder::keeps) it.
#[derive(Debug)]
pub struct FirstMessage {
    pool: Arc<Pool>,
    place: u32,
}

impl FirstMessages {
    /// Allocates and registers `count` places of `length` bytes.
    ///
    /// # Errors
    /// If the system has no such memory, or the device has no room for another region.
    pub fn new(pd: &ProtectionDomain, count: u32, length: usize) -> Result<FirstMessages, DeviceError> {
        let region = pd.register(count as usize * length, Access::LOCAL_WRITE)?;
        Ok(FirstMessages {
            pool: Arc::new(Pool { region, length, free: Mutex::new((0..count).rev().collect()) }),
        })
    }

    /// Takes a place. `None`: all are taken.
    pub fn take(&self) -> Option<Arc<FirstMessage>> {
        let place = lock(&self.pool.free).pop()?;
        Some(Arc::new(FirstMessage { pool: Arc::clone(&self.pool), place }))
    }
}

impl FirstMessage {
    fn begin(&self) -> usize {
        self.place as usize * self.pool.length
    }

    /// The first `length` bytes of the place, for a receive.
    ///
    /// # Panics
    /// If the place is shorter.
    pub fn sge(&self, length: usize) -> Sge {
        assert!(length <= self.pool.length, "{length} bytes of a place of {}", self.pool.length);
        self.pool.region.sge(self.begin(), length as u32)
    }

    /// Returns the first bytes of the place, at most `length`.
    ///
    /// # Errors
    /// The errors of [`MemoryRegion::read_at`].
    pub fn to_vec(&self, length: usize) -> Result<Vec<u8>, DeviceError> {
        self.pool.region.to_vec(self.begin(), length.min(self.pool.length))
    }
}

impl Drop for FirstMessage {
    fn drop(&mut self) {
        lock(&self.pool.free).push(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Device, DeviceConfig};
    use roxie_nic::verbs::QpCaps;

    #[test]
    fn place_is_taken_while_its_queue_pair_exists() {
        let (device, _peer) = Device::memory_pair(&DeviceConfig::caller_only()).expect("devices");
        let (pd, cq) = (device.alloc_pd().expect("room"), device.create_cq(2, None).expect("room"));
        let places = FirstMessages::new(&pd, 2, 64).expect("room");
        let [first, second] = [(); 2].map(|()| places.take().expect("a place"));
        assert_ne!(first.sge(64).addr, second.sge(64).addr);
        assert!(places.take().is_none());
        let builder = pd.queue_pair(&cq).caps(QpCaps::default());
        let qp = builder.keeps(Arc::clone(&first)).create().expect("room");
        drop(first);
        assert!(places.take().is_none(), "a receive of the queue pair may name it");
        drop(qp);
        assert!(places.take().is_some());
    }
}
