//! The way to a device's neighbours.

use std::net::IpAddr;

use super::error::ResolveError;

/// Finds the MAC address of the next hop to an IP address.
pub trait Resolve: Send + Sync {
    /// Looks a destination up; may wait for the kernel to ask the link.
    ///
    /// # Errors
    /// If there is no route to it, or nobody on the link answers for it.
    fn resolve(&self, destination: IpAddr) -> Result<[u8; 6], ResolveError>;

    /// The same without waiting; `None`: it is being asked for, and may be known later. For those whom a stranger names: what they led to is
    /// not kept for long. `asks`: what is to be sent there is no answer, but asked by somebody here.
    ///
    /// # Errors
    /// As those of [`Resolve::resolve`], as far as they are known without waiting.
    fn resolve_now(&self, destination: IpAddr, _asks: bool) -> Result<Option<[u8; 6]>, ResolveError> {
        self.resolve(destination).map(Some)
    }

    /// Returns the hop limit of packets to a destination.
    fn hop_limit(&self, _destination: IpAddr) -> u8 {
        64
    }

    /// Nobody wants to know it any more.
    fn give_up(&self, _destination: IpAddr) {}
}
