//! Port numbers of `rdma_cm`. Processes that share a device share its ports, and the device's NIC or socket group
//! resolves conflicts (`roxie::roster`). A process that has not opened the device keeps its own ports.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use roxie::host::DeviceSlot;
use roxie::roster::{self, BoundPort, Denied, PortName, PortRange, PortRequest};

use crate::base::object::Errno;
use crate::base::report;

/// `enum rdma_ucm_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Ipoib,
    Ib,
    Tcp,
    Udp,
}

/// An identifier that holds or requests a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Handle of the identifier.
    pub(super) id: u32,
    /// Address; unspecified for all addresses.
    pub(super) address: IpAddr,
    /// Shares the port with identifiers that also share it, until one of them listens.
    pub(super) reuse: bool,
    /// Restricted to one address family.
    pub(super) one_family: bool,
}

impl Owner {
    fn bound(self, space: Space, port: u16) -> BoundPort {
        let Owner { id: owner, address, reuse, one_family } = self;
        let name = PortName { space: space.code(), port, owner };
        BoundPort { name, address, reuse, one_family, slot: 0, uid: 0 }
    }
}

/// Ports of this process.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// Used until `slot` is set.
    own: roster::Ports,
    /// Ports taken before `slot` was set, which another process had by then.
    refused: HashMap<PortName, Errno>,
    /// The slot of this process among those that share the device.
    slot: Option<DeviceSlot>,
}

impl Ports {
    /// Moves the ports to those shared by all processes of the device. To listen on a port that another process has by
    /// now fails, as `rdma_bind_addr` would have.
    pub(super) fn share(&mut self, slot: &DeviceSlot) {
        if self.slot.is_none() {
            self.slot = Some(slot.clone());
            self.share_by(|port| slot.port(PortRequest::Bind(port)));
        }
    }

    fn share_by(&mut self, bind: impl Fn(BoundPort) -> Result<u16, Denied>) {
        for port in std::mem::take(&mut self.own).of(0) {
            if let Err(Denied { errno, why }) = bind(port.clone()) {
                report::info("rdma_bind_addr", why);
                self.refused.insert(port.name, errno);
            }
        }
    }

    fn request(&mut self, request: PortRequest) -> Result<u16, Errno> {
        let result = match &self.slot {
            Some(slot) => slot.port(request),
            // The caller has checked privileged ports.
            None => self.own.request((0, 0), request, 0),
        };
        result.map_err(|Denied { errno, why }| {
            report::info("rdma_cm", why);
            errno
        })
    }

    /// Binds a port for its owner.
    ///
    /// # Errors
    /// `EADDRINUSE` if the port is taken on the same address, `EADDRNOTAVAIL` if one of the two is bound to all
    /// addresses; `EACCES` if the NIC reserves it for root.
    pub(super) fn take(&mut self, space: Space, port: u16, owner: Owner) -> Result<(), Errno> {
        self.request(PortRequest::Bind(owner.bound(space, port))).map(drop)
    }

    /// Binds a free port, searching from a random start.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if no port is free.
    pub(super) fn take_any(
        &mut self,
        space: Space,
        range: RangeInclusive<u16>,
        random: u64,
        owner: Owner,
    ) -> Result<u16, Errno> {
        let range = PortRange { first: *range.start(), last: *range.end(), random };
        self.request(PortRequest::BindAny(owner.bound(space, 0), range))
    }

    /// Claims a port for a listener, exclusively, whatever the sharing options.
    ///
    /// # Errors
    /// As for [`Ports::take`].
    pub(super) fn listen(&mut self, space: Space, port: u16, id: u32) -> Result<(), Errno> {
        let name = PortName { space: space.code(), port, owner: id };
        self.refused.get(&name).map_or(Ok(()), |errno| Err(*errno))?;
        self.request(PortRequest::Listen(name)).map(drop)
    }

    /// Narrows a port's owner from all addresses to one.
    pub(super) fn settle(&mut self, space: Space, port: u16, id: u32, address: IpAddr) {
        // Errors are ignored: a NIC that has ended has released the port.
        let _ = self.request(PortRequest::Settle(PortName { space: space.code(), port, owner: id }, address));
    }

    /// Releases a port.
    pub(super) fn release(&mut self, space: Space, port: u16, id: u32) {
        let name = PortName { space: space.code(), port, owner: id };
        if self.refused.remove(&name).is_none() {
            let _ = self.request(PortRequest::Release(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_port_fails_its_listener() {
        let mut ports = Ports::default();
        let [taken, free] =
            [1, 2].map(|id| Owner { id, address: [0; 4].into(), reuse: false, one_family: true });
        ports.take(Space::Tcp, 7471, taken).expect("no slot");
        ports.take(Space::Tcp, 7472, free).expect("no slot");
        ports.share_by(|port| match port.name.port {
            7471 => Err(Denied::new(libc::EADDRNOTAVAIL, "another process has it".into())),
            number => Ok(number),
        });
        assert_eq!(ports.listen(Space::Tcp, 7471, 1), Err(libc::EADDRNOTAVAIL));
        ports.release(Space::Tcp, 7471, 1);
        assert_eq!(ports.listen(Space::Tcp, 7471, 1), Err(libc::EINVAL), "it is gone");
        assert_eq!(ports.take(Space::Tcp, 7471, taken), Ok(()), "a number may be taken again");
    }
}
