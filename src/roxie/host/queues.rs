//! Memory for queues and to register: the heap's, or shared with the NIC where that is another process.

use std::io;

use super::device::Device;
use super::error::{DeviceError, no_memory};
use roxie_nic::shared::{CompletionRing, HostMemory, PageList, RecvRing, SendRing};
use roxie_nic::verbs::QpCaps;

impl Device {
    pub(super) fn completion_ring(&self, entries: u32) -> Result<CompletionRing, DeviceError> {
        let region = self.inner.adapter.region(CompletionRing::size(entries));
        region.and_then(|region| CompletionRing::on(&region, entries)).map_err(no_memory)
    }

    pub(super) fn send_ring(&self, caps: &QpCaps) -> Result<SendRing, DeviceError> {
        let (wrs, sges, inline) = (caps.max_send_wr, caps.max_send_sge, caps.max_inline);
        let region = self.inner.adapter.region(SendRing::size(wrs, sges, inline));
        region.and_then(|region| SendRing::on(&region, wrs, sges, inline)).map_err(no_memory)
    }

    pub(super) fn receive_ring(&self, max_wr: u32, max_sge: u32) -> Result<RecvRing, DeviceError> {
        let region = self.inner.adapter.region(RecvRing::size(max_wr, max_sge));
        region.and_then(|region| RecvRing::on(&region, max_wr, max_sge)).map_err(no_memory)
    }

    /// Allocates zeroed memory to be registered with this device. A NIC in another process maps it, where the system
    /// has the means, and reaches it without a system call.
    ///
    /// # Errors
    /// If the system has no `length` bytes.
    pub fn allocate(&self, length: usize) -> io::Result<HostMemory> {
        self.inner.adapter.memory(length)
    }

    pub(super) fn page_list(&self, pages: u32) -> Result<PageList, DeviceError> {
        let region = self.inner.adapter.region(PageList::size(pages));
        region.and_then(|region| PageList::on(&region, pages)).map_err(no_memory)
    }
}
