//! Resolution by the kernel's routes and neighbour tables: of an interface, and of each VLAN interface on it.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::error::ResolveError;
use super::resolve::Resolve;
use super::watched_interface::Live;
use roxie_port::netdev::neighbour::NeighbourError;
use roxie_port::netdev::{Neighbours, RouteKey};

/// Maximum time to wait for a neighbour's answer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The resolver of a VLAN, with its VLAN ID.
pub(super) type OfVlan = (u16, Arc<KernelNeighbours>);

/// The resolvers of the VLANs that have an interface, by VLAN ID. The thread that follows the interface changes the
/// list.
#[derive(Clone, Default)]
pub(super) struct VlanResolvers(Arc<RwLock<Vec<OfVlan>>>);

impl VlanResolvers {
    pub(super) fn get(&self, vlan: u16) -> Option<Arc<KernelNeighbours>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(id, _)| *id == vlan).map(|(_, resolver)| Arc::clone(resolver))
    }

    pub(super) fn all(&self) -> Vec<OfVlan> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, all: Vec<OfVlan>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = all;
    }
}

/// Resolves by the kernel's routes and neighbour table.
pub(super) struct KernelNeighbours {
    pub(super) interface: Live,
    pub(super) neighbours: Arc<Neighbours>,
    pub(super) vlans: VlanResolvers,
}

impl KernelNeighbours {
    fn resolve_error(&self, destination: IpAddr) -> impl Fn(NeighbourError) -> ResolveError {
        let device = self.interface.get().name;
        move |error| ResolveError { destination, device: device.clone(), reason: error.to_string() }
    }
}

impl Resolve for KernelNeighbours {
    fn resolve(&self, key: RouteKey) -> Result<[u8; 6], ResolveError> {
        let resolved = self.neighbours.resolve(&self.interface.get(), key, RESOLVE_TIMEOUT);
        resolved.map_err(self.resolve_error(key.destination))
    }

    fn resolve_now(&self, key: RouteKey, _asks: bool) -> Result<Option<[u8; 6]>, ResolveError> {
        self.neighbours.resolve_now(&self.interface.get(), key).map_err(self.resolve_error(key.destination))
    }

    fn hop_limit(&self, key: RouteKey) -> u8 {
        self.neighbours.hop_limit(&self.interface.get(), key)
    }

    fn on_vlan(&self, vlan: u16) -> Option<Arc<dyn Resolve>> {
        self.vlans.get(vlan).map(|resolver| resolver as Arc<dyn Resolve>)
    }

    fn give_up(&self, key: RouteKey) {
        self.neighbours.give_up(&self.interface.get(), key);
    }
}
