//! The VLAN interfaces on a device's interface: their addresses become GIDs, each with its VLAN.

use std::sync::Arc;

use super::kernel_neighbours::{KernelNeighbours, OfVlan, VlanResolvers};
use super::state::State;
use super::watched_interface::Live;
use roxie_nic::verbs::LocalGid;
use roxie_port::netdev::{Interface, Neighbours, VlanLink, Vlans};

/// Follows the VLAN interfaces on an interface.
pub(super) struct VlanFollower {
    vlans: Vlans,
    /// Those that are in use, as last seen.
    links: Vec<VlanLink>,
    /// Those that cannot be used, and were reported.
    reported: Vec<u32>,
    pub(super) resolvers: VlanResolvers,
}

impl VlanFollower {
    pub(super) fn new(vlans: Vlans, resolvers: VlanResolvers) -> VlanFollower {
        VlanFollower { vlans, links: Vec::new(), reported: Vec::new(), resolvers }
    }

    /// Makes the GIDs of a device follow. True if some have changed.
    pub(super) fn follow(&mut self, device: &State) -> bool {
        // After an error, the next change of a link asks again.
        let Ok(mut now) = self.vlans.links() else { return false };
        let mac = device.adapter.port().mac;
        now.retain(|link| self.is_usable(device, link, mac));
        if now == self.links {
            return false;
        }
        self.set_resolvers(&now);
        let of = |links: &[VlanLink]| -> Vec<LocalGid> {
            let each = |link: &VlanLink| -> Vec<LocalGid> {
                link.addresses.iter().map(|ip| LocalGid::on_vlan(*ip, link.vlan)).collect()
            };
            links.iter().flat_map(each).collect()
        };
        let (before, after) = (of(&self.links), of(&now));
        let changed = before != after;
        for gone in before.iter().filter(|local| !after.contains(local)) {
            let _ = device.change_gids(|gids| gids.remove(*gone));
        }
        for new in after.iter().filter(|local| !before.contains(local)) {
            if let Err(error) = device.change_gids(|gids| gids.add(*new)) {
                tracing::warn!("{}: {new} is no GID: {error}", device.name);
                let _ = device.change_gids(|gids| gids.remove(*new));
            }
        }
        self.links = now;
        changed
    }

    /// True if a VLAN interface is up and shares the interface's MAC address. Reports once why another is not used.
    fn is_usable(&mut self, device: &State, link: &VlanLink, mac: [u8; 6]) -> bool {
        if link.vlan == 0 || !link.up {
            return false;
        }
        let fits = link.mac == mac;
        if !fits && !self.reported.contains(&link.index) {
            self.reported.push(link.index);
            tracing::warn!(
                "{}: the addresses of {} are no GIDs: it has a MAC address of its own; open a device on {} itself, or give \
                 it the MAC address of the interface below",
                device.name,
                link.name,
                link.name
            );
        }
        fits
    }

    /// Opens the neighbours of new VLAN interfaces, and closes the neighbours of removed ones.
    fn set_resolvers(&self, now: &[VlanLink]) {
        let known = self.resolvers.all();
        let resolver = |link: &VlanLink| {
            let is_it = |(vlan, of): &&OfVlan| *vlan == link.vlan && of.interface.get().index == link.index;
            let interface = Interface::by_name(&link.name).ok()?;
            if let Some((vlan, of)) = known.iter().find(is_it) {
                of.interface.set(&interface);
                return Some((*vlan, Arc::clone(of)));
            }
            let neighbours = Arc::new(Neighbours::open(&interface).ok()?);
            let vlans = VlanResolvers::default();
            Some((
                link.vlan,
                Arc::new(KernelNeighbours { interface: Live::new(interface), neighbours, vlans }),
            ))
        };
        self.resolvers.set(now.iter().filter_map(resolver).collect());
    }

    /// Updates the destination MAC address of frames to peers on VLANs that have changed theirs. `again`: asks for all.
    pub(super) fn follow_neighbours(&self, device: &State, again: bool) {
        for (vlan, of) in self.resolvers.all() {
            let interface = of.interface.get();
            let mut moved = of.neighbours.poll(&interface);
            if again {
                moved.extend(of.neighbours.poll_all(&interface));
            }
            for (key, mac) in moved {
                device.set_next_hop(vlan, key, mac);
            }
        }
    }
}
