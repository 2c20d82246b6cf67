//! The device's GIDs: their VLANs and RoCE versions, and the MAC addresses of next hops from them.

use std::net::IpAddr;
use std::sync::PoisonError;

use super::device::Device;
use super::error::DeviceError;
use super::gid_table::GidTable;
use super::resolve::Resolve;
use super::state::State;
use roxie_nic::nic::Command;
use roxie_nic::verbs::LocalGid;
use roxie_port::Carries;
use roxie_port::netdev::RouteKey;
use roxie_wire::net::multicast_mac;
use roxie_wire::{Encapsulation, Gid};

impl Device {
    /// Returns a copy of the GID table.
    pub fn gid_table(&self) -> GidTable {
        self.inner.gids.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the address at an index.
    ///
    /// # Errors
    /// If there is no address at that index.
    pub fn gid(&self, index: usize) -> Result<Gid, DeviceError> {
        self.local_gid(index).map(|local| local.gid)
    }

    /// Returns the GID at an index, with its VLAN and RoCE version.
    ///
    /// # Errors
    /// If there is no GID at that index.
    pub fn local_gid(&self, index: usize) -> Result<LocalGid, DeviceError> {
        let gids = self.inner.gids.read().unwrap_or_else(PoisonError::into_inner);
        gids.get(index).ok_or_else(|| DeviceError::NoGid {
            device: self.inner.name.clone(),
            index,
            available: gids.listed(),
        })
    }

    /// Returns the first GID of an address in the table; the plain one if there is none.
    pub fn local_gid_of(&self, gid: Gid) -> LocalGid {
        let gids = self.inner.gids.read().unwrap_or_else(PoisonError::into_inner);
        gids.locals().find(|local| local.gid == gid).unwrap_or(gid.into())
    }

    /// Adds an address of the interface.
    pub fn add_address(&self, address: IpAddr) {
        // Fails only if the device has failed, which reports it itself.
        let _ = self.inner.change_gids(|gids| gids.add(address));
    }

    /// Removes an address of the interface.
    pub fn remove_address(&self, address: IpAddr) {
        let _ = self.inner.change_gids(|gids| gids.remove(address));
    }

    /// Adds an address on a VLAN (1 to 4094) of the interface, and returns its index in the GID table. Frames from this
    /// GID carry the VLAN's tag, with the priority of their path, and frames to it are taken only with that tag. Over
    /// sockets the kernel does both.
    ///
    /// The kernel needs no VLAN interface for this, except to resolve neighbours on the VLAN.
    ///
    /// # Errors
    /// If there is no such VLAN ID, or the port cannot see the tags of frames.
    pub fn add_vlan_address(&self, address: IpAddr, vlan: u16) -> Result<usize, DeviceError> {
        if vlan == 0 || vlan > Encapsulation::LAST_VLAN {
            return Err(DeviceError::Vlan(vlan));
        }
        let local = LocalGid::on_vlan(address, vlan);
        let index = self.inner.change_gids(|gids| gids.add(local));
        if index.is_err() {
            self.inner.gids.write().unwrap_or_else(PoisonError::into_inner).remove(local);
        }
        index
    }

    /// Removes an address on a VLAN. QPs with paths from it enter the error state, each with an event, and work
    /// requests along its address handles fail.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn remove_vlan_address(&self, address: IpAddr, vlan: u16) -> Result<(), DeviceError> {
        self.inner.change_gids(|gids| gids.remove(LocalGid::on_vlan(address, vlan)))
    }

    /// Returns the MAC address of the next hop from `source` along the route of `key`, or of a multicast group.
    pub(super) fn resolve(&self, source: LocalGid, key: RouteKey) -> Result<[u8; 6], DeviceError> {
        match self.resolve_at_home(source, key.destination) {
            Some(mac) => Ok(mac),
            None => Ok(self.resolving(source, |resolver| resolver.resolve(key))?),
        }
    }

    /// Like [`resolve`](Self::resolve) without blocking. `None`: the address is being resolved.
    pub(super) fn resolve_now(
        &self,
        source: LocalGid,
        key: RouteKey,
        asks: bool,
    ) -> Result<Option<[u8; 6]>, DeviceError> {
        match self.resolve_at_home(source, key.destination) {
            Some(mac) => Ok(Some(mac)),
            None => Ok(self.resolving(source, |resolver| resolver.resolve_now(key, asks))?),
        }
    }

    /// Calls the resolver of the VLAN of `source`.
    pub(super) fn resolving<T>(&self, source: LocalGid, call: impl FnOnce(&dyn Resolve) -> T) -> T {
        let plain = &*self.inner.resolver;
        let of_vlan = match source.encapsulation.vlan {
            0 => None,
            vlan => plain.on_vlan(vlan),
        };
        call(of_vlan.as_deref().unwrap_or(plain))
    }

    /// Ends the resolution that [`next_hop_is_known`](Self::next_hop_is_known) has started for this path.
    #[doc(hidden)]
    pub fn give_up(&self, sgid: impl Into<LocalGid>, dgid: Gid, traffic_class: u8) {
        let source = sgid.into();
        let key = RouteKey::new(source.gid.to_ip(), dgid.to_ip(), traffic_class);
        self.resolving(source, |resolver| resolver.give_up(key));
    }

    /// True if an address is one of the device's GIDs on the VLAN of `source`.
    pub(super) fn is_own(&self, source: LocalGid, address: IpAddr) -> bool {
        let (gid, vlan) = (Gid::from(address), source.encapsulation.vlan);
        let gids = self.inner.gids.read().unwrap_or_else(PoisonError::into_inner);
        gids.locals().any(|own| own.gid == gid && own.encapsulation.vlan == vlan)
    }

    /// Returns the MAC address for an address of the device, or of a multicast group.
    fn resolve_at_home(&self, source: LocalGid, destination: IpAddr) -> Option<[u8; 6]> {
        // The port loops back frames to own addresses.
        if self.is_own(source, destination) { Some(self.port().mac) } else { multicast_mac(destination) }
    }
}

impl State {
    /// Changes the GID table, and tells the NIC.
    pub(super) fn change_gids<T>(&self, change: impl FnOnce(&mut GidTable) -> T) -> Result<T, DeviceError> {
        let done = change(&mut self.gids.write().unwrap_or_else(PoisonError::into_inner));
        self.set_gids_of_nic()?;
        Ok(done)
    }

    /// Tells the NIC its GIDs, unless it needs none: they are all plain and were, the kernel tags, or another process
    /// has the NIC.
    pub(super) fn set_gids_of_nic(&self) -> Result<(), DeviceError> {
        let Some(engine) = self.engines().first() else { return Ok(()) };
        let gids: Vec<LocalGid> = self.gids.read().unwrap_or_else(PoisonError::into_inner).locals().collect();
        let are_plain = gids.iter().all(|local| local.encapsulation.is_plain());
        let known = engine.inspect(|worker| worker.nic().has_gids());
        if are_plain && !known || self.adapter.port().carries == Carries::Datagrams {
            return Ok(());
        }
        self.adapter.call(Command::SetGids(gids))?;
        Ok(())
    }
}
