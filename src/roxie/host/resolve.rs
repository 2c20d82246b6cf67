//! Neighbour resolution of a device.

use std::net::IpAddr;
use std::sync::Arc;

use super::error::ResolveError;

/// Finds the MAC address of the next hop to an IP address.
pub trait Resolve: Send + Sync {
    /// Returns the MAC address of the next hop. May block while the kernel resolves it.
    ///
    /// # Errors
    /// If there is no route, or the neighbour does not answer.
    fn resolve(&self, destination: IpAddr) -> Result<[u8; 6], ResolveError>;

    /// Like [`resolve`](Self::resolve) without blocking, for destinations that strangers may name: failed resolutions are
    /// forgotten soon. `None`: the address is being resolved. `asks`: the packet is a local request, not a reply.
    ///
    /// # Errors
    /// As those of [`Resolve::resolve`], as far as they are known without blocking.
    fn resolve_now(&self, destination: IpAddr, _asks: bool) -> Result<Option<[u8; 6]>, ResolveError> {
        self.resolve(destination).map(Some)
    }

    /// Returns the hop limit of packets to a destination.
    fn hop_limit(&self, _destination: IpAddr) -> u8 {
        64
    }

    /// Returns the resolver of a VLAN; `None`: this one serves it, too.
    fn on_vlan(&self, _vlan: u16) -> Option<Arc<dyn Resolve>> {
        None
    }

    /// Ends the resolution of a destination.
    fn give_up(&self, _destination: IpAddr) {}
}
