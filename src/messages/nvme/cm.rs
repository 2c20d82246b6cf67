//! Private data of connection management messages (NVMe RDMA transport specification 3.1; `include/linux/nvme-rdma.h`).

use std::fmt;

use crate::nvme::bytes::{first, put, u16_at};

/// Port of NVMe over Fabrics (RFC 7143 registry: nvme).
pub const PORT: u16 = 4420;
/// Bytes of the private data in a request and in a reply.
pub const LENGTH: usize = 32;
/// Entries of an admin queue at most, as of Linux.
pub const ADMIN_QUEUE: u16 = 32;

/// The host's request for a queue, in the REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRequest {
    /// Queue identifier; 0: the admin queue.
    pub queue: u16,
    /// Receives that the host posts for responses.
    pub receives: u16,
    /// Commands that the host has outstanding at most, minus 1.
    pub sends: u16,
}

impl QueueRequest {
    /// Parses private data.
    ///
    /// # Errors
    /// If it is too short, or of an unknown record format.
    pub fn parse(bytes: &[u8]) -> Result<QueueRequest, Refusal> {
        let bytes: &[u8; LENGTH] = first(bytes).ok_or(Refusal::LENGTH)?;
        if u16_at(bytes, 0) != 0 {
            return Err(Refusal::FORMAT);
        }
        Ok(QueueRequest { queue: u16_at(bytes, 2), receives: u16_at(bytes, 4), sends: u16_at(bytes, 6) })
    }

    /// Encodes the private data.
    pub fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        put(&mut bytes, 2, &self.queue.to_le_bytes());
        put(&mut bytes, 4, &self.receives.to_le_bytes());
        put(&mut bytes, 6, &self.sends.to_le_bytes());
        bytes
    }
}

/// The controller's reply, in the REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueReply {
    /// Receives that the controller posts for commands.
    pub receives: u16,
}

impl QueueReply {
    /// Parses private data. `None`: too short, or of an unknown record format.
    pub fn parse(bytes: &[u8]) -> Option<QueueReply> {
        let bytes: &[u8; LENGTH] = first(bytes)?;
        (u16_at(bytes, 0) == 0).then(|| QueueReply { receives: u16_at(bytes, 2) })
    }

    /// Encodes the private data.
    pub fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        put(&mut bytes, 2, &self.receives.to_le_bytes());
        bytes
    }
}

/// Why the controller refuses a queue, in the REJ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u16);

impl Refusal {
    /// The private data is too short.
    pub const LENGTH: Refusal = Refusal(1);
    /// The record format is unknown.
    pub const FORMAT: Refusal = Refusal(2);
    /// There is no such queue.
    pub const QUEUE: Refusal = Refusal(3);
    /// The host has more commands outstanding than the controller takes.
    pub const SENDS: Refusal = Refusal(4);
    /// The host posts too few receives.
    pub const RECEIVES: Refusal = Refusal(5);
    /// The controller is out of resources.
    pub const RESOURCES: Refusal = Refusal(6);

    /// Parses private data. `None`: too short, or of an unknown record format.
    pub fn parse(bytes: &[u8]) -> Option<Refusal> {
        let bytes: &[u8; 4] = first(bytes)?;
        (u16_at(bytes, 0) == 0).then(|| Refusal(u16_at(bytes, 2)))
    }

    /// Encodes the private data.
    pub fn to_bytes(self) -> [u8; 4] {
        let [low, high] = self.0.to_le_bytes();
        [0, 0, low, high]
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            1 => "invalid length of private data",
            2 => "invalid record format",
            3 => "invalid queue ID",
            4 => "invalid host SQ size",
            5 => "invalid host RQ size",
            6 => "no resources",
            7 => "invalid IRD",
            8 => "invalid ORD",
            other => return write!(f, "status {other}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_has_the_specified_layout() {
        let request = QueueRequest { queue: 0x0102, receives: 0x0304, sends: 0x0506 };
        let bytes = request.to_bytes();
        assert_eq!(bytes[..8], [0, 0, 2, 1, 4, 3, 6, 5]);
        assert_eq!(QueueRequest::parse(&bytes), Ok(request));
        let reply = QueueReply { receives: 0x0708 };
        assert_eq!(
            (reply.to_bytes()[..4].to_vec(), QueueReply::parse(&reply.to_bytes())),
            (vec![0, 0, 8, 7], Some(reply))
        );
        assert_eq!(Refusal::parse(&Refusal::SENDS.to_bytes()), Some(Refusal::SENDS));
    }

    #[test]
    fn short_or_unknown_private_data_is_refused() {
        assert_eq!(QueueRequest::parse(&[0; LENGTH - 1]), Err(Refusal::LENGTH));
        assert_eq!(QueueRequest::parse(&[1; LENGTH]), Err(Refusal::FORMAT));
        assert_eq!((QueueReply::parse(&[0; 31]), Refusal::parse(&[1, 0, 4, 0])), (None, None));
    }
}
