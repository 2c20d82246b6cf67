//! Completion queue entries, which over RDMA are response capsules (NVMe base specification 4.6; NVMe over Fabrics
//! 2.2.2).

use std::fmt;

use crate::nvme::bytes::{first, put, u16_at, u64_at};
use crate::nvme::status::Status;

/// Bytes of a response capsule.
pub const LENGTH: usize = 16;
/// Submission queue head of a queue without flow control (NVMe over Fabrics 2.4.1).
pub const NO_FLOW_CONTROL: u16 = 0xffff;

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The command's result, in the first 4 or 8 bytes.
    pub result: u64,
    /// Head of the submission queue: entries before it are free again.
    pub head: u16,
    /// Submission queue identifier. Reserved in fabrics.
    pub queue: u16,
    /// Identifier of the command.
    pub id: u16,
    /// The status.
    pub status: Status,
}

impl Response {
    /// Parses the first 16 bytes of a message. `None`: there are fewer.
    pub fn parse(bytes: &[u8]) -> Option<Response> {
        let bytes: &[u8; LENGTH] = first(bytes)?;
        Some(Response {
            result: u64_at(bytes, 0),
            head: u16_at(bytes, 8),
            queue: u16_at(bytes, 10),
            id: u16_at(bytes, 12),
            // Bit 0 is the phase tag, which is zero in fabrics.
            status: Status(u16_at(bytes, 14) >> 1),
        })
    }

    /// Encodes the entry.
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        put(&mut bytes, 0, &self.result.to_le_bytes());
        put(&mut bytes, 8, &self.head.to_le_bytes());
        put(&mut bytes, 10, &self.queue.to_le_bytes());
        put(&mut bytes, 12, &self.id.to_le_bytes());
        put(&mut bytes, 14, &(self.status.0 << 1).to_le_bytes());
        bytes
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response id {} {}", self.id, self.status)?;
        if self.result != 0 {
            write!(f, " result {:#x}", self.result)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_has_the_specified_layout() {
        let response =
            Response { result: 0x0102, head: 3, queue: 4, id: 5, status: Status::SGL_LENGTH.permanent() };
        let bytes = response.to_bytes();
        assert_eq!(bytes, [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 4, 0, 5, 0, 0x1e, 0x80]);
        assert_eq!(Response::parse(&bytes), Some(response));
        assert_eq!(Response::parse(&bytes[1..]), None);
    }
}
