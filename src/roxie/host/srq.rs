//! The application's shared receive queues.

use std::sync::{Arc, Mutex};

use super::cq::CompletionQueue;
use super::device::Device;
use super::error::{DeviceError, unexpected, within};
use super::pd::{KeptObjects, ProtectionDomain};
use super::xrcd::XrcDomain;
use roxie_base::limits::{MAX_SGE, MAX_WR};
use roxie_base::threads::lock;
use roxie_nic::nic::{Answer, Command, MemoryCommand, SrqStatus};
use roxie_nic::shared::{PostError, RecvRing};
use roxie_nic::verbs::{Sge, SrqIndex, SrqInit, SrqKind, Srqn};

#[derive(Debug)]
struct SrqInner {
    device: Device,
    index: SrqIndex,
    number: Srqn,
    ring: Mutex<RecvRing>,
    _uses: KeptObjects,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let _ = self.device.execute(Command::DestroySrq(self.index));
    }
}

/// A receive queue that many QPs take from, in the order of posting. A clone is another handle to the same queue.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    inner: Arc<SrqInner>,
}

impl SharedReceiveQueue {
    pub(super) fn keep_alive(&self) -> Arc<dyn std::fmt::Debug + Send + Sync> {
        Arc::clone(&self.inner) as _
    }

    /// Index of the queue in the device's table. Events carry it.
    pub fn index(&self) -> SrqIndex {
        self.inner.index
    }

    /// The SRQ number, which the peer of an XRC connection puts into its work requests (`ibv_get_srq_num`).
    pub fn number(&self) -> Srqn {
        self.inner.number
    }

    /// Posts a receive (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// If the queue is full, the list is too long, or the device has failed.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.inner.device.has_failed() {
            return Err(PostError::DeviceFatal);
        }
        lock(&self.inner.ring).post(wr_id, sges).map(drop)
    }

    /// Requests one event when fewer than `limit` receives are left; immediately if there are already fewer. A limit of
    /// 0 disarms.
    ///
    /// # Errors
    /// If `limit` exceeds the size of the queue.
    pub fn arm(&self, limit: u32) -> Result<(), DeviceError> {
        self.modify(None, Some(limit))
    }

    /// Resizes the queue to at least `max_wr` receives. Pending receives keep their order.
    ///
    /// # Errors
    /// If more receives are pending, or `max_wr` is beyond the device's limit. The queue is then unchanged.
    pub fn resize(&self, max_wr: u32) -> Result<(), DeviceError> {
        self.modify(Some(max_wr), None)
    }

    /// Resizes and arms together, or one of the two (`ibv_modify_srq`).
    ///
    /// # Errors
    /// The errors of [`resize`](Self::resize) and [`arm`](Self::arm), with the new size. The queue is then unchanged.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), DeviceError> {
        let change = |ring| MemoryCommand::ModifySrq { srq: self.inner.index, ring, limit };
        let Some(max_wr) = max_wr else {
            return self.inner.device.execute(change(None)).map(drop);
        };
        within("max_wr", max_wr, MAX_WR)?;
        // Blocks posting while the NIC moves pending receives.
        let mut ring = lock(&self.inner.ring);
        let other = self.inner.device.receive_ring(max_wr, ring.max_sge())?;
        self.inner.device.execute(change(Some(other.clone())))?;
        *ring = other;
        Ok(())
    }

    /// Returns the SRQ's status.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn query(&self) -> Result<SrqStatus, DeviceError> {
        match self.inner.device.execute(Command::QuerySrq(self.inner.index))? {
            Answer::SrqStatus(status) => Ok(status),
            other => unexpected(&other),
        }
    }
}

impl ProtectionDomain {
    /// Makes a shared receive queue for `max_wr` receives of up to `max_sge` entries.
    ///
    /// # Errors
    /// If a size is beyond the device's limits, or it has no room for another SRQ.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue, DeviceError> {
        self.make_srq(max_wr, max_sge, SrqKind::Basic, KeptObjects::new())
    }

    /// Makes a shared receive queue for XRC: completions of its receives go to `cq`, and requests access memory of this
    /// protection domain.
    ///
    /// # Errors
    /// The errors of [`create_srq`](Self::create_srq).
    pub fn create_xrc_srq(
        &self,
        max_wr: u32,
        max_sge: u32,
        xrcd: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Result<SharedReceiveQueue, DeviceError> {
        let kind = SrqKind::Xrc { xrcd: xrcd.inner.id, cq: cq.index() };
        self.make_srq(max_wr, max_sge, kind, vec![cq.keep_alive(), Arc::clone(&xrcd.inner) as _])
    }

    fn make_srq(
        &self,
        max_wr: u32,
        max_sge: u32,
        kind: SrqKind,
        mut uses: KeptObjects,
    ) -> Result<SharedReceiveQueue, DeviceError> {
        within("max_wr", max_wr, MAX_WR)?;
        within("max_sge", max_sge, MAX_SGE as u32)?;
        let ring = self.inner.device.receive_ring(max_wr, max_sge)?;
        let init = SrqInit { kind, limit: 0 };
        let device = self.device().clone();
        match device.execute(MemoryCommand::CreateSrq { pd: self.id(), init, ring: ring.clone() })? {
            Answer::Srq(index, number) => {
                uses.push(Arc::clone(&self.inner) as _);
                let inner = SrqInner { device, index, number, ring: Mutex::new(ring), _uses: uses };
                Ok(SharedReceiveQueue { inner: Arc::new(inner) })
            }
            other => unexpected(&other),
        }
    }
}
