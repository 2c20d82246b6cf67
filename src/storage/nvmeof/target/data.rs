//! Registered memory for the data of commands.

use roxie::host::{DeviceError, MemoryRegion, ProtectionDomain};
use roxie::verbs::{Access, Sge};

/// Buffers of the longest transfer. A command without a free one waits.
#[derive(Debug)]
pub(super) struct Buffers {
    region: MemoryRegion,
    length: usize,
    free: Vec<u32>,
}

impl Buffers {
    pub(super) fn new(pd: &ProtectionDomain, count: u32, length: u32) -> Result<Buffers, DeviceError> {
        let region = pd.register(count as usize * length as usize, Access::LOCAL_WRITE)?;
        Ok(Buffers { region, length: length as usize, free: (0..count).rev().collect() })
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn release(&mut self, buffer: u32) {
        debug_assert!(!self.free.contains(&buffer), "buffer {buffer} is released twice");
        self.free.push(buffer);
    }

    pub(super) fn sge(&self, buffer: u32, length: u32) -> Sge {
        self.region.sge(buffer as usize * self.length, length)
    }

    pub(super) fn fill(&self, buffer: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.region.write_at(buffer as usize * self.length, bytes)
    }

    pub(super) fn copy(&self, buffer: u32, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.region.read_at(buffer as usize * self.length, bytes)
    }
}
