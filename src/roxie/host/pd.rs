//! Protection domains. An object frees its part of the device when dropped; objects that use one another keep one
//! another alive.

use std::sync::Arc;

use super::device::Device;
use super::error::{DeviceError, unexpected};
use roxie_nic::nic::{Answer, Command};
use roxie_nic::verbs::PdId;

/// Objects kept alive by another.
pub(super) type KeptObjects = Vec<Arc<dyn std::fmt::Debug + Send + Sync>>;

#[derive(Debug)]
pub(super) struct PdInner {
    pub(super) device: Device,
    pub(super) id: PdId,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        let _ = self.device.execute(Command::DeallocPd(self.id));
    }
}

/// A protection domain. A clone is another handle to the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(super) inner: Arc<PdInner>,
}

impl Device {
    /// Makes a protection domain.
    ///
    /// # Errors
    /// If the device has no room for another domain, or has failed.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, DeviceError> {
        match self.execute(Command::AllocPd)? {
            Answer::Pd(id) => Ok(ProtectionDomain { inner: Arc::new(PdInner { device: self.clone(), id }) }),
            other => unexpected(&other),
        }
    }
}

impl ProtectionDomain {
    pub(super) fn device(&self) -> &Device {
        &self.inner.device
    }

    pub(super) fn id(&self) -> PdId {
        self.inner.id
    }
}
