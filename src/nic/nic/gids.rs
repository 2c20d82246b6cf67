//! The NIC's GIDs, each with its RoCE version and VLAN, and the check that received packets are for one of them.
//!
//! A NIC whose GIDs are all plain (RoCE v2 without a VLAN) needs no table: which addresses are its own is the port's
//! concern, and packets that are not plain are for no GID.

use std::net::IpAddr;

use super::Nic;
use super::command::ControlError;
use crate::verbs::{AddressVector, Gid, LocalGid};
use roxie_wire::frame::Frame;
use roxie_wire::net::ether_type;
use roxie_wire::{Encapsulation, Packet, RoceVersion};

/// Offset of the first EtherType in a frame.
const ETHER_TYPE: usize = 12;

/// The GIDs of a NIC.
#[derive(Debug, Default)]
pub(super) struct Gids {
    /// All of them, ordered; empty if all are plain.
    listed: Vec<LocalGid>,
    /// Those before the last change.
    before: Vec<LocalGid>,
    changed: bool,
}

impl Gids {
    /// Replaces the GIDs.
    pub(super) fn set(&mut self, mut gids: Vec<LocalGid>) -> Result<(), ControlError> {
        let vlans = || gids.iter().map(|own| own.encapsulation.vlan);
        if let Some(vlan) = vlans().find(|vlan| *vlan > Encapsulation::LAST_VLAN) {
            let (value, limit) = (vlan.into(), Encapsulation::LAST_VLAN.into());
            return Err(ControlError::TooLarge { what: "VLAN ID", value, limit });
        }
        if gids.iter().all(|own| own.encapsulation.is_plain()) {
            gids.clear();
        }
        gids.sort_unstable();
        self.before = std::mem::replace(&mut self.listed, gids);
        self.changed |= self.before != self.listed;
        Ok(())
    }

    /// True if all GIDs are plain.
    #[inline(always)]
    pub(super) fn are_plain(&self) -> bool {
        self.listed.is_empty()
    }

    fn has(&self, gid: Gid, encapsulation: Encapsulation) -> bool {
        self.listed.binary_search(&LocalGid { gid, encapsulation }).is_ok()
    }

    fn any(&self, is_it: impl Fn(Encapsulation) -> bool) -> bool {
        self.listed.iter().any(|own| is_it(own.encapsulation))
    }

    /// True if packets may be sent along a path: its source is a GID, or all GIDs are plain, as the path is.
    pub(super) fn may_send(&self, av: &AddressVector) -> bool {
        av.encapsulation.is_plain() || self.has(av.sgid, av.encapsulation)
    }

    /// True if a packet is for one of the GIDs, in its RoCE version and with its VLAN tag. Groups are of no VLAN.
    pub(super) fn take(&self, packet: &Packet, frame: &Frame<'_>) -> bool {
        let is_service_tag = || frame.array(ETHER_TYPE).map(u16::from_be_bytes) != Some(ether_type::VLAN);
        if packet.vlan.is_some() && (packet.outer_vlan.is_some() || is_service_tag()) {
            return false;
        }
        let (to, encapsulation) = (packet.dest_gid(), packet.encapsulation());
        if to.to_ip().is_multicast() {
            return encapsulation.is_plain()
                || encapsulation == Encapsulation::v1() && self.any(|own| own == encapsulation);
        }
        //= IBTA A17.4.5: roce-v1-is-for-a-gid-of-its-type, vlan-is-that-of-the-gid
        // A GID that is only of a VLAN, or only RoCE v1, takes no plain packets.
        let knows = || self.listed.iter().any(|own| own.gid == to);
        self.has(to, encapsulation) || encapsulation.is_plain() && !knows()
    }
}

impl Nic {
    /// Returns the addresses on VLANs, each with its VLAN, if they have changed. To be called after each command.
    pub fn take_vlan_change(&mut self) -> Option<Vec<(IpAddr, u16)>> {
        std::mem::take(&mut self.gids.changed).then(|| self.vlan_addresses())
    }

    /// Returns the addresses on VLANs, each with its VLAN.
    pub fn vlan_addresses(&self) -> Vec<(IpAddr, u16)> {
        let tagged = self.gids.listed.iter().filter(|own| own.encapsulation.vlan != 0);
        tagged.map(|own| (own.gid.to_ip(), own.encapsulation.vlan)).collect()
    }

    /// Takes back the last change of the GIDs, which the port could not follow.
    pub fn restore_gids(&mut self) {
        self.gids.listed = std::mem::take(&mut self.gids.before);
    }

    /// True if the NIC knows its GIDs, of which some are not plain.
    pub fn has_gids(&self) -> bool {
        !self.gids.are_plain()
    }

    /// True if a GID is of RoCE v1.
    pub fn wants_roce_v1(&self) -> bool {
        self.gids.any(|of| of.version == RoceVersion::V1)
    }
}
