//! Service IDs, and the mapping of IP addresses and ports to them by RDMA-CM (IBTA annexes A3 and A11; Linux
//! `drivers/infiniband/core/cma.c`).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The service that a REQ or SIDR_REQ requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

/// A port space of RDMA-CM (`rdma_port_space`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum PortSpace {
    /// Connections (`RDMA_PS_TCP`).
    Tcp = 0x0106,
    /// Datagrams, by service ID resolution (`RDMA_PS_UDP`).
    Udp = 0x0111,
    /// Any service of InfiniBand (`RDMA_PS_IB`).
    Ib = 0x013f,
}

impl PortSpace {
    /// All port spaces.
    pub const ALL: [PortSpace; 3] = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];

    /// Returns the port space of the number that `rdma_create_id` takes.
    pub fn from_code(code: u16) -> Option<PortSpace> {
        PortSpace::ALL.into_iter().find(|space| *space as u16 == code)
    }
}

impl ServiceId {
    /// Returns the service ID of port `port` in `space`: `00 00 00 00 01 PS port16`.
    pub const fn of_port(space: PortSpace, port: u16) -> ServiceId {
        ServiceId((space as u64) << 16 | port as u64)
    }

    /// Returns space and port, if the service ID is one of RDMA-CM.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let space = u16::try_from(self.0 >> 16).ok()?;
        Some((PortSpace::from_code(space)?, self.0 as u16))
    }
}

impl fmt::Display for ServiceId {
    /// `0x0000000001061c06 (TCP port 7174)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)?;
        match self.port() {
            Some((PortSpace::Tcp, port)) => write!(f, " (TCP port {port})"),
            Some((PortSpace::Udp, port)) => write!(f, " (UDP port {port})"),
            Some((PortSpace::Ib, port)) => write!(f, " (IB port {port})"),
            None => Ok(()),
        }
    }
}

/// Queue key of the datagram QPs that RDMA-CM sets up (`RDMA_UDP_QKEY`).
pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;

/// Header that RDMA-CM writes before the consumer's private data in REQ and SIDR_REQ (`struct cma_hdr`).
///
/// ```text
///  0               8       12      16                             32
/// +---------------+-------+-------+-------------------------------+
/// |   version 0   |ip ver.| rsv.  |          source port          |
/// +---------------+-------+-------+-------------------------------+
/// |      source address, 16 bytes, an IPv4 one in the last 4      |
/// |                destination address, likewise                  |
/// +---------------------------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmaHeader {
    /// Address of the requesting side.
    pub source: IpAddr,
    /// Port of the requesting side.
    pub source_port: u16,
    /// Address of the destination, of the same family.
    pub destination: IpAddr,
}

impl CmaHeader {
    /// Length in bytes.
    pub const LEN: usize = 36;

    /// Decodes the header at the beginning of private data. `None` if the data is too short, or has another
    /// header version or an IP version other than 4 and 6.
    pub fn read(private_data: &[u8]) -> Option<CmaHeader> {
        let bytes: &[u8; CmaHeader::LEN] = private_data.first_chunk()?;
        if bytes[0] != 0 {
            return None;
        }
        let ip = |at: usize| -> Option<IpAddr> {
            let address: [u8; 16] = bytes[at..at + 16].try_into().ok()?;
            match bytes[1] >> 4 {
                4 => Some(Ipv4Addr::new(address[12], address[13], address[14], address[15]).into()),
                6 => Some(Ipv6Addr::from(address).into()),
                _ => None,
            }
        };
        Some(CmaHeader {
            source: ip(4)?,
            source_port: u16::from_be_bytes([bytes[2], bytes[3]]),
            destination: ip(20)?,
        })
    }

    /// Encodes the header. The IP version is the source's.
    pub fn to_bytes(&self) -> [u8; CmaHeader::LEN] {
        let mut bytes = [0; CmaHeader::LEN];
        bytes[1] = if self.source.is_ipv4() { 4 << 4 } else { 6 << 4 };
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        for (at, ip) in [(4, self.source), (20, self.destination)] {
            match ip {
                IpAddr::V4(v4) => bytes[at + 12..at + 16].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => bytes[at..at + 16].copy_from_slice(&v6.octets()),
            }
        }
        bytes
    }

    /// Returns the private data behind the header: 56 bytes in a REQ, 180 in a SIDR_REQ.
    pub fn behind(private_data: &[u8]) -> &[u8] {
        private_data.get(CmaHeader::LEN..).unwrap_or_default()
    }
}

/// Returns the flow label of a connection between two ports, 20 bits (`rdma_calc_flow_label` in
/// `ib_verbs.h`). The two ends derive the UDP source port from it.
pub fn port_flow_label(source_port: u16, destination_port: u16) -> u32 {
    (u32::from(source_port) * 31 + u32::from(destination_port)) & 0x000f_ffff
}
