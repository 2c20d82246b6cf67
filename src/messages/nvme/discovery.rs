//! The discovery log page: which subsystems there are, and at which addresses (NVMe over Fabrics 5.3).

use std::net::{IpAddr, SocketAddr};

use crate::nvme::bytes::{first, put, put_text, text_at, u16_at, u64_at};

/// Bytes of the header, and of each entry.
pub const LENGTH: usize = 1024;
/// Log page identifier.
pub const PAGE: u8 = 0x70;

/// Transport types (TRTYPE).
const RDMA: u8 = 1;
/// Subsystem type: one with namespaces.
const NVM_SUBSYSTEM: u8 = 2;
/// Connections are of RC queue pairs, over RoCE v2, made by the RDMA connection manager (TSAS of RDMA).
const RELIABLE_CONNECTED: u8 = 1;
const ROCE_V2: u8 = 4;
const RDMA_CM: u8 = 1;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Transport type: 1 RDMA, 2 Fibre Channel, 3 TCP, 254 loop.
    pub transport: u8,
    /// Subsystem type: 1 another discovery service, 2 a subsystem with namespaces, 3 this discovery service.
    pub kind: u8,
    /// Port identifier in the subsystem.
    pub port: u16,
    /// Controller identifier; 0xffff: any.
    pub controller: u16,
    /// Largest admin queue.
    pub admin_queue: u16,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Transport address: an IP address over RDMA and TCP.
    pub address: String,
    /// Transport service: a port number over RDMA and TCP.
    pub service: String,
}

impl Entry {
    /// Returns the entry of a subsystem at an address, over RDMA.
    pub fn at(address: SocketAddr, subsystem: &str, admin_queue: u16) -> Entry {
        Entry {
            transport: RDMA,
            kind: NVM_SUBSYSTEM,
            port: 1,
            controller: 0xffff,
            admin_queue,
            subsystem: subsystem.to_owned(),
            address: address.ip().to_string(),
            service: address.port().to_string(),
        }
    }

    /// Name of the transport.
    pub fn transport_name(&self) -> &'static str {
        match self.transport {
            RDMA => "rdma",
            2 => "fc",
            3 => "tcp",
            254 => "loop",
            _ => "unknown",
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        bytes[0] = self.transport;
        bytes[1] = match self.address.parse() {
            Ok(IpAddr::V4(_)) => 1,
            Ok(IpAddr::V6(_)) => 2,
            Err(_) => 0,
        };
        bytes[2] = self.kind;
        put(&mut bytes, 4, &self.port.to_le_bytes());
        put(&mut bytes, 6, &self.controller.to_le_bytes());
        put(&mut bytes, 8, &self.admin_queue.to_le_bytes());
        put_text(&mut bytes, (32, 32), &self.service, b' ');
        put_text(&mut bytes, (256, 256), &self.subsystem, 0);
        put_text(&mut bytes, (512, 256), &self.address, b' ');
        if self.transport == RDMA {
            bytes[768..771].copy_from_slice(&[RELIABLE_CONNECTED, ROCE_V2, RDMA_CM]);
        }
        bytes
    }

    fn parse(bytes: &[u8; LENGTH]) -> Entry {
        Entry {
            transport: bytes[0],
            kind: bytes[2],
            port: u16_at(bytes, 4),
            controller: u16_at(bytes, 6),
            admin_queue: u16_at(bytes, 8),
            service: text_at(bytes, 32, 32),
            subsystem: text_at(bytes, 256, 256),
            address: text_at(bytes, 512, 256),
        }
    }
}

/// The log page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Counter of changes.
    pub generation: u64,
    /// The entries.
    pub entries: Vec<Entry>,
}

impl Log {
    /// Encodes the page.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        put(&mut bytes, 0, &self.generation.to_le_bytes());
        put(&mut bytes, 8, &(self.entries.len() as u64).to_le_bytes());
        self.entries.iter().for_each(|entry| bytes.extend(entry.to_bytes()));
        bytes
    }

    /// Returns the number of entries that a header names. `None`: too short, or of an unknown record format.
    pub fn count(header: &[u8]) -> Option<u64> {
        let bytes: &[u8; LENGTH] = first(header)?;
        (u16_at(bytes, 16) == 0).then(|| u64_at(bytes, 8))
    }

    /// Parses the page. `None`: it is shorter than its header says, or of an unknown record format.
    pub fn parse(bytes: &[u8]) -> Option<Log> {
        let count = usize::try_from(Log::count(bytes)?).ok()?;
        let entries = bytes.get(LENGTH..count.checked_add(1)?.checked_mul(LENGTH)?)?;
        let entries = entries.chunks_exact(LENGTH).filter_map(|entry| first(entry).map(Entry::parse));
        Some(Log { generation: u64_at(bytes, 0), entries: entries.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_the_specified_layout() {
        let entry = Entry::at("192.0.2.1:4420".parse().expect("valid"), "nqn.2026-11.example:disk", 32);
        let log = Log { generation: 3, entries: vec![entry.clone(), entry] };
        let bytes = log.to_bytes();
        assert_eq!((bytes.len(), bytes[0], bytes[8]), (3 * 1024, 3, 2));
        let entry = &bytes[1024..2048];
        assert_eq!(entry[..10], [1, 1, 2, 0, 1, 0, 0xff, 0xff, 32, 0]);
        assert!(entry[32..].starts_with(b"4420   ") && entry[512..].starts_with(b"192.0.2.1   "));
        assert!(entry[256..].starts_with(b"nqn.2026-11.example:disk\0"));
        assert_eq!(entry[768..776], [1, 4, 1, 0, 0, 0, 0, 0]);
        assert_eq!(Log::parse(&bytes), Some(log));
    }

    #[test]
    fn page_shorter_than_its_count_is_refused() {
        let log =
            Log { generation: 0, entries: vec![Entry::at("[fd00::1]:1".parse().expect("valid"), "nqn", 1)] };
        let mut bytes = log.to_bytes();
        assert_eq!((bytes[1025], Log::parse(&bytes[..2047])), (2, None));
        bytes[8..16].fill(0xff);
        assert_eq!(Log::parse(&bytes), None);
        assert_eq!(Log::parse(&[0; 1023]), None);
    }
}
