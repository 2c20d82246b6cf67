//! Paths of connection management messages, and the path back to a sender.

use std::net::IpAddr;

use crate::host::ah_options::AhOptions;
use crate::host::datagram::AddressHandle;
use crate::host::device::Device;
use crate::host::pd::ProtectionDomain;
use crate::host::searches::Lookup;
use roxie_nic::cm::{Route, Transmit};
use roxie_nic::verbs::LocalGid;
use roxie_wire::net::NEXT_HEADER_IBA;
use roxie_wire::{Encapsulation, Gid, RoceVersion};

/// Hop limit of replies.
pub(super) const HOP_LIMIT: u8 = 64;

/// A message's path between two hosts. Without the flow label: no RoCE switch looks at QP1's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MessagePath {
    pub(super) local: LocalGid,
    pub(super) remote: Gid,
    traffic_class: u8,
    hop_limit: u8,
    /// The message is a request. UDP sockets send requests immediately, to learn if the host is unreachable.
    is_request: bool,
}

impl MessagePath {
    pub(super) fn of(transmit: &Transmit) -> MessagePath {
        MessagePath::to(&transmit.route, transmit.is_request())
    }

    /// Returns the path of a request to the same host.
    pub(super) fn of_request(self) -> MessagePath {
        MessagePath { is_request: true, ..self }
    }

    /// Ends the resolution of the path.
    pub(super) fn give_up(&self, device: &Device) {
        device.give_up(self.local, self.remote, self.traffic_class);
    }

    pub(super) fn to(route: &Route, asks: bool) -> MessagePath {
        MessagePath {
            is_request: asks,
            local: route.source(),
            remote: route.remote,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
        }
    }
}

/// Resolves a path without blocking.
pub(super) fn find_path(
    device: &Device,
    domain: &ProtectionDomain,
    path: &MessagePath,
) -> Lookup<(MessagePath, AddressHandle)> {
    let options =
        AhOptions { traffic_class: path.traffic_class, hop_limit: path.hop_limit, ..AhOptions::default() };
    match device.address_vector_now(path.local, path.remote, &options, path.is_request) {
        Ok(Some(av)) => match domain.create_ah_along(av) {
            Ok(handle) => Lookup::Found((*path, handle)),
            Err(_) => Lookup::Never,
        },
        Ok(None) => Lookup::NotYet,
        Err(_) => Lookup::Never,
    }
}

/// Returns the route back to a datagram's sender, from its network header and VLAN. IPv6 and GRH fill the 40 bytes,
/// IPv4 is in the last 20.
pub(super) fn return_path(header: &[u8], vlan: u16) -> Option<Route> {
    let gid = |at: usize| -> Option<Gid> { Some(Gid(header.get(at..at + 16)?.try_into().ok()?)) };
    let v4 = |at: usize| -> Option<Gid> {
        let octets: [u8; 4] = header.get(at..at + 4)?.try_into().ok()?;
        Some(Gid::from(IpAddr::from(octets)))
    };
    let (local, remote, traffic_class, flow_label) = match (header.first()? >> 4, header.get(20)?) {
        (6, _) => {
            let word = u32::from_be_bytes(header.get(..4)?.try_into().ok()?);
            (gid(24)?, gid(8)?, (word >> 20) as u8, word & 0x000f_ffff)
        }
        (_, 0x45) => (v4(36)?, v4(32)?, header[21], 0),
        _ => return None,
    };
    // The next header tells a GRH from IPv6.
    let is_v1 = header[0] >> 4 == 6 && header[6] == NEXT_HEADER_IBA;
    let version = if is_v1 { RoceVersion::V1 } else { RoceVersion::V2 };
    let encapsulation = Encapsulation { vlan, version };
    Some(Route { local, encapsulation, remote, traffic_class, flow_label, hop_limit: HOP_LIMIT })
}
