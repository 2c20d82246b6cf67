//! A local GID with what tells it from equal addresses.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Gid;
use roxie_wire::Encapsulation;

/// A GID of this NIC: an address, in one RoCE version and of one VLAN or none. An address alone is RoCE v2 without a
/// VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LocalGid {
    /// The address; an IPv4 address is IPv4-mapped.
    pub gid: Gid,
    /// RoCE version and VLAN.
    pub encapsulation: Encapsulation,
}

impl LocalGid {
    /// Returns the RoCE v2 GID of an address on a VLAN; 0: on none.
    pub fn on_vlan(address: IpAddr, vlan: u16) -> LocalGid {
        LocalGid { gid: address.into(), encapsulation: Encapsulation::vlan(vlan) }
    }
}

impl From<Gid> for LocalGid {
    fn from(gid: Gid) -> LocalGid {
        LocalGid { gid, encapsulation: Encapsulation::default() }
    }
}

impl From<IpAddr> for LocalGid {
    fn from(address: IpAddr) -> LocalGid {
        Gid::from(address).into()
    }
}

impl fmt::Display for LocalGid {
    /// Prints the address, and what is not plain: `fe80::1`, `::ffff:10.0.0.1 (RoCE v2, VLAN 5)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.encapsulation.is_plain() {
            return self.gid.fmt(f);
        }
        write!(f, "{} ({})", self.gid, self.encapsulation)
    }
}
