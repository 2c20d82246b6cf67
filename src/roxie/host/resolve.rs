//! Neighbour resolution of a device.

use std::sync::Arc;

use super::error::ResolveError;
use roxie_port::netdev::RouteKey;

/// Finds the MAC address of the next hop from an IP address of the device to another IP address.
pub trait Resolve: Send + Sync {
    /// Returns the MAC address of the next hop. May block while the kernel resolves it.
    ///
    /// # Errors
    /// If there is no route, or the neighbour does not answer.
    fn resolve(&self, key: RouteKey) -> Result<[u8; 6], ResolveError>;

    /// Like [`resolve`](Self::resolve) without blocking, for destinations that strangers may name: failed resolutions
    /// are forgotten soon. `None`: the address is being resolved. `asks`: the packet is a local request, not a reply.
    ///
    /// # Errors
    /// The errors of [`Resolve::resolve`], as far as they are known without blocking.
    fn resolve_now(&self, key: RouteKey, _asks: bool) -> Result<Option<[u8; 6]>, ResolveError> {
        self.resolve(key).map(Some)
    }

    /// Returns the hop limit of packets along a route.
    fn hop_limit(&self, _key: RouteKey) -> u8 {
        64
    }

    /// Returns the resolver of a VLAN; `None`: this one serves it, too.
    fn on_vlan(&self, _vlan: u16) -> Option<Arc<dyn Resolve>> {
        None
    }

    /// Ends the resolution that [`resolve_now`](Self::resolve_now) has started.
    fn give_up(&self, _key: RouteKey) {}
}
