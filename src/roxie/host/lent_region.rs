//! Memory that a peer reaches for as long as one request is outstanding, and not longer.

use super::error::DeviceError;
use super::memory::FastRegion;
use super::pd::ProtectionDomain;
use super::qp::QueuePair;
use roxie_nic::shared::HostMemory;
use roxie_nic::verbs::{Access, RKey, SendFlags, Wc, WcFlags, WcOpcode};

/// Bytes of a page of a fast region.
const PAGE: usize = 4096;

/// Memory of requests to one peer, one at a time, in the manner of storage protocols: registered by a work request in
/// front of the SEND that names the key, and invalidated by the peer with its response, or else by this end. The
/// request is over, and the memory free, once the SEND has completed, the response has come, and the key is invalid.
#[derive(Debug)]
pub struct LentRegion {
    region: FastRegion,
    is_sent: bool,
    is_answered: bool,
    is_registered: bool,
}

impl LentRegion {
    /// Allocates memory for at least `length` bytes, in whole pages, and a key that is not valid yet.
    ///
    /// # Errors
    /// If the system is out of memory, or the NIC refuses.
    pub fn new(pd: &ProtectionDomain, length: usize) -> Result<LentRegion, DeviceError> {
        let length = length.next_multiple_of(PAGE);
        let region = pd.alloc_fast(length, (length / PAGE) as u32)?;
        Ok(LentRegion { region, is_sent: false, is_answered: false, is_registered: false })
    }

    /// The memory.
    pub fn memory(&self) -> &HostMemory {
        self.region.memory()
    }

    /// Begins a request. The one before must be over.
    pub fn begin(&mut self) {
        (self.is_sent, self.is_answered, self.is_registered) = (false, false, false);
    }

    /// Posts the registration of the first `length` bytes, without a completion. Returns the address and the key for
    /// the peer.
    ///
    /// # Errors
    /// If `length` is beyond the memory, or the work request was not posted.
    pub fn lend(
        &mut self,
        qp: &QueuePair,
        length: usize,
        access: Access,
    ) -> Result<(u64, RKey), DeviceError> {
        let pages: Vec<u64> = (0..length.div_ceil(PAGE)).map(|page| (page * PAGE) as u64).collect();
        let address = self.region.memory().address();
        let range = (address, length as u64, access);
        let key = qp.fast_register(0, SendFlags::empty(), &mut self.region, &pages, range)?;
        self.is_registered = true;
        Ok((address, key))
    }

    /// Records the completion of the request's SEND, or of the local invalidation of its key.
    pub fn completed(&mut self, opcode: WcOpcode) {
        match opcode {
            WcOpcode::Send => self.is_sent = true,
            WcOpcode::LocalInvalidate => self.is_registered = false,
            _ => {}
        }
    }

    /// Records the response, received with completion `wc`. If the peer did not invalidate the key, posts a local
    /// invalidation with this identifier, signaled: the memory stays open to the peer until it has completed.
    ///
    /// # Errors
    /// If the work request was not posted.
    pub fn answered(&mut self, qp: &QueuePair, wc: &Wc, wr_id: u64) -> Result<(), DeviceError> {
        self.is_answered = true;
        let key = self.region.rkey();
        if wc.flags.contains(WcFlags::WITH_INV) && wc.imm == key.0 {
            self.is_registered = false;
        } else if self.is_registered {
            qp.invalidate(wr_id, SendFlags::SIGNALED, key)?;
        }
        Ok(())
    }

    /// True if the request is over.
    pub fn is_over(&self) -> bool {
        self.is_sent && self.is_answered && !self.is_registered
    }
}
