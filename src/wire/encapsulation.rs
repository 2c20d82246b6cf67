//! How packets of a GID are wrapped: RoCE version and VLAN.

use core::fmt;

/// The RoCE encapsulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RoceVersion {
    /// EtherType 0x8915 and a GRH (IBTA annex A16).
    V1,
    /// UDP port 4791 over IPv4 or IPv6 (IBTA annex A17).
    #[default]
    V2,
}

impl fmt::Display for RoceVersion {
    /// Prints the type of a GID as sysfs does, but for v1, which sysfs calls `IB/RoCE v1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RoceVersion::V1 => "RoCE v1",
            RoceVersion::V2 => "RoCE v2",
        })
    }
}

/// RoCE version and VLAN of a GID: the same address may be a GID in each of them. Packets from a GID carry both, and
/// packets to a GID are taken only with both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Encapsulation {
    /// VLAN ID, 1 to 4094; 0: none. A frame with a priority tag (VLAN 0) is of no VLAN (IEEE 802.1Q 9.6).
    pub vlan: u16,
    /// RoCE v1 or v2.
    pub version: RoceVersion,
}

impl Encapsulation {
    /// The bits of a tag that are the VLAN ID.
    pub const VLAN_BITS: u16 = 0x0fff;
    /// The largest VLAN ID; 4095 is reserved (IEEE 802.1Q 9.6).
    pub const LAST_VLAN: u16 = 4094;

    /// Returns RoCE v2 on a VLAN.
    pub fn vlan(vlan: u16) -> Encapsulation {
        Encapsulation { vlan, version: RoceVersion::V2 }
    }

    /// Returns RoCE v1 without a VLAN.
    pub fn v1() -> Encapsulation {
        Encapsulation { vlan: 0, version: RoceVersion::V1 }
    }

    /// True for RoCE v2 without a VLAN.
    pub fn is_plain(self) -> bool {
        self == Encapsulation::default()
    }
}

impl fmt::Display for Encapsulation {
    /// Prints `RoCE v2`, or `RoCE v2, VLAN 5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vlan {
            0 => self.version.fmt(f),
            vlan => write!(f, "{}, VLAN {vlan}", self.version),
        }
    }
}
