//! A request of a stream.

use roxie_wire::{Operation, Psn};

/// A request, as it was sent first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) psn: Psn,
    pub(super) operation: Operation,
    /// Bytes that a READ asks for.
    pub(super) dma: u32,
    /// Address, key and operand of a FETCH_ADD.
    pub(super) add: Option<(u64, u32, u64)>,
    /// True for a READ of which a later part was asked for again.
    pub(super) has_restarted: bool,
}

/// Returns the number of PSNs that a READ of `dma` bytes takes.
pub(super) fn span_of(dma: u32, mtu: Option<u32>) -> u32 {
    mtu.map_or(1, |mtu| dma.div_ceil(mtu).max(1))
}

impl Request {
    pub(super) fn span(&self, mtu: Option<u32>) -> u32 {
        if self.operation == Operation::ReadRequest { span_of(self.dma, mtu) } else { 1 }
    }

    /// True if only the response itself completes the request.
    pub(super) fn has_response(&self) -> bool {
        matches!(
            self.operation,
            Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Flush
                | Operation::AtomicWrite
        )
    }
}
