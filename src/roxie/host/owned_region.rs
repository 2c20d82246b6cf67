//! Registered memory that is a buffer of the application: no copy at either side of a transfer.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

use super::error::DeviceError;
use super::memory::MemoryRegion;
use super::pd::ProtectionDomain;
use roxie_nic::shared::HostMemory;
use roxie_nic::verbs::Access;

/// A buffer that was not registered, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotRegistered {
    /// Why.
    pub error: DeviceError,
    /// The buffer, as it was.
    pub buffer: Vec<u8>,
}

/// A buffer of the application, registered in place. Work requests and peers read and write its bytes; the application
/// has them again from [`OwnedRegion::into_buffer`], and meanwhile as those of any [`MemoryRegion`].
#[derive(Debug)]
pub struct OwnedRegion {
    region: MemoryRegion,
    /// `None` after the buffer was given back.
    parts: Option<Parts>,
}

/// A vector in parts. There is no reference to its bytes while they are registered.
#[derive(Debug)]
struct Parts {
    base: NonNull<u8>,
    length: usize,
    capacity: usize,
}

// SAFETY: the parts are a vector of bytes, which may be sent.
unsafe impl Send for Parts {}
// SAFETY: a shared reference to the parts gives no access to the bytes.
unsafe impl Sync for Parts {}

impl Parts {
    fn of(buffer: Vec<u8>) -> Parts {
        let mut buffer = ManuallyDrop::new(buffer);
        let base = NonNull::new(buffer.as_mut_ptr()).expect("a vector's pointer is not null");
        Parts { base, length: buffer.len(), capacity: buffer.capacity() }
    }

    fn into_buffer(self) -> Vec<u8> {
        // SAFETY: the parts are those of a vector that was taken apart by `of`, once, and they are used up here.
        unsafe { Vec::from_raw_parts(self.base.as_ptr(), self.length, self.capacity) }
    }
}

impl ProtectionDomain {
    /// Registers a buffer of the application in place.
    ///
    /// # Errors
    /// Those of [`ProtectionDomain::register_memory`], with the buffer.
    pub fn register_owned(&self, buffer: Vec<u8>, access: Access) -> Result<OwnedRegion, NotRegistered> {
        let parts = Parts::of(buffer);
        // SAFETY: the bytes are a vector's, which the region owns until it is released, and the parts hold no reference
        // to them.
        let memory = unsafe { HostMemory::borrowed(parts.base, parts.length) };
        match self.register_memory(memory, access) {
            Ok(region) => Ok(OwnedRegion { region, parts: Some(parts) }),
            Err(error) => Err(NotRegistered { error, buffer: parts.into_buffer() }),
        }
    }
}

impl OwnedRegion {
    /// Deregisters the buffer, unbinds windows that are bound to it, and returns it. No work request and no peer
    /// reaches it any more.
    ///
    /// # Errors
    /// If the device has failed: whether its thread still uses the buffer is not known then, and the buffer is leaked.
    pub fn into_buffer(mut self) -> Result<Vec<u8>, DeviceError> {
        let parts = self.parts.take().expect("the buffer is given back once");
        self.region.release()?;
        Ok(parts.into_buffer())
    }
}

impl Deref for OwnedRegion {
    type Target = MemoryRegion;

    fn deref(&self) -> &MemoryRegion {
        &self.region
    }
}

impl Drop for OwnedRegion {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take()
            && self.region.release().is_ok()
        {
            drop(parts.into_buffer());
        }
    }
}
